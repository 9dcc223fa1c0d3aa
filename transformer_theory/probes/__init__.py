"""Probes: metrics of any torch model, computed while the model runs, without storing attention maps.

    with probe(model, metrics, every=10) as p:
        for step, (x, y) in enumerate(batches):
            p.labels = y
            loss = loss_of(model(x), y)
            ...
    p.result().table

The model needs no changes. A probe intercepts ``torch.nn.functional.scaled_dot_product_attention`` and
``torch.nn.MultiheadAttention``, recognises attention that is written out as softmax(Q K^T) V, and records
calls of other implementations in the registry of ``transformers``. If a kernel does not return its weights,
the probe recomputes them. It passes the weights to the metrics immediately and does not store them; it
computes none if no metric needs attention (:attr:`.Metric.kinds`). The probe derives the residual stream
around each attention, and the projections of queries and keys, from the operations of the forward pass, not
from the names of modules. Attention that the probe does not recognise is reported as a row of the table. So
is an error in a metric; the model never sees it.

A probe draws no random numbers. It does not change outputs, gradients and the random state, to the last bit,
with two exceptions: an observed forward pass of a *compiled* model runs eagerly, and
``torch.nn.TransformerEncoder`` in evaluation mode runs without its fused kernel. Both agree with an
unobserved pass up to rounding. Passes that are not observed run unchanged.

If a model is wrapped for parallel training (DistributedDataParallel, FSDP, Lightning Fabric), each
measurement covers the data of all processes (:func:`across_processes`). Every process must then open the
probe and observe the same passes.
"""

from ..core.metric import Activations, Metric
from .forward_pass import NoAttention
from .probing import Probe, across_processes, probe
from .recording import activations
from .respond import doubled_tokens, permuted_tokens, repeated_blocks, respond

__all__ = [
    "Activations",
    "Metric",
    "NoAttention",
    "Probe",
    "across_processes",
    "activations",
    "doubled_tokens",
    "permuted_tokens",
    "probe",
    "repeated_blocks",
    "respond",
]

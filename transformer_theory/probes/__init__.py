"""Probes: metrics of any torch model, computed while the model runs, without storing attention maps.

    with probe(model, metrics, every=10) as p:
        for step, (x, y) in enumerate(batches):
            p.labels = y
            loss = loss_of(model(x), y)
            ...
    p.result().table

The model needs no changes. A probe intercepts ``torch.nn.functional.scaled_dot_product_attention`` and ``torch.nn.MultiheadAttention``,
recognises attention that is written out as softmax(Q K^T) V, and takes other implementations from the registry of ``transformers``. It
computes the weights a second time where a kernel hides them, and passes them to the metrics at once (not if no metric needs attention,
:attr:`.Metric.kinds`). The residual stream before and after each attention, and the matrices behind queries and keys, follow from the
operations of the pass, whatever the modules are called. Attention that exists and was not recognised is a row, and so is an error in a
metric: the model never sees it.

A probe takes no random numbers. Outputs, gradients and random state are bit for bit those without a probe, with two exceptions, where torch
has a second kernel for the same mathematics: an observed forward pass of a *compiled* model runs eagerly, and
``torch.nn.TransformerEncoder`` in evaluation mode without its fused path; both agree to rounding. Other passes run unchanged.

If a model is wrapped for parallel training (DistributedDataParallel, FSDP, Lightning Fabric), each measurement is of the union of all
processes' data (:func:`across_processes`), so every process must open the probe and observe the same passes.
"""

from ..core.metric import Activations, Metric
from .forward_pass import NoAttention
from .probing import Probe, across_processes, probe
from .respond import doubled_tokens, permuted_tokens, repeated_blocks, respond

__all__ = [
    "Activations",
    "Metric",
    "NoAttention",
    "Probe",
    "across_processes",
    "doubled_tokens",
    "permuted_tokens",
    "probe",
    "repeated_blocks",
    "respond",
]

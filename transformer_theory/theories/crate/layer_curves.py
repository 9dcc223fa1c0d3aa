r"""Layer-wise curves of any network: coding rates before and after attention, share of non-zeros, rate
reduction by class.

:func:`layerwise` computes the curves with the metrics of :mod:`.in_networks`. A probe finds attention by the
kernel that it calls; some blocks of CRATE call none, so forward hooks read CRATE layers instead
(:func:`on_layers`).

Sources: :cite:t:`yu2023white` (the curves, released code), :cite:t:`yu2020learning` (the rate reduction).
Notation: docs/notation.md.
"""

import contextlib
import copy
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ...core.measurement import Measurement
from ...core.metric import Activations, Metric, PerModule, Place
from ...core.statistics import nulls_of, place_of
from ...core.table import Table
from ...core.validation import positive
from ...metrics.class_features import FeatureRates
from ...metrics.coding.rates import normalised
from ...models.crate import Layer, layers_of
from ...models.crate.compression import coordinates
from ...probes import NoAttention, probe
from ...probes.evaluation import converted_inputs, evaluation
from ...probes.features import has_class_token
from .in_networks import AFTER, BEFORE, NONZEROS, Compression, Sparsity, head_rate, unit_coordinates
from .problem import CURVES as SOURCE

EPS = 0.1  # eps^2 = .01, as in the released code
CLASS_EPS = 0.5**0.5  # eps^2 = .5, as in the released code for features of norm one
BATCH = 128  # sequences per forward pass
INPUT, REDUCTION = "R^c of the input of attention", "rate reduction by class"
CURVES = (INPUT, BEFORE, AFTER, NONZEROS, REDUCTION)

Inputs = Float[Tensor, "batch *shape"]
Labels = Int[Tensor, " batch"]


class InputRate(PerModule):
    """R^c of the coordinates W_k that the heads of a block use, scaled to norm one; one row per layer, mean
    over sequences.
    """

    kinds = ("attention",)
    null_source = "networks"
    theory, quantity, unit, source = "crate", INPUT, "nats", SOURCE

    def __init__(self, *, eps: float = EPS):
        positive(eps=eps)
        self.eps = eps
        super().__init__()

    def statistics(self, activations: Activations) -> Float[Tensor, "2"] | None:
        """Returns the number of sequences and the sum of their rates, in the first attention of a block."""
        if activations.first_head or activations.key is None:
            return None
        rates = head_rate(normalised(activations.key.double()), eps=self.eps)
        return torch.stack([rates.new_tensor(float(len(rates))), rates.sum()]).cpu()

    def rows(
        self, place: Place, sums: Float[Tensor, "2"], *, draws: int, generator: torch.Generator | None
    ) -> Iterator[Measurement]:
        """Yields one row."""
        count, total = sums
        yield self.row(float(total / count), n=int(count))


class ClassRates(FeatureRates):
    """Rate reduction by class, with one feature per sequence; one row per layer, without a null."""

    null_source = "networks"

    def __init__(self):
        super().__init__(eps=CLASS_EPS)

    def compute(self, *, draws: int = 0, generator: torch.Generator | None = None) -> Sequence[Measurement]:
        """Returns :data:`REDUCTION` of each layer, in nats; no rows without labels."""
        rows = []
        for layer in sorted(self.samples):
            rate, within, sizes, _ = self.rates(layer)
            rows.append(
                Measurement(
                    "crate", "in network", REDUCTION, rate - within, unit="nats", layer=layer, n=sum(sizes)
                )
            )
        return rows


def layerwise(
    model: nn.Module,
    inputs: Inputs,
    labels: Labels | None = None,
    *,
    untrained: Sequence[nn.Module] = (),
    eps: float = EPS,
    name: str | None = None,
) -> Table:
    r"""Computes the curves of one network, and their null distributions from networks with random weights.

    Let Z^l be the n tokens before layer l and Z^{l+1/2} those after its attention, with K heads of width p
    and bases U_k. Every rate is

    .. math:: R^c = \tfrac12 \sum_k \log\det\big(I + \tfrac{p}{n\varepsilon^2} W_k^\top W_k\big), \qquad
        \varepsilon^2 = .01,

    in nats, averaged over sequences. The rows of W_k (one token in one head) are scaled to norm one. The
    quantities of a layer are:

    * :data:`INPUT`, as in the released code: W_k = LN(Z^l) U_k with the layer's own norm and matrices U_k,
      which need not be orthonormal; for attention with separate matrices, W_k are the keys;
    * :data:`BEFORE` and :data:`AFTER`, the curve of the paper: W_k = LN(Z) Q_k, with a layer norm without
      parameters and orthonormal bases Q_k of the U_k, for Z^l and Z^{l+1/2}. They need ``subspaces()``,
      ``bilinear()`` or ``torch.nn.MultiheadAttention``;
    * :data:`NONZEROS`: share of the entries of Z^{l+1} that are not exactly zero; 1 without a rectifier on
      the stream;
    * :data:`REDUCTION`: Delta R in nats, :math:`\varepsilon^2 = .5`, of one feature of norm one per sequence:
      the class token of Z^{l+1}, or the mean token if there is none.

    Args:
        model: a CRATE, a ViT of :mod:`~transformer_theory.models`, or any network that
            :func:`~transformer_theory.probe` can read.
        inputs: [batch, ...]; converted to the precision and device of the model.
        labels: class of each input, [batch]; None omits the rate reduction.
        untrained: networks of the same shape with initial weights, for the null. If empty, the null is a copy
            of the model with the entries of each parameter shuffled.
        eps: distortion of R^c (squared inside); .1 in the released code.
        name: value of the column ``model``; defaults to the class name of the model.
    Returns:
        One row per quantity and layer, with a null. Quantities that are not defined for the network are
        omitted.
    Raises:
        ValueError: there is no input, inputs and labels differ in number, ``untrained`` is not a list of
            networks, ``eps`` is not positive and finite, or the attention of a CRATE layer has no
            ``subspaces()``.
        NoAttention: the probe found no attention.
    """
    if not len(inputs):
        raise ValueError("inputs must hold at least one sequence, got none")
    if labels is not None and len(labels) != len(inputs):
        raise ValueError(f"labels must have one entry per sequence, {len(inputs)}, got {len(labels)}")
    if not isinstance(untrained, Sequence):
        raise ValueError(
            f"untrained must be a list of networks, got {type(untrained).__name__}; pass [model] for one"
        )
    kind, networks = (
        ("untrained networks", list(untrained)) if untrained else ("shuffled weights", [shuffled(model)])
    )
    nulls = nulls_of([list(curves(network, inputs, labels, eps=eps)) for network in networks], kind)
    name = type(model).__name__ if name is None else name
    rows = curves(model, inputs, labels, eps=eps)
    return Table(replace(row, nulls=(nulls.get(place_of(row)),), model=name) for row in rows)


def curves(model: nn.Module, inputs: Inputs, labels: Labels | None = None, *, eps: float = EPS) -> Table:
    """Computes the curves of :func:`layerwise` without a null, in one pass in evaluation mode; the mode of
    the model is restored.

    Raises:
        ValueError: ``eps`` is not positive and finite, or the attention of a CRATE layer has no
            ``subspaces()``.
        NoAttention: the probe found no attention.
    """
    metrics = (
        InputRate(eps=eps),
        Compression(eps=eps, scaling=unit_coordinates, max_sequences=None, rotations=0),
        Sparsity(),
        ClassRates(),
    )
    run_metrics(model, inputs, metrics, labels)
    rows = [row for metric in metrics for row in metric.compute()]
    return Table(
        sorted(
            (row for row in rows if row.quantity in CURVES),
            key=lambda row: (CURVES.index(row.quantity), row.layer),
        )
    )


def run_metrics(
    model: nn.Module, inputs: Inputs, metrics: Sequence[Metric], labels: Labels | None = None
) -> None:
    """Updates metrics with one pass over the inputs in batches, in evaluation mode; the mode of the model is
    restored.

    Raises:
        ValueError: the attention of a CRATE layer has no ``subspaces()``.
        NoAttention: the probe found no attention.
    """
    try:
        with evaluation(model), contextlib.ExitStack() as stack:
            if compression_layers(model):
                set_labels = stack.enter_context(layer_activations(model, metrics))
            else:
                p = stack.enter_context(probe(model, metrics))
                stack.enter_context(p.accumulate())  # all batches form one measurement
                set_labels = functools.partial(setattr, p, "labels")
            for number, batch in enumerate(inputs.split(BATCH)):
                set_labels(None if labels is None else labels.split(BATCH)[number])
                model(converted_inputs(model, batch))
    except NoAttention as error:
        if layers := layers_of(model):
            raise ValueError(
                "the attention of a CRATE layer must have a method subspaces(), got "
                f"{type(layers[0][1].fn).__name__} without one; add a method that returns U_k, [K, d, p], "
                "or derive the class from models.crate.Subspaces"
            ) from error
        raise


def shuffled(model: nn.Module) -> nn.Module:
    """Returns a copy of the model in which the entries of every parameter are permuted. The permutations are
    the same in every call.
    """
    generator = torch.Generator().manual_seed(0)
    duplicate = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in duplicate.parameters():
            order = torch.randperm(parameter.numel(), generator=generator).to(parameter.device)
            parameter.copy_(parameter.flatten()[order].view_as(parameter))
    return duplicate


# CRATE layers


@runtime_checkable
class HasSubspaces(Protocol):
    """A compression block with known bases: ``subspaces()`` returns U_k as columns, [K, d, p]."""

    def subspaces(self) -> Float[Tensor, "K d p"]: ...


class CompressionLayer(NamedTuple):
    """A CRATE layer, and the norm and the compression block of its first half."""

    layer: Layer
    norm: nn.Module
    block: Any


def compression_layers(model: nn.Module) -> list[CompressionLayer]:
    """Returns the CRATE layers whose compression block has ``subspaces()``, in order."""
    return [
        CompressionLayer(layer, half.norm, half.fn)
        for layer, half in layers_of(model)
        if isinstance(half.fn, HasSubspaces)
    ]


Listener = Callable[[int, CompressionLayer, Tensor, Tensor], None]


@contextlib.contextmanager
def on_layers(model: nn.Module, listener: Listener) -> Iterator[None]:
    """Calls ``listener(number, layer, input, output)`` after each call of a CRATE layer inside the block. The
    tensors are [batch, n, d].

    The tensors stay in the autograd graph. A compiled model does not call hooks.
    """

    def hook(number: int, layer: CompressionLayer) -> Callable[[nn.Module, Any, Tensor], None]:
        return lambda _, arguments, output: listener(number, layer, arguments[0], output)

    handles = [
        layer.layer.register_forward_hook(hook(number, layer))
        for number, layer in enumerate(compression_layers(model))
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextlib.contextmanager
def layer_activations(
    model: nn.Module, metrics: Sequence[Metric]
) -> Iterator[Callable[[Tensor | None], None]]:
    """Updates the metrics after each call of a CRATE layer inside the block.

    Yields a function that sets the labels, [batch], for the passes that follow.
    """
    labels: Tensor | None = None
    reads_first = has_class_token(model)

    def set_labels(values: Tensor | None) -> None:
        nonlocal labels
        labels = values

    def listener(number: int, layer: CompressionLayer, tokens: Tensor, output: Tensor) -> None:
        # The hook sees the input and output of the layer but not the stream between its halves, so the block
        # is called a second time.
        normed = layer.norm(tokens)
        change = layer.block(normed)
        # A block of this library may add a bias to its coordinates; for any other block only the subspaces
        # are known.
        method = getattr(layer.block, "coordinates", None)
        keys = coordinates(normed, layer.block.subspaces()) if method is None else method(normed)
        attention = Activations(
            "", number, "attention", normed, change, key=keys, module=layer.block, labels=labels
        )
        first = torch.arange(tokens.shape[1], device=tokens.device) == 0
        features = Activations(
            "",
            number,
            "features",
            tokens,
            output,
            after_attention=tokens + change,
            labels=labels,
            read=first.expand(tokens.shape[:2]) if reads_first else None,
            reading="the class token",
        )
        for activations in (attention, features):
            for metric in metrics:
                if activations.kind in metric.kinds:
                    metric.update(activations)

    with on_layers(model, listener):
        yield set_labels

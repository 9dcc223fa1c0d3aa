r"""Layer-wise curves of any network on the axes of CRATE: coding rates before and after attention, non-zeros, rate reduction by class.

:func:`layerwise` measures them and says how; :class:`Curves` is the reducer behind it, :func:`head_rate` the rate of one reading.

Source: :cite:t:`yu2023white` (the curves), :cite:t:`yu2020learning` (the rate reduction). Notation: docs/notation.md.
"""

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import layer_norm

from ...core.measurement import Row
from ...core.validation import positive
from ...metrics.coding import SecondMoments, coding_rate, unit_norm
from ...models.crate import Layer
from ...models.crate.stack import blocks
from ...models.crate.subspace_attention import coordinates
from ...probes import NoAttention, Observation, probe
from .problem import nonzeros
from .readings import own_subspaces

EPS = 0.1  # as released: epsilon^2 = .01
CLASS_EPS = 0.5**0.5  # as the released code has it for features of norm one: epsilon^2 = .5
BATCH = 128
INPUT, BEFORE, AFTER = "R^c of what attention reads, input side", "R^c of Z, before attention", "R^c of Z^{l+1/2}, after attention"
NONZEROS, REDUCTION = "share of non-zeros", "rate reduction by class"

Head = Float[Tensor, "batch K n p"]


def head_rate(coords: Head, *, eps: float = EPS) -> Float[Tensor, " batch"]:
    r"""The released measurement: :math:`\tfrac12\sum_k\log\det(I + \tfrac{p}{n\varepsilon^2} W_k^\top W_k)`, rows of W_k of norm one.

    Args:
        coords: W_k = Z U_k of every head, [batch, K, n, p].
        eps: distortion (squared inside).
    Returns:
        nats, [batch], in float64.
    Raises:
        ValueError: coordinates that are not finite, or ``eps`` is not positive and finite. Source: :cite:t:`yu2023white`, released code.
    """
    return coding_rate(unit_norm(coords.double()), eps=eps).sum(-1)


class Curves:
    """Reducer: five rows a layer, means over sequences; what they are: :func:`layerwise`.

    Args:
        has_class_token: the first token stands for the sequence; else the mean of all does.
        eps: distortion of R^c (squared inside).
    Raises:
        ValueError: ``eps`` is not positive and finite. Source: :cite:t:`yu2023white`.
    """

    def __init__(self, *, has_class_token: bool, eps: float = EPS):
        positive(eps=eps)
        self.has_class_token, self.eps = has_class_token, eps
        self.reset()

    def reset(self) -> None:
        """Forgets everything."""
        self.sums: dict[tuple[int, str], tuple[int, float]] = {}
        self.moments: dict[int, SecondMoments] = {}
        self.bases: dict[int, Tensor] = {}

    def update(self, seen: Observation, labels: Int[Tensor, " batch"] | None) -> None:
        """Adds an attention block (what its heads read) or a layer (its stream before and after attention, its output)."""
        if seen.kind == "attention" and not seen.first_head:
            if seen.key is not None:
                self._add(seen.layer, INPUT, head_rate(seen.key, eps=self.eps))
            if (found := own_subspaces(seen)) is not None:
                self.bases[seen.layer] = found[0]
        elif seen.kind == "features":
            if seen.attended is not None and (bases := self.bases.get(seen.layer)) is not None:
                for quantity, stream in ((BEFORE, seen.tokens), (AFTER, seen.attended)):
                    normed = layer_norm(stream.double(), stream.shape[-1:])
                    self._add(seen.layer, quantity, head_rate(coordinates(normed, bases), eps=self.eps))
            self._add(seen.layer, NONZEROS, nonzeros(seen.output))
            if labels is not None:
                feature = seen.output[:, 0] if self.has_class_token else seen.output.mean(1)
                self.moments.setdefault(seen.layer, SecondMoments()).update(unit_norm(feature.double()), labels)

    def compute(self) -> Sequence[Row]:
        """The rows, layer by layer."""
        rate = f"nats, eps^2 = {self.eps**2:.4g}"
        rows = [
            Row(theory="crate", quantity=quantity, value=total / count, layer=layer, note="a share" if quantity == NONZEROS else rate)
            for (layer, quantity), (count, total) in sorted(self.sums.items())
        ]
        for layer, moments in sorted(self.moments.items()):
            value = float(moments.rate_reduction(eps=CLASS_EPS))
            rows.append(Row(theory="crate", quantity=REDUCTION, value=value, layer=layer, note=f"nats, eps^2 = {CLASS_EPS**2:.4g}"))
        return rows

    def merge(self, other: "Curves") -> None:
        """Adds what another reducer saw."""
        for place, (count, total) in other.sums.items():
            before = self.sums.get(place, (0, 0.0))
            self.sums[place] = (before[0] + count, before[1] + total)
        for layer, moments in other.moments.items():
            self.moments.setdefault(layer, SecondMoments()).merge(moments)

    def _add(self, layer: int, quantity: str, values: Tensor) -> None:
        count, total = self.sums.get((layer, quantity), (0, 0.0))
        self.sums[layer, quantity] = (count + len(values), total + float(values.double().sum()))


def layerwise(
    model: nn.Module,
    inputs: Float[Tensor, "batch *shape"],
    labels: Int[Tensor, " batch"] | None = None,
    *,
    untrained: Sequence[nn.Module] = (),
    eps: float = EPS,
    name: str | None = None,
) -> list[Row]:
    r"""The curves of one network, beside what random weights read: ``layerwise(model, tokens, labels)``.

    With n tokens Z^l before layer l and Z^{l+1/2} after its attention, K heads of width p, bases U_k of the block: every rate is

    .. math:: R^c = \tfrac12 \sum_k \log\det\big(I + \tfrac{p}{n\varepsilon^2} W_k^\top W_k\big), \qquad \varepsilon^2 = .01,

    nats, the rows of W_k scaled to norm one (a token in one head), mean over sequences. The quantities of a layer:

    * *R^c of what attention reads, input side*, as released: W_k = LN(Z^l) U_k with the layer's own norm and the U_k as they are. For
      attention with separate matrices its keys;
    * *R^c of Z, before attention* and *R^c of Z^{l+1/2}, after attention*, the paper's curve: W_k = LN(Z) Q_k, a layer norm without
      parameters and orthonormal bases Q_k of the U_k. They need the bases: ``subspaces()``, ``bilinear()`` or
      ``torch.nn.MultiheadAttention``;
    * *share of non-zeros*: entries of Z^{l+1} that are not exactly zero, in [0, 1]; 1 without a rectifier on the stream;
    * *rate reduction by class*: Delta R, nats, :math:`\varepsilon^2 = .5`, of one feature a sequence of norm one, the class token of
      Z^{l+1}, or the mean token where there is none.

    Args:
        model: a CRATE, a ViT of :mod:`~transformer_theory.models`, or any network that :func:`~transformer_theory.probe` can read.
        inputs: what the model reads, [batch, ...]; cast to its precision, sent to its device.
        labels: class of each, [batch]; without them no rate reduction.
        untrained: a list of networks of the same shape with their initial weights: the null. None given: the model's own weights, with
            the entries of every tensor shuffled.
        eps: distortion of R^c (squared inside), as released .1.
        name: column ``model`` of the rows; the class of the model if not given.
    Returns:
        Rows with quantity, layer, value, null and, as note, unit, eps^2 and null. Quantities that a network does not have are left out.
    Raises:
        ValueError: no input, labels that do not fit, ``untrained`` is no list of networks, ``eps`` is not positive and finite, or no
            attention was seen. Source: :cite:t:`yu2023white`.
    """
    if not len(inputs):
        raise ValueError("inputs must hold at least one sequence, got none")
    if labels is not None and len(labels) != len(inputs):
        raise ValueError(f"labels must have one entry a sequence, {len(inputs)}, got {len(labels)}")
    if not isinstance(untrained, Sequence):
        raise ValueError(f"untrained must be a list of networks, got {type(untrained).__name__}; pass [model] for one")
    random = list(untrained) or [shuffled(model)]
    nulls: dict[tuple, list[float]] = {}
    for network in random:
        for row in curves(network, inputs, labels, eps=eps):
            nulls.setdefault((row["quantity"], row.get("layer")), []).append(row["value"] or 0.0)
    several = "an untrained network" if len(untrained) == 1 else f"{len(untrained)} untrained networks, mean"
    other = several if untrained else "the same weights, the entries of every tensor shuffled"
    rows = []
    for row in curves(model, inputs, labels, eps=eps):
        null = nulls[row["quantity"], row.get("layer")]
        note = f"{row.get('note')}; null: {other}"
        rows.append(Row(**{**row, "null": sum(null) / len(null), "model": name or type(model).__name__, "note": note}))
    return rows


def shuffled(model: nn.Module) -> nn.Module:
    """A copy of the model, the entries of every parameter in another order (always the same one): its weights without what they learned.

    Source: none, a null.
    """
    generator = torch.Generator().manual_seed(0)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in twin.parameters():
            order = torch.randperm(parameter.numel(), generator=generator).to(parameter.device)
            parameter.copy_(parameter.flatten()[order].view_as(parameter))
    return twin


def curves(
    model: nn.Module, inputs: Float[Tensor, "batch *shape"], labels: Int[Tensor, " batch"] | None = None, *, eps: float = EPS
) -> Sequence[Row]:
    """The curves of :func:`layerwise` without a null: one pass in evaluation mode (the model's own mode is restored).

    Raises:
        ValueError: no attention was seen, or ``eps`` is not positive and finite. Source: :cite:t:`yu2023white`.
    """
    reducer = Curves(has_class_token=getattr(model, "cls_token", None) is not None, eps=eps)
    parameter = next(model.parameters())
    layers = compressions(model)
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            for chunk, classes in _batches(inputs, labels):
                chunk = chunk.to(parameter.device, parameter.dtype) if chunk.is_floating_point() else chunk.to(parameter.device)
                if layers:
                    observe(model, layers, chunk, lambda seen, classes=classes: reducer.update(seen, classes))
                else:
                    _probe(model, chunk, classes, reducer)
    finally:
        model.train(training)
    return reducer.compute()


def _batches(inputs: Tensor, labels: Tensor | None) -> Iterable[tuple[Tensor, Tensor | None]]:
    chunks = inputs.split(BATCH)
    return zip(chunks, [None] * len(chunks) if labels is None else labels.split(BATCH))


@runtime_checkable
class HasSubspaces(Protocol):
    """A compression block, ours or any other, that tells its bases: ``subspaces()`` gives U_k as columns, [K, d, p]."""

    def subspaces(self) -> Float[Tensor, "K d p"]: ...


def compressions(model: nn.Module) -> list[tuple[Layer, nn.Module, Any]]:
    """The CRATE layers whose compression block tells its subspaces, each with norm and block of its first half.

    Source: :cite:t:`yu2023white`.
    """
    return [(layer, half.norm, half.fn) for layer, half in blocks(model) if isinstance(half.fn, HasSubspaces)]


def observe(model: nn.Module, layers: list[tuple[Layer, nn.Module, Any]], inputs: Tensor, emit: Callable[[Observation], None]) -> None:
    """One forward pass of a network of CRATE layers on inputs [batch, ...], whose attention may have no map for a probe to see.

    Source: none, this is machinery.
    """

    def hook(number: int, norm: nn.Module, block: Any) -> Callable:
        def see(layer: Layer, arguments: tuple, output: Tensor) -> None:
            (tokens,) = arguments
            normed = norm(tokens)
            change = block(normed)
            read = block.coordinates(normed) if hasattr(block, "coordinates") else coordinates(normed, block.subspaces())
            emit(Observation("", number, "attention", normed, change, key=read, parent=block))
            emit(Observation("", number, "features", tokens, output, attended=tokens + change))

        return see

    handles = [layer.register_forward_hook(hook(number, norm, block)) for number, (layer, norm, block) in enumerate(layers)]
    try:
        model(inputs)
    finally:
        for handle in handles:
            handle.remove()


def _probe(model: nn.Module, inputs: Tensor, labels: Tensor | None, reducer: Curves) -> None:
    """One forward pass of any other network, added to the reducer."""
    own = Curves(has_class_token=reducer.has_class_token, eps=reducer.eps)
    try:
        with probe(model, [own]) as p:
            p.labels = labels
            model(inputs)
    except NoAttention as error:
        if found := blocks(model):
            raise ValueError(
                f"attention of a CRATE layer must tell its subspaces, got {type(found[0][1].fn).__name__}, which does not;"
                " give it subspaces() that returns U_k, [K, d, p], or derive it from crate.block.Subspaces"
            ) from error
        raise
    reducer.merge(own)

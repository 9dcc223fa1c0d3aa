r"""Cross-entropy with the sparse rate reduction of a CRATE's layers as a regulariser: the objective that the layers are derived from.

For the tokens Z^l that layer l returns, and the subspaces U^l of its attention,

.. math::
    \mathcal L = \mathrm{CE} + w \operatorname{mean}_l S_l, \qquad
    S = R^c(Z; U_{[K]}) - R(Z) + \lambda \operatorname{mean}_i \|z_i\|_1

with the rates of the tokens of one image in nats, mean over images. From the paper are the quantity, its sign (smaller values go with a
smaller generalisation gap), its place in the loss, and the option of one layer instead of all. The scales are ours and may differ: tokens
of norm 1 and orthonormal bases, since R^c - R is unbounded below if tokens may grow and bases shrink; w, lambda and eps. The l0 norm has no
gradient: it is measured, and the loss has the l1 norm of those tokens, between 1 and sqrt(d), instead.

The loss is a mean over images, so several processes need not gather anything. Layers are read by hooks while the model is called.

Sources: :cite:t:`hu2024indepth`; :cite:t:`yu2023white` (the objective).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ...core.experiment import check_settings, setting
from ...core.measurement import Measurement, Unit
from ...maths.linalg import orthonormalise
from ...metrics.coding import coding_rate, subspace_coding_rate, unit_norm
from ...models.crate.compression import Bases
from ...training.networks import Sizes
from ...training.objectives.cross_entropy import CrossEntropy, classified
from ...training.objectives.protocol import ACCURACY, Batch, Gather, Labelled, Targets, measured
from .in_networks import NONZEROS
from .layer_curves import CompressionLayer, Listener, compression_layers, on_layers
from .problem import nonzeros

OBJECTIVE, EXCESS, L1_NORM = "sparse rate reduction", "R^c - R", "l1 norm of a token"
LAYER_QUANTITIES: tuple[tuple[str, Unit], ...] = ((EXCESS, "nats"), (L1_NORM, ""), (NONZEROS, "share"))


@dataclass(frozen=True)
class SparseRateReduction:
    """Cross-entropy with the sparse rate reduction of the layers. Fields and formula: :mod:`transformer_theory.theories.crate.tasks`.

    Raises:
        ValueError: a field is out of range.
    """

    name: ClassVar[str] = "sparse-rate-reduction"
    score: ClassVar[str] = ACCURACY

    weight: float = setting(0.01, gt=0, help="w, of the sparse rate reduction beside the cross-entropy")
    sparsity: float = setting(1.0, gt=0, help="lambda, of the l1 norm beside the rates")
    eps: float = setting(0.5**0.5, gt=0, help="distortion, squared inside")
    layer: int | None = field(default=None, metadata={"help": "the only layer that is regularised, from 0; all layers if omitted"})
    label_smoothing: float = setting(0.1, ge=0, lt=1, help="s, the share of a label that is spread evenly over all classes")

    def __post_init__(self):
        check_settings(self)
        if self.layer is not None and self.layer < 0:
            raise ValueError(f"layer must be at least 0, got {self.layer}; leave it out for the mean over all")

    def network(self, name: str, sizes: Sizes) -> nn.Module:
        """The classifier of that name, whose attention must have ``subspaces()``.

        Raises:
            ValueError: it has not, or it has no such layer.
        """
        model = self._cross_entropy().network(name, sizes)
        if not (depth := len(compression_layers(model))):
            raise ValueError(f"the sparse rate reduction needs attention with subspaces, as in network 'crate', got {name!r}")
        if self.layer is not None and self.layer >= depth:
            raise ValueError(f"layer must be below the depth, {depth}, got {self.layer}; leave it out for the mean over all")
        return model

    def loss(self, model: nn.Module, images: Batch, targets: Targets, gather: Gather) -> Float[Tensor, ""]:
        """Mean over this process's images.

        Raises:
            ValueError: targets are not shares of the classes, tokens are not finite, or no layer was seen.
        """
        values: list[Tensor] = []

        def add(number: int, layer: CompressionLayer, _: Tensor, tokens: Tensor) -> None:
            if self.layer in (None, number):
                excess, norm = sparse_rate_reduction(tokens, layer.block.subspaces(), eps=self.eps)
                values.append((excess + self.sparsity * norm).mean())

        with on_layers(model, add):
            loss = self._cross_entropy().loss(model, images, targets, gather)
        if not values:
            raise ValueError("no layer was seen while the model was called; a compiled model hides them, train it without compiling")
        return loss + self.weight * torch.stack(values).mean()

    def measure(self, model: nn.Module, train: Labelled, images: Labelled, batch_size: int) -> Sequence[Measurement]:
        """Cross-entropy without smoothing and accuracy; S; per layer R^c - R, the l1 norm of a token and the share of non-zeros.

        Raises:
            ValueError: there is no image, or images and labels differ in number.
        """
        batches: dict[int, list[Tensor]] = {}
        with on_layers(model, self._collector(batches)):
            rows = classified(model, images, batch_size)
        layers = {number: torch.cat(values, dim=1).mean(1).tolist() for number, values in sorted(batches.items())}
        regularised = list(layers.values()) if self.layer is None else [layers[self.layer]]
        total = sum(excess + self.sparsity * norm for excess, norm, _ in regularised) / len(regularised)
        rows.append(measured(OBJECTIVE, total, images))
        for number, values in layers.items():
            rows += [
                measured(quantity, value, images, unit=unit, layer=number) for (quantity, unit), value in zip(LAYER_QUANTITIES, values)
            ]
        return rows

    def _collector(self, batches: dict[int, list[Tensor]]) -> Listener:
        def add(number: int, layer: CompressionLayer, _: Tensor, tokens: Tensor) -> None:
            terms = (*sparse_rate_reduction(tokens, layer.block.subspaces(), eps=self.eps), nonzeros(tokens))
            batches.setdefault(number, []).append(torch.stack(terms).cpu().double())

        return add

    def _cross_entropy(self) -> CrossEntropy:
        return CrossEntropy(label_smoothing=self.label_smoothing)


def sparse_rate_reduction(
    tokens: Float[Tensor, "batch n d"], bases: Bases, *, eps: float
) -> tuple[Float[Tensor, " batch"], Float[Tensor, " batch"]]:
    r""":math:`R^c(Z; U_{[K]}) - R(Z)`, nats, and the mean :math:`\|z_i\|_1`, of tokens scaled to norm 1 and orthonormal bases.

    Args:
        tokens: Z, ``[batch, n, d]``; rates are computed in float32 at least.
        bases: U_k as columns, linearly independent, ``[K, d, p]``.
        eps: distortion, > 0; squared inside.
    Returns:
        both ``[batch]``, differentiable in tokens and bases; the first depends neither on the norms of tokens nor on the choice of bases of
        the subspaces.
    Raises:
        ValueError: tokens are not finite, or columns are dependent.
    """
    dtype = torch.promote_types(tokens.dtype, torch.float32)
    with torch.autocast(tokens.device.type, enabled=False):
        unit, frames = unit_norm(tokens.to(dtype)), orthonormalise(bases.to(dtype))
        excess = subspace_coding_rate(unit, frames, eps=eps) - coding_rate(unit, eps=eps)
    return excess, unit.abs().sum(-1).mean(-1)

r"""Cross-entropy with the sparse rate reduction of a CRATE's layers as a regulariser: the objective that the
layers are derived from.

For the tokens Z^l that layer l returns, and the subspaces U^l of its attention,

.. math::
    \mathcal L = \mathrm{CE} + w \operatorname{mean}_l S_l, \qquad
    S = R^c(Z; U_{[K]}) - R(Z) + \lambda \operatorname{mean}_i \|z_i\|_1

where the rates are those of the tokens of one image, in nats, averaged over images. The paper provides the
quantity, its sign (smaller values go with a smaller generalisation gap), its place in the loss, and the
option of one layer instead of all. The values of w, lambda and eps are ours and may differ from the paper's.
So is the restriction to tokens of norm 1 and orthonormal bases: without it R^c - R is unbounded below, as
tokens may grow and bases shrink. The l0 norm has no gradient, so it is only measured. The loss contains the
l1 norm of the unit tokens instead, which lies between 1 and sqrt(d).

The loss is a mean over images, so several processes need not exchange any tokens. Hooks read the layers
during the forward pass.

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
from ...models.image_networks import Sizes
from ...training.objectives.cross_entropy import CrossEntropy, classified
from ...training.objectives.protocol import ACCURACY, Batch, Gather, Labelled, Targets, measured
from .in_networks import NONZEROS
from .layer_curves import CompressionLayer, Listener, compression_layers, on_layers
from .problem import nonzeros

OBJECTIVE, EXCESS, L1_NORM = "sparse rate reduction", "R^c - R", "l1 norm of a token"
LAYER_QUANTITIES: tuple[tuple[str, Unit], ...] = ((EXCESS, "nats"), (L1_NORM, ""), (NONZEROS, "share"))


@dataclass(frozen=True)
class SparseRateReduction:
    """Cross-entropy with the sparse rate reduction of the layers. The module's docstring states the formula.

    Raises:
        ValueError: a field is out of range.
    """

    name: ClassVar[str] = "sparse-rate-reduction"
    score: ClassVar[str] = ACCURACY

    weight: float = setting(0.01, gt=0, help="w, weight of the sparse rate reduction in the loss")
    sparsity: float = setting(1.0, gt=0, help="lambda, weight of the l1 norm relative to the rates")
    eps: float = setting(0.5**0.5, gt=0, help="distortion, squared inside")
    layer: int | None = field(
        default=None, metadata={"help": "number of the only regularised layer, from 0; all layers if omitted"}
    )
    label_smoothing: float = setting(
        0.1, ge=0, lt=1, help="s, the share of a label that is spread evenly over all classes"
    )

    def __post_init__(self):
        check_settings(self)
        if self.layer is not None and self.layer < 0:
            raise ValueError(
                f"layer must be at least 0, got {self.layer}; omit it for the mean over all layers"
            )

    def network(self, name: str, sizes: Sizes) -> nn.Module:
        """Returns the classifier of that name, whose attention must have ``subspaces()``.

        Raises:
            ValueError: the attention has no ``subspaces()``, or ``layer`` is not below the depth.
        """
        model = self._cross_entropy().network(name, sizes)
        if not (depth := len(compression_layers(model))):
            raise ValueError(
                "the sparse rate reduction needs attention with subspaces, as in network 'crate', got "
                f"{name!r}"
            )
        if self.layer is not None and self.layer >= depth:
            raise ValueError(
                f"layer must be below the depth, {depth}, got {self.layer}; omit it for the mean over all "
                "layers"
            )
        return model

    def loss(self, model: nn.Module, images: Batch, targets: Targets, gather: Gather) -> Float[Tensor, ""]:
        """Returns the mean loss over this process's images.

        Raises:
            ValueError: targets are not shares of the classes, tokens are not finite, or the hooks saw no
                layer.
        """
        values: list[Tensor] = []

        def add(number: int, layer: CompressionLayer, _: Tensor, tokens: Tensor) -> None:
            if self.layer in (None, number):
                excess, norm = sparse_rate_reduction(tokens, layer.block.subspaces(), eps=self.eps)
                values.append((excess + self.sparsity * norm).mean())

        with on_layers(model, add):
            loss = self._cross_entropy().loss(model, images, targets, gather)
        if not values:
            raise ValueError(
                "no layer was seen while the model was called; a compiled model hides them; train without "
                "compilation"
            )
        return loss + self.weight * torch.stack(values).mean()

    def measure(
        self, model: nn.Module, train: Labelled, images: Labelled, batch_size: int
    ) -> Sequence[Measurement]:
        """Returns cross-entropy without smoothing, accuracy and S, and for each layer R^c - R, the l1 norm of
        a token and the non-zeros.

        Raises:
            ValueError: there is no image, or images and labels differ in number.
        """
        batches: dict[int, list[Tensor]] = {}
        with on_layers(model, self._collector(batches)):
            rows = classified(model, images, batch_size)
        layers = {
            number: torch.cat(values, dim=1).mean(1).tolist() for number, values in sorted(batches.items())
        }
        regularised = list(layers.values()) if self.layer is None else [layers[self.layer]]
        total = sum(excess + self.sparsity * norm for excess, norm, _ in regularised) / len(regularised)
        rows.append(measured(OBJECTIVE, total, images))
        for number, values in layers.items():
            rows += [
                measured(quantity, value, images, unit=unit, layer=number)
                for (quantity, unit), value in zip(LAYER_QUANTITIES, values)
            ]
        return rows

    def _collector(self, batches: dict[int, list[Tensor]]) -> Listener:
        """Returns a listener that appends the three terms of each layer, [3, batch], to its list in
        ``batches``.
        """

        def add(number: int, layer: CompressionLayer, _: Tensor, tokens: Tensor) -> None:
            terms = (*sparse_rate_reduction(tokens, layer.block.subspaces(), eps=self.eps), nonzeros(tokens))
            batches.setdefault(number, []).append(torch.stack(terms).cpu().double())

        return add

    def _cross_entropy(self) -> CrossEntropy:
        return CrossEntropy(label_smoothing=self.label_smoothing)


def sparse_rate_reduction(
    tokens: Float[Tensor, "batch n d"], bases: Bases, *, eps: float
) -> tuple[Float[Tensor, " batch"], Float[Tensor, " batch"]]:
    r"""Returns :math:`R^c(Z; U_{[K]}) - R(Z)`, nats, and the mean :math:`\|z_i\|_1` for tokens scaled to norm
    1 and orthonormal bases.

    Args:
        tokens: Z, ``[batch, n, d]``; rates are computed at least in float32.
        bases: U_k with linearly independent columns, ``[K, d, p]``; orthonormalised inside.
        eps: distortion, > 0; squared inside.
    Returns:
        Two tensors ``[batch]``, differentiable with respect to tokens and bases. The first depends neither on
        the norms of the tokens nor on the choice of bases for the subspaces.
    Raises:
        ValueError: tokens are not finite, or columns are dependent.
    """
    dtype = torch.promote_types(tokens.dtype, torch.float32)
    # Autocast would compute the Gram matrices in half precision, too coarse for log-determinants.
    with torch.autocast(tokens.device.type, enabled=False):
        unit, frames = unit_norm(tokens.to(dtype)), orthonormalise(bases.to(dtype))
        excess = subspace_coding_rate(unit, frames, eps=eps) - coding_rate(unit, eps=eps)
    return excess, unit.abs().sum(-1).mean(-1)

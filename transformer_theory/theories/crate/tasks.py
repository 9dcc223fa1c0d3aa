r"""Cross-entropy and, as a regulariser, the sparse rate reduction of a CRATE's layers, which the layers were derived to lower.

For the tokens Z^l that layer l puts out, and the subspaces U^l of its attention,

.. math::
    \mathcal L = \mathrm{CE} + w \operatorname{mean}_l S_l, \qquad
    S = R^c(Z; U_{[K]}) - R(Z) + \lambda \operatorname{mean}_i \|z_i\|_1

with the rates of the tokens of one image, nats, mean over images. The quantity, its sign (smaller goes with a smaller gap of
generalisation), its place in the loss, and one layer instead of all to save time are the paper's. The scales are ours and may differ from
it: tokens of norm 1 and orthonormal bases, for R^c - R falls without bound if tokens may grow and bases shrink; w, lambda and eps. The l0
norm has no gradient: it is counted when measured, and the loss has the l1 norm of those tokens, from 1 to sqrt(d), in its place.

A mean over images: with several processes nothing need be gathered. Layers are read by hooks while the model is called.
Source: :cite:t:`hu2024indepth`; :cite:t:`yu2023white` (the objective).
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ...core.experiment import check_settings, setting
from ...core.measurement import Measurement
from ...maths.linalg import orthonormalise
from ...metrics.coding import coding_rate, subspace_coding_rate, unit_norm
from ...training.networks import Sizes
from ...training.objectives.cross_entropy import CrossEntropy, classified
from ...training.objectives.protocol import ACCURACY, Batch, Gather, Labelled, Targets, measured
from .layer_curves import compressions
from .problem import nonzeros

Read = Callable[[Tensor, Tensor], None]
SPARSE_RATE_REDUCTION = "sparse rate reduction"
LAYER_QUANTITIES = (("R^c - R", "nats"), ("l1 norm of a token", ""), ("share of non-zeros", "share"))


@dataclass(frozen=True)
class SparseRateReduction:
    """Cross-entropy with the sparse rate reduction of the layers. Fields and formula: :mod:`.sparse_rate_reduction`.

    Raises:
        ValueError: a field is beyond its bounds.
    """

    name: ClassVar[str] = "sparse-rate-reduction"
    score: ClassVar[str] = ACCURACY

    weight: float = setting(0.01, gt=0, help="w, of the sparse rate reduction beside the cross-entropy")
    sparsity: float = setting(1.0, gt=0, help="lambda, of the l1 norm beside the rates")
    eps: float = setting(0.5**0.5, gt=0, help="distortion, squared inside")
    layer: int | None = field(default=None, metadata={"help": "the layer of the regulariser, from 0; the mean over all if omitted"})
    label_smoothing: float = setting(0.1, ge=0, lt=1, help="s of the cross-entropy")

    def __post_init__(self):
        check_settings(self)
        if self.layer is not None and self.layer < 0:
            raise ValueError(f"layer must be at least 0, got {self.layer}; leave it out for the mean over all")

    def network(self, name: str, sizes: Sizes) -> nn.Module:
        """The classifier of that name, whose attention must tell its subspaces.

        Raises:
            ValueError: it does not, or it has no such layer.
        """
        model = self._cross_entropy().network(name, sizes)
        if not (depth := len(compressions(model))):
            raise ValueError(f"the sparse rate reduction needs attention with subspaces, as in network 'crate', got {name!r}")
        if self.layer is not None and self.layer >= depth:
            raise ValueError(f"layer must be below the depth, {depth}, got {self.layer}; leave it out for the mean over all")
        return model

    def loss(self, model: nn.Module, images: Batch, targets: Targets, gather: Gather) -> Float[Tensor, ""]:
        """Mean over this process's images.

        Raises:
            ValueError: targets are no shares of the classes, tokens are not finite, or no layer was seen.
        """
        values: list[Tensor] = []

        def read(tokens: Tensor, bases: Tensor) -> None:
            excess, norm = sparse_rate_reduction(tokens, bases, eps=self.eps)
            values.append((excess + self.sparsity * norm).mean())

        with layers_read(model, self.layer, read):
            loss = self._cross_entropy().loss(model, images, targets, gather)
        if not values:
            raise ValueError("no layer was seen while the model was called; a compiled model hides them, train it without compiling")
        return loss + self.weight * torch.stack(values).mean()

    def measure(self, model: nn.Module, train: Labelled, images: Labelled, batch_size: int) -> Sequence[Measurement]:
        """Loss (cross-entropy, without smoothing) and accuracy; S, and of each layer R^c - R (nats), the l1 norm of a token and the share
        of its entries that are not exactly zero.

        Raises:
            ValueError: there is no image, or images and labels differ in number.
        """
        values: list[Tensor] = []

        def read(tokens: Tensor, bases: Tensor) -> None:
            values.append(torch.stack([*sparse_rate_reduction(tokens, bases, eps=self.eps), nonzeros(tokens)]).cpu().double())

        with layers_read(model, None, read):
            rows = classified(model, images, batch_size)
        depth = len(compressions(model))
        layers = [torch.cat(values[layer::depth], dim=1).mean(1).tolist() for layer in range(depth)]
        chosen = layers if self.layer is None else [layers[self.layer]]
        mean = sum(excess + self.sparsity * norm for excess, norm, _ in chosen) / len(chosen)
        rows.append(measured(SPARSE_RATE_REDUCTION, mean, images))
        for number, numbers in enumerate(layers):
            rows += [measured(name, value, images, unit=unit, layer=number) for (name, unit), value in zip(LAYER_QUANTITIES, numbers)]
        return rows

    def _cross_entropy(self) -> CrossEntropy:
        return CrossEntropy(label_smoothing=self.label_smoothing)


def sparse_rate_reduction(
    tokens: Float[Tensor, "batch n d"], bases: Float[Tensor, "K d p"], *, eps: float
) -> tuple[Float[Tensor, " batch"], Float[Tensor, " batch"]]:
    r""":math:`R^c(Z; U_{[K]}) - R(Z)`, nats, and the mean :math:`\|z_i\|_1`, of tokens scaled to norm 1 and orthonormal bases.

    Args:
        tokens: Z, ``[batch, n, d]``, rates in float32 at least.
        bases: U_k as columns, linearly independent, ``[K, d, p]``.
        eps: distortion, > 0; squared inside.
    Returns:
        both ``[batch]``, differentiable in tokens and bases; the first does not depend on the norms of tokens nor on the bases chosen in
        the subspaces.
    Raises:
        ValueError: tokens are not finite, or columns are dependent.
    Source: :cite:t:`hu2024indepth`.
    """
    dtype = torch.promote_types(tokens.dtype, torch.float32)
    with torch.autocast(tokens.device.type, enabled=False):
        unit, frames = unit_norm(tokens.to(dtype)), orthonormalise(bases.to(dtype))
        excess = subspace_coding_rate(unit, frames, eps=eps) - coding_rate(unit, eps=eps)
    return excess, unit.abs().sum(-1).mean(-1)


@contextlib.contextmanager
def layers_read(model: nn.Module, layer: int | None, read: Read) -> Iterator[None]:
    """While it lasts, the layers of a CRATE, or the one of that number, hand output [batch, n, d] and subspaces [K, d, p] to ``read``."""

    def hook(block: Any) -> Callable[[nn.Module, Any, Tensor], None]:
        return lambda _, __, tokens: read(tokens, block.subspaces())

    layers = compressions(model)
    wanted = layers if layer is None else [layers[layer]]
    handles = [each.register_forward_hook(hook(block)) for each, _, block in wanted]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()

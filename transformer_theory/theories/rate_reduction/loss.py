r"""The MCR² training loss: the negative rate reduction, with a backward pass in closed form.

.. math::
    \mathcal L(X) = R^c(X|\Pi) - \gamma_2 R_{\gamma_1}(X),
    \quad R_{\gamma_1} = \tfrac12\log\det(I + \gamma_1 \tfrac{d}{n\epsilon^2} X^\top X)

With :math:`\gamma_1 = \gamma_2 = 1` it is -ΔR; the self-supervised runs use :math:`\gamma_1 = 20, \gamma_2 =
0.05`. ΔR is unbounded in the norm of the features, so the loss requires features of norm 1. The forward pass
computes the gradient together with the value
(:func:`transformer_theory.metrics.coding.gradients.rates_and_gradient`), so only the gradient and the
features, 2 n d numbers, are stored for the backward pass.

Source: :cite:t:`yu2020learning`. Notation: docs/notation.md.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ...core.validation import full_precision, positive
from ...metrics.coding import class_coding_rate, coding_rate
from ...metrics.coding.gradients import rates_and_gradient
from ...metrics.coding.memberships import (
    Memberships,
    as_classes,
    check_features,
    class_sizes,
    is_soft,
    with_labels,
)

# features that were normalised in bfloat16 and then cast to float32 have norms accurate to 4e-3
NORM_TOLERANCE = 1e-2


@dataclass(frozen=True)
class LossParts:
    r"""The loss of a batch and its parts, nats per sample; only ``loss`` carries a gradient.

    Attributes:
        loss: :math:`R^c - \gamma_2 R_{\gamma_1}`.
        reduction: ΔR = R - R^c, whatever gamma1 and gamma2.
        rate: R.
        class_rate: R^c.
        expansion: :math:`R_{\gamma_1}`.
    """

    loss: Float[Tensor, ""]
    reduction: Float[Tensor, ""]
    rate: Float[Tensor, ""]
    class_rate: Float[Tensor, ""]
    expansion: Float[Tensor, ""]


class MaximalCodingRateReduction(nn.Module):
    r"""Loss that compresses each class and spreads all of them: :math:`R^c - \gamma_2 R_{\gamma_1}` of
    features of norm 1.

    ``loss = MaximalCodingRateReduction(); parts = loss(unit_norm(net(x)), labels); parts.loss.backward()``

    Args:
        eps: distortion, > 0, squared inside; the published runs have ε² = 1/2.
        gamma1: factor inside the determinant of the expansion, > 0.
        gamma2: weight of the expansion, > 0.
    Raises:
        ValueError: a parameter is not positive and finite.
    """

    def __init__(self, *, eps: float = 0.5**0.5, gamma1: float = 1.0, gamma2: float = 1.0):
        super().__init__()
        positive(eps=eps, gamma1=gamma1, gamma2=gamma2)
        self.eps, self.gamma1, self.gamma2 = eps, gamma1, gamma2

    @full_precision
    def forward(self, features: Float[Tensor, "n d"], labels: Memberships) -> LossParts:
        """Computes the loss of a batch. A class without samples contributes nothing. The loss can be
        differentiated twice.

        Autocast is switched off inside. A network under autocast returns bfloat16 or float16, which raises
        ValueError: convert the output with ``.float()`` before it is normalised.

        Args:
            features: rows of norm 1, ``[n, d]``, float32 or float64.
            labels: class of each sample, integers >= 0, ``[n]``; samples with negative labels are left out.
                Or memberships ``[n, k]`` with rows that sum to one, which also get a gradient.
        Raises:
            ValueError: a row does not have norm 1, features are neither float32 nor float64 or hold NaN or
                infinity, labels do not fit the
            features or are not integers >= 0, or memberships do not sum to one.
        """
        check_features(features, self.eps)
        features, labels = with_labels(features, as_classes(labels))
        class_sizes(features, labels)
        norms = torch.linalg.vector_norm(features.detach(), dim=1)
        if not bool(((norms - 1).abs() <= NORM_TOLERANCE).all()):
            raise ValueError(
                "features must be finite rows of norm 1 (the rate reduction is unbounded in their norm), "
                f"got norms from {float(norms.min()):.3g} to {float(norms.max()):.3g}; pass "
                "metrics.unit_norm(features), without rows of zeros"
            )
        if is_soft(labels):
            loss, rate, class_rate, expansion = self._plain(features, labels)
        else:
            loss, rate, class_rate, expansion = _ClosedForm.apply(features, labels, self)  # pyright: ignore[reportGeneralTypeIssues]
        return LossParts(loss, *(part.detach() for part in (rate - class_rate, rate, class_rate, expansion)))

    def _plain(self, features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Computes the loss, R, R^c and the expansion with autograd through the rates."""
        class_rate = class_coding_rate(features, labels, eps=self.eps)
        expansion = coding_rate(features, eps=self.eps / self.gamma1**0.5)
        rate = expansion if self.gamma1 == 1 else coding_rate(features, eps=self.eps)
        return class_rate - self.gamma2 * expansion, rate, class_rate, expansion

    def extra_repr(self) -> str:
        """Returns the parameters as text."""
        return f"eps={self.eps:g}, gamma1={self.gamma1:g}, gamma2={self.gamma2:g}"


class _ClosedForm(torch.autograd.Function):
    """The loss with value and gradient in one pass. A backward pass that is differentiated again uses
    autograd through the rates.
    """

    @staticmethod
    def forward(ctx, features: Tensor, labels: Tensor, module: MaximalCodingRateReduction):
        parts = rates_and_gradient(
            features, labels, eps=module.eps, gamma1=module.gamma1, gamma2=module.gamma2
        )
        ctx.save_for_backward(features, labels, parts.gradient)
        ctx.module = module
        ctx.mark_non_differentiable(parts.rate, parts.class_rate, parts.expansion)
        return (
            parts.class_rate - module.gamma2 * parts.expansion,
            parts.rate,
            parts.class_rate,
            parts.expansion,
        )

    @staticmethod
    @full_precision
    def backward(ctx, grad: Tensor, *_: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        features, labels, gradient = ctx.saved_tensors
        # The stored gradient belongs to gamma2 R - R^c, the negative loss: hence the sign. To autograd it is
        # a constant, so with create_graph the gradient is computed again as a function of the features.
        if not torch.is_grad_enabled():
            return -grad * gradient, None, None
        (direction,) = torch.autograd.grad(
            ctx.module._plain(features, labels)[0], features, create_graph=True
        )
        return grad * direction, None, None


def union_of_ranks(
    features: Float[Tensor, "n d"],
    labels: Memberships,
    *,
    group: "torch.distributed.ProcessGroup | None" = None,
) -> tuple[Float[Tensor, "all d"], Int[Tensor, " all"] | Float[Tensor, "all k"]]:
    """Gathers the batch of all ranks on each rank, so that the loss is computed on the whole batch and not
    averaged over its parts.

    ``parts = loss(*union_of_ranks(features, labels))``. The gradient with respect to the samples of a rank is
    multiplied by the number of ranks, because ``DistributedDataParallel`` divides by it: parameters get the
    same gradient as in one process with the whole batch.

    Args:
        features: features of this rank, ``[n, d]``; n may differ between ranks.
        labels: labels of this rank, ``[n]``, or memberships ``[n, k]`` (gathered without gradient).
        group: process group of ``torch.distributed``. None: all ranks.
    Returns:
        Features ``[sum of n, d]`` and labels of all ranks, in the order of the ranks.
    """
    sizes = [
        torch.zeros(1, dtype=torch.int64, device=features.device)
        for _ in range(torch.distributed.get_world_size(group))
    ]
    torch.distributed.all_gather(sizes, torch.tensor([len(features)], device=features.device), group=group)
    counts = [int(size) for size in sizes]
    all_features = _Gather.apply(features, counts, group)
    return all_features, torch.cat(_gather_rows(labels.detach(), counts, group))  # pyright: ignore[reportReturnType]


def _gather_rows(rows: Tensor, counts: list[int], group) -> list[Tensor]:
    """Gathers the rows of every rank. all_gather needs equal shapes, so the parts are padded to the largest
    length and cut afterwards.
    """
    padded = torch.cat([rows, rows.new_zeros(max(counts) - len(rows), *rows.shape[1:])])
    parts = [torch.empty_like(padded) for _ in counts]
    torch.distributed.all_gather(parts, padded, group=group)
    return [part[:count] for part, count in zip(parts, counts)]


class _Gather(torch.autograd.Function):
    """Concatenation over ranks; its gradient is the part of this rank, times the number of ranks."""

    @staticmethod
    def forward(ctx, rows: Tensor, counts: list[int], group) -> Tensor:
        rank = torch.distributed.get_rank(group)
        ctx.part, ctx.ranks = slice(sum(counts[:rank]), sum(counts[: rank + 1])), len(counts)
        return torch.cat(_gather_rows(rows, counts, group))

    @staticmethod
    def backward(ctx, grad: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        return ctx.ranks * grad[ctx.part], None, None

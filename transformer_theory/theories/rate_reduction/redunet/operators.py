r"""What the layers of both ReduNets are made of: the expansion operator E and the compression operators C_j of given second moments.

.. math::
    E = \alpha (I + \alpha S)^{-1}, \quad C_j = \alpha_j (I + \alpha_j S_j)^{-1}, \quad
    \alpha = \frac{d}{n\epsilon^2}, \quad \alpha_j = \frac{d}{n_j\epsilon^2}, \quad S = \sum_j S_j .

One Cholesky factor of each matrix gives the operator and, for nothing, the rate: half of :math:`\log\det(I + \alpha S)`.

Source: :cite:t:`chan2022redunet`.
"""

import torch
from jaxtyping import Float, Inexact, Int
from torch import Tensor

from ....core.validation import positive
from ....metrics.coding.checks import check_finite, check_integers, check_tensor
from ....metrics.coding.resolvents import rate_and_inverse


def operators(
    moments: Inexact[Tensor, "k *frequencies d d"], sizes: Int[Tensor, " k"], *, eps: float
) -> tuple[Inexact[Tensor, "k+1 *frequencies d d"], Float[Tensor, "k+1 *frequencies"]]:
    r"""E and the C_j, with the rates of the features that they were made from.

    Args:
        moments: :math:`S_j = X_j^\top X_j` (real symmetric or Hermitian), ``[k, *frequencies, d, d]``.
        sizes: n_j, each >= 1, ``[k]``.
        eps: distortion; squared inside.
    Returns:
        E in front of the C_j ``[k + 1, *frequencies, d, d]``; R in front of the R_j, nats ``[k + 1, *frequencies]``.
    Raises:
        ValueError: the features are so large for eps that adding the identity is lost to rounding.
    """
    counts = torch.cat([sizes.sum()[None], sizes]).to(moments.real.dtype)
    scales = (moments.shape[-1] / (counts * eps**2)).view(-1, *[1] * (moments.ndim - 3))
    together = torch.cat([moments.sum(0, keepdim=True), moments])
    rates, inverses = rate_and_inverse(together, scales.expand(together.shape[:-2]))
    return scales[..., None, None] * inverses, rates


def class_sizes(labels: Int[Tensor, " n"], count: int) -> Int[Tensor, " k"]:
    """Samples of each class ``[k]``.

    Raises:
        ValueError: labels are no integers, not one for each of ``count`` samples, negative, or leave out a class.
    """
    check_tensor("labels", labels)
    if labels.ndim != 1 or len(labels) != count:
        raise ValueError(f"labels must be one a sample, [{count}], got {list(labels.shape)}")
    check_integers(labels)
    if not count:
        raise ValueError("labels must name at least one class, got none")
    present, sizes = labels.unique(return_counts=True)  # not a count of 0..max, which may be any number
    if not torch.equal(present, torch.arange(len(present), dtype=present.dtype, device=present.device)):
        absent = (present != torch.arange(len(present), device=present.device)).nonzero()
        missing = "a negative label" if int(present[0]) < 0 else f"no sample of class {int(absent[0, 0])}"
        raise ValueError(
            f"labels must name each class 0..{max(int(present[-1]), 0)} at least once, got {missing}; "
            "relabel with labels.unique(return_inverse=True)[1]"
        )
    return sizes


def check_samples(samples: Float[Tensor, "n *rest"]) -> None:
    """Samples that can be normalised.

    Raises:
        ValueError: they are not float32 or float64, not finite, or one is zero, which has no direction.
    """
    check_tensor("features", samples)
    if samples.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"features must be float32 or float64, got {samples.dtype}; convert with .double()")
    check_finite(samples)
    zero = (samples == 0).flatten(1).all(1)
    if bool(zero.any()):
        raise ValueError(
            f"features must have a direction, got {int(zero.sum())} of {len(zero)} that are zero, the first at "
            f"{int(zero.nonzero()[0, 0])}; drop them"
        )


def check_settings(*, layers: int, eps: float, step: float, sharpness: float) -> None:
    """L >= 1, and positive finite ε, η, λ.

    Raises:
        ValueError: one of them is not.
    """
    if layers < 1:
        raise ValueError(f"layers must be at least 1, got {layers}")
    positive(eps=eps, step=step, sharpness=sharpness)

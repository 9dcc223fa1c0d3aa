r"""Images mixed in pairs, and their targets with them: each with the one before it in the batch, whose order is random.

Each image draws a share of its own, :math:`\lambda \sim \mathrm{Beta}(\alpha, \alpha)`, that it keeps:

    mixup     x' = λ x + (1 - λ) x_before,                                  y' = λ y + (1 - λ) y_before
    cutmix    x' = x_before in a box of the area 1 - λ, else x,             y' as above, λ the area that is left of x

Images are ``[n, c, h, w]``, targets ``[n, classes]``, rows of sum 1. Draws are from torch's global CPU generator.
Source: :cite:t:`zhang2018mixup`; :cite:t:`yun2019cutmix`.
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import Beta

Images = Float[Tensor, "n c h w"]
Targets = Float[Tensor, "n classes"]


def mixup(images: Images, targets: Targets, *, alpha: float) -> tuple[Images, Targets]:
    """Sums of two images and of their targets, weighted alike.

    Args:
        images, targets: ``[n, c, h, w]`` and ``[n, classes]``.
        alpha: of the Beta distribution, > 0; large ones mix in equal parts.
    Raises:
        ValueError: alpha is not positive. Source: Zhang et al. (2018), Sec. 2.
    """
    kept = _shares(len(images), alpha)
    return _blended(images, kept.to(images)), _blended(targets, kept.to(targets))


def cutmix(images: Images, targets: Targets, *, alpha: float) -> tuple[Images, Targets]:
    """Images with a box of another; targets are weighted by the areas, as they are after the border has cut the box.

    Args:
        images, targets: ``[n, c, h, w]`` and ``[n, classes]``.
        alpha: of the Beta distribution, > 0.
    Raises:
        ValueError: alpha is not positive. Source: Yun et al. (2019), Sec. 3.
    """
    n, _, height, width = images.shape
    sides = (1 - _shares(n, alpha)).sqrt()[:, None]
    inside = []
    for pixels in (height, width):
        middle, half = torch.randint(pixels, (n, 1)), (pixels * sides).long() // 2
        at = torch.arange(pixels)
        inside.append((at >= middle - half) & (at < middle + half))
    box = inside[0][:, :, None] & inside[1][:, None, :]
    kept = 1 - box.float().mean((1, 2))
    return torch.where(box[:, None].to(images.device), images.roll(1, 0), images), _blended(targets, kept.to(targets))


def _shares(n: int, alpha: float) -> Tensor:
    if not 0 < alpha < float("inf"):
        raise ValueError(f"alpha must be positive and finite, got {alpha}; leave the mixing out for none")
    return Beta(alpha, alpha).sample((n,))


def _blended(values: Tensor, kept: Tensor) -> Tensor:
    return torch.lerp(values.roll(1, 0), values, kept.view(-1, *[1] * (values.ndim - 1)))

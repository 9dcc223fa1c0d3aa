r"""Do hidden units find the latents of a hierarchy? The measure of the paper's Table 1, and what it reads by chance.

Of unit u the largest activation over positions, :math:`h_u \in R^C`, is correlated with the activity :math:`a \in \{0, 1\}^C` of a latent
over the C classes; a latent's score is the largest correlation of any unit, a layer's the mean over its latents:

.. math:: \text{recovery} = \operatorname{mean}_a \max_u
    \frac{\langle h_u - \bar h_u, a - \bar a \rangle}{\|h_u - \bar h_u\| \|a - \bar a\|} .

**The largest of many correlations over few classes is not small by chance**: with 400 units and 20 classes, that of Gaussian activations
is .62 to .63 (simulated; the asymptotic :math:`\sqrt{2 \ln 400 / 20} = .77` is far off at so few classes). So a recovery stands beside two
nulls: the same network before training, and the same activations with the latents' classes shuffled. Latents that no class or every class
makes active have no correlation and are left out.
Without centring (as the released code also prints) two things that are positive are alike already.
Source: :cite:t:`tian2024joma`, Table 1.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

Activations = Float[Tensor, "classes units"]
Activity = Bool[Tensor, "classes latents"]


def recovery(activations: Activations, activity: Activity) -> Float[Tensor, ""]:
    """The largest centred correlation of any unit with each latent, averaged over the latents that vary.

    Args:
        activations: of each unit in each class, ``[classes, units]``.
        activity: of each latent in each class, ``[classes, latents]``.
    Returns:
        A number in [-1, 1].
    Raises:
        ValueError: no latent varies over the classes.
    Source: :cite:t:`tian2024joma`, Table 1.
    """
    varies = varying(activity)
    if not bool(varies.any()):
        raise ValueError(f"recovery needs a latent that some classes have and others not, got {activity.shape[1]} constant ones")
    h, a = activations.double(), activity[:, varies].double()
    return _largest(h - h.mean(0), a - a.mean(0))


def uncentred_recovery(activations: Activations, activity: Activity) -> Float[Tensor, ""]:
    """:func:`recovery` with cosines in the place of correlations, over the latents that some class has.

    Raises:
        ValueError: no class has a latent.
    Source: :cite:t:`tian2024joma`, released code.
    """
    present = activity.any(0)
    if not bool(present.any()):
        raise ValueError(f"recovery needs a latent that some class has, got {activity.shape[1]} without")
    return _largest(activations.double(), activity[:, present].double())


def varying(activity: Activity) -> Bool[Tensor, " latents"]:
    """Which latents some classes have and others not."""
    return activity.any(0) & ~activity.all(0)


def shuffled_recovery(
    activations: Activations, activity: Activity, *, generator: torch.Generator, draws: int = 20
) -> Float[Tensor, " draws"]:
    """:func:`recovery` of latents whose classes are shuffled: what it reads by chance, ``[draws]``.

    Args:
        generator: draws the permutations.
        draws: how many.
    Source: none, a null.
    """
    orders = [torch.randperm(len(activity), generator=generator) for _ in range(draws)]
    return torch.stack([recovery(activations, activity[order]) for order in orders])


def _largest(h: Activations, a: Float[Tensor, "classes latents"]) -> Float[Tensor, ""]:
    """Mean over columns of a of the largest cosine with a column of h; a column of zeros, a dead unit, counts as 0."""
    size = h.norm(dim=0)
    alive = size > 1e-12 * size.max()
    cosines = (h.T @ a) / (size * alive + (~alive).double())[:, None] / a.norm(dim=0) * alive[:, None]
    return cosines.amax(0).mean()

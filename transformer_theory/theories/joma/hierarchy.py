r"""A hierarchy of latents that generates sequences, and a measure of how well hidden units represent the
latents.

**The hierarchy.** Every latent of layer l is a random set of p units of the layer below (tokens for l = 0),
and every class is a random set of p latents of the highest layer; the sets of a layer differ. A class is
expanded from the top, :math:`y \to \text{set} \to \dots \to \text{set of tokens}`, without noise, so each
class has one sequence: padding (the last word of the vocabulary), then its tokens in ascending order. The
data of C classes are C sequences, and the activity of a latent is a vector of C zeros and ones. In the
released code the tokens are in the arbitrary order of a Python set.

**Recovery.** The largest activation of unit u over positions, :math:`h_u \in R^C`, is correlated with the
activity :math:`a \in \{0, 1\}^C` of a latent over the C classes. The score of a latent is its largest
correlation with any unit; the score of a layer is the mean over its latents:

.. math:: \text{recovery} = \operatorname{mean}_a \max_u
    \frac{\langle h_u - \bar h_u, a - \bar a \rangle}{\|h_u - \bar h_u\| \|a - \bar a\|} .

The largest of many correlations over few classes is not small by chance: for 400 Gaussian units and 20
classes it is .63 (:func:`chance_recovery`; the asymptotic :math:`\sqrt{2 \ln 400 / 20} = .77` does not apply
to so few classes). A recovery therefore needs two chance levels: the recovery before training, and the
recovery with the classes of the latents shuffled. Latents that are active in no class or in every class have
no correlation and are omitted. The released code also prints the recovery without centring, for which any two
positive vectors are similar.
Source: :cite:t:`tian2024joma`, Table 1 and released code.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ...core.validation import converted

Hidden = Float[Tensor, "classes units"]
Activity = Bool[Tensor, "classes latents"]
DEAD_RTOL = 1e-12  # a unit whose norm is below this share of the largest is dead


@dataclass(frozen=True, eq=False)
class Hierarchy:
    """The sets of units that define the latents and the classes.

    Attributes:
        parts: one table per layer, from the lowest: the units of each latent, ``[latents, p]``. The last
            table defines the classes.
        vocabulary: M, number of words; the last one is the padding.
    """

    parts: tuple[Int[Tensor, "_ _"], ...]
    vocabulary: int

    @property
    def classes(self) -> int:
        """Number C of classes."""
        return len(self.parts[-1])

    def activity(self) -> tuple[Bool[Tensor, "classes _"], ...]:
        """Marks the units that are active in each class, layer by layer.

        The layers are the tokens without the padding, then the latents from the lowest layer, then the
        classes.
        """
        sizes = [self.vocabulary - 1, *(len(table) for table in self.parts)]
        active = [torch.eye(self.classes, dtype=torch.bool)]
        for table, below in zip(reversed(self.parts), reversed(sizes[:-1])):
            # One level down: a unit is active if some active unit above contains it.
            composition = torch.zeros(len(table), below).scatter_(1, table, 1.0)
            active.append((active[-1].float() @ composition) > 0)
        return tuple(reversed(active))

    def sequences(self, length: int) -> Int[Tensor, "classes length"]:
        """Returns the sequence of each class: padding, then its tokens in ascending order.

        Args:
            length: number of tokens per sequence, padding included.
        Raises:
            ValueError: a class has more than ``length`` tokens.
        """
        tokens = self.activity()[0]
        if (longest := int(tokens.sum(1).max())) > length:
            raise ValueError(
                f"length must hold the {longest} tokens of the longest class, got {length}; pass "
                f"length={longest}"
            )
        padded = torch.full((self.classes, length), self.vocabulary - 1)
        for row, active in zip(padded, tokens):
            words = active.nonzero()[:, 0]
            row[length - len(words) :] = words
        return padded


def random_hierarchy(
    generator: torch.Generator,
    *,
    vocabulary: int = 100,
    latents: tuple[int, ...] = (10, 20),
    classes: int = 20,
    parts: int = 2,
) -> Hierarchy:
    """Draws a hierarchy of random sets that differ within each layer. The defaults are the smaller setting of
    Table 1.

    Args:
        generator: draws the sets.
        vocabulary: M, the padding included.
        latents: number of latents in each layer, from the lowest.
        classes: C.
        parts: p, the size of each set.
    Raises:
        ValueError: a layer has fewer different sets than requested latents.
    """
    tables, below = [], vocabulary - 1
    for number in (*latents, classes):
        if (available := math.comb(below, parts)) < number:
            raise ValueError(
                f"{below} units have {available} different sets of {parts}, got {number} latents to make; "
                "ask for fewer"
            )
        tables.append(_different_sets(generator, below, parts, number))
        below = number
    return Hierarchy(tuple(tables), vocabulary)


def _different_sets(
    generator: torch.Generator, units: int, parts: int, number: int
) -> Int[Tensor, "number parts"]:
    # a dictionary keeps the order of the draws; repeated sets are drawn again
    sets: dict[tuple[int, ...], None] = {}
    while len(sets) < number:
        sets[tuple(torch.randperm(units, generator=generator)[:parts].sort().values.tolist())] = None
    return torch.tensor([*sets])


@converted(float64=("hidden",))
def recovery(hidden: Hidden, activity: Activity) -> Float[Tensor, ""]:
    """Computes the largest centred correlation of any unit with each latent, averaged over the latents that
    vary.

    Args:
        hidden: activation of each unit in each class, ``[classes, units]``.
        activity: mask of the latents that are active in each class, ``[classes, latents]``.
    Returns:
        A number in [-1, 1].
    Raises:
        ValueError: no latent varies over the classes.
    """
    varies = varying(activity)
    if not bool(varies.any()):
        raise ValueError(
            "recovery needs a latent that is active in some classes and not in others, got "
            f"{activity.shape[1]} constant ones"
        )
    a = activity[:, varies].double()
    return _largest_cosine(hidden - hidden.mean(0), a - a.mean(0))


@converted(float64=("hidden",))
def uncentred_recovery(hidden: Hidden, activity: Activity) -> Float[Tensor, ""]:
    """Computes :func:`recovery` with cosines instead of correlations, over the latents that are active in
    some class.

    Raises:
        ValueError: no latent is active in any class.
    """
    present = activity.any(0)
    if not bool(present.any()):
        raise ValueError(
            f"recovery needs a latent that is active in some class, got {activity.shape[1]} that are never "
            "active"
        )
    return _largest_cosine(hidden, activity[:, present].double())


def varying(activity: Activity) -> Bool[Tensor, " latents"]:
    """Marks the latents that are active in some classes and not in others, ``[latents]``."""
    return activity.any(0) & ~activity.all(0)


def shuffled_recovery(
    hidden: Hidden, activity: Activity, *, generator: torch.Generator, draws: int = 20
) -> Float[Tensor, " draws"]:
    """Draws the null distribution of :func:`recovery`: its values with the classes of the latents permuted,
    ``[draws]``.

    Raises:
        ValueError: no latent varies over the classes.
    """
    orders = [torch.randperm(len(activity), generator=generator) for _ in range(draws)]
    return torch.stack([recovery(hidden, activity[order]) for order in orders])


def chance_recovery(units: int, classes: int) -> float:
    r"""Computes the expected largest of ``units`` independent correlations over ``classes`` classes, the
    recovery by random units.

    A correlation r of Gaussian units with a fixed vector has :math:`r \sqrt{(C-2)/(1-r^2)}` distributed as
    Student's t with C - 2 degrees of freedom; with its distribution function F, :math:`E \max r = 1 -
    \int_{-1}^1 F(r)^m\, dr`.

    Raises:
        ValueError: units < 1 or classes < 3.
    """
    from scipy.stats import t as student

    if units < 1 or classes < 3:
        raise ValueError(f"chance_recovery needs at least 1 unit and 3 classes, got {units} and {classes}")
    # Substituting r = sin(x), whose t is sqrt(C - 2) tan(x), removes the steep ends; the trapezoidal rule
    # then has an error below 1e-6.
    x = torch.linspace(-math.pi / 2, math.pi / 2, 20_001, dtype=torch.float64)[1:-1]
    below = torch.from_numpy(student.cdf(math.sqrt(classes - 2) * x.tan().numpy(), classes - 2))
    return 1 - float(torch.trapezoid(below**units * x.cos(), x))


def _largest_cosine(h: Hidden, a: Float[Tensor, "classes latents"]) -> Float[Tensor, ""]:
    """Returns the largest cosine of each column of a with a column of h, averaged over the columns of a. A
    dead unit has cosine 0.
    """
    size = h.norm(dim=0)
    alive = size > DEAD_RTOL * size.max()
    # A dead column is divided by one, then multiplied by zero, so that 0 / 0 does not arise.
    cosines = (h.T @ a) / (size * alive + (~alive).double())[:, None] / a.norm(dim=0) * alive[:, None]
    return cosines.amax(0).mean()

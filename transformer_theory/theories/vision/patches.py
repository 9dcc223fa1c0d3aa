r"""Images of patches with a spatial structure, positional attention, and patch association.

*Data.* D patches are divided into L groups of C patches. An image has a label :math:`y = \pm 1` and one
active group: its patches are :math:`y w` plus noise. Every other patch is :math:`\delta_j w` plus noise,
where :math:`\delta_j = \pm 1` with probability q/2 each, and 0 otherwise. The noise is orthogonal to the
feature w.

*Model.* Positional attention does not see the contents,

.. math:: F(X) = \sum_i \sigma\Bigl(D \sum_j S_{ij} \langle v, X_j \rangle\Bigr), \qquad \sigma(x) = x^3 + \nu
    x,
    \qquad S = \mathrm{softmax}(A),

with a free matrix A or :math:`A = P P^\top`, and the diagonal of A excluded from the softmax or not.

Here are the sampler and the exact accuracies of two solutions with v = w; :mod:`.association` has what a
matrix associates, and :mod:`.learning` trains the model.

Source: :cite:t:`jelassi2022vision`; constants and details that we did not find confirmed are our own.
"""

from dataclasses import dataclass
from itertools import product

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor
from torch.nn import functional

from ...core.validation import integers, number

LINEAR = 0.1  # nu


def check_numbers(*, q: float = 0.0, **others: float) -> None:
    """Checks numbers of the data and the model.

    Raises:
        ValueError: q is not a probability, or another number is negative or not finite; the message names it.
    """
    if not 0 <= number("q", q) <= 1:
        raise ValueError(f"q must be a probability, expected [0, 1], got {q}; pass e.g. 0.3")
    for name, value in others.items():
        if not 0 <= number(name, value) < float("inf"):
            raise ValueError(f"{name} must be at least 0 and finite, got {value}; pass e.g. 0.1")


@dataclass(frozen=True, eq=False)
class SpatialPatches:
    """Images with labels: patches ``[n, D, dim]`` float32, labels -1 or 1 ``[n]``, active group ``[n]``."""

    patches: Float[Tensor, "n D dim"]
    labels: Float[Tensor, " n"]
    active: Int[Tensor, " n"]


@dataclass(frozen=True)
class SpatialPatchData:
    """The distribution of the images.

    Attributes:
        patches: D.
        group: C, a divisor of D.
        dim: dimension of a patch.
        q: probability that a patch outside the active group shows the feature.
        noise: standard deviation of the noise in each direction orthogonal to w.

    Raises:
        ValueError: C does not divide D, there is one group, or q is not a probability.
    """

    patches: int = 24
    group: int = 3
    dim: int = 16
    q: float = 0.3
    noise: float = 0.3

    def __post_init__(self):
        integers(patches=self.patches, dim=self.dim)
        integers(group=self.group, minimum=2)
        if self.patches % self.group or self.patches == self.group:
            raise ValueError(
                f"group must divide the patches in at least two groups, got {self.group} of {self.patches}; "
                "choose a divisor"
            )
        check_numbers(q=self.q, noise=self.noise)

    @property
    def groups(self) -> Int[Tensor, " D"]:
        """Group of each patch, ``[D]``: 0, ..., 0, 1, ..., 1, ..."""
        return torch.arange(self.patches) // self.group

    def direction(self, generator: Generator) -> Float[Tensor, " dim"]:
        """Draws a feature w of norm 1."""
        return functional.normalize(torch.randn(self.dim, generator=generator), dim=0)

    def coefficients(
        self, n: int, generator: Generator
    ) -> tuple[Float[Tensor, "n D"], Float[Tensor, " n"], Int[Tensor, " n"]]:
        """Draws the coefficients of w in all patches, ``[n, D]``, labels and active groups."""
        integers(n=n)
        labels = 1.0 - 2 * torch.randint(2, (n,), generator=generator)
        active = torch.randint(self.patches // self.group, (n,), generator=generator)
        u = torch.rand(n, self.patches, generator=generator)
        delta = (u < self.q / 2).float() - (u >= 1 - self.q / 2).float()
        return torch.where(active[:, None] == self.groups, labels[:, None], delta), labels, active

    def sample(self, n: int, w: Float[Tensor, " dim"], generator: Generator) -> SpatialPatches:
        """Draws n images with the feature w of norm 1.

        Raises:
            ValueError: w does not have dimension ``dim`` and norm 1.
        """
        if w.shape != (self.dim,) or not abs(float(w.norm()) - 1) < 1e-3:
            raise ValueError(
                f"w must have shape [{self.dim}] and norm 1, got {list(w.shape)}, norm "
                f"{float(w.norm()):.3g}; use direction()"
            )
        x, labels, active = self.coefficients(n, generator)
        noise = self.noise * torch.randn(n, self.patches, self.dim, generator=generator)
        return SpatialPatches(x[..., None] * w + noise - (noise @ w)[..., None] * w, labels, active)


def sigma(x: Float[Tensor, "..."], linear: float = LINEAR) -> Float[Tensor, "..."]:
    """Returns x^3 + linear * x."""
    return x * x * x + linear * x


def group_accuracy(data: SpatialPatchData, *, linear: float = LINEAR) -> float:
    r"""Computes the accuracy of attention to the own group with v = w, exactly; a value F = 0 counts one
    half.

    F is :math:`C (\sigma(D y) + \sum_m \sigma(D \bar u_m))` with the means :math:`\bar u_m` of the other
    groups, which are independent. Their law is listed and convolved over the groups.
    """
    check_numbers(linear=linear)
    C, D, q = data.group, data.patches, data.q
    single = {-1: q / 2, 0: 1 - q, 1: q / 2}
    law: dict[int, float] = {}
    for values in product((-1, 0, 1), repeat=C):
        mass = 1.0
        for value in values:
            mass *= single[value]
        law[sum(values)] = law.get(sum(values), 0.0) + mass
    # C^3 sigma(D s / C) / D^3 = s^3 + linear * s C^2/D^2: the sums of cubes and of values decide.
    total: dict[tuple[int, int], float] = {(0, 0): 1.0}
    for _ in range(D // C - 1):
        following: dict[tuple[int, int], float] = {}
        for (cubes, sums), mass in total.items():
            for s, p in law.items():
                if p:
                    key = (cubes + s**3, sums + s)
                    following[key] = following.get(key, 0.0) + mass * p
        total = following
    weight, right = linear * C**2 / D**2, 0.0
    for (cubes, sums), mass in total.items():
        margin = C**3 + cubes + weight * (C + sums)
        right += mass * (1.0 if margin > 1e-9 else 0.5 if margin > -1e-9 else 0.0)
    return right


def sum_accuracy(data: SpatialPatchData) -> float:
    """Computes the accuracy of the sign of the sum of all coefficients, that of uniform attention with v = w;
    ties count one half.
    """
    law = torch.tensor([data.q / 2, 1 - data.q, data.q / 2], dtype=torch.float64)
    total = torch.ones(1, dtype=torch.float64)
    for _ in range(data.patches - data.group):
        total = functional.conv1d(functional.pad(total, (2, 2))[None, None], law[None, None])[0, 0]
    others = data.patches - data.group
    values = torch.arange(-others, others + 1)
    return float(total[values > -data.group].sum() + total[values == -data.group].sum() / 2)

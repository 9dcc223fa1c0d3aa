"""Inputs of regression prompts from the tokens of a data set: the leading principal components, scaled by one
common factor.

Source: :cite:t:`zhang2024trained` for Gaussian inputs; inputs from data are the library's own.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from ...core.statistics import fixed_generator
from ...core.validation import integers

COMPONENTS, MAX_TOKENS = 6, 20_000
RANK = 1e-6  # components with a smaller share of the largest variance are left out


@dataclass(frozen=True, eq=False)
class TokenInputs:
    r"""Inputs that are drawn with replacement from a set of points.

    Attributes:
        points: centred tokens in the coordinates of their principal components, ``[m, d]``; the mean of
            :math:`\|x\|^2` is d.
    """

    points: Float[Tensor, "m d"]

    @classmethod
    def of(cls, tokens: Float[Tensor, "*n dim"], *, components: int = COMPONENTS) -> "TokenInputs | None":
        """Projects tokens ``[..., dim]`` on their principal components; None if all tokens are equal."""
        integers(components=components)
        flat = tokens.double().flatten(0, -2)
        flat = flat[torch.randperm(len(flat), generator=fixed_generator())[:MAX_TOKENS]]
        size = float(flat.abs().max())
        if not size > 0:
            return None
        centred = flat / size  # squares of huge entries would overflow
        centred = centred - centred.mean(0)
        _, singular, directions = torch.linalg.svd(centred, full_matrices=False)
        if not float(singular[0]) > 1e-9 * len(flat) ** 0.5:
            return None
        kept = int((singular.square() > RANK * singular[0].square()).sum())
        points = centred @ directions[: min(kept, components)].mT
        return cls(points * (points.shape[1] / points.square().sum(1).mean()).sqrt())

    @property
    def covariance(self) -> Float[Tensor, "d d"]:
        """Covariance of the points, a diagonal matrix ``[d, d]`` of trace d."""
        return self.points.mT @ self.points / len(self.points)

    def draw(self) -> Callable[[tuple[int, ...], Generator], Tensor]:
        """Returns the function ``(shape, generator) -> x [*shape, d]`` for :func:`.linear_prompts`."""
        return lambda shape, generator: self.points[
            torch.randint(len(self.points), shape, generator=generator)
        ]

"""Helpers that several claims share: an instance, the distance to a limit, and the error after too many draws
of an instance.

The theorems are limits. A distance that is above its threshold and still falling at the end of a finite run
is inconclusive.
"""

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from ....core.claims import Measured
from ....core.errors import NotConverged
from ..problem import Instance, equal_distractors
from ..selection import first_step_condition

MAX_DRAWS = 200  # largest number of draws; if no instance fits, the claim is inconclusive on that seed


def no_instance(description: str) -> NotConverged:
    """Returns the error to raise after :data:`MAX_DRAWS` draws; it makes the claim inconclusive."""
    return NotConverged(f"no instance {description} in {MAX_DRAWS} draws")


def raised_at_first(generator: Generator) -> Instance:
    """Draws 6 inputs of 6 tokens of dimension 10 with equal distractors in which the first step of descent
    from W = 0 raises the best tokens.

    Raises:
        NotConverged: there is none in :data:`MAX_DRAWS` draws.
    """
    for _ in range(MAX_DRAWS):
        instance = equal_distractors(inputs=6, tokens=6, dim=10, generator=generator)
        if first_step_condition(instance) > 0:
            return instance
    raise no_instance("in which the first step raises the best tokens")


def limit_distance(
    before: float,
    after: float,
    threshold: float,
    *,
    detail: Mapping[str, float],
    falling: float = 0.8,
    done: bool = True,
    covered: bool = True,
) -> Measured:
    """Returns the distance at the end of a run; it has not converged if it exceeds the threshold and still
    falls.

    Args:
        before: distance earlier in the run, usually half-way.
        after: distance at the end.
        threshold: that of the claim, the largest distance that is consistent with it.
        detail: further numbers for the report; the earlier distance is added to them.
        falling: the distance counts as still falling if it is below this share of the earlier distance.
        done: whether the run is long enough, for instance whether attention is saturated; if not, the
            distance has not converged.
        covered: whether the instance satisfies the assumptions.
    """
    settled = after <= threshold or after > falling * before
    return Measured(
        after,
        converged=done and settled,
        covered=covered,
        detail={"distance before": before, **detail},
    )


def direction_error(
    W: Float[Tensor, "*trials d d_z"], target: Float[Tensor, "*trials d d_z"]
) -> Float[Tensor, "*trials"]:
    r"""Returns :math:`\|W/\|W\| - W_{mm}/\|W_{mm}\|\|_F`, accurate even where it is tiny; 1 - cosine is half
    its square.
    """
    first, second = (V / torch.linalg.matrix_norm(V)[..., None, None].clamp(min=1e-300) for V in (W, target))
    return torch.linalg.matrix_norm(first - second)

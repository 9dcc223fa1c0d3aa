r"""How fast the direction of W converges, as a check that could refute it, with a control that must be refuted.

Once the tokens are selected, normalised descent goes :math:`W(k) \approx W_{fin} + \eta k\, W_{mm}/\|W_{mm}\|`: the norm grows like the
number of steps k and what does not grow stays, so that the direction is off by about 1/k. With constant steps the norm grows like
:math:`\log k` only. Notation: :mod:`~.problem`.
"""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from ....core.claims import Claim, Evidence
from ....core.sources import Source
from ..builders import constraints
from ..dynamics import normalised_descent, plain_descent, start
from ..problem import cross_attention
from ..solvers import frobenius_max_margins

EARLY, LATE, BOUND = 400, 3200, 0.2


def direction_error(W: Float[Tensor, "*trials d d_z"], target: Float[Tensor, "*trials d d_z"]) -> Float[Tensor, "*trials"]:
    r""":math:`\|W/\|W\| - W_{mm}/\|W_{mm}\|\|_F`, to the last digit also where it is tiny; 1 - cosine is half of its square."""
    one, other = (V / torch.linalg.matrix_norm(V)[..., None, None].clamp(min=1e-300) for V in (W, target))
    return torch.linalg.matrix_norm(one - other)


def _slope(descent: Callable, generator: torch.Generator) -> Evidence:
    """How far the slope of log error against log step is from -1, between steps 400 and 3,200; median of ten problems from W = 0."""
    instance = cross_attention(inputs=2, tokens=4, dim=6, trials=10, generator=generator)
    early = descent(instance, start(instance), steps=EARLY)
    late = descent(instance, early, steps=LATE - EARLY)
    targets = frobenius_max_margins(constraints(instance.tokens, instance.query, instance.selected(late.W)))
    before, after = (direction_error(state.W, targets.W)[targets.solved] for state in (early, late))
    slope = float((after / before).log().median()) / math.log(LATE / EARLY) if len(after) else math.nan
    return Evidence(abs(slope + 1), BOUND, "<=", detail={"slope": slope, "problems": len(after)})


def _normalised(generator: torch.Generator) -> Evidence:
    return _slope(normalised_descent, generator)


def _plain(generator: torch.Generator) -> Evidence:
    return _slope(plain_descent, generator)


CLAIMS = (
    Claim(
        id="attention_svm/direction-rate",
        statement=r"The direction of normalised descent is off by about one over the number of steps: the slope of "
        r"$\log\big\|W(k)/\|W(k)\| - W_a/\|W_a\|\big\|_F$ against $\log k$ is $-1$. Value: how far it is from that between steps 400 and "
        "3,200, median of ten problems. Finite-time rates are proven in the source; this exponent is what runs show.",
        source=Source("vasudeva2025implicit"),
        assumptions=("descent from W = 0 with normalised steps", "the selected tokens a are those at the end, and feasible"),
        check=_normalised,
        control=_plain,
        control_description="Steps of constant size times the gradient: the norm, and with it the direction, moves like the logarithm of time.",
    ),
)

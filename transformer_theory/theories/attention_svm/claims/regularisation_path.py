r"""Claims on regularisation paths: the weights of least loss within a ball of radius R, as R grows.

Source: :cite:t:`tarzanagh2023transformers`, :cite:t:`tarzanagh2023maxmargin`.
"""

import torch

from ....core.claims import Claim, Evidence
from ....core.sources import Source
from ....maths.linalg import cosine
from ..builders import constraints
from ..dynamics.path import RegularisationPath, factored_path, regularisation_path
from ..dynamics.polyak import log_excess_loss
from ..problem import Instance, cross_attention
from ..solution import MaxMargin
from ..solvers import frobenius_max_margin, nuclear_max_margin
from .draws import MOST, never
from .settling import settling

SOURCE = Source("tarzanagh2023transformers")
RADII = (3.0, 10.0, 30.0, 100.0)
STARTS, STEPS = 16, 120  # on seeds 100 to 199, six and ten starts miss the minimum of factors once, with no more loss than the target
FLAT = 1e-5  # residual above which descent on factors goes on: on seed 76 the minimum lies in a valley, and 120 steps end .033 away
BOUND = 0.01
LONGEST = 2.5  # the largest norm of a solution for which a radius of 100 is far out
APART = 0.95  # the largest cosine of the two solutions that the paths are asked to tell apart


def _draw(generator: torch.Generator) -> tuple[Instance, MaxMargin, MaxMargin]:
    for _ in range(MOST):
        instance = cross_attention(inputs=3, tokens=3, dim=4, generator=generator)
        pairs = constraints(instance.tokens, instance.query, instance.optimal())
        frobenius = frobenius_max_margin(pairs)
        first, second = instance.scores.topk(2, -1).values.unbind(-1)
        if frobenius.norm > LONGEST or float((first - second).min()) < 0.1:
            continue
        nuclear = nuclear_max_margin(pairs)
        if nuclear.norm < LONGEST and float(cosine(frobenius.W, nuclear.W)) < APART:
            return instance, frobenius, nuclear
    raise never("whose two solutions are short and point apart")


def _factored(instance: Instance, generator: torch.Generator) -> RegularisationPath:
    """The path of the factors, with five times the steps where the usual number ends short of a minimum."""
    begin = generator.get_state()
    path = factored_path(instance, RADII, generator=generator, starts=STARTS, steps=STEPS)
    if float(path.residual[-1]) > FLAT:
        path = factored_path(instance, RADII, generator=generator.set_state(begin), starts=STARTS, steps=5 * STEPS)
    return path


def _evidence(instance: Instance, path: RegularisationPath, smallest: MaxMargin, target: MaxMargin, *, flat: float = 1e-2) -> Evidence:
    """1 - cosine to the target at the largest radius.

    ``smallest`` has the least norm of the ball's kind. Scaled to the ball it lies inside, so a path that does not reach its loss has not
    found the minimum, and the check is undecided; so is one whose residual at the end is not below ``flat``.
    """
    before, after = (1 - float(cosine(W, target.W)) for W in path.W[-2:])
    radius = float(path.radii[-1])
    ahead = float(log_excess_loss(instance, smallest.W * (radius / smallest.norm)) - path.log_excess[-1])
    residual = float(path.residual[-1])
    detail = {"radius": radius, "residual": residual, "log loss below that of the target": ahead}
    return settling(before, after, BOUND, falling=0.6, done=ahead >= 0 and residual < flat, detail=detail)


def _ball(generator: torch.Generator) -> Evidence:
    instance, frobenius, _ = _draw(generator)
    return _evidence(instance, regularisation_path(instance, RADII, generator=generator, starts=STARTS, steps=STEPS), frobenius, frobenius)


def _ball_nuclear(generator: torch.Generator) -> Evidence:
    instance, frobenius, nuclear = _draw(generator)
    return _evidence(instance, regularisation_path(instance, RADII, generator=generator, starts=STARTS, steps=STEPS), frobenius, nuclear)


def _factors(generator: torch.Generator) -> Evidence:
    instance, _, nuclear = _draw(generator)
    return _evidence(instance, _factored(instance, generator), nuclear, nuclear, flat=FLAT)


def _factors_frobenius(generator: torch.Generator) -> Evidence:
    instance, frobenius, nuclear = _draw(generator)
    return _evidence(instance, _factored(instance, generator), nuclear, frobenius, flat=FLAT)


ASSUMPTIONS = (
    "the optimal tokens are unique and can be selected",
    "the best of 32 descents, 16 of them followed from smaller radii, stands for the minimum if its loss is below that of the target",
)

CLAIMS = (
    Claim(
        id="attention_svm/regularisation-path",
        statement=r"The weights of least loss in a ball, $W_R = \arg\min_{\|W\|_F \le R} L(W)$, converge in direction to the max-margin "
        r"solution of the optimal tokens in the Frobenius norm, $W_R / R \to W_{mm} / \|W_{mm}\|_F$. Value: $1 - \cos$ at $R = 100$.",
        source=SOURCE,
        assumptions=ASSUMPTIONS,
        check=_ball,
        control=_ball_nuclear,
        control_description="The target is the max-margin solution in the nuclear norm.",
    ),
    Claim(
        id="attention_svm/factored-regularisation-path",
        statement=r"The factors of least loss in a ball, $\|K\|_F^2 + \|Q\|_F^2 \le 2R$, converge in direction to the max-margin solution "
        r"of the optimal tokens in the nuclear norm, $K_R Q_R^\top / R \to W_\star / \|W_\star\|_\star$. Value: $1 - \cos$ at $R = 100$.",
        source=SOURCE,
        assumptions=(*ASSUMPTIONS, "the solution in the nuclear norm is unique, as it is for almost all data"),
        check=_factors,
        control=_factors_frobenius,
        control_description="The target is the max-margin solution in the Frobenius norm.",
    ),
)

r"""Claims about regularisation paths, the weights of least loss in a growing ball, for W and for the factors
of :math:`W = K Q^\top`.

For the factors the nuclear norm takes the place of the Frobenius norm :cite:p:`tarzanagh2023transformers`.
"""

from typing import Literal

import torch

from ....core.claims import NEAR, Measured, but, claim
from ....core.sources import Source
from ....maths.linalg import cosine
from ..builders import constraints
from ..dynamics import (
    RegularisationPath,
    factored_path,
    log_excess_loss,
    regularisation_path,
)
from ..problem import Instance, cross_attention
from ..solution import MaxMargin
from ..solvers import frobenius_max_margin, nuclear_max_margin
from .common import MAX_DRAWS, limit_distance, no_instance

SOURCE = Source("tarzanagh2023transformers", status="not found")
RADII = (3.0, 10.0, 30.0, 100.0)
STARTS, STEPS = 16, 120
# a path with a larger residual at the last radius is recomputed with five times the steps
FACTORED_RESIDUAL = 1e-5
BALL_RESIDUAL = 1e-2
SIZE_RTOL = 0.05
PATH_THRESHOLD = 0.01
MAX_NORM = 2.5  # largest norm of a solution for which a radius of 100 is close to the limit
MAX_COSINE = 0.95  # largest cosine of the two solutions, so that the check separates them
MIN_GAP = 0.1  # smallest difference between the best and the second score
PATH_ASSUMPTIONS = (
    "decreasing smooth loss (logistic)",
    "the optimal tokens are unique and feasible",
    "the best score of each input is 0.1 above the second",
    "the solutions of both norms have norm below 2.5, so that a radius of 100 is close to the limit, and a "
    "cosine below 0.95",
    "the best of 32 descents, 16 of them followed from smaller radii, stands for the minimum if its loss is "
    "below that of the target",
)


def _draw(generator: torch.Generator) -> tuple[Instance, MaxMargin, MaxMargin]:
    """Draws an instance with short solutions in both norms that differ in direction; returns it with both
    solutions.
    """
    for _ in range(MAX_DRAWS):
        instance = cross_attention(inputs=3, tokens=3, dim=4, generator=generator)
        pairs = constraints(instance.tokens, instance.query, instance.optimal())
        frobenius = frobenius_max_margin(pairs)
        first, second = instance.scores.topk(2, -1).values.unbind(-1)
        if frobenius.norm > MAX_NORM or float((first - second).min()) < MIN_GAP:
            continue
        nuclear = nuclear_max_margin(pairs)
        if nuclear.norm < MAX_NORM and float(cosine(frobenius.W, nuclear.W)) < MAX_COSINE:
            return instance, frobenius, nuclear
    raise no_instance("whose two solutions are short and differ in direction")


def _distance(
    instance: Instance,
    path: RegularisationPath,
    smallest: MaxMargin,
    target: MaxMargin,
    *,
    norm: Literal["fro", "nuc"],
    residual_limit: float = BALL_RESIDUAL,
) -> Measured:
    """Returns the distance of W_R / R from the target of norm one, at the largest radius.

    The distance is half the squared Frobenius norm of the difference, relative to that of the target: 1 -
    cosine if both have one norm. It has not converged if the path has not reached the minimum in the
    last ball, that is, if its loss exceeds the loss of ``smallest`` or its residual is not below
    ``residual_limit``.

    Args:
        smallest: max-margin solution in the norm of the ball; scaled to the radius, it lies in the ball.
        target: solution that the path should approach, divided by its norm.
        norm: norm of the ball.
        residual_limit: bound on the residual at the largest radius.
    """
    end, size = target.W / target.norm, target.norm / float(target.W.norm())
    before, after = (
        float((W / R - end).norm() * size) ** 2 / 2 for W, R in zip(path.W[-2:], path.radii[-2:])
    )
    radius = float(path.radii[-1])
    # The minimum lies on the boundary of the ball. A path whose weights are longer or shorter by more than
    # SIZE_RTOL follows other balls.
    size_error = abs(float(torch.linalg.matrix_norm(path.W[-1], ord=norm)) / radius - 1)
    log_gain = float(log_excess_loss(instance, smallest.W * (radius / smallest.norm)) - path.log_excess[-1])
    residual = float(path.residual[-1])
    detail = {
        "radius": radius,
        "residual": residual,
        "log loss below that of the target": log_gain,
        "error of the norm": size_error,
    }
    if size_error > SIZE_RTOL:
        return Measured(
            max(after, size_error), detail=detail, note="the weights do not lie on the boundary of the ball"
        )
    return limit_distance(
        before,
        after,
        PATH_THRESHOLD,
        falling=0.6,
        done=log_gain >= 0 and residual < residual_limit,
        detail=detail,
    )


@claim(
    "attention_svm/regularisation-path",
    measures="half the squared distance at radius 100, relative to the squared Frobenius norm of the limit",
    at_most=PATH_THRESHOLD,
    source=SOURCE,
    assumptions=PATH_ASSUMPTIONS,
    control=but("The target is the max-margin solution in the nuclear norm.", norm="nuclear"),
)
def ball(generator: torch.Generator, *, norm: Literal["Frobenius", "nuclear"] = "Frobenius") -> Measured:
    r"""The weights of least loss in a ball, $W_R = \arg\min_{\|W\|_F \le R} L(W)$, converge to the max-margin
    solution of the optimal tokens in the Frobenius norm, $W_R / R \to W_{mm} / \|W_{mm}\|_F$.
    """
    instance, frobenius, nuclear = _draw(generator)
    return _distance(
        instance,
        regularisation_path(instance, RADII, generator=generator, starts=STARTS, steps=STEPS),
        frobenius,
        frobenius if norm == "Frobenius" else nuclear,
        norm="fro",
    )


def _factored(instance: Instance, generator: torch.Generator) -> RegularisationPath:
    """Returns the path of the factors; if STEPS steps do not reach a minimum, the path with five times as
    many.
    """
    first_state = generator.get_state()  # the second path begins at the same random starts
    path = factored_path(instance, RADII, generator=generator, starts=STARTS, steps=STEPS)
    if float(path.residual[-1]) > FACTORED_RESIDUAL:
        path = factored_path(
            instance, RADII, generator=generator.set_state(first_state), starts=STARTS, steps=5 * STEPS
        )
    return path


@claim(
    "attention_svm/factored-regularisation-path",
    measures="half the squared distance at radius 100, relative to the squared Frobenius norm of the limit",
    at_most=PATH_THRESHOLD,
    margin=NEAR,
    source=SOURCE,
    assumptions=(
        *PATH_ASSUMPTIONS,
        "the solution in the nuclear norm is unique, as it is for almost all data",
        "K and Q have at least as many columns as the solution's rank",
    ),
    control=but("The target is the max-margin solution in the Frobenius norm.", norm="Frobenius"),
)
def factored_regularisation_path(
    generator: torch.Generator, *, norm: Literal["Frobenius", "nuclear"] = "nuclear"
) -> Measured:
    r"""The factors of least loss in a ball, $\|K\|_F^2 + \|Q\|_F^2 \le 2R$, converge to the max-margin
    solution of the optimal tokens in the nuclear norm, $K_R Q_R^\top / R \to W_\star / \|W_\star\|_\star$.
    """
    instance, frobenius, nuclear = _draw(generator)
    return _distance(
        instance,
        _factored(instance, generator),
        nuclear,
        frobenius if norm == "Frobenius" else nuclear,
        norm="nuc",
        residual_limit=FACTORED_RESIDUAL,
    )


CLAIMS = (ball, factored_regularisation_path)

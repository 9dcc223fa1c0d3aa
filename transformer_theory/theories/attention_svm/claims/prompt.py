r"""Claims about the prompt of one input, and about the finite part of a prompt, which depends on the loss.

The instances resemble the published example in the plane :cite:p:`tarzanagh2023maxmargin`: keys (-.4, 1), (1,
0), (0, 0), perturbed at random, with scores 1, .9, and .9 or 0. If the third score is .9, tokens 1 and 2
score the same and every start leads to token 0. If it is 0, token 1 scores higher than its only neighbour,
token 2; token 1 is then locally optimal, and starts near it stay.
"""

import math

import torch
from torch import Tensor

from ....core.claims import Claim, Evidence
from ....core.sources import Source
from ..builders import prompt
from ..dynamics import LINEAR, LOGISTIC, Loss, normalised_descent, start
from ..problem import Instance
from ..published import prompt_limit, published_pair
from ..solvers import frobenius_max_margins
from .common import limit_evidence

SOURCE = Source("tarzanagh2023maxmargin", status="not found")
TRIALS = 24
EQUAL, UNEQUAL = (1.0, 0.9, 0.9), (1.0, 0.9, 0.0)


def _perturbed(scores: tuple[float, ...], generator: torch.Generator) -> Instance:
    """Draws TRIALS copies of the example with perturbed keys."""
    keys = torch.tensor([[-0.4, 1.0], [1.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    keys = keys + 0.03 * torch.randn(TRIALS, 1, 3, 2, generator=generator, dtype=torch.float64)
    gamma = torch.tensor(scores, dtype=torch.float64).expand(TRIALS, 1, 3)
    return Instance(keys, torch.ones(TRIALS, 1, 1, dtype=torch.float64), gamma)


def _directions(instance: Instance, token: int) -> Tensor:
    """Returns p_mm of the token, scaled to norm one, ``[trials, 2, 1]``."""
    solutions = frobenius_max_margins(prompt(instance.tokens, torch.full((TRIALS, 1), token)))
    # each of three points in general position is separable from the other two
    assert bool(solutions.solved.all())
    return solutions.W / solutions.norm[:, None, None]


def _farthest(instance: Instance, begin: Tensor, token: int, steps: int) -> Evidence:
    """Returns evidence about the largest 1 - cosine to p_mm of the token over all trials."""
    goal = _directions(instance, token)
    half = normalised_descent(instance, start(instance, W=begin), steps=steps // 2)
    end = normalised_descent(instance, half, steps=steps - steps // 2)
    before, after = (
        float((1 - (s.W * goal).sum((-2, -1)) / s.W.norm(dim=(-2, -1))).max()) for s in (half, end)
    )
    share = float((instance.selected(end.W) == token).double().mean())
    detail = {"trials": TRIALS, "share of trials at the token": share, "steps": end.step}
    return limit_evidence(before, after, 0.01, detail=detail)


def _circle() -> Tensor:
    """Returns starts on a circle of radius 1.5, ``[trials, 2, 1]``."""
    angle = torch.arange(TRIALS, dtype=torch.float64) * (2 * math.pi / TRIALS)
    return 1.5 * torch.stack([angle.cos(), angle.sin()], 1)[..., None]


def _every_start(generator: torch.Generator) -> Evidence:
    return _farthest(_perturbed(EQUAL, generator), _circle(), token=0, steps=1000)


def _unequal_scores(generator: torch.Generator) -> Evidence:
    return _farthest(_perturbed(UNEQUAL, generator), _circle(), token=0, steps=1000)


def _stays(generator: torch.Generator) -> Evidence:
    instance = _perturbed(UNEQUAL, generator)
    return _farthest(instance, 10 * _directions(instance, 1), token=1, steps=1000)


def _not_locally_optimal(generator: torch.Generator) -> Evidence:
    instance = _perturbed(EQUAL, generator)
    return _farthest(instance, 10 * _directions(instance, 1), token=1, steps=1000)


def _finite_part(expected: Loss, generator: torch.Generator) -> Evidence:
    """Returns evidence about the distance of the second coordinate, under the logistic loss, from the limit
    for ``expected``.
    """
    scores = tuple((2 + 6 * torch.rand(4, generator=generator, dtype=torch.float64)).tolist())
    instance = published_pair(scores)
    end = normalised_descent(instance, start(instance), steps=600)
    error = float(
        (end.W[:, 1, 0] - prompt_limit(torch.tensor(scores, dtype=torch.float64), loss=expected)).abs().max()
    )
    # falls like 1/k^2; its largest value, at C = 8, is 8e-4
    angle = float((1 - end.W[:, 0, 0] / end.W.norm(dim=(-2, -1))).max())
    detail = {"steps": end.step, "largest score": max(scores), "distance": error, "1 - cosine": angle}
    return Evidence(max(error, angle), 1e-3, "<=", detail=detail)


def _logistic_limit(generator: torch.Generator) -> Evidence:
    return _finite_part(LOGISTIC, generator)


def _linear_limit(generator: torch.Generator) -> Evidence:
    return _finite_part(LINEAR, generator)


CLAIMS = (
    Claim(
        id="attention_svm/prompt-global-direction",
        statement="With one input, descent on the prompt converges from every start in direction to "
        r"$p_{mm} = \arg\min \|p\|$ subject to $(k_{opt} - k_t)^\top p \ge 1$.",
        measures="largest 1 - cosine to the max-margin prompt over 24 inputs, one start each on a circle of "
        "radius 1.5",
        source=SOURCE,
        assumptions=(
            "one input",
            "all tokens but the best one have the same score",
            "the max-margin problem is feasible",
            "normalised steps, logistic loss",
        ),
        check=_every_start,
        control=_unequal_scores,
        control_description="One of the other tokens scores higher than its neighbour, so that it is "
        "locally optimal too.",
    ),
    Claim(
        id="attention_svm/prompt-local-selection",
        statement="Descent on the prompt from far out along $p_a$, the max-margin prompt of a locally "
        "optimal token $a$, stays there and converges in direction to $p_a$.",
        measures="largest 1 - cosine to the max-margin prompt of the token over 24 inputs, not the best "
        "token",
        source=SOURCE,
        assumptions=(
            "one input",
            "the token scores higher than its neighbours",
            "the max-margin problem of the token is feasible",
            "the start has norm 10 and the direction of $p_a$",
            "normalised steps, logistic loss",
        ),
        check=_stays,
        control=_not_locally_optimal,
        control_description="The token scores no higher than its neighbour.",
    ),
    Claim(
        id="attention_svm/loss-limit",
        statement=r"Two inputs with tokens $0$ and $(1, \pm 1)$ of scores $C$ and 1: the prompt goes in the "
        "direction $(1, 0)$ for every decreasing differentiable loss, and its second coordinate to "
        r"$\tfrac12 \ln(C\,\ell'(C) / \ell'(1))$, which depends on the loss.",
        measures="larger of the distance of the second coordinate from its limit and 1 - cosine to (1, 0), "
        "over four C between 2 and 8",
        source=SOURCE,
        assumptions=(
            "checked for the logistic loss; normalised steps from $p = 0$",
            "the tokens of the example",
        ),
        check=_logistic_limit,
        control=_linear_limit,
        control_description="The limit is that of the loss -x.",
    ),
)

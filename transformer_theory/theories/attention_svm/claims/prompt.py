r"""Claims about the prompt of one input, and about the finite part of a prompt, which depends on the loss.

The instances resemble the published example in the plane :cite:p:`tarzanagh2023maxmargin`: keys (-.4, 1), (1,
0), (0, 0), perturbed at random, with scores 1, .9, and .9 or 0. If the third score is .9, tokens 1 and 2
score the same and every start leads to token 0. If it is 0, token 1 scores higher than its only neighbour,
token 2; token 1 is then locally optimal, and starts near it stay.
"""

import math

import torch
from torch import Tensor

from ....core.claims import NEAR, Measured, but, claim
from ....core.sources import Source
from ..builders import prompt
from ..dynamics import LINEAR, LOGISTIC, Loss, normalised_descent, start
from ..problem import Instance
from ..published import prompt_limit, published_pair
from ..solvers import frobenius_max_margins
from .common import limit_distance

SOURCE = Source("tarzanagh2023maxmargin", status="not found")
TRIALS = 24
THRESHOLD = 0.01  # largest 1 - cosine of the direction of a prompt
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


def _farthest(instance: Instance, begin: Tensor, token: int, steps: int) -> Measured:
    """Returns the largest 1 - cosine to p_mm of the token over all trials."""
    goal = _directions(instance, token)
    half = normalised_descent(instance, start(instance, W=begin), steps=steps // 2)
    end = normalised_descent(instance, half, steps=steps - steps // 2)
    before, after = (
        float((1 - (s.W * goal).sum((-2, -1)) / s.W.norm(dim=(-2, -1))).max()) for s in (half, end)
    )
    share = float((instance.selected(end.W) == token).double().mean())
    detail = {"trials": TRIALS, "share of trials at the token": share, "steps": end.step}
    return limit_distance(before, after, THRESHOLD, detail=detail)


def _circle() -> Tensor:
    """Returns starts on a circle of radius 1.5, ``[trials, 2, 1]``."""
    angle = torch.arange(TRIALS, dtype=torch.float64) * (2 * math.pi / TRIALS)
    return 1.5 * torch.stack([angle.cos(), angle.sin()], 1)[..., None]


@claim(
    "attention_svm/prompt-global-direction",
    measures="largest 1 - cosine to the max-margin prompt over 24 inputs, one start each on a circle of "
    "radius 1.5",
    at_most=THRESHOLD,
    source=SOURCE,
    assumptions=(
        "one input",
        "all tokens but the best one have the same score",
        "the max-margin problem is feasible",
        "normalised steps, logistic loss",
    ),
    control=but(
        "One of the other tokens scores higher than its neighbour, so that it is locally optimal too.",
        scores=UNEQUAL,
    ),
)
def prompt_global_direction(generator: torch.Generator, *, scores: tuple[float, ...] = EQUAL) -> Measured:
    r"""With one input, descent on the prompt converges from every start in direction to $p_{mm} = \arg\min
    \|p\|$ subject to $(k_{opt} - k_t)^\top p \ge 1$.
    """
    return _farthest(_perturbed(scores, generator), _circle(), token=0, steps=1000)


@claim(
    "attention_svm/prompt-local-selection",
    measures="largest 1 - cosine to the max-margin prompt of the token over 24 inputs, not the best token",
    at_most=THRESHOLD,
    source=SOURCE,
    assumptions=(
        "one input",
        "the token scores higher than its neighbours",
        "the max-margin problem of the token is feasible",
        "the start has norm 10 and the direction of $p_a$",
        "normalised steps, logistic loss",
    ),
    control=but("The token scores no higher than its neighbour.", scores=EQUAL),
)
def prompt_local_selection(generator: torch.Generator, *, scores: tuple[float, ...] = UNEQUAL) -> Measured:
    """Descent on the prompt from far out along $p_a$, the max-margin prompt of a locally optimal token $a$,
    stays there and converges in direction to $p_a$.
    """
    instance = _perturbed(scores, generator)
    return _farthest(instance, 10 * _directions(instance, 1), token=1, steps=1000)


@claim(
    "attention_svm/loss-limit",
    measures="larger of the distance of the second coordinate from its limit and 1 - cosine to (1, 0), "
    "over four C between 2 and 8",
    at_most=1e-3,
    margin=NEAR,
    source=SOURCE,
    assumptions=(
        "checked for the logistic loss; normalised steps from $p = 0$",
        "the tokens of the example",
    ),
    control=but("The limit is that of the loss -x.", expected=LINEAR),
)
def loss_limit(generator: torch.Generator, *, expected: Loss = LOGISTIC) -> Measured:
    r"""Two inputs with tokens $0$ and $(1, \pm 1)$ of scores $C$ and 1: the prompt goes in the direction $(1,
    0)$ for every decreasing differentiable loss, and its second coordinate to $\tfrac12 \ln(C\,\ell'(C) /
    \ell'(1))$, which depends on the loss.
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
    return Measured(max(error, angle), detail)


CLAIMS = (prompt_global_direction, prompt_local_selection, loss_limit)

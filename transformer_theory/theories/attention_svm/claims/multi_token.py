r"""A claim about attention that stays on several tokens: :math:`W(k) \approx W_{fin} + R(k)\, W_{dir}`.

It is a conjecture of :cite:t:`tarzanagh2023transformers` for general heads. The check adds an assumption that
the conjecture needs: the head pushes every masked token away (:mod:`~..sharing`), since no margin is
maximised for a token with zero gradient.
"""

import math

import torch
from torch import Tensor

from ....core.claims import Measured, but, claim
from ....core.sources import Source
from ....maths.linalg import cosine
from ..builders import constraints
from ..dynamics import HeadInstance, normalised_descent, random_start, relu_head
from ..problem import cross_attention
from ..sharing import SOME_ATTENTION, least_push, settled, shared
from ..solvers import frobenius_max_margins, generalised_max_margins

THRESHOLD, TRIALS = 0.02, 90
MIN_PUSH = 1e-2  # smallest least_push of a usable trial; gains are of order one


def _settled_trials(generator: torch.Generator) -> tuple[HeadInstance, Tensor, Tensor]:
    """Returns random problems with a head with one hidden layer, W at the end, and the trials that share
    attention and are covered.
    """

    def normal(*size: int) -> Tensor:
        return torch.randn(TRIALS, *size, generator=generator, dtype=torch.float64)

    V = normal(4, 4)
    x, z = (torch.nn.functional.normalize(v, dim=-1) for v in (normal(2, 3, 4), normal(2, 4)))
    # the first label of each trial is negative
    labels = torch.cat([-torch.ones(TRIALS, 1, dtype=torch.float64), normal(1).sign()], -1)
    instance = HeadInstance(x, z, labels, relu_head(V / V.norm(dim=(-2, -1), keepdim=True)))
    W = normalised_descent(instance, random_start(instance, generator=generator), steps=600).W
    attention = instance.attention(W)
    usable = settled(attention) & shared(attention) & (least_push(instance, W) > MIN_PUSH)
    return instance, W, usable.nonzero().squeeze(-1)


def _median(W: Tensor, target: Tensor, solved: Tensor) -> Measured:
    """Returns the median of 1 - cosine over the solved trials; inconclusive if there are none."""
    count = int(solved.sum())
    distance = 1 - cosine(W[solved], target[solved], dim=(-2, -1)) if count else W.new_zeros(0)
    value = float(distance.median()) if count else math.nan
    return Measured(value, converged=count > 0, detail={"trials": count})


def _one_token(generator: torch.Generator) -> Measured:
    instance, W, trials = _settled_trials(generator)
    solutions = frobenius_max_margins(
        constraints(instance.tokens[trials], instance.query[trials], instance.selected(W)[trials])
    )
    return _median(W[trials], solutions.W, solutions.solved)


@claim(
    "attention_svm/several-tokens",
    measures="median of 1 - cosine to the prediction over trials",
    at_most=THRESHOLD,
    source=Source("tarzanagh2023transformers", "the conjecture for general heads", "not found"),
    assumptions=(
        "a head with one hidden layer; at least one label of each problem is negative; normalised "
        "steps, logistic loss",
        "attention has settled: no token has between 1e-6 and 1e-3 of it",
        "some input keeps several tokens, and some matrix gives them their attention and separates them "
        "from the others",
        "the head pushes every token outside the sets away, by at least 0.01 (added here; the "
        "conjecture fails otherwise)",
    ),
    control=but(
        "The prediction is replaced by the max-margin solution of the most attended token of each input.",
        _one_token,
    ),
)
def several_tokens(generator: torch.Generator) -> Measured:
    r"""A conjecture: where attention stays on a set $O_i$ of tokens of each input, $W$ is close to $W_{fin} +
    R\,W_{dir}$: $W_{dir}$ is the smallest matrix that scores the tokens of $O_i$ alike and above all others
    by one, $W_{fin}$ the smallest that gives them the attention they have, $R$ a number.
    """
    instance, W, trials = _settled_trials(generator)
    prediction = generalised_max_margins(
        instance.tokens[trials], instance.query[trials], instance.attention(W)[trials]
    )
    solved = prediction.direction.solved & prediction.finite.solved  # pyright: ignore[reportAttributeAccessIssue]
    return _median(W[trials], prediction.predict(W[trials]), solved)


@claim(
    "attention_svm/shared-finite-part",
    measures="largest distance of W_fin from this part of W, relative to its norm, or cosine to a "
    "non-zero W_dir, over up to 40 random W",
    at_most=1e-6,
    source=Source("tarzanagh2023transformers", status="own"),
    assumptions=(
        "$O_i$ holds the tokens of input i with more than 0.001 of its attention; some $O_i$ has several",
        "the problem of $W_{dir}$ is feasible",
    ),
    control=but("The tokens of a set are given equal shares, not those they have under W.", uniform=True),
)
def shared_finite_part(generator: torch.Generator, *, uniform: bool = False) -> Measured:
    r"""The matrix $W_{fin}$ of `attention_svm/several-tokens` is the part of $W$ in the span of the matrices
    $(x_{i,t} - x_{i,\tau}) z_i^\top$ with $t, \tau \in O_i$, for every $W$. It is orthogonal to $W_{dir}$, so
    $R = \langle W_{dir}, W\rangle / \|W_{dir}\|_F^2$ is the best scale if $W_{dir} \ne 0$.
    """
    # uniform: whether W_fin is that of equal shares of the tokens that have attention, in the place of the
    # shares under W.
    instance = cross_attention(inputs=2, tokens=3, dim=5, generator=generator, trials=40)
    W = 4 * torch.randn(40, 5, 5, generator=generator, dtype=torch.float64)
    attention = instance.attention(W)
    has = attention > SOME_ATTENTION
    target = generalised_max_margins(
        instance.tokens, instance.query, has / has.sum(-1, keepdim=True) if uniform else attention
    )
    errors, directions = [], 0
    for trial in (has.sum(-1) > 1).any(-1).nonzero().squeeze(-1).tolist():
        rows = [
            torch.outer(x[t] - x[first], z).ravel()
            for x, z, chosen in zip(instance.tokens[trial], instance.query[trial], has[trial])
            for first, *others in [chosen.nonzero().squeeze(-1).tolist()]
            for t in others
        ]
        span = torch.linalg.qr(torch.stack(rows).mT)[0]
        part = (span @ (span.mT @ W[trial].ravel())).reshape(5, 5)
        finite, direction = target.finite.W[trial], target.direction.W[trial]
        errors.append(float((finite - part).norm() / part.norm()))
        if float(direction.norm()) > 0:  # W_dir is zero if every input keeps all its tokens
            directions += 1
            errors[-1] = max(
                errors[-1], float((finite * direction).sum().abs() / (part.norm() * direction.norm()))
            )
    worst = max(errors, default=math.nan)
    detail = {"problems": len(errors), "with a direction": directions}
    return Measured(worst, converged=directions > 0, detail=detail)


CLAIMS = (several_tokens, shared_finite_part)

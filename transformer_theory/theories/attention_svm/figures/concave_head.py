"""Descent with the head v^T o - lambda |o|^2, compared with weights that are predicted from the
scores alone.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from ....core.experiment import setting
from ....core.figure import Panel, Reading, curves, figure, reading
from ....core.sources import Source
from ....maths.linalg import cosine, orthonormalise
from ..builders import constraints
from ..dynamics import HeadInstance, plain_descent, start
from ..dynamics import concave_head as head
from ..selection import NEIGHBOUR_RTOL
from ..sharing import SOME_ATTENTION, lost_margins, optimal_shares
from ..solvers import frobenius_max_margins, generalised_max_margins
from .common import logarithmic_steps

COUNT = "tokens of an input that keep attention"
ERROR = "largest error of the predicted attention"
REACHED = "share of problems that reach the predicted attention"
RESTRICTED = "share of problems whose attention is optimal on the tokens that keep it"
LOST = "share of lost tokens that are not neighbours"
DISTANCE = "1 - cosine to the target"
TARGETS = {
    "finite part and direction, from the scores": {"label": "finite part and direction"},
    "direction alone": {},
    "max-margin of the best tokens": {"label": "one token per input"},
    "prediction for another problem": {"label": "another problem", "color": "null"},
}
CLOSE = 0.01  # largest error of an attention weight at which a problem reaches the prediction


def draw(
    trials: int, *, inputs: int, tokens: int, dim: int, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Draws unit heads ``[trials, d]``, orthonormal tokens ``[trials, n, T, d]`` and unit queries ``[trials,
    n, d]``.
    """

    def normal(*size: int) -> Tensor:
        return torch.randn(trials, *size, generator=generator, dtype=torch.float64)

    v = torch.nn.functional.normalize(normal(dim), dim=-1)
    x = orthonormalise(normal(inputs, dim, tokens)).mT.contiguous()
    return v, x, torch.nn.functional.normalize(normal(inputs, dim), dim=-1)


def check_sizes(tokens: int, dim: int) -> None:
    """Checks that the tokens of an input can be orthonormal.

    Raises:
        ValueError: there are more tokens than dimensions.
    """
    if tokens > dim:
        raise ValueError(
            f"tokens must be at most dim = {dim}, got {tokens}; raise dim, so that they can be orthonormal"
        )


@figure(
    "attention_svm.concave_head",
    source=Source("tarzanagh2023transformers"),
    view=curves(
        "lambda",
        panels=(
            Panel("Tokens that share", COUNT, predicted="predicted"),
            Panel(
                "Error of the attention",
                ERROR,
                lines="lambda",
                x="step",
                axes={"xlabel": "step", "yscale": "log"},
            ),
            Panel(
                "1 − cosine of W to",
                DISTANCE,
                lines=("target", TARGETS),
                axes={"yscale": "log", "ylim": (3e-3, 60)},
            ),
        ),
        xlabel="$\\lambda$",
        log="x",
        caption="{trials} random problems, the same for each λ. Left: means; attention above 0.001; with a "
        "linear head one token has all attention. Middle: medians of the largest difference from the "
        "attention predicted from the scores. Right: medians; a target of zero is left out. Where all "
        "tokens share the attention, W is finite, and 1 − cosine to the prediction falls to rounding, "
        "below the panel.",
        size=(7.0, 3.3),
    ),
    quick={"penalties": (0.2, 0.8), "trials": 20, "steps": 1000},
    check=check_sizes,
)
def concave_head(
    *,
    penalties: tuple[float, ...] = setting((0.1, 0.2, 0.4, 0.8, 1.6), gt=0, help="values of lambda"),
    inputs: int = setting(3, ge=1, help="number n of inputs"),
    tokens: int = setting(4, ge=2, help="number T of tokens per input, orthonormal"),
    dim: int = setting(4, ge=2, help="dimension d of the tokens"),
    trials: int = setting(60, ge=2, help="random problems, the same for each lambda"),
    steps: int = setting(10_000, ge=1, help="steps of descent"),
    rate: float = setting(10.0, gt=0, le=1e6, help="factor of the gradient in a step"),
    seed: int = 0,
) -> Iterator[Reading]:
    r"""Descent with constant steps and the head :math:`h(o) = v^\top o - \lambda\|o\|^2` on orthonormal
    tokens with positive labels.

    This is ``mode='lambda'`` of the released code, which does not run there: labels are positive, but trials
    without a negative label are skipped, and the weights of the head are set on a module without weights. No
    figure of it is published. With orthonormal tokens the best attention has a closed form
    (``sharing.optimal_shares``): :math:`\max((\gamma_t - \tau) / (2\lambda), 0)`. So the number of tokens
    that share attention, the finite part of W and its direction are all predicted from the scores, before any
    training. Some problems end at the best attention on fewer tokens. A token that is lost should not be a
    neighbour of the tokens that share attention: its margin under the direction exceeds one, so its pull
    vanishes against that of the neighbours (local optimality, for several tokens).
    """
    generator = torch.Generator().manual_seed(seed)
    v, x, z = draw(trials, inputs=inputs, tokens=tokens, dim=dim, generator=generator)
    scores = (x @ v[:, None, :, None]).squeeze(-1)
    one = frobenius_max_margins(constraints(x, z, scores.argmax(-1))).W
    for penalty in penalties:
        instance = HeadInstance(x, z, x.new_ones(trials, inputs), head(v, penalty))
        shares, state = optimal_shares(scores, penalty=penalty), start(instance)
        at, median = {"lambda": penalty}, "median over the problems"
        error = scores.new_zeros(trials)
        for step in logarithmic_steps(steps):
            state = plain_descent(instance, state, steps=step - state.step, rate=rate)
            error = (instance.attention(state.W) - shares).abs().amax((-2, -1))
            here = {"at": at, "step": step, "n": trials, "note": median}
            yield reading(ERROR, float(error.median()), reference=(0.0, "limit"), **here)
        attention = instance.attention(state.W)
        kept = attention > SOME_ATTENTION
        on_kept = optimal_shares(scores.masked_fill(~kept, -torch.inf), penalty=penalty)
        restricted = ((attention - on_kept).abs() < CLOSE).all(-1).all(-1)
        parts = generalised_max_margins(x, z, shares, threshold=0.0)
        predicted = parts.predict(state.W)
        count = float((shares > SOME_ATTENTION).sum(-1).double().mean())
        here = {"at": at, "step": steps, "n": trials}
        yield reading(COUNT, float(kept.sum(-1).double().mean()), reference=(count, "theory"), **here)
        here |= {"unit": "share"}
        yield reading(REACHED, float((error < CLOSE).double().mean()), **here)
        yield reading(RESTRICTED, float(restricted.double().mean()), reference=(1.0, "theory"), **here)
        astray = (restricted & (error >= CLOSE)).nonzero().squeeze(-1)
        if len(astray):
            margins = lost_margins(x[astray], z[astray], scores[astray], on_kept[astray], penalty=penalty)
            here |= {"n": len(margins), "reference": (1.0, "theory")}
            yield reading(LOST, float((margins > 1 + NEIGHBOUR_RTOL).double().mean()), **here)
        for name, target in zip(TARGETS, (predicted, parts.direction.W, one, predicted.roll(1, 0))):
            known = target.isfinite().all(-1).all(-1) & (target != 0).any(-1).any(-1)
            distance = 1 - cosine(state.W[known], target[known], dim=(-2, -1))
            yield reading(
                DISTANCE,
                float(np.median(distance)) if len(distance) else None,
                at={"target": name} | at,
                step=steps,
                n=len(distance),
                note=f"{median} in which the target is not zero",
                reason="" if len(distance) else "the target is zero in every problem",
            )

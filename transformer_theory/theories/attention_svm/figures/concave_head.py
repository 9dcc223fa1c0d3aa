"""Descent with the head v^T o - lambda |o|^2, compared with weights that are predicted from the
scores alone.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ....core.experiment import RandomExperiment, setting
from ....core.figure import Panel, curves
from ....core.measurement import Measurement
from ....core.plotting import COLOURS, TINTS
from ....core.sources import Source
from ....maths.linalg import cosine, orthonormalise
from ..builders import constraints
from ..dynamics import HeadInstance, concave_head, plain_descent, start
from ..problem import token_logits
from ..selection import NEIGHBOUR_RTOL
from ..sharing import SOME_ATTENTION, optimal_shares
from ..solvers import frobenius_max_margins, generalised_max_margins
from .long_run import logarithmic_steps

SOURCE = Source("tarzanagh2023transformers")
COUNT = "tokens of an input that keep attention"
ERROR = "largest error of the predicted attention"
REACHED = "share of problems that reach the predicted attention"
RESTRICTED = "share of problems whose attention is optimal on the tokens that keep it"
LOST = "share of lost tokens that are not neighbours"
DISTANCE = "1 - cosine to the target"
MEASURED = {"label": "measured", "linestyle": "", "marker": "x", "markersize": 5, "color": "#000000"}
TARGETS = {  # target -> look of its curve
    "finite part and direction, from the scores": {"label": "finite part and direction", "color": TINTS[0]},
    "direction alone": {"label": "direction alone", "color": TINTS[1]},
    "max-margin of the best tokens": {"label": "one token per input", "color": TINTS[2]},
    "prediction for another problem": {"label": "another problem", "color": COLOURS["null"]},
}
ERROR_AXES = {"xlabel": "step", "yscale": "log"}
DISTANCE_AXES = {"yscale": "log", "ylim": (3e-3, 60)}
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


def distance(W: Tensor, target: Tensor) -> np.ndarray:
    """Returns 1 - cosine of matrices ``[trials, d, d]``, ``[trials]``; NaN where the target is zero or
    missing.
    """
    result = torch.full(W.shape[:1], torch.nan, dtype=torch.float64)
    known = target.isfinite().all(-1).all(-1) & (target != 0).any(-1).any(-1)
    result[known] = 1 - cosine(W[known], target[known], dim=(-2, -1))
    return result.numpy()


def lost_margins(x: Tensor, z: Tensor, scores: Tensor, shares: Tensor, *, penalty: float) -> Tensor:
    r"""Returns the margins, under the direction for ``shares``, of tokens without attention that the head
    would give attention.

    These tokens have a gain :math:`\gamma_t - 2\lambda s_t` above that of the tokens that share the
    attention. A margin is one at the neighbours, and larger at all other tokens.

    Args:
        x, z, scores, shares: tokens, queries, scores and attention of k problems, with a leading dimension k.
    Returns:
        The margins, ``[lost tokens]``; NaN in problems without a solution.
    """
    gain = scores - 2 * penalty * shares
    lost = (shares == 0) & (gain > (shares * gain).sum(-1, keepdim=True) + 1e-9)
    logits = token_logits(x, z, generalised_max_margins(x, z, shares, threshold=0.0).direction.W)
    return (logits.masked_fill(shares == 0, -torch.inf).amax(-1, keepdim=True) - logits)[lost]


@dataclass(frozen=True)
class ConcaveHead(RandomExperiment):
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

    Raises:
        ValueError: there are more tokens than dimensions, or a setting is out of range.
    """

    penalties: tuple[float, ...] = setting((0.1, 0.2, 0.4, 0.8, 1.6), gt=0, help="values of lambda")
    inputs: int = setting(3, ge=1, help="number n of inputs")
    tokens: int = setting(4, ge=2, help="number T of tokens per input, orthonormal")
    dim: int = setting(4, ge=2, help="dimension d of the tokens")
    trials: int = setting(60, ge=2, help="random problems, the same for each lambda")
    steps: int = setting(10_000, ge=1, help="steps of descent")
    rate: float = setting(10.0, gt=0, le=1e6, help="factor of the gradient in a step")

    name = "attention_svm.concave_head"
    sources = (SOURCE,)

    def __post_init__(self):
        super().__post_init__()
        if self.tokens > self.dim:
            raise ValueError(
                f"tokens must be at most dim = {self.dim}, got {self.tokens}; raise dim, so that they can "
                "be orthonormal"
            )

    view = curves(
        "lambda",
        panels=(
            Panel("Tokens that share", COUNT, lines=("quantity", {COUNT: MEASURED}), predicted="predicted"),
            Panel("Error of the attention", ERROR, lines="lambda", x="step", axes=ERROR_AXES),
            Panel("1 − cosine of W to", DISTANCE, lines=("target", TARGETS), axes=DISTANCE_AXES),
        ),
        xlabel="$\\lambda$",
        log="x",
        caption="{trials} random problems, the same for each λ. Left: means; attention above 0.001; with a "
        "linear head one token has all attention. Middle: medians of the largest difference from the "
        "attention predicted from the scores. Right: medians; a target of zero is left out. Where all "
        "tokens share the attention, W is finite, and 1 − cosine to the prediction falls to rounding, "
        "below the panel.",
        size=(7.0, 3.3),
    )

    def measure(self) -> Iterator[Measurement]:
        """Yields, per lambda, errors of attention over the steps; numbers of tokens and distances of W at the
        end.
        """
        sizes = {"inputs": self.inputs, "tokens": self.tokens, "dim": self.dim}
        v, x, z = draw(self.trials, **sizes, generator=self.generator())
        scores = (x @ v[:, None, :, None]).squeeze(-1)
        one = frobenius_max_margins(constraints(x, z, scores.argmax(-1))).W
        for penalty in self.penalties:
            instance = HeadInstance(x, z, x.new_ones(self.trials, self.inputs), concave_head(v, penalty))
            shares = optimal_shares(scores, penalty=penalty)
            at, state = {"lambda": penalty}, start(instance)
            error: Tensor = scores.new_zeros(self.trials)
            here: dict[str, Any] = {}
            for step in logarithmic_steps(self.steps):
                state = plain_descent(instance, state, steps=step - state.step, rate=self.rate)
                error = (instance.attention(state.W) - shares).abs().amax((-2, -1))
                here = {"at": at, "step": step, "n": self.trials}
                note = "median over the problems"
                yield self.row(ERROR, float(error.median()), reference=(0.0, "limit"), note=note, **here)
            attention = instance.attention(state.W)
            kept = attention > SOME_ATTENTION
            on_kept = optimal_shares(scores.masked_fill(~kept, -torch.inf), penalty=penalty)
            restricted = ((attention - on_kept).abs() < CLOSE).all(-1).all(-1)
            parts = generalised_max_margins(x, z, shares, threshold=0.0)
            predicted = parts.predict(state.W)
            count = float((shares > SOME_ATTENTION).sum(-1).double().mean())
            yield self.row(COUNT, float(kept.sum(-1).double().mean()), reference=(count, "theory"), **here)
            yield self.row(REACHED, float((error < CLOSE).double().mean()), unit="share", **here)
            optimal = float(restricted.double().mean())
            yield self.row(RESTRICTED, optimal, reference=(1.0, "theory"), unit="share", **here)
            astray = (restricted & (error >= CLOSE)).nonzero().squeeze(-1)
            if len(astray):
                margins = lost_margins(x[astray], z[astray], scores[astray], on_kept[astray], penalty=penalty)
                share = float((margins > 1 + NEIGHBOUR_RTOL).double().mean())
                here |= {"n": len(margins)}
                yield self.row(LOST, share, reference=(1.0, "theory"), unit="share", **here)
            for name, target in zip(TARGETS, (predicted, parts.direction.W, one, predicted.roll(1, 0))):
                values = distance(state.W, target)
                known = values[np.isfinite(values)]
                yield self.row(
                    DISTANCE,
                    float(np.median(known)) if len(known) else None,
                    at={"target": name} | at,
                    step=self.steps,
                    n=len(known),
                    note="median over the problems in which the target is not zero",
                    reason="" if len(known) else "the target is zero in every problem",
                )

    @classmethod
    def quick(cls) -> "ConcaveHead":
        """Returns a small version: two values of lambda, 20 problems and 1,000 steps, about a second."""
        return cls(penalties=(0.2, 0.8), trials=20, steps=1000)

"""Normalised descent for a million steps, compared with the same descent by automatic differentiation."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ....core.experiment import setting
from ....core.figure import DASHED, RANGE, Panel, Reading, bands, figure, reading
from ....core.plotting import COLOURS, style
from ....core.result import Result
from ....core.sources import Source
from ..builders import constraints
from ..claims.common import direction_error
from ..dynamics import start, trajectory
from ..problem import Instance, cross_attention
from ..solvers import frobenius_max_margins
from .common import ROUNDING_UNIT, logarithmic_steps, median_and_range

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DISTANCE = "1 - cosine to the max-margin solution"
SMALLEST = "smallest 1 - cosine to the max-margin solution"
SLOPE = "slope of the logarithm of the direction error"
TIMES_STEP = "direction error times the step"
EXACT, AUTOGRAD = "exact gradient", "autograd"
EPS = {AUTOGRAD: 0.0, "autograd, eps in the norm": ROUNDING_UNIT}
# step -> median of 1 - cosine at the default sizes, from a separate implementation of the same descent:
# another draw of the data.
KNOWN = {30: 0.41, 100: 0.25, 300: 0.044, 1000: 4.7e-3, 3000: 6.4e-4, 10_000: 6.4e-5}


def by_differentiation(instance: Instance, *, steps: list[int], rate: float, eps: float) -> list[Tensor]:
    """Returns W at ``steps`` of normalised descent from W = 0, with the gradient by autograd through softmax
    and loss.
    """
    W, checkpoints = start(instance).W, []
    for step in range(steps[-1] + 1):
        if step in steps:
            checkpoints.append(W)
        W = W.detach().requires_grad_()
        attention = (instance.tokens @ (instance.query @ W.mT)[..., None]).squeeze(-1).softmax(-1)
        # Trials do not interact, so the gradient of the sum over trials holds the gradient of each trial.
        loss = torch.nn.functional.softplus(-(attention * instance.scores).sum(-1)).mean(-1).sum()
        (gradient,) = torch.autograd.grad(loss, W)
        W = W.detach() - rate * gradient / (torch.linalg.matrix_norm(gradient)[..., None, None] + eps)
    return checkpoints


@style()
def draw(result: Result) -> "Figure":
    """Draws the medians and the errors of the problems, and a line with the slope of 1/t^2."""
    drawn = bands(
        spread=RANGE,
        panels=(
            Panel("1 − cosine to the max-margin solution", DISTANCE, lines="gradient"),
            Panel("Direction error times t", TIMES_STEP, lines="problem", legend=""),
        ),
        log="xy",
        caption="Left: median of {trials} random problems; bands: smallest to largest. Crosses: medians "
        "over other random data, by a separate implementation. Right: one curve per problem; the error is "
        "the distance of W/|W| from the unit max-margin solution, and a level curve means an error like "
        "1/t.",
        size=(7.0, 3.4),
    )(result)
    rows = result.select(quantity=DISTANCE, at={"gradient": EXACT})
    step, value = rows.column("step")[-1], rows.column("value")[-1]
    ends = np.array([min(300, step / 3), step])
    look = {"color": COLOURS["null"], "linestyle": DASHED, "linewidth": 1, "label": "slope of $1/t^2$"}
    drawn.axes[0].plot(ends, 0.25 * value * (step / ends) ** 2, **look)
    drawn.axes[0].legend(loc="lower left")
    return drawn


@figure(
    "attention_svm.long_run",
    source=Source("vasudeva2025implicit"),
    view=draw,
    quick={"trials": 4, "steps": 3000, "naive_steps": 1500},
)
def long_run(
    *,
    inputs: int = setting(6, ge=1, help="number n of inputs"),
    tokens: int = setting(8, ge=2, help="number T of tokens per input"),
    dim: int = setting(10, ge=2, help="dimension d of the tokens"),
    trials: int = setting(8, ge=1, help="random problems"),
    steps: int = setting(1_000_000, ge=2, help="steps of descent"),
    naive_steps: int = setting(20_000, ge=1, help="steps of descent by autograd"),
    rate: float = setting(0.1, gt=0, le=10, help="length of a step"),
    seed: int = 0,
) -> Iterator[Reading | list[Reading]]:
    """Normalised descent on W from W = 0 for a million steps, on eight random problems (n = 6, T = 8, d = 10)
    at once.

    The error of the direction, relative to the max-margin solution of the selected tokens, falls like 1/t, so
    1 - cosine falls like 1/t^2 indefinitely. The same descent by autograd fails near step 1,000: attention
    saturates, the gradient consists of rounding errors, and normalisation scales these to a full step. The
    released runs add the rounding unit to the norm of the gradient, which stops descent there instead.
    """
    generator = torch.Generator().manual_seed(seed)
    instance = cross_attention(inputs=inputs, tokens=tokens, dim=dim, trials=trials, generator=generator)
    measured, early = logarithmic_steps(steps), logarithmic_steps(naive_steps)
    states = list(trajectory(instance, start(instance), steps=measured, rate=rate))
    select = instance.selected(states[-1].W)
    targets = frobenius_max_margins(constraints(instance.tokens, instance.query, select))

    def errors(path: list[Tensor]) -> Tensor:
        """Returns the errors of the solved problems ``[steps, problems]``."""
        return torch.stack([direction_error(W, targets.W)[targets.solved] for W in path])

    exact, at = errors([state.W for state in states]), {"gradient": EXACT}
    note, needs = "median over the problems", ("inputs", "tokens", "dim", "trials", "rate")
    for step, values in zip(measured, exact):
        known = (KNOWN[step], "recomputed") if step in KNOWN else None
        here = {"at": at, "step": step, "note": note, "reference": known, "needs": needs}
        yield median_and_range(DISTANCE, values**2 / 2, **here)
        for problem, value in enumerate((step * values).tolist()):
            yield reading(TIMES_STEP, value, at={"problem": problem}, step=step)
    # Least squares in logarithms over the last two decades of steps; -1 means an error like 1/t.
    numbers = torch.tensor(measured, dtype=torch.float64)
    late = numbers >= steps / 100
    x, y = numbers[late].log(), exact[late].median(-1).values.log()
    slope = float(((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum())
    here = {"at": at, "step": steps, "n": trials, "note": "least squares over the last two decades of steps"}
    yield reading(SLOPE, slope, reference=(-1.0, "limit"), **here)
    for gradient, eps in EPS.items():
        # 1 - cosine is half the squared distance of the unit matrices
        distance = errors(by_differentiation(instance, steps=early, rate=rate, eps=eps)) ** 2 / 2
        here = {"at": {"gradient": gradient}, "note": note}
        for step, values in zip(early, distance):
            yield median_and_range(DISTANCE, values, step=step, **here)
        best = int(distance.median(-1).values.argmin())
        yield median_and_range(SMALLEST, distance[best], step=early[best], **here)

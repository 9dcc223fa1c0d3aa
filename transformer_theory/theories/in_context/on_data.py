r"""Prompts whose inputs are the user's tokens: which step one layer of linear attention should take, and
which step a trained layer takes.

Up to six principal components of the tokens are the inputs, drawn with replacement; labels are linear
functions with new Gaussian weights for each prompt. So the covariance and the moment :math:`Q = E[\|x\|^2 x
x^\top]` are exact, and the best matrix, the best step of plain descent and their risks follow in closed form
(:mod:`.preconditioned`). Then a layer is trained, and its matrix and risk are compared. The statement holds
for any inputs. The data decide how much the best matrix differs from plain descent and from
:math:`\Gamma^{-1}`, which assumes Gaussian inputs.
Source: :cite:t:`zhang2024trained`.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Generator

from ...core.measurement import CORRELATION, Measurement
from ...core.plotting import COLOURS, TINTS, axes, caption, colour, style, text_figure
from ...core.result import Result
from ...core.sources import Source
from ...core.statistics import student_interval
from ...core.table import Arrays
from ...core.theory import OnData, Unsupported
from ...data import TokenData
from ...maths.linalg import cosine
from .inputs import TokenInputs
from .learning import train_attention
from .preconditioned import (
    answers_cosine,
    fourth_moment,
    gamma,
    gaussian_fourth,
    optimal_step,
    preconditioner,
    risk,
)
from .prompts import Prompts, linear_prompts
from .references import NAME, answers_of, one_step

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SOURCE, OWN = (
    Source("zhang2024trained", "Theorem 4.1", "second-hand"),
    Source("zhang2024trained", status="own"),
)
COSINE = "cosine of a trained layer's answers and the best step"
MATRIX = "cosine of a trained layer's matrix and the best one"
TRAINED_RISK, BEST_RISK, PLAIN_RISK = (
    "risk of a trained layer",
    "risk of the best preconditioned step",
    "risk of the best plain step",
)
PLAIN, GAUSSIAN = (
    "cosine of plain descent and the best matrix",
    "cosine of the matrix for Gaussian inputs and the best one",
)
STEP, INVERSE = "best step of plain descent", "cosine of the inverse covariance and the best matrix"
KURTOSIS = "distance of the fourth moment from that of a Gaussian, relative"
N, STEPS, BATCH, TESTED, CLOSE = 20, 500, 128, 20_000, 0.1


def read(data: TokenData) -> TokenInputs | Unsupported:
    """Takes the principal components of all tokens; they must vary."""
    inputs = TokenInputs.of(data.tokens)
    return Unsupported("needs tokens that differ") if inputs is None else inputs


def measure(problem: TokenInputs, generator: Generator, *, draws: int) -> Iterator[Measurement | Arrays]:
    """Yields the closed forms for the inputs and what a trained layer does.

    Args:
        problem: result of :func:`read`.
        generator: draws initial weights and prompts.
        draws: not used: the quantities hold for any data, and noise stands beside them.
    """
    covariance, fourth = problem.covariance, fourth_moment(problem.points)
    # The covariance is diagonal up to rounding, because the points are principal components.
    covariance = torch.diag(covariance.diagonal())
    d = len(covariance)
    best, step = preconditioner(covariance, N, fourth=fourth), optimal_step(covariance, N, fourth=fourth)
    plain = step * torch.eye(d, dtype=torch.float64)
    gaussian = gaussian_fourth(covariance)
    distance = float((fourth - gaussian).norm() / gaussian.norm())
    yield Measurement(
        NAME,
        "assumption",
        KURTOSIS,
        distance,
        verdict="holds" if distance <= CLOSE else "fails",
        n=len(problem.points),
        source=SOURCE,
    )

    def draw(generator: Generator, n: int = BATCH) -> Prompts:
        return linear_prompts(n, N, problem.draw(), generator=generator)

    model = train_attention(draw, d, steps=STEPS, rate=0.03, generator=generator)
    found, prompts = model.preconditioner(), draw(generator, TESTED)
    note = (
        f"one layer of linear attention, {STEPS} batches of prompts with {N} tokens in {d} principal "
        "components"
    )
    value = answers_cosine(found, best, covariance, N, fourth=fourth)
    yield _row(
        COSINE, value, predicted=1.0, bounds=CORRELATION, n=len(problem.points), note=note, source=SOURCE
    )
    yield _row(
        MATRIX,
        float(cosine(found, best)),
        predicted=1.0,
        bounds=CORRELATION,
        note="it counts directions in which the tokens hardly vary",
        source=SOURCE,
    )
    for name, other in (
        (PLAIN, plain),
        (GAUSSIAN, torch.linalg.inv(gamma(covariance, N))),
        (INVERSE, torch.linalg.inv(covariance)),
    ):
        yield _row(name, float(cosine(other, best)), bounds=CORRELATION)
    yield _row(STEP, step)
    answers = (
        (TRAINED_RISK, answers_of(model, prompts)),
        (BEST_RISK, one_step(prompts, best)),
        (PLAIN_RISK, one_step(prompts, plain)),
    )
    for name, answer in answers:
        errors = (answer - prompts.target).square()
        predicted = risk(plain if name == PLAIN_RISK else best, covariance, N, fourth=fourth)
        columns = {"interval": student_interval(errors.tolist()), "interval_kind": "over samples"}
        yield _row(name, float(errors.mean()), predicted=predicted, n=TESTED, **columns)
    diagonals = {
        "best": best,
        "trained": found,
        "plain": plain,
        "gaussian": torch.linalg.inv(gamma(covariance, N)),
    }
    arrays = {name: matrix.diagonal().numpy() for name, matrix in diagonals.items()} | {
        "eigenvalues": covariance.diagonal().numpy()
    }
    yield Arrays({f"{NAME}/{name}": np.array(values) for name, values in arrays.items()})


def _row(quantity: str, value: float, **columns: Any) -> Measurement:
    return Measurement(NAME, "on data", quantity, value, **{"source": OWN, "scope": "any data", **columns})


@style()
def plot(result: Result) -> "Figure":
    """Draws the diagonal of the trained layer's matrix beside the closed form, against the eigenvalues of the
    covariance.
    """
    if f"{NAME}/best" not in result.arrays:
        reasons = [row.reason for row in result.select(theory=NAME, kind="on data") if row.value is None]
        return text_figure(f"Learning in context: {reasons[0] if reasons else 'nothing was measured'}")
    figure, (ax,) = axes(width=6.0, height=3.2)
    x = result.arrays[f"{NAME}/eigenvalues"]
    lines = {
        "best": ("best matrix", colour(NAME), "-"),
        "gaussian": ("for Gaussian inputs", "#3F4751", ":"),
        "plain": ("plain descent", COLOURS["null"], "--"),
    }
    for name, (label, tint, how) in lines.items():
        ax.plot(x, result.arrays[f"{NAME}/{name}"], color=tint, linestyle=how, label=label)
    ax.plot(x, result.arrays[f"{NAME}/trained"], "o", color=TINTS[2], label="trained layer", zorder=5)
    ax.set(xscale="log", xlabel="eigenvalue of the tokens' covariance", ylabel="diagonal of G")
    ax.legend()
    caption(
        figure,
        "One layer of linear attention answers x' G b; b is the mean of y x over the examples of the prompt.",
    )
    return figure


ON_DATA = OnData(read=read, measure=measure, headline=COSINE, plot=plot)

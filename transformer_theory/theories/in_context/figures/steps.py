"""What one trained layer of linear attention learns: its matrix over training, and its risk against the
number of examples.

Source: :cite:t:`zhang2024trained`; the curves of plain descent and the noise are the library's own.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ....core.experiment import setting
from ....core.figure import Panel, Reading, curves, figure, reading
from ....core.result import Result
from ....core.sources import Source
from ....maths.linalg import cosine
from ....training.fitting import at_steps
from ..learning import train_attention
from ..preconditioned import optimal_step, preconditioner, risk
from ..prompts import Prompts, gaussian_inputs, linear_prompts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COSINE, RISK = "cosine of the trained layer's matrix", "risk"
BEST, PLAIN, TRAINED = "best step", "best plain step", "trained layer"
BATCH, POINTS = 256, 20


def draw(result: Result) -> "Figure":
    """Draws the cosines for the middle number of examples over training, and the risks."""
    N = middle(result.settings["examples"])
    looks = {BEST: {}, PLAIN: {}, TRAINED: {"linestyle": ""}}
    look = {"xlabel": "examples N", "ylabel": "mean squared error", "xscale": "log", "ylim": (0, None)}
    view = curves(
        "step",
        panels=(
            Panel(f"Cosines of the trained layer's matrix, N = {N}", COSINE, {"N": N}, "matrix"),
            Panel("Risk", RISK, lines=("matrix", looks), axes=look, x="N"),
        ),
        caption="All risks are closed forms, also that of the trained layer's matrix (dots).",
    )
    return view(result)


def middle(examples: list[int] | tuple[int, ...]) -> int:
    """Returns the number of examples whose training is recorded."""
    return examples[len(examples) // 2]


@figure(
    "in_context.steps",
    source=Source("zhang2024trained", "Theorem 4.1", "second-hand"),
    view=draw,
    quick={"examples": (5, 20), "steps": 100},
)
def steps(
    *,
    spectrum: tuple[float, ...] = setting(
        (2.0, 1.0, 0.5, 0.25, 0.1), gt=0, le=100, help="eigenvalues of the inputs' covariance"
    ),
    noise: float = setting(0.0, ge=0, le=100, help="variance of the noise"),
    examples: tuple[int, ...] = setting(
        (10, 20, 40), ge=1, le=1000, help="numbers of examples; the first panel has the middle one"
    ),
    steps: int = setting(1500, ge=20, le=100_000, help="steps of training"),
    seed: int = 0,
) -> Iterator[Reading]:
    """Cosines of a trained layer's matrix with three candidates over training, and risks against the number
    of examples.
    """
    eigenvalues, generator = torch.tensor(spectrum, dtype=torch.float64), torch.Generator().manual_seed(seed)
    covariance, eye = torch.diag(eigenvalues), torch.eye(len(spectrum), dtype=torch.float64)
    stops = sorted({round(x) for x in np.linspace(0, steps, POINTS)})
    for N in examples:
        best = preconditioner(covariance, N, noise=noise)
        plain = optimal_step(covariance, N, noise=noise) * eye
        targets = {BEST: best, "inverse covariance": torch.linalg.inv(covariance), "plain descent": eye}
        matrices: dict[int, Tensor] = {}

        def draw_prompts(generator: torch.Generator, N: int = N) -> Prompts:
            inputs = gaussian_inputs(eigenvalues)
            return linear_prompts(BATCH, N, inputs, noise=noise, generator=generator)

        def record(step: int, model, matrices=matrices) -> None:
            matrices[step] = model.preconditioner().clone()

        callbacks = (at_steps(stops, record, limit=steps),) if middle(examples) == N else ()
        options = {"steps": steps, "generator": generator, "callbacks": callbacks}
        found = train_attention(draw_prompts, len(spectrum), **options).preconditioner()
        for step, matrix in {**matrices, steps: found}.items():
            for name, target in targets.items():
                value = float(cosine(matrix, target))
                yield reading(COSINE, value, at={"matrix": name, "N": N}, step=step)
        risks = [risk(G, covariance, N, noise=noise) for G in (best, plain, found)]
        for name, value in zip((BEST, PLAIN, TRAINED), risks):
            predicted = risks[0] if name == TRAINED else None
            yield reading(RISK, value, predicted=predicted, at={"matrix": name, "N": N})

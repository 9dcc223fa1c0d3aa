r"""What random heads do to the tokens of a data set, and what the theory says without running them.

Tokens are scaled to a root mean square norm of :math:`\sqrt d`. A Gaussian W then gives scores whose standard
deviation within a row is about .3, and the headline is the contraction of 16 such heads, as root mean square
over heads and sequences. The prediction needs the tokens' mean cosine, their dimension and the measured
variance of the scores only (:mod:`.initialisation`). It holds for any data; beside it stands the number on
noise.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from ...core.measurement import CORRELATION, Measurement
from ...core.plotting import COLOURS, axes, caption, colour, style, text_figure
from ...core.result import Result
from ...core.sources import Source
from ...core.statistics import fixed_generator, student_interval
from ...core.table import Arrays
from ...core.theory import OnData, Unsupported
from ...data.tokens import TokenData
from ...metrics.attention import row_deviation
from .heads import contraction
from .initialisation import contraction_of_tokens, dimension, mean_cosine
from .residuals import residual, weights

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME, SOURCE = "collapse", Source("giorlandino2026two", status="own")
HEADLINE, COSINE, DIMENSION = (
    "contraction of random heads",
    "mean cosine of the tokens of a sequence",
    "dimension of the tokens of a sequence",
)
EQUIANGULAR = "spread of the tokens' norms, share of their mean"
SEQUENCES, TOKENS, HEADS, DEVIATION = 128, 256, 16, 0.3


@dataclass(frozen=True)
class Sequences:
    """Sequences with at least two different tokens, scaled to root mean square norm root d, ``[n, T, d]``
    float64.
    """

    tokens: Float[Tensor, "n T d"]


def read(data: TokenData) -> Sequences | Unsupported:
    """Takes up to 128 sequences whose tokens differ, and of each up to 256 tokens, evenly spaced."""
    tokens = data.tokens
    if tokens.shape[1] < 2:
        return Unsupported("needs sequences of at least two tokens")
    tokens = tokens[:, torch.linspace(0, tokens.shape[1] - 1, min(tokens.shape[1], TOKENS)).long()].double()
    size = tokens.abs().amax((1, 2), keepdim=True)
    spread = residual(tokens / torch.where(size > 0, size, 1.0)).square().sum((1, 2))
    usable = torch.isfinite(size[:, 0, 0]) & (spread > 1e-12)
    tokens = tokens[usable]
    if not len(tokens):
        return Unsupported("needs sequences with two different tokens")
    tokens = tokens[torch.randperm(len(tokens), generator=fixed_generator())[:SEQUENCES]]
    tokens = tokens / tokens.abs().amax((1, 2), keepdim=True)
    return Sequences(tokens * (tokens.shape[-1] / tokens.square().sum(-1).mean(-1))[:, None, None] ** 0.5)


def measure(problem: Sequences, generator: Generator, *, draws: int) -> Iterator[Measurement | Arrays]:
    """Yields the contraction of random heads with its prediction, and the geometry of the tokens.

    Args:
        problem: result of :func:`read`.
        generator: draws the heads.
        draws: not used: the statement holds for any data, and noise of the same shape stands beside it.
    """
    x = problem.tokens
    n, T, d = x.shape
    rho, D = mean_cosine(x), dimension(x)
    found, formula = [], []
    for _ in range(HEADS):
        W = torch.randn(d, d, generator=generator, dtype=torch.float64) / d
        scores = x @ W @ x.mT
        # One factor for all sequences: the mean variance within a row becomes DEVIATION^2.
        factor = DEVIATION / float(row_deviation(scores).square().mean()) ** 0.5
        v = (factor * row_deviation(scores)).square().mean(-1)
        found.append(contraction(weights(x, factor * W), x).square())
        formula.append(contraction_of_tokens(v, rho, T, D).square())
    measured, predicted = torch.stack(found), torch.stack(formula)  # squares, [heads, n]
    squares = student_interval(measured.mean(1).tolist())
    assert squares is not None
    ends = (max(squares[0], 0.0) ** 0.5, squares[1] ** 0.5)
    columns = {"scope": "any data", "n": n, "source": SOURCE}
    yield Measurement(
        NAME,
        "on data",
        HEADLINE,
        float(measured.mean()) ** 0.5,
        predicted=float(predicted.mean()) ** 0.5,
        side="==",
        interval=ends,
        interval_kind="over heads",
        note="share of the differences between tokens that attention with random weights keeps, score "
        f"deviation {DEVIATION}",
        **columns,
    )
    yield Measurement(NAME, "on data", COSINE, float(rho.mean()), bounds=CORRELATION, **columns)
    yield Measurement(
        NAME, "on data", DIMENSION, float(D.mean()), note=f"of {d} coordinates and {T} tokens", **columns
    )
    norms = x.norm(dim=-1)
    spread = float((norms.std(-1, correction=0) / norms.mean(-1)).mean())
    verdict = "holds" if spread <= 0.05 else "fails"
    yield Measurement(
        NAME, "assumption", EQUIANGULAR, spread, op="<=", threshold=0.05, verdict=verdict, source=SOURCE
    )
    yield Arrays(
        {
            f"{NAME}/measured": measured.mean(0).sqrt().numpy(),
            f"{NAME}/predicted": predicted.mean(0).sqrt().numpy(),
        }
    )


@style()
def plot(result: Result) -> "Figure":
    """Draws measured against predicted contraction, one point per sequence."""
    if f"{NAME}/measured" not in result.arrays:
        reasons = [row.reason for row in result.select(theory=NAME, kind="on data") if row.value is None]
        return text_figure(f"Collapse: {reasons[0] if reasons else 'nothing was measured'}")
    measured, predicted = (result.arrays[f"{NAME}/{name}"] for name in ("measured", "predicted"))
    figure, (ax,) = axes(width=4.4, height=3.6)
    ends = [0.0, 1.05 * max(float(measured.max()), float(predicted.max()), 1e-9)]
    ax.plot(ends, ends, color=COLOURS["null"], linestyle=":")
    ax.plot(predicted, measured, ".", color=colour(NAME))
    ax.set(xlabel="predicted contraction", ylabel="measured contraction")
    caption(
        figure,
        f"Root mean square of {HEADS} random heads on each sequence, score deviation {DEVIATION}; dotted: "
        "equal.",
    )
    return figure


ON_DATA = OnData(read=read, measure=measure, headline=HEADLINE, plot=plot)

r"""The user's sequences as particles: do their tokens cluster, and where does SA take them?

Each sequence has its tokens' directions as a start (at most :data:`MAX_SEQUENCES` sequences and
:data:`MAX_POSITIONS` positions; tokens that are zero have no direction and are left out). The headline is the
within-less-between cosine as a share of its largest value (:mod:`.within_between`). Its null permutes the
sequences at each position, so positions and a common direction are in it, and on noise it is at chance.
Beside it stands the number of clusters of SA at time :data:`TIME` and beta = :data:`BETA`, with the same
null; sequences whose tokens are alike should have fewer. The assumption of the theorem on one cluster, tokens
in an open half-space, is measured. Features of networks are not read: attention mixes tokens, and on noise
they have something in common as well. Source: :cite:t:`geshkovski2025mathematical`; the quantities are our
own.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Generator, Tensor

from ...core.measurement import CORRELATION, Measurement, Null, present
from ...core.plotting import COLOURS, axes, caption, colour, style, text_figure
from ...core.result import Result
from ...core.sources import Source
from ...core.statistics import BAND_DRAWS, evenly_spaced, fixed_generator
from ...core.table import Arrays
from ...core.theory import OnData, Unsupported
from ...data.tokens import TokenData
from .clusters import count_clusters, in_half_space
from .dynamics import attention, flow, tangent, unit
from .in_networks import DIFFERENCE, SHARE, why_not
from .within_between import PERMUTED, Sums, directions, pair_sums, position_permutations, shuffled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME, SOURCE = "particles", Source("geshkovski2025mathematical", status="own")
CLUSTERS, HALF_SPACE = "clusters of the flow, mean over sequences", "tokens lie in an open half-space"
MAX_SEQUENCES, FLOWING, MAX_POSITIONS, BETA, TIME = 512, 24, 64, 9.0, 5.0
TIMES = tuple(TIME * k / 10 for k in range(11))
MISSING = -1e9  # added to the scores of missing tokens
MIXED = (
    "attention mixes tokens, so features are not at chance on noise; the quantity in the network has a null "
    "that contains this"
)


@dataclass(frozen=True, eq=False)
class Particles:
    """Directions of the tokens, zero where there is none, ``[n, T, d]``, and which tokens have one, ``[n,
    T]``.
    """

    u: Float[Tensor, "n T d"]
    valid: Bool[Tensor, "n T"]


def read(data: TokenData) -> Particles | Unsupported:
    """Takes up to 512 sequences and 64 evenly spaced positions; needs two sequences with two tokens that have
    a direction.
    """
    n, T, _ = data.tokens.shape
    chosen = torch.randperm(n, generator=fixed_generator())[:MAX_SEQUENCES]
    places = evenly_spaced(T, MAX_POSITIONS)
    u, valid = directions(data.tokens[chosen][:, places].double())
    sums = pair_sums(u, valid)
    reason = why_not(sums, float(valid.sum()))
    return Unsupported(f"not measured: {reason}") if reason else Particles(u, valid)


def field(
    X: Float[Tensor, "*batch n d"], *, beta: float, valid: Bool[Tensor, "*batch n"]
) -> Float[Tensor, "*batch n d"]:
    """Velocity of SA if only some tokens are present; the others have weight zero and do not move."""
    X = unit(X)
    if bool(valid.all()):
        return tangent(X, attention(X, beta=beta) @ X)
    scores = beta * (X @ X.mT) + MISSING * (~valid[..., None, :]).double()
    return tangent(X, torch.softmax(scores, -1) @ X) * valid[..., None]


def flowed(problem: Particles) -> Float[Tensor, "times n T d"]:
    """Moves the sequences by SA to the times :data:`TIMES`."""
    return flow(problem.u, partial(field, beta=BETA, valid=problem.valid), times=TIMES, tolerance=1e-4)


def mean_cosines(X: Float[Tensor, "times n T d"], valid: Bool[Tensor, "n T"]) -> np.ndarray:
    """Returns the mean cosine over the pairs of present tokens at each time, ``[times]``."""
    count = valid.sum(1).double()
    X = X * valid[..., None]
    return (
        (X.sum(2).square().sum((1, 2)) - X.square().sum((1, 2, 3))) / (count.square() - count).sum()
    ).numpy()


def clusters(X: Float[Tensor, "n T d"], valid: Bool[Tensor, "n T"]) -> float:
    """Returns the mean number of clusters of the sequences that have tokens."""
    return float(count_clusters(X, valid=valid)[valid.any(1)].double().mean())


def measure(problem: Particles, generator: Generator, *, draws: int) -> Iterator[Measurement | Arrays]:
    """Yields the within-less-between cosine, the clusters of the flow, and the assumption.

    Args:
        problem: result of :func:`read`.
        generator: not used: the subset and the permutations are shared by all seeds.
        draws: number of null draws; the flow has at most :data:`~...core.statistics.BAND_DRAWS`.
    """
    u, valid = problem.u, problem.valid
    sums = pair_sums(u, valid, draws=draws)
    left = int(valid.numel() - valid.sum())
    note = f"{left} of {valid.numel()} tokens have no direction" if left else ""
    columns = {"n": len(u), "source": SOURCE, "side": ">=", "note": note}
    yield Measurement(
        NAME,
        "on data",
        SHARE,
        sums.share,
        nulls=present(_null(sums, float(sums.variance[0] / sums.variance[1]))),
        bounds=CORRELATION,
        **columns,
    )
    yield Measurement(
        NAME,
        "on data",
        DIFFERENCE,
        sums.difference,
        nulls=present(_null(sums, 1.0)),
        bounds=(-2.0, 2.0),
        **columns,
    )
    some = Particles(u[:FLOWING], valid[:FLOWING])
    moved = flowed(some)
    chance, curves = [], []
    for order in position_permutations(len(some.u), u.shape[1], min(draws, BAND_DRAWS)):
        exchanged = Particles(shuffled(some.u, order), shuffled(some.valid, order))
        after = flowed(exchanged)
        curves.append(mean_cosines(after, exchanged.valid))
        chance.append(clusters(after[-1], exchanged.valid))
    columns = {"n": len(some.u), "source": SOURCE}
    null = Null(PERMUTED, tuple(chance)) if chance else None
    yield Measurement(
        NAME,
        "on data",
        CLUSTERS,
        clusters(moved[-1], some.valid),
        nulls=present(null),
        side="<=",
        note=f"SA, beta {BETA:g}, time {TIME:g}",
        **columns,
    )
    within = [in_half_space(x[present]) for x, present in zip(some.u, some.valid) if bool(present.any())]
    share = sum(within) / len(within)
    verdict = "holds" if share == 1 else "fails"
    yield Measurement(
        NAME,
        "assumption",
        HALF_SPACE,
        share,
        unit="share",
        verdict=verdict,
        op=">=",
        threshold=1.0,
        **columns,
    )
    yield Arrays(
        {
            f"{NAME}/times": np.array(TIMES),
            f"{NAME}/cosine": mean_cosines(moved, some.valid),
            f"{NAME}/permuted": np.array(curves).reshape(-1, len(TIMES)),
            f"{NAME}/counts": count_clusters(moved[-1], valid=some.valid).numpy(),
        }
    )


def _null(sums: Sums, scale: float) -> Null | None:
    """Returns the null of D / scale; None without draws."""
    return Null(PERMUTED, tuple(draw / scale for draw in sums.chance)) if len(sums.draws) else None


@style()
def plot(result: Result) -> "Figure":
    """Draws the mean cosine over the time of the flow beside permuted sequences, and the clusters at
    its end.
    """
    if f"{NAME}/cosine" not in result.arrays:
        reasons = [row.reason for row in result.select(theory=NAME, kind="on data") if row.value is None]
        return text_figure(f"Particles: {reasons[0] if reasons else 'nothing was measured'}")
    figure, (left, right) = axes(1, 2, width=7.0, height=2.8)
    times, curves, counts = (result.arrays[f"{NAME}/{name}"] for name in ("times", "permuted", "counts"))
    if len(curves):
        left.fill_between(
            times,
            curves.min(0),
            curves.max(0),
            color=COLOURS["null"],
            alpha=0.3,
            linewidth=0,
            label="permuted sequences",
        )
    left.plot(times, result.arrays[f"{NAME}/cosine"], color=colour(NAME), label="sequences")
    left.set(xlabel="time", ylabel="mean cosine within a sequence", ylim=(None, 1.02))
    left.legend()
    values, numbers = np.unique(counts, return_counts=True)
    right.bar(values, numbers, color=colour(NAME), width=0.7)
    right.set(xlabel=f"clusters at time {TIME:g}", ylabel="sequences")
    caption(
        figure,
        f"SA from the directions of the tokens, beta = {BETA:g}. Grey: tokens of other sequences at the "
        "same positions.",
    )
    return figure


ON_DATA = OnData(read=read, measure=measure, headline=SHARE, plot=plot, not_features=MIXED)

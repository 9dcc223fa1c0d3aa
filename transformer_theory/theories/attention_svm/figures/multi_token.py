"""Descent with a one-layer network as head, which shares attention among tokens, against the weights that the theory predicts."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from ....core.experiment import RandomExperiment, setting, sweep
from ....core.measurement import Arrays, Measurement
from ....core.plotting import COLOURS, axes, caption, style
from ....core.result import Result
from ....core.sources import Source
from ....core.statistics import clopper_pearson
from ....maths.linalg import cosine
from ..builders import constraints
from ..dynamics import HeadInstance, random_start, relu_head, trajectory
from ..sharing import NO_ATTENTION, SOME_ATTENTION, least_push, settled, shared
from ..solvers import frobenius_max_margins, generalised_max_margins
from .common import NAME, arrays_of, figure_row, mark, references

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SOURCE = Source("tarzanagh2023transformers")
ACCEPTED, DISTANCE = "share of trials accepted", "1 - cosine to the target"
SHARED = "share of accepted trials that share attention"
ALL_PUSHED = "share of accepted trials in which every masked token is pushed away"
MEDIAN_DISTANCE = "median of 1 - cosine to the prediction"
TARGETS = {"prediction": "finite part and direction", "direction": "direction alone", "one token": "max-margin of the top tokens"}
PUBLISHED = {4: (0.034, 0.07, 0.155), 6: (0.017, 0.043, 0.14), 8: (0.011, 0.015, 0.135), 10: (0.0055, 0.0085, 0.12)}  # read off the figure
ROUNDING_UNIT = torch.finfo(torch.float64).eps
MIN_PUSH = 1e-3  # slope of the head below which a token is not pushed away; gains are of order one
CHUNK = 500  # trials that descend together
LABELS = ("finite part and direction", "direction alone", "one token per input")
TINTS = (COLOURS["attention_svm"], COLOURS["scan_snap"], COLOURS["null"])
DIM_TINTS = (COLOURS["attention_svm"], COLOURS["scan_snap"], COLOURS["rate_reduction"], COLOURS["crate"])


def draw_trials(seeds: range, *, inputs: int, tokens: int, dim: int) -> HeadInstance:
    """The published data of these seeds: hidden weights, tokens, labels and queries, drawn in single precision in this order.

    As in the published run, seeds whose labels are all positive are dropped: the head is never negative, so every selection fits them.
    """
    drawn = []
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        V = torch.randn(dim, dim, generator=generator)
        x = torch.nn.functional.normalize(torch.randn(inputs, tokens, dim, generator=generator), dim=-1)
        Y = 2.0 * (torch.randn(inputs, generator=generator) > 0) - 1
        z = torch.nn.functional.normalize(torch.randn(inputs, dim, generator=generator), dim=-1)
        if bool((Y < 0).any()):
            drawn.append((V / V.norm(), x, Y, z))
    V, x, Y, z = (torch.stack(part).double() for part in zip(*drawn))
    return HeadInstance(x, z, Y, relu_head(V))


def descend(
    seeds: range, dim: int, inputs: int, tokens: int, steps: int, every: int, rate: float, eps: float, start: int
) -> dict[str, np.ndarray]:
    """Runs the trials of these seeds and keeps those that the published rule accepts.

    Returns:
        ``tried`` [1], the number of trials, and for the k accepted trials: ``apart`` [k, checkpoints, 3], 1 - cosine of W to the three
        targets; ``masked`` [k], the largest attention on a token outside the sets; ``several`` [k], whether some input shares its
        attention; ``pushed`` [k], whether the head pushes every token outside the sets away.
    """
    instance = draw_trials(seeds, inputs=inputs, tokens=tokens, dim=dim)
    begin = random_start(instance, generator=torch.Generator().manual_seed(start * 1_000_003 + seeds.start))
    states = list(trajectory(instance, begin, steps=range(every, steps + 1, every), rate=rate, eps=eps))
    attention = instance.attention(states[-1].W)
    clear, tried = settled(attention).nonzero().squeeze(-1), np.array([len(attention)])
    if not len(clear):
        empty = {name: np.zeros(0, dtype=bool) for name in ("masked", "several", "pushed")}
        return {"tried": tried, "apart": np.zeros((0, len(states), len(TARGETS)))} | empty
    x, z, s = instance.tokens[clear], instance.query[clear], attention[clear]
    general, single = generalised_max_margins(x, z, s, threshold=SOME_ATTENTION), frobenius_max_margins(constraints(x, z, s.argmax(-1)))
    solved = general.direction.solved & general.finite.solved & single.solved  # pyright: ignore[reportAttributeAccessIssue]
    apart = []
    for state in states:
        W = state.W[clear]
        targets = (general.predict(W), general.direction.W, single.W)
        apart.append(torch.stack([1 - cosine(W[solved], target[solved], dim=(-2, -1)) for target in targets], -1))
    accepted = clear[solved]
    return {
        "tried": tried,
        "apart": torch.stack(apart, 1).numpy(),
        "masked": s[solved].masked_fill(s[solved] > NO_ATTENTION, 0.0).flatten(1).amax(-1).numpy(),
        "several": shared(attention[accepted]).numpy(),
        "pushed": (least_push(instance, states[-1].W)[accepted] > MIN_PUSH).numpy(),
    }


@dataclass(frozen=True)
class MultiToken(RandomExperiment):
    r"""Normalised descent with the head :math:`h(o) = 1^\top \max(V^\top o, 0)` against three predictions of the direction of W.

    Attention may stay on several tokens. The prediction is then a finite part plus a multiple of a direction. It is compared with the
    direction alone, and with the max-margin solution that scores each input's top token above all others. A trial counts only if it has
    settled: no token has between 1e-6 and 1e-3 of the attention, and some token has less. The share of settled trials is shown; it falls
    with the dimension. The prediction fails where the head is flat at a masked token and so does not push it away; these trials are plotted
    separately. ``eps`` is added to the gradient's norm, as published; with 0 descent is exact and goes farther.

    Raises:
        ValueError: ``every`` is more than ``steps``; or a setting is out of range.
    """

    dims: tuple[int, ...] = setting((4, 6, 8, 10), ge=1, help="dimensions d of the tokens")
    inputs: int = setting(3, ge=1, help="number n of inputs")
    tokens: int = setting(4, ge=2, help="number T of tokens per input")
    trials: int = setting(4000, ge=1, help="random problems for each dimension")
    steps: int = setting(2000, ge=1, help="steps of descent")
    every: int = setting(100, ge=1, help="steps between two measurements")
    rate: float = setting(0.1, gt=0, le=1e6, help="length of a step")
    eps: float = setting(ROUNDING_UNIT, ge=0, le=1, help="added to the norm of the gradient; 0 is exact")

    name = "attention_svm.multi_token"
    sources = (SOURCE,)

    def __post_init__(self):
        super().__post_init__()
        if self.every > self.steps:
            raise ValueError(f"every must be at most steps = {self.steps}, got {self.every}; lower every, or raise steps")

    def measure(self) -> Iterator[Measurement | Arrays]:
        """Rows of each dimension: share of trials accepted, and mean distances at the end; arrays with those of every accepted trial."""
        fixed = {name: getattr(self, name) for name in ("inputs", "tokens", "steps", "every", "rate", "eps")} | {"start": self.seed}
        parts = [range(first, min(first + CHUNK, self.trials + 1)) for first in range(1, self.trials + 1, CHUNK)]
        outcomes = sweep(descend, [{"seeds": seeds, "dim": d, **fixed} for d in self.dims for seeds in parts])
        stored: dict[str, np.ndarray] = {
            f"{NAME}/steps": np.arange(self.every, self.steps + 1, self.every),
            f"{NAME}/dims": np.array(self.dims),
        }
        accepted, tried = [], []
        for number, d in enumerate(self.dims):
            chunks = outcomes[number * len(parts) : (number + 1) * len(parts)]
            joined = {name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]}
            accepted.append(len(joined["apart"]))
            tried.append(int(joined["tried"].sum()))
            stored |= {f"{NAME}/{name}_{d}": joined[name] for name in ("apart", "masked", "several", "pushed")}
            yield from self._rows(d, joined, accepted[-1], tried[-1])
        low, high = clopper_pearson(accepted, tried)
        share = np.array(accepted) / np.array(tried)
        yield Arrays(stored | {f"{NAME}/accepted": np.array(accepted), f"{NAME}/share": share, f"{NAME}/low": low, f"{NAME}/high": high})

    def _rows(self, d: int, joined: dict[str, np.ndarray], accepted: int, tried: int) -> Iterator[Measurement]:
        low, high = clopper_pearson(accepted, tried)
        yield figure_row(
            ACCEPTED,
            accepted / tried,
            SOURCE,
            unit="share",
            setting=f"d={d}",
            n=tried,
            interval=(float(low), float(high)),
            interval_kind="over samples",
            note="some labels are negative in all trials",
        )
        if not accepted:
            return
        comparable = self.at_defaults("inputs", "tokens", "trials", "steps", "rate", "eps")
        published = PUBLISHED.get(d) if comparable else None
        for number, (target, note) in enumerate(TARGETS.items()):
            values = joined["apart"][:, -1, number]
            error = values.std() / max(accepted - 1, 1) ** 0.5
            yield figure_row(
                DISTANCE,
                float(values.mean()),
                SOURCE,
                reference=None if published is None else (published[number], "figure"),
                setting=f"{target}, d={d}",
                step=self.steps,
                n=accepted,
                note=f"{note}: mean over accepted trials, standard error {error:.4f}",
            )
        pushed, ends = joined["pushed"], joined["apart"][:, -1, 0]
        yield figure_row(SHARED, float(joined["several"].mean()), SOURCE, unit="share", setting=f"d={d}", n=accepted)
        yield figure_row(ALL_PUSHED, float(pushed.mean()), SOURCE, unit="share", setting=f"d={d}", n=accepted)
        for variant, trials in (("masked tokens pushed away", pushed), ("masked tokens not all pushed away", ~pushed)):
            if trials.any():
                median = float(np.median(ends[trials]))
                yield figure_row(MEDIAN_DISTANCE, median, SOURCE, setting=f"{variant}, d={d}", n=int(trials.sum()))

    @style()
    def plot(self, result: Result) -> "Figure":
        """Distance of W to three predictions against the dimension, the share of accepted trials, distance against leftover attention."""
        a = arrays_of(result)
        dims = [int(d) for d in a["dims"]]
        figure, (left, middle, right) = axes(1, 3, width=7.0, height=3.3)
        shown = [number for number, count in enumerate(a["accepted"]) if count]
        for target, (label, tint) in enumerate(zip(LABELS, TINTS)):
            ends = [a[f"apart_{dims[number]}"][:, -1, target] for number in shown]
            error = [end.std() / max(len(end) - 1, 1) ** 0.5 for end in ends]
            left.errorbar([dims[n] for n in shown], [end.mean() for end in ends], error, color=tint, marker="o", label=label, capsize=2)
        known = references(result.table.select(quantity=DISTANCE))
        places = [(d, known.select(setting=f"{target}, d={d}")) for target in TARGETS for d in dims]
        mark(left, [(d, row.predicted, row.basis) for d, rows in places for row in rows])
        left.set_yscale("log")
        left.set_ylim(top=left.get_ylim()[1] * 8)
        left.set_xticks(dims)
        left.set(title="1 − cosine of W to", xlabel="dimension d")
        left.legend(loc="upper right", handlelength=1.8, borderaxespad=0.1)
        _accepted(middle, a, dims)
        _leftover(right, a, dims)
        if shown:
            right.set_ylim(top=right.get_ylim()[1] * 12)
        caption(
            figure,
            "Left: means over the accepted trials, bars: standard error. Middle: number accepted on top, bars: 95 % interval "
            "(Clopper-Pearson). Right: one mark per trial, against the largest attention left on a masked token; flat head: the head has "
            "no slope at some masked token, so descent does not push it away.",
        )
        return figure

    @classmethod
    def quick(cls) -> "MultiToken":
        """Few trials in four dimensions, a fifth of the steps: a second."""
        return cls(dims=(4,), trials=120, steps=400, every=100)


def _accepted(ax: "Axes", a: dict[str, np.ndarray], dims: list[int]) -> None:
    places = np.arange(len(dims))
    spread = np.abs(np.stack([a["low"], a["high"]]) - a["share"])
    ax.bar(places, a["share"], yerr=spread, color=COLOURS["attention_svm"], alpha=0.55, width=0.6, capsize=2, error_kw={"linewidth": 1})
    for place, share, count in zip(places, a["high"], a["accepted"]):
        ax.annotate(str(count), (place, share), xytext=(0, 2), textcoords="offset points", ha="center", fontsize=7.5)
    ax.set_xticks(places, [str(d) for d in dims])
    ax.set_xlim(-0.6, len(dims) - 0.4)
    ax.set_ylim(top=1.15 * max(float(a["high"].max()), 1e-3))
    ax.set(title="Share of trials accepted", xlabel="dimension d")


def _leftover(ax: "Axes", a: dict[str, np.ndarray], dims: list[int]) -> None:
    for d, tint in zip(dims, DIM_TINTS):
        ends, masked, pushed = a[f"apart_{d}"][:, -1, 0], np.maximum(a[f"masked_{d}"], 1e-20), a[f"pushed_{d}"]
        if len(masked):
            ax.scatter(masked[pushed], ends[pushed], s=6, color=tint, alpha=0.55, linewidths=0, label=f"d = {d}")
            ax.scatter(masked[~pushed], ends[~pushed], s=7, color=tint, alpha=0.55, linewidths=0.7, marker="x")
    ax.scatter([], [], s=9, color="black", linewidths=0.7, marker="x", label="flat head")
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set(title="1 − cosine to prediction", xlabel="attention left elsewhere")
    ax.legend(loc="upper left", ncols=2, handletextpad=0.1, borderaxespad=0.1, columnspacing=1)

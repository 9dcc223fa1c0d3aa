"""Descent with a one-layer network as head, for which attention may stay on several tokens, compared with the
predicted weights.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from ....core.experiment import RandomExperiment, setting, sweep
from ....core.figure import Panel, draw_curves
from ....core.measurement import Measurement
from ....core.plotting import COLOURS, TINTS, axes, caption, colour, style
from ....core.result import Result
from ....core.sources import Source
from ....core.statistics import clopper_pearson
from ....core.table import Arrays, Table
from ....maths.linalg import cosine
from ..builders import constraints
from ..dynamics import HeadInstance, random_start, relu_head, trajectory
from ..sharing import NO_ATTENTION, SOME_ATTENTION, least_push, settled, shared
from ..solvers import frobenius_max_margins, generalised_max_margins
from .common import NAME, arrays_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SOURCE = Source("tarzanagh2023transformers")
ACCEPTED, DISTANCE = "share of trials accepted", "1 - cosine to the target"
SHARED = "share of accepted trials that share attention"
ALL_PUSHED = "share of accepted trials in which every masked token is pushed away"
MEDIAN_DISTANCE = "median of 1 - cosine to the prediction"
TARGETS = {
    "prediction": "finite part and direction",
    "direction": "direction alone",
    "one token": "max-margin of the top tokens",
}
# Dimension -> distance to each of TARGETS, read off the published figure.
PUBLISHED = {
    4: (0.034, 0.07, 0.155),
    6: (0.017, 0.043, 0.14),
    8: (0.011, 0.015, 0.135),
    10: (0.0055, 0.0085, 0.12),
}
ROUNDING_UNIT = torch.finfo(torch.float64).eps
MIN_PUSH = 1e-3  # smallest least_push at which masked tokens count as pushed away; gains are of order one
CHUNK = 500  # trials that descend together
ERROR = "standard error"
LOOKS = {
    "prediction": {"label": "finite part and direction"},
    "direction": {"label": "direction alone"},
    "one token": {"label": "one token per input", "color": COLOURS["null"]},
}


def draw_trials(seeds: range, *, inputs: int, tokens: int, dim: int) -> HeadInstance:
    """Draws the published data of these seeds: hidden weights, tokens, labels and queries, in this order and
    in single precision.

    As in the published run, seeds with positive labels only are dropped: the head is never negative, so every
    selection fits such labels.
    """
    problems = []
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        V = torch.randn(dim, dim, generator=generator)
        x = torch.nn.functional.normalize(torch.randn(inputs, tokens, dim, generator=generator), dim=-1)
        Y = 2.0 * (torch.randn(inputs, generator=generator) > 0) - 1
        z = torch.nn.functional.normalize(torch.randn(inputs, dim, generator=generator), dim=-1)
        if bool((Y < 0).any()):
            problems.append((V / V.norm(), x, Y, z))
    V, x, Y, z = (torch.stack(part).double() for part in zip(*problems))
    return HeadInstance(x, z, Y, relu_head(V))


def descend(
    seeds: range,
    dim: int,
    inputs: int,
    tokens: int,
    steps: int,
    every: int,
    rate: float,
    eps: float,
    start: int,
) -> dict[str, np.ndarray]:
    """Runs descent on the trials of these seeds and returns numbers of the k trials that the published rule
    accepts.

    Returns:
        Arrays by name:

        - ``tried`` [1]: number of trials;
        - ``apart`` [k, checkpoints, 3]: 1 - cosine of W to the three targets;
        - ``masked`` [k]: largest attention on a masked token;
        - ``several`` [k]: whether some input shares its attention between tokens;
        - ``pushed`` [k]: whether the head pushes every masked token away.
    """
    instance = draw_trials(seeds, inputs=inputs, tokens=tokens, dim=dim)
    # One generator per chunk: the large prime separates the seeds of different values of ``start``.
    first_state = random_start(
        instance, generator=torch.Generator().manual_seed(start * 1_000_003 + seeds.start)
    )
    states = list(trajectory(instance, first_state, steps=range(every, steps + 1, every), rate=rate, eps=eps))
    attention = instance.attention(states[-1].W)
    settled_trials, tried = settled(attention).nonzero().squeeze(-1), np.array([len(attention)])
    if not len(settled_trials):
        empty = {name: np.zeros(0, dtype=bool) for name in ("masked", "several", "pushed")}
        return {"tried": tried, "apart": np.zeros((0, len(states), len(TARGETS)))} | empty
    x, z, s = instance.tokens[settled_trials], instance.query[settled_trials], attention[settled_trials]
    general, single = (
        generalised_max_margins(x, z, s, threshold=SOME_ATTENTION),
        frobenius_max_margins(constraints(x, z, s.argmax(-1))),
    )
    solved = general.direction.solved & general.finite.solved & single.solved  # pyright: ignore[reportAttributeAccessIssue]
    distances = []
    for state in states:
        W = state.W[settled_trials]
        targets = (general.predict(W), general.direction.W, single.W)
        distances.append(
            torch.stack([1 - cosine(W[solved], target[solved], dim=(-2, -1)) for target in targets], -1)
        )
    accepted = settled_trials[solved]
    return {
        "tried": tried,
        "apart": torch.stack(distances, 1).numpy(),
        "masked": s[solved].masked_fill(s[solved] > NO_ATTENTION, 0.0).flatten(1).amax(-1).numpy(),
        "several": shared(attention[accepted]).numpy(),
        "pushed": (least_push(instance, states[-1].W)[accepted] > MIN_PUSH).numpy(),
    }


@dataclass(frozen=True)
class MultiToken(RandomExperiment):
    r"""Normalised descent with the head :math:`h(o) = 1^\top \max(V^\top o, 0)`, compared with three
    predictions of the direction of W.

    Attention may stay on several tokens. The prediction is then a finite part plus a multiple of a direction.
    The two other candidates are the direction alone, and the max-margin solution that scores each input's
    most attended token above all others. A trial counts only if it has settled: no token has between 1e-6 and
    1e-3 of the attention, and some token has less. The figure shows the share of settled trials, which falls
    with the dimension. The prediction fails in trials in which the head is flat at a masked token and so does
    not push it away; the figure marks these trials. ``eps`` is added to the norm of the gradient, as
    published; with ``eps = 0`` descent is exact and W grows further.

    Raises:
        ValueError: ``every`` exceeds ``steps``, or a setting is out of range.
    """

    dims: tuple[int, ...] = setting((4, 6, 8, 10), ge=1, help="dimensions d of the tokens")
    inputs: int = setting(3, ge=1, help="number n of inputs")
    tokens: int = setting(4, ge=2, help="number T of tokens per input")
    trials: int = setting(4000, ge=1, help="random problems per dimension")
    steps: int = setting(2000, ge=1, help="steps of descent")
    every: int = setting(100, ge=1, help="steps between two measurements")
    rate: float = setting(0.1, gt=0, le=1e6, help="length of a step")
    eps: float = setting(ROUNDING_UNIT, ge=0, le=1, help="added to the norm of the gradient; 0 is exact")

    name = "attention_svm.multi_token"
    sources = (SOURCE,)

    def __post_init__(self):
        super().__post_init__()
        if self.every > self.steps:
            raise ValueError(
                f"every must be at most steps = {self.steps}, got {self.every}; lower every, or raise steps"
            )

    def measure(self) -> Iterator[Measurement | Arrays]:
        """Yields, per dimension, the share of accepted trials and the mean distances at the end; arrays with
        the points of all accepted trials.
        """
        fixed = {
            name: getattr(self, name) for name in ("inputs", "tokens", "steps", "every", "rate", "eps")
        } | {"start": self.seed}
        parts = [
            range(first, min(first + CHUNK, self.trials + 1)) for first in range(1, self.trials + 1, CHUNK)
        ]
        outcomes = sweep(descend, [{"seeds": seeds, "dim": d, **fixed} for d in self.dims for seeds in parts])
        for number, d in enumerate(self.dims):
            chunks = outcomes[number * len(parts) : (number + 1) * len(parts)]
            joined = {name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]}
            yield from self._rows(d, joined, len(joined["apart"]), int(joined["tried"].sum()))
            points = {
                "end": joined["apart"][:, -1, 0],
                "masked": joined["masked"],
                "pushed": joined["pushed"],
            }
            yield Arrays({f"{NAME}/{name}_{d}": values for name, values in points.items()})

    def _rows(
        self, d: int, joined: dict[str, np.ndarray], accepted: int, tried: int
    ) -> Iterator[Measurement]:
        """Yields the rows of one dimension."""
        low, high = clopper_pearson(accepted, tried)
        yield self.row(
            ACCEPTED,
            accepted / tried,
            unit="share",
            at={"d": d},
            n=tried,
            interval=(float(low), float(high)),
            interval_kind="over samples",
            note="each trial has at least one negative label",
        )
        if not accepted:
            return
        comparable = self.at_defaults("inputs", "tokens", "trials", "steps", "rate", "eps")
        published = PUBLISHED.get(d) if comparable else None
        for number, (target, note) in enumerate(TARGETS.items()):
            values = joined["apart"][:, -1, number]
            # numpy divides the variance by n, hence n - 1 here
            error = values.std() / max(accepted - 1, 1) ** 0.5
            yield self.row(
                DISTANCE,
                float(values.mean()),
                reference=None if published is None else (published[number], "figure"),
                at={"target": target, "d": d},
                step=self.steps,
                n=accepted,
                note=f"{note}: mean over accepted trials, standard error {error:.4f}",
            )
            here = {"at": {"target": target, "d": d}, "step": self.steps, "n": accepted}
            yield self.row(f"{ERROR} of {DISTANCE}", float(error), **here)
        pushed, ends = joined["pushed"], joined["apart"][:, -1, 0]
        yield self.row(
            SHARED,
            float(joined["several"].mean()),
            unit="share",
            at={"d": d},
            n=accepted,
        )
        yield self.row(ALL_PUSHED, float(pushed.mean()), unit="share", at={"d": d}, n=accepted)
        for variant, trials in (
            ("pushed away", pushed),
            ("not all pushed away", ~pushed),
        ):
            if trials.any():
                median = float(np.median(ends[trials]))
                yield self.row(
                    MEDIAN_DISTANCE, median, at={"masked tokens": variant, "d": d}, n=int(trials.sum())
                )

    @style()
    def plot(self, result: Result) -> "Figure":
        """Plots the distance of W to three predictions, the share of accepted trials, and the distance
        against the remaining attention.
        """
        a = arrays_of(result)
        figure, (left, middle, right) = axes(1, 3, width=7.0, height=3.3)
        accepted = result.select(quantity=ACCEPTED)
        panel = Panel("1 − cosine of W to", DISTANCE, lines=("target", LOOKS), legend="upper right")
        if any(row.value for row in accepted):
            draw_curves(left, result, panel, x="d", spread=ERROR)
        left.set_yscale("log")
        left.set_ylim(top=left.get_ylim()[1] * 8)
        left.set(xlabel="dimension d")
        _accepted(middle, accepted)
        _leftover(right, a, self.dims)
        if any(row.value for row in accepted):
            right.set_ylim(top=right.get_ylim()[1] * 12)
        caption(
            figure,
            "Left: means over the accepted trials; bands: standard error. Middle: share and number of "
            "accepted trials; bars: 95 % interval (Clopper-Pearson). Right: one mark per trial, against "
            "the largest attention left on a masked token; flat head: the head has no slope at some masked "
            "token, so descent does not push it away.",
        )
        return figure

    @classmethod
    def quick(cls) -> "MultiToken":
        """Returns a small version: few trials in four dimensions and a fifth of the steps, about a second."""
        return cls(dims=(4,), trials=120, steps=400, every=100)


def _accepted(ax: "Axes", table: Table) -> None:
    """Plots the share and the number of accepted trials per dimension."""
    places, share = np.arange(len(table)), np.array(table.column("value"))
    ends = np.array(table.column("interval")).T
    look = {"color": colour("attention_svm"), "alpha": 0.55, "width": 0.6, "capsize": 2}
    ax.bar(places, share, yerr=np.abs(ends - share), error_kw={"linewidth": 1}, **look)
    counts = share * table.column("n")
    for place, top, count in zip(places, ends[1], counts):
        look = {"textcoords": "offset points", "ha": "center", "fontsize": 7.5}
        ax.annotate(str(round(count)), (place, top), xytext=(0, 2), **look)
    ax.set_xticks(places, [str(row.at["d"]) for row in table])
    ax.set_xlim(-0.6, len(table) - 0.4)
    ax.set_ylim(top=1.15 * max(float(ends.max()), 1e-3))
    ax.set(title="Share of trials accepted", xlabel="dimension d")


def _leftover(ax: "Axes", a: dict[str, np.ndarray], dims: tuple[int, ...]) -> None:
    """Plots, per trial, the distance to the prediction against the largest attention on a masked token."""
    for d, tint in zip(dims, TINTS):
        ends, masked, pushed = (
            a[f"end_{d}"],
            np.maximum(a[f"masked_{d}"], 1e-20),
            a[f"pushed_{d}"],
        )
        if len(masked):
            ax.scatter(
                masked[pushed], ends[pushed], s=6, color=tint, alpha=0.55, linewidths=0, label=f"d = {d}"
            )
            ax.scatter(
                masked[~pushed], ends[~pushed], s=7, color=tint, alpha=0.55, linewidths=0.7, marker="x"
            )
    ax.scatter([], [], s=9, color="black", linewidths=0.7, marker="x", label="flat head")
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set(title="1 − cosine to prediction", xlabel="attention left elsewhere")
    ax.legend(loc="upper left", ncols=2, handletextpad=0.1, borderaxespad=0.1, columnspacing=1)

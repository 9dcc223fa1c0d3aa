"""The paper's small synthetic training, Syn-Small (Figure 4): two classes, each with its own query and ten
distinct tokens.

There are ten common tokens, and training starts at zero. The released log of the loss is one run with other
random numbers (drawn sequence by sequence, in single precision), so it is compared with the range of our
runs. The first loss is ln M. The loss falls by five orders of magnitude, then reaches a plateau.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from ....core.experiment import RANGE, Experiment, RandomExperiment, range_rows, setting
from ....core.figure import Panel, draw_curves
from ....core.measurement import Basis, Measurement, judge
from ....core.plotting import axes, caption, heatmap, style
from ....core.result import Result
from ....core.sources import Source
from ....core.table import Arrays
from ..dynamics import HeavyBall, Optimiser, Trajectory, Weights, gradient_descent, sampled
from ..problem import SequenceClasses, synthetic
from ..published import LOSS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAME, PAPER = "scan_snap", "tian2023scan"
TRAINING_LOSS = "loss"
COMMON_ATTENTION = "attention to common tokens after training"
TOP_ATTENTION = "attention to the likeliest distinct token"
GAINING_SHARE = "share of distinct tokens that gained attention"
RECORDED_STEPS = (0, 2, 4, 6, 8, 10, 20, 50)  # steps at which attention is stored


@dataclass(frozen=True)
class SynSmall(RandomExperiment):
    """The paper's Syn-Small by gradient descent with momentum, with several learning rates of the decoder."""

    batch: int = setting(128, ge=1, help="sequences per step")
    length: int = setting(128, ge=2, help="tokens per sequence, including the query")
    steps: int = setting(100, ge=1, help="steps of training")
    eta_y: tuple[float, ...] = setting((1.0, 10.0), ge=1e-6, le=1e6, help="learning rates of the decoder")
    eta_z: float = setting(1.0, ge=1e-6, le=1e6, help="learning rate of attention")
    momentum: float = setting(0.9, ge=0, lt=1, help="momentum of gradient descent")
    seeds: int = setting(10, ge=1, help="independent runs")

    name: ClassVar[str] = "scan_snap.syn_small"
    sources: ClassVar[tuple[Source, ...]] = (Source(PAPER, "Fig. 4"),)

    @classmethod
    def quick(cls) -> "SynSmall":
        return cls(steps=20, seeds=2)

    def measure(self) -> Iterator[Measurement | Arrays]:
        """Yields losses with the released log, and the final attention; means over the seeds."""
        classes = synthetic(2)
        seeds = torch.randint(2**31, (self.seeds,), generator=self.generator()).tolist()
        path = train_side_by_side(
            classes,
            [eta_y for eta_y in self.eta_y for _ in range(self.seeds)],
            [self.eta_z] * (len(self.eta_y) * self.seeds),
            seeds=seeds * len(self.eta_y),
            optimiser=HeavyBall(self.momentum),
            batch=self.batch,
            length=self.length,
            steps=self.steps,
        )
        shape = (len(self.eta_y), self.seeds)
        loss, c = path.loss.unflatten(1, shape), classes.attended(path.attention).unflatten(1, shape)
        log = LOSS if self.at_defaults("batch", "length", "eta_z", "momentum") else {}
        for i, eta_y in enumerate(self.eta_y):
            yield from self._losses(eta_y, loss[:, i], log if eta_y == 1.0 else {})
            yield from final_attention(self, classes, c[:, i], {"eta_Y": eta_y})
        attended = c[:, :, 0, 0, classes.conditional[0] > 0]
        yield Arrays({f"{NAME}/steps": path.steps.numpy(), f"{NAME}/attended": attended.numpy()})

    def _losses(self, eta_y: float, loss: torch.Tensor, log: dict[int, float]) -> Iterator[Measurement]:
        for step, values in enumerate(loss):
            low, high = float(values.min()), float(values.max())
            here = {"unit": "nats", "n": self.seeds, "at": {"eta_Y": eta_y}, "step": step}
            note = f"{low:.3g} to {high:.3g} over runs; the log is one run of other random numbers"
            reference: tuple[float, Basis] | None = (log[step], "printed") if step in log else None
            row = self.row(TRAINING_LOSS, float(values.mean()), reference=reference, note=note, **here)
            yield from (row, *range_rows(row, (low, high)))

    @style()
    def plot(self, result: Result) -> "Figure":
        """Plots the loss with the released log, and attention of the first class in one run, one panel per
        decoder rate.
        """
        rates, c = self.eta_y, result.arrays[f"{NAME}/attended"]
        figure, (left, *others) = axes(1, 1 + len(rates), width=2.6 * (1 + len(rates)), height=3.0)
        looks = {rate: {"label": f"$\\eta_Y$ = {rate:g}", "marker": ""} for rate in rates}
        look = {"xlabel": "step", "yscale": "log"}
        panel = Panel("Loss, nats", TRAINING_LOSS, lines=("eta_Y", looks), legend="", axes=look)
        draw_curves(left, result, panel, x="step", spread=RANGE)
        figure.legend(*left.get_legend_handles_labels(), loc="outside upper left", ncols=1 + len(rates))
        for i, (ax, rate) in enumerate(zip(others, rates)):
            title = f"Attention, $\\eta_Y$ = {rate:g}"
            plot_attention(
                ax, result.arrays[f"{NAME}/steps"], c[:, i], title, float(c.max()), bar=i == len(rates) - 1
            )
        caption(
            figure,
            "Bands: range over the runs. Attention: the first class, one run; tokens below the white line "
            "are common to both.",
        )
        return figure


def train_side_by_side(
    classes: SequenceClasses,
    eta_y: list[float],
    eta_z: list[float],
    *,
    seeds: list[int],
    optimiser: Optimiser,
    batch: int,
    length: int,
    steps: int,
) -> Trajectory:
    """Trains all runs at once, from zero; each has its own learning rates and seed."""
    return gradient_descent(
        Weights.zeros(
            classes.tokens, classes.queries, classes.classes, classes.vocab_size, runs=(len(seeds),)
        ),
        sampled(classes, batch, context=length - 1, seeds=seeds),
        steps=steps,
        eta_y=torch.tensor(eta_y, dtype=torch.float64),
        eta_z=torch.tensor(eta_z, dtype=torch.float64),
        optimiser=optimiser,
        keep=RECORDED_STEPS,
    )


def final_attention(
    experiment: Experiment, classes: SequenceClasses, c: torch.Tensor, at: dict[str, float | str]
) -> Iterator[Measurement]:
    """Yields the final attention to common tokens and the likeliest distinct one, and the share of distinct
    tokens that gained.

    All values are means over runs.

    Args:
        c: attention, ``[recorded, seeds, K, S]``.
    """
    where = {"at": at, "n": c.shape[1], "unit": "share"}
    common = c[..., classes.common()].sum(-1).mean(-1)
    value, start = float(common[-1].mean()), float(common[0].mean())
    verdict = judge(value, "<=", start, covered=False)
    note = "the threshold is attention before training; the theory does not cover this optimiser"
    yield experiment.row(
        COMMON_ATTENTION, value, op="<=", threshold=start, verdict=verdict, note=note, **where
    )
    before, after = (c[i][:, classes.distinct()] for i in (0, -1))
    top = float(after.unflatten(-1, (classes.classes, -1)).amax(-1).mean())
    yield experiment.row(TOP_ATTENTION, top, **where)
    yield experiment.row(GAINING_SHARE, float((after > before).double().mean()), **where)


def plot_attention(
    ax: "Axes", steps: np.ndarray, c: np.ndarray, title: str, vmax: float, *, bar: bool
) -> None:
    """Plots attention ``[steps, tokens]``: common tokens lowest, then the distinct ones from rare
    to likely.
    """
    image = heatmap(ax, c.T, "attention" if bar else "", vmin=0, vmax=vmax, bar=bar)
    image.axes.set_aspect("auto")
    ax.invert_yaxis()
    ax.axhline(9.5, color="white", linewidth=1.0)  # between the ten common tokens and the distinct ones
    ax.set_xticks(range(len(steps)), [str(step) for step in steps])
    ax.set_yticks([0, 5, 10, 15])
    ax.set(title=title, xlabel="step", ylabel="token")

"""Training on finite sequences against the exact population flow, by length of the sequences (Lemma 2)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from ....core.experiment import RandomExperiment, setting, sweep
from ....core.figure import Panel, draw_curves
from ....core.measurement import Measurement
from ....core.plotting import COLOURS, axes, caption, style
from ....core.result import Result
from ....core.sources import Source
from ..dynamics import Weights, gradient_descent, sampled
from ..flow import EXACT, exact_flow
from ..plots import TOKEN_COLOURS
from ..problem import synthetic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SOURCE = Source("tian2023scan", "Lemma 2")
DISTINCT_LOGIT, COMMON_LOGIT = "logit of the likeliest distinct token", "logit of the common token"
RECORDED_STEPS = 40  # largest number of steps at which the logits are stored


@dataclass(frozen=True)
class LongSequences(RandomExperiment):
    """Syn-Small by plain gradient descent: the logits of the likeliest distinct and of a common token, by
    length of the sequences.
    """

    lengths: tuple[int, ...] = setting(
        (128, 1024, 16384), ge=2, le=10**9, help="tokens per sequence, including the query"
    )
    steps: int = setting(1000, ge=1, help="steps of training")
    batch: int = setting(128, ge=1, help="sequences per step")
    eta_y: float = setting(1.0, ge=1e-3, le=100, help="learning rate of the decoder")
    eta_z: float = setting(1.0, ge=1e-3, le=100, help="learning rate of attention")
    seeds: int = setting(5, ge=1, help="independent runs")

    name: ClassVar[str] = "scan_snap.long_sequences"
    sources: ClassVar[tuple[Source, ...]] = (SOURCE,)

    @classmethod
    def quick(cls) -> "LongSequences":
        return cls(lengths=(32, 1024), steps=60, seeds=2)

    def measure(self) -> Iterator[Measurement]:
        """Yields both logits over the steps, means over seeds, with the exact flow as the limit."""
        classes = synthetic(2)
        recorded = sorted({int(t) for t in np.geomspace(1, self.steps, RECORDED_STEPS)})
        flow = exact_flow(
            classes, torch.tensor(recorded, dtype=torch.float64), eta_y=self.eta_y, eta_z=self.eta_z
        ).logits
        seeds = torch.randint(2**31, (self.seeds,), generator=self.generator()).tolist()
        shared = {
            "steps": self.steps,
            "batch": self.batch,
            "eta_y": self.eta_y,
            "eta_z": self.eta_z,
            "seeds": seeds,
            "recorded": recorded,
        }
        # [lengths, recorded, runs, 2]
        z = np.stack(sweep(train_logits, [{"length": length, **shared} for length in self.lengths]))
        limit = _two_logits(flow)  # [recorded, 2]
        for length, runs in zip(self.lengths, z):
            for (step, values), known in zip(zip(recorded, runs[-len(recorded) :]), limit):
                for i, quantity in enumerate((DISTINCT_LOGIT, COMMON_LOGIT)):
                    spread = f"{values[:, i].min():.4f} to {values[:, i].max():.4f} over runs"
                    yield self.row(
                        quantity,
                        float(values[:, i].mean()),
                        reference=(float(known[i]), "limit"),
                        step=step,
                        at={"T": length},
                        n=self.seeds,
                        note=f"{spread}; predicted: the exact population flow",
                    )

    @style()
    def plot(self, result: Result) -> "Figure":
        """Plots both logits over the steps, one curve per length, and their distance from the flow at the
        end.
        """
        figure, (paths, gap) = axes(1, 2, height=2.8)
        labels = {length: {"label": f"$T$ = {length}"} for length in self.lengths}
        unlabelled = {length: {"label": "_"} for length in self.lengths}
        draw_curves(
            paths,
            result,
            Panel(
                "Training against the flow",
                DISTINCT_LOGIT,
                lines=("T", labels),
                predicted=EXACT,
                legend="upper left",
                axes={"xlabel": "step", "ylabel": "attention logit z", "xscale": "log"},
            ),
            Panel("", COMMON_LOGIT, lines=("T", unlabelled), predicted="_"),
            x="step",
        )
        lengths = np.array(self.lengths)
        ends = [result.select(quantity=q, step=self.steps) for q in (DISTINCT_LOGIT, COMMON_LOGIT)]
        distance = [np.subtract(rows.column("value"), rows.column("predicted")) for rows in ends]
        distance = np.abs(distance).T
        for i, (label, kind) in enumerate(
            (("likeliest distinct token", "distinct"), ("common token", "common"))
        ):
            gap.plot(lengths, distance[:, i], "o-", color=TOKEN_COLOURS[kind], label=label)
        gap.plot(lengths, distance[0, 0] * lengths[0] / lengths, ":", color=COLOURS["null"], label="$1 / T$")
        gap.set_xscale("log")
        gap.set_yscale("log")
        gap.set(
            title="Distance at the end", xlabel="length $T$ of the sequences", ylabel="of z from the flow"
        )
        gap.legend()
        caption(
            figure,
            "Left: the likeliest distinct token, above zero, and a common one, below; dashed: the flow, for "
            "infinite sequences.",
        )
        return figure


def train_logits(
    *, length: int, steps: int, batch: int, eta_y: float, eta_z: float, seeds: list[int], recorded: list[int]
) -> np.ndarray:
    """Trains on Syn-Small and returns the logits of the likeliest distinct and of a common token,
    ``[recorded, runs, 2]``.
    """
    classes = synthetic(2)
    start = Weights.zeros(
        classes.tokens, classes.queries, classes.classes, classes.vocab_size, runs=(len(seeds),)
    )
    batches = sampled(classes, batch, context=length - 1, seeds=seeds)
    return _two_logits(
        gradient_descent(start, batches, steps=steps, eta_y=eta_y, eta_z=eta_z, keep=recorded).attention[1:]
    )


def _two_logits(z: torch.Tensor) -> np.ndarray:
    """Returns mean logits of the classes' likeliest distinct tokens and of the ten common ones, ``[*runs, Q,
    S] -> [*runs, 2]``.
    """
    # In Syn-Small tokens 0 to 9 are common, 10 to 19 are distinct to class 0, 20 to 29 to class 1. The last
    # of each ten is the likeliest.
    return torch.stack([(z[..., 0, 19] + z[..., 1, 29]) / 2, z[..., :10].mean((-1, -2))], -1).numpy()

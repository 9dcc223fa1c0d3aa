"""Associative memories: recall against the number of pairs, and the order in which a network stores its
memories.

Source: :cite:t:`bietti2023birth`; the formula of the recall is our own.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ....core.experiment import RandomExperiment, setting
from ....core.figure import DASHED, Panel, draw_curves
from ....core.measurement import Measurement
from ....core.plotting import COLOURS, axes, caption, line, shades, style
from ....core.result import Result
from ....core.sources import Source
from ..claims.memories import OPTIMISERS
from ..memory import MEMORIES, capacity, measured_recall, predicted_recall, train_memories

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RECALL, MASS = "recall of a memory", "softmax mass on the right answer"


@dataclass(frozen=True)
class Memories(RandomExperiment):
    """Recall of random outer products beside the formula, and the memories of the induction head over
    training.
    """

    widths: tuple[int, ...] = setting((32, 64, 128), ge=4, le=1024, help="dimensions d of the embeddings")
    steps: int = setting(160, ge=1, le=10**5, help="batches of 64 sequences")

    name = "induction.memories"
    sources = (Source("bietti2023birth", status="own"),)

    @classmethod
    def quick(cls) -> "Memories":
        """One width, 30 steps."""
        return cls(widths=(32,), steps=30)

    def measure(self) -> Iterator[Measurement]:
        """Yields recalls with their predictions, and the mass of each memory over the steps of each
        optimiser.
        """
        generator = self.generator()
        for d in self.widths:
            for factor in (0.1, 0.2, 0.4, 0.7, 1.0, 1.5, 2.5, 4.0):
                N = max(2, round(factor * capacity(d)))
                value, predicted = measured_recall(N, d, generator), predicted_recall(N, d)
                yield self.row(RECALL, value, unit="share", predicted=predicted, at={"d": d, "N": N}, n=N)
        steps = {*range(0, self.steps + 1, 2), self.steps}
        for name, optimiser in OPTIMISERS.items():
            options = {"steps": self.steps, "measured": steps, "generator": self.generator()}
            for step, masses in train_memories(optimiser, **options)[1].items():
                for memory in MEMORIES:
                    at = {"optimiser": name, "memory": memory}
                    yield self.row(MASS, masses[memory], unit="share", at=at, step=step)

    @style()
    def plot(self, result: Result) -> "Figure":
        """Draws recall against pairs, and one panel of masses per optimiser."""
        figure, panels = axes(1, 3, width=7.0, height=2.7)
        for d, tint in zip(self.widths, shades(len(self.widths))):
            rows = result.select(quantity=RECALL, at={"d": d})
            pairs = [row.at["N"] for row in rows]
            line(panels[0], pairs, rows.column("predicted"), color=tint, label=f"{d}")
            panels[0].plot(pairs, rows.column("value"), "o", color=tint, label="_")
        panels[0].set(xlabel="pairs N", xscale="log", title="recall", ylim=(-0.03, 1.05))
        panels[0].legend(title="d", loc="lower left", title_fontsize=7.5)
        looks = {"xlabel": "step", "ylim": (-0.03, 1.05)}
        for ax, name in zip(panels[1:], OPTIMISERS):
            at, legend = {"optimiser": name}, "ends" if name == "Adam" else ""
            draw_curves(ax, result, Panel(f"mass, {name}", MASS, at, "memory", "", legend, looks), x="step")
            ax.axhline(0.5, color=COLOURS["null"], linewidth=0.8, linestyle=DASHED)
        caption(
            figure,
            "Left: share of N random outer products in d dimensions that are recalled; lines: formula, "
            "dots: one draw. Right: softmax mass on the right answer of the output of layer 2, its keys, "
            "and the keys of layer 1. Dashed: one half.",
        )
        return figure

"""The formation of induction heads: accuracy, prefix matching and loss over training, with two layers and
with one.

Source: :cite:t:`olsson2022incontext`, whose networks learn from text.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ....core.experiment import RandomExperiment, setting
from ....core.measurement import Measurement
from ....core.plotting import axes, caption, label_ends, line, null_band, shades, style, text_figure
from ....core.result import Result
from ....core.sources import Source
from ..learning import ACCURACY, LENGTH, LOSS, formation
from ..scores import PREFIX, PREVIOUS, uniform_score

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME, SOURCE = "induction", Source("olsson2022incontext", "Argument 1", "own")
KINDS = {"two layers": 2, "one layer": 1}


@dataclass(frozen=True)
class Formation(RandomExperiment):
    """Copy accuracy, loss, prefix matching and attention to the previous token of the best heads over
    training on repeated patterns.
    """

    steps: int = setting(400, ge=1, le=10**5, help="batches of 32 patterns")
    every: int = setting(10, ge=1, le=10**5, help="steps between measurements")
    blocks: int = setting(128, ge=1, le=4096, help="blocks of 16 ids on which the networks are measured")

    name: ClassVar[str] = "induction.formation"
    sources: ClassVar[tuple[Source, ...]] = (SOURCE,)

    @classmethod
    def quick(cls) -> "Formation":
        """60 steps."""
        return cls(steps=60, every=20, blocks=16)

    def measure(self) -> Iterator[Measurement]:
        """Yields four quantities of both networks at each measured step."""
        for layers in KINDS.values():
            curves = formation(
                layers, self.generator(), steps=self.steps, every=self.every, blocks=self.blocks
            )
            for step, values in curves.items():
                columns = {"at": {"layers": layers}, "step": step, "n": self.blocks, "source": SOURCE}
                for quantity, value in values.items():
                    name = f"{quantity}, best head" if quantity in (PREFIX, PREVIOUS) else quantity
                    yield Measurement(
                        NAME, "figure", name, value, unit="nats" if quantity == LOSS else "share", **columns
                    )

    @style()
    def plot(self, result: Result) -> "Figure":
        """Draws accuracy, loss and the two scores over the steps."""
        if not result.select(quantity=ACCURACY):
            return text_figure(f"{self.name}: nothing was measured")
        figure, panels = axes(1, 3, width=7.0, height=2.7)
        dark, light = shades(3)[0], shades(3)[1]
        for (kind, layers), tint in zip(KINDS.items(), (dark, light)):
            for ax, quantity in zip(panels, (ACCURACY, LOSS)):
                rows = result.select(quantity=quantity, at={"layers": layers})
                line(ax, rows.column("step"), rows.column("value"), color=tint, label=kind.replace(" ", "\n"))
            for quantity, dashes in ((PREFIX, "-"), (PREVIOUS, ":")):
                rows = result.select(quantity=f"{quantity}, best head", at={"layers": layers})
                line(panels[2], rows.column("step"), rows.column("value"), color=tint, linestyle=dashes)
        panels[0].set(xlabel="step", title="share predicted", ylim=(-0.03, 1.05))
        panels[1].set(xlabel="step", title="loss, nats", ylim=(0, None))
        panels[2].set(xlabel="step", title="best heads", ylim=(-0.03, 1.05))
        null_band(panels[2], uniform_score(LENGTH), label="")
        label_ends(panels[0])
        label_ends(panels[1])
        caption(
            figure,
            "Blocks of 16 different ids that occur twice; loss and share concern the second block. Right: "
            "prefix matching (solid) and attention to the previous token (dotted) of the head that has "
            "most of it; grey: prefix matching of uniform attention, chance for the solid lines only. "
            "Training on patterns of 6 to 16 ids.",
        )
        return figure

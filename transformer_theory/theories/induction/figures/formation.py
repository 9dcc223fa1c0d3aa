"""The formation of induction heads: accuracy, prefix matching and loss over training, with two layers and
with one.

Source: :cite:t:`olsson2022incontext`, whose networks learn from text.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ....core.experiment import RandomExperiment, setting
from ....core.figure import Panel, curves
from ....core.measurement import Measurement
from ....core.plotting import null_band, style
from ....core.result import Result
from ....core.sources import Source
from ..learning import ACCURACY, LENGTH, LOSS, formation
from ..scores import PREFIX, PREVIOUS, uniform_score

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BEST = "{}, best head".format
LINES = {  # number of layers -> look
    2: {"label": "two\nlayers"},
    1: {"label": "one\nlayer"},
}
DOTTED = {layers: look | {"linestyle": ":"} for layers, look in LINES.items()}
SHARE = {"ylim": (-0.03, 1.05)}


@dataclass(frozen=True)
class Formation(RandomExperiment):
    """Copy accuracy, loss, prefix matching and attention to the previous token of the best heads over
    training on repeated patterns.
    """

    steps: int = setting(400, ge=1, le=10**5, help="batches of 32 patterns")
    every: int = setting(10, ge=1, le=10**5, help="steps between measurements")
    blocks: int = setting(128, ge=1, le=4096, help="blocks of 16 ids on which the networks are measured")

    name = "induction.formation"
    sources = (Source("olsson2022incontext", "Argument 1", "own"),)

    view = curves(
        "step",
        panels=(
            Panel("share predicted", ACCURACY, lines=("layers", LINES), legend="ends", axes=SHARE),
            Panel("loss, nats", LOSS, lines=("layers", LINES), legend="ends", axes={"ylim": (0, None)}),
            (
                Panel("best heads", BEST(PREFIX), lines=("layers", LINES), legend="", axes=SHARE),
                Panel("", BEST(PREVIOUS), lines=("layers", DOTTED)),
            ),
        ),
        caption="Blocks of 16 different ids that occur twice; loss and share concern the second block. "
        "Right: "
        "prefix matching (solid) and attention to the previous token (dotted) of the head that has most of "
        "it; "
        "grey: prefix matching of uniform attention, chance for the solid lines only. Training on patterns "
        "of 6 "
        "to 16 ids.",
        size=(7.0, 2.7),
    )

    @classmethod
    def quick(cls) -> "Formation":
        """60 steps."""
        return cls(steps=60, every=20, blocks=16)

    def measure(self) -> Iterator[Measurement]:
        """Yields four quantities of both networks at each measured step."""
        options = {"steps": self.steps, "every": self.every, "blocks": self.blocks}
        for layers in LINES:
            for step, values in formation(layers, self.generator(), **options).items():
                place = {"at": {"layers": layers}, "step": step, "n": self.blocks}
                for quantity, value in values.items():
                    name = BEST(quantity) if quantity in (PREFIX, PREVIOUS) else quantity
                    yield self.row(name, value, unit="nats" if quantity == LOSS else "share", **place)

    @style()
    def plot(self, result: Result) -> "Figure":
        """Adds the prefix matching of uniform attention."""
        figure = super().plot(result)
        null_band(figure.axes[2], uniform_score(LENGTH), label="")
        return figure

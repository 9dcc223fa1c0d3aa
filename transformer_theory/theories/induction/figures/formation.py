"""The formation of induction heads: accuracy, prefix matching and loss over training, with two layers and
with one.

Source: :cite:t:`olsson2022incontext`, whose networks learn from text.
"""

from collections.abc import Iterator

import torch

from ....core.experiment import setting
from ....core.figure import Panel, Reading, curves, figure, reading
from ....core.sources import Source
from ..learning import ACCURACY, LENGTH, LOSS
from ..learning import formation as trained
from ..scores import PREFIX, PREVIOUS, uniform_score

BEST = "{}, best head".format
SHARE = {"ylim": (-0.03, 1.05)}
LAYERS = (2, 1)


@figure(
    "induction.formation",
    source=Source("olsson2022incontext", "Argument 1", "own"),
    view=curves(
        "step",
        panels=(
            Panel("share predicted", ACCURACY, lines="layers", legend="ends", axes=SHARE),
            Panel("loss, nats", LOSS, lines="layers", legend="", axes={"ylim": (0, None)}),
            Panel(
                "best heads",
                (BEST(PREFIX), BEST(PREVIOUS)),
                lines=("layers", "quantity"),
                levels={"_": uniform_score(LENGTH)},
                legend="",
                axes=SHARE,
            ),
        ),
        caption="Blocks of 16 different ids that occur twice; loss and share concern the second block. "
        "Right: prefix matching (solid) and attention to the previous token (dotted) of the head that has "
        "most of it; dashed: prefix matching of uniform attention, chance for the solid lines only. Training "
        "on patterns of 6 to 16 ids.",
        size=(7.0, 2.7),
    ),
    quick={"steps": 60, "every": 20, "blocks": 16},
)
def formation(
    *,
    steps: int = setting(400, ge=1, le=10**5, help="batches of 32 patterns"),
    every: int = setting(10, ge=1, le=10**5, help="steps between measurements"),
    blocks: int = setting(128, ge=1, le=4096, help="blocks of 16 ids on which the networks are measured"),
    seed: int = 0,
) -> Iterator[Reading]:
    """Copy accuracy, loss, prefix matching and attention to the previous token of the best heads over
    training on repeated patterns.
    """
    for layers in LAYERS:
        generator = torch.Generator().manual_seed(seed)
        found = trained(layers, generator, steps=steps, every=every, blocks=blocks)
        for step, values in found.items():
            for quantity, value in values.items():
                name = BEST(quantity) if quantity in (PREFIX, PREVIOUS) else quantity
                unit = "nats" if quantity == LOSS else "share"
                yield reading(name, value, unit=unit, at={"layers": layers}, step=step, n=blocks)

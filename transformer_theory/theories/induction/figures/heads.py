"""Every head of a trained network: its scores on blocks that occur twice, beside unrelated blocks.

Source: :cite:t:`olsson2022incontext`.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from ....core.experiment import setting
from ....core.figure import figure
from ....core.measurement import Measurement
from ....core.plotting import caption, style
from ....core.result import Result
from ....core.sources import Source
from ..in_networks import COPYING
from ..learning import train_induction
from ..scores import SCORES
from ..user_models import head_map, score_heads

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@style()
def draw(result: Result) -> "Figure":
    """Draws a map of layers by heads per score, and its largest null draw below."""
    drawn = head_map(result, *(name for name in (*SCORES, COPYING) if result.select(quantity=name)))
    caption(
        drawn,
        "Blocks of 16 ids that occur twice. Null: the largest draw, with another first block or with the "
        "head's values rotated at random. Copying: sum of the eigenvalues of the OV circuit over the sum of "
        "their absolute values, from weights alone, without norms.",
    )
    return drawn


@figure(
    "induction.heads",
    source=Source("olsson2022incontext", status="own"),
    view=draw,
    quick={"layers": 2, "steps": 60, "blocks": 16},
)
def heads(
    *,
    layers: int = setting(
        4, ge=1, le=12, help="layers of the network, which has LayerNorm and two heads per layer"
    ),
    steps: int = setting(300, ge=1, le=10**5, help="batches of 32 patterns"),
    blocks: int = setting(64, ge=1, le=4096, help="blocks per draw"),
    seed: int = 0,
) -> Iterator[Measurement]:
    """Previous-token, prefix-matching, duplicate-token and copying score of each head of a network trained on
    repeated patterns, each with the draws of its null.
    """
    generator = torch.Generator().manual_seed(seed)
    network = train_induction(layers, steps=steps, generator=generator, norm=True)
    for row in score_heads(network, sequences=20 * blocks, generator=generator).table:
        if row.head is not None:
            yield replace(row, kind="figure")

"""The paper's Syn-Small training with Adam (Figure 5)."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ....core.experiment import setting
from ....core.figure import Reading, figure
from ....core.plotting import axes, caption, style
from ....core.result import Result
from ....core.sources import Source
from ....core.table import Arrays
from ..dynamics import Adam
from .syn_small import MAPS, draw_attention, final_attention, stored_attention, train_side_by_side

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@style()
def draw(result: Result) -> "Figure":
    """Draws attention of the first class in one run, one map per learning rate."""
    rates = result.settings["rates"]
    drawn, panels = axes(1, len(rates), width=max(4.0, 2.5 * len(rates)), height=3.0)
    draw_attention(panels, result, [f"Adam, $\\eta$ = {rate:g}" for rate in rates])
    caption(drawn, MAPS)
    return drawn


@figure(
    "scan_snap.syn_small_adam",
    source=Source("tian2023scan", "Fig. 5"),
    view=draw,
    quick={"steps": 20, "seeds": 2},
)
def syn_small_adam(
    *,
    rates: tuple[float, ...] = setting((0.1, 0.5, 1.0), gt=0, le=100, help="learning rates of both matrices"),
    batch: int = setting(128, ge=1, help="sequences per step"),
    length: int = setting(128, ge=2, help="tokens per sequence, including the query"),
    steps: int = setting(100, ge=1, help="steps of training"),
    seeds: int = setting(10, ge=1, help="independent runs"),
    seed: int = 0,
) -> Iterator[Reading | Arrays]:
    """Syn-Small with Adam. Both matrices have the same learning rate, which determines the distinct tokens
    that keep attention. Means over the seeds.
    """
    sizes = {"batch": batch, "length": length, "steps": steps, "optimiser": Adam()}
    path, c = train_side_by_side([(rate, rate) for rate in rates], seeds, seed, **sizes)
    for i, rate in enumerate(rates):
        yield from final_attention(c[:, i], {"optimiser": "Adam", "eta": rate})
    yield stored_attention(path, c)

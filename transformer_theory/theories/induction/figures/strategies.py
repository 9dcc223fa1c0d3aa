"""Strategies over training: the loss of one and two layers on Markov chains, and their divergence from each
strategy.

Source: :cite:t:`edelman2024evolution`.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ....core.experiment import setting
from ....core.figure import DASHED, Panel, Reading, curves, figure, reading
from ....core.plotting import COLOURS, style
from ....core.result import Result
from ....core.sources import Source
from ..chains import STRATEGIES
from ..learning import CHAIN_STEPS, chain_curves

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOSS, DIVERGENCE = "loss on chains", "divergence from the strategy"
LOG = {"xscale": "symlog", "xlim": (0, None)}
KL = {**LOG, "ylim": (0, 0.2)}
VIEW = curves(
    "step",
    panels=(
        Panel("loss, nats", LOSS, lines="layers", legend="ends", axes=LOG),
        Panel("KL, one layer", DIVERGENCE, {"layers": 1}, "strategy", legend="", axes=KL),
        Panel("KL, two layers", DIVERGENCE, {"layers": 2}, "strategy", legend="ends", axes=KL),
    ),
    caption="Chains of 3 states with random transition matrices. Left: loss of the networks; dashed "
    "lines: the strategies uniform, unigram and bigram from the top, on the same chains. Right: "
    "Kullback-Leibler divergence of the network from each strategy, nats.",
    size=(7.0, 2.8),
)


@style()
def draw(result: Result) -> "Figure":
    """Draws the curves, and the losses of the strategies."""
    drawn = VIEW(result)
    for loss in result.select(quantity=LOSS, step=None).column("value"):
        drawn.axes[0].axhline(loss, color=COLOURS["null"], linewidth=0.9, linestyle=DASHED)
    return drawn


@figure(
    "induction.strategies",
    source=Source("edelman2024evolution", status="own"),
    view=draw,
    quick={"steps": 40, "chains": 50},
)
def strategies(
    *,
    steps: int = setting(CHAIN_STEPS, ge=2, le=10**5, help="batches of 64 chains"),
    chains: int = setting(300, ge=1, le=10**5, help="chains on which the networks are measured"),
    seed: int = 0,
) -> Iterator[Reading]:
    """Training of attention-only networks on Markov chains with three states, measured on new chains: losses,
    also of each strategy, and divergences from the strategies over the steps.
    """
    columns = {"unit": "nats", "n": chains}
    for layers in (1, 2):
        found = chain_curves(layers, seed, steps, chains)
        if layers == 1:
            for name, loss in found["strategies"].items():
                yield reading(LOSS, loss, at={"strategy": name}, **columns)
        for number, step in enumerate(found["steps"]):
            yield reading(LOSS, found["loss"][number], at={"layers": layers}, step=step, **columns)
            for name in STRATEGIES:
                value, at = found["divergence"][name][number], {"layers": layers, "strategy": name}
                yield reading(DIVERGENCE, value, at=at, step=step, **columns)

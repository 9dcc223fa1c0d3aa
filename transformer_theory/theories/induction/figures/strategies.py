"""Strategies over training: the loss of one and two layers on Markov chains, and their divergence from each
strategy.

Source: :cite:t:`edelman2024evolution`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ....core.experiment import RandomExperiment, setting
from ....core.figure import DASHED, Panel, curves
from ....core.measurement import Measurement
from ....core.plotting import COLOURS, TINTS, style
from ....core.result import Result
from ....core.sources import Source
from ..chains import STRATEGIES
from ..learning import CHAIN_STEPS, chain_curves

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOSS, DIVERGENCE = "loss on chains", "divergence from the strategy"
LAYERS = {1: "one layer", 2: "two layers"}
LOSSES = {
    layers: {"color": COLOURS["network"], "linestyle": dashes} for layers, dashes in ((1, ":"), (2, "-"))
}
LOG = {"xscale": "symlog", "xlim": (0, None)}


@dataclass(frozen=True)
class Strategies(RandomExperiment):
    """Training of attention-only networks on Markov chains with three states, measured on new chains."""

    steps: int = setting(CHAIN_STEPS, ge=2, le=10**5, help="batches of 64 chains")
    chains: int = setting(300, ge=1, le=10**5, help="chains on which the networks are measured")

    name = "induction.strategies"
    sources = (Source("edelman2024evolution", status="own"),)

    view = curves(
        "step",
        panels=(
            Panel("loss, nats", LOSS, lines=("layers", LOSSES), legend="", axes=LOG),
            *(
                Panel(
                    f"KL, {name}",
                    DIVERGENCE,
                    {"layers": layers},
                    "strategy",
                    legend="ends" if layers == 2 else "",
                    axes={**LOG, "ylim": (0, 0.2)},
                )
                for layers, name in LAYERS.items()
            ),
        ),
        caption="Chains of 3 states with random transition matrices. Left: loss with one layer (dotted) and "
        "two "
        "(solid); dashed lines: the strategies uniform, unigram and bigram from the top, on the same chains. "
        "Right: Kullback-Leibler divergence of the network from each strategy, nats.",
        size=(7.0, 2.8),
    )

    @classmethod
    def quick(cls) -> "Strategies":
        """40 steps."""
        return cls(steps=40, chains=50)

    def measure(self) -> Iterator[Measurement]:
        """Yields the loss of each strategy, and loss and divergences of each network over the steps."""
        columns = {"unit": "nats", "n": self.chains}
        for layers in LAYERS:
            found = chain_curves(layers, self.seed, self.steps, self.chains)
            if layers == 1:
                for name, loss in found["strategies"].items():
                    yield self.row(LOSS, loss, at={"strategy": name}, **columns)
            for number, step in enumerate(found["steps"]):
                yield self.row(LOSS, found["loss"][number], at={"layers": layers}, step=step, **columns)
                for name in STRATEGIES:
                    value, at = found["divergence"][name][number], {"layers": layers, "strategy": name}
                    yield self.row(DIVERGENCE, value, at=at, step=step, **columns)

    @style()
    def plot(self, result: Result) -> "Figure":
        """Adds the losses of the strategies."""
        figure = super().plot(result)
        for name, tint in zip(STRATEGIES, TINTS):
            (loss,) = result.select(quantity=LOSS, at={"strategy": name}).column("value")
            figure.axes[0].axhline(loss, color=tint, linewidth=0.9, linestyle=DASHED)
        figure.axes[0].set_ylim(None, 1.17)
        return figure

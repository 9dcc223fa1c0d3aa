"""Strategies over training: the loss of one and two layers on Markov chains, and their divergence from each
strategy.

Source: :cite:t:`edelman2024evolution`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ....core.experiment import RandomExperiment, setting
from ....core.measurement import Measurement
from ....core.plotting import axes, caption, label_ends, line, shades, style, text_figure
from ....core.result import Result
from ....core.sources import Source
from ..chains import STRATEGIES
from ..learning import CHAIN_STEPS, chain_curves

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME, SOURCE = "induction", Source("edelman2024evolution", status="own")
LOSS, DIVERGENCE = "loss on chains", "divergence from the strategy"
KINDS = {"one layer": 1, "two layers": 2}


@dataclass(frozen=True)
class Strategies(RandomExperiment):
    """Training of attention-only networks on Markov chains with three states, measured on new chains."""

    steps: int = setting(CHAIN_STEPS, ge=2, le=10**5, help="batches of 64 chains")
    chains: int = setting(300, ge=1, le=10**5, help="chains on which the networks are measured")

    name: ClassVar[str] = "induction.strategies"
    sources: ClassVar[tuple[Source, ...]] = (SOURCE,)

    @classmethod
    def quick(cls) -> "Strategies":
        """40 steps."""
        return cls(steps=40, chains=50)

    def measure(self) -> Iterator[Measurement]:
        """Yields the loss of each strategy, and loss and divergences of each network over the steps."""
        for layers in KINDS.values():
            curves = chain_curves(layers, self.seed, self.steps, self.chains)
            columns = {"unit": "nats", "n": self.chains, "source": SOURCE}
            if layers == 1:
                for name, loss in curves["strategies"].items():
                    yield Measurement(NAME, "figure", LOSS, loss, at={"strategy": name}, **columns)
            for number, step in enumerate(curves["steps"]):
                yield Measurement(
                    NAME, "figure", LOSS, curves["loss"][number], at={"layers": layers}, step=step, **columns
                )
                for name in STRATEGIES:
                    value = curves["divergence"][name][number]
                    yield Measurement(
                        NAME,
                        "figure",
                        DIVERGENCE,
                        value,
                        at={"layers": layers, "strategy": name},
                        step=step,
                        **columns,
                    )

    @style()
    def plot(self, result: Result) -> "Figure":
        """Draws the losses, and one panel of divergences per network."""
        if not result.select(quantity=DIVERGENCE):
            return text_figure(f"{self.name}: nothing was measured")
        figure, panels = axes(1, 3, width=7.0, height=2.8)
        tints = dict(zip(STRATEGIES, shades(3)))
        for name, tint in tints.items():
            for row in result.select(quantity=LOSS, at={"strategy": name}):
                panels[0].axhline(row.value, color=tint, linewidth=0.9, linestyle=(0, (4, 3)))
        for layers, dashes in zip(KINDS.values(), (":", "-")):
            rows = result.select(quantity=LOSS, at={"layers": layers})
            line(
                panels[0], [1 + step for step in rows.column("step")], rows.column("value"), linestyle=dashes
            )
        for ax, (kind, layers) in zip(panels[1:], KINDS.items()):
            for name, tint in tints.items():
                rows = result.select(quantity=DIVERGENCE, at={"layers": layers, "strategy": name})
                steps, label = [1 + step for step in rows.column("step")], name if ax is panels[2] else ""
                line(ax, steps, rows.column("value"), color=tint, label=label)
            ax.set(xlabel="step + 1", xscale="log", title=f"KL, {kind}", ylim=(0, 0.2))
        panels[0].set(xlabel="step + 1", xscale="log", title="loss, nats", ylim=(None, 1.17))
        label_ends(panels[2])
        caption(
            figure,
            "Chains of 3 states with random transition matrices. Left: loss with one layer (dotted) and "
            "two (solid); dashed lines: the strategies uniform, unigram and bigram from the top, on the "
            "same chains. Right: Kullback-Leibler divergence of the network from each strategy, nats.",
        )
        return figure

"""Attention that is sparse first and dense later (Fig. 3 or 4), and the learning speeds of salient
components.

The paper prints no numbers. A plain loop over the published descent (ten components from torch's seed 0, T =
3, 5000 steps of 0.02 from 0.05) gives the reference values of the figure. Inverting the time as an integral
over ln(delta) gives those of the ratios of ln(1/delta). The tests repeat both computations. Source:
:cite:t:`tian2024joma`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ....core.experiment import Experiment, setting
from ....core.figure import Panel, curves
from ....core.measurement import Measurement, Null, judge
from ....core.plotting import COLOURS, style
from ....core.result import Result
from ....core.sources import Source
from ....metrics.attention import entropy_lower_bound
from ..nonlinear import (
    attention_entropy,
    bounce,
    learning_ratio,
    linear_descent,
    log_remaining,
    published_mu,
    salient_descent,
    undecided,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

JOMA, FIGURE = Source("tian2024joma"), Source("tian2024joma", "Fig. 3 or 4", "second-hand")
SPEEDS = Source("tian2024joma", "Theorem 4", "second-hand")
ENTROPY = "entropy of attention"
LEAST_STEP = "step of the smallest entropy"
COMPONENT = "component at the end"
APPROACH = "component over its critical point"
BOUND = "lower bound of the entropy"
REBOUND = "rebound of the entropy"
FLOOR = "smallest entropy less its lower bound"
RATIO = "ratio of ln 1/δ"
PUBLISHED_ENTROPY = {"at the start": 2.3026, "least": 0.9416, "at the end": 1.5493}  # nats
PUBLISHED_LEAST_STEP = 669
PUBLISHED_COMPONENTS = (0.954, 1.067, 1.594, 2.180, 2.335, 2.363, 2.893, 2.899, 3.305, 3.689)
RATIO_MU = (3.0, 2.0, 1.0, 0.5)
# time -> ratios to the last component
RATIOS = {2.0: (59.3, 4.01, 1.19), 20.0: (77.7, 6.30, 1.43), 1000.0: (79.40, 6.516, 1.4545)}
DRAWN = 40  # number of steps of the curves, evenly spaced in their logarithm
LOOKS = {
    "nonlinear": {"color": "joma", "label": "nonlinear"},
    "linear": {"color": COLOURS["raw"], "label": "linear"},
}


@dataclass(frozen=True)
class TwoPhases(Experiment):
    """The ten components of the paper: descent with a nonlinear and with a linear MLP, and the entropy of
    attention.

    The experiment also measures ln(1/delta) of four components over time. Their ratios tend to exp((mu_j^2 -
    mu_k^2) / 2).
    """

    steps: int = setting(5000, ge=10, le=10**6, help="steps of the descent")
    rate: float = setting(0.02, ge=1e-6, le=1, help="learning rate")
    temperature: float = setting(3.0, ge=0.1, le=100, help="T in softmax(v²/T)")
    start: float = setting(0.05, ge=0, le=1, help="initial value of all components")
    until: float = setting(1000.0, ge=2, le=1e5, help="last time of the ratios")

    name: ClassVar[str] = "joma.two_phases"
    sources: ClassVar[tuple[Source, ...]] = (JOMA, Source("zhai2023stabilizing"))

    @classmethod
    def quick(cls) -> "TwoPhases":
        return cls(steps=1000, until=20.0)

    view = curves(
        "step",
        panels=(
            Panel(
                "Components",
                APPROACH,
                lines="μ",
                legend="",
                axes={"ylabel": "$v / \\mu$ (light: large $\\mu$)"},
            ),
            (
                Panel(
                    "Entropy of attention",
                    ENTROPY,
                    {},
                    ("MLP", LOOKS),
                    legend="ends",
                    axes={"ylabel": "nats"},
                ),
                Panel("", BOUND, lines=("quantity", {BOUND: {"color": COLOURS["null"], "label": "floor"}})),
            ),
            Panel(
                "Ratios of $\\ln(1/\\delta)$",
                RATIO,
                lines="μ",
                legend="upper left",
                axes={"xlabel": "time t", "yscale": "log"},
                x="time",
            ),
        ),
        log="x",
        caption="Floor: the least entropy that scores of the nonlinear run's norm allow. Right: over $\\mu$ "
        "= 1/2; dashed: their limits, $\\exp((\\mu^2-1/4)/2)$; crosses: recomputed independently.",
        size=(8.5, 2.9),
    )

    def measure(self) -> Iterator[Measurement]:
        """Yields components, entropies and ratios over time, with the values recomputed from the published
        settings.
        """
        mu, settings = (
            published_mu(),
            {"start": self.start, "rate": self.rate, "temperature": self.temperature, "steps": self.steps},
        )
        lower = {"nonlinear": salient_descent(mu, **settings), "linear": linear_descent(mu, **settings)}
        H = {name: attention_entropy(v, temperature=self.temperature) for name, v in lower.items()}
        yield from self._published_figure(mu, lower["nonlinear"], H["nonlinear"])
        rebound = {name: bounce(entropies).rebound for name, entropies in H.items()}
        null = Null("linear MLP with the same numbers", (rebound["linear"],))
        note = "End minus minimum."
        yield self._inequality(
            REBOUND, rebound["nonlinear"], 0.01, FIGURE, nulls=(null,), side=">=", note=note
        )
        scores = lower["nonlinear"].square() / self.temperature
        floor = entropy_lower_bound((scores - scores.mean(-1, keepdim=True)).norm(dim=-1), keys=len(mu))
        gaps = (H["nonlinear"] - floor)[undecided(H["nonlinear"], keys=len(mu))]
        if len(gaps):
            note = "Where the entropy differs by more than .1 from 0 and from its largest value."
            source = Source("zhai2023stabilizing", "Theorem 3.1", "second-hand")
            yield self._inequality(FLOOR, float(gaps.min()), 0.0, source, note=note)
        for step in np.unique(np.geomspace(1, self.steps, DRAWN).round().astype(int)).tolist():
            for token, (value, goal) in enumerate(zip(lower["nonlinear"][step].tolist(), mu.tolist())):
                yield self.row(APPROACH, value / goal, at={"component": token, "μ": goal}, step=step)
            for name, entropies in H.items():
                yield self.row(ENTROPY, float(entropies[step]), unit="nats", at={"MLP": name}, step=step)
            yield self.row(BOUND, float(floor[step]), unit="nats", step=step)
        yield from self._ratios()

    def _published_figure(self, mu: Tensor, lower: Tensor, H: Tensor) -> Iterator[Measurement]:
        """Yields the numbers of the figure, beside the recomputed ones at the published settings."""
        curve, published = bounce(H), self.at_defaults("steps", "rate", "temperature", "start")

        def row(quantity: str, value: float, recomputed: float, **columns: Any) -> Measurement:
            reference = (recomputed, "recomputed") if published else None
            return self.row(quantity, value, reference=reference, source=FIGURE, **columns)

        for (moment, recomputed), value in zip(
            PUBLISHED_ENTROPY.items(), (curve.start, curve.least, curve.end)
        ):
            yield row(ENTROPY, value, recomputed, unit="nats", at={"moment": moment})
        yield row(LEAST_STEP, float(curve.index), PUBLISHED_LEAST_STEP, unit="steps")
        for token, (value, recomputed) in enumerate(zip(lower[-1].tolist(), PUBLISHED_COMPONENTS)):
            yield row(COMPONENT, value, recomputed, at={"component": token, "μ": float(mu[token])})

    def _ratios(self) -> Iterator[Measurement]:
        """Yields the ratios of ln(1/delta) over time, with the recomputed ones of :data:`RATIOS`, and at the
        end beside their limits.
        """
        mu = torch.tensor(RATIO_MU, dtype=torch.float64)
        marks = [time for time in RATIOS if time <= self.until]
        times = torch.cat(
            [
                torch.logspace(-3, 0, 200, dtype=torch.float64) * self.until,
                torch.tensor(marks, dtype=torch.float64),
            ]
        ).unique()
        logs = log_remaining(mu, times)
        for token, limit in enumerate(learning_ratio(mu)[:-1, -1].tolist()):
            at = {"μ": RATIO_MU[token]}
            ratios = (logs[:, token] / logs[:, -1]).tolist()
            for index, (time, ratio) in enumerate(zip(times.tolist(), ratios)):
                reference = (RATIOS[time][token], "recomputed") if time in marks else None
                if reference or index % 5 == 0:
                    yield self.row(RATIO, ratio, reference=reference, at=at | {"time": time}, source=SPEEDS)
            yield self.row(RATIO, ratios[-1], reference=(limit, "limit"), at=at, source=SPEEDS)

    def _inequality(
        self, quantity: str, value: float, threshold: float, source: Source, **columns: Any
    ) -> Measurement:
        """Returns a row in nats that should be at least the threshold."""
        columns |= {"op": ">=", "threshold": threshold, "verdict": judge(value, ">=", threshold)}
        return self.row(quantity, value, unit="nats", predicted=threshold, source=source, **columns)

    @style()
    def plot(self, result: Result) -> "Figure":
        """Draws the view with the limits of the ratios."""
        figure = super().plot(result)
        for limit in result.table.select(quantity=RATIO, basis="limit").column("predicted"):
            figure.axes[2].axhline(limit, color=COLOURS["null"], linewidth=0.9, linestyle=(0, (4, 3)))
        return figure

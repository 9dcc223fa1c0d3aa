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
from ....core.measurement import Arrays, Measurement, Null, judge
from ....core.plotting import COLOURS, axes, caption, label_ends, line, style, text_figure
from ....core.result import Result
from ....core.sources import Source
from ....metrics.attention import entropy_lower_bound
from ..nonlinear import (
    attention,
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

NAME, JOMA, FIGURE = "joma", Source("tian2024joma"), Source("tian2024joma", "Fig. 3 or 4", "second-hand")
SPEEDS = Source("tian2024joma", "Theorem 4", "second-hand")
ENTROPY = "entropy of attention"
LEAST_STEP = "step of the smallest entropy"
COMPONENT = "component at the end"
REBOUND = "rebound of the entropy"
FLOOR = "smallest entropy less its lower bound"
RATIO = "ratio of ln 1/δ"
PUBLISHED_ENTROPY = {"at the start": 2.3026, "least": 0.9416, "at the end": 1.5493}  # nats
PUBLISHED_LEAST_STEP = 669
PUBLISHED_COMPONENTS = (0.954, 1.067, 1.594, 2.180, 2.335, 2.363, 2.893, 2.899, 3.305, 3.689)
RATIO_MU = (3.0, 2.0, 1.0, 0.5)
# time -> ratios to the last component
RATIOS = {2.0: (59.3, 4.01, 1.19), 20.0: (77.7, 6.30, 1.43), 1000.0: (79.40, 6.516, 1.4545)}


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

    def measure(self) -> Iterator[Measurement | Arrays]:
        """Yields entropies, final components and ratios, with the values recomputed from the published
        settings.
        """
        mu, settings = (
            published_mu(),
            {"start": self.start, "rate": self.rate, "temperature": self.temperature, "steps": self.steps},
        )
        lower = {"nonlinear": salient_descent(mu, **settings), "linear": linear_descent(mu, **settings)}
        H = {name: attention_entropy(v, temperature=self.temperature) for name, v in lower.items()}
        yield from self._published_figure(lower["nonlinear"], H["nonlinear"])
        rebound = {name: bounce(entropies).rebound for name, entropies in H.items()}
        null = Null("linear MLP with the same numbers", (rebound["linear"],))
        yield _inequality(
            REBOUND,
            rebound["nonlinear"],
            0.01,
            source=FIGURE,
            nulls=(null,),
            side=">=",
            note="End minus minimum.",
        )
        scores = lower["nonlinear"].square() / self.temperature
        floor = entropy_lower_bound((scores - scores.mean(-1, keepdim=True)).norm(dim=-1), keys=len(mu))
        gaps = (H["nonlinear"] - floor)[undecided(H["nonlinear"], keys=len(mu))]
        if len(gaps):
            note = "Where the entropy differs by more than .1 from 0 and from its largest value."
            yield _inequality(
                FLOOR,
                float(gaps.min()),
                0.0,
                source=Source("zhai2023stabilizing", "Theorem 3.1", "second-hand"),
                note=note,
            )
        times, logs, rows = self._ratios()
        yield from rows
        arrays = {"mu": mu, "floor": floor, "times": times, "logs": logs}
        arrays["attention"] = attention(lower["nonlinear"], temperature=self.temperature)
        arrays |= {f"entropy_{name}": values for name, values in H.items()} | {
            f"lower_{name}": values for name, values in lower.items()
        }
        arrays["ratios"] = learning_ratio(torch.tensor(RATIO_MU, dtype=torch.float64))[:, -1]
        yield Arrays({f"{NAME}/{name}": values.numpy() for name, values in arrays.items()})

    def _published_figure(self, lower: Tensor, H: Tensor) -> Iterator[Measurement]:
        curve, published = bounce(H), self.at_defaults("steps", "rate", "temperature", "start")
        values = zip(PUBLISHED_ENTROPY.items(), (curve.start, curve.least, curve.end))
        for (when, recomputed), value in values:
            yield _recomputed(
                ENTROPY,
                value,
                recomputed if published else None,
                unit="nats",
                at={"setting": when},
                source=FIGURE,
            )
        recomputed = float(PUBLISHED_LEAST_STEP) if published else None
        yield _recomputed(LEAST_STEP, float(curve.index), recomputed, unit="steps", source=FIGURE)
        for token, (value, recomputed) in enumerate(zip(lower[-1].tolist(), PUBLISHED_COMPONENTS)):
            yield _recomputed(
                COMPONENT,
                value,
                recomputed if published else None,
                at={"setting": f"component {token}"},
                source=FIGURE,
            )

    def _ratios(self) -> tuple[Tensor, Tensor, list[Measurement]]:
        """Returns the times, ln(delta), and the rows of the ratios at the times of :data:`RATIOS` and at the
        end.
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
        pairs = [f"μ = {value:g} over μ = {RATIO_MU[-1]:g}" for value in RATIO_MU[:-1]]
        rows = []
        for time in marks:
            index = int((times == time).nonzero())
            for token, recomputed in enumerate(RATIOS[time]):
                where = f"{pairs[token]}, t = {time:g}"
                rows.append(
                    _recomputed(
                        RATIO,
                        float(logs[index, token] / logs[index, -1]),
                        recomputed,
                        at={"setting": where},
                        source=SPEEDS,
                    )
                )
        for token, limit in enumerate(learning_ratio(mu)[:-1, -1].tolist()):
            columns = {
                "predicted": limit,
                "basis": "limit",
                "at": {"setting": f"{pairs[token]}, at the end"},
                "source": SPEEDS,
            }
            rows.append(Measurement(NAME, "figure", RATIO, float(logs[-1, token] / logs[-1, -1]), **columns))
        return times, logs, rows

    @style()
    def plot(self, result: Result) -> "Figure":
        """Plots components, the entropy of attention (with its floor, and for the linear MLP), and the ratios
        of ln(1/δ) with limits.
        """
        if f"{NAME}/mu" not in result.arrays:
            return text_figure(f"{self.name}: nothing was measured")
        figure, (left, middle, right) = axes(1, 3, height=2.9, width=8.5)
        mu, lower = result.arrays[f"{NAME}/mu"], result.arrays[f"{NAME}/lower_nonlinear"]
        steps = np.arange(1, len(lower) + 1)
        for token in range(len(mu)):
            shade = 0.25 + 0.75 * token / max(1, len(mu) - 1)
            line(left, steps, lower[:, token] / mu[token], name=NAME, alpha=shade, linewidth=1.1)
        left.set(title="Components", xlabel="step", ylabel="$v / \\mu$ (dark: large $\\mu$)", xscale="log")
        for key, name, label in (
            ("entropy_nonlinear", NAME, "nonlinear"),
            ("entropy_linear", "raw", "linear"),
        ):
            line(middle, steps, result.arrays[f"{NAME}/{key}"], name=name, label=label)
        line(middle, steps, result.arrays[f"{NAME}/floor"], name="null", label="floor", linewidth=1.0)
        middle.set(title="Entropy of attention", xlabel="step", ylabel="nats", xscale="log")
        label_ends(middle)
        times, logs, limits = (result.arrays[f"{NAME}/{name}"] for name in ("times", "logs", "ratios"))
        for token in range(logs.shape[1] - 1):
            line(right, times, logs[:, token] / logs[:, -1], name=NAME, alpha=1 - 0.3 * token)
            right.axhline(limits[token], color=COLOURS["null"], linewidth=0.9, linestyle=(0, (4, 3)))
        right.set(title="Ratios of $\\ln(1/\\delta)$", xlabel="time t", xscale="log", yscale="log")
        caption(
            figure,
            "Floor: the least entropy that scores of the nonlinear run's norm allow. Right: $\\mu$ = 3, 2, "
            "1 over $\\mu$ = 1/2; dashed: their limits, $\\exp((\\mu^2-1/4)/2)$.",
        )
        return figure


def _recomputed(quantity: str, value: float, predicted: float | None, **columns: Any) -> Measurement:
    basis = "theory" if predicted is None else "recomputed"
    return Measurement(NAME, "figure", quantity, value, predicted=predicted, basis=basis, **columns)


def _inequality(quantity: str, value: float, threshold: float, **columns: Any) -> Measurement:
    limits = {
        "predicted": threshold,
        "op": ">=",
        "threshold": threshold,
        "verdict": judge(value, ">=", threshold),
    }
    return Measurement(NAME, "figure", quantity, value, unit="nats", **limits, **columns)

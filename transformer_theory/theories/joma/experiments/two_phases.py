"""Attention that is sparse first and dense later: the paper's Fig. 4, and how much faster salient components are learnt.

Source: :cite:t:`tian2024joma`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from ....core.claims import Evidence
from ....core.experiment import Experiment, setting
from ....core.measurement import Arrays, Row, finding
from ....core.result import Result
from ....core.sources import Source
from ....metrics.attention import entropy_lower_bound
from .. import published
from ..figures import two_phases
from ..nonlinear import (
    attention,
    attention_entropy,
    bounce,
    learning_ratio,
    linear_descent,
    log_remaining,
    on_the_way,
    published_mu,
    salient_descent,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME, FIGURE = "joma", Source("tian2024joma", "Fig. 4")


@dataclass(frozen=True)
class TwoPhases(Experiment):
    """Ten components of the published draw: descent with a nonlinear MLP, entropy of attention, beside a linear MLP with the same numbers.

    Then ln(1/delta) of four components over time, whose ratios tend to exp((mu_j^2 - mu_k^2) / 2).
    """

    steps: int = setting(5000, ge=10, le=10**6, help="of the descent")
    rate: float = setting(0.02, gt=0, le=1, help="learning rate")
    temperature: float = setting(3.0, ge=0.1, le=100, help="T in softmax(v²/T)")
    start: float = setting(0.05, ge=0, le=1, help="all components at the start")
    until: float = setting(1000.0, ge=2, le=1e5, help="time up to which the ratios are followed")

    name: ClassVar[str] = "joma.two_phases"
    sources: ClassVar[tuple[Source, ...]] = (Source("tian2024joma"), Source("zhai2023stabilizing"))

    @classmethod
    def quick(cls) -> "TwoPhases":
        return cls(steps=1000, until=20.0)

    def measure(self) -> Iterator[Row | Arrays]:
        """Entropies, final components and ratios, beside the numbers recomputed from the published settings."""
        mu, settings = published_mu(), {"start": self.start, "rate": self.rate, "temperature": self.temperature, "steps": self.steps}
        lower = {"nonlinear": salient_descent(mu, **settings), "linear": linear_descent(mu, **settings)}
        H = {name: attention_entropy(v, temperature=self.temperature) for name, v in lower.items()}
        yield from self._fig4(lower["nonlinear"], H["nonlinear"])
        rebound = {name: bounce(entropies).rebound for name, entropies in H.items()}
        note = "end less least, nats; null: a linear MLP with the same numbers; the line is ours"
        evidence = Evidence(rebound["nonlinear"], 0.01, ">=")
        yield finding(NAME, "rebound of the entropy", evidence, source=FIGURE, null=rebound["linear"], note=note)
        scores = lower["nonlinear"].square() / self.temperature
        floor = entropy_lower_bound((scores - scores.mean(-1, keepdim=True)).norm(dim=-1), keys=len(mu))
        gaps = (H["nonlinear"] - floor)[on_the_way(H["nonlinear"], keys=len(mu))]
        if len(gaps):
            least = Evidence(float(gaps.min()), 0.0, ">=")
            note = "nats; where the entropy is more than .1 from 0 and from its largest value"
            yield finding(NAME, "entropy less its lower bound, smallest", least, source=Source("zhai2023stabilizing"), note=note)
        times, logs = yield from self._ratios()
        arrays = {
            "mu": mu,
            "floor": floor,
            "times": times,
            "logs": logs,
            "attention": attention(lower["nonlinear"], temperature=self.temperature),
        }
        arrays |= {f"entropy_{name}": values for name, values in H.items()} | {f"lower_{name}": values for name, values in lower.items()}
        arrays["ratios"] = learning_ratio(torch.tensor(published.RATIO_MU, dtype=torch.float64))[:, -1]
        yield Arrays({f"{NAME}/{name}": values.numpy() for name, values in arrays.items()})

    def _fig4(self, lower: torch.Tensor, H: torch.Tensor) -> Iterator[Row]:
        found = bounce(H)
        usual = self.at_defaults("steps", "rate", "temperature", "start")
        values = dict(zip(published.FIG4_ENTROPY, (found.start, found.least, found.end)))
        for when, value in values.items():
            yield self._row(f"entropy of attention {when}", value, published.FIG4_ENTROPY[when] if usual else None)
        yield self._row("step of the least entropy", float(found.at), float(published.FIG4_LEAST_AT) if usual else None)
        for token, value in enumerate(lower[-1].tolist()):
            yield self._row(f"component {token} at the end", value, published.FIG4_COMPONENTS[token] if usual else None)

    def _ratios(self):
        mu = torch.tensor(published.RATIO_MU, dtype=torch.float64)
        marks = [time for time in published.RATIOS if time <= self.until]
        times = torch.cat([torch.logspace(-3, 0, 200, dtype=torch.float64) * self.until, torch.tensor(marks, dtype=torch.float64)]).unique()
        logs = log_remaining(mu, times)
        for time in marks:
            at = int((times == time).nonzero())
            for token, wanted in enumerate(published.RATIOS[time]):
                what = f"ln 1/δ of μ = {published.RATIO_MU[token]:g} over that of μ = {published.RATIO_MU[-1]:g}, t = {time:g}"
                yield self._row(what, float(logs[at, token] / logs[at, -1]), wanted)
        for token, wanted in enumerate(learning_ratio(mu)[:-1, -1].tolist()):
            value = float(logs[-1, token] / logs[-1, -1])
            what = f"ln 1/δ of μ = {published.RATIO_MU[token]:g} over that of μ = {published.RATIO_MU[-1]:g}, at the end"
            yield Row(theory=NAME, quantity=what, value=value, predicted=wanted, basis="limit", source=str(Source("tian2024joma")))
        return times, logs

    def _row(self, quantity: str, value: float, predicted: float | None) -> Row:
        row = Row(theory=NAME, quantity=quantity, value=value, source=str(FIGURE))
        if predicted is not None:
            row["predicted"], row["basis"] = predicted, "recomputed"
        return row

    def draw(self, result: Result) -> "Figure":
        """Components, entropy with its floor, and ratios."""
        return two_phases(result)

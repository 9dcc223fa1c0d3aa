"""The dynamics of one instance side by side."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from ....citations import Source
from ....claims import Evidence
from ....experiment import Experiment, Result, parameter
from ....rows import Arrays, Row, finding
from ..closed_form import B, scanning_time
from ..figures import fates
from ..flow import exact_flow, lemma4_flow, modified_flow
from ..gains import relative_gains
from ..problem import single_common

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME, PAPER = "scan_snap", "tian2023scan"


@dataclass(frozen=True)
class Fates(Experiment):
    """One common token against the distinct tokens, over decades of time in four dynamics: exact, Lemma 3's, Lemma 4's, closed form."""

    classes: int = parameter(2, at_least=2, says="number K of classes")
    vocab_size: int = parameter(1000, at_least=2, says="number M of next tokens, at least K")
    distinct: int = parameter(10, at_least=2, says="tokens of each class that no other has, of weights 0.1 to 1")
    common_share: float = parameter(0.2, at_least=1e-6, at_most=0.999, says="probability of the common token in each class")
    eta_y: float = parameter(1.0, at_least=1e-2, at_most=1e3, says="learning rate of the decoder")
    eta_z: float = parameter(0.01, at_least=1e-6, at_most=1, says="learning rate of attention")
    decades: float = parameter(4.0, above=0, at_most=12, says="the flows end at 10 to this power times t0', when scanning ends")

    name: ClassVar[str] = "scan_snap.fates"
    sources: ClassVar[tuple[Source, ...]] = (Source(PAPER),)

    @classmethod
    def quick(cls) -> "Fates":
        return cls(distinct=4, decades=2.0)

    def measure(self) -> Iterator[Row | Arrays]:
        weights = torch.linspace(0.1, 1, self.distinct, dtype=torch.float64).expand(self.classes, -1)
        classes = single_common(weights, self.common_share, vocab_size=self.vocab_size)
        t0 = scanning_time(classes=self.classes, vocab_size=self.vocab_size, eta_y=self.eta_y)
        times = t0 * torch.logspace(-1, self.decades, 60, dtype=torch.float64)
        overlap = classes.weak_overlap()
        rates = {"eta_y": self.eta_y, "eta_z": self.eta_z}
        exact, modified, lemma4 = (flow(classes, times, **rates) for flow in (exact_flow, modified_flow, lemma4_flow))
        closed = -B(times, classes=self.classes, vocab_size=self.vocab_size, overlap=float(classes.overlap()[0, 1]), **rates)
        flows = {"exact": exact, "modified": modified, "lemma4": lemma4}
        gains = {key: relative_gains(classes, flow.logits) for key, flow in flows.items()}
        errors = {key: ((g.measured - g.predicted).abs() / g.measured.abs()).max(1).values for key, g in gains.items()}
        end = float(times[-1])
        for key, flow in flows.items():
            note = f"{flow.dynamics} after {end:.3g} steps; the line is its sign, the value predicted the closed form -B(t) (Thm. 4)"
            yield finding(
                NAME,
                f"logit of the common token, {flow.dynamics}",
                Evidence(float(flow.logits[-1, 0, 0]), 0.0, "<=", in_assumptions=overlap.holds and key == "lemma4"),
                source=Source(PAPER, "Thm. 2"),
                predicted=float(closed[-1]),
                note=note,
            )
            yield finding(
                NAME,
                f"largest relative error of r(0) chi(t), {flow.dynamics}",
                Evidence(float(errors[key].max()), 1e-9, "<=", in_assumptions=key == "lemma4"),
                source=Source(PAPER, "Thm. 3"),
                predicted=0.0,
            )
        yield Arrays(
            {
                f"{NAME}/times": times.numpy(),
                f"{NAME}/scanning_time": torch.tensor(t0).numpy(),
                f"{NAME}/common_closed": closed.numpy(),
            }
            | {f"{NAME}/common_{key}": flow.logits[:, 0, 0].numpy() for key, flow in flows.items()}
            | {f"{NAME}/logits_{key}": flow.logits[:, 0].numpy() for key, flow in flows.items()}
            | {f"{NAME}/gain_error_{key}": error.numpy() for key, error in errors.items()}
        )

    def draw(self, result: Result) -> "Figure":
        return fates(result)

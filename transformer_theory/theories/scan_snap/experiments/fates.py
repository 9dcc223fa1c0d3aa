"""The dynamics of one instance side by side."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from ....core.claims import Evidence
from ....core.experiment import Experiment, setting
from ....core.measurement import Arrays, Row, finding
from ....core.result import Result
from ....core.sources import Source
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

    classes: int = setting(2, ge=2, help="number K of classes")
    vocab_size: int = setting(1000, ge=2, help="number M of next tokens, at least K")
    distinct: int = setting(10, ge=2, help="tokens of each class that no other has, of weights 0.1 to 1")
    common_share: float = setting(0.2, ge=1e-6, le=0.999, help="probability of the common token in each class")
    eta_y: float = setting(1.0, ge=1e-2, le=1e3, help="learning rate of the decoder")
    eta_z: float = setting(0.01, ge=1e-6, le=1, help="learning rate of attention")
    decades: float = setting(4.0, gt=0, le=12, help="the flows end at 10 to this power times t0', when scanning ends")

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
                Evidence(float(flow.logits[-1, 0, 0]), 0.0, "<=", covered=overlap.holds and key == "lemma4"),
                source=Source(PAPER, "Thm. 2"),
                predicted=float(closed[-1]),
                note=note,
            )
            yield finding(
                NAME,
                f"largest relative error of r(0) chi(t), {flow.dynamics}",
                Evidence(float(errors[key].max()), 1e-9, "<=", covered=key == "lemma4"),
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

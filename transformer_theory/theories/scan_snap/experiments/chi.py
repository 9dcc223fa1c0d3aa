"""How far distinct tokens are told apart, as in the paper's Figure 3, whose axis does not say what it shows."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from ....core.claims import Evidence
from ....core.experiment import Experiment, setting
from ....core.measurement import Arrays, Row, finding
from ....core.result import Result
from ....core.sources import Source
from ..closed_form import Gamma, printed_B, snapping_time
from ..families import with_overlap
from ..figures import chi
from ..flow import symmetric_lemma4_flow

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME, PAPER = "scan_snap", "tian2023scan"

FIGURE = Source(PAPER, "Fig. 3")


@dataclass(frozen=True)
class Chi(Experiment):
    """The growth factor chi of relative gains for several rates of the decoder, with what bounds it.

    The figure shows chi_l(t) on an axis up to 600 and states neither C_0 nor P(l | n). Its bound exp(2 B) with C_0 = 1 reaches 45 at most;
    Gamma itself would fill the axis. With the class's share the bound is exp(2 B / K), and the measured chi of Lemma 4's flow lies below.
    """

    classes: int = setting(10, ge=2, help="number K of classes")
    vocab_size: int = setting(1000, ge=2, help="number M of next tokens, at least K")
    eta_y: tuple[float, ...] = setting((0.5, 1.0, 2.0, 5.0), ge=1e-2, le=1e2, help="learning rates of the decoder")
    eta_z: float = setting(0.5, ge=1e-4, le=1e2, help="learning rate of attention")
    end: float = setting(700.0, ge=1.0, le=1e6, help="last step")
    overlap: float = setting(1 / 3, ge=1e-4, le=0.99, help="E_0 of the instance; (K - 1) E_0^2 = 1 is C_0 = 1")

    name: ClassVar[str] = "scan_snap.chi"
    sources: ClassVar[tuple[Source, ...]] = (FIGURE,)

    def measure(self) -> Iterator[Row | Arrays]:
        """chi at the end, its bounds exp(2 B / K) and exp(2 B), and Gamma."""
        t = torch.linspace(0, self.end, 141, dtype=torch.float64)[1:]
        family = with_overlap(
            self.classes, vocab_size=self.vocab_size, weights=torch.linspace(0.1, 1, 10, dtype=torch.float64), overlap=self.overlap
        )
        constant = 1 / ((self.classes - 1) * self.overlap**2)
        kept: dict[str, list[np.ndarray]] = {"chi": [], "bound": [], "printed": [], "Gamma": []}
        starts = []
        for eta_y in self.eta_y:
            setting = {"classes": self.classes, "vocab_size": self.vocab_size, "eta_y": eta_y}
            starts.append(snapping_time(**setting))
            B = printed_B(t, eta_z=self.eta_z, constant=constant, **setting) - np.log(constant) / 4
            flow = symmetric_lemma4_flow(family, t, eta_y=eta_y, eta_z=self.eta_z)
            curves = {
                "chi": torch.exp(2 * flow.distinct[:, -1]),
                "bound": torch.exp(2 * B / self.classes),
                "printed": torch.exp(2 * B),
                "Gamma": Gamma(t, eta_z=self.eta_z, **setting),
            }
            for key, curve in curves.items():
                kept[key].append(curve.numpy())
            end = {key: float(curve[-1]) for key, curve in curves.items()}
            yield finding(
                NAME,
                f"chi of the likeliest distinct token, Lemma 4's flow, eta_Y = {eta_y:g}",
                Evidence(end["chi"], end["bound"], "<=", covered=family.weak_overlap().holds),
                source=Source(PAPER, "Thm. 3"),
                note=f"line: exp(2 B/K) = {end['bound']:.4f}; exp(2 B) = {end['printed']:.2f}, Gamma = {end['Gamma']:.1f}; "
                "which of them Figure 3 shows is unclear",
            )
        yield Arrays(
            {f"{NAME}/times": t.numpy(), f"{NAME}/t0": np.array(starts)}
            | {f"{NAME}/{key}": np.stack(curves) for key, curves in kept.items()}
        )

    def draw(self, result: Result) -> "Figure":
        return chi(result)

"""Local exponents of the growth of attention over a hundred decades of time, in closed form and in the flows."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from ....core.claims import Evidence
from ....core.experiment import Experiment, setting
from ....core.measurement import Arrays, Row, finding
from ....core.result import Result
from ....core.sources import Source
from ..closed_form import scanning_time
from ..families import with_overlap
from ..figures import exponents
from ..flow import symmetric_exact_flow, symmetric_lemma4_flow
from ..growth import growth_exponents, longest_logarithmic_growth

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME, PAPER = "scan_snap", "tian2023scan"

THEOREM = Source(PAPER, "Thm. 4")
PLACES = (0.01, 0.1, 0.5, 5.0, 1e2, 1e6, 1e20, 1e100)


@dataclass(frozen=True)
class Exponents(Experiment):
    """Power of t, of ln t and of ln ln t with which the common token's logit falls: where the theorem's two regimes are."""

    classes: int = setting(2, ge=2, help="number K of classes")
    vocab_size: int = setting(1000, ge=2, help="number M of next tokens, at least K")
    overlap: float = setting(0.3, ge=1e-4, le=0.99, help="overlap E_0 of the classes")
    eta_z: float = setting(0.01, ge=1e-4, le=1e2, help="learning rate of attention; the decoder's is 1")
    decades: float = setting(100.0, ge=1.0, le=280.0, help="the curves end at 10 to this power times t0'")

    name: ClassVar[str] = "scan_snap.exponents"
    sources: ClassVar[tuple[Source, ...]] = (THEOREM,)

    @classmethod
    def quick(cls) -> "Exponents":
        return cls(decades=12.0)

    def measure(self) -> Iterator[Row | Arrays]:
        """Exponents at chosen times in closed form, and all along the closed form, Lemma 4's flow and the exact flow."""
        K, M = self.classes, self.vocab_size
        t0 = scanning_time(classes=K, vocab_size=M, eta_y=1.0)
        at = partial(growth_exponents, classes=K, vocab_size=M, eta_y=1.0, eta_z=self.eta_z, overlap=self.overlap)
        for place in (place for place in PLACES if place <= 10**self.decades):
            found = at(torch.tensor([place * t0], dtype=torch.float64))
            note = f"dB/dln t = {float(found.per_log[0]):.4f}, dB/dln ln(M eta_Y t/K) = {float(found.per_loglog[0]):.4f}"
            quantity = f"dln B/dln t at {place:g} t0'"
            if place > 0.1:
                yield Row(theory=NAME, quantity=quantity, value=float(found.power[0]), source=str(THEOREM), note=note)
                continue
            evidence = Evidence(float(found.power[0]), 1.95, ">=")
            yield finding(NAME, quantity, evidence, source=THEOREM, predicted=2.0, basis="limit", note=note)
        scanned = longest_logarithmic_growth(classes=K, vocab_size=M, eta_y=1.0, eta_z=self.eta_z, overlap=self.overlap)
        note = "dB/dln t within 10 % of 1/2, in closed form"
        yield Row(theory=NAME, quantity="decades of logarithmic growth", value=scanned, source=str(THEOREM), note=note)
        t = t0 * torch.logspace(-2, self.decades, int(12 * (self.decades + 2)), dtype=torch.float64)
        family = with_overlap(K, vocab_size=M, weights=torch.linspace(0.1, 1, 10, dtype=torch.float64), overlap=self.overlap)
        closed = at(t)
        inner = (M * t / K).log().numpy()
        curves = {"closed": (closed.power.numpy(), closed.per_loglog.numpy())}
        for key, flow in (("lemma4", symmetric_lemma4_flow), ("exact", symmetric_exact_flow)):
            fallen = -flow(family, t, eta_y=1.0, eta_z=self.eta_z, tolerance=1e-11).common[:, 0].numpy()
            power = np.gradient(np.log(fallen), t.log().numpy())
            curves[key] = (power, power * fallen * inner)
        yield Arrays(
            {f"{NAME}/times": (t / t0).numpy()}
            | {f"{NAME}/power_{key}": power for key, (power, _) in curves.items()}
            | {f"{NAME}/per_loglog_{key}": slope for key, (_, slope) in curves.items()}
        )

    def draw(self, result: Result) -> "Figure":
        return exponents(result)

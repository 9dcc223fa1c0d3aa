"""The growth of B on two time scales, as in the paper's Figure 9: where attention snaps depends on the ratio of the rates alone."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from ....citations import Source
from ....claims import Evidence
from ....experiment import Experiment, Result, parameter
from ....rows import Arrays, Row, finding
from ..closed_form import gamma, printed_B, snapping_time
from ..figures import b_growth

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME, PAPER = "scan_snap", "tian2023scan"

FIGURE = Source(PAPER, "Fig. 9")


@dataclass(frozen=True)
class BGrowth(Experiment):
    """B(t) in closed form for several learning rates of attention at a fixed ratio of the rates: two panels.

    The figure does not state the constant and the number of classes; with C_0 = 1 and K = 1 the curves fill its axes (0.8 and 1.6).

    Raises:
        ValueError: a parameter is beyond its bounds, or the panels' tuples have different lengths.
    """

    vocab_sizes: tuple[int, ...] = parameter((100, 10_000), at_least=3, says="vocabulary M, one a panel")
    ratios: tuple[float, ...] = parameter((10.0, 1.0), at_least=1e-3, at_most=1e3, says="eta_Y / eta_Z, one a panel")
    ends: tuple[float, ...] = parameter((5.0, 50.0), at_least=1e-3, at_most=1e6, says="last step, one a panel")
    eta_z: tuple[float, ...] = parameter((0.5, 1.0, 2.0, 4.0, 8.0), at_least=1e-3, at_most=1e3, says="learning rates of attention")
    classes: int = parameter(1, at_least=1, says="number K of classes")
    constant: float = parameter(1.0, at_least=1e-6, at_most=1e6, says="C_0, the constant of Theorem 4")

    name: ClassVar[str] = "scan_snap.b_growth"
    sources: ClassVar[tuple[Source, ...]] = (FIGURE,)

    def __post_init__(self):
        super().__post_init__()
        if not len(self.vocab_sizes) == len(self.ratios) == len(self.ends):
            given = f"{len(self.vocab_sizes)}, {len(self.ratios)} and {len(self.ends)}"
            raise ValueError(f"vocab_sizes, ratios and ends must have one entry a panel each, got {given}; make them equally long")

    def measure(self) -> Iterator[Row | Arrays]:
        """B at the end of each curve beside the integral of gamma by quadrature, and its value at t0."""
        for panel, (M, ratio, end) in enumerate(zip(self.vocab_sizes, self.ratios, self.ends)):
            times = torch.linspace(0, end, 201, dtype=torch.float64)
            curves, starts, at_t0 = [], [], []
            for eta_z in self.eta_z:
                setting = {"classes": self.classes, "vocab_size": M, "eta_y": ratio * eta_z}
                curves.append(printed_B(times, eta_z=eta_z, constant=self.constant, **setting))
                starts.append(snapping_time(**setting))
                t0 = torch.tensor([starts[-1]], dtype=torch.float64)
                at_t0.append(float(printed_B(t0, eta_z=eta_z, constant=self.constant, **setting)[0]))
                yield self._end(eta_z, end, setting, float(curves[-1][-1]))
            yield finding(
                NAME,
                f"B(t0) for M = {M}, eta_Y / eta_Z = {ratio:g}: largest minus smallest over eta_Z",
                Evidence(max(at_t0) - min(at_t0), 1e-12, "<="),
                source=FIGURE,
                predicted=0.0,
                note=f"B(t0) = {at_t0[0]:.4f}: it depends on K, M and the ratio only; t0 = 2 K ln M / eta_Y",
            )
            arrays = {"times": times.numpy(), "b": torch.stack(curves).numpy(), "t0": np.array(starts), "b_t0": np.array(at_t0)}
            yield Arrays({f"{NAME}/{key}_{panel}": value for key, value in arrays.items()})

    def _end(self, eta_z: float, end: float, setting: dict, value: float) -> Row:
        from scipy.integrate import quad

        def rate(t: float) -> float:
            return float(gamma(torch.tensor([t], dtype=torch.float64), **setting)[0])

        area = eta_z * quad(rate, 0, end, epsabs=0, epsrel=1e-10, limit=200)[0]
        return Row(
            theory=NAME,
            quantity=f"B({end:g}) for M = {setting['vocab_size']}, eta_Z = {eta_z:g}",
            value=value,
            predicted=float(np.log(self.constant + 4 * area) / 4),
            basis="recomputed",
            source=str(FIGURE),
            note="predicted: gamma integrated numerically in the place of its closed form",
        )

    def draw(self, result: Result) -> "Figure":
        return b_growth(result)

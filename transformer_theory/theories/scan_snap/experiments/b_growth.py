"""The growth of B on two time scales, as in the paper's Figure 9: where attention snaps depends on the ratio of the rates alone."""

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
        ValueError: a setting is beyond its bounds, or the panels' tuples have different lengths.
    """

    vocab_sizes: tuple[int, ...] = setting((100, 10_000), ge=3, help="vocabulary M, one a panel")
    ratios: tuple[float, ...] = setting((10.0, 1.0), ge=1e-3, le=1e3, help="eta_Y / eta_Z, one a panel")
    ends: tuple[float, ...] = setting((5.0, 50.0), ge=1e-3, le=1e6, help="last step, one a panel")
    eta_z: tuple[float, ...] = setting((0.5, 1.0, 2.0, 4.0, 8.0), ge=1e-3, le=1e3, help="learning rates of attention")
    classes: int = setting(1, ge=1, help="number K of classes")
    constant: float = setting(1.0, ge=1e-6, le=1e6, help="C_0, the constant of Theorem 4")

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

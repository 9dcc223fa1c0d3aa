"""The growth of B (Theorem 4, Figure 9). For fixed K and M, B at the snapping time depends only on the ratio
of the rates.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch

from ....core.experiment import setting
from ....core.figure import Panel, Reading, draw_curves, figure, reading
from ....core.plotting import COLOURS, axes, caption, style
from ....core.result import Result
from ....core.sources import Source
from ..closed_form import gamma, printed_B, snapping_time

if TYPE_CHECKING:
    from matplotlib.figure import Figure

B_CURVE, B_SNAPPED = "B", "B at the snapping time t0"
B_AT_END, B_SPREAD = "B at the last step", "largest minus smallest B(t0) over eta_Z"
POINTS = 101  # points of a curve
SPREAD_ATOL = 1e-12


@style()
def draw(result: Result) -> "Figure":
    """Draws B over the steps, one panel per ratio; dots at t0 have the same height."""
    sizes, ratios = result.settings["vocab_sizes"], result.settings["ratios"]
    drawn, panels = axes(1, len(ratios))
    for ax, M, ratio in zip(panels, sizes, ratios):
        at, look = {"M": M, "ratio": ratio}, {"xlabel": "step", "ylim": (0, None)}
        title = f"$B(t)$, $M$ = {M}, $\\eta_Y/\\eta_Z$ = {ratio:g}"
        curve = Panel(title, B_CURVE, at, "eta_Z", legend="lower right", axes=look)
        draw_curves(ax, result, curve, x="t")
        snapped = result.select(quantity=B_SNAPPED, at=at)
        ax.plot([row.at["t"] for row in snapped], snapped.column("value"), "o--", color=COLOURS["null"])
    caption(drawn, "Dots: the snapping time $t_0$. Dashed: B at $t_0$, the same for all.")
    return drawn


def check(vocab_sizes: tuple[int, ...], ratios: tuple[float, ...], ends: tuple[float, ...]) -> None:
    """Checks that there is one entry per panel.

    Raises:
        ValueError: the lengths differ.
    """
    lengths = [len(vocab_sizes), len(ratios), len(ends)]
    if len(set(lengths)) > 1:
        raise ValueError(
            f"vocab_sizes, ratios and ends must have one entry per panel each, got lengths {lengths}; make "
            "them equal"
        )


@figure(
    "scan_snap.b_growth",
    source=Source("tian2023scan", "Fig. 9"),
    view=draw,
    check=check,
    quick={"eta_z": (0.5, 8.0)},
)
def b_growth(
    *,
    vocab_sizes: tuple[int, ...] = setting((100, 10_000), ge=3, help="vocabulary M, one per panel"),
    ratios: tuple[float, ...] = setting((10.0, 1.0), ge=1e-3, le=1e3, help="eta_Y / eta_Z, one per panel"),
    ends: tuple[float, ...] = setting((5.0, 50.0), ge=1e-3, le=1e6, help="last step, one per panel"),
    eta_z: tuple[float, ...] = setting(
        (0.5, 1.0, 2.0, 4.0, 8.0), ge=1e-3, le=1e3, help="learning rates of attention"
    ),
    classes: int = setting(1, ge=1, help="number K of classes"),
    constant: float = setting(1.0, ge=1e-6, le=1e6, help="C_0, the constant of Theorem 4"),
) -> Iterator[Reading]:
    """B(t) in closed form for several learning rates of attention; each panel has a fixed ratio of the rates
    of decoder and attention.

    The published figure states neither C_0 nor K; with C_0 = 1 and K = 1 the curves fill its axes (B up to
    0.8 and 1.6). B at the end is compared with a numerical integral of gamma.

    Raises:
        ValueError: a setting is out of range, or ``vocab_sizes``, ``ratios`` and ``ends`` have different
            lengths.
    """
    for M, ratio, end in zip(vocab_sizes, ratios, ends):
        times, at, at_t0 = torch.linspace(0, end, POINTS, dtype=torch.float64), {"M": M, "ratio": ratio}, []
        for rate in eta_z:
            rates = {"classes": classes, "vocab_size": M, "eta_y": ratio * rate}
            t0, here = snapping_time(**rates), at | {"eta_Z": rate}
            found = torch.cat([times, torch.tensor([t0], dtype=torch.float64)])
            *curve, snapped = printed_B(found, eta_z=rate, constant=constant, **rates).tolist()
            for t, value in zip([*times.tolist()[:-1], end], curve):
                yield reading(B_CURVE, value, at=here | {"t": t})
            yield reading(B_SNAPPED, snapped, at=here | {"t": t0})
            known = integrated(end, eta_z=rate, constant=constant, **rates)
            note = "predicted: gamma integrated numerically instead of in closed form"
            columns = {"predicted": known, "basis": "recomputed", "note": note}
            yield reading(B_AT_END, curve[-1], at=here | {"t": end}, **columns)
            at_t0.append(snapped)
        spread = max(at_t0) - min(at_t0)
        note = f"B(t0) = {at_t0[0]:.4f} depends on K, M and the ratio only; t0 = 2 K ln M / eta_Y"
        yield reading(B_SPREAD, spread, predicted=0.0, at_most=SPREAD_ATOL, at=at, note=note)


def integrated(end: float, *, eta_z: float, constant: float, **rates) -> float:
    """Returns the printed B, ln(C_0 + 4 Gamma) / 4, with Gamma as eta_Z times the integral of gamma."""
    from scipy.integrate import quad

    def rate(t: float) -> float:
        return float(gamma(torch.tensor([t], dtype=torch.float64), **rates)[0])

    big_gamma = eta_z * quad(rate, 0, end, epsabs=0, epsrel=1e-10, limit=200)[0]
    return float(np.log(constant + 4 * big_gamma) / 4)

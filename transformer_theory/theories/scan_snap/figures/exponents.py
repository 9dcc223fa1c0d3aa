"""Local exponents of the growth of attention over a hundred decades of time, in closed form and in
the flows.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch

from ....core.experiment import setting
from ....core.figure import Panel, Reading, curves, figure, reading
from ....core.sources import Source
from ..closed_form import scanning_time
from ..families import with_overlap
from ..flow import CLOSED, EXACT, LEMMA4, symmetric_exact_flow, symmetric_lemma4_flow
from ..growth import growth_exponents, longest_logarithmic_growth
from ..plots import DYNAMICS

POWER, DECADES = "dln B/dln t", "decades of logarithmic growth"
TIMES = (0.01, 0.1, 0.5, 5.0, 1e2, 1e6, 1e20, 1e100)  # times at which the power is reported, in units of t0'
# until this time, the smallest power that counts as close to its limit 2
QUADRATIC_UNTIL, MIN_POWER = 0.1, 1.95
SLOPE = "d|z|/dln ln(M eta_Y t/K)"
DENSE_DECADES = 6  # decades from the first point of the curves with several points each


@figure(
    "scan_snap.exponents",
    source=Source("tian2023scan", "Thm. 4"),
    view=curves(
        "t",
        panels=(
            Panel("$d \\ln |z| / d \\ln t$", POWER, lines=DYNAMICS, levels={"_": 2}, axes={"yscale": "log"}),
            Panel(
                "$d |z| / d \\ln \\ln (M \\eta_Y t / K)$", SLOPE, lines=DYNAMICS, levels={"_": 0.5}, legend=""
            ),
        ),
        xlabel="$t / t_0'$",
        log="x",
        caption="z: the common token's logit. Grey lines: limits of the closed form, 2 for small t (left) "
        "and 1/2 for large t (right).",
        size=(7.0, 3.0),
    ),
    quick={"decades": 12.0},
)
def exponents(
    *,
    classes: int = setting(2, ge=2, help="number K of classes"),
    vocab_size: int = setting(1000, ge=2, help="number M of next tokens, at least K"),
    overlap: float = setting(0.3, ge=1e-4, le=0.99, help="overlap E_0 of the classes"),
    eta_z: float = setting(0.01, ge=1e-4, le=1e2, help="learning rate of attention; the decoder's is 1"),
    decades: float = setting(100.0, ge=1.0, le=280.0, help="the curves end at 10 to this power times t0'"),
) -> Iterator[Reading]:
    """Local exponents of t, ln t and ln ln t in the fall of the common token's logit, and the times of the
    theorem's two regimes.
    """
    sizes: dict[str, Any] = {"classes": classes, "vocab_size": vocab_size, "eta_y": 1.0}
    form: dict[str, Any] = sizes | {"eta_z": eta_z, "overlap": overlap}
    t0 = scanning_time(**sizes)
    exponents_at = partial(growth_exponents, **form)
    for time in (time for time in TIMES if time <= 10**decades):
        growth = exponents_at(torch.tensor([time * t0], dtype=torch.float64))
        columns: dict[str, Any] = {"at": {"dynamics": CLOSED, "t": time}}
        if time <= QUADRATIC_UNTIL:
            columns |= {"reference": (2.0, "limit"), "at_least": MIN_POWER}
        log, loglog = float(growth.per_log[0]), float(growth.per_loglog[0])
        note = f"dB/dln t = {log:.4f}, dB/dln ln(M eta_Y t/K) = {loglog:.4f}"
        yield reading(POWER, float(growth.power[0]), note=note, **columns)
    note = "dB/dln t within 10 % of 1/2, in closed form"
    yield reading(DECADES, longest_logarithmic_growth(**form), note=note)
    t = t0 * torch.logspace(-2, decades, int(12 * (decades + 2)), dtype=torch.float64)
    weights = torch.linspace(0.1, 1, 10, dtype=torch.float64)
    family = with_overlap(classes, vocab_size=vocab_size, weights=weights, overlap=overlap)
    closed, inner = exponents_at(t), (vocab_size * t / classes).log().numpy()
    found = {CLOSED: (closed.power.numpy(), closed.per_loglog.numpy())}
    for dynamics, flow in ((LEMMA4, symmetric_lemma4_flow), (EXACT, symmetric_exact_flow)):
        fall = -flow(family, t, eta_y=1.0, eta_z=eta_z, tolerance=1e-11).common[:, 0].numpy()
        # Numerical derivative on the logarithmic grid; then d|z|/dln ln u = (dln|z|/dln t) |z| ln u, with
        # u = M t / K.
        power = np.gradient(np.log(fall), t.log().numpy())
        found[dynamics] = (power, power * fall * inner)
    # three points per decade at first, then one for two decades
    dense = 12 * DENSE_DECADES
    plotted = [k for k in range(len(t)) if k % (3 if k < dense else 24) == 0 or k == len(t) - 1]
    for dynamics, (power, slope) in found.items():
        for k in plotted:
            at = {"dynamics": dynamics, "t": float(t[k] / t0)}
            yield reading(POWER, float(power[k]), at=at)
            yield reading(SLOPE, float(slope[k]), at=at)

"""The growth factor of relative gains (Figure 3); the axis of the published figure does not fit
its formula.
"""

from collections.abc import Iterator

import numpy as np
import torch

from ....core.experiment import setting
from ....core.figure import Axis, Panel, Reading, curves, figure, reading
from ....core.sources import Source
from ..closed_form import Gamma, printed_B
from ..families import with_overlap
from ..flow import symmetric_lemma4_flow

THEOREM = Source("tian2023scan", "Thm. 3")
CHI = "chi of the likeliest distinct token, Lemma 4's flow"
BOUND, PRINTED, GAMMA = "exp(2 B / K)", "exp(2 B)", "Gamma"


@figure(
    "scan_snap.chi",
    source=Source("tian2023scan", "Fig. 3"),
    over={
        "eta_Y": Axis(
            0.5, 1.0, 2.0, 5.0, setting="eta_y", ge=1e-2, le=1e2, help="learning rates of the decoder"
        )
    },
    view=curves(
        "t",
        panels=(
            Panel("$\\chi$, Lemma 4", (CHI, BOUND), lines=("eta_Y", "quantity"), legend=""),
            Panel("$\\exp(2B)$, as printed", PRINTED, lines="eta_Y"),
            Panel("$\\Gamma$", GAMMA, lines="eta_Y", legend=""),
        ),
        xlabel="step",
        caption="Left: $\\chi$ (solid) and its bound $\\exp(2B/K)$ (dotted). The published figure shows "
        "$\\chi$ on an axis up to 600 and states neither $C_0$ nor $P(l|n)$. Neither $\\chi$ nor its "
        "bounds reach 600; $\\Gamma$ does.",
        size=(7.4, 2.9),
    ),
)
def chi(
    eta_Y: float,
    *,
    classes: int = setting(10, ge=2, help="number K of classes"),
    vocab_size: int = setting(1000, ge=2, help="number M of next tokens, at least K"),
    eta_z: float = setting(0.5, ge=1e-4, le=1e2, help="learning rate of attention"),
    end: float = setting(700.0, ge=1.0, le=1e6, help="last step"),
    overlap: float = setting(
        1 / 3, ge=1e-4, le=0.99, help="overlap E_0 of the classes; (K - 1) E_0^2 = 1 corresponds to C_0 = 1"
    ),
) -> Iterator[Reading]:
    """The growth factor chi of relative gains for several learning rates of the decoder, with its bounds.

    The published figure shows chi_l(t) on an axis up to 600 and states neither C_0 nor P(l | n). With C_0 = 1
    the printed bound exp(2 B) reaches at most 45, whereas Gamma would fill the axis. With the class's share
    of the steps the bound is exp(2 B / K), and the measured chi of Lemma 4's flow lies below it.
    """
    t = torch.linspace(0, end, 141, dtype=torch.float64)[1:]
    weights = torch.linspace(0.1, 1, 10, dtype=torch.float64)
    family = with_overlap(classes, vocab_size=vocab_size, weights=weights, overlap=overlap)
    rates = {"classes": classes, "vocab_size": vocab_size, "eta_y": eta_Y, "eta_z": eta_z}
    constant = 1 / ((classes - 1) * overlap**2)
    B = printed_B(t, constant=constant, **rates) - np.log(constant) / 4
    flow = symmetric_lemma4_flow(family, t, eta_y=eta_Y, eta_z=eta_z)
    found = {
        CHI: torch.exp(2 * flow.distinct[:, -1]),
        BOUND: torch.exp(2 * B / classes),
        PRINTED: torch.exp(2 * B),
        GAMMA: Gamma(t, **rates),
    }
    for quantity, curve in found.items():
        for time, value in zip(t.tolist()[1::2], curve.tolist()[1::2]):
            if quantity != CHI or time < end:
                yield reading(quantity, value, at={"t": time})
    last, bound, printed, big_gamma = (float(curve[-1]) for curve in found.values())
    note = f"the threshold is exp(2 B/K); exp(2 B) = {printed:.2f}, Gamma = {big_gamma:.1f}"
    columns = {"covered": family.weak_overlap().holds, "source": THEOREM, "at": {"t": end}, "note": note}
    yield reading(CHI, last, at_most=bound, **columns)

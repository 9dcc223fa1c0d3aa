"""The relative gain of two tokens: what Lemma 4's flow conserves and the exact flow does not, and how far it can go."""

import torch
from torch import Generator

from ....core.claims import Claim, Evidence
from ....core.sources import Source
from ..closed_form import scanning_time
from ..flow import Flow, exact_flow, lemma4_flow
from ..gains import gain_bounds, printed_gain_bounds, relative_gains
from .instances import random_classes, uniform, weakly_overlapping

PAPER = "tian2023scan"


def _gain_error(generator: Generator, flow) -> Evidence:
    classes = random_classes(generator)
    t0 = scanning_time(classes=classes.classes, vocab_size=classes.vocab_size, eta_y=1.0)
    path: Flow = flow(classes, t0 * torch.tensor([0.3, 1.0, 10.0, 100.0], dtype=torch.float64), eta_y=1.0, eta_z=0.1, tolerance=1e-9)
    gains = relative_gains(classes, path.logits)
    grown = float((gains.predicted[-1] / gains.start).max())
    return Evidence(gains.error, 1e-9, "<=", detail={"largest chi": grown, "pairs": len(gains.start)})


def _slack(generator: Generator, bounds) -> Evidence:
    """How far ln chi of the likeliest distinct tokens stays inside the bounds, as a share of it: the worst class and time."""
    classes = weakly_overlapping(generator)
    eta_z = 10 ** uniform(-2.5, -0.5, generator)
    t0 = scanning_time(classes=classes.classes, vocab_size=classes.vocab_size, eta_y=1.0)
    times = t0 * torch.tensor([1.0, 10.0, 1e4, 1e8], dtype=torch.float64)
    path = lemma4_flow(classes, times, eta_y=1.0, eta_z=eta_z, tolerance=1e-9)
    found = bounds(classes, path)
    holds = classes.weak_overlap().holds
    return Evidence(float(found.slack.min()), 0.0, ">=", covered=holds, detail={"largest ln chi": float(found.log_chi.max())})


CLAIMS = (
    Claim(
        id="scan_snap/relative-gain",
        statement=r"In Lemma 4's flow the relative gain $r(t) = c_l^2 / c_{l'}^2 - 1$ of two distinct tokens of a class is "
        r"$r(t) = r(0)\, \chi_l(t)$ with $\chi_l = e^{2 (z_l(t) - z_l(0))}$.",
        source=Source(PAPER, "Thm. 3"),
        assumptions=("infinitely many, infinitely long sequences", "Lemma 4's flow: the decoder follows Lemma 3", "distinct tokens"),
        check=lambda generator: _gain_error(generator, lemma4_flow),
        control=lambda generator: _gain_error(generator, exact_flow),
        control_description="follows the exact population flow, whose decoder remembers past attention, in the place of Lemma 4's",
    ),
    Claim(
        id="scan_snap/gain-bounds",
        statement=r"In Lemma 4's flow the likeliest distinct token $l_0$ of a class obeys "
        r"$e^{2 f_{nl_0}(0)^2 w_n B_n(t)} \le \chi_{l_0}(t) \le e^{2 w_n B_n(t)}$, where $w_n$ is the share of class $n$ and "
        r"$\dot B_n = \eta_Z \xi_n$. Here: the smallest distance of $\ln \chi_{l_0}$ to a bound, as a share of it, up to $10^8\, t_0'$.",
        source=Source(PAPER, "Thm. 3"),
        assumptions=("infinitely many, infinitely long sequences", "one common token", "weak overlap (Assumption 2)"),
        check=lambda generator: _slack(generator, gain_bounds),
        control=lambda generator: _slack(generator, printed_gain_bounds),
        control_description="takes the bounds as printed, without the share of the class",
        corrects="Printed with $B_n$ in the place of $w_n B_n$: the lower bound is then violated, as the control shows.",
    ),
)

"""The relative gain of two tokens: what Lemma 4's flow conserves and the exact flow does not."""

import torch
from torch import Generator

from ....citations import Source
from ....claims import Claim, Evidence
from ..closed_form import scanning_time
from ..flow import Flow, exact_flow, lemma4_flow
from ..gains import relative_gains
from .instances import random_classes

PAPER = "tian2023scan"


def _gain_error(generator: Generator, flow) -> Evidence:
    classes = random_classes(generator)
    t0 = scanning_time(classes=classes.classes, vocab_size=classes.vocab_size, eta_y=1.0)
    path: Flow = flow(classes, t0 * torch.tensor([0.3, 1.0, 10.0, 100.0], dtype=torch.float64), eta_y=1.0, eta_z=0.1, tolerance=1e-8)
    gains = relative_gains(classes, path.logits)
    grown = float((gains.predicted[-1] / gains.start).max())
    return Evidence(gains.error, 1e-9, "<=", detail={"largest chi": grown, "pairs": len(gains.start)})


CLAIMS = (
    Claim(
        id="scan_snap/relative-gain",
        statement=r"In Lemma 4's flow the relative gain $r(t) = c_l^2 / c_{l'}^2 - 1$ of two distinct tokens of a class is "
        r"$r(t) = r(0)\, \chi_l(t)$ with $\chi_l = e^{2 (z_l(t) - z_l(0))}$.",
        source=Source(PAPER, "Thm. 3"),
        assumptions=("infinitely many, infinitely long sequences", "Lemma 4's flow: the decoder follows Lemma 3", "distinct tokens"),
        check=lambda generator: _gain_error(generator, lemma4_flow),
        control=lambda generator: _gain_error(generator, exact_flow),
        control_says="follows the exact population flow, whose decoder remembers past attention, in the place of Lemma 4's",
    ),
)

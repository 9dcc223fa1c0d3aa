"""The decoder of Lemma 3: its gain in closed form."""

import math

import torch
from torch import Generator

from ....core.claims import Claim, Evidence
from ....core.sources import Source
from ..closed_form import h, h_discrete
from .instances import uniform

PAPER = "tian2023scan"


def _decoder_gap(generator: Generator, *, linear_term: bool) -> Evidence:
    M = int(math.exp(uniform(math.log(50), math.log(1e5), generator)))
    eta_y = uniform(0.1, 1.0, generator)
    steps = 3000
    t = torch.arange(steps, dtype=torch.float64)
    closed = h(t, vocab_size=M, eta_y=eta_y) if linear_term else torch.log1p(M * eta_y * t) / M
    gap = float((h_discrete(steps, vocab_size=M, eta_y=eta_y) - closed).abs().max())
    return Evidence(gap * M / (2 * eta_y), 1.0, "<=", detail={"M": M, "eta_Y": eta_y})


CLAIMS = (
    Claim(
        id="scan_snap/closed-form-h",
        statement=r"The decoder's gain under gradient descent, $h_s = h_{s-1} + \eta_Y / (M - 1 + e^{M h_{s-1}})$, stays within "
        r"$2 \eta_Y / M$ of the root of $e^{Mh} + (M-1) M h = M \eta_Y t + 1$ at $t = s$. "
        r"Here: the largest gap over 3000 steps in units of $2 \eta_Y / M$.",
        source=Source(PAPER, "Lemma 6"),
        assumptions=("Lemma 3's decoder from zero", "a learning rate of at most 1"),
        check=lambda generator: _decoder_gap(generator, linear_term=True),
        control=lambda generator: _decoder_gap(generator, linear_term=False),
        control_description="leaves the linear term (M - 1) M h out of the equation, as for large t",
    ),
)

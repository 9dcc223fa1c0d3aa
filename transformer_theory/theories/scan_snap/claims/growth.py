"""How fast attention moves: the exponents of B, and the law of the exact flow where every token of the vocabulary follows."""

import math

import torch
from torch import Generator

from ....core.claims import Claim, Evidence
from ....core.sources import Source
from ..closed_form import B, exact_common_logit, scanning_time
from ..families import with_overlap
from ..flow import symmetric_exact_flow, symmetric_lemma4_flow
from ..growth import growth_exponents
from .instances import uniform

PAPER = "tian2023scan"


def _weights(generator: Generator) -> torch.Tensor:
    """Of three to six distinct tokens, ``[D]``."""
    D = int(torch.randint(3, 7, (), generator=generator))
    return 0.1 + torch.rand(D, generator=generator, dtype=torch.float64)


def _power(generator: Generator, start: float) -> Evidence:
    """Distance to 2 of the slope of ln |z| against ln t over half a decade from ``start`` t0', for a common token in Lemma 4's flow; the
    slope counts as negative if the token gains attention."""
    K, M = int(torch.randint(2, 7, (), generator=generator)), int(10 ** uniform(3, 5, generator))
    classes = with_overlap(K, vocab_size=M, weights=_weights(generator), overlap=uniform(0.05, 0.3, generator))
    t = start * scanning_time(classes=K, vocab_size=M, eta_y=1.0) * torch.tensor([1.0, 10**0.5], dtype=torch.float64)
    z = symmetric_lemma4_flow(classes, t, eta_y=1.0, eta_z=10 ** uniform(-3, -1.5, generator)).common[:, 0]
    slope = float(-z[1].sign() * (z[1] / z[0]).abs().log() / (t[1] / t[0]).log())
    return Evidence(abs(slope - 2), 0.1, "<=", detail={"slope": slope, "K": K, "M": M})


def _snapped(generator: Generator, decades: float) -> Evidence:
    """Distance to 1/2 of dB/dln ln(M eta_Y t/K) after ``decades`` decades of t0'."""
    K, M = int(torch.randint(2, 11, (), generator=generator)), int(10 ** uniform(2, 5, generator))
    t = torch.tensor([10.0**decades * scanning_time(classes=K, vocab_size=M, eta_y=1.0)], dtype=torch.float64)
    eta_z, overlap = 10 ** uniform(-1, 1, generator), uniform(0.1, 0.4, generator)
    slope = float(growth_exponents(t, classes=K, vocab_size=M, eta_y=1.0, eta_z=eta_z, overlap=overlap).per_loglog[0])
    return Evidence(abs(slope - 0.5), 0.02, "<=", detail={"slope": slope, "K": K, "M": M})


def _law_error(generator: Generator, law) -> Evidence:
    """Largest relative distance of the law to the exact flow's common logit, M = K, up to 1e30 steps a class."""
    K = int(torch.randint(8, 200, (), generator=generator))
    overlap, eta_z = 10 ** uniform(-3, -1, generator), 10 ** uniform(-2, 0, generator)
    classes = with_overlap(K, vocab_size=K, weights=_weights(generator), overlap=overlap)
    t = K * torch.logspace(0, 30, 16, dtype=torch.float64)
    z = symmetric_exact_flow(classes, t, eta_y=1.0, eta_z=eta_z).common[:, 0]
    predicted = law(t, classes=K, eta_y=1.0, eta_z=eta_z, overlap=overlap)
    # 0.085 at the worst end of what is drawn: eight classes, overlap 0.1, weights 1.1, 0.1 and 0.1
    return Evidence(float((predicted / z - 1).abs().max()), 0.1, "<=", detail={"K": K, "overlap": overlap, "z": float(z[-1])})


def _theorem_4(t: torch.Tensor, *, classes: int, eta_y: float, eta_z: float, overlap: float) -> torch.Tensor:
    return -B(t, classes=classes, vocab_size=classes, eta_y=eta_y, eta_z=eta_z, overlap=overlap)


CLAIMS = (
    Claim(
        id="scan_snap/quadratic-start",
        statement=r"In Lemma 4's flow the logit of a single common token falls as $-t^2$ long before $t_0' = K \ln M / \eta_Y$: there "
        r"$\gamma(t) \approx \eta_Y t / K$. Here: the distance of the power of $t$ to 2, over half a decade from $t_0'/100$.",
        source=Source(PAPER, "Thm. 4"),
        assumptions=("one common token, all classes alike", r"$\eta_Z \ll \eta_Y$"),
        check=lambda generator: _power(generator, 0.01),
        control=lambda generator: _power(generator, 3.0),
        control_description="asks the same after t0', when attention snaps",
        corrects=r"Printed as growth like $\ln t$ up to $t_0'$: long before it $B$ grows like $t^2$.",
    ),
    Claim(
        id="scan_snap/double-logarithm",
        statement=r"In closed form $B(t) \to \frac12 \ln \ln t$: $dB / d \ln\ln(M \eta_Y t / K) \to \frac12$. "
        r"Here: the distance to $\frac12$ at $10^{280}\, t_0'$.",
        source=Source(PAPER, "Thm. 4"),
        assumptions=("one common token, all classes alike", "times that no training reaches"),
        check=lambda generator: _snapped(generator, 280.0),
        control=lambda generator: _snapped(generator, math.log10(2.0)),
        control_description=r"looks at $t_0 = 2 t_0'$, where the paper's second regime begins",
        corrects=r"Printed as growth like $\ln t$, then $\ln \ln t$: this describes $B$ at extreme times and ratios of learning rates "
        r"only. And $B$ must be zero at $t = 0$: $\frac14 \ln(1 + 4\Gamma/C_0)$ in the place of $\frac14 \ln(C_0 + 4\Gamma)$.",
    ),
    Claim(
        id="scan_snap/exact-common-logit",
        statement=r"If every token of the vocabulary is some class's next token, $M = K$, a single common token's logit in the exact flow "
        r"is $z = -\frac12 \ln(1 + \frac{\eta_Z}{\eta_Y} \frac{(K-1) E_0}{1 - E_0} [K h((1 - E_0) t / K)]^2)$, up to what distinct tokens "
        r"gain. Here: the largest relative difference.",
        source=Source(PAPER),
        assumptions=(
            "one common token, all classes alike",
            "M = K",
            r"eight classes and more, $E_0 \le 0.1$",
            "derived here, not in the paper",
        ),
        check=lambda generator: _law_error(generator, exact_common_logit),
        control=lambda generator: _law_error(generator, _theorem_4),
        control_description="takes the closed form of Theorem 4, $z = -B$, which is about the modified decoder and large $M$",
    ),
)

"""The components of the nonlinear MLP: a plain loop over the published descent, and speeds by quadrature and
root finding.

Ten components 1 + 3 u, u uniform in single precision from seed 0; v grows by .02 (mu - v) softmax(v^2 / 3)
from .05, 5,000 times. A component alone obeys d delta / dt = -delta exp(mu^2 (1 - delta)^2 / 2), so
ln(1/delta) = s at the time that is the integral over u from 0 to s of exp(-mu^2 (1 - e^-u)^2 / 2).
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from scipy.integrate import quad
from scipy.optimize import brentq

from benchmarks.references import Reference
from transformer_theory.theories.joma.figures import two_phases as figure

STEPS, RATE, TEMPERATURE, START = 5000, 0.02, 3.0, 0.05


def arrival(mu: float, s: float) -> float:
    """Returns the time at which ln(1/delta) = s."""
    turn = min(s, 30.0)  # beyond it the integrand is constant in float64
    early = quad(
        lambda u: np.exp(-(mu**2) * (1 - np.exp(-u)) ** 2 / 2), 0, turn, epsabs=1e-13, epsrel=1e-12, limit=400
    )[0]
    return early + (s - turn) * np.exp(-(mu**2) / 2)


def references() -> Iterator[Reference]:
    """Yields entropies, the step of the smallest one, final components, and ratios of ln(1/delta)."""
    mu = (3 * torch.rand(10, generator=torch.Generator().manual_seed(0)) + 1).sort().values.double().numpy()
    v, entropies = np.full(10, START), []
    for step in range(STEPS + 1):
        share = np.exp(v**2 / TEMPERATURE)
        share /= share.sum()
        entropies.append(float(-(share * np.log(share)).sum()))
        if step < STEPS:
            v = v + RATE * (mu - v) * share
    values = {"at the start": entropies[0], "least": min(entropies), "at the end": entropies[-1]}
    for when, stored in figure.PUBLISHED_ENTROPY.items():
        yield Reference(f"{figure.ENTROPY}, {when}", stored, values[when])
    yield Reference(figure.LEAST_STEP, figure.PUBLISHED_LEAST_STEP, int(np.argmin(entropies)))
    for token, stored in enumerate(figure.PUBLISHED_COMPONENTS):
        yield Reference(f"{figure.COMPONENT}, component {token}", stored, float(v[token]))
    for time, ratios in figure.RATIOS.items():
        logs: list[Any] = [
            brentq(lambda s, mu=mu, time=time: arrival(mu, s) - time, 0, 1e7, xtol=1e-10)
            for mu in figure.RATIO_MU
        ]
        for token, stored in enumerate(ratios):
            pair = f"mu = {figure.RATIO_MU[token]:g} over mu = {figure.RATIO_MU[-1]:g}"
            yield Reference(f"{figure.RATIO}, {pair}, t = {time:g}", stored, logs[token] / logs[-1])

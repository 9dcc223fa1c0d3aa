"""Nonlinear MLP: how much faster salient components are learnt, and attention that is sparse first and dense later."""

import torch
from torch import Generator, Tensor

from ....core.claims import Claim, Evidence
from ....core.sources import Source
from ....metrics.attention import entropy_lower_bound
from ..nonlinear import attention_entropy, bounce, learning_ratio, linear_descent, log_remaining, on_the_way, random_mu, salient_descent

JOMA = Source("tian2024joma")
TEMPERATURE = 3.0  # of the paper's Fig. 4


def _speeds(generator: Generator, *, squared: bool) -> Evidence:
    """Largest relative error of the ratios ln(1/delta_j) / ln(1/delta_k) after t = 1000, for four components between 0.5 and 3."""
    mu = 0.5 + 2.5 * torch.rand(4, generator=generator, dtype=torch.float64)
    logs = log_remaining(mu, torch.tensor([1000.0], dtype=torch.float64))[0]
    wanted = learning_ratio(mu) if squared else torch.exp(mu[:, None] - mu)
    return Evidence(float(((logs[:, None] / logs) / wanted - 1).abs().max()), 1e-2, "<=")


def _bounce(generator: Generator, descent) -> Evidence:
    """The smaller of drop and rebound of attention's entropy over 5000 steps, nats."""
    found = bounce(attention_entropy(descent(random_mu(generator), temperature=TEMPERATURE), temperature=TEMPERATURE))
    return Evidence(min(found.drop, found.rebound), 0.01, ">=", detail={"drop": found.drop, "rebound": found.rebound, "step": found.at})


def _floor(generator: Generator, *, share: float) -> Evidence:
    """Entropy less its lower bound, the smallest over both trainings on the way; the spread of the scores times ``share``."""
    mu = random_mu(generator)
    gaps = []
    for descent in (salient_descent, linear_descent):
        lower: Tensor = descent(mu, temperature=TEMPERATURE)[::20]
        scores = lower.square() / TEMPERATURE
        spread = (scores - scores.mean(-1, keepdim=True)).norm(dim=-1)
        H = attention_entropy(lower, temperature=TEMPERATURE)
        gaps.append((H - entropy_lower_bound(share * spread, keys=len(mu)))[on_the_way(H, keys=len(mu))])
    return Evidence(float(torch.cat(gaps).min()), 0.0, ">=")


CLAIMS = (
    Claim(
        id="joma/learning-speeds",
        statement=r"Under $\dot v = (\mu - v) \circ e^{v^2/2}$, with $\delta_j = 1 - v_j/\mu_j$, the ratio "
        r"$\ln(1/\delta_j) / \ln(1/\delta_k)$ tends to $e^{(\mu_j^2 - \mu_k^2)/2}$: salient components are learnt exponentially faster. "
        r"Here: the largest relative error at $t = 1000$.",
        source=JOMA,
        assumptions=("the lower layer moves by the given equation", "it starts at zero"),
        check=lambda generator: _speeds(generator, squared=True),
        control=lambda generator: _speeds(generator, squared=False),
        control_description=r"takes the exponent from $\mu$ instead of $\mu^2/2$",
    ),
    Claim(
        id="joma/drop-and-bounce",
        statement=r"With a nonlinear MLP the entropy of attention, softmax($v^2/T$), first drops and then comes back: "
        r"$v \leftarrow v + \eta (\mu - v) \circ$ softmax($v^2/T$). Here: the smaller of drop and rebound, in nats.",
        source=Source("tian2024joma", "Fig. 4"),
        assumptions=(r"critical points $\mu_j = 1 + 3u_j$, $u_j$ uniform", "T = 3, 5000 steps of 0.02 from 0.05"),
        check=lambda generator: _bounce(generator, salient_descent),
        control=lambda generator: _bounce(generator, linear_descent),
        control_description="takes a linear MLP, whose attention only becomes sparser",
    ),
    Claim(
        id="joma/entropy-floor",
        statement=r"In both trainings the entropy stays above the least that scores of the same norm allow, "
        r"$\ln(1 + (T-1)b) + s\sqrt{T(T-1)}\, b / (1 + (T-1)b)$ with $b = e^{-s\sqrt{T/(T-1)}}$ for T keys and centred scores of norm s. "
        r"Here: the smallest difference, in nats, where the entropy is more than .1 from 0 and from $\ln T$ (at both the two are equal).",
        source=Source("zhai2023stabilizing"),
        assumptions=("attention is a softmax of its scores",),
        check=lambda generator: _floor(generator, share=1.0),
        control=lambda generator: _floor(generator, share=0.5),
        control_description="takes half the norm of the scores",
    ),
)

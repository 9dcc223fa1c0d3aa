"""Claims about the MLP's dynamics without attention: linear, nonlinear, with several units, and on a mixture."""

import math
from collections.abc import Callable

import torch
from torch import Generator, Tensor

from ....core.claims import Claim, Evidence
from ....core.sources import Source
from ....metrics.attention import entropy_lower_bound
from ..block import AttentionForm, Block, Contexts, Exponential, Softmax, zero_block
from ..dynamics import Model, gradient_flow, relu, signed, tanh
from ..mixture import Mixture, relu_averages, tanh_averages
from ..nonlinear import (
    attention_entropy,
    bounce,
    gaussian_points,
    learning_ratio,
    linear_descent,
    linear_layer,
    log_remaining,
    nonlinear_layer,
    random_mu,
    rank_bounce,
    salient_descent,
    undecided,
)
from ..orbit import blow_up_time, limits, normalised_clock, orbit, progress

JOMA = Source("tian2024joma")
TEMPERATURE = 3.0  # temperature of the paper's Fig. 4
DIM, COMPONENTS, DRAWS, SPREAD = 6, 3, 40_000, 0.8  # settings of the mixture
UNITS = ((relu, relu_averages), (tanh, tanh_averages))
CONSTANT_GRADIENT = "one linear unit whose backpropagated gradient is constant"
FROM_ZERO = "all start at zero"
TOKENS = "six tokens: one leads, the others have at most 0.8 of its discriminancy"
ORBIT_ASSUMPTIONS = (CONSTANT_GRADIENT, "exponential attention with a constant normaliser", FROM_ZERO, TOKENS)


def lopsided(generator: Generator, *, tokens: int = 6) -> tuple[Contexts, Tensor]:
    """Returns two samples with opposite targets, and Delta: one token leads, the others have at most 0.8 of its discriminancy."""
    share = torch.cat([torch.ones(1, dtype=torch.float64), 0.1 + 0.7 * torch.rand(tokens - 1, generator=generator, dtype=torch.float64)])
    sign = 2 * torch.randint(2, (tokens,), generator=generator) - 1
    counts = torch.stack([share * (sign > 0), share * (sign < 0)]) + 0.2
    contexts = Contexts(counts, torch.zeros(2, dtype=torch.long), torch.tensor([1, 0]))
    return contexts, share * sign / 2


def flow_towards(contexts: Contexts, form: AttentionForm, end: float, *, halvings: int, steps: int = 25) -> Block:
    """Returns the state of the flow from zero at the time (1 - 2^-halvings) ``end``.

    The solution blows up at ``end``, so each group of ``steps`` steps covers half of the remaining time.
    """
    model, state, remaining = Model(form, loss=signed), zero_block(contexts, units=1), end
    for _ in range(halvings):
        state = gradient_flow(state, contexts, model, step=remaining / 2 / steps, steps=steps).state(-1)
        remaining /= 2
    return state


def _spread(generator: Generator, *, divisor: float) -> Evidence:
    """Measures the largest over the smallest erf(v / divisor) / Delta of the tokens, minus one, t*/32 before the blow-up."""
    contexts, discriminancy = lopsided(generator)
    lower = flow_towards(contexts, Exponential(), blow_up_time(discriminancy), halvings=5).lower[0]
    constants = progress(lower * math.sqrt(2) / divisor, discriminancy)
    return Evidence(float(constants.max() / constants.min()) - 1, 1e-6, "<=", detail={"leading v": float(lower.abs().max())})


def _lag(generator: Generator, form: AttentionForm, *, time: float, steps: int = 200) -> Evidence:
    """Measures one minus the smallest over the largest erf(v / sqrt 2) / Delta of the tokens, at ``time`` t* of the joint flow.

    Delta is E[g b] at the start. A value above 1 means that a token has moved against its Delta. Contexts are shares, so that at the start
    b is the context in both forms of attention; t* is the blow-up time of the exponential form.
    """
    drawn, _ = lopsided(generator)
    contexts = Contexts(drawn.counts / drawn.counts.sum(1, keepdim=True), drawn.query, drawn.targets)
    model, start = Model(form, loss=signed), zero_block(contexts, units=1)
    discriminancy = model.velocity(start, contexts).lower[0]
    step = time * blow_up_time(discriminancy) / steps
    lower = gradient_flow(start, contexts, model, step=step, steps=steps).state(-1).lower[0]
    constants = progress(lower, discriminancy)
    return Evidence(1 - float(constants.min() / constants.max()), 0.05, ">=", detail={"leading v": float(lower.abs().max())})


def _limits(generator: Generator, form: AttentionForm) -> Evidence:
    """Measures the largest distance of the other tokens from their limits, 2^-13 t* before the blow-up."""
    contexts, discriminancy = lopsided(generator)
    state = flow_towards(contexts, form, blow_up_time(discriminancy), halvings=13)
    others = discriminancy.abs() < discriminancy.abs().max()
    gap = float((state.lower[0] - limits(discriminancy))[others].abs().max())
    mean = Model(form).attend(state, contexts).mean(0)
    return Evidence(gap, 1e-3, "<=", detail={"attention to the leading token": float((mean / mean.sum()).max())})


def _clock(generator: Generator, *, normalised: bool) -> Evidence:
    """Measures the distance of the normalised flow from the orbit, at the time that the clock gives for r = 0.1."""
    _, discriminancy = lopsided(generator)
    frequency = torch.rand(len(discriminancy), generator=generator, dtype=torch.float64) + 0.5
    r = torch.tensor([0.1], dtype=torch.float64)
    t = float(normalised_clock(discriminancy, frequency, r)) if normalised else 0.9 * blow_up_time(discriminancy)
    v, steps = torch.zeros_like(discriminancy), 400

    def velocity(v: Tensor) -> Tensor:
        weight = torch.exp(v.square() / 2)
        return discriminancy * weight / (frequency * weight).sum()

    for _ in range(steps):  # the classical Runge-Kutta method; the equation is not one of a block, so gradient_flow does not apply
        first = velocity(v)
        second = velocity(v + t / steps / 2 * first)
        third = velocity(v + t / steps / 2 * second)
        fourth = velocity(v + t / steps * third)
        v = v + t / steps / 6 * (first + 2 * second + 2 * third + fourth)
    return Evidence(float((v - orbit(discriminancy, r)[0]).abs().max()), 1e-5, "<=", detail={"time": t})


def _speeds(generator: Generator, *, squared: bool) -> Evidence:
    """Measures the largest relative error of the ratios ln(1/delta_j) / ln(1/delta_k) at t = 1000, for four mu between 0.5 and 3."""
    mu = 0.5 + 2.5 * torch.rand(4, generator=generator, dtype=torch.float64)
    logs = log_remaining(mu, torch.tensor([1000.0], dtype=torch.float64))[0]
    predicted = learning_ratio(mu) if squared else torch.exp(mu[:, None] - mu)
    return Evidence(float(((logs[:, None] / logs) / predicted - 1).abs().max()), 1e-2, "<=")


def _entropy_bounce(generator: Generator, descent: Callable[..., Tensor]) -> Evidence:
    """Measures the smaller of the drop and the rebound of attention's entropy over 5000 steps, nats."""
    curve = bounce(attention_entropy(descent(random_mu(generator), temperature=TEMPERATURE), temperature=TEMPERATURE))
    return Evidence(min(curve.drop, curve.rebound), 0.01, ">=", detail={"drop": curve.drop, "rebound": curve.rebound, "step": curve.index})


def _floor(generator: Generator, *, share: float) -> Evidence:
    """Measures the smallest excess of the entropy over the bound for ``share`` of the spread, in both training runs, while undecided."""
    mu = random_mu(generator)
    gaps = []
    for descent in (salient_descent, linear_descent):
        lower = descent(mu, temperature=TEMPERATURE)[::20]
        scores = lower.square() / TEMPERATURE
        spread = (scores - scores.mean(-1, keepdim=True)).norm(dim=-1)
        H = attention_entropy(lower, temperature=TEMPERATURE)
        gaps.append((H - entropy_lower_bound(share * spread, keys=len(mu)))[undecided(H, keys=len(mu))])
    return Evidence(float(torch.cat(gaps).min()), 0.0, ">=")


def _rank_rebound(generator: Generator, *, linear: bool) -> Evidence:
    """Measures the smaller of the drop and the rebound of the stable rank, as a share of the rank at the start."""
    points = gaussian_points(generator)
    if linear:
        layers = linear_layer(points, torch.logspace(0, -12, 100, dtype=torch.float64)[1:])
    else:
        layers = nonlinear_layer(points, torch.logspace(-7, 3, 200, dtype=torch.float64))
    curve = rank_bounce(points, layers)
    share = min(curve.drop, curve.rebound) / curve.start
    return Evidence(share, 0.05, ">=", detail={"start": curve.start, "least": curve.least, "end": curve.end})


def _mixture(generator: Generator, *, flattened: float) -> Evidence:
    """Measures the largest distance of the formula from the sample mean of g phi'(v x) x, in standard errors.

    The component of the noise along v is multiplied by ``flattened``.
    """
    centres = torch.randn(COMPONENTS, DIM, generator=generator, dtype=torch.float64)
    pulls = torch.randn(COMPONENTS, generator=generator, dtype=torch.float64)
    v = torch.randn(DIM, generator=generator, dtype=torch.float64)
    noise = torch.randn(COMPONENTS, DRAWS, DIM, generator=generator, dtype=torch.float64)
    direction = v / v.norm()
    noise = noise - (1 - flattened) * (noise @ direction)[..., None] * direction
    x, worst = centres[:, None] + SPREAD * noise, {}
    for activation, averages in UNITS:
        velocities = pulls[:, None, None] * activation(x @ v)[1][..., None] * x
        sd = (velocities.var(1) / DRAWS).sum(0).sqrt().clamp(min=1e-9)  # zero where no draw activates the unit
        gap = Mixture(centres, pulls, SPREAD, averages).velocity(v) - velocities.mean(1).sum(0)
        worst[activation.__name__] = float((gap / sd).abs().max())
    return Evidence(max(worst.values()), 5.0, "<=", detail=worst)


CLAIMS = (
    Claim(
        id="joma/linear-orbit",
        statement=r"With a linear MLP $\operatorname{erf}(v_l / \sqrt{2}) / \Delta_l$ is the same for every token, $\Delta_l = E[g x_l]$.",
        measures="largest constant of the tokens over the smallest, minus 1, in the joint flow of attention and MLP",
        source=JOMA,
        assumptions=ORBIT_ASSUMPTIONS,
        check=lambda generator: _spread(generator, divisor=math.sqrt(2)),
        control=lambda generator: _spread(generator, divisor=2.0),
        control_description=r"uses $\operatorname{erf}(v / 2)$ instead of $\operatorname{erf}(v / \sqrt{2})$",
    ),
    Claim(
        id="joma/blow-up",
        statement=r"The token of the largest $|\Delta|$ blows up at $t^* = \sqrt{\pi/2} / |\Delta|_{\max}$; the others are then at "
        r"$v_l = \sqrt{2}\, \operatorname{erf}^{-1}(\Delta_l / \Delta_{\max})$.",
        measures=r"largest distance of the other tokens from their limits at $(1 - 2^{-13}) t^*$",
        source=JOMA,
        assumptions=ORBIT_ASSUMPTIONS,
        check=lambda generator: _limits(generator, Exponential()),
        control=lambda generator: _limits(generator, Softmax()),
        control_description="uses softmax attention, which is slower and leaves the orbit",
    ),
    Claim(
        id="joma/slower-clock",
        statement=r"A normaliser common to all samples, $\dot v_l = \Delta_l e^{v_l^2/2} / A$ with $A = \sum_l x_l e^{v_l^2/2}$, keeps the "
        r"orbit and changes the clock to $t = \int A\, d\tau$.",
        measures="distance from the orbit at the time given by the clock",
        source=JOMA,
        assumptions=(CONSTANT_GRADIENT, "z = v²/2 is kept", FROM_ZERO, TOKENS),
        check=lambda generator: _clock(generator, normalised=True),
        control=lambda generator: _clock(generator, normalised=False),
        control_description="uses the clock of attention without a normaliser",
    ),
    Claim(
        id="joma/softmax-leaves-the-orbit",
        statement=r"Softmax attention that is trained with the MLP is not only slower: $\dot z = E[g\, b \circ (v - b^\top v)]$ drives z "
        r"away from $v^2/2$, and each sample has its own normaliser, so $\operatorname{erf}(v_l / \sqrt{2}) / \Delta_l$ becomes unequal. "
        r"An empirical statement; the threshold is ours.",
        measures=r"1 minus the smallest constant of the tokens over the largest, at $3 t^*$ (the leading v is near 5)",
        source=JOMA,
        assumptions=(CONSTANT_GRADIENT, "two contexts of opposite targets", FROM_ZERO, TOKENS),
        check=lambda generator: _lag(generator, Softmax(), time=3.0),
        control=lambda generator: _lag(generator, Exponential(), time=31 / 32),
        control_description=r"uses exponential attention at $\frac{31}{32} t^*$, which stays on the orbit",
    ),
    Claim(
        id="joma/learning-speeds",
        statement=r"Under $\dot v = (\mu - v) \circ e^{v^2/2}$, with $\delta_j = 1 - v_j/\mu_j$, the ratio "
        r"$\ln(1/\delta_j) / \ln(1/\delta_k)$ tends to $e^{(\mu_j^2 - \mu_k^2)/2}$: salient components are learnt exponentially faster.",
        measures=r"largest relative error of the ratios at $t = 1000$",
        source=JOMA,
        assumptions=("the lower layer moves by the given equation", "it starts at zero", r"four components $\mu_j$ between 0.5 and 3"),
        check=lambda generator: _speeds(generator, squared=True),
        control=lambda generator: _speeds(generator, squared=False),
        control_description=r"uses the exponent $\mu$ instead of $\mu^2/2$",
    ),
    Claim(
        id="joma/drop-and-bounce",
        statement=r"With a nonlinear MLP the entropy of attention, softmax($v^2/T$), first drops and then comes back: "
        r"$v \leftarrow v + \eta (\mu - v) \circ$ softmax($v^2/T$).",
        measures="the smaller of drop and rebound of the entropy, nats",
        source=Source("tian2024joma", "Fig. 4"),
        assumptions=(r"critical points $\mu_j = 1 + 3u_j$, $u_j$ uniform", "T = 3, 5000 steps of 0.02 from 0.05"),
        check=lambda generator: _entropy_bounce(generator, salient_descent),
        control=lambda generator: _entropy_bounce(generator, linear_descent),
        control_description="uses a linear MLP, whose attention only becomes sparser",
    ),
    Claim(
        id="joma/entropy-floor",
        statement=r"In both trainings the entropy stays above the smallest entropy that scores of the same norm allow, "
        r"$\ln(1 + (T-1)b) + s\sqrt{T(T-1)}\, b / (1 + (T-1)b)$ with $b = e^{-s\sqrt{T/(T-1)}}$ for T keys and centred scores of norm s.",
        measures="smallest entropy minus its lower bound, nats",
        source=Source("zhai2023stabilizing"),
        assumptions=(
            "attention is a softmax of its scores",
            r"the entropy differs by more than .1 from 0 and from $\ln T$, where it equals the bound",
        ),
        check=lambda generator: _floor(generator, share=1.0),
        control=lambda generator: _floor(generator, share=0.5),
        control_description="uses half the norm of the scores",
    ),
    Claim(
        id="joma/stable-rank-rebound",
        statement=r"Nonlinear units that share attention, $\dot v_{kl} = (\mu_{kl} - v_{kl})\, e^{\sum_j v_{jl}^2/2}$, learn "
        r"$V(t) = M \operatorname{diag}(1 - \delta(t))$ from zero, M the matrix of $\mu$: the stable rank "
        r"$\|V\|_F^2 / \|V\|_2^2$ falls while only the longest columns are learnt, and comes back. The threshold is ours.",
        measures="the smaller of drop and rebound of the stable rank, as a share of the start",
        source=JOMA,
        assumptions=("twelve units, twenty tokens, independent normal critical points", "the lower layer moves by the given equation"),
        check=lambda generator: _rank_rebound(generator, linear=False),
        control=lambda generator: _rank_rebound(generator, linear=True),
        control_description="uses linear units: one column outgrows all others for good",
    ),
    Claim(
        id="joma/isotropic-mixture",
        statement=r"Under uniform attention, x from a mixture of isotropic components around $\bar x_j$ and a gradient that is constant in "
        r"each, $E[g \phi'(v^\top x) x]$ lies in the span of the centres and v: $\sum_j a_j E[\phi'(r_j + \sigma \|v\| \xi)] \bar x_j + "
        r"\sigma \sum_j a_j E[\phi'(r_j + \sigma \|v\| \xi) \xi]\, v / \|v\|$.",
        measures="largest distance of the formula from a sample mean, in standard deviations",
        source=JOMA,
        assumptions=("components are isotropic (here Gaussian)", "the gradient is constant within a component"),
        check=lambda generator: _mixture(generator, flattened=1.0),
        control=lambda generator: _mixture(generator, flattened=0.5),
        control_description="uses components that are half as wide along v as across it",
    ),
)

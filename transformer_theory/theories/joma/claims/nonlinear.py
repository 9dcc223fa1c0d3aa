"""Claims about nonlinear units with attention integrated out, and about one nonlinear unit on a mixture."""

import math
from collections.abc import Callable

import torch
from torch import Generator, Tensor

from ....core.claims import BY_CHANCE, Measured, but, claim
from ....core.sources import Source
from ....metrics.attention import entropy, entropy_lower_bound
from ..dynamics import relu, runge_kutta, tanh
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
from ..orbit import blow_up_time, progress
from .sources import OWN

FIGURE = Source("tian2024joma", "Fig. 3 or 4", "second-hand")
TEMPERATURE = 3.0  # temperature of the paper's figure
DIM, COMPONENTS, DRAWS, SPREAD = 6, 3, 40_000, 0.8  # settings of the mixture
UNITS = ((relu, relu_averages), (tanh, tanh_averages))
KEYS, NORMS, SCORES = (2, 10, 35), (0.5, 3.0, 20.0), 300  # settings of the bound on the entropy


@claim(
    "joma/learning-speeds",
    measures=r"largest relative error of the ratios at $t = 1000$",
    at_most=3e-3,
    source=Source("tian2024joma", "Theorem 4", "second-hand"),
    assumptions=(
        "the lower layer moves by the given equation; the paper prints it up to scalar factors, which "
        "change the common clock only",
        "late in training: $t = 1000$",
        "v starts at zero",
        r"four components $\mu_j$ between 0.5 and 3",
    ),
    control=but(r"uses the exponent $\mu$ instead of $\mu^2/2$", squared=False),
)
def learning_speeds(generator: Generator, *, squared: bool = True) -> float:
    r"""Under $\dot v = (\mu - v) \circ e^{v^2/2}$, with $\delta_j = 1 - v_j/\mu_j$, the ratio
    $\ln(1/\delta_j) / \ln(1/\delta_k)$ tends to $e^{(\mu_j^2 - \mu_k^2)/2}$: salient components are learnt
    exponentially faster.
    """
    mu = 0.5 + 2.5 * torch.rand(4, generator=generator, dtype=torch.float64)
    logs = log_remaining(mu, torch.tensor([1000.0], dtype=torch.float64))[0]
    predicted = learning_ratio(mu) if squared else torch.exp(mu[:, None] - mu)
    return float(((logs[:, None] / logs) / predicted - 1).abs().max())


@claim(
    "joma/drop-and-bounce",
    measures="the smaller of drop and rebound of the entropy, nats",
    at_least=0.01,
    source=FIGURE,
    assumptions=(
        r"critical points $\mu_j = 1 + 3u_j$, $u_j$ uniform",
        "T = 3, 5000 steps of 0.02 from 0.05",
    ),
    control=but("uses a linear MLP, whose attention only becomes sparser", descent=linear_descent),
)
def drop_and_bounce(generator: Generator, *, descent: Callable[..., Tensor] = salient_descent) -> Measured:
    r"""With a nonlinear MLP the entropy of attention, softmax($v^2/T$), first drops and then comes back: $v
    \leftarrow v + \eta (\mu - v) \circ$ softmax($v^2/T$). The threshold is ours.
    """
    curve = bounce(
        attention_entropy(descent(random_mu(generator), temperature=TEMPERATURE), temperature=TEMPERATURE)
    )
    return Measured(
        min(curve.drop, curve.rebound), {"drop": curve.drop, "rebound": curve.rebound, "step": curve.index}
    )


@claim(
    "joma/linear-only-sparser",
    measures="largest rise of the entropy in one step, nats",
    at_most=1e-12,
    source=OWN,
    assumptions=(
        r"discriminancies $\Delta_j = 1 + 3u_j$, $u_j$ uniform",
        "T = 3, 5000 steps of 0.02 from 0.05",
    ),
    control=but("uses a nonlinear MLP, whose attention spreads again", descent=salient_descent),
)
def linear_only_sparser(generator: Generator, *, descent: Callable[..., Tensor] = linear_descent) -> Measured:
    r"""With a linear MLP the entropy of attention only falls: $v \leftarrow v + \eta\, \Delta \circ$
    softmax($v^2/T$). The statement is the library's own.
    """
    H = attention_entropy(descent(random_mu(generator), temperature=TEMPERATURE), temperature=TEMPERATURE)
    return Measured(float(H.diff().max()), {"drop": bounce(H).drop})


@claim(
    "joma/nonlinear-orbit",
    measures=r"the larger of $\max_l t_l / \min_l t_l - 1$ and the largest distance of v from the flow",
    at_most=1e-3,
    source=OWN,
    assumptions=(r"four components $\mu_j = 1 + u_j$, $u_j$ uniform", "2000 steps of 0.002 from zero"),
    control=but(r"uses softmax($v^2/3$), which has another orbit", temperature=3.0),
)
def nonlinear_orbit(generator: Generator, *, temperature: float = 2.0) -> Measured:
    r"""The normaliser of $v \leftarrow v + \eta (\mu - v) \circ$ softmax($v^2/2$) changes the clock and not
    the orbit: for small steps $t_l = \int_0^{v_l} e^{-u^2/2} / (\mu_l - u)\, du$ is the same for all
    components, and v is on the flow $\dot v = (\mu - v) \circ e^{v^2/2}$ at that time. The statement is the
    library's own.
    """
    # The time of a component at v_l is the integral of e^{-u^2/2} / (mu_l - u) from 0 to v_l, here by
    # Simpson's rule.
    mu = 1 + torch.rand(4, generator=generator, dtype=torch.float64)
    v = salient_descent(mu, start=0.0, rate=2e-3, temperature=temperature, steps=2000)[-1]
    u = v * torch.linspace(0, 1, 1001, dtype=torch.float64)[:, None]
    weights = torch.ones(1001, 1, dtype=torch.float64)
    weights[1:-1:2], weights[2:-1:2] = 4, 2
    times = v / 3000 * (weights * torch.exp(-u.square() / 2) / (mu - u)).sum(0)
    flow = mu * -torch.expm1(log_remaining(mu, times.mean()[None])[0])
    return Measured(
        max(float(times.max() / times.min()) - 1, float((flow - v).abs().max())), {"time": float(times[0])}
    )


@claim(
    "joma/linear-descent-orbit",
    measures=r"largest ratio $\operatorname{erf}(v_l / \sqrt{2}) / \Delta_l$ over the smallest, minus 1",
    at_most=2e-3,
    source=OWN,
    assumptions=(r"four components $\Delta_j = 1 + u_j$, $u_j$ uniform", "4000 steps of 0.001 from zero"),
    control=but(r"uses softmax($v^2/3$), which has another orbit", temperature=3.0),
)
def linear_descent_orbit(generator: Generator, *, temperature: float = 2.0) -> Measured:
    r"""The normaliser of $v \leftarrow v + \eta\, \Delta \circ$ softmax($v^2/2$) changes the clock and not
    the orbit: for small steps $\operatorname{erf}(v_l / \sqrt{2}) / \Delta_l$ is the same for all components,
    as in joma/linear-orbit. The statement is the library's own.
    """
    discriminancy = 1 + torch.rand(4, generator=generator, dtype=torch.float64)
    v = linear_descent(discriminancy, start=0.0, rate=1e-3, temperature=temperature, steps=4000)[-1]
    ratios = progress(v, discriminancy)
    return Measured(float(ratios.max() / ratios.min()) - 1, {"leading v": float(v.max())})


@claim(
    "joma/entropy-floor",
    measures="smallest entropy minus its lower bound, or minus the largest distance from the bound in "
    "the case of equality if that is smaller, nats",
    at_least=-1e-12,
    source=Source("zhai2023stabilizing", "Theorem 3.1", "second-hand"),
    assumptions=(
        "attention is a softmax of its scores",
        "2, 10 and 35 keys; normal scores of standard deviation 0.14 to 7.4; norms 0.5, 3 and 20 in the "
        "case of equality",
    ),
    control=but("uses half the norm of the scores", share=0.5),
)
def entropy_floor(generator: Generator, *, share: float = 1.0) -> Measured:
    r"""Softmax attention over n keys whose centred scores have norm s has entropy at least $\ln(1 + (n-1)b) +
    s\sqrt{n(n-1)}\, b / (1 + (n-1)b)$, $b = e^{-s\sqrt{n/(n-1)}}$, with equality if one score stands above
    all others, which are equal. Here also along the descents of joma/drop-and-bounce and
    joma/linear-only-sparser. The theorem has a product of spectral norms for s; this sharper form is the
    library's own.
    """

    # For scores that attain the bound it measures the largest distance from it; its negative counts if it is
    # the smaller number.
    def excess(scores: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the entropy of each row of scores, and its excess over the bound."""
        norm, H = (
            (scores - scores.mean(-1, keepdim=True)).norm(dim=-1),
            entropy(torch.softmax(scores, dim=-1)),
        )
        return H, H - entropy_lower_bound(share * norm, keys=scores.shape[-1])

    mu, above, equal, on_the_way = random_mu(generator), [], [], []
    for descent in (salient_descent, linear_descent):
        H, gap = excess(descent(mu, temperature=TEMPERATURE)[::20].square() / TEMPERATURE)
        above.append(gap)
        on_the_way.append(gap[undecided(H, keys=len(mu))])
    for keys in KEYS:
        sizes = torch.exp(4 * torch.rand(SCORES, 1, generator=generator, dtype=torch.float64) - 2)
        above.append(excess(sizes * torch.randn(SCORES, keys, generator=generator, dtype=torch.float64))[1])
        spike = torch.zeros(len(NORMS), keys, dtype=torch.float64)
        # One score at a height of s sqrt(n / (n-1)) above the others has a centred norm of s.
        spike[:, 0] = torch.tensor(NORMS, dtype=torch.float64) * math.sqrt(keys / (keys - 1))
        equal.append(excess(spike)[1].abs())
    lowest, distance = float(torch.cat(above).min()), float(torch.cat(equal).max())
    detail = {"smallest excess": lowest, "distance in the equal case": distance}
    detail["excess along the descents, away from uniform and hard attention"] = float(
        torch.cat(on_the_way).min()
    )
    return Measured(min(lowest, -distance), detail)


@claim(
    "joma/several-units",
    measures="distance of V from the joint flow of V and z, as a share of the largest entry",
    at_most=1e-6,
    source=OWN,
    assumptions=(
        "four units, six tokens, independent normal critical points of standard deviation 0.7",
        "nonlinear units at t = 2, linear ones at 80 % of the time to the blow-up",
    ),
    control=but("keeps attention uniform while the units learn", coupled=False),
)
def several_units(generator: Generator, *, coupled: bool = True) -> Measured:
    r"""K units share the attention $e^{z}$ of a query, $\dot z = \sum_k v_k \circ \dot v_k$. From zero,
    nonlinear units learn $V(t) = M \operatorname{diag}(1 - \delta(t))$, M the matrix of the critical points,
    where $\delta_l$ is $1 - v/\mu$ of a single component with $\mu = \|M_{:l}\|$. Column l of linear units
    keeps its direction, and its length follows joma/linear-orbit. The statement is the library's own.
    """
    points, steps, gaps = gaussian_points(generator, units=4, tokens=6, scale=0.7), 200, []
    end = 0.8 * blow_up_time(points.norm(dim=0))  # a share of 0.2 of the time to the blow-up remains
    for layer, argument, time, pull in (
        (nonlinear_layer, 2.0, 2.0, lambda V: points - V),
        (linear_layer, 0.2, end, lambda V: points),
    ):

        def velocity(state: Tensor, pull: Callable[[Tensor], Tensor] = pull) -> Tensor:
            V, z = state[:-1], state[-1]
            change = pull(V) * torch.exp(z)
            return torch.cat([change, coupled * (V * change).sum(0, keepdim=True)])

        state = torch.zeros(5, 6, dtype=torch.float64)
        for _ in range(steps):
            state = runge_kutta(state, velocity, step=time / steps)
        V = layer(points, torch.tensor([argument], dtype=torch.float64))[0]
        gaps.append(float((V - state[:-1]).abs().max() / V.abs().max()))
    return Measured(max(gaps), {"nonlinear": gaps[0], "linear": gaps[1]})


@claim(
    "joma/stable-rank-rebound",
    measures="the smaller of drop and rebound of the stable rank, as a share of the start",
    at_least=0.05,
    source=Source("tian2024joma", "end of Section 4", "second-hand"),
    assumptions=(
        "twelve units, twenty tokens, independent normal critical points",
        "the lower layer moves by the given equation",
    ),
    control=but("uses linear units: one column outgrows all others for good", linear=True),
)
def stable_rank_rebound(generator: Generator, *, linear: bool = False) -> Measured:
    r"""Nonlinear units that share attention, $\dot v_{kl} = (\mu_{kl} - v_{kl})\, e^{\sum_j v_{jl}^2/2}$,
    learn $V(t) = M \operatorname{diag}(1 - \delta(t))$ from zero, M the matrix of $\mu$: the stable rank
    $\|V\|_F^2 / \|V\|_2^2$ falls while only the longest columns are learnt, and comes back. The paper remarks
    that it does in trained networks. The equation for several units is the library's own. The threshold is
    ours.
    """
    points = gaussian_points(generator)
    if linear:
        layers = linear_layer(points, torch.logspace(0, -12, 100, dtype=torch.float64)[1:])
    else:
        layers = nonlinear_layer(points, torch.logspace(-7, 3, 200, dtype=torch.float64))
    curve = rank_bounce(points, layers)
    share = min(curve.drop, curve.rebound) / curve.start
    return Measured(share, {"start": curve.start, "least": curve.least, "end": curve.end})


@claim(
    "joma/isotropic-mixture",
    measures="largest distance of the formula from a sample mean, in standard errors",
    at_most=5.0,
    margin=BY_CHANCE,
    source=Source("tian2024joma", "Theorem 3", "second-hand"),
    assumptions=(
        "components are isotropic (here Gaussian)",
        "the gradient is constant within a component",
    ),
    control=but("uses components that are half as wide along v as across it", flattened=0.5),
)
def isotropic_mixture(generator: Generator, *, flattened: float = 1.0) -> Measured:
    r"""Let attention be uniform, x drawn from isotropic components $\bar x_j + \sigma \epsilon$ and the
    gradient g constant in each, with $a_j = E[g \mid j] P(j)$, $r_j = v^\top \bar x_j$ and $\xi$ one
    coordinate of $\epsilon$. Then $E[g \phi'(v^\top x) x] = \sum_j a_j E[\phi'(r_j + \sigma \|v\| \xi)]\,
    \bar x_j + \sigma \sum_j a_j E[\phi'(r_j + \sigma \|v\| \xi) \xi]\, v / \|v\|$.
    """
    # The component of the noise along v is multiplied by ``flattened``.
    centres = torch.randn(COMPONENTS, DIM, generator=generator, dtype=torch.float64)
    pulls = torch.randn(COMPONENTS, generator=generator, dtype=torch.float64)
    v = torch.randn(DIM, generator=generator, dtype=torch.float64)
    noise = torch.randn(COMPONENTS, DRAWS, DIM, generator=generator, dtype=torch.float64)
    direction = v / v.norm()
    noise = noise - (1 - flattened) * (noise @ direction)[..., None] * direction
    x, worst = centres[:, None] + SPREAD * noise, {}
    for activation, averages in UNITS:
        velocities = pulls[:, None, None] * activation(x @ v)[1][..., None] * x
        # zero where no draw activates the unit
        sd = (velocities.var(1) / DRAWS).sum(0).sqrt().clamp(min=1e-9)
        gap = Mixture(centres, pulls, SPREAD, averages).velocity(v) - velocities.mean(1).sum(0)
        worst[activation.__name__] = float((gap / sd).abs().max())
    return Measured(max(worst.values()), worst)


CLAIMS = (
    learning_speeds,
    drop_and_bounce,
    linear_only_sparser,
    nonlinear_orbit,
    linear_descent_orbit,
    entropy_floor,
    several_units,
    stable_rank_rebound,
    isotropic_mixture,
)

"""Claims about the information curve, its onset, the Gaussian case and variational bounds."""

import math

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from ...core.claims import BOUND, NEAR, Measured, but, claim
from ...core.errors import NotConverged
from ...core.sources import Source
from .curve import certificate, decode, information_bottleneck, iterate, log_likelihood, point, random_joint
from .first_beta import Onset, onset, rare_cluster
from .gaussian import GaussianPair, gaussian_bottleneck, train_variational, variational_bound
from .information import information, plug_in_bias, table

NAME = "bottleneck"
OWN = Source("tishby1999information", status="own")
LEMMA = Source("wyner1973theorem", status="second-hand")
CONSTANT = Source("ahlswede1976spreading", status="own")
RATIO = 1.03  # least ratio of 1/sigma_2^2 and 1/eta in the claims on the onset
DISCRETE = "finite X and Y with positive p(x)"
SPECTRUM = (
    "y = x A + e, all Gaussian; two singular values of A (3 x 3) are in [1.1, 1.8], active at beta = 4, one "
    "in [.1, .5], inactive"
)


def random_encoder(x: int, z: int, generator: Generator) -> Float[Tensor, "x z"]:
    """Draws an encoder whose rows are normalised exponential weights, ``[x, z]``."""
    return (
        torch.rand(x, z, generator=generator, dtype=torch.float64)
        .clamp(min=1e-9)
        .log()
        .neg()
        .log()
        .softmax(1)
    )


@claim(
    "bottleneck/optimality",
    measures="largest log S over a grid of decoders",
    at_most=1e-6,
    margin=BOUND,
    source=Source("lindsay1983geometry", status="own"),
    assumptions=(DISCRETE, "Y is binary, so that a grid of 4,001 decoders covers all of them"),
    control=but("takes the fixed point from a random encoder with two code words", random=True),
)
def optimality(generator: Generator, *, random: bool = False) -> Measured:
    r"""The solver's encoder is optimal over all encoders of any size: $S(t) = \sum_x p(x) e^{-\beta KL(p(y|x)
    \| t)} / \sum_z p(z) e^{-\beta KL(p(y|x) \| t_z)} \le 1$ up to $10^{-6}$ for every decoder t; $\log \max
    S$ bounds the distance from the optimum.
    """
    joint = random_joint(8, 2, generator)
    beta = 20 * onset(joint).beta
    if random:
        encoder = iterate(joint, random_encoder(8, 2, generator), beta, 400)
    else:
        try:
            encoder = information_bottleneck(joint, beta).points[0].encoder
        except NotConverged as error:  # the grid judges the last encoder as well
            encoder = error.state.encoder  # pyright: ignore[reportOptionalMemberAccess]
    grid = torch.linspace(1e-6, 1 - 1e-6, 4001, dtype=torch.float64)
    grid, channel = torch.stack([grid, 1 - grid], 1), joint / joint.sum(1, keepdim=True)
    decoders, mass = decode(joint, encoder)
    mixture = torch.logsumexp(log_likelihood(channel, decoders, beta) + mass.log(), 1)
    values = torch.logsumexp((joint.sum(1).log() - mixture)[:, None] + log_likelihood(channel, grid, beta), 0)
    return Measured(float(values.max()), {"search": certificate(joint, encoder, beta)[0]})


def joint_with_gap(generator: Generator) -> tuple[Float[Tensor, "x y"], Onset]:
    """Draws 6 x 4 joint laws until the onset is clearly below its local value.

    Raises:
        RuntimeError: none of 50 laws is such.
    """
    for _ in range(50):
        joint = random_joint(6, 4, generator)
        if (found := onset(joint)).local_beta >= RATIO * found.beta:
            return joint, found
    raise RuntimeError(f"no law of 50 has 1 / sigma_2^2 above {RATIO} / eta; the search of the onset fails")


def lowest(joint: Float[Tensor, "x y"], beta: float, generator: Generator) -> float:
    """Returns the lowest Lagrangian of the solver and of four random starts."""
    values = [information_bottleneck(joint, beta).points[0].lagrangian]
    for _ in range(4):
        values.append(
            point(
                joint,
                iterate(joint, random_encoder(len(joint), len(joint), generator), beta, 50),
                beta,
                math.inf,
            ).lagrangian
        )
    return min(values)


@claim(
    "bottleneck/nothing-below",
    measures="Lagrangian below zero in nats",
    at_most=1e-8,
    source=Source(
        "wu2019learnability",
        "Theorems 1 and 2: a threshold exists, and the slope of the curve gives it",
        "own",
    ),
    assumptions=(
        DISCRETE,
        f"1 / sigma_2^2 is at least {RATIO} / eta_KL",
        "the supremum is found by ascent from 74 starts",
    ),
    control=but("takes the local value 1 / sigma_2^2 as the onset", local=True),
)
def nothing_below(generator: Generator, *, local: bool = False) -> Measured:
    r"""No encoder is better than none below the onset: $\min I(X;Z) - \beta I(Z;Y) = 0$ at $\beta =
    .99/\eta_{KL}$ for $\eta_{KL} = \sup_q KL(qC \| p_Y) / KL(q \| p_X)$, by the solver and by four random
    starts. (That a threshold exists is Wu et al. (2019); the constant $\eta_{KL}$ is that of Ahlswede and
    Gács (1976).)
    """
    joint, found = joint_with_gap(generator)
    beta = 0.99 * (found.local_beta if local else found.beta)
    return Measured(-lowest(joint, beta, generator), {"ratio": found.local_beta / found.beta})


@claim(
    "bottleneck/something-above",
    measures="Lagrangian below zero in nats",
    at_least=1e-6,
    source=Source(
        "wu2019learnability",
        "Theorems 1 and 2: a threshold exists, and the slope of the curve gives it",
        "own",
    ),
    assumptions=(DISCRETE,),
    control=but("takes .98 of the onset", factor=0.98),
)
def something_above(generator: Generator, *, factor: float = 1.02) -> float:
    r"""An encoder is better than none just above the onset: $\min I(X;Z) - \beta I(Z;Y) < -10^{-6}$ nats at
    $\beta = 1.02/\eta_{KL}$. (That a threshold exists is Wu et al. (2019); the constant $\eta_{KL}$ is that
    of Ahlswede and Gács (1976).)
    """
    joint = random_joint(6, 4, generator)
    found = onset(joint)
    return -information_bottleneck(joint, factor * found.beta).points[0].lagrangian


@claim(
    "bottleneck/rare-word",
    measures="Lagrangian below zero in nats",
    at_least=1e-7,
    source=CONSTANT,
    assumptions=(DISCRETE, f"1 / sigma_2^2 is at least {RATIO} / eta_KL", "the best of six masses"),
    control=but("moves the posterior to p(x) by .95 of the way", near=True),
)
def rare_word(generator: Generator, *, near: bool = False) -> float:
    r"""The first code word is rare and its posterior is far from $p_X$: one code word with the posterior that
    attains $\eta_{KL}$ and a small mass makes $I(X;Z) - \beta I(Z;Y) < -10^{-7}$ nats at $\beta =
    1.02/\eta_{KL}$.
    """
    joint, found = joint_with_gap(generator)
    marginal, beta = joint.sum(1), 1.02 * found.beta
    posterior = found.posterior
    if near:
        posterior = marginal + 0.05 * (posterior - marginal)
    largest = float((marginal / posterior.clamp(min=1e-300)).min())
    encoders = [
        rare_cluster(joint, posterior, largest * share) for share in (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
    ]
    return -min(point(joint, each, beta, math.inf).lagrangian for each in encoders)


@claim(
    "bottleneck/slope",
    measures="largest violation by a chord in nats",
    at_most=1e-6,
    source=OWN,
    assumptions=(DISCRETE,),
    control=but(
        "takes beta as the slope, the multiplier of I(X;Z) in the form of Wong et al. (2023)", inverted=True
    ),
    corrects=(
        r"It writes $\max I(Z;Y) - \beta I(X;Z)$ beside papers that minimise $I(X;Z) - \beta I(Z;Y)$; its "
        r"$\beta$ is the inverse."
    ),
    corrected=Source("wong2023understanding", "App. E.1", "confirmed"),
)
def slope(generator: Generator, *, inverted: bool = False) -> float:
    r"""The curve is concave with the slope $dI(Z;Y)/dI(X;Z) = 1/\beta$: each chord's slope lies between
    $1/\beta$ at its ends.
    """
    joint = random_joint(6, 4, generator)
    curve = information_bottleneck(joint, [onset(joint).beta * factor for factor in (1.2, 1.8, 3.0, 5.0)])
    worst = 0.0
    for low, high in zip(curve.points, curve.points[1:]):
        rise, run = high.relevance - low.relevance, high.compression - low.compression
        first, second = (low.beta, high.beta) if inverted else (1 / high.beta, 1 / low.beta)
        worst = max(worst, first * run - rise, rise - second * run)
    return worst


def binary_entropy(p: float) -> float:
    """Returns the entropy of a Bernoulli variable in nats."""
    return -sum(q * math.log(q) for q in (p, 1 - p) if q > 0)


def gerber(compression: float, noise: float) -> float:
    """Returns log 2 - h(noise * h^-1(log 2 - R)), the curve of a doubly symmetric binary source, in nats."""
    from scipy.optimize import brentq

    target = math.log(2) - compression
    if not 0 < target < math.log(2):
        return math.log(2) - binary_entropy(noise) if target <= 0 else 0.0
    p = float(brentq(lambda p: binary_entropy(p) - target, 0.0, 0.5, xtol=1e-15))  # pyright: ignore
    return math.log(2) - binary_entropy(p * (1 - noise) + (1 - p) * noise)


@claim(
    "bottleneck/symmetric-source",
    measures="largest distance from the closed form in nats",
    at_most=1e-6,
    source=LEMMA,
    assumptions=("X is a uniform bit", "a is in [.05, .3]"),
    control=but("takes the tangent (1 - 2a)^2 I(X;Z)", line=True),
)
def symmetric_source(generator: Generator, *, line: bool = False) -> float:
    r"""For a uniform bit through a binary symmetric channel with error a, $I(Z;Y) = \log 2 - h(a \star
    h^{-1}(\log 2 - I(X;Z)))$.
    """
    noise = 0.05 + 0.25 * float(torch.rand((), generator=generator, dtype=torch.float64))
    joint = torch.tensor([[1 - noise, noise], [noise, 1 - noise]], dtype=torch.float64) / 2
    slope = (1 - 2 * noise) ** 2
    points = information_bottleneck(joint, [factor / slope for factor in (0.9, 1.3, 2.0, 4.0)]).points
    exact = [slope * each.compression if line else gerber(each.compression, noise) for each in points]
    return max(abs(each.relevance - value) for each, value in zip(points, exact))


@claim(
    "bottleneck/deterministic",
    measures="distance from H(Y) in nats",
    at_most=1e-5,
    source=Source("kolchinsky2019caveats", status="second-hand"),
    assumptions=(DISCRETE, "the label is a function of x", "beta is in [1.1, 10]"),
    control=but("replaces a fifth of the labels by uniform ones", noise=0.2),
)
def deterministic(generator: Generator, *, noise: float = 0.0) -> Measured:
    r"""If the label is a function of x, the curve is $I(Z;Y) = I(X;Z)$ up to $H(Y)$; any $\beta > 1$ has the
    optimum $I(X;Z) = I(Z;Y) = H(Y)$.
    """
    beta = 1.1 + 8.9 * float(torch.rand((), generator=generator, dtype=torch.float64))
    marginal = random_joint(9, 2, generator).sum(1)
    labels = torch.eye(3, dtype=torch.float64)[torch.arange(9) % 3]
    joint = marginal[:, None] * ((1 - noise) * labels + noise / 3)
    found = information_bottleneck(joint, beta).points[0]
    entropy = float(information(marginal[:, None] * labels))
    return Measured(max(abs(found.compression - entropy), abs(found.relevance - entropy)), {"beta": beta})


def gaussian_pair(generator: Generator) -> GaussianPair:
    """Draws y = x A + e of three dimensions. At beta = 4 two directions of x are active, those with singular
    values of A above 3^(-1/2).
    """
    rotations = [
        torch.linalg.qr(torch.randn(3, 3, generator=generator, dtype=torch.float64)).Q for _ in range(2)
    ]
    low, high = (
        torch.tensor([1.1, 1.1, 0.1], dtype=torch.float64),
        torch.tensor([1.8, 1.8, 0.5], dtype=torch.float64),
    )
    values = low + (high - low) * torch.rand(3, generator=generator, dtype=torch.float64)
    return GaussianPair(rotations[0] @ torch.diag(values) @ rotations[1], 1.0)


@claim(
    "bottleneck/gaussian",
    measures="distance of the numerical optimum from the closed form in nats",
    at_most=1e-6,
    source=Source("chechik2005information", "Theorem 3.1", "second-hand"),
    assumptions=(SPECTRUM, "beta = 4", "the encoder has as many dimensions as x"),
    control=but("allows one dimension where two are active", dim=1),
)
def gaussian(generator: Generator, *, dim: int = 3) -> float:
    r"""For Gaussian variables $\min I(X;Z) - \beta I(Z;Y)$ over noisy projections has $I(X;Z) = \frac12
    \sum_i \log \frac{(\beta-1)(1-\lambda_i)}{\lambda_i}$ over $\beta > 1/(1-\lambda_i)$, and $I(Z;Y) = I(X;Z)
    - \frac12 \sum_i \log \beta(1-\lambda_i)$.
    """
    pair, beta = gaussian_pair(generator), 4.0
    compression, relevance = gaussian_bottleneck(pair.eigenvalues(), beta)
    weights = torch.randn(dim, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS(
        [weights], max_iter=300, line_search_fn="strong_wolfe", tolerance_grad=1e-10, tolerance_change=1e-14
    )

    def closure() -> Tensor:
        optimiser.zero_grad()
        first, second = pair.informations(weights)
        loss = first - beta * second
        loss.backward()
        return loss.detach()

    optimiser.step(closure)  # pyright: ignore[reportArgumentType]
    return abs(float(closure()) - (compression - beta * relevance))


@claim(
    "bottleneck/bias",
    measures="distance of the mean from the formula, relative to it",
    at_most=0.1,
    margin=NEAR,
    source=Source("miller1955note", "pp. 95-100", "second-hand"),
    assumptions=("n = 400 samples of uniform independent variables of 8 and 5 values",),
    control=but("leaves the correction out", corrected=False),
)
def bias(generator: Generator, *, corrected: bool = True) -> float:
    """The plug-in information of independent samples has the mean $(|X|-1)(|Y|-1)/2n$ nats within a tenth."""
    n, x, y = 400, 8, 5
    first, second = (torch.randint(size, (400, n), generator=generator) for size in (x, y))
    mean, formula = float(information(table(first, second, (x, y)) / n).mean()), plug_in_bias(x, y, n)
    return abs(mean - (formula if corrected else 0.0)) / formula


@claim(
    "bottleneck/bounds",
    measures="larger violation in nats",
    at_most=0.02,
    source=Source("alemi2017deep", "Section 3, Eqs. (11), (12) and (14)", "confirmed"),
    assumptions=(
        SPECTRUM,
        "the encoder and the decoder are linear, and z has two dimensions",
        "200,000 new samples",
    ),
    corrects="The three equations print $q(z|y)$ for the decoder $q(y|z)$; Eq. (12) is right.",
    corrected=Source("alemi2017deep", "Eqs. (9)-(11)", "confirmed"),
    control=but("lets the decoder read the mean of z without its noise", noise=0.0),
    cost="training",
)
def bounds(generator: Generator, *, noise: float = 1.0) -> Measured:
    r"""A variational bottleneck bounds both informations: rate $\ge I(X;Z)$ and $H(Y) - CE \le I(Z;Y)$ of its
    own encoder, within .02 nats of sampling error.
    """
    pair, dim = gaussian_pair(generator), 2
    model = train_variational(pair, 4.0, dim, steps=300, generator=generator)
    exact = [
        float(value)
        for value in pair.informations((model.mean.weight / model.log_noise.exp()[:, None]).detach())
    ]
    rate, gain = variational_bound(model, pair, 200_000, generator, noise=noise)
    return Measured(
        max(gain - exact[1], exact[0] - rate), {"rate": rate, "exact rate": exact[0], "gain": gain}
    )


@claim(
    "bottleneck/variational",
    measures="excess of the Lagrangian, relative to the optimum",
    at_most=0.1,
    source=Source("alemi2017deep", "Section 3, Eqs. (15) and (17)", "own"),
    assumptions=(SPECTRUM, "the encoder and the decoder are linear", "1,500 steps of Adam"),
    control=but("allows one dimension where two are active", dim=1),
    cost="training",
)
def variational(generator: Generator, *, dim: int = 2) -> Measured:
    r"""A trained linear variational bottleneck comes within a tenth of the Gaussian optimum: $L - L^* \le .1
    |L^*|$ at $\beta = 4$. (The source maximises $I(Z;Y) - \beta' I(Z;X)$, so its $\beta'$ is $1/\beta$; the
    tenth is the library's.)
    """
    pair, beta = gaussian_pair(generator), 4.0
    model = train_variational(pair, beta, dim, steps=1500, generator=generator)
    rate, gain = variational_bound(model, pair, 200_000, generator)
    compression, relevance = gaussian_bottleneck(pair.eigenvalues(), beta)
    optimum = compression - beta * relevance
    return Measured(
        (rate - beta * gain - optimum) / abs(optimum), {"rate": rate, "gain": gain, "optimum": optimum}
    )


CLAIMS = (
    optimality,
    nothing_below,
    something_above,
    rare_word,
    slope,
    symmetric_source,
    deterministic,
    gaussian,
    bias,
    bounds,
    variational,
)

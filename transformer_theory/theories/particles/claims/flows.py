"""Claims about the flow of tokens on the sphere: energy, clusters, and the masks and norms
of transformers.
"""

import math
from functools import partial

import torch
from torch import Generator, Tensor

from ....core.claims import NEAR, Measured, but, claim
from ....core.sources import Source
from ..clusters import count_clusters, energy, half_space_probability, in_half_space, mean_cosine
from ..dynamics import flow, pre_norm_field, softmax_field, unit, unnormalised_field

MODES = Source("bruno2025emergence", status="second-hand")
BETAS = (0.5, 2.0, 9.0)
TIMES = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
DRAWS = 160  # sets of points of Wendel's formula
CIRCLE, BATCH, COUNTED = 32, 16, 20.0  # tokens on the circle, sequences, time of the count
SEVERAL = 12  # clusters of 32 tokens; at time 0 there are about 26


def uniform(shape: tuple[int, ...], generator: Generator) -> Tensor:
    """Returns independent uniform unit vectors, ``[*shape]`` float64."""
    return unit(torch.randn(*shape, generator=generator, dtype=torch.float64))


@claim(
    "particles/energy-rises",
    measures="smallest change of the energy between seven times",
    at_least=-1e-9,
    source=Source("geshkovski2025mathematical", "Eq. (3.6), Lemmas 3.6 and 3.7", "second-hand"),
    assumptions=("12 uniform tokens in four dimensions", "beta between .5 and 9", "scores with B = I"),
    control=but("V = -I", sign=-1.0),
)
def energy_rises(generator: Generator, *, sign: float = 1.0) -> Measured:
    r"""$E(X) = n^{-2} \sum_{ij} e^{\beta (\langle x_i, x_j \rangle - 1)}$ never falls along SA and USA with
    $V = I$.
    """
    least, value = math.inf, sign * torch.eye(4, dtype=torch.float64)
    X = uniform((4, 12, 4), generator)
    for beta in BETAS:
        for field, speed in ((softmax_field, 1.0), (unnormalised_field, math.exp(beta))):
            times = [t / speed for t in TIMES]  # USA is faster by up to e^beta
            values = energy(
                flow(X, partial(field, beta=beta, value=value), times=times, tolerance=1e-8), beta=beta
            )
            least = min(least, float(values.diff(dim=0).min()))
    return Measured(least, {"smallest change": least})


def _half_sphere(generator: Generator) -> Tensor:
    """Returns four sequences of 16 tokens in eight dimensions, uniform on the half-sphere around the first
    one.
    """
    X = uniform((4, 16, 8), generator)
    return X * torch.where((X * X[:, :1]).sum(-1, keepdim=True) < 0, -1.0, 1.0)


@claim(
    "particles/energy-scale",
    measures="largest distance of the energy from 1 at time 60, four sequences",
    at_most=1e-9,
    source=Source("geshkovski2025mathematical", "Lemma 6.4", "own"),
    assumptions=("16 tokens in eight dimensions, uniform on a half-sphere", "beta uniform in [1, 2]"),
    control=but(r"the further factor $1/(2\beta)$", printed=True),
    corrects=(
        r"Quoted with the factor $1/(2 \beta e^\beta n^2)$ in front of $\sum_{ij} e^{\beta \langle x_i, "
        r"x_j \rangle}$, the energy is at most $1/(2\beta)$, and a statement about its levels up to 1 is "
        r"empty; the factor is $1/(e^\beta n^2)$."
    ),
    corrected=Source("geshkovski2024dynamic", "Section 1, definition of the energy", "second-hand"),
)
def energy_scale(generator: Generator, *, printed: bool = False) -> Measured:
    r"""From tokens in an open half-space the energy $E(X) = n^{-2} \sum_{ij} e^{\beta (\langle x_i, x_j
    \rangle - 1)}$ tends to 1 along SA, whatever $\beta$. (A corollary of the source's lemma on half-spaces.)
    """
    beta = 1 + float(torch.rand((), generator=generator))
    last = flow(_half_sphere(generator), partial(softmax_field, beta=beta), times=(60.0,), tolerance=1e-6)[-1]
    value = float(energy(last, beta=beta).min()) / (2 * beta if printed else 1)
    return Measured(abs(value - 1), {"beta": beta, "energy": value})


@claim(
    "particles/half-space",
    measures="1 minus the smallest cosine of two tokens at time 60",
    at_most=1e-6,
    source=Source("geshkovski2025mathematical", "Lemma 6.4", "second-hand"),
    assumptions=("16 tokens in eight dimensions, uniform on a half-sphere", "Gaussian B of variance 1/8"),
    control=but("eight tokens at a point and eight at its antipode, which are at rest", antipodal=True),
)
def half_space(generator: Generator, *, antipodal: bool = False) -> Measured:
    r"""Tokens in an open half-space end in one cluster in SA with $V = I$, whatever the scores $x_i B
    x_j^\top$.
    """
    X = _half_sphere(generator)
    if antipodal:
        X = X[:, :1] * torch.tensor([1.0, -1.0] * 8, dtype=torch.float64)[:, None]
    B = torch.randn(8, 8, generator=generator, dtype=torch.float64) / 8**0.5
    last = flow(X, partial(softmax_field, beta=1.0, bilinear=B), times=(60.0,))[-1]
    return Measured(1 - float((last @ last.mT).min()), {"largest entry of B": float(B.abs().max())})


@claim(
    "particles/sphere",
    measures="1 minus the smallest cosine of two tokens at time 400",
    at_most=1e-6,
    source=Source("geshkovski2025mathematical", "Theorem 6.1", "second-hand"),
    assumptions=("12 uniform tokens in three dimensions", "beta = 1"),
    control=but("V = -I", inverted=True),
)
def sphere(generator: Generator, *, inverted: bool = False) -> float:
    r"""For $d \ge 3$, SA with $V = I$ takes almost every start to one cluster. (For any number of tokens and
    any $\beta \ge 0$; the same holds for USA.)
    """
    X, value = uniform((4, 12, 3), generator), (-1.0 if inverted else 1.0) * torch.eye(3, dtype=torch.float64)
    last = flow(X, partial(softmax_field, beta=1.0, value=value), times=(400.0,), tolerance=1e-6)[-1]
    return 1 - float((last @ last.mT).min())


@claim(
    "particles/wendel",
    measures="distance of the share of 160 sets from the probability, standard errors",
    at_most=4.5,
    margin=(
        "4.5 standard errors are a level of 7 in a million; the nearest control is a draw in which "
        "the shift changes the probability least"
    ),
    source=Source("wendel1962problem", "restated as Theorem 6.7 of Geshkovski et al. (2025)", "second-hand"),
    assumptions=("Gaussian tokens", "2 to 5 dimensions, 2d - 1 to 2d + 1 tokens"),
    control=but("tokens with mean 1.5 in each coordinate", symmetric=False),
)
def wendel(generator: Generator, *, symmetric: bool = True) -> Measured:
    r"""Independent tokens with a symmetric law, in general position, lie in an open half-space with
    probability $2^{-(n-1)} \sum_{k<d} \binom{n-1}{k}$.
    """
    d = int(torch.randint(2, 6, (), generator=generator))
    n = 2 * d + int(torch.randint(-1, 2, (), generator=generator))
    X = torch.randn(DRAWS, n, d, generator=generator, dtype=torch.float64) + (0.0 if symmetric else 1.5)
    expected = half_space_probability(n, d)
    share = sum(in_half_space(one) for one in X) / DRAWS
    error = math.sqrt(expected * (1 - expected) / DRAWS)
    return Measured(abs(share - expected) / error, {"n": n, "d": d, "share": share, "expected": expected})


def _counts(beta: float, generator: Generator) -> Tensor:
    """Counts the clusters of 16 sequences of 32 tokens on the circle at time 20."""
    X = uniform((BATCH, CIRCLE, 2), generator)
    return count_clusters(
        flow(X, partial(softmax_field, beta=beta), times=(COUNTED,), tolerance=1e-5)[-1]
    ).double()


@claim(
    "particles/metastable",
    measures="share of 16 sequences with 2 to 12 clusters at time 20",
    at_least=1.0,
    source=Source("geshkovski2024dynamic", "main theorem, Section 2 (separated caps)", "own"),
    assumptions=("32 uniform tokens on the circle", "a cluster: tokens connected by cosines above .999"),
    control=but(r"$\beta = 1$", beta=1.0),
)
def metastable(generator: Generator, *, beta: float = 25.0) -> Measured:
    r"""At large $\beta$ tokens on the circle form several clusters: two to 12 at time 20 for $\beta = 25$.
    (The source proves that tokens that start in separate caps stay clustered for a time exponential in
    $\beta$; counts from uniform starts are the library's.)
    """
    found = _counts(beta, generator)
    several = (found >= 2) & (found <= SEVERAL)
    detail = {"mean": float(found.mean()), "smallest": float(found.min()), "largest": float(found.max())}
    return Measured(float(several.double().mean()), detail)


@claim(
    "particles/square-root",
    measures="distance of the log-log slope of the mean number of clusters in beta, 16 to 81, from 1/2",
    at_most=0.15,
    margin=NEAR,
    source=MODES,
    assumptions=("32 uniform tokens on the circle, 16 sequences", "at time 20"),
    control=but(r"$\beta$ from .1 to 1, where one cluster is left", betas=(0.1, 0.25, 0.5, 1.0)),
)
def square_root(
    generator: Generator, *, betas: tuple[float, ...] = (16.0, 25.0, 36.0, 49.0, 81.0)
) -> Measured:
    r"""The number of clusters on the circle grows like $\sqrt\beta$. (At finite n and from uniform starts
    this is measured here.)
    """
    means = [float(_counts(beta, generator).mean()) for beta in betas]
    x, y = torch.tensor(betas, dtype=torch.float64).log(), torch.tensor(means, dtype=torch.float64).log()
    slope = float(((x - x.mean()) * y).sum() / (x - x.mean()).square().sum())
    return Measured(abs(slope - 0.5), {"slope": slope, **{f"beta {b:g}": m for b, m in zip(betas, means)}})


@claim(
    "particles/causal-leader",
    measures="1 minus the smallest cosine of a token with the start of the first one, at time 60",
    at_most=1e-3,
    source=Source("karagodin2024clustering", "Section 4", "second-hand"),
    assumptions=("12 uniform tokens in six dimensions", "beta = 1"),
    control=but("no mask", causal=False),
)
def causal_leader(generator: Generator, *, causal: bool = True) -> float:
    """With a causal mask and $V = I$ all tokens of almost every start, with any scores, join the first one,
    which does not move.
    """
    X = uniform((4, 12, 6), generator)
    last = flow(X, partial(softmax_field, beta=1.0, causal=causal), times=(60.0,), tolerance=1e-6)[-1]
    return 1 - float((last * X[:, :1]).sum(-1).min())


@claim(
    "particles/pre-norm",
    measures="distance of the exponent of 1 - mean cosine in time, from 100 to 400, from -2",
    at_most=0.05,
    source=Source("karagodin2025normalization", "Theorem 4.3", "second-hand"),
    assumptions=("8 tokens in 16 dimensions with a common direction", "beta = 1, V = I"),
    corrects=(
        r"Its condition $\delta < 1/(100 n^2 \beta^2)$ excludes nothing if $\beta$ is small. Two antipodal "
        r"tokens meet it at $\beta = 1/100$; they stay antipodal, so the variance does not fall. A "
        r"condition on $\delta$ alone, such as $\delta < 1/(100 n^2)$, is needed."
    ),
    corrected=Source("karagodin2025normalization", "Theorem 4.3, (ii)", "second-hand"),
    control=but("SA, which normalises the tokens, from 3 to 12", normalised=True),
)
def pre_norm(generator: Generator, *, normalised: bool = False) -> Measured:
    r"""In pre-norm layers, $\dot z_i = \sum_j a_{ij} \hat z_j$, tokens cluster like a power of time: near
    consensus $|z|$ grows like t, so $1 - \cos$ falls like $t^{-2}$, and not exponentially. (The source has
    the rate of the variance; the power follows from it.)
    """
    X = 3 * uniform((1, 8, 16), generator) + 2 * uniform((1, 1, 16), generator)
    times = (3.0, 12.0) if normalised else (100.0, 400.0)  # SA is at rest at time 100, up to rounding
    field = partial(softmax_field if normalised else pre_norm_field, beta=1.0)
    gaps = 1 - mean_cosine(flow(X, field, times=times, tolerance=1e-10, sphere=normalised))[:, 0]
    slope = float((gaps[1] / gaps[0]).log() / math.log(times[1] / times[0]))
    return Measured(abs(slope + 2), {"slope": slope, "first": float(gaps[0]), "last": float(gaps[1])})


CLAIMS = (
    energy_rises,
    energy_scale,
    half_space,
    sphere,
    wendel,
    metastable,
    square_root,
    causal_leader,
    pre_norm,
)

"""Claims about the flow of tokens on the sphere: energy, clusters, and the masks and norms of transformers."""

import math
from functools import partial

import torch
from torch import Generator, Tensor

from ....core.claims import Claim, Evidence
from ....core.sources import Source
from ..clusters import count_clusters, energy, half_space_probability, in_half_space, mean_cosine
from ..dynamics import flow, pre_norm_field, softmax_field, unit, unnormalised_field

SURVEY = Source("geshkovski2025mathematical", status="second-hand")
DYNAMIC = Source("geshkovski2024dynamic", status="second-hand")
CAUSAL, NORMS = (
    Source("karagodin2024clustering", status="second-hand"),
    Source("karagodin2025normalization", status="second-hand"),
)
MODES, WENDEL = (
    Source("bruno2025emergence", status="second-hand"),
    Source("wendel1962problem", status="second-hand"),
)
BETAS = (0.5, 2.0, 9.0)
TIMES = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
DRAWS = 160  # sets of points of Wendel's formula
CIRCLE, BATCH, COUNTED = 32, 16, 20.0  # tokens on the circle, sequences, time of the count
SEVERAL = 12  # clusters of 32 tokens; at time 0 there are about 26


def uniform(shape: tuple[int, ...], generator: Generator) -> Tensor:
    """Returns independent uniform unit vectors, ``[*shape]`` float64."""
    return unit(torch.randn(*shape, generator=generator, dtype=torch.float64))


def _rises(generator: Generator, *, sign: float) -> Evidence:
    """Measures the smallest change of the energy between times, over three beta, SA and USA."""
    least, value = math.inf, sign * torch.eye(4, dtype=torch.float64)
    X = uniform((4, 12, 4), generator)
    for beta in BETAS:
        for field, speed in ((softmax_field, 1.0), (unnormalised_field, math.exp(beta))):
            times = [t / speed for t in TIMES]  # USA is faster by up to e^beta
            values = energy(
                flow(X, partial(field, beta=beta, value=value), times=times, tolerance=1e-8), beta=beta
            )
            least = min(least, float(values.diff(dim=0).min()))
    return Evidence(least, -1e-9, ">=", detail={"smallest change": least})


def _half_sphere(generator: Generator) -> Tensor:
    """Returns four sequences of 16 tokens in eight dimensions, uniform on the half-sphere around the first
    one.
    """
    X = uniform((4, 16, 8), generator)
    return X * torch.where((X * X[:, :1]).sum(-1, keepdim=True) < 0, -1.0, 1.0)


def _energy_scale(generator: Generator, *, printed: bool) -> Evidence:
    """Measures the distance of the energy from one at time 60 of SA."""
    beta = 1 + float(torch.rand((), generator=generator))
    last = flow(_half_sphere(generator), partial(softmax_field, beta=beta), times=(60.0,), tolerance=1e-6)[-1]
    value = float(energy(last, beta=beta).min()) / (2 * beta if printed else 1)
    return Evidence(abs(value - 1), 1e-9, "<=", detail={"beta": beta, "energy": value})


def _one_cluster(generator: Generator, *, antipodal: bool) -> Evidence:
    """Measures 1 minus the smallest cosine of two tokens at time 60, with random scores."""
    X = _half_sphere(generator)
    if antipodal:
        X = X[:, :1] * torch.tensor([1.0, -1.0] * 8, dtype=torch.float64)[:, None]
    B = torch.randn(8, 8, generator=generator, dtype=torch.float64) / 8**0.5
    last = flow(X, partial(softmax_field, beta=1.0, bilinear=B), times=(60.0,))[-1]
    return Evidence(
        1 - float((last @ last.mT).min()), 1e-6, "<=", detail={"largest entry of B": float(B.abs().max())}
    )


def _sphere(generator: Generator, *, inverted: bool) -> Evidence:
    """Measures 1 minus the smallest cosine of two uniform tokens on the sphere in three dimensions at time
    400.
    """
    X, value = uniform((4, 12, 3), generator), (-1.0 if inverted else 1.0) * torch.eye(3, dtype=torch.float64)
    last = flow(X, partial(softmax_field, beta=1.0, value=value), times=(400.0,), tolerance=1e-6)[-1]
    return Evidence(1 - float((last @ last.mT).min()), 1e-6, "<=")


def _wendel(generator: Generator, *, symmetric: bool) -> Evidence:
    """Measures the distance of the share of sets in a half-space from Wendel's probability, in standard
    errors.
    """
    d = int(torch.randint(2, 6, (), generator=generator))
    n = 2 * d + int(torch.randint(-1, 2, (), generator=generator))
    X = torch.randn(DRAWS, n, d, generator=generator, dtype=torch.float64) + (0.0 if symmetric else 1.5)
    expected = half_space_probability(n, d)
    share = sum(in_half_space(one) for one in X) / DRAWS
    error = math.sqrt(expected * (1 - expected) / DRAWS)
    return Evidence(
        abs(share - expected) / error,
        4.5,
        "<=",
        detail={"n": n, "d": d, "share": share, "expected": expected},
    )


def _counts(beta: float, generator: Generator) -> Tensor:
    """Counts the clusters of 16 sequences of 32 tokens on the circle at time 20."""
    X = uniform((BATCH, CIRCLE, 2), generator)
    return count_clusters(
        flow(X, partial(softmax_field, beta=beta), times=(COUNTED,), tolerance=1e-5)[-1]
    ).double()


def _metastable(generator: Generator, *, beta: float) -> Evidence:
    """Measures the share of sequences with 2 to :data:`SEVERAL` clusters at time 20; at time 0 there are
    more.
    """
    found = _counts(beta, generator)
    several = (found >= 2) & (found <= SEVERAL)
    detail = {"mean": float(found.mean()), "smallest": float(found.min()), "largest": float(found.max())}
    return Evidence(float(several.double().mean()), 1.0, ">=", detail=detail)


def _square_root(generator: Generator, *, betas: tuple[float, ...]) -> Evidence:
    """Measures the slope of the logarithm of the mean number of clusters in that of beta."""
    means = [float(_counts(beta, generator).mean()) for beta in betas]
    x, y = torch.tensor(betas, dtype=torch.float64).log(), torch.tensor(means, dtype=torch.float64).log()
    slope = float(((x - x.mean()) * y).sum() / (x - x.mean()).square().sum())
    return Evidence(
        abs(slope - 0.5),
        0.15,
        "<=",
        detail={"slope": slope, **{f"beta {b:g}": m for b, m in zip(betas, means)}},
    )


def _causal(generator: Generator, *, causal: bool) -> Evidence:
    """Measures 1 minus the smallest cosine with the first token's start at time 60."""
    X = uniform((4, 12, 6), generator)
    last = flow(X, partial(softmax_field, beta=1.0, causal=causal), times=(60.0,), tolerance=1e-6)[-1]
    return Evidence(1 - float((last * X[:, :1]).sum(-1).min()), 1e-3, "<=")


def _pre_norm(generator: Generator, *, normalised: bool) -> Evidence:
    """Measures the change of 1 - mean cosine between a time and four times this time as a power of time; the
    prediction is -2.
    """
    X = 3 * uniform((1, 8, 16), generator) + 2 * uniform((1, 1, 16), generator)
    times = (3.0, 12.0) if normalised else (100.0, 400.0)  # SA is at rest at time 100, up to rounding
    field = partial(softmax_field if normalised else pre_norm_field, beta=1.0)
    gaps = 1 - mean_cosine(flow(X, field, times=times, tolerance=1e-10, sphere=normalised))[:, 0]
    slope = float((gaps[1] / gaps[0]).log() / math.log(times[1] / times[0]))
    return Evidence(
        abs(slope + 2), 0.2, "<=", detail={"slope": slope, "first": float(gaps[0]), "last": float(gaps[1])}
    )


CLAIMS = (
    Claim(
        id="particles/energy-rises",
        statement=r"$E(X) = n^{-2} \sum_{ij} e^{\beta (\langle x_i, x_j \rangle - 1)}$ never falls along SA "
        r"and USA with $V = I$.",
        measures="smallest change of the energy between seven times",
        source=SURVEY,
        assumptions=("12 uniform tokens in four dimensions", "beta between .5 and 9", "scores with B = I"),
        check=lambda generator: _rises(generator, sign=1.0),
        control=lambda generator: _rises(generator, sign=-1.0),
        control_description="V = -I",
    ),
    Claim(
        id="particles/energy-scale",
        statement=r"From tokens in an open half-space the energy $E(X) = n^{-2} \sum_{ij} e^{\beta (\langle "
        r"x_i, x_j \rangle - 1)}$ tends to 1 along SA, whatever $\beta$.",
        measures="largest distance of the energy from 1 at time 60, four sequences",
        source=DYNAMIC,
        assumptions=("16 tokens in eight dimensions, uniform on a half-sphere", "beta uniform in [1, 2]"),
        check=lambda generator: _energy_scale(generator, printed=False),
        control=lambda generator: _energy_scale(generator, printed=True),
        control_description=r"the further factor $1/(2\beta)$",
        corrects=r"Quoted with the factor $1/(2 \beta e^\beta n^2)$ in front of $\sum_{ij} e^{\beta \langle "
        r"x_i, x_j \rangle}$, the energy is at most $1/(2\beta)$, and a statement about its levels up to 1 "
        r"is empty; the factor is $1/(e^\beta n^2)$. Second-hand: we have not read the paper's text.",
    ),
    Claim(
        id="particles/half-space",
        statement=r"Tokens in an open half-space end in one cluster in SA with $V = I$, whatever the scores "
        r"$x_i B x_j^\top$.",
        measures="1 minus the smallest cosine of two tokens at time 60",
        source=SURVEY,
        assumptions=("16 tokens in eight dimensions, uniform on a half-sphere", "Gaussian B of variance 1/8"),
        check=lambda generator: _one_cluster(generator, antipodal=False),
        control=lambda generator: _one_cluster(generator, antipodal=True),
        control_description="eight tokens at a point and eight at its antipode, which are at rest",
        corrects=r"Readings of the theorem on one cluster as one about *every* start: antipodal tokens "
        r"never join.",
    ),
    Claim(
        id="particles/sphere",
        statement=r"For $d \ge 3$, SA with $V = I$ takes almost every start to one cluster.",
        measures="1 minus the smallest cosine of two tokens at time 400",
        source=SURVEY,
        assumptions=("12 uniform tokens in three dimensions", "beta = 1"),
        check=lambda generator: _sphere(generator, inverted=False),
        control=lambda generator: _sphere(generator, inverted=True),
        control_description="V = -I",
    ),
    Claim(
        id="particles/wendel",
        statement="Independent tokens with a symmetric law, in general position, lie in an open half-space "
        r"with probability $2^{-(n-1)} \sum_{k<d} \binom{n-1}{k}$.",
        measures="distance of the share of 160 sets from the probability, standard errors",
        source=WENDEL,
        assumptions=("Gaussian tokens", "2 to 5 dimensions, 2d - 1 to 2d + 1 tokens"),
        check=lambda generator: _wendel(generator, symmetric=True),
        control=lambda generator: _wendel(generator, symmetric=False),
        control_description="tokens with mean 1.5 in each coordinate",
    ),
    Claim(
        id="particles/metastable",
        statement=r"At large $\beta$ tokens on the circle form several clusters: two to 12 at time 20 for "
        r"$\beta = 25$.",
        measures="share of 16 sequences with 2 to 12 clusters at time 20",
        source=DYNAMIC,
        assumptions=("32 uniform tokens on the circle", "a cluster: tokens connected by cosines above .999"),
        check=lambda generator: _metastable(generator, beta=25.0),
        control=lambda generator: _metastable(generator, beta=1.0),
        control_description=r"$\beta = 1$",
    ),
    Claim(
        id="particles/square-root",
        statement=r"The number of clusters on the circle grows like $\sqrt\beta$.",
        measures="distance of the log-log slope of the mean number of clusters in beta, 16 to 81, from 1/2",
        source=MODES,
        assumptions=("32 uniform tokens on the circle, 16 sequences", "at time 20"),
        check=lambda generator: _square_root(generator, betas=(16.0, 25.0, 36.0, 49.0, 81.0)),
        control=lambda generator: _square_root(generator, betas=(0.1, 0.25, 0.5, 1.0)),
        control_description=r"$\beta$ from .1 to 1, where one cluster is left",
    ),
    Claim(
        id="particles/causal-leader",
        statement=r"With a causal mask and $V = I$ all tokens join the first one, which does not move.",
        measures="1 minus the smallest cosine of a token with the start of the first one, at time 60",
        source=CAUSAL,
        assumptions=("12 uniform tokens in six dimensions", "beta = 1"),
        check=lambda generator: _causal(generator, causal=True),
        control=lambda generator: _causal(generator, causal=False),
        control_description="no mask",
    ),
    Claim(
        id="particles/pre-norm",
        statement=r"In pre-norm layers, $\dot z_i = \sum_j a_{ij} \hat z_j$, tokens cluster like a power of "
        r"time: near consensus $|z|$ grows like t, so $1 - \cos$ falls like $t^{-2}$, and not "
        "exponentially.",
        measures="distance of the exponent of 1 - mean cosine in time, from 100 to 400, from -2",
        source=NORMS,
        assumptions=("8 tokens in 16 dimensions with a common direction", "beta = 1, V = I"),
        check=lambda generator: _pre_norm(generator, normalised=False),
        control=lambda generator: _pre_norm(generator, normalised=True),
        control_description="SA, which normalises the tokens, from 3 to 12",
    ),
)

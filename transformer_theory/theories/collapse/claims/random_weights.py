"""Claims about random weights, permuted keys, the phases of the scores, depth with skip connections, and
trained heads.

Source: :cite:t:`giorlandino2026two`, :cite:t:`noci2022signal`; own derivations.
"""

import math

import torch
from torch import Generator

from ....core.claims import BY_CHANCE, NEAR, Measured, but, claim
from ....core.sources import Source
from ....core.statistics import fixed_generator
from ....data.digits import digits
from ....metrics.attention import row_deviation
from ..heads import contraction, permute_keys, permuted_contraction
from ..initialisation import (
    contraction_of_tokens,
    cosine_after,
    depth_cosine,
    dimension,
    equiangular,
    equiangular_cosines,
    exactly_equiangular,
    gaussian_scores_matrix,
    mean_cosine,
    squared_contraction,
    stream,
)
from ..learning import contractions, train_vit
from ..phases import curves, gaussian_participation, limit, participation
from ..residuals import weights
from .common import DONG_OWN, NOCI_OWN, REM, normal, one_of

SIZES = "n tokens of d dimensions, n up to 256 and d up to 512, Gaussian W"


@claim(
    "collapse/one-layer",
    measures="absolute logarithm of the ratio of measured, mean of 32 draws, to formula",
    at_most=0.2,
    source=Source("giorlandino2026two", "Result 1 (the limit of many keys)", "own"),
    assumptions=(SIZES, "scores with a standard deviation of .3, .6 or 1", "cosine .4 or .6"),
    control=but("the variance of all scores in place of that within rows", within_rows=False),
)
def one_layer(generator: Generator, *, within_rows: bool = True) -> Measured:
    r"""Tokens of cosine $\rho$ with a score variance v within rows have, after one layer of random weights
    and to leading order for many tokens and dimensions, $1 - \rho' = \frac{(1-\rho)(e^v - e^{\rho v})/n +
    (1-\rho)^2 v/d}{\rho + (1-\rho) e^v/n}$. (The source has the limit of many keys; the
    terms in $1/n$ and $1/d$ are the library's.)
    """
    n, d = int(one_of(generator, 64, 128, 256)), int(one_of(generator, 128, 256, 512))
    s, rho = one_of(generator, 0.3, 0.6, 1.0), one_of(generator, 0.4, 0.6)
    after = 0.0
    for _ in range(32):
        x = equiangular(n, d, rho, generator)
        after += float(1 - mean_cosine(weights(x, gaussian_scores_matrix(d, s, generator)) @ x)) / 32
    formula = 1 - cosine_after(s**2 * (1 - rho) if within_rows else s**2, rho, n, d)
    return Measured(abs(math.log(after / formula)), {"n": n, "d": d, "s": s, "rho": rho, "1 - cosine": after})


@claim(
    "collapse/nearly-orthogonal",
    measures="absolute logarithm of the ratio of measured, mean of 32 draws, to formula",
    at_most=0.27,
    source=REM,
    assumptions=(
        "64 tokens of 128 to 512 dimensions and cosine .01 or .02",
        "scores with a standard deviation of .3 or .6",
    ),
    control=but(r"the norm $\rho$ of the common part alone", own_norms=False),
)
def nearly_orthogonal(generator: Generator, *, own_norms: bool = True) -> Measured:
    r"""The same formula holds, to leading order, for nearly orthogonal tokens, whose averages have squared
    norms $\rho + (1-\rho) e^v / n$.
    """
    n, d = 64, int(one_of(generator, 128, 256, 512))
    s, rho = one_of(generator, 0.3, 0.6), one_of(generator, 0.01, 0.02)
    after = 0.0
    for _ in range(32):
        x = equiangular(n, d, rho, generator)
        after += float(1 - mean_cosine(weights(x, gaussian_scores_matrix(d, s, generator)) @ x)) / 32
    v = s**2 * (1 - rho)
    formula = (
        1 - cosine_after(v, rho, n, d) if own_norms else (1 - rho) * squared_contraction(v, rho, n, d) / rho
    )
    return Measured(abs(math.log(after / formula)), {"d": d, "s": s, "rho": rho, "1 - cosine": after})


@claim(
    "collapse/random-contraction",
    measures="absolute logarithm of the ratio of measured, mean of 32 draws, to formula",
    at_most=0.21,
    margin=(
        "the formula is of leading order: its error reaches a third of the effect of the dropped term where "
        "that is smallest"
    ),
    source=REM,
    assumptions=(
        "128 or 256 tokens of at most as many dimensions, Gaussian W",
        "scores with a standard deviation of .3, .6 or 1",
    ),
    control=but("without the term of the shared covariance", shared=False),
)
def random_contraction(generator: Generator, *, shared: bool = True) -> Measured:
    r"""Random weights contract equiangular tokens by $c^2 = (e^v - e^{\rho v})/n + (1-\rho) v/d$, to leading
    order for many tokens and dimensions.
    """
    n, d = int(one_of(generator, 128, 256)), int(one_of(generator, 32, 64, 128))
    s, rho = one_of(generator, 0.3, 0.6, 1.0), one_of(generator, 0.1, 0.3, 0.6)
    v, squared = s**2 * (1 - rho), 0.0
    for _ in range(32):
        x = equiangular(n, d, rho, generator)
        squared += float(contraction(weights(x, gaussian_scores_matrix(d, s, generator)), x)) ** 2 / 32
    formula = squared_contraction(v, rho, n, d if shared else math.inf)
    return Measured(abs(math.log(squared / formula)), {"n": n, "d": d, "s": s, "rho": rho})


@claim(
    "collapse/any-tokens",
    measures="larger absolute logarithm of the ratio of measured, mean of 120 W, to formula, of two "
    "kinds of tokens",
    at_most=0.24,
    source=REM,
    assumptions=(
        "40 tokens: of 30 dimensions whose standard deviations fall by 1 to 2 decades, and of 128 equal "
        "dimensions",
        "scores with a standard deviation of about .2",
    ),
    control=but("the dimension of random directions, 1/D = 1/n + 1/d", own_dimension=False),
)
def any_tokens(generator: Generator, *, own_dimension: bool = True) -> Measured:
    r"""For tokens of any geometry $c^2 = (1 - 1/n)(1-\rho) v / D$ to first order in v, with $D =
    \mathrm{tr}(C)^2 / |C|_F^2$.
    """
    n, errors, detail = 40, [], {}
    decades = 1 + float(torch.rand((), generator=generator))
    spectra = {
        "falling": torch.logspace(0, -decades, 30, dtype=torch.float64),
        "flat": torch.ones(128, dtype=torch.float64),
    }
    for name, spectrum in spectra.items():
        d = len(spectrum)
        x = normal(generator, n, d) * spectrum + 0.5 * normal(generator, 1, d)
        D = dimension(x) if own_dimension else torch.tensor(1 / (1 / d + 1 / n), dtype=torch.float64)
        measured = formula = 0.0
        for _ in range(120):
            W = 0.2 / float(x.square().sum(1).mean()) * normal(generator, d, d)
            v = row_deviation(x @ W @ x.mT).square().mean()
            measured += float(contraction(weights(x, W), x)) ** 2 / 120
            formula += float(contraction_of_tokens(v, mean_cosine(x), n, D)) ** 2 / 120
        errors.append(abs(math.log(measured / formula)))
        detail[f"dimension, {name}"] = float(D)
    return Measured(max(errors), detail)


@claim(
    "collapse/equiangular",
    measures="largest error of a cosine",
    at_most=1e-10,
    source=REM,
    assumptions=("24 exactly equiangular tokens", "scores with a standard deviation of 3"),
    control=but("tokens that are equiangular up to 10 per cent", exact=False),
)
def identity(generator: Generator, *, exact: bool = True) -> Measured:
    r"""Averages of tokens with equal norms and cosine $\rho$ have $\langle y_i, y_j \rangle \propto \rho +
    (1-\rho) \langle a_i, a_j \rangle$, whatever the weights are.
    """
    n, rho = 24, 0.1 + 0.8 * float(torch.rand((), generator=generator))
    x = exactly_equiangular(n, 64, rho, generator)
    if not exact:
        x = x + 0.3 * normal(generator, n, 64) / 8
    A = (3 * normal(generator, n, n)).softmax(-1)
    y = A @ x
    y = y / y.norm(dim=-1, keepdim=True)
    return Measured(float((y @ y.mT - equiangular_cosines(A, rho)).abs().max()), {"rho": rho})


@claim(
    "collapse/permuted-keys",
    measures="distance of the mean over 1,000 draws from the formula, standard errors",
    at_most=4.5,
    margin=BY_CHANCE,
    source=DONG_OWN,
    assumptions=("12 tokens of 7 dimensions; queries prefer the same keys",),
    control=but("one permutation for all rows", by_row=False),
)
def permuted_keys(generator: Generator, *, by_row: bool = True) -> Measured:
    r"""If the keys of each row are permuted at random, $E c^2 = \frac1n \sum_i Y_i - \frac1n$ with $Y_i =
    \sum_j A_{ij}^2$, whatever the tokens are.
    """
    n = 12
    # all queries prefer the same keys, which a permutation of each row destroys
    common = 2 * normal(generator, 1, n)
    A, x = (common + normal(generator, n, n)).softmax(-1), normal(generator, n, 7)
    if by_row:
        drawn = permute_keys(A.expand(1000, n, n), generator)
    else:
        drawn = torch.stack([A[:, torch.randperm(n, generator=generator)] for _ in range(1000)])
    squared = contraction(drawn, x.expand(1000, n, 7)).square()
    error = float(squared.std()) / 1000**0.5
    formula = float(permuted_contraction(A)) ** 2
    return Measured(
        abs(float(squared.mean()) - formula) / error, {"mean": float(squared.mean()), "formula": formula}
    )


@claim(
    "collapse/weak-phase",
    measures="relative error of the mean over 50 rows of 16,384 keys",
    at_most=0.03,
    source=Source("giorlandino2026two", "Result 1 (the limit is 0)", "own"),
    assumptions=("b = .3; near the transition the correction is too large for a test",),
    control=but("b = .9, beyond the transition", b=0.9),
)
def weak_phase(generator: Generator, *, b: float = 0.3) -> Measured:
    r"""For n Gaussian scores of standard deviation $b \sqrt{\log n}$ with $b < 1/\sqrt2$, the participation
    tends to $e^{s^2}/n$. (The limit 0 is the source's; the rate is the library's.)
    """
    n = 2**14
    value = float(gaussian_participation(n, b, 50, generator).mean())
    formula = limit(b, n) or n ** (b * b - 1)  # the limit is 0 beyond the transition
    return Measured(abs(value / formula - 1), {"participation": value})


@claim(
    "collapse/frozen-phase",
    measures="absolute slope of log participation on log n from 256 to 16,384 keys",
    at_most=0.08,
    source=Source("giorlandino2026two", "Result 1", "second-hand"),
    assumptions=("b = 3",),
    control=but("b = .5", b=0.5),
)
def frozen_phase(generator: Generator, *, b: float = 3.0) -> Measured:
    r"""For $b > \sqrt2$ the mean participation does not vanish as n grows."""
    small, large = (
        float(gaussian_participation(n, b, rows, generator).mean())
        for n, rows in ((2**8, 2000), (2**14, 150))
    )
    slope = math.log(large / small) / math.log(64)
    return Measured(abs(slope), {"256 keys": small, "16,384 keys": large, "limit": limit(b, 2**14)})


@claim(
    "collapse/gaussian-scores",
    measures="relative difference of the mean participation over 20 heads",
    at_most=0.2,
    source=REM,
    assumptions=("64 tokens of 64 dimensions", "scores with a standard deviation of .5 to 2.5"),
    control=but("scores that are doubled after their variance was measured", same_size=False),
)
def gaussian_scores(generator: Generator, *, same_size: bool = True) -> Measured:
    r"""Attention of random weights to Gaussian tokens has, in the limit of many dimensions, the participation
    $\sum_j a_j^2$ of Gaussian scores with the same number of keys and the same variance within each row.
    """
    n, d, s = 64, 64, 0.5 + 2 * float(torch.rand((), generator=generator))
    measured = expected = 0.0
    for _ in range(20):
        x = normal(generator, n, d)
        scores = x @ gaussian_scores_matrix(d, s, generator) @ x.mT
        measured += float(participation((scores if same_size else 2 * scores).softmax(-1)).mean())
        expected += float(curves(n).expected(row_deviation(scores)).mean())
    return Measured(abs(measured / expected - 1), {"s": s, "participation": measured / 20})


@claim(
    "collapse/depth",
    measures="relative error of the cosine, mean of five runs",
    at_most=0.3,
    margin=NEAR,
    source=NOCI_OWN,
    assumptions=(
        "64 orthogonal tokens of 256 dimensions",
        "8, 16 or 32 layers, a of .5, 1 or 1.5",
        "scores with a deviation of .3",
    ),
    control=but(r"$\alpha = 1$", scaled=False),
)
def depth(generator: Generator, *, scaled: bool = True) -> Measured:
    r"""L layers $X + \alpha A X V$ of random weights with $\alpha^2 = a/L$ end at the cosine $(e^a - 1)/(n +
    e^a - 1)$, up to terms of order $1/L$: $G/(n + G)$ with $G = (1 + \alpha^2)^L - 1$.
    """
    n, d, L = 64, 256, int(one_of(generator, 8, 16, 32))
    a = one_of(generator, 0.5, 1.0, 1.5)
    alpha = (a / L) ** 0.5
    found = (
        sum(
            float(mean_cosine(stream(n, d, L, alpha if scaled else 1.0, generator, deviation=0.3)))
            for _ in range(5)
        )
        / 5
    )
    formula = depth_cosine(alpha, L, n)
    return Measured(abs(found / formula - 1), {"layers": L, "a": a, "cosine": found, "formula": formula})


@claim(
    "collapse/halving",
    measures="relative error of 1 - cosine after eight layers, mean of five runs",
    at_most=0.3,
    margin=NEAR,
    source=NOCI_OWN,
    assumptions=("64 orthogonal tokens of 256 dimensions", "scores with a deviation of .3"),
    control=but("no skip connection", skip=False),
)
def halving(generator: Generator, *, skip: bool = True) -> Measured:
    r"""With $\alpha = 1$ the tokens become equal: $1 - \rho_L$ tends to $n / (n + 2^L - 1)$ with the
    dimension.
    """
    n, d, L = 64, 256, 8
    runs = [stream(n, d, L, 1.0, generator, deviation=0.3, skip=float(skip)) for _ in range(5)]
    found, formula = sum(1 - float(mean_cosine(x)) for x in runs) / 5, 1 - depth_cosine(1.0, L, n)
    return Measured(abs(found / formula - 1), {"1 - cosine": found, "formula": formula})


@claim(
    "collapse/trained-heads",
    measures="mean contraction over heads after the training minus before",
    at_least=0.2,
    margin="the tokens alone raise the contraction by half as much as heads that are trained",
    source=DONG_OWN,
    assumptions=("a vision transformer with two blocks of two heads, AdamW at rate .003",),
    control=but("W_Q and W_K are not trained; then the tokens alone raise it", scores=False),
    cost="training",
)
def trained_heads(generator: Generator, *, scores: bool = True) -> Measured:
    """Training on the digits makes heads keep more of the differences between tokens: the mean contraction
    $c$ rises by at least .2 in 300 steps.
    """
    train, validation = digits().split(0.7, fixed_generator())
    seed = generator.initial_seed()
    values = []
    for steps in (0, 300):
        own = torch.Generator().manual_seed(seed)
        model, accuracy = train_vit(train, validation, own, depth=2, steps=steps, train_scores=scores)
        found = contractions(model, validation)
        values.append(sum(found) / len(found))
    return Measured(values[1] - values[0], {"before": values[0], "after": values[1], "accuracy": accuracy})


CLAIMS = (
    one_layer,
    nearly_orthogonal,
    random_contraction,
    any_tokens,
    identity,
    permuted_keys,
    weak_phase,
    frozen_phase,
    gaussian_scores,
    depth,
    halving,
    trained_heads,
)

"""Claims about random weights, permuted keys, the phases of the scores, depth with skip connections, and
trained heads.

Source: :cite:t:`giorlandino2025two`, :cite:t:`noci2022signal`; own derivations.
"""

import math
from functools import partial

import torch
from torch import Generator

from ....core.claims import Claim, Evidence
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


def _one_layer(generator: Generator, *, within_rows: bool) -> Evidence:
    """Measures |log| of the ratio of 1 - rho', mean of eight draws, to the formula."""
    n, d = int(one_of(generator, 64, 128, 256)), int(one_of(generator, 128, 256, 512))
    s, rho = one_of(generator, 0.3, 0.6, 1.0), one_of(generator, 0.4, 0.6)
    after = 0.0
    for _ in range(8):
        x = equiangular(n, d, rho, generator)
        after += float(1 - mean_cosine(weights(x, gaussian_scores_matrix(d, s, generator)) @ x)) / 8
    formula = 1 - cosine_after(s**2 * (1 - rho) if within_rows else s**2, rho, n, d)
    return Evidence(
        abs(math.log(after / formula)),
        0.25,
        "<=",
        detail={"n": n, "d": d, "s": s, "rho": rho, "1 - cosine": after},
    )


def _nearly_orthogonal(generator: Generator, *, own_norms: bool) -> Evidence:
    """Measures |log| of the ratio of 1 - rho', mean of eight draws, to the formula, for 64 tokens of cosine
    .01 or .02.
    """
    n, d = 64, int(one_of(generator, 128, 256, 512))
    s, rho = one_of(generator, 0.3, 0.6), one_of(generator, 0.01, 0.02)
    after = 0.0
    for _ in range(8):
        x = equiangular(n, d, rho, generator)
        after += float(1 - mean_cosine(weights(x, gaussian_scores_matrix(d, s, generator)) @ x)) / 8
    v = s**2 * (1 - rho)
    formula = (
        1 - cosine_after(v, rho, n, d) if own_norms else (1 - rho) * squared_contraction(v, rho, n, d) / rho
    )
    return Evidence(
        abs(math.log(after / formula)), 0.3, "<=", detail={"d": d, "s": s, "rho": rho, "1 - cosine": after}
    )


def _contracts(generator: Generator, *, shared: bool) -> Evidence:
    """Measures |log| of the ratio of the squared contraction, mean of eight draws, to the formula; n >= d."""
    n, d = int(one_of(generator, 128, 256)), int(one_of(generator, 32, 64, 128))
    s, rho = one_of(generator, 0.3, 0.6, 1.0), one_of(generator, 0.1, 0.3, 0.6)
    v, squared = s**2 * (1 - rho), 0.0
    for _ in range(8):
        x = equiangular(n, d, rho, generator)
        squared += float(contraction(weights(x, gaussian_scores_matrix(d, s, generator)), x)) ** 2 / 8
    formula = squared_contraction(v, rho, n, d if shared else math.inf)
    return Evidence(abs(math.log(squared / formula)), 0.3, "<=", detail={"n": n, "d": d, "s": s, "rho": rho})


def _any_tokens(generator: Generator, *, own_dimension: bool) -> Evidence:
    """Measures the larger |log| of the ratio of the squared contraction to the formula, mean of 40 W, for two
    kinds of tokens.
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
        for _ in range(40):
            W = 0.2 / float(x.square().sum(1).mean()) * normal(generator, d, d)
            v = row_deviation(x @ W @ x.mT).square().mean()
            measured += float(contraction(weights(x, W), x)) ** 2 / 40
            formula += float(contraction_of_tokens(v, mean_cosine(x), n, D)) ** 2 / 40
        errors.append(abs(math.log(measured / formula)))
        detail[f"dimension, {name}"] = float(D)
    return Evidence(max(errors), 0.4, "<=", detail=detail)


def _identity(generator: Generator, *, exact: bool) -> Evidence:
    """Measures the largest error of the cosines after attention with scores of standard deviation 3."""
    n, rho = 24, 0.1 + 0.8 * float(torch.rand((), generator=generator))
    x = exactly_equiangular(n, 64, rho, generator)
    if not exact:
        x = x + 0.3 * normal(generator, n, 64) / 8
    A = (3 * normal(generator, n, n)).softmax(-1)
    y = A @ x
    y = y / y.norm(dim=-1, keepdim=True)
    return Evidence(
        float((y @ y.mT - equiangular_cosines(A, rho)).abs().max()), 1e-10, "<=", detail={"rho": rho}
    )


def _permuted(generator: Generator, *, by_row: bool) -> Evidence:
    """Measures the distance of the mean squared contraction with permuted keys from the formula, standard
    errors of 1,000 draws.
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
    return Evidence(
        abs(float(squared.mean()) - formula) / error,
        4.5,
        "<=",
        detail={"mean": float(squared.mean()), "formula": formula},
    )


def _weak(generator: Generator, b: float) -> Evidence:
    """Measures the relative error of the participation e^{s^2} / n for 16,384 keys."""
    n = 2**14
    value = float(gaussian_participation(n, b, 50, generator).mean())
    formula = limit(b, n) or n ** (b * b - 1)  # the limit is 0 beyond the transition
    return Evidence(abs(value / formula - 1), 0.1, "<=", detail={"participation": value})


def _frozen(generator: Generator, b: float) -> Evidence:
    """Measures the absolute slope of the logarithm of the mean participation between 256 and 16,384 keys."""
    small, large = (
        float(gaussian_participation(n, b, rows, generator).mean())
        for n, rows in ((2**8, 2000), (2**14, 150))
    )
    slope = math.log(large / small) / math.log(64)
    return Evidence(
        abs(slope), 0.08, "<=", detail={"256 keys": small, "16,384 keys": large, "limit": limit(b, 2**14)}
    )


def _gaussian_null(generator: Generator, *, same_size: bool) -> Evidence:
    """Measures the relative difference of the participation of random heads from that of Gaussian scores of
    the same variance.
    """
    n, d, s = 64, 64, 0.5 + 2 * float(torch.rand((), generator=generator))
    measured = expected = 0.0
    for _ in range(20):
        x = normal(generator, n, d)
        scores = x @ gaussian_scores_matrix(d, s, generator) @ x.mT
        measured += float(participation((scores if same_size else 2 * scores).softmax(-1)).mean())
        expected += float(curves(n).expected(row_deviation(scores)).mean())
    return Evidence(abs(measured / expected - 1), 0.2, "<=", detail={"s": s, "participation": measured / 20})


def _depth(generator: Generator, *, scaled: bool) -> Evidence:
    """Measures the relative error of the cosine after L layers with alpha^2 = a / L, mean of five runs."""
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
    return Evidence(
        abs(found / formula - 1), 0.3, "<=", detail={"layers": L, "a": a, "cosine": found, "formula": formula}
    )


def _halving(generator: Generator, *, skip: bool) -> Evidence:
    """Measures the relative error of 1 - cosine after 8 layers with alpha = 1, mean of five runs."""
    n, d, L = 64, 256, 8
    runs = [stream(n, d, L, 1.0, generator, deviation=0.3, skip=float(skip)) for _ in range(5)]
    found, formula = sum(1 - float(mean_cosine(x)) for x in runs) / 5, 1 - depth_cosine(1.0, L, n)
    return Evidence(abs(found / formula - 1), 0.3, "<=", detail={"1 - cosine": found, "formula": formula})


def _trained(generator: Generator, *, scores: bool) -> Evidence:
    """Measures the mean contraction over heads after 300 steps on the digits minus that before."""
    train, validation = digits().split(0.7, fixed_generator())
    seed = generator.initial_seed()
    values = []
    for steps in (0, 300):
        own = torch.Generator().manual_seed(seed)
        model, accuracy = train_vit(train, validation, own, depth=2, steps=steps, train_scores=scores)
        found = contractions(model, validation)
        values.append(sum(found) / len(found))
    return Evidence(
        values[1] - values[0],
        0.2,
        ">=",
        detail={"before": values[0], "after": values[1], "accuracy": accuracy},
    )


SIZES = "n tokens of d dimensions, n up to 256 and d up to 512, Gaussian W"
CLAIMS = (
    Claim(
        id="collapse/one-layer",
        statement=r"Tokens of cosine $\rho$ with a score variance v within rows have, after one layer of "
        r"random weights, $1 - \rho' = \frac{(1-\rho)(e^v - e^{\rho v})/n + (1-\rho)^2 v/d}{\rho + (1-\rho) "
        "e^v/n}$.",
        measures="absolute logarithm of the ratio of measured, mean of eight draws, to formula",
        source=REM,
        assumptions=(SIZES, "scores with a standard deviation of .3, .6 or 1", "cosine .4 or .6"),
        check=partial(_one_layer, within_rows=True),
        control=partial(_one_layer, within_rows=False),
        control_description="the variance of all scores in place of that within rows",
    ),
    Claim(
        id="collapse/nearly-orthogonal",
        statement=r"The same formula holds for nearly orthogonal tokens, whose averages have squared norms "
        r"$\rho + (1-\rho) e^v / n$.",
        measures="absolute logarithm of the ratio of measured, mean of eight draws, to formula",
        source=REM,
        assumptions=(
            "64 tokens of 128 to 512 dimensions and cosine .01 or .02",
            "scores with a standard deviation of .3 or .6",
        ),
        check=partial(_nearly_orthogonal, own_norms=True),
        control=partial(_nearly_orthogonal, own_norms=False),
        control_description=r"the norm $\rho$ of the common part alone",
    ),
    Claim(
        id="collapse/random-contraction",
        statement=r"Random weights contract equiangular tokens by $c^2 = (e^v - e^{\rho v})/n + (1-\rho) "
        r"v/d$.",
        measures="absolute logarithm of the ratio of measured, mean of eight draws, to formula",
        source=REM,
        assumptions=(
            "128 or 256 tokens of at most as many dimensions, Gaussian W",
            "scores with a standard deviation of .3, .6 or 1",
        ),
        check=partial(_contracts, shared=True),
        control=partial(_contracts, shared=False),
        control_description="without the term of the shared covariance",
    ),
    Claim(
        id="collapse/any-tokens",
        statement=r"For tokens of any geometry $c^2 = (1 - 1/n)(1-\rho) v / D$ to first order in v, with "
        r"$D = \mathrm{tr}(C)^2 / |C|_F^2$.",
        measures="larger absolute logarithm of the ratio of measured, mean of 40 W, to formula, of two "
        "kinds of tokens",
        source=REM,
        assumptions=(
            "40 tokens: of 30 dimensions whose standard deviations fall by 1 to 2 decades, and of 128 equal "
            "dimensions",
            "scores with a standard deviation of about .2",
        ),
        check=partial(_any_tokens, own_dimension=True),
        control=partial(_any_tokens, own_dimension=False),
        control_description="the dimension of random directions, 1/D = 1/n + 1/d",
    ),
    Claim(
        id="collapse/equiangular",
        statement=r"Averages of tokens with equal norms and cosine $\rho$ have $\langle y_i, y_j \rangle "
        r"\propto \rho + (1-\rho) \langle a_i, a_j \rangle$, whatever the weights are.",
        measures="largest error of a cosine",
        source=REM,
        assumptions=("24 exactly equiangular tokens", "scores with a standard deviation of 3"),
        check=partial(_identity, exact=True),
        control=partial(_identity, exact=False),
        control_description="tokens that are equiangular up to 10 per cent",
    ),
    Claim(
        id="collapse/permuted-keys",
        statement=r"If the keys of each row are permuted at random, $E c^2 = \frac1n \sum_i Y_i - \frac1n$ "
        r"with $Y_i = \sum_j A_{ij}^2$, whatever the tokens are.",
        measures="distance of the mean over 1,000 draws from the formula, standard errors",
        source=DONG_OWN,
        assumptions=("12 tokens of 7 dimensions; queries prefer the same keys",),
        check=partial(_permuted, by_row=True),
        control=partial(_permuted, by_row=False),
        control_description="one permutation for all rows",
    ),
    Claim(
        id="collapse/weak-phase",
        statement=r"For n Gaussian scores of standard deviation $b \sqrt{\log n}$ with $b < 1/\sqrt2$, the "
        "participation tends to $e^{s^2}/n$.",
        measures="relative error of the mean over 50 rows of 16,384 keys",
        source=REM,
        assumptions=("b = .3; near the transition the correction is too large for a test",),
        check=partial(_weak, b=0.3),
        control=partial(_weak, b=0.9),
        control_description="b = .9, beyond the transition",
    ),
    Claim(
        id="collapse/frozen-phase",
        statement=r"For $b > \sqrt2$ the mean participation does not vanish as n grows.",
        measures="absolute slope of log participation on log n from 256 to 16,384 keys",
        source=REM,
        assumptions=("b = 3",),
        check=partial(_frozen, b=3.0),
        control=partial(_frozen, b=0.5),
        control_description="b = .5",
    ),
    Claim(
        id="collapse/gaussian-scores",
        statement=r"Attention of random weights to Gaussian tokens has the participation $\sum_j a_j^2$ of "
        "Gaussian scores with the same number of keys and the same variance within each row.",
        measures="relative difference of the mean participation over 20 heads",
        source=REM,
        assumptions=("64 tokens of 64 dimensions", "scores with a standard deviation of .5 to 2.5"),
        check=partial(_gaussian_null, same_size=True),
        control=partial(_gaussian_null, same_size=False),
        control_description="scores that are doubled after their variance was measured",
    ),
    Claim(
        id="collapse/depth",
        statement=r"L layers $X + \alpha A X V$ of random weights with $\alpha^2 = a/L$ end at the cosine "
        r"$(e^a - 1)/(n + e^a - 1)$, up to terms of order $1/L$: $G/(n + G)$ with $G = (1 + \alpha^2)^L - "
        "1$.",
        measures="relative error of the cosine, mean of five runs",
        source=NOCI_OWN,
        assumptions=(
            "64 orthogonal tokens of 256 dimensions",
            "8, 16 or 32 layers, a of .5, 1 or 1.5",
            "scores with a deviation of .3",
        ),
        check=partial(_depth, scaled=True),
        control=partial(_depth, scaled=False),
        control_description=r"$\alpha = 1$",
    ),
    Claim(
        id="collapse/halving",
        statement=r"With $\alpha = 1$ the tokens become equal: $1 - \rho_L = n / (n + 2^L - 1)$.",
        measures="relative error of 1 - cosine after eight layers, mean of five runs",
        source=NOCI_OWN,
        assumptions=("64 orthogonal tokens of 256 dimensions", "scores with a deviation of .3"),
        check=partial(_halving, skip=True),
        control=partial(_halving, skip=False),
        control_description="no skip connection",
    ),
    Claim(
        id="collapse/trained-heads",
        statement="Training on the digits makes heads keep more of the differences between tokens: the "
        "mean contraction $c$ rises by at least .2 in 300 steps.",
        measures="mean contraction over heads after the training minus before",
        source=DONG_OWN,
        assumptions=("a vision transformer with two blocks of two heads, AdamW at rate .003",),
        check=partial(_trained, scores=True),
        control=partial(_trained, scores=False),
        control_description="W_Q and W_K are not trained; then the tokens alone raise it",
        cost="training",
    ),
)

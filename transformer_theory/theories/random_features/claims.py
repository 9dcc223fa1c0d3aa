r"""Claims: kernels in closed form, invariance, what the correlation of query and key costs, and how the
number of keys enters.
"""

from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from ...core.claims import Claim, Evidence
from ...core.sources import Source
from .features import RandomFeatureAttention, RandomFeatureMLP, RidgePath, share_explained
from .kernels import Inputs, attention_kernel, mlp_kernel
from .targets import NAME, D, N, Target, correlation, first_key, sphere, square

PAPER, OWN, KERNEL = (
    Source("fu2023what", status="second-hand"),
    Source("fu2023what", status="own"),
    Source("cho2009kernel", status="own"),
)
HEADS, TRAIN, VALIDATION, TEST = 100, 128, 64, 128
SPREAD, FEW = 4.0, 4  # keys in the claims on kernels, which take N^2 terms per pair of inputs
Kernel = Callable[[Inputs, Inputs], Float[Tensor, "n m"]]


def error(
    features: Callable[[Inputs], Tensor], target: Target, *, keys: int, n: int, generator: Generator
) -> float:
    """The squared error of ridge on held-out inputs, as a share of that of the targets' mean."""
    x, validation, test = (sphere(count, keys=keys, generator=generator) for count in (n, VALIDATION, TEST))
    path = RidgePath(*(features(part) for part in (x, validation, test)))
    y, y_validation, y_test = (target(part)[:, None] for part in (x, validation, test))
    return 1 - share_explained(path.fit(y, y_validation).test, y_test)


def kernel_features(kernel: Kernel, train: Inputs) -> Callable[[Inputs], Tensor]:
    """Features whose inner products with those of the training inputs are the kernel: kernel ridge regression
    is ridge on them.
    """
    values, vectors = torch.linalg.eigh(kernel(train, train))
    keep = values > 1e-12 * values[-1]
    root = vectors[:, keep] / values[keep].sqrt()
    return lambda x: kernel(x, train) @ root


def kernel_error(
    kernel: Kernel, target: Target, *, keys: int = FEW, n: int = TRAIN, generator: Generator
) -> float:
    """The same error of kernel ridge regression, the limit of infinitely many features."""
    x, validation, test = (sphere(count, keys=keys, generator=generator) for count in (n, VALIDATION, TEST))
    features = kernel_features(kernel, x)
    path = RidgePath(*(features(part) for part in (x, validation, test)))
    y, y_validation, y_test = (target(part)[:, None] for part in (x, validation, test))
    return 1 - share_explained(path.fit(y, y_validation).test, y_test)


def gram_error(generator: Generator, *, assumed: float, heads: int = 8192) -> Evidence:
    """Distance of the Gram matrices of many heads, and of an MLP with as many units, from the closed forms,
    relative; the larger one.

    The closed form of attention has the spread ``assumed``.
    """
    x = sphere(24, keys=FEW, generator=generator)
    pairs = (
        (
            RandomFeatureAttention.draw(heads, D, spread=SPREAD, generator=generator).features(x),
            attention_kernel(x, spread=assumed),
        ),
        (RandomFeatureMLP.draw(heads, FEW + 1, D, generator=generator).features(x), mlp_kernel(x)),
    )
    errors = [float((features @ features.mT - closed).norm() / closed.norm()) for features, closed in pairs]
    return Evidence(max(errors), 0.1, "<=", detail={"attention": errors[0], "MLP": errors[1]})


def rate(generator: Generator, *, independent: bool) -> Evidence:
    """Exponent of the error of the Gram matrix in the number of heads, from 64 to 4,096 heads, over 8 draws
    each.
    """
    x = sphere(12, keys=8, generator=generator)
    closed, sizes = attention_kernel(x), (64, 256, 1024, 4096)
    errors = []
    for heads in sizes:
        squares = []
        for _ in range(8):
            drawn = RandomFeatureAttention.draw(heads if independent else 64, D, generator=generator)
            features = RandomFeatureAttention(
                drawn.weights.repeat(heads // len(drawn.weights), 1, 1)
            ).features(x)
            squares.append((features @ features.mT - closed).square().sum())
        errors.append(torch.stack(squares).mean().sqrt().log())
    heads = torch.tensor(sizes, dtype=torch.float64).log()
    centred = heads - heads.mean()
    slope = float((centred * torch.stack(errors)).sum() / centred.square().sum())
    return Evidence(slope, -0.3, "<=", detail={"slope": slope})


def permuted_keys(generator: Generator, *, attention: bool) -> Evidence:
    """Largest change of a feature when the keys of each input are permuted and repeated, relative to the
    largest feature.
    """
    x = sphere(32, generator=generator)
    order = torch.rand(32, N, generator=generator).argsort(1) + 1
    keys = x.gather(1, order[..., None].expand(-1, -1, D))
    changed = torch.cat([x[:, :1], keys], 1)
    if attention:
        model = RandomFeatureAttention.draw(HEADS, D, generator=generator)
        changed = torch.cat([changed, keys], 1)
    else:
        model = RandomFeatureMLP.draw(HEADS * (D + 1), N + 1, D, generator=generator)
    features = model.features(x)
    return Evidence(
        float((model.features(changed) - features).abs().max() / features.abs().max()), 1e-12, "<="
    )


def limit(generator: Generator, *, spread: float) -> Evidence:
    """Distance between the predictions of 2,000 heads and those of kernel ridge regression, relative to the
    targets' deviation.
    """
    x, validation, test = (
        sphere(count, keys=FEW, generator=generator) for count in (TRAIN, VALIDATION, TEST)
    )
    y, y_validation, y_test = (correlation(part)[:, None] for part in (x, validation, test))
    heads = RandomFeatureAttention.draw(2000, D, spread=SPREAD, generator=generator).features
    predictions = [
        RidgePath(*(features(part) for part in (x, validation, test))).fit(y, y_validation).test
        for features in (heads, kernel_features(partial(attention_kernel, spread=spread), x))
    ]
    return Evidence(
        float((predictions[0] - predictions[1]).norm() / (y_test - y_test.mean()).norm()), 0.15, "<="
    )


def gain(generator: Generator, *, target: Target) -> Evidence:
    """Ratio of the errors of kernel ridge regression with a spread of 4 and without."""
    errors = [
        kernel_error(partial(attention_kernel, spread=spread), target, generator=generator)
        for spread in (SPREAD, 0.0)
    ]
    return Evidence(errors[0] / errors[1], 0.3, "<=", detail={"with": errors[0], "without": errors[1]})


def against_mlp(generator: Generator, *, target: Target) -> Evidence:
    """Ratio of the errors of attention and of an MLP with as many trained numbers."""
    attention = RandomFeatureAttention.draw(HEADS, D, generator=generator)
    mlp = RandomFeatureMLP.draw(HEADS * (D + 1), N + 1, D, generator=generator)
    errors = [
        error(model.features, target, keys=N, n=2 * TRAIN, generator=generator) for model in (attention, mlp)
    ]
    return Evidence(errors[0] / errors[1], 0.2, "<=", detail={"attention": errors[0], "MLP": errors[1]})


def more_keys(generator: Generator, *, kernel: Kernel) -> Evidence:
    """Share of the targets' variance that is lost with 16 keys and not with two."""
    few, many = (kernel_error(kernel, square, keys=keys, generator=generator) for keys in (2, 16))
    return Evidence(many - few, 0.15, "<=", detail={"2 keys": few, "16 keys": many})


CLAIMS = (
    Claim(
        id=f"{NAME}/kernel",
        statement=r"The features of many heads have the inner products $\frac{1}{N^2} \sum_{i,j} "
        r"\kappa(\tilde x_0 \tilde x_i^\top, \tilde x_0' \tilde x_j'^\top)\, \tilde x_i^\top \tilde x_j'$, "
        r"where $\kappa$ is the kernel of relu for the inner product $\langle A, B \rangle + s^2 \langle A, "
        r"J \rangle \langle B, J \rangle$; those of an MLP have $\kappa$ of the concatenated tokens and 1.",
        measures="distance of the Gram matrices of 8,192 heads and units from the closed forms, relative; "
        "the larger one",
        source=KERNEL,
        assumptions=(
            "Gaussian matrices with a Gaussian weight of the correlation, s = 4",
            "24 inputs of 4 keys on the sphere",
        ),
        check=lambda generator: gram_error(generator, assumed=SPREAD),
        control=lambda generator: gram_error(generator, assumed=0.0),
        control_description="takes the closed form without the correlation",
    ),
    Claim(
        id=f"{NAME}/rate",
        statement=r"The Gram matrix of M heads is at a distance of order $M^{-1/2}$ from its limit.",
        measures="exponent of the distance in the number of heads, at most -.3",
        source=OWN,
        assumptions=("independent heads", "64 to 4,096 heads, 8 draws each"),
        check=lambda generator: rate(generator, independent=True),
        control=lambda generator: rate(generator, independent=False),
        control_description="copies 64 heads",
    ),
    Claim(
        id=f"{NAME}/permutation",
        statement=r"The features depend on the set of keys only: $f(x_0, x_{\pi(1)}, \dots, x_{\pi(N)}) = "
        r"f(x_0, x_1, \dots, x_N)$, also if every key occurs twice.",
        measures="largest relative change of a feature",
        source=PAPER,
        assumptions=("average over keys", "no positions"),
        check=lambda generator: permuted_keys(generator, attention=True),
        control=lambda generator: permuted_keys(generator, attention=False),
        control_description="an MLP on the concatenated tokens, keys permuted only",
    ),
    Claim(
        id=f"{NAME}/limit",
        statement=r"Ridge regression on M heads tends to kernel ridge regression with $K$ for $M \to "
        r"\infty$.",
        measures="distance of the predictions of 2,000 heads from the limit, relative to the targets' "
        "deviation",
        source=OWN,
        assumptions=(
            "the penalty of each is picked on the same validation inputs",
            "128 inputs of 4 keys, s = 4",
        ),
        check=lambda generator: limit(generator, spread=SPREAD),
        control=lambda generator: limit(generator, spread=0.0),
        control_description="kernel without the correlation",
    ),
    Claim(
        id=f"{NAME}/correlation",
        statement=r"Targets through the correlation, $\frac1N \sum_i \langle x_0, x_i \rangle^2$, have a "
        "smaller error at equally many inputs if the heads favour the correlation.",
        measures="error of kernel ridge regression with s = 4 over that with s = 0",
        source=PAPER,
        assumptions=(
            "128 inputs on the sphere, d = 4, 4 keys",
            "Gaussian weight of the correlation in place of the paper's bias",
        ),
        check=lambda generator: gain(generator, target=correlation),
        control=lambda generator: gain(generator, target=square),
        control_description=r"a target of keys alone",
    ),
    Claim(
        id=f"{NAME}/mlp",
        statement=r"On an average over keys, $\frac1N \sum_i (\beta^\top x_i)^2$, attention has a smaller "
        "error than an MLP on the concatenated tokens with as many trained numbers.",
        measures="error of attention over that of the MLP",
        source=PAPER,
        assumptions=(
            "256 inputs on the sphere, d = 4, 16 keys; 500 trained numbers each",
            "penalties picked on 64 validation inputs",
        ),
        check=lambda generator: against_mlp(generator, target=square),
        control=lambda generator: against_mlp(generator, target=first_key),
        control_description="a target of the first key alone",
    ),
    Claim(
        id=f"{NAME}/keys",
        statement="For averages over keys the error of attention does not grow with the number N of keys: "
        r"$\mathrm{err}(N = 16) \le \mathrm{err}(N = 2) + .15$.",
        measures="error with 16 keys minus error with two, as shares of the targets' variance",
        source=PAPER,
        assumptions=("kernel ridge regression on 128 inputs", "d = 4"),
        check=lambda generator: more_keys(generator, kernel=attention_kernel),
        control=lambda generator: more_keys(generator, kernel=mlp_kernel),
        control_description="kernel of the MLP on the concatenated tokens",
    ),
)

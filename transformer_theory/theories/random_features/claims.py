r"""Claims: kernels in closed form, invariance, what the correlation of query and key costs, and how the
number of keys enters.
"""

from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from ...core.claims import Measured, but, claim
from ...core.sources import Source
from .features import RandomFeatureAttention, RandomFeatureMLP, RidgePath, share_explained
from .kernels import Inputs, attention_kernel, mlp_kernel
from .targets import D, N, Target, correlation, first_key, sphere, square

PAPER, OWN, KERNEL = (
    Source("fu2023what", status="second-hand"),
    Source("fu2023what", status="own"),
    Source("cho2009kernel", status="own"),
)
HEADS, TRAIN, VALIDATION, TEST = 100, 128, 64, 128
SPREAD, FEW = 4.0, 4  # keys in the claims on kernels, which take N^2 terms per pair of inputs
Kernel = Callable[[Inputs, Inputs], Float[Tensor, "n m"]]


@claim(
    "random_features/kernel",
    measures="distance of the Gram matrices of 8,192 heads and units from the closed forms, relative; "
    "the larger one",
    at_most=0.1,
    source=KERNEL,
    assumptions=(
        "Gaussian matrices with a Gaussian weight of the correlation, s = 4",
        "24 inputs of 4 keys on the sphere",
    ),
    control=but("takes the closed form without the correlation", assumed=0.0),
)
def kernel(generator: Generator, *, assumed: float = SPREAD, heads: int = 8192) -> Measured:
    r"""In the limit of many heads the features have the inner products $\frac{1}{N^2} \sum_{i,j}
    \kappa(\tilde x_0 \tilde x_i^\top, \tilde x_0' \tilde x_j'^\top)\, \tilde x_i^\top \tilde x_j'$, where
    $\kappa$ is the kernel of relu for the inner product $\langle A, B \rangle + s^2 \langle A, J \rangle
    \langle B, J \rangle$; those of an MLP have $\kappa$ of the concatenated tokens and 1.
    """
    # The closed form of attention has the spread ``assumed``.
    x = sphere(24, keys=FEW, generator=generator)
    pairs = (
        (
            RandomFeatureAttention.draw(heads, D, spread=SPREAD, generator=generator).features(x),
            attention_kernel(x, spread=assumed),
        ),
        (RandomFeatureMLP.draw(heads, FEW + 1, D, generator=generator).features(x), mlp_kernel(x)),
    )
    errors = [float((features @ features.mT - closed).norm() / closed.norm()) for features, closed in pairs]
    return Measured(max(errors), {"attention": errors[0], "MLP": errors[1]})


@claim(
    "random_features/rate",
    measures="distance of the exponent in the number of heads from -1/2",
    at_most=0.2,
    source=OWN,
    assumptions=("independent heads", "64 to 4,096 heads, 24 draws each"),
    control=but("copies 64 heads", independent=False),
)
def rate(generator: Generator, *, independent: bool = True) -> Measured:
    """The Gram matrix of M heads is at a distance of order $M^{-1/2}$ from its limit."""
    x = sphere(12, keys=8, generator=generator)
    closed, sizes = attention_kernel(x), (64, 256, 1024, 4096)
    errors = []
    for heads in sizes:
        squares = []
        for _ in range(24):
            drawn = RandomFeatureAttention.draw(heads if independent else 64, D, generator=generator)
            features = RandomFeatureAttention(
                drawn.weights.repeat(heads // len(drawn.weights), 1, 1)
            ).features(x)
            squares.append((features @ features.mT - closed).square().sum())
        errors.append(torch.stack(squares).mean().sqrt().log())
    heads = torch.tensor(sizes, dtype=torch.float64).log()
    centred = heads - heads.mean()
    slope = float((centred * torch.stack(errors)).sum() / centred.square().sum())
    return Measured(abs(slope + 0.5), {"slope": slope})


@claim(
    "random_features/permutation",
    measures="largest relative change of a feature",
    at_most=1e-12,
    source=PAPER,
    assumptions=("average over keys", "no positions"),
    control=but("an MLP on the concatenated tokens, keys permuted only", attention=False),
)
def permutation(generator: Generator, *, attention: bool = True) -> float:
    r"""The features depend on the set of keys only: $f(x_0, x_{\pi(1)}, \dots, x_{\pi(N)}) = f(x_0, x_1,
    \dots, x_N)$, also if every key occurs twice.
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
    return float((model.features(changed) - features).abs().max() / features.abs().max())


def kernel_features(kernel: Kernel, train: Inputs) -> Callable[[Inputs], Tensor]:
    """Features whose inner products with those of the training inputs are the kernel: kernel ridge regression
    is ridge on them.
    """
    values, vectors = torch.linalg.eigh(kernel(train, train))
    keep = values > 1e-12 * values[-1]
    root = vectors[:, keep] / values[keep].sqrt()
    return lambda x: kernel(x, train) @ root


@claim(
    "random_features/limit",
    measures=r"$\sqrt M$ times the distance of the predictions of M = 250, 1,000 and 4,000 heads from the "
    "limit, relative to the targets' deviation, the largest",
    at_most=3.5,
    margin=(
        "the constant of the rate differs between draws; the threshold lies half way, on a logarithmic "
        "scale, between the numbers and a kernel with half the weight of the correlation"
    ),
    source=OWN,
    assumptions=(
        "one penalty for both, picked for the limit on validation inputs",
        "128 inputs of 4 keys, s = 4",
    ),
    control=but("kernel of half the weight of the correlation, s = 2", spread=SPREAD / 2),
)
def limit(generator: Generator, *, spread: float = SPREAD) -> Measured:
    r"""Ridge regression on M heads tends to kernel ridge regression with $K$ for $M \to \infty$: the distance
    of the predictions is of order $M^{-1/2}$.
    """
    x, validation, test = (
        sphere(count, keys=FEW, generator=generator) for count in (TRAIN, VALIDATION, TEST)
    )
    y, y_validation, y_test = (correlation(part)[:, None] for part in (x, validation, test))

    def path(features: Callable[[Inputs], Tensor]) -> RidgePath:
        return RidgePath(*(features(part) for part in (x, validation, test)))

    exact = path(kernel_features(partial(attention_kernel, spread=spread), x)).fit(y, y_validation)

    def predicted(ridge: RidgePath) -> Tensor:  # with the penalty of the limit, of which a step is a jump
        shrinkage = ridge.s / (ridge.s.square() + exact.penalty * len(x))
        return ridge.others[1] @ (shrinkage[:, None] * (ridge.U.mT @ (y - y.mean(0)))) + y.mean(0)

    deviation, distances, largest = (y_test - y_test.mean()).norm(), {}, 0.0
    for heads in (250, 1000, 4000):
        drawn = RandomFeatureAttention.draw(heads, D, spread=SPREAD, generator=generator)
        distance = float((predicted(path(drawn.features)) - exact.test).norm() / deviation)
        distances[f"{heads:,} heads"], largest = distance, max(largest, heads**0.5 * distance)
    return Measured(largest, distances)


def kernel_error(
    kernel: Kernel, target: Target, *, keys: int = FEW, n: int = TRAIN, generator: Generator
) -> float:
    """The same error of kernel ridge regression, the limit of infinitely many features."""
    x, validation, test = (sphere(count, keys=keys, generator=generator) for count in (n, VALIDATION, TEST))
    features = kernel_features(kernel, x)
    path = RidgePath(*(features(part) for part in (x, validation, test)))
    y, y_validation, y_test = (target(part)[:, None] for part in (x, validation, test))
    return 1 - share_explained(path.fit(y, y_validation).test, y_test)


@claim(
    "random_features/correlation",
    measures="error of kernel ridge regression with s = 4 over that with s = 0",
    at_most=0.12,
    source=PAPER,
    assumptions=(
        "128 inputs on the sphere, d = 4, 4 keys",
        "Gaussian weight of the correlation in place of the paper's bias",
    ),
    control=but(r"a target of keys alone", target=square),
)
def gain(generator: Generator, *, target: Target = correlation) -> Measured:
    r"""Targets through the correlation, $\frac1N \sum_i \langle x_0, x_i \rangle^2$, have a smaller error at
    equally many inputs if the heads favour the correlation.
    """
    errors = [
        kernel_error(partial(attention_kernel, spread=spread), target, generator=generator)
        for spread in (SPREAD, 0.0)
    ]
    return Measured(errors[0] / errors[1], {"with": errors[0], "without": errors[1]})


def error(
    features: Callable[[Inputs], Tensor], target: Target, *, keys: int, n: int, generator: Generator
) -> float:
    """The squared error of ridge on held-out inputs, as a share of that of the targets' mean."""
    x, validation, test = (sphere(count, keys=keys, generator=generator) for count in (n, VALIDATION, TEST))
    path = RidgePath(*(features(part) for part in (x, validation, test)))
    y, y_validation, y_test = (target(part)[:, None] for part in (x, validation, test))
    return 1 - share_explained(path.fit(y, y_validation).test, y_test)


@claim(
    "random_features/mlp",
    measures="error of attention over that of the MLP",
    at_most=0.1,
    source=PAPER,
    assumptions=(
        "256 inputs on the sphere, d = 4, 16 keys; 500 trained numbers each",
        "penalties picked on 64 validation inputs",
    ),
    control=but("a target of the first key alone", target=first_key),
)
def mlp(generator: Generator, *, target: Target = square) -> Measured:
    r"""On an average over keys, $\frac1N \sum_i (\beta^\top x_i)^2$, attention has a smaller error than an
    MLP on the concatenated tokens with as many trained numbers.
    """
    attention = RandomFeatureAttention.draw(HEADS, D, generator=generator)
    mlp = RandomFeatureMLP.draw(HEADS * (D + 1), N + 1, D, generator=generator)
    errors = [
        error(model.features, target, keys=N, n=2 * TRAIN, generator=generator) for model in (attention, mlp)
    ]
    return Measured(errors[0] / errors[1], {"attention": errors[0], "MLP": errors[1]})


@claim(
    "random_features/keys",
    measures="error with 16 keys over error with two, both as shares of the targets' variance, means over "
    "four draws",
    at_most=4.0,
    margin=(
        "the error of the control ends at the variance of the targets, which limits its growth; an "
        "error proportional to N would grow by eight"
    ),
    source=PAPER,
    assumptions=("kernel ridge regression on 128 inputs", "d = 4"),
    control=but("kernel of the MLP on the concatenated tokens", kernel=mlp_kernel),
)
def keys(generator: Generator, *, kernel: Kernel = attention_kernel) -> Measured:
    r"""For averages over keys the number of inputs that attention needs does not grow with the number N of
    keys: with eight times as many keys the error grows by less than a factor of four, $\mathrm{err}(N = 16)
    \le 4 \, \mathrm{err}(N = 2)$. The threshold is ours; an error proportional to N would grow by eight.
    """
    few, many = (
        sum(kernel_error(kernel, square, keys=keys, generator=generator) for _ in range(4)) / 4
        for keys in (2, 16)
    )
    return Measured(many / few, {"2 keys": few, "16 keys": many})


CLAIMS = (kernel, rate, permutation, limit, gain, mlp, keys)

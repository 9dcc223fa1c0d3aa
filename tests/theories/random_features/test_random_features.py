"""Random-feature attention: kernels by quadrature and loops, ridge against scikit-learn, the part on data,
and bad input.
"""

import math

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from tests.cases import each_case
from transformer_theory.core.table import collect
from transformer_theory.core.theory import Unsupported
from transformer_theory.data import TokenData
from transformer_theory.theories import random_features
from transformer_theory.theories.random_features import (
    RandomFeatureAttention,
    RandomFeatureMLP,
    RidgePath,
    attention_kernel,
    mlp_kernel,
    sphere,
)
from transformer_theory.theories.random_features.on_data import HEADLINE, MLP_ACCURACY, measure, split
from transformer_theory.theories.random_features.targets import correlation, product, square


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@each_case("angle", [0.0, 0.3, math.pi / 2, 2.5, math.pi])
def test_the_kernel_of_relu_is_the_integral_over_the_plane(angle):
    """In polar coordinates E[relu(w.a) relu(w.b)] is the integral of r^3 exp(-r^2/2), which is 2, times that
    over directions, over 2 pi.
    """
    phi = torch.arange(200_000, dtype=torch.float64) * (2 * math.pi / 200_000)
    integral = float((phi.cos().relu() * (phi - angle).cos().relu()).mean()) * 2
    a, b = 1.5, 0.5
    one = torch.tensor(a * b * math.cos(angle), dtype=torch.float64)
    value = random_features.arc_cosine(
        one, torch.tensor(a, dtype=torch.float64), torch.tensor(b, dtype=torch.float64)
    )
    assert float(value) == pytest.approx(a * b * integral, abs=1e-8)


def test_attention_s_kernel_is_the_sum_over_pairs_of_keys():
    x, y, spread = sphere(3, keys=2, generator=generator()), sphere(2, keys=4, generator=generator(1)), 1.5
    kernel = attention_kernel(x, y, spread=spread)
    for n, one in enumerate(x):
        for m, other in enumerate(y):
            total = 0.0
            for key in one[1:]:
                for second in other[1:]:
                    vectors = []
                    for query, k in ((one[0], key), (other[0], second)):
                        tilde = [torch.cat([v, torch.ones(1, dtype=torch.float64)]) for v in (query, k)]
                        # The Gaussian weight of the correlation adds a coordinate.
                        vectors.append(torch.cat([torch.outer(*tilde).flatten(), spread * (query @ k)[None]]))
                    a, b = vectors
                    value = random_features.arc_cosine(a @ b, a.norm(), b.norm())
                    total += float(value * (1 + key @ second))
            assert float(kernel[n, m]) == pytest.approx(total / 8, rel=1e-12)


def test_features_are_those_of_the_formula():
    x = sphere(2, keys=3, d=2, generator=generator())
    model = RandomFeatureAttention.draw(2, 2, bias=1.0, generator=generator(1))
    features = model.features(x)
    tilde = torch.cat([x, torch.ones(2, 4, 1, dtype=torch.float64)], -1)
    for n in range(2):
        for m in range(2):
            expected = (
                sum(torch.relu(tilde[n, 0] @ model.weights[m] @ tilde[n, i]) * tilde[n, i] for i in (1, 2, 3))
                / 3
                / math.sqrt(2)
            )
            assert_close(features[n, 3 * m : 3 * m + 3], expected)


def test_bias_and_spread_act_on_the_correlation_alone():
    plain = RandomFeatureAttention.draw(3, 2, generator=generator()).weights
    changed = RandomFeatureAttention.draw(3, 2, bias=2.0, spread=0.5, generator=generator()).weights - plain
    diagonal = changed.diagonal(dim1=1, dim2=2)
    assert_close(changed, torch.diag_embed(diagonal))
    assert_close(diagonal[:, 0], diagonal[:, 1])
    assert not diagonal[:, 2].any()
    assert len(diagonal[:, 0].unique()) == 3


def test_ridge_is_that_of_scikit_learn():
    from sklearn.linear_model import Ridge

    draws = generator()
    train, validation, test = (torch.randn(n, 6, generator=draws, dtype=torch.float64) for n in (20, 10, 5))
    y, y_validation = (
        torch.randn(20, 2, generator=draws, dtype=torch.float64),
        torch.randn(10, 2, generator=draws, dtype=torch.float64),
    )
    fitted = RidgePath(train, validation, test).fit(y, y_validation)
    scale = float((train - train.mean(0)).square().sum(1).mean())
    errors = {}
    for penalty in random_features.features.PENALTIES.tolist():
        model = Ridge(alpha=penalty * scale * 20).fit(train.numpy(), y.numpy())
        errors[penalty] = (
            float(np.square(model.predict(validation.numpy()) - y_validation.numpy()).mean()),
            model,
        )
    best = min(errors, key=lambda penalty: errors[penalty][0])
    assert fitted.penalty == pytest.approx(best)
    assert_close(fitted.test, torch.from_numpy(errors[best][1].predict(test.numpy())), rtol=1e-8, atol=1e-8)


def test_targets_have_the_moments_of_the_sphere():
    x = sphere(20_000, keys=2, d=4, generator=generator())
    assert_close(x.norm(dim=-1), torch.ones(20_000, 3, dtype=torch.float64))
    assert float(square(x).mean()) == pytest.approx(1 / 4, abs=0.005)
    assert float(correlation(x).mean()) == pytest.approx(1 / 4, abs=0.005)
    assert float(product(x).mean()) == pytest.approx(0, abs=0.005)


def made(n: int = 120, *, signal: bool, seed: int = 0) -> TokenData:
    draws = generator(seed)
    labels = torch.randint(2, (n,), generator=draws)
    tokens = torch.randn(n, 6, 3, generator=draws, dtype=torch.float64)
    if signal:  # an average over keys: their second moment
        tokens[:, :, 0] *= 1 + 2 * labels[:, None]
    return TokenData(tokens, labels=labels, name="made")


def test_an_average_over_keys_is_found_on_data():
    table, arrays = collect(measure(split(made(400, signal=True)), generator(), draws=99))
    headline = table.select(quantity=HEADLINE).one()
    assert headline.value > 0.85
    assert headline.value > headline.null.high
    assert table.select(quantity=MLP_ACCURACY).one().null is not None
    assert arrays["random_features/trained"][-1] == 512


def test_on_noise_nothing_is_found():
    """Held-out labels are exchangeable: at most 4 of 20 p-values below .05 has probability .997."""
    small = 0
    for seed in range(20):
        table, _ = collect(measure(split(made(signal=False, seed=seed)), generator(seed), draws=99))
        row = table.select(quantity=HEADLINE).one()
        small += row.null.p(row.value, ">=") <= 0.05
    assert small <= 4


def test_numpy_and_float32_are_read():
    x = sphere(4, generator=generator())
    assert_close(attention_kernel(x.numpy()), attention_kernel(x))
    assert_close(attention_kernel(x.float()), attention_kernel(x), rtol=1e-5, atol=1e-5)


def test_ridge_reads_numpy_float32_and_integers(unchecked):
    features, target = np.arange(12).reshape(4, 3) % 5, np.array([[0], [1], [1], [3]])
    expected = (
        RidgePath(*(torch.from_numpy(features).double(),) * 3)
        .fit(*(torch.from_numpy(target).double(),) * 2)
        .test
    )
    for convert in (lambda a: a, lambda a: a.astype(np.float32), lambda a: torch.from_numpy(a).float()):
        fitted = RidgePath(*(convert(features),) * 3).fit(*(convert(target),) * 2)
        assert_close(fitted.test, expected)
        assert random_features.share_explained(convert(target), convert(target)) == 1


X = sphere(3, keys=2, d=2, generator=generator())
NAN = X.clone()
NAN[0, 0, 0] = math.nan
EYE = torch.eye(3, dtype=torch.float64)
HEADS = RandomFeatureAttention.draw(2, 2, generator=generator())
BAD = {
    "one token": (
        lambda: attention_kernel(X[:, :1]),
        r"x must be \[n, 1 \+ N, d\], a query and at least one key per input, got \[3, 1, 2\]",
    ),
    "not finite": (lambda: HEADS.features(NAN), "x must be finite, got NaN"),
    "other dimension": (lambda: attention_kernel(X, X[..., :1]), "tokens of equal dimension, got 2 and 1"),
    "other keys of an MLP": (lambda: mlp_kernel(X, X[:, :2]), "equal number and dimension"),
    "heads of another dimension": (
        lambda: HEADS.features(sphere(2, d=3, generator=generator())),
        "dimension 2, as the heads have, got 3",
    ),
    "units of other inputs": (
        lambda: RandomFeatureMLP.draw(2, 4, 2, generator=generator()).features(X),
        "8 numbers per input",
    ),
    "no heads": (lambda: RandomFeatureAttention.draw(0, 2, generator=generator()), "heads must be"),
    "infinite bias": (
        lambda: RandomFeatureAttention.draw(1, 2, bias=math.inf, generator=generator()),
        "bias must be",
    ),
    "equal features": (
        lambda: RidgePath(torch.ones(4, 2).double(), torch.ones(2, 2).double(), torch.ones(2, 2).double()),
        "must differ",
    ),
    "equal targets": (
        lambda: random_features.share_explained(torch.zeros(3, 1), torch.ones(3, 1)),
        "targets must differ",
    ),
    "huge numbers": (
        lambda: attention_kernel(1e200 * X),
        "x must have numbers of at most 1e\\+45 in size, got .*; rescale",
    ),
    "spread is NaN": (
        lambda: attention_kernel(X, spread=math.nan),
        "spread must be a finite number .*, got nan",
    ),
    "more heads than memory": (
        lambda: RandomFeatureAttention.draw(10**9, 4, generator=generator()),
        "heads must fit into 2 GiB, got 10+ ",
    ),
    "more units than memory": (
        lambda: RandomFeatureMLP.draw(10**9, 17, 4, generator=generator()),
        "units must fit into 2 GiB, got 10+ ",
    ),
    "features of other heads": (
        lambda: RidgePath(EYE, EYE[:2, :2], EYE),
        "equally many features, got 3, 2 and 3",
    ),
    "no validation inputs": (
        lambda: RidgePath(EYE, EYE[:0], EYE),
        r"validation must be a matrix .*, got shape \[0, 3\]",
    ),
    "features are NaN": (
        lambda: RidgePath(EYE * math.nan, EYE, EYE),
        "train must be finite, got 9 NaN or infinite values",
    ),
    "targets are NaN": (
        lambda: RidgePath(EYE, EYE, EYE).fit(EYE * math.nan, EYE),
        "train must be finite, got 9",
    ),
    "fewer targets than inputs": (
        lambda: RidgePath(EYE, EYE, EYE).fit(EYE[:2], EYE),
        r"targets must be \[3, outputs\] and \[3, outputs\], as the features are, got \[2, 3\] and \[3, 3\]",
    ),
    "validation has other outputs": (
        lambda: RidgePath(EYE, EYE, EYE).fit(EYE, EYE[:, :1]),
        r"got \[3, 3\] and \[3, 1\]",
    ),
    "targets of one dimension": (
        lambda: random_features.share_explained(EYE[:, :1], EYE[:, 0]),
        r"target must be a matrix .*, got shape \[3\]",
    ),
    "shapes of predictions": (
        lambda: random_features.share_explained(EYE, EYE[:, :1]),
        r"equal shapes, got \[3, 3\] and \[3, 1\]",
    ),
    "no keys": (lambda: sphere(2, keys=0, generator=generator()), "keys must be"),
}


@each_case("case", BAD)
def test_bad_input_gets_one_line(case, unchecked):
    call, message = BAD[case]
    with pytest.raises(ValueError, match=message) as error:
        call()
    assert "\n" not in str(error.value)


def test_features_that_do_not_fit_into_memory_are_refused(monkeypatch):
    monkeypatch.setattr(random_features.features, "MAX_ENTRIES", 10)
    with pytest.raises(ValueError, match="features must fit into 2 GiB, got 3 inputs with 6 features"):
        HEADS.features(X)


@each_case(
    ("data", "reason"),
    [
        (TokenData(torch.randn(30, 3, 2, dtype=torch.float64)), "labels of at least two classes"),
        (made(12, signal=True), "at least 16 sequences"),
        (
            TokenData(torch.randn(30, 3, 2, dtype=torch.float64), labels=torch.arange(30)),
            "two sequences per class",
        ),
        (
            TokenData(torch.ones(30, 3, 2, dtype=torch.float64), labels=torch.arange(30) % 2),
            "tokens that differ",
        ),
    ],
)
def test_data_that_do_not_fit_have_a_reason(data, reason):
    problem = split(data)
    assert isinstance(problem, Unsupported)
    assert reason in problem.reason

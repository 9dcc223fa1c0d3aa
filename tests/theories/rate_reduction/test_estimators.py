"""The classifiers: equal to the functions that they wrap, estimators of scikit-learn, and clear about bad
input.
"""

import warnings

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits, load_iris
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator

from tests.cases import each_case
from transformer_theory.metrics.coding import unit_norm
from transformer_theory.theories import rate_reduction
from transformer_theory.theories.rate_reduction.estimators import (
    EXPECTED_FAILED_CHECKS,
    NearestSubspaceClassifier,
    RateReductionClassifier,
    ReduNetClassifier,
)

KINDS = (NearestSubspaceClassifier, RateReductionClassifier, ReduNetClassifier)
every_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    return X[:1300], y[:1300], X[1300:], y[1300:]


def quick(kind):
    return kind(layers=5) if kind is ReduNetClassifier else kind()


@every_kind
def test_it_is_an_estimator(kind, unchecked):  # scikit-learn gives settings of any type
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # checks that need what is not installed are skipped
        done = check_estimator(quick(kind), expected_failed_checks=EXPECTED_FAILED_CHECKS)
    assert {each["check_name"] for each in done if each["status"] == "xfail"} == EXPECTED_FAILED_CHECKS.keys()


@every_kind
def test_digits_are_told_apart_whatever_they_are_called(kind, digits):
    X, y, unseen, truth = digits
    names = np.array([f"digit {j}" for j in range(10)])
    model = quick(kind).fit(X, names[y])
    assert model.score(unseen, names[truth]) > 0.93
    assert list(model.classes_) == list(names)
    assert model.score(unseen, names[(truth + 1) % 10]) < 0.1


def test_nearest_subspace_is_the_function(digits):
    X, y, unseen, _ = digits
    train, test = unit_norm(torch.from_numpy(X)), torch.from_numpy(unseen)
    for rank in (1, 6):
        expected = rate_reduction.nearest_subspace(train, torch.from_numpy(y), test, rank=rank)
        assert np.array_equal(NearestSubspaceClassifier(rank).fit(X, y).predict(unseen), expected.numpy())


def test_rate_reduction_is_the_least_residual_of_the_operators(digits):
    X, y, unseen, _ = digits
    eps, directions = 0.4, X / np.linalg.norm(X, axis=1, keepdims=True)
    test = unseen / np.linalg.norm(unseen, axis=1, keepdims=True)
    residuals = []
    for j in range(10):
        own = directions[y == j]
        scale = 64 / (len(own) * eps**2)
        residuals.append(
            np.linalg.norm(test @ (scale * np.linalg.inv(np.eye(64) + scale * own.T @ own)), axis=1)
        )
    model = RateReductionClassifier(eps=eps, sharpness=3.0).fit(X, y)
    assert np.array_equal(model.predict(unseen), np.argmin(residuals, axis=0))
    weights = np.exp(-3.0 * (np.array(residuals) - np.min(residuals, axis=0)))
    assert np.allclose(model.predict_proba(unseen), (weights / weights.sum(0)).T, rtol=1e-8, atol=1e-12)


def test_redunet_is_the_constructed_network(digits):
    X, y, unseen, _ = digits
    model = ReduNetClassifier(layers=4, step=0.3, eps=0.4, sharpness=50.0).fit(X, y)
    net = rate_reduction.construct(
        torch.from_numpy(X), torch.from_numpy(y), layers=4, step=0.3, eps=0.4, sharpness=50.0
    )
    moved = net.transform(torch.from_numpy(unseen))
    assert np.allclose(model.transform(unseen), moved.numpy(), rtol=0, atol=1e-12)
    assert np.array_equal(model.predict(unseen), net.predict(moved).numpy())
    assert np.allclose(model.predict_proba(unseen).sum(1), 1)
    assert (np.diff(model.network_.reductions.numpy()) > 0).all()


@pytest.mark.parametrize("n", [40, 100])
def test_few_samples_take_shorter_steps(n, digits, unchecked):
    """η = 0.5 throws samples that guess their class across the sphere, which ΔR does not show; the default
    step does not.
    """
    X, y, unseen, truth = digits
    model = ReduNetClassifier().fit(X[:n], y[:n])
    assert model.network_.step == pytest.approx(8 * n * 0.1 / (9 * 64))
    assert model.score(X[:n], y[:n]) > 0.98
    assert model.score(unseen, truth) > 0.3
    with pytest.warns(
        ConvergenceWarning,
        match=rf"step 0.5 is too long for {n} samples: training accuracy is 1.000 as built, 0\.[012]",
    ):
        long = ReduNetClassifier(step=0.5).fit(X[:n], y[:n])
    assert long.score(unseen, truth) < 0.2
    assert float((long.network_.reductions.diff() > -1e-9).double().mean()) > 0.9


def test_a_long_step_that_does_no_harm_is_not_warned_of(digits):
    X, y, _, _ = digits
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ReduNetClassifier(step=0.5, layers=20).fit(X[:300], y[:300]).network_.step > 0.42
        assert ReduNetClassifier(layers=2).fit(X, y).network_.step == 0.5


def test_predictions_do_not_depend_on_the_sharpness(digits):
    X, y, unseen, _ = digits
    sharp, blunt = (
        RateReductionClassifier(sharpness=each).fit(X, y).predict(unseen) for each in (500.0, 1e-18)
    )
    assert np.array_equal(sharp, blunt)


def test_classes_of_unlike_sizes_are_for_the_nearest_subspace():
    """What the module says: the large class takes all that is new, but not from a subspace of its own
    dimensions.
    """
    rng = np.random.default_rng(0)
    bases = [np.linalg.qr(rng.normal(size=(20, 3)))[0] for _ in range(2)]

    def draw(*sizes):
        clean = np.concatenate([rng.normal(size=(n, 3)) @ basis.T for n, basis in zip(sizes, bases)])
        return clean + 0.3 * rng.normal(size=clean.shape), np.repeat([0, 1], sizes)

    (X, y), (unseen, truth) = draw(200, 20), draw(200, 200)
    assert RateReductionClassifier().fit(X, y).score(unseen, truth) < 0.52
    assert ReduNetClassifier(layers=5).fit(X, y).score(unseen, truth) < 0.52
    assert NearestSubspaceClassifier(3).fit(X, y).score(unseen, truth) > 0.9


def test_features_of_redunet_go_into_a_pipeline(digits):
    X, y, _, _ = digits
    pipeline = make_pipeline(ReduNetClassifier(layers=3), NearestSubspaceClassifier(rank=6))
    assert cross_val_score(pipeline, X[:400], y[:400], cv=2).min() > 0.85


@every_kind
def test_what_is_no_direction_or_no_class_is_refused(kind):
    X, y = np.eye(4), np.array([0, 0, 1, 1])
    with pytest.raises(
        ValueError, match="features must have a direction, got 1 of 4 that are zero, the first at 3"
    ):
        quick(kind).fit(np.diag([1.0, 1, 1, 0]), y)
    with pytest.raises(ValueError, match="Unknown label type: continuous"):
        quick(kind).fit(X, y + 0.5)
    with pytest.raises(ValueError, match="contains NaN"):
        quick(kind).fit(np.where(X == 1, np.nan, X), y)
    with pytest.raises(NotFittedError, match="not fitted yet"):
        quick(kind).predict(X)
    with pytest.raises(ValueError, match="X has 3 features, but"):
        quick(kind).fit(X, y).predict(X[:, :3])


@each_case(
    ("model", "message"),
    [
        (NearestSubspaceClassifier(rank=0), "rank must be at least 1, got 0"),
        (RateReductionClassifier(eps=0.0), "eps must be positive and finite"),
        (RateReductionClassifier(sharpness=-1.0), "sharpness must be positive and finite"),
        (ReduNetClassifier(layers=0), "layers must be at least 1, got 0"),
        (ReduNetClassifier(step=float("nan")), "step must be positive and finite"),
    ],
)
def test_settings_out_of_range_are_refused(model, message):
    with pytest.raises(ValueError, match=message):
        model.fit(np.eye(4), np.array([0, 0, 1, 1]))


@pytest.mark.parametrize("rank", [2.5, float("nan"), "six"])
def test_a_rank_is_an_integer(rank, unchecked):
    with pytest.raises(TypeError, match=f"rank must be an integer, got .* {rank!r}"):
        NearestSubspaceClassifier(rank=rank).fit(np.eye(4), np.array([0, 0, 1, 1]))


def test_the_theory_exports_them():
    from transformer_theory.theories.rate_reduction.clustering import CodingLengthClustering

    assert rate_reduction.ReduNetClassifier is ReduNetClassifier
    assert rate_reduction.CodingLengthClustering is CodingLengthClustering
    with pytest.raises(AttributeError, match="no attribute 'ReduNetClasifier'"):
        _ = rate_reduction.ReduNetClasifier


def test_the_nearest_subspace_of_few_dimensions_is_not_the_whole_space():
    """Iris has four dimensions: with subspaces of six, class 0 would be predicted for every sample."""
    X, y = load_iris(return_X_y=True)
    model = NearestSubspaceClassifier().fit(X, y)
    assert [len(basis) for basis in model.subspaces_] == [3, 3, 3]
    assert model.score(X, y) > 0.8
    for rank in (4, 6):
        with pytest.raises(ValueError, match=f"rank must be below the dimension 4, got {rank}"):
            NearestSubspaceClassifier(rank).fit(X, y)

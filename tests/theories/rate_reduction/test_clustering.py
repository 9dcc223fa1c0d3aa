"""Clustering by coding length: equal to the textbook search over all pairs, recovers subspaces, and is an
estimator of scikit-learn.
"""

import warnings

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits, make_blobs
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
from sklearn.utils.estimator_checks import check_estimator

from tests.cases import each_case
from transformer_theory.metrics.coding import segmented_coding_length
from transformer_theory.theories.rate_reduction import NearestSubspaceClassifier
from transformer_theory.theories.rate_reduction.clustering import (
    EXPECTED_FAILED_CHECKS,
    CodingLengthClustering,
)
from transformer_theory.theories.rate_reduction.evaluation import clustering_accuracy


def mixture(ranks, per_group, dim, *, noise=0.05, seed=0):
    """Samples around random subspaces through the origin, and the subspace of each."""
    rng = np.random.default_rng(seed)
    bases = [np.linalg.qr(rng.normal(size=(dim, rank)))[0] for rank in ranks]
    X = np.concatenate([rng.normal(size=(per_group, basis.shape[1])) @ basis.T for basis in bases])
    return X + noise * rng.normal(size=X.shape), np.repeat(np.arange(len(ranks)), per_group)


def bits(X, labels, eps):
    _, labels = np.unique(labels, return_inverse=True)
    return float(segmented_coding_length(torch.from_numpy(X), torch.from_numpy(labels), eps=eps))


def search(X, eps):
    """Merges as the definition says, every length from scratch."""
    labels = np.arange(len(X))
    lengths = [bits(X, labels, eps)]
    while (groups := np.unique(labels)).size > 1:
        unions = [np.where(labels == j, i, labels) for i in groups for j in groups if i < j]
        found = [bits(X, union, eps) for union in unions]
        if min(found) >= lengths[-1]:
            break
        labels = unions[int(np.argmin(found))]
        lengths.append(min(found))
    return labels, np.array(lengths)


@each_case("dim", [4, 30])  # fewer and more dimensions than samples
@each_case("eps", [0.05, 0.3])
def test_it_is_the_search_over_all_pairs(dim, eps, unchecked):
    X, _ = mixture((1, 2, 2), 4, dim)
    labels, lengths = search(X, eps)
    found = CodingLengthClustering(eps).fit(X)
    assert np.allclose(found.lengths_, lengths, rtol=1e-10)
    assert clustering_accuracy(labels, found.labels_) == 1
    assert found.n_clusters_ == len(np.unique(labels))
    assert (np.diff(found.lengths_) < 0).all()
    # numbered by first appearance
    assert list(dict.fromkeys(found.labels_)) == list(range(found.n_clusters_))


@pytest.mark.parametrize("ranks", [(1, 2, 4), (2, 3, 4, 5), (6, 6)])
def test_subspaces_are_recovered_without_their_number(ranks):
    X, truth = mixture(ranks, 60, 12, noise=0.03)
    eps = 0.03 * 12**0.5
    found = CodingLengthClustering(eps).fit(X)
    assert found.n_clusters_ == len(ranks)
    assert clustering_accuracy(truth, found.labels_) > 0.97
    assert found.lengths_[-1] == pytest.approx(bits(X, found.labels_, eps), rel=1e-9)
    assert found.lengths_[-1] <= bits(X, truth, eps) * (1 + 1e-9)


def test_one_subspace_is_one_group_and_a_great_distortion_unites_all():
    X, _ = mixture((3,), 60, 8)
    assert CodingLengthClustering(0.2).fit(X).n_clusters_ == 1
    X, _ = mixture((1, 2), 30, 8)
    assert CodingLengthClustering(10.0).fit(X).n_clusters_ == 1


def test_the_order_and_the_coordinates_of_the_samples_do_not_matter():
    X, _ = mixture((1, 2, 3), 25, 8)
    rng = np.random.default_rng(1)
    order, turn = rng.permutation(len(X)), np.linalg.qr(rng.normal(size=(8, 8)))[0]
    first, again = CodingLengthClustering(0.15).fit(X), CodingLengthClustering(0.15).fit(X[order] @ turn)
    assert np.allclose(first.lengths_, again.lengths_, rtol=1e-10)
    assert clustering_accuracy(first.labels_[order], again.labels_) == 1


def test_directions_of_digits_cluster_better_than_by_k_means():
    """Both in the 12 directions that hold most of the images; k-means is given the number of groups."""
    X, truth = load_digits(return_X_y=True)
    X = X[:500] / np.linalg.norm(X[:500], axis=1, keepdims=True)
    X = X @ np.linalg.svd(X, full_matrices=False)[2][:12].T
    found = CodingLengthClustering(0.1).fit(X)
    means = KMeans(found.n_clusters_, n_init=3, random_state=0).fit_predict(X)
    ours, theirs = (normalized_mutual_info_score(truth[:500], labels) for labels in (found.labels_, means))
    assert 6 <= found.n_clusters_ <= 16
    assert ours > 0.7
    assert ours > theirs


def test_it_is_an_estimator(unchecked):  # scikit-learn gives settings of any type
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # checks that need what is not installed are skipped
        done = check_estimator(CodingLengthClustering(), expected_failed_checks=EXPECTED_FAILED_CHECKS)
    assert {each["check_name"] for each in done if each["status"] == "xfail"} == EXPECTED_FAILED_CHECKS.keys()


def test_groups_around_means_are_found_once_a_constant_is_appended():
    X, truth = make_blobs(n_samples=50, random_state=1)
    X = (X - X.mean(0)) / X.std(0)
    found = CodingLengthClustering(0.2).fit(np.column_stack([X, np.ones(len(X))]))
    assert adjusted_rand_score(truth, found.labels_) > 0.9
    assert adjusted_rand_score(truth, CodingLengthClustering(0.2).fit(X).labels_) < 0.4


@each_case("eps", [0.0, -1.0, float("nan"), float("inf")])
def test_the_distortion_must_be_positive(eps):
    with pytest.raises(ValueError, match="eps must be positive and finite"):
        CodingLengthClustering(eps).fit(np.eye(3))


def test_samples_too_large_for_the_distortion_are_refused():
    with pytest.raises(ValueError, match=r"samples must be at most 1e\+11 eps, got 1e\+200 with eps 1"):
        CodingLengthClustering(1.0).fit(1e200 * np.eye(3))


@pytest.mark.parametrize("sizes", [(9e10, 0.08), (9e10, 10.0), (1e6, 1e-2)])
def test_lengths_of_wide_spectra_are_right(sizes):
    """A direction counts by how many distortions it holds, however much more another one holds."""
    X = np.linalg.qr(np.random.default_rng(0).normal(size=(40, 2)))[0] * sizes
    found = CodingLengthClustering(1.0).fit(X)
    assert found.n_clusters_ == 1
    expected = 42 / 2 * np.log2(1 + 2 / 40 * np.square(sizes)).sum()
    assert found.lengths_[-1] == pytest.approx(expected, rel=1e-7)


def test_spectra_too_wide_are_refused():
    X = np.linalg.qr(np.random.default_rng(0).normal(size=(40, 2)))[0] * (1e6, 1e-7)
    with pytest.raises(
        ValueError, match=r"at most 1e\+11 eps, got .* with eps 1e-08; take a larger eps, or rescale"
    ):
        CodingLengthClustering(1e-8).fit(X)


def test_new_samples_go_to_the_nearest_subspace():
    """What the docstring offers in the place of predict, at the distortion that it names."""
    X, truth = mixture((2, 3), 80, 10, noise=0.05)
    found = CodingLengthClustering(0.05 * 10**0.5).fit(X[::2])
    assert found.n_clusters_ == 2
    guessed = NearestSubspaceClassifier(3).fit(X[::2], found.labels_).predict(X[1::2])
    assert clustering_accuracy(truth[1::2], guessed) > 0.95


def test_the_unit_does_not_matter():
    X, _ = mixture((1, 2), 20, 6)
    first, again = CodingLengthClustering(0.2).fit(X), CodingLengthClustering(0.2e-200).fit(1e-200 * X)
    assert np.allclose(first.lengths_, again.lengths_, rtol=1e-9)
    assert np.array_equal(first.labels_, again.labels_)
    assert CodingLengthClustering(0.2).fit(0 * X).n_clusters_ == 1


def test_accuracy_is_up_to_names(unchecked):
    truth = np.array([0, 0, 1, 1, 2, 2])
    assert clustering_accuracy(truth, np.array([5, 5, 3, 3, 4, 4])) == 1
    assert clustering_accuracy(truth, np.zeros(6, dtype=int)) == pytest.approx(1 / 3)
    assert clustering_accuracy(truth, np.arange(6)) == pytest.approx(1 / 2)
    with pytest.raises(ValueError, match="got 6 and 2 entries"):
        clustering_accuracy(truth, np.array([0, 1]))

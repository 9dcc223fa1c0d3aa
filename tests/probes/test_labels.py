"""Labels as people have them: some missing, booleans, words. The same holds for each metric, and wherever
labels enter.
"""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import normalize

from tests.cases import each_case
from tests.problems.copies import few_copies
from tests.problems.networks import Keep, theory_metrics, tokens
from transformer_theory import measure, models, probe
from transformer_theory.core.validation import as_labels
from transformer_theory.data import TokenData
from transformer_theory.metrics import (
    FeatureRates,
    NeuralCollapse,
    SecondMoments,
    neural_collapse,
    rate_reduction,
)
from transformer_theory.theories.rate_reduction.loss import MaximalCodingRateReduction
from transformer_theory.theories.router.information import choice_information

N = 96
X = tokens(N, 5, 8)
Y = torch.arange(N) * 7 % 3
KNOWN = torch.arange(N) % 4 > 0
X = X + 0.4 * torch.nn.functional.one_hot(Y, 8)[:, None]


def network() -> nn.Module:
    torch.manual_seed(0)
    return models.ViT.for_tokens(5, 8, 3, dim=8, depth=2, heads=2).eval()


def metrics() -> list:
    chosen = theory_metrics("router", "vision", "rate_reduction", "bottleneck", "collapse")
    return [*chosen, FeatureRates(), NeuralCollapse()]


def rows(labels, x=X, *, batch: int = N) -> dict:
    """The value and number of samples of each row that needs labels, by theory, quantity and place."""
    model = network()
    with probe(model, metrics(), draws=2) as p, torch.no_grad(), p.accumulate():
        for start in range(0, len(x), batch):
            p.labels = None if labels is None else labels[start : start + batch]
            model(x[start : start + batch])
    needs = ("label", "rate", "class", "NC", "relevan", "words")
    return {
        (row.theory, row.quantity, row.layer, row.head): (row.value, row.n, row.reason, row.nulls)
        for row in p.result().table
        if any(word in row.quantity for word in needs)
    }


def assert_same(found: dict, expected: dict) -> None:
    assert found.keys() == expected.keys()
    for key, (value, n, reason, nulls) in expected.items():
        assert found[key][1:3] == (n, reason), key
        assert len(found[key][3]) == len(nulls)
        assert (value is None) == (found[key][0] is None)
        if value is not None:
            assert math.isclose(found[key][0], value, rel_tol=1e-5, abs_tol=1e-6), key


@each_case("missing", [-100, -1])
@each_case("batch", [N, 32])
def test_sequences_without_label_are_left_out(missing, batch):
    """Every quantity of the labels is that of the sequences that have one."""
    expected = rows(Y[KNOWN], X[KNOWN])
    assert sum(value is not None for value, *_ in expected.values()) > 15
    assert any(n == int(KNOWN.sum()) for _, n, *_ in expected.values())
    assert_same(rows(torch.where(KNOWN, Y, missing), batch=batch), expected)


def test_no_label_at_all_is_like_no_labels():
    assert rows(torch.full((N,), -100)).keys() == rows(None).keys()


@each_case("kind", [np.array, list, tuple, torch.tensor])
def test_booleans_are_two_classes(kind):
    assert_same(rows(kind((Y > 0).tolist())), rows((Y > 0).long()))


@pytest.mark.parametrize("kind", [np.array, list, lambda words: np.array(words, dtype=object)])
def test_words_are_classes_also_over_batches(kind):
    """The first batch lacks a word; words keep their numbers."""
    names = kind([["cat", "ant", "bee"][label] for label in Y.sort().values.tolist()])
    order = Y.argsort(stable=True)
    assert_same(rows(names, X[order], batch=20), rows(Y.sort().values, X[order], batch=20))


def test_numbers_of_labels():
    assert as_labels("labels", ["b", "a", "b"]).tolist() == [1, 0, 1]
    assert as_labels("labels", np.array([True, False])).tolist() == [1, 0]
    assert as_labels("labels", [3, -100, -1, 0]).tolist() == [3, -1, -1, 0]
    assert as_labels("labels", torch.tensor([3, -7], dtype=torch.int8)).dtype == torch.int64
    words: dict[str, int] = {}
    assert as_labels("labels", ["b", "a"], words=words).tolist() == [1, 0]
    assert as_labels("labels", ["0", "b"], words=words).tolist() == [2, 1]


BAD = {
    "floats": (Y.float(), "integer"),
    "column": (Y[:, None], "labels"),
    "one-hot": (nn.functional.one_hot(Y), "labels"),
    "words and numbers": (["a", 1] * (N // 2), "integer or word per sequence, got list"),
    "bytes": ([b"a", b"b"] * (N // 2), "integer or word per sequence, got list"),
    "nothing": ([None] * N, "integer or word per sequence, got list"),
    "one word": ("a" * N, "integer or word per sequence, got str"),
    "complex": (Y + 0j, "integer"),
}


@each_case("case", BAD)
def test_other_labels_are_refused_in_one_line(unchecked, case):
    labels, words = BAD[case]
    model = network()

    def probed():
        with probe(model, metrics()) as p:
            p.labels = labels
            model(X)

    entries = {
        "probe": probed,
        "measure": lambda: measure(model, X, labels, theories=["router"]),
        "data": lambda: TokenData(X.double(), labels=labels),
        "collapse": lambda: neural_collapse(X[:, 0], labels),
    }
    if case != "one-hot":  # memberships there
        entries["rates"] = lambda: rate_reduction(X[:, 0], labels, eps=0.5)
    for name, call in entries.items():
        with pytest.raises(ValueError, match=words) as caught:
            call()
        assert "\n" not in str(caught.value), name
        assert str(caught.value).startswith("labels must"), name


def test_functions_leave_out_samples_without_label():
    features, partly = normalize(X[:, 0].double(), dim=1), torch.where(KNOWN, Y, -100)
    inside, classes = features[KNOWN], Y[KNOWN]

    def rate(z):
        d = z.shape[1]
        return float(0.5 * torch.logdet(torch.eye(d).double() + d / (len(z) * 0.25) * z.T @ z))

    expected = rate(inside) - sum(
        float((classes == c).double().mean()) * rate(inside[classes == c]) for c in range(3)
    )
    assert math.isclose(float(rate_reduction(features, partly, eps=0.5)), expected, rel_tol=1e-9)
    state = SecondMoments()
    state.update(features, partly)
    assert state.counts.tolist() == torch.bincount(classes).tolist()
    assert neural_collapse(features, partly) == neural_collapse(inside, classes)
    loss = MaximalCodingRateReduction(eps=0.5)
    assert float(loss(features, partly).reduction) == float(loss(inside, classes).reduction)
    choice = torch.arange(N) % 5
    assert choice_information(choice, partly) == choice_information(choice[KNOWN], classes)


def test_measuring_with_missing_labels(monkeypatch):
    few_copies(monkeypatch)
    model, partly = network(), torch.where(KNOWN, Y, -100)
    result = measure(model, X, partly, theories=["router"], networks=1)
    alone = measure(model, X[KNOWN], Y[KNOWN], theories=["router"], networks=1)
    assert result.settings["labels"] == 3
    with torch.no_grad():
        right = float((model(X[KNOWN]).argmax(1) == Y[KNOWN]).double().mean())
    assert result.settings["right"] == alone.settings["right"] == right
    first, second = (
        [row.value for row in found.select(theory="router", layer=0) if row.head is not None]
        for found in (result, alone)
    )
    assert first == second


def test_the_activations_have_minus_one_for_a_missing_label():
    keep, model = Keep(), network()
    with probe(model, [keep], draws=0) as p, torch.no_grad():
        p.labels = torch.where(KNOWN, Y, -100)
        model(X)
    assert all(torch.equal(labels, torch.where(KNOWN, Y, -1)) for labels in keep.labels)

"""Input that does not fit raises one line that names the argument; arrays that fit losslessly
are converted.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.cases import each_case
from transformer_theory.theories.attention_svm import builders, dynamics, next_token, selection, solvers
from transformer_theory.theories.attention_svm.analysis import analyse, analyse_head
from transformer_theory.theories.attention_svm.constraint_set import Constraints
from transformer_theory.theories.attention_svm.graph import priority_graph
from transformer_theory.theories.attention_svm.in_networks import alignment
from transformer_theory.theories.attention_svm.problem import Instance, cross_attention, token_scores
from transformer_theory.theories.attention_svm.sequences import causal_instance, sequence_instance

DATA = cross_attention(inputs=4, tokens=3, dim=5, generator=torch.Generator().manual_seed(0))
X, Z, SCORES = DATA.tokens, DATA.query, DATA.scores
SELECT, V = DATA.optimal(), X[0, 0]
SIGNS = torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64)
PAIRS = builders.constraints(X, Z, SELECT)
SOLVED = solvers.frobenius_max_margin(PAIRS)
JOINT = dynamics.JointInstance(X, SIGNS)
BEGIN = dynamics.JointState(torch.zeros(5, dtype=torch.float64), torch.ones(5, dtype=torch.float64))
IDS, NEXT, EYE = torch.tensor([[0, 1, 2], [2, 1, 0]]), torch.tensor([0, 1]), torch.eye(3, dtype=torch.float64)
GRAPH = priority_graph(IDS, NEXT, tokens=3)
CYCLE = priority_graph(IDS[[0, 0]], NEXT, tokens=3)  # tokens 0 and 1 are each other's label
SHARES = SCORES.softmax(-1)
QUERIES, QUERY_SCORES = torch.zeros(4, 2, 5).double(), torch.zeros(4, 2, 3).double()
MASK = torch.ones(2, 3, dtype=torch.bool)


@pytest.fixture(autouse=True)
def _(unchecked):
    """The library's own checks are tested, not those of the shapes in the signatures."""


def refused(call, error, words):
    with pytest.raises(error) as caught:
        call()
    message = str(caught.value)
    assert words in message
    assert "\n" not in message


def head(labels=SIGNS, v=V, x=X):
    return analyse_head(x, Z, v, labels, steps=(3,))


@each_case(
    ("call", "error", "words"),
    [
        (lambda: token_scores(X, V, torch.ones(1).double()), ValueError, "sign must have shape [4]"),
        (lambda: token_scores(X, V, SIGNS[:, None]), ValueError, "sign must be a tensor [4]"),
        (lambda: token_scores(X, V, SIGNS.clamp(min=0)), ValueError, "sign must be -1 or 1, got [0.0, 1.0]"),
        (lambda: token_scores(X, V[:3], SIGNS), ValueError, "head must have shape [5]"),
        (lambda: Instance(X, Z, SCORES[:, :2]), ValueError, "scores must have shape [4, 3]"),
        (lambda: Instance(X, Z[:2], SCORES), ValueError, "query must have one row per input, [4]"),
        (lambda: Instance(X[:0], Z[:0], SCORES[:0]), ValueError, "at least one input"),
        (
            lambda: Instance("tokens", Z, SCORES),
            TypeError,
            "tokens must be a torch.Tensor or a numpy array, got str",
        ),
        (lambda: Instance(X * torch.nan, Z, SCORES), ValueError, "tokens must be finite, got 60 NaN"),
        (lambda: Instance(X, Z, SCORES, SCORES > 9), ValueError, "allowed must leave each input a token"),
        (lambda: builders.constraints(X, Z, SELECT.double()), TypeError, "select must hold integers"),
        (lambda: builders.constraints(X, Z, SELECT + 3), ValueError, "select must lie in [0, 3)"),
        (
            lambda: cross_attention(inputs=1.5, tokens=2, dim=2, generator=torch.Generator()),
            TypeError,
            "inputs must be an integer",
        ),
        (
            lambda: cross_attention(inputs=0, tokens=2, dim=2, generator=torch.Generator()),
            ValueError,
            "inputs must be at least 1, got 0",
        ),
        (lambda: causal_instance(X, SCORES[:, None]), ValueError, "scores must have shape [4, 3, 3]"),
        (
            lambda: sequence_instance(X, QUERIES[:1], QUERY_SCORES),
            ValueError,
            "queries must have shape [4, 2, 5]",
        ),
        (
            lambda: sequence_instance(X, QUERIES, QUERY_SCORES, allowed=MASK),
            ValueError,
            "allowed must have shape [4, 2, 3]",
        ),
    ],
)
def test_problems(call, error, words):
    refused(call, error, words)


@each_case(
    ("call", "error", "words"),
    [
        (lambda: dynamics.JointInstance(X, SIGNS[:2]), ValueError, "labels must have shape [4]"),
        (lambda: dynamics.JointInstance(X, SIGNS * 0), ValueError, "labels must be -1 or 1"),
        (
            lambda: dynamics.JointInstance(X, SIGNS, keys=X[:, :2]),
            ValueError,
            "keys must have shape [4, 3, 5]",
        ),
        (
            lambda: dynamics.joint_targets(DATA, SELECT),
            TypeError,
            "instance must be JointInstance, got Instance",
        ),
        (
            lambda: dynamics.joint_targets(JOINT, torch.tensor([0, 1, 2, 9])),
            ValueError,
            "select must lie in [0, 3), got 9",
        ),
        (
            lambda: dynamics.joint_targets(JOINT, SELECT, tol=-1),
            ValueError,
            "tol must be at least 0 and finite, got -1",
        ),
        (
            lambda: dynamics.joint_targets(dynamics.JointInstance(X[None], SIGNS[None]), SELECT[None]),
            ValueError,
            "got trials [1]",
        ),
        (
            lambda: dynamics.joint_descent(JOINT, BEGIN, steps=1, eps=0.1),
            TypeError,
            "eps must be a pair of numbers",
        ),
        (
            lambda: dynamics.joint_descent(JOINT, BEGIN, steps=1, eps=(0.1,)),
            TypeError,
            "eps must be a pair of numbers",
        ),
        (
            lambda: dynamics.HeadInstance(X, Z, SIGNS, None),
            TypeError,
            "head must be a function of mixtures, got NoneType",
        ),
        (lambda: dynamics.HeadInstance(X, Z, SIGNS[:2], torch.sin), ValueError, "labels must have shape [4]"),
        (
            lambda: dynamics.random_factors(DATA, generator=torch.Generator(), width=1.5),
            TypeError,
            "width must be an integer",
        ),
        (
            lambda: dynamics.random_factors(DATA, generator=torch.Generator(), width=0),
            ValueError,
            "width must be at least 1, got 0",
        ),
    ],
)
def test_heads_prompts_and_starts(call, error, words):
    refused(call, error, words)


@each_case(
    ("call", "error", "words"),
    [
        (
            lambda: priority_graph(torch.tensor([[0, 3]]), torch.tensor([0]), tokens=3),
            ValueError,
            "ids must lie in [0, 3), got 3",
        ),
        (
            lambda: priority_graph(torch.tensor([[0, 1]]), torch.tensor([2]), tokens=3),
            ValueError,
            "2 is not in sequence 0",
        ),
        (
            lambda: priority_graph(torch.zeros(0, 2).long(), torch.zeros(0).long(), tokens=3),
            ValueError,
            "at least one sequence",
        ),
        (lambda: priority_graph(IDS.double(), NEXT, tokens=3), TypeError, "ids must hold integers"),
        (lambda: priority_graph(IDS, NEXT, tokens="3"), TypeError, "tokens must be an integer"),
        (lambda: next_token.next_token_instance(EYE[:2], IDS, NEXT), ValueError, "ids must lie in [0, 2)"),
        (
            lambda: next_token.finite_part(GRAPH, EYE, IDS[[0, 0]], NEXT),
            ValueError,
            "graph must belong to these ids and labels",
        ),
        (
            lambda: next_token.finite_part(CYCLE, EYE, IDS[[0, 0]], 0 * NEXT),
            ValueError,
            "graph must belong to these ids and labels",
        ),
        (
            lambda: next_token.finite_part(GRAPH, EYE[:2], IDS, NEXT),
            ValueError,
            "embeddings must have one row per token, 3, got 2",
        ),
        (
            lambda: next_token.finite_part(3, EYE, IDS, NEXT),
            TypeError,
            "graph must be PriorityGraph, got int",
        ),
        (
            lambda: next_token.finite_part(GRAPH, EYE, IDS, NEXT, tol="a"),
            TypeError,
            "tol must be a number, got str",
        ),
        (
            lambda: next_token.finite_span(GRAPH, EYE[:2]),
            ValueError,
            "embeddings must have one row per token, 3, got 2",
        ),
    ],
)
def test_graphs_and_their_finite_part(call, error, words):
    refused(call, error, words)


@each_case(
    ("call", "error", "words"),
    [
        (
            lambda: selection.locally_optimal(SCORES[:, :2], 0 * SELECT, PAIRS, SOLVED),
            ValueError,
            "pairs must refer to the 2 tokens",
        ),
        (
            lambda: selection.locally_optimal(SCORES[:2], SELECT[:2], PAIRS, SOLVED),
            ValueError,
            "pairs must refer to the 2 inputs",
        ),
        (
            lambda: selection.locally_optimal(SCORES, SELECT[:2], PAIRS, SOLVED),
            ValueError,
            "select must have shape [4]",
        ),
        (
            lambda: selection.locally_optimal(SCORES, SELECT + 3, PAIRS, SOLVED),
            ValueError,
            "select must lie in [0, 3)",
        ),
        (
            lambda: selection.locally_optimal(SCORES[0], SELECT, PAIRS, SOLVED),
            ValueError,
            "scores must be a tensor",
        ),
        (
            lambda: selection.locally_optimal(SCORES, SELECT, SOLVED, PAIRS),
            TypeError,
            "pairs must be Constraints, got MaxMargin",
        ),
        (
            lambda: selection.locally_optimal(SCORES, SELECT, PAIRS, SOLVED.W),
            TypeError,
            "solution must be MaxMargin",
        ),
        (
            lambda: selection.locally_optimal(SCORES, SELECT, PAIRS.take(slice(0, 3)), SOLVED),
            ValueError,
            "belong to the 3 pairs",
        ),
        (
            lambda: solvers.generalised_max_margin(X, Z, 5 * SHARES),
            ValueError,
            "attention must sum to 1 in each input, got 5",
        ),
        (
            lambda: solvers.generalised_max_margin(X, Z, SHARES * SIGNS[:, None]),
            ValueError,
            "attention must be at least 0, got -0.",
        ),
        (
            lambda: solvers.generalised_max_margin(X, Z, SHARES[:2]),
            ValueError,
            "attention must have shape [4, 3]",
        ),
        (
            lambda: solvers.generalised_max_margin(X, Z, SHARES, threshold=2),
            ValueError,
            "threshold must lie in [0, 1), got 2",
        ),
    ],
)
def test_selections_and_attention(call, error, words):
    refused(call, error, words)


def test_files_that_hold_no_state(tmp_path):
    text, array = tmp_path / "notes.txt", tmp_path / "array.npy"
    text.write_text("0.1 0.2")
    np.save(array, np.ones(3))
    (tmp_path / "empty.npz").touch()
    np.savez(tmp_path / "other.npz", weights=np.ones(3), step=1)
    for path in (text, array, tmp_path / "empty.npz"):
        refused(lambda path=path: dynamics.load(path), ValueError, "not a zip of arrays")
    refused(lambda: dynamics.load(tmp_path / "other.npz"), ValueError, "['weights']")
    refused(
        lambda: dynamics.save(3, tmp_path / "x.npz"), TypeError, "state must be State or Factors, got int"
    )
    assert not (tmp_path / "x.npz").exists()


def numpy32(value):
    """As a user's array may come: numpy, single precision."""
    return value.numpy().astype(np.float32) if value.is_floating_point() else value.numpy().astype(np.int16)


def test_numpy_arrays_single_precision_and_small_integers_are_converted():
    # exact in single precision
    x, z, scores = X.float().double(), Z.float().double(), SCORES.float().double()
    pairs = builders.constraints(x, z, SELECT)
    converted = builders.constraints(numpy32(x), numpy32(z), numpy32(SELECT))
    assert torch.equal(converted.difference, pairs.difference)
    assert torch.equal(solvers.frobenius_max_margin(converted).W, solvers.frobenius_max_margin(pairs).W)
    again = Constraints(
        numpy32(x[:, 0]), numpy32(z), rhs=[1, 1, 1, 1], equality=np.array([True, False, False, False])
    )
    assert again.rhs.dtype == torch.float64
    assert again.equality.tolist() == [True, False, False, False]
    instance, plain = Instance(numpy32(x), numpy32(z), numpy32(scores)), Instance(x, z, scores)
    W = dynamics.normalised_descent(plain, dynamics.start(plain), steps=5).W.float()
    begin = dynamics.start(instance, W=W.numpy())
    assert torch.equal(begin.W, W.double())
    assert torch.equal(
        dynamics.normalised_descent(instance, begin, steps=5).W,
        dynamics.normalised_descent(plain, dynamics.start(plain, W=W), steps=5).W,
    )
    assert torch.equal(
        token_scores(numpy32(x), numpy32(x[0, 0]), [1, -1, 1, -1]), token_scores(x, x[0, 0], SIGNS)
    )
    assert priority_graph(IDS.numpy().astype(np.uint8), NEXT.tolist(), tokens=3).equal() == GRAPH.equal()
    shares = SHARES.float()
    assert solvers.generalised_max_margin(numpy32(x), numpy32(z), shares).direction.kkt < 1e-9


def test_data_out_of_a_network_are_detached():
    """Solvers and descent work with numbers; the network that computed them is left alone."""

    def traced(value):
        return (value * torch.ones((), dtype=torch.float64, requires_grad=True)).requires_grad_()

    plain, other = (
        analyse(*data, steps=(40,)) for data in ((X, Z, SCORES), (traced(X), traced(Z), traced(SCORES)))
    )
    assert str(other) == str(plain)
    assert not other.W.requires_grad
    assert str(head(traced(SIGNS).round(), traced(V), traced(X))) == str(head())
    W = other.W
    one, another = (
        alignment(w, x, z, generator=torch.Generator().manual_seed(0))
        for w, x, z in ((W, X, Z), map(traced, (W, X, Z)))
    )
    assert one == another
    targets = dynamics.joint_targets(dynamics.JointInstance(traced(X), SIGNS, keys=traced(X)), SELECT)
    assert torch.equal(targets.sharp.W, dynamics.joint_targets(JOINT, SELECT).sharp.W)
    shared = solvers.generalised_max_margin(traced(X), traced(Z), traced(SHARES))
    assert not shared.finite.W.requires_grad
    assert torch.equal(
        next_token.finite_part(GRAPH, traced(EYE), IDS, NEXT), next_token.finite_part(GRAPH, EYE, IDS, NEXT)
    )
    assert not replace(DATA, tokens=traced(X)).tokens.requires_grad


def test_a_batch_is_named_before_anything_else():
    """The message names the tokens, not the labels or W, whose shapes are right for a batch."""
    drawn = cross_attention(inputs=3, tokens=4, dim=5, generator=torch.Generator().manual_seed(0), trials=2)
    message = r"tokens must have shape \[n, T, d\], got \[2, 3, 4, 5\]; analyse one problem at a time"
    with pytest.raises(ValueError, match=message):
        analyse_head(drawn.tokens, drawn.query, torch.ones(5), torch.ones(2, 3), steps=(10,))
    with pytest.raises(ValueError, match=message):
        selection.first_step_condition(drawn)

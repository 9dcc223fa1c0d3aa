"""What does not fit is refused where it enters, in one line that says what was expected and what came."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from transformer_theory.theories.attention_svm import builders, dynamics, next_token, selection, solvers
from transformer_theory.theories.attention_svm.analysis import analyse, analyse_head
from transformer_theory.theories.attention_svm.graph import priority_graph
from transformer_theory.theories.attention_svm.in_networks import alignment
from transformer_theory.theories.attention_svm.problem import cross_attention, token_scores
from transformer_theory.theories.attention_svm.next_token import finite_span

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


@pytest.fixture(autouse=True)
def _(unchecked):
    """Bad input gets as far as the library."""


def refused(call, kind, words):
    with pytest.raises(kind) as raised:
        call()
    said = str(raised.value)
    assert words in said
    assert "\n" not in said


def head(labels=SIGNS, v=V, x=X):
    return analyse_head(x, Z, v, labels, at=(3,))


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: head(torch.ones(1).double()), ValueError, "labels must be a tensor [4] of -1 and 1, one an input, got torch.float64 [1]"),
        (lambda: head(SIGNS[:3]), ValueError, "labels must be a tensor [4] of -1 and 1, one an input, got torch.float64 [3]"),
        (lambda: head(SIGNS[:, None]), ValueError, "labels must be a tensor [4] of -1 and 1, one an input, got torch.float64 [4, 1]"),
        (lambda: head(SIGNS.tolist()), TypeError, "labels must be a tensor [4] of -1 and 1, one an input, got list; torch.as_tensor"),
        (lambda: head(SIGNS.float()), ValueError, "labels must be float64"),
        (lambda: head(SIGNS.clamp(min=0)), ValueError, "labels must be -1 or 1, got [0.0, 1.0]; write one class against the rest"),
        (lambda: head(v=V[:3]), ValueError, "head must be a tensor [5], a weight for each entry of a token, got torch.float64 [3]"),
        (lambda: head(v=V.float()), ValueError, "head must be float64"),
        (
            lambda: head(v=V.numpy()),
            TypeError,
            "head must be a tensor [5], a weight for each entry of a token, got ndarray; torch.as_tensor",
        ),
        (lambda: head(x=X.numpy()), TypeError, "tokens must be a tensor [n, T, d], got ndarray"),
        (lambda: token_scores(X, V, torch.ones(1).double()), ValueError, "sign must be a tensor [4]"),
        (lambda: analyse(X, Z, SCORES, at=10), TypeError, "at must be a sequence of steps such as (10, 100, 1000), got int"),
        (lambda: analyse(X, Z, SCORES, at="ten"), TypeError, "steps must be a number, got str"),
        (lambda: analyse(X, Z, SCORES, at=(3,), seed="a"), TypeError, "seed must be a number, got str"),
        (lambda: analyse(X, Z, SCORES, at=(3,), seed=-1), ValueError, "seed must be at least 0 and whole, got -1"),
        (lambda: builders.constraints(X, Z, SELECT.to(torch.uint8)), ValueError, "of integers, got torch.uint8 [4]; .long() makes them such"),
    ],
)
def test_data_and_settings_of_an_analysis(call, kind, words):
    refused(call, kind, words)


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: dynamics.JointInstance([1], SIGNS), TypeError, "tokens must be a tensor [..., n, T, d], got list"),
        (lambda: dynamics.JointInstance(X, SIGNS[:2]), ValueError, "labels must be a tensor [4] of -1 and 1"),
        (lambda: dynamics.joint_targets(DATA, SELECT), TypeError, "instance must be a JointInstance, got Instance"),
        (lambda: dynamics.joint_targets(JOINT, torch.tensor([0, 1, 2, 9])), ValueError, "select must lie in [0, 3), got 9"),
        (lambda: dynamics.joint_targets(JOINT, SELECT[:2]), ValueError, "select must have length 4, got 2"),
        (lambda: dynamics.joint_targets(JOINT, SELECT, tol=-1), ValueError, "tol must be at least 0 and finite, got -1"),
        (
            lambda: dynamics.joint_targets(dynamics.JointInstance(X[None], SIGNS[None]), SELECT[None]),
            ValueError,
            "instance must be a single problem, got trials [1]",
        ),
        (lambda: dynamics.joint_descent(JOINT, BEGIN, steps=1, eps=0.1), TypeError, "eps must be a pair of numbers, for p and for v, got 0.1"),
        (lambda: dynamics.joint_descent(JOINT, BEGIN, steps=1, eps=(0.1,)), TypeError, "eps must be a pair of numbers"),
        (lambda: dynamics.HeadInstance(X, Z, SIGNS, None), TypeError, "head must be a function of mixtures, got NoneType"),
        (lambda: dynamics.random_factors(DATA, generator=torch.Generator(), width=1.5), ValueError, "width must be at least 1 and whole"),
        (
            lambda: cross_attention(inputs=1.5, tokens=2, dim=2, generator=torch.Generator()),
            TypeError,
            "inputs must be a whole number",
        ),
    ],
)
def test_problems_and_starts(call, kind, words):
    refused(call, kind, words)


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: next_token.finite_part(GRAPH, EYE, IDS[[0, 0]], NEXT), ValueError, "graph must be that of these ids and labels"),
        (lambda: next_token.finite_part(CYCLE, EYE, IDS[[0, 0]], 0 * NEXT), ValueError, "graph must be that of these ids and labels"),
        (lambda: next_token.finite_part(GRAPH, EYE.float(), IDS, NEXT), ValueError, "embeddings must be float64"),
        (lambda: next_token.finite_part(GRAPH, EYE[:2], IDS, NEXT), ValueError, "embeddings must have one row a token, 3, got 2"),
        (lambda: next_token.finite_part(3, EYE, IDS, NEXT), TypeError, "graph must be a PriorityGraph, got int"),
        (lambda: next_token.finite_part(GRAPH, EYE, IDS, NEXT, tol="a"), TypeError, "tol must be a number, got str"),
        (lambda: finite_span(GRAPH, EYE[:2]), ValueError, "embeddings must have one row a token, 3, got 2"),
        (
            lambda: priority_graph(IDS, NEXT, tokens="3"),
            TypeError,
            "tokens must be a whole number, the size of the vocabulary, got str",
        ),
        (lambda: priority_graph(IDS.to(torch.uint8), NEXT, tokens=3), ValueError, "ids must be a tensor [2, 3] of integers"),
    ],
)
def test_graphs_and_their_finite_part(call, kind, words):
    refused(call, kind, words)


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: selection.locally_optimal(SCORES[:, :2], 0 * SELECT, PAIRS, SOLVED), ValueError, "pairs must be of the 2 tokens"),
        (lambda: selection.locally_optimal(SCORES[:2], SELECT[:2], PAIRS, SOLVED), ValueError, "pairs must be of the 2 inputs"),
        (lambda: selection.locally_optimal(SCORES, SELECT[:2], PAIRS, SOLVED), ValueError, "select must have length 4, got 2"),
        (lambda: selection.locally_optimal(SCORES, SELECT + 3, PAIRS, SOLVED), ValueError, "select must lie in [0, 3)"),
        (lambda: selection.locally_optimal(SELECT, SCORES, PAIRS, SOLVED), ValueError, "scores must be a tensor [n, T], got torch.int64 [4]"),
        (lambda: selection.locally_optimal(SCORES, SELECT, SOLVED, PAIRS), TypeError, "pairs must be Constraints, got MaxMargin"),
        (lambda: selection.locally_optimal(SCORES, SELECT, PAIRS, SOLVED.W), TypeError, "solution must be a MaxMargin, got torch.float64"),
        (
            lambda: selection.locally_optimal(SCORES, SELECT, PAIRS.take(slice(0, 3)), SOLVED),
            ValueError,
            "solution must be that of the 3 pairs, got one of 8 constraints",
        ),
        (lambda: solvers.generalised_max_margin(X, Z, 5 * SHARES), ValueError, "attention must sum to 1 in each input, got 5"),
        (lambda: solvers.generalised_max_margin(X, Z, SHARES * SIGNS[:, None]), ValueError, "attention must be at least 0, got -0."),
        (lambda: solvers.generalised_max_margin(X, Z, SHARES[:2]), ValueError, "attention must be a tensor [4, 3], got torch.float64 [2, 3]"),
        (lambda: alignment([1.0], X, Z, generator=torch.Generator()), TypeError, "W must be a tensor [d, d_z], got list"),
        (lambda: alignment(EYE, X[0], Z, generator=torch.Generator()), ValueError, "tokens must be a tensor [n, T, d], got"),
    ],
)
def test_selections_and_attention(call, kind, words):
    refused(call, kind, words)


def test_attention_in_single_precision_is_attention():
    found = solvers.generalised_max_margin(X, Z, (30 * SCORES).float().softmax(-1).double())
    assert found.direction.kkt < 1e-9


def test_files_that_hold_no_state(tmp_path):
    text, array = tmp_path / "notes.txt", tmp_path / "array.npy"
    text.write_text("0.1 0.2")
    np.save(array, np.ones(3))
    (tmp_path / "empty.npz").touch()
    for path, kind in ((text, "another kind"), (array, "a single array"), (tmp_path / "empty.npz", "another kind")):
        refused(lambda path=path: dynamics.load(path), ValueError, f"{path} must be an npz file of a saved State or Factors, got {kind}; save(")
    with pytest.raises(ValueError, match="got another kind") as raised:
        dynamics.load(text)
    assert "pickle" not in str(raised.value)
    refused(lambda: dynamics.save(3, tmp_path / "x.npz"), TypeError, "state must be a State or Factors, got int")
    assert not (tmp_path / "x.npz").exists()


def test_data_out_of_a_network_are_read_without_their_gradient():
    """Solvers and descent work with numbers; what a network computed is detached, not refused, and the network is left alone."""

    def traced(value):
        return (value * torch.ones((), dtype=torch.float64, requires_grad=True)).requires_grad_()

    plain, found = (analyse(*data, at=(40,)) for data in ((X, Z, SCORES), (traced(X), traced(Z), traced(SCORES))))
    assert str(found) == str(plain)
    assert not found.W.requires_grad
    assert str(head(traced(SIGNS).round(), traced(V), traced(X))) == str(head())
    W = found.W
    one, other = (alignment(w, x, z, generator=torch.Generator().manual_seed(0)) for w, x, z in ((W, X, Z), map(traced, (W, X, Z))))
    assert one == other
    targets = dynamics.joint_targets(dynamics.JointInstance(traced(X), SIGNS, keys=traced(X)), SELECT)
    assert torch.equal(targets.sharp.W, dynamics.joint_targets(JOINT, SELECT).sharp.W)
    shared = solvers.generalised_max_margin(traced(X), traced(Z), traced(SHARES))
    assert not shared.finite.W.requires_grad
    assert torch.equal(next_token.finite_part(GRAPH, traced(EYE), IDS, NEXT), next_token.finite_part(GRAPH, EYE, IDS, NEXT))
    assert not replace(DATA, tokens=traced(X)).tokens.requires_grad

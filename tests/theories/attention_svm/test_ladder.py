"""Tests of the ladder of the attention SVM: its rungs, its quantities, and descent on K, Q and the head."""

from functools import partial
from itertools import pairwise

import pytest
import torch
from torch.nn import functional

from transformer_theory.core.ladder import COLUMNS
from transformer_theory.core.measurement import Measurement, Null
from transformer_theory.theories.attention_svm import THEORY, Instance, ladder
from transformer_theory.theories.attention_svm.dynamics import Factors, random_factors
from transformer_theory.theories.attention_svm.in_networks import COSINE, alignment
from transformer_theory.theories.attention_svm.ladder import LADDER, quantities, trainings
from transformer_theory.theories.attention_svm.ladder.quantities import Head
from transformer_theory.theories.attention_svm.ladder.trainings import POSITION, Pair

RUNGS = {rung.name: rung for rung in LADDER.rungs}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def by_quantity(rows: list[Measurement]) -> dict[str, Measurement]:
    """The rows by quantity; the headline with the second null has the key PERMUTED."""
    return {quantities.PERMUTED if row.setting else row.quantity: row for row in rows}


def measure(name: str, seed: int = 0) -> dict[str, Measurement]:
    rows = list(RUNGS[name].measure(generator(seed)))
    assert sum(row.quantity == COSINE and not row.setting for row in rows) == 1
    assert {(row.kind, row.theory) for row in rows} == {("rung", "attention_svm")}
    assert len({(row.quantity, row.setting) for row in rows}) == len(rows)
    return by_quantity(rows)


def test_rungs_stand_in_the_order_of_the_columns():
    assert THEORY.ladder is LADDER
    columns = [COLUMNS.index(rung.column) for rung in LADDER.rungs]
    assert all(a <= b for a, b in pairwise(columns))
    assert set(columns) == set(range(len(COLUMNS)))
    assert [rung.name for rung in LADDER.rungs if rung.covered] == ["own instances"]
    assert all(rung.relaxes for rung in LADDER.rungs[1:])


def value_of(row: Measurement) -> float:
    assert row.value is not None, row.reason
    return row.value


def null_of(row: Measurement) -> Null:
    assert row.null is not None
    return row.null


def test_descent_reaches_the_limit_where_the_theorem_holds():
    rows = measure("own instances")
    assert rows == measure("own instances")
    assert value_of(rows[COSINE]) > 0.9999
    assert null_of(rows[COSINE]).high < 0.8
    assert len(null_of(rows[COSINE]).draws) == 199
    assert rows[quantities.PERMUTED].value == rows[COSINE].value
    assert null_of(rows[quantities.PERMUTED]).kind == quantities.PERMUTED
    assert len(null_of(rows[quantities.PERMUTED]).draws) == 19
    assert null_of(rows[quantities.PERMUTED]).high < 0.8
    assert rows[quantities.BEST].value == rows[quantities.LOCALLY_OPTIMAL].value == 1.0
    assert value_of(rows[quantities.BEST_COSINE]) == pytest.approx(value_of(rows[COSINE]))


def test_descent_reaches_the_limit_on_few_real_inputs_and_stops_short_of_it_on_many(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ladder, "DESCENT", 2000)
    few, many = measure("16 real inputs", 1), measure("256 real inputs", 1)
    assert few == measure("16 real inputs", 1)
    assert value_of(few[COSINE]) > 0.99
    assert value_of(few[quantities.NORM]) > 7 > value_of(many[quantities.NORM])
    assert null_of(few[COSINE]).median < 0.9
    assert value_of(many[COSINE]) < null_of(many[COSINE]).high
    assert many[quantities.BEST_COSINE].value is None
    assert "infeasible" in many[quantities.BEST_COSINE].reason


def test_other_weights_do_not_have_the_direction():
    pair = Pair.draw(generator(1)).few(16)
    W = ladder._descend(pair.instance).W
    assert (alignment(W, pair.tokens, pair.query, generator=generator(), draws=0).cosine or 0) > 0.99
    assert (alignment(W.T, pair.tokens, pair.query, generator=generator(), draws=0).cosine or 0) < 0.9


def test_the_pair_of_digits_is_balanced_and_no_query_is_blank():
    pair = Pair.draw(generator())
    few = pair.few(16)
    assert few.labels.tolist() == [0] * 8 + [1] * 8
    assert torch.equal(few.head, pair.head)
    assert bool((pair.query != 0).any(-1).all())
    assert torch.equal(pair.query, pair.tokens[:, POSITION])
    assert Pair.draw(generator(1)).digits != pair.digits


def test_descent_on_factors_and_head_is_that_of_automatic_differentiation():
    pair = Pair.draw(generator()).few(16)
    state = random_factors(pair.instance, generator=generator(1))
    end, v = trainings.descend_with_head(pair, state, pair.head, steps=10, rate=0.2)
    weights = [t.clone().requires_grad_() for t in (state.K, state.Q, pair.head)]
    for _ in range(10):
        K, Q, head = weights
        attention = (pair.tokens @ (pair.query @ Q @ K.T)[..., None]).softmax(1)
        loss = functional.softplus(-pair.sign * ((attention * pair.tokens).sum(1) @ head)).mean()
        to_K, to_Q, to_v = torch.autograd.grad(loss, weights)
        with torch.no_grad():
            size = torch.hypot(to_K.norm(), to_Q.norm())
            for weight, gradient in ((K, to_K / size), (Q, to_Q / size), (head, to_v / to_v.norm())):
                weight -= 0.2 * gradient
    for ours, theirs in zip((end.K, end.Q, v), weights):
        torch.testing.assert_close(ours, theirs.detach(), rtol=0, atol=1e-11)
    assert end.step == 10
    assert isinstance(end, Factors)


def test_a_random_token_that_is_a_neighbour_changes_places_with_the_selected_one():
    scores = torch.tensor([[3.0, 2.0, 1.0, 0.0]] * 2, dtype=torch.float64)
    near = torch.tensor([[False, True, False, False]] * 2)
    draws = torch.tensor([[1, 2], [3, 1]])
    # Draw 0: token 1 competes with the selected token 0 and loses; token 2 competes with token 1 and loses.
    assert quantities.random_shares(scores, torch.tensor([0, 0]), near, draws) == (0.0, 0.0)
    # If token 3 is selected, token 1 changes places with it and wins; token 2 competes with token 1 and loses.
    assert quantities.random_shares(scores, torch.tensor([3, 3]), near, draws) == (0.5, 0.5 + 0.0)


def test_only_tokens_with_neighbours_count_as_locally_optimal():
    tokens = torch.tensor([[[2.0, 0.0], [0.0, 0.0], [-5.0, 0.0]], [[9.0, 0.0], [0.0, 0.0], [-9.0, 0.0]]])
    instance = Instance(tokens, torch.ones(2, 1), torch.tensor([[1.0, 2.0, 0.0], [0.0, 1.0, 2.0]]))
    W = torch.tensor([[1.0], [0.0]])
    rows = by_quantity(list(quantities.rows(Head(W, tokens, instance.query, instance.scores), generator())))
    # The first input determines W: its second token is a neighbour of the selected one, and scores higher. The second has no neighbour,
    # so its selected token would be locally optimal for want of a rival.
    assert (rows[quantities.LOCALLY_OPTIMAL].value, rows[quantities.LOCALLY_OPTIMAL].n) == (0.0, 1)
    assert (rows[quantities.BEST].value, rows[quantities.BEST].n) == (0.0, 2)
    assert rows[COSINE].value == pytest.approx(1.0)
    assert rows[quantities.NORM].value == pytest.approx(2.0)


def test_equal_tokens_count_as_one():
    tokens = torch.tensor([[[1.0, 0.0], [1.0, 0.0], [0.0, 0.0]]], dtype=torch.float64)
    instance, W = Instance(tokens, torch.ones(1, 1), torch.zeros(1, 3)), torch.tensor([[50.0], [0.0]], dtype=torch.float64)
    assert quantities.distinct(tokens).tolist() == [[True, False, True]]
    assert quantities.same_token(tokens, torch.tensor([1])).tolist() == [[True, True, False]]
    assert float(quantities.largest_attention(instance, W)) == pytest.approx(1.0)


def test_the_null_repeats_the_few_flips_of_a_small_dimension():
    pair = Pair.draw(generator()).few(4)
    W = torch.randn(4, 4, generator=generator(), dtype=torch.float64)
    null = alignment(W, pair.tokens, pair.query, generator=generator(1), draws=60).null
    assert null is not None
    assert len(null.draws) == 60
    assert 4 < len(set(null.draws)) <= 8
    rows = pair.tokens.reshape(-1, 4)
    axes = torch.linalg.eigh(rows.T @ rows)[1]
    # All flips, up to a common sign: (Q W Q) with Q the reflection along the chosen axes.
    signs = torch.cartesian_prod(*[torch.tensor([1.0, -1.0], dtype=torch.float64)] * 3)
    reflections = [axes @ torch.diag(torch.cat([torch.ones(1), s]).double()) @ axes.T for s in signs]
    expected = [alignment(Q @ W @ Q, pair.tokens, pair.query, generator=generator(), draws=0).cosine or 0.0 for Q in reflections]
    for draw in set(null.draws):
        assert min(abs(draw - value) for value in expected) < 1e-7


def test_weights_without_a_selection_have_reasons():
    pair = Pair.draw(generator()).few(4)
    zero = torch.zeros(4, 4, dtype=torch.float64)
    rows = by_quantity(list(quantities.rows(Head(zero, pair.tokens, pair.query), generator(), no_scores="no head")))
    assert rows[COSINE].value is None
    assert "zero" in rows[COSINE].reason
    assert rows[quantities.LOCALLY_OPTIMAL].reason == rows[quantities.BEST_COSINE].reason == "no head"
    blank = Instance(pair.tokens, torch.zeros_like(pair.query), pair.instance.scores)
    row = quantities.nuclear_row(blank, torch.ones(4, 4, dtype=torch.float64))
    assert row.value is None
    assert row.reason


@pytest.mark.parametrize("name", ["AdamW", "embedding and positions", "LayerNorm and MLP", "two layers"])
def test_trained_networks_have_the_headline_with_its_null(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ladder, "trained", partial(trainings.trained, steps=3))
    monkeypatch.setattr(ladder, "WIDE_DRAWS", 3)
    monkeypatch.setattr(ladder, "MANY", 32)
    rows = measure(name)
    assert 0 < value_of(rows[COSINE]) <= 1
    assert null_of(rows[COSINE]).draws
    assert rows == measure(name)
    linear = name in ("AdamW", "embedding and positions")
    assert (rows[quantities.BEST].value is not None) == linear
    assert bool(rows[quantities.BEST].reason) != linear

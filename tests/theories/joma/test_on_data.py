"""The theory on sequences of discrete tokens: which are selected, what is measured, and when agreement is no
evidence.
"""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from tests.cases import each_case
from transformer_theory import joma
from transformer_theory.core.measurement import Null
from transformer_theory.core.statistics import RANGE_DRAWS, over_seeds
from transformer_theory.core.table import collect
from transformer_theory.core.theory import Unsupported
from transformer_theory.data import TokenData
from transformer_theory.theories.joma import on_data, query_data
from transformer_theory.theories.joma.block import Contexts, Softmax, gaussian_block, sampled_contexts
from transformer_theory.theories.joma.dynamics import Model, gradient_descent
from transformer_theory.theories.joma.invariants import factorisation_error
from transformer_theory.theories.joma.query_data import RARE, QueryData, select_query


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def words(
    *, queries: int = 1, n: int = 60, length: int = 10
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Contexts whose distribution depends on the next token, queries, next tokens."""
    law = torch.rand(3, 8, generator=generator(1), dtype=torch.float64) ** 3
    next_id = torch.arange(n) % 3
    context = torch.multinomial(law[next_id], length, replacement=True, generator=generator(2))
    return context, 20 + torch.arange(n) // 3 % queries, next_id + 25


def token_data(**settings) -> TokenData:
    context, query, following = words(**settings)
    ids = torch.cat([context, query[:, None]], dim=1)
    return TokenData(
        tokens=torch.nn.functional.one_hot(ids, 30).double(), ids=ids, next_id=following, vocab_size=30
    )


@pytest.fixture(scope="module")
def two_queries():
    """The analysis of sequences with two queries, seed 3."""
    return joma.analyse(*words(queries=2), seed=3)


def test_arrays_tensors_and_data_sets_give_the_same_rows(two_queries, request):
    request.getfixturevalue("unchecked")  # the fixture checked the shapes
    context, query, following = words(queries=2)
    again = joma.analyse(context.numpy().astype(np.int32), query.numpy(), following.numpy(), seed=3)
    problem = on_data.read(token_data(queries=2))
    assert isinstance(problem, QueryData)
    rows, arrays = collect(on_data.measure(problem, generator(3), draws=199))
    assert two_queries.table == again.table == rows
    assert two_queries.arrays.keys() == arrays.keys()
    assert all(name.startswith("joma/") for name in arrays)
    assert len(on_data.plot(two_queries).axes) == 3


def test_one_query_keeps_the_exponential_invariant_and_several_do_not(two_queries):
    drift = two_queries.select(quantity=on_data.DRIFT)
    one, several = (
        drift.select(at={"queries": setting}).one() for setting in ("one query", "several queries")
    )
    assert one.value < 1e-6 < 0.05 < several.value
    assert one.verdict is None
    assert several.verdict == "not covered"
    squares, logits = torch.from_numpy(two_queries.arrays["joma/exponential"])
    assert_close(squares, logits, atol=1e-6 * float(logits.abs().max()), rtol=0)
    share = two_queries.select(quantity=on_data.ONE_QUERY).one()
    assert (share.value, share.verdict, share.n) == (0.5, "fails", 60)


def test_the_softmax_invariant_has_a_null(unchecked):  # shapes were checked
    result = joma.analyse(*words(), seed=0)
    assert result.select(quantity=on_data.ONE_QUERY).one().verdict == "holds"
    assert not result.select(at={"queries": "several queries"})
    correlation = result.select(quantity=on_data.SOFTMAX_CORRELATION).one()
    assert correlation.value > correlation.null.mean + 0.3
    for quantity, side in (
        (on_data.SOFTMAX_ERROR, "<="),
        (on_data.SOFTMAX_CORRELATION, ">="),
        (on_data.MOVING_ERROR, "<="),
    ):
        row = result.select(quantity=quantity).one()
        assert row.side == row.op == side
        assert (row.null.kind, len(row.null.draws)) == (on_data.NULL_KIND, RANGE_DRAWS)
        assert over_seeds([row]).p is None  # a null of trainings has no p-value
        assert row.scope == "any data"


def test_the_length_of_the_flow_is_an_argument(unchecked):
    short, long = (joma.analyse(*words(), steps=steps) for steps in (5, 40))
    assert (short.settings, short.arrays["joma/times"][-1]) == ({"steps": 5, "seed": 0}, 2.5)
    assert long.arrays["joma/times"][-1] == 20
    assert np.abs(long.arrays["joma/true"][-1, 0]).max() > np.abs(short.arrays["joma/true"][-1, 0]).max()


def test_contexts_of_one_token_leave_softmax_attention_no_choice():
    result = joma.analyse(*words(length=1))
    row = result.select(quantity=on_data.SOFTMAX_ERROR).one()
    assert row.value is None
    assert row.reason == on_data.NO_CHOICE
    assert result.select(quantity=on_data.DRIFT)
    on_data.plot(result)


def test_sequences_that_cannot_be_used_give_a_reason():
    context, query, _ = words()
    result = joma.analyse(context, query, torch.zeros(60, dtype=torch.long))
    assert "next tokens" in result.table.one().reason
    assert not result.arrays
    on_data.plot(result)
    constant = select_query(torch.zeros(60, 4, dtype=torch.long), query, torch.arange(60) % 3)
    assert isinstance(constant, Unsupported)
    assert "contextual tokens" in constant.reason


def test_data_without_ids_or_context_are_unsupported():
    full = token_data()
    for data, reason in (
        (TokenData(full.tokens), "needs ids and next_id"),
        (TokenData(full.tokens, ids=full.ids), "needs next_id"),
        (
            TokenData(full.tokens[:, -1:], ids=full.ids[:, -1:], next_id=full.next_id),
            "at least one contextual token",
        ),
    ):
        problem = on_data.read(data)
        assert isinstance(problem, Unsupported)
        assert reason in problem.reason


def test_contexts_are_shares_of_tokens():
    context, query, following = words()
    data = select_query(context, query, following)
    assert isinstance(data, QueryData)
    assert data.share == 1
    assert len(data.classes) == 3
    sample = data.sample()
    assert sample.all_queries is None
    for column, word in enumerate(sample.token_ids.tolist()):
        assert sample.one_query.counts[:, column].tolist() == pytest.approx(
            (context == word).double().mean(1).tolist()
        )


def test_rare_tokens_share_a_column(monkeypatch):
    monkeypatch.setattr(query_data, "MAX_TOKENS", 3)
    data = select_query(*words())
    assert isinstance(data, QueryData)
    sample = data.sample()
    assert sample.one_query.counts.shape[1] == 4
    assert int(sample.token_ids[-1]) == RARE
    assert sample.one_query.counts.sum(1).tolist() == pytest.approx([1.0] * 60)


def test_large_data_are_sampled(monkeypatch):
    monkeypatch.setattr(query_data, "MAX_SEQUENCES", 20)
    data = select_query(*words(queries=2))
    assert isinstance(data, QueryData)
    first, again = data.sample(), data.sample()
    assert len(first.one_query.query) == 20
    assert len(first.all_queries.query) == 40
    assert torch.equal(first.one_query.counts, again.one_query.counts)


def test_without_draws_only_the_block_of_the_data_is_trained():
    problem = on_data.read(token_data())
    (rows, arrays), (others, _) = (
        collect(on_data.measure(problem, generator(3), draws=draws, steps=10)) for draws in (0, 3)
    )
    assert arrays["joma/true"].shape[1] == 1
    assert {row.null for row in rows} == {None}
    assert rows.column("value") == pytest.approx(others.column("value"), rel=1e-12)
    assert {len(row.null.draws) for row in others if row.null} == {3}


def test_all_seeds_share_sequences_and_shuffles(monkeypatch):
    """Only the initial weights depend on the generator."""
    monkeypatch.setattr(query_data, "MAX_SEQUENCES", 20)
    targets = []
    monkeypatch.setattr(
        query_data,
        "gradient_flow",
        lambda start, contexts, *_, **__: targets.append(contexts.targets) or 1 / 0,
    )
    for seed in (0, 1):
        with pytest.raises(ZeroDivisionError):
            collect(on_data.measure(on_data.read(token_data()), generator(seed), draws=4))
    assert targets[0].shape == (5, 20)
    assert torch.equal(*targets)


def test_the_fast_dynamics_of_one_query_are_those_of_the_model(unchecked):
    g = generator()
    contexts = sampled_contexts(g)
    runs = Contexts(
        contexts.counts, contexts.query, torch.stack([contexts.targets, contexts.targets.flip(0)])
    )
    settings = {"rate_logits": 0.7, "rate_lower": 1.3, "decay": 0.2}
    block = gaussian_block(runs, units=5, scale=1.0, generator=g, runs=(2,))
    slow, fast = Model(Softmax(0.5), **settings), query_data.OneQuery(Softmax(0.5), **settings)
    velocities = slow.velocity(block, runs), fast.velocity(block, runs)
    for name in ("logits", "lower", "offset"):
        assert_close(*(getattr(velocity, name) for velocity in velocities), rtol=1e-12, atol=1e-14)
    assert_close(slow.mean_loss(block, runs), fast.mean_loss(block, runs), rtol=1e-12, atol=0)
    assert_close(slow.attend(block, runs).mean(-2), fast.attend(block, runs).mean(-2), rtol=1e-12, atol=0)


@pytest.mark.parametrize("n", [2, 3])
def test_a_few_sequences_give_values_or_reasons(n):
    ids = torch.tensor([[1, 2, 9], [1, 3, 9], [2, 2, 9]])[:n]
    data = TokenData(
        tokens=torch.nn.functional.one_hot(ids, 12).double(),
        ids=ids,
        next_id=torch.tensor([10, 11, 10])[:n],
        vocab_size=12,
    )
    rows, _ = collect(on_data.measure(on_data.read(data), generator(), draws=5, steps=6))
    assert len(rows.select(quantity=on_data.SOFTMAX_ERROR)) == 1
    assert all(row.reason if row.value is None else np.isfinite(row.value) for row in rows)


def test_the_median_of_the_null_decides():
    null = Null("x", (0.9, 0.3, 0.9))
    assert on_data.judge_with_null(0.2, null, "<=", 0.5, covered=True) == "consistent"
    assert on_data.judge_with_null(0.2, Null("x", (0.3, 9.0, 0.3)), "<=", 0.5, covered=True) == "inconclusive"
    assert on_data.judge_with_null(0.2, None, "<=", 0.5, covered=True) == "consistent"


@each_case(
    ("value", "null", "verdict"),
    [(0.2, 0.9, "consistent"), (0.2, 0.3, "inconclusive"), (0.8, 0.9, "violated"), (0.8, 0.3, "violated")],
)
def test_agreement_that_the_null_shares_is_no_evidence(value, null, verdict):
    assert on_data.judge_with_null(value, Null("x", (null,)), "<=", 0.5, covered=True) == verdict
    assert on_data.judge_with_null(-value, Null("x", (-null,)), ">=", -0.5, covered=True) == verdict
    assert on_data.judge_with_null(value, Null("x", (null,)), "<=", 0.5, covered=False) == "not covered"


def test_the_error_of_the_factorisation():
    """It is 0 for equal contexts; else it is the difference of dz/dt from a plain sum over samples with b and
    E[g b] apart.
    """
    g = generator()
    contexts, model = sampled_contexts(g), Model(Softmax(0.5), rate_logits=0.7)
    start = gaussian_block(contexts, units=5, scale=1.0, generator=g)
    path = gradient_descent(start, contexts, model, rate=0.1, steps=3, save_steps=(1,))
    error = factorisation_error(model, contexts, path)
    state, n = path.state(1), len(contexts.query)
    b = torch.softmax(state.logits[0] / 0.5 + contexts.counts.log(), dim=-1)
    down = torch.eye(5, dtype=torch.float64)[contexts.targets] - torch.softmax(
        b @ state.lower.T + state.offset[:, 0], dim=-1
    )
    full = sum(torch.outer(b[i], b[i]) @ (down[i] @ state.lower) for i in range(n)) / n
    split = b.mean(0) * sum((down[i] @ state.lower) @ b[i] for i in range(n)) / n
    velocity = sum(b[i] * (down[i] @ state.lower) for i in range(n)) / n - full
    assert_close(error[1], (full - split).norm() / velocity.norm())
    equal = Contexts(contexts.counts.mean(0).expand_as(contexts.counts), contexts.query, contexts.targets)
    path = gradient_descent(start, equal, model, rate=0.1, steps=3)
    assert float(factorisation_error(model, equal, path).max()) < 1e-10


@each_case(
    ("change", "message"),
    [
        ({"ids": np.ones((60, 4))}, r"ids must be an array \[n, context\] of integers, got dtype float64"),
        ({"ids": [[1, 2], [3]]}, "rows of unequal length"),
        ({"query_ids": torch.zeros(60, 2, dtype=torch.long)}, r"query_ids must have shape \[n\]"),
        (
            {"next_ids": torch.zeros(59, dtype=torch.long)},
            "next_ids must have one entry for each of the 60 sequences, got 59",
        ),
        ({"seed": -1}, "seed must be an integer of at least 0, got -1"),
        ({"seed": True}, "seed must be an integer"),
        ({"steps": 0}, "steps must be at least 1, got 0"),
    ],
)
def test_bad_sequences_are_named(unchecked, change, message):
    arguments = dict(zip(("ids", "query_ids", "next_ids"), words()))
    with pytest.raises(ValueError, match=message) as error:
        joma.analyse(**{**arguments, **change})
    assert "\n" not in str(error.value)

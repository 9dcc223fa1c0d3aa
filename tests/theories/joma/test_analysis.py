"""Anyone's sequences: what the analysis holds, how it prints, and where agreement is no evidence."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from transformer_theory import joma
from transformer_theory.core.measurement import check_row, collect
from transformer_theory.data import TokenData
from transformer_theory.theories.joma.analysis_rows import ANSWER, against_null
from transformer_theory.theories.joma.dynamics import Model, train
from transformer_theory.theories.joma.forms import Softmax
from transformer_theory.theories.joma.invariants import unfactored
from transformer_theory.theories.joma.problem import gaussian_block, sampled_contexts


def worded(*, queries: int = 1, n: int = 60, length: int = 10):
    """Contexts whose law depends on the next token, the queries, the next tokens."""
    draw = torch.rand(3, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64) ** 3
    next_id = torch.arange(n) % 3
    context = torch.multinomial(draw[next_id], length, replacement=True, generator=torch.Generator().manual_seed(2))
    return context, 20 + torch.arange(n) // 3 % queries, next_id + 25


def test_the_parts_are_those_of_the_data_set(request):
    """analyse of arrays and of tensors, and the reading of a data set with the same seed, are one."""
    context, query, following = worded(queries=2)
    found = joma.analyse(context, query, following, seed=3)
    request.getfixturevalue("unchecked")  # shapes were checked once
    again = joma.analyse(context.numpy().astype(np.int32), query.numpy(), following.numpy(), seed=3)
    ids = torch.cat([context, query[:, None]], dim=1)
    data = TokenData(tokens=torch.nn.functional.one_hot(ids, 30).double(), ids=ids, next_id=following, vocab_size=30)
    rows, arrays = collect(joma.predict_and_measure(data, torch.Generator().manual_seed(3)))
    assert found.rows() == again.rows() == rows
    assert found.arrays().keys() == arrays.keys()
    assert all(check_row(row) for row in rows)
    assert found.sequences == 60
    assert found.context == 10
    assert found.softmax is not None
    assert found.alone is not None
    assert found.together is not None
    assert found.together.share > 0.05 > 1e-6 > found.alone.share
    assert_close(found.alone.squares, found.alone.logits, atol=1e-6, rtol=0)
    assert repr(found) == "Analysis(sequences=60, context=10, read=30, classes=3)"
    assert "relative error of the softmax invariant:" in str(found)
    found.draw()


def test_a_context_of_one_token_leaves_softmax_attention_no_choice():
    found = joma.analyse(*worded(length=1))
    (row,) = [row for row in found.rows() if row["quantity"] == ANSWER]
    assert row["value"] is None
    assert row["verdict"] == "not applicable: softmax attention has no choice in contexts of a single token"
    assert found.softmax is None
    assert all(row["value"] is None or np.isfinite(row["value"]) for row in found.rows())
    assert len([row for row in found.rows() if "softmax" in row["quantity"]]) == 1
    found.draw()


def test_what_cannot_be_read_is_part_of_the_result():
    context, query, _ = worded()
    found = joma.analyse(context, query, torch.zeros(60, dtype=torch.long))
    assert found.subject == "needs at least two next tokens after the same query, got one in 60 sequences"
    assert str(found).endswith(f"not applicable: {found.subject}")
    assert not found.arrays()
    assert "unread=" in repr(found)
    found.draw()


@pytest.mark.parametrize(
    ("value", "null", "verdict"),
    [(0.2, 0.9, "consistent"), (0.2, 0.3, "inconclusive"), (0.8, 0.9, "violated"), (0.8, 0.3, "violated")],
)
def test_agreement_that_the_null_has_too_is_no_evidence(value, null, verdict):
    assert against_null(value, null, 0.5, "<=", met=True).verdict == verdict
    assert against_null(-value, -null, -0.5, ">=", met=True).verdict == verdict
    assert against_null(value, null, 0.5, "<=", met=False).verdict == "outside assumptions"


def test_every_softmax_row_has_a_null(unchecked):
    rows = [row for row in joma.analyse(*worded()).rows() if ("bound" in row and row["quantity"] == ANSWER) or "moment" in row["quantity"]]
    assert len(rows) >= 2
    assert all("null" in row for row in rows if "relative error" in row["quantity"])


def test_what_the_factorisation_leaves_out():
    """Nothing where all contexts are alike; else by how much dz/dt differs from a plain sum over samples with b and E[g b] apart."""
    generator = torch.Generator().manual_seed(0)
    contexts, model = sampled_contexts(generator), Model(Softmax(0.5), rate_logits=0.7)
    start = gaussian_block(contexts, units=5, scale=1.0, generator=generator)
    path = train(start, contexts, model, step=0.1, steps=3, keep=(1,))
    found = unfactored(model, contexts, path)
    state, n = path.at(1), len(contexts.query)
    b = torch.softmax(state.logits[0] / 0.5 + contexts.counts.log(), dim=-1)
    g = torch.eye(5, dtype=torch.float64)[contexts.targets] - torch.softmax(b @ state.lower.T + state.offset[:, 0], dim=-1)
    full = sum(torch.outer(b[i], b[i]) @ (g[i] @ state.lower) for i in range(n)) / n
    split = b.mean(0) * sum((g[i] @ state.lower) @ b[i] for i in range(n)) / n
    whole = sum(b[i] * (g[i] @ state.lower) for i in range(n)) / n - full
    assert_close(found[1], (full - split).norm() / whole.norm())
    alike = type(contexts)(contexts.counts.mean(0).expand_as(contexts.counts), contexts.query, contexts.targets)
    assert float(unfactored(model, alike, train(start, alike, model, step=0.1, steps=3)).max()) < 1e-10


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ids": np.ones((60, 4))}, r"ids must be an array \[n, context\] of whole numbers, got dtype float64"),
        ({"ids": [[1, 2], [3]]}, "rows of unequal length"),
        ({"query_ids": torch.zeros(60, 2, dtype=torch.long)}, r"query_ids must have shape \[n\]"),
        ({"next_ids": torch.zeros(59, dtype=torch.long)}, "next_ids must have one entry for each of the 60 sequences, got 59"),
        ({"seed": -1}, "seed must be a whole number of at least 0, got -1"),
        ({"seed": True}, "seed must be a whole number"),
    ],
)
def test_bad_sequences_are_named(unchecked, change, words):
    given = dict(zip(("ids", "query_ids", "next_ids"), worded()))
    with pytest.raises(ValueError, match=words) as error:
        joma.analyse(**{**given, **change})
    assert "\n" not in str(error.value)

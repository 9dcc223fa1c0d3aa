"""The builders of constraints against loops that spell the definitions out."""

import pytest
import torch

from tests.cases import each_case
from transformer_theory.theories.attention_svm import builders
from transformer_theory.theories.attention_svm.graph import priority_graph


def gaussian(*size: int, seed: int = 0):
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def positions(*size: int, below: int, seed: int = 0):
    return torch.randint(below, size, generator=torch.Generator().manual_seed(seed))


def same(pairs, expected):
    """The constraints are those listed as (difference, query, rhs, equality, input, token, position), in this
    order.
    """
    assert len(pairs) == len(expected)
    names = ("difference", "query", "rhs", "equality", "input", "token", "position")
    for c, row in enumerate(expected):
        for name, value in zip(names, row):
            torch.testing.assert_close(
                getattr(pairs, name)[c],
                torch.as_tensor(value, dtype=getattr(pairs, name).dtype),
                rtol=0,
                atol=0,
            )


@pytest.mark.parametrize("position", [0, 2, -1])
def test_in_self_attention_the_query_is_a_token_of_the_input(position):
    x, select = gaussian(3, 4, 5), positions(3, below=4)
    expected = [
        (x[i, select[i]] - x[i, t], x[i, position], 1.0, False, i, t, position % 4)
        for i in range(3)
        for t in range(4)
        if t != select[i]
    ]
    same(builders.self_attention(x, select, position=position), expected)


def test_a_prompt_is_a_matrix_with_one_column():
    keys, select = gaussian(3, 4, 5), positions(3, below=4)
    pairs = builders.prompt(keys, select)
    assert pairs.query.shape == (9, 1)
    p = gaussian(5, seed=1)
    margins = torch.stack(
        [(keys[i, select[i]] - keys[i, t]) @ p for i in range(3) for t in range(4) if t != select[i]]
    )
    torch.testing.assert_close(pairs.margins(p[:, None]), margins)


def test_sequence_to_sequence_lists_every_query_and_every_allowed_token():
    x, z, select = gaussian(2, 4, 3), gaussian(2, 3, 5, seed=1), positions(2, 3, below=4)
    allowed = torch.rand(2, 3, 4, generator=torch.Generator().manual_seed(2)) < 0.5
    allowed.scatter_(-1, select[..., None], True)
    rows = [
        (x[i, select[i, k]] - x[i, t], z[i, k], 1.0, False, i, t, k)
        for i in range(2)
        for k in range(3)
        for t in range(4)
        if t != select[i, k]
    ]
    same(builders.sequence_to_sequence(x, z, select), rows)
    same(
        builders.sequence_to_sequence(x, z, select, allowed=allowed),
        [row for row in rows if allowed[row[4], row[6], row[5]]],
    )


def test_causal_attention_looks_back_only():
    x = gaussian(2, 4, 3)
    select = torch.tensor([[0, 1, 0, 3], [0, 0, 2, 1]])
    pairs = builders.causal(x, select)
    assert len(pairs) == 2 * 4 * 3 // 2
    expected = [
        (x[i, select[i, k]] - x[i, t], x[i, k], 1.0, False, i, t, k)
        for i in range(2)
        for k in range(4)
        for t in range(k + 1)
        if t != select[i, k]
    ]
    same(pairs, expected)


def test_several_chosen_tokens_score_alike_and_above_the_others():
    x, z = gaussian(2, 4, 3), gaussian(2, 5, seed=1)
    chosen = torch.tensor([[False, True, False, True], [True, False, False, False]])
    logits = torch.tensor([[torch.nan, 0.3, -torch.inf, -1.2], [4.0, 0.0, 0.0, 0.0]], dtype=torch.float64)

    def rows(level):
        return [
            (x[i, r] - x[i, t], z[i], level(i, r, t) if chosen[i, t] else 1.0, chosen[i, t], i, t, 0)
            for i, r in ((0, 1), (1, 0))
            for t in range(4)
            if t != r
        ]

    same(builders.multi_token(x, z, chosen), rows(lambda i, r, t: 0.0))
    same(builders.multi_token(x, z, chosen, logits=logits), rows(lambda i, r, t: logits[i, r] - logits[i, t]))


def test_weights_meet_the_constraints_of_their_own_logits():
    x, z, W = gaussian(3, 4, 5), gaussian(3, 5, seed=1), gaussian(5, 5, seed=2)
    logits = (x @ (z @ W.T)[..., None]).squeeze(-1)
    pairs = builders.multi_token(
        x, z, logits > logits.median(-1, keepdim=True).values, logits=logits.log_softmax(-1)
    )
    assert pairs.equality is not None
    assert pairs.rhs is not None
    assert int(pairs.equality.sum()) == 3
    torch.testing.assert_close(pairs.margins(W)[pairs.equality], pairs.rhs[pairs.equality])


def test_the_graph_ties_components_and_orders_them():
    e = gaussian(5, 4)
    ids, labels = torch.tensor([[0, 1, 4], [1, 0, 4], [1, 2, 4], [3, 2, 0]]), torch.tensor([0, 1, 1, 2])
    graph = priority_graph(ids, labels, tokens=5)
    # after 4: 0 -> 1, 1 -> 0 (one component), both -> 4, 1 -> 2; after 0: 2 -> 3, 2 -> 0
    triples = [(4, 0, 1, True), (0, 2, 0, False), (0, 2, 3, False), (4, 0, 2, False), (4, 0, 4, False)]
    same(
        builders.graph_svm(graph, e),
        [(e[i] - e[j], e[k], float(not tied), tied, k, j, 0) for k, i, j, tied in triples],
    )


@each_case(
    "build",
    [
        lambda x, s: builders.self_attention(x, s, position=1),
        builders.prompt,
        lambda x, s: builders.causal(x, torch.minimum(torch.stack([s] * 4, -1), torch.arange(4))),
        lambda x, s: builders.multi_token(x, x[..., 0, :], torch.nn.functional.one_hot(s, 4).bool()),
        lambda x, s: builders.sequence_to_sequence(x, x[..., :2, :], torch.stack([s, s], -1)),
    ],
)
def test_a_batch_of_trials_lists_the_constraints_of_each_trial(build):
    x, select = gaussian(3, 2, 4, 5), positions(3, 2, below=4)
    together = build(x, select)
    assert together.batch == (3,)
    for trial in range(3):
        alone, one = build(x[trial], select[trial]), together.problem(trial)
        for name in ("difference", "query", "rhs", "equality", "input", "token", "position"):
            torch.testing.assert_close(getattr(one, name), getattr(alone, name), rtol=0, atol=0)


def test_a_single_token_leaves_nothing_to_select():
    x, one = gaussian(3, 1, 4), torch.zeros(3, dtype=torch.long)
    assert (
        len(builders.self_attention(x, one))
        == len(builders.prompt(x, one))
        == len(builders.causal(x, one[:, None]))
        == 0
    )
    assert len(builders.multi_token(x, x[:, 0], torch.ones(3, 1, dtype=torch.bool))) == 0


@each_case(
    ("build", "message"),
    [
        (
            lambda x: builders.self_attention(x, torch.zeros(2).long(), position=4),
            r"position must lie in \[-4, 4\), got 4",
        ),
        (
            lambda x: builders.self_attention(x[0], torch.zeros(2).long()),
            r"tokens must be a tensor \[..., n, T, d\]",
        ),
        (lambda x: builders.self_attention(x[:0], torch.zeros(0).long()), "at least one input"),
        (lambda x: builders.prompt(x, torch.tensor([0, 4])), r"select must lie in \[0, 4\), got 4"),
        (lambda x: builders.prompt(x / 0, torch.zeros(2).long()), "keys must be finite"),
        (
            lambda x: builders.causal(x, torch.tensor([[0, 0, 3, 0], [0, 0, 0, 0]])),
            "query 2 of input 0 may not attend",
        ),
        (lambda x: builders.causal(x, torch.zeros(2, 3).long()), r"select must have shape \[2, 4\]"),
        (
            lambda x: builders.sequence_to_sequence(x, x[:1], torch.zeros(1, 4).long()),
            r"queries must .*\[1, 4, 3\]",
        ),
        (
            lambda x: builders.sequence_to_sequence(
                x, x, torch.zeros(2, 4).long(), allowed=torch.ones(4, 4).bool()
            ),
            r"allowed must .*\[2, 4, 4\]",
        ),
        (lambda x: builders.multi_token(x, x[:, 0], torch.zeros(2, 4).bool()), "none for input 0"),
        (lambda x: builders.multi_token(x, x[:, 0], torch.zeros(2, 4)), "booleans"),
        (
            lambda x: builders.multi_token(x, x[:, 0], torch.ones(2, 4).bool(), logits=x[..., 0] / 0),
            "logits of chosen tokens must be finite",
        ),
        (
            lambda x: builders.graph_svm(
                priority_graph(torch.tensor([[0, 1]]), torch.tensor([0]), tokens=3), x[0]
            ),
            "embeddings must .* 3, got 4",
        ),
    ],
)
def test_bad_input_is_named(build, message, unchecked):
    with pytest.raises((TypeError, ValueError), match=message):
        build(gaussian(2, 4, 3))

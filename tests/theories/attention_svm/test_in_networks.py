"""Alignment of trained heads, its null distribution and its metric."""

import pytest
import torch

from tests.cases import each_case
from transformer_theory.core.metric import Activations
from transformer_theory.core.table import Table
from transformer_theory.theories import attention_svm
from transformer_theory.theories.attention_svm.builders import distinct_constraints
from transformer_theory.theories.attention_svm.in_networks import (
    COSINE,
    FOREIGN_TOKENS,
    MARGIN,
    AlignmentMetric,
)
from transformer_theory.theories.attention_svm.solvers import dual_multipliers, many_dual_multipliers


def gaussian(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


# ---- alignment


def test_a_max_margin_matrix_is_aligned_with_itself(generator):
    x, z = gaussian(8, 5, 16), gaussian(8, 16, seed=1)
    select = torch.randint(5, (8,), generator=generator)
    W = attention_svm.frobenius_max_margin(attention_svm.constraints(x, z, select)).W
    found = attention_svm.alignment(7.0 * W, x, z, generator=generator)
    assert found.cosine == pytest.approx(1)
    assert found.margin == pytest.approx(1)
    assert found.null is not None
    assert found.null.mean < 0.5
    assert found.constraints == 32


@each_case(("n", "dim", "expected"), [(8, 64, 0.08), (16, 64, 0.11), (32, 64, 0.16), (16, 16, 0.41)])
def test_the_chance_level_of_random_weights_is_not_zero(n, dim, expected, generator):
    found = attention_svm.alignment(
        gaussian(dim, dim),
        gaussian(n, 17, dim, seed=1),
        gaussian(n, dim, seed=2),
        generator=generator,
        constraints=600,
        draws=8,
    )
    assert found.constraints == 16 * n
    assert found.null is not None
    assert found.null.mean == pytest.approx(expected, abs=0.04)
    assert len(found.null.draws) == 8
    assert found.cosine == pytest.approx(expected, abs=0.07)


def test_random_tied_heads_are_at_chance():
    """W = U U^T selects mostly each token for itself, which is not alignment: the null has that
    symmetry too.
    """
    above = []
    for seed in range(4):
        U, x = gaussian(96, 24, seed=seed), gaussian(16, 17, 96, seed=10 + seed)
        found = attention_svm.alignment(U @ U.T, x, x, generator=torch.Generator().manual_seed(seed), draws=4)
        assert found.cosine is not None
        assert found.null is not None
        assert found.null.mean > 0.12  # a rotation of each side on its own gives about .07
        above.append(found.cosine - found.null.mean)
    assert abs(sum(above) / 4) < 0.02


def correlated(seed, *size):
    """Gaussian tokens whose covariance C has eigenvalues from 1 to .01 along random axes, and C^1/2."""
    d = size[-1]
    axes = torch.linalg.qr(gaussian(d, d, seed=seed))[0]
    root = (axes * torch.logspace(0, -1, d, dtype=torch.float64)) @ axes.T
    return gaussian(*size, seed=100 + seed) @ root, root


@pytest.mark.parametrize(
    ("weights", "cosine"),
    [
        (lambda root, seed: gaussian(48, 48, seed=seed), 0.14),
        (lambda root, seed: root @ gaussian(48, 48, seed=seed) @ root, 0.26),
        (lambda root, seed: (lambda U: U @ U.T)(root @ gaussian(48, 12, seed=seed)), 0.32),
    ],
)
def test_weights_shaped_like_the_covariance_are_at_chance(weights, cosine):
    """A null of random rotations would be .13, .13 and .16 for these."""
    cosines, above = [], []
    for seed in range(5):
        x, root = correlated(seed, 64, 17, 48)
        found = attention_svm.alignment(
            weights(root, 200 + seed), x, x, generator=torch.Generator().manual_seed(seed), draws=6
        )
        assert found.cosine is not None
        assert found.null is not None
        cosines.append(found.cosine)
        above.append(found.cosine - found.null.mean)
    assert sum(cosines) / 5 == pytest.approx(cosine, abs=0.03)
    assert abs(sum(above) / 5) < 0.03


def test_separate_queries_have_separate_axes():
    above = []
    for seed in range(5):
        x, left = correlated(seed, 16, 17, 48)
        z, right = correlated(50 + seed, 400, 48)
        many = torch.stack([z[i::16] for i in range(16)])  # 25 queries per input
        W = left @ gaussian(48, 48, seed=200 + seed) @ right
        found = attention_svm.alignment(W, x, many, generator=torch.Generator().manual_seed(seed), draws=6)
        assert found.cosine is not None
        assert found.null is not None
        above.append(found.cosine - found.null.mean)
    assert abs(sum(above) / 5) < 0.03  # the same axes for both leave .06


def test_heads_trained_by_descent_are_far_above_chance_on_correlated_tokens():
    x, _ = correlated(0, 16, 17, 48)
    instance = attention_svm.Instance(
        x, x[:, 0].contiguous(), torch.nn.functional.one_hot(torch.arange(16), 17).double()
    )
    W = attention_svm.normalised_descent(instance, attention_svm.start(instance), steps=1500).W
    found = attention_svm.alignment(W, x, x[:, 0], generator=torch.Generator().manual_seed(0), draws=6)
    assert found.cosine is not None
    assert found.null is not None
    assert found.cosine > 0.98
    assert 0.15 < found.null.mean < 0.35


def test_alignment_does_not_depend_on_scale_or_coordinates():
    W, x = gaussian(10, 10), gaussian(6, 5, 10, seed=1)
    q = torch.linalg.qr(gaussian(10, 10, seed=3))[0]
    for z, turned_z in ((x, x @ q.T), (gaussian(6, 10, seed=2), gaussian(6, 10, seed=2) @ q.T)):
        plain = attention_svm.alignment(W, x, z, generator=torch.Generator().manual_seed(0))
        turned = attention_svm.alignment(
            30 * q @ W @ q.T, x @ q.T, turned_z, generator=torch.Generator().manual_seed(0)
        )
        assert turned.cosine == pytest.approx(plain.cosine)
        assert turned.margin == pytest.approx(plain.margin)
        assert turned.null is not None
        assert plain.null is not None
        assert turned.null.draws == pytest.approx(plain.null.draws)  # the axes turn with the tokens


def test_equal_tokens_count_as_one():
    x, W = gaussian(8, 5, 12), gaussian(12, 12, seed=1)
    twice = torch.cat([x, x[:, :3]], 1)
    plain, doubled = (
        attention_svm.alignment(W, v, x[:, 0], generator=torch.Generator().manual_seed(0)) for v in (x, twice)
    )
    assert doubled.cosine == pytest.approx(plain.cosine)
    assert doubled.margin == pytest.approx(plain.margin)
    assert doubled.null is not None


@each_case(
    ("W", "x", "reason"),
    [
        (gaussian(4, 4), gaussian(3, 1, 4), "single token"),
        (torch.zeros(4, 4, dtype=torch.float64), gaussian(3, 5, 4), "W is zero"),
        (gaussian(4, 4), torch.ones(3, 5, 4, dtype=torch.float64), "all tokens of each input are equal"),
        (
            torch.diag(torch.tensor([1.0, 0, 0, 0])).double(),
            torch.eye(4).double()[None],
            "different tokens the same",
        ),
    ],
)
def test_a_missing_direction_has_a_reason(W, x, reason, generator):
    z = torch.ones(len(x), 4, dtype=torch.float64)
    if "same" in reason:
        z[:, 0] = 0  # every token scores zero
    found = attention_svm.alignment(W, x, z, generator=generator)
    assert found.cosine is None
    assert reason in found.reason


def test_alignment_refuses_bad_input(generator, unchecked):
    with pytest.raises(ValueError, match=r"W must be \[4, 4\]"):
        attention_svm.alignment(gaussian(3, 4), gaussian(2, 5, 4), gaussian(2, 4), generator=generator)
    with pytest.raises(ValueError, match="finite"):
        attention_svm.alignment(gaussian(4, 4) / 0, gaussian(2, 5, 4), gaussian(2, 4), generator=generator)


@pytest.mark.parametrize("dim", [8, 24, 96])
def test_multipliers_from_inner_products_are_those_of_the_solver(dim):
    for seed in range(10):
        W, x, z = (
            gaussian(dim, dim, seed=seed),
            gaussian(4, 17, dim, seed=10 + seed),
            gaussian(4, dim, seed=20 + seed),
        )
        pairs = attention_svm.constraints(x, z, (x @ (z @ W.T)[..., None]).squeeze(-1).argmax(-1))
        solution, multipliers = attention_svm.frobenius_max_margin(pairs), dual_multipliers(pairs.gram())
        assert multipliers is not None
        torch.testing.assert_close(
            pairs.combine(multipliers), solution.W, rtol=1e-7, atol=1e-9 * solution.norm
        )
        assert float(multipliers.sum()) ** 0.5 == pytest.approx(solution.norm, rel=1e-9)
    assert dual_multipliers(torch.zeros(2, 2, dtype=torch.float64)) is None
    opposed = torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=torch.float64)
    assert dual_multipliers(opposed) is None  # infeasible


@pytest.mark.parametrize("dim", [8, 24, 96])
def test_a_batch_of_multipliers_is_that_of_single_problems(dim):
    x, z = gaussian(40, 4, 17, dim), gaussian(40, 4, dim, seed=1)
    x[0, 0, 3] = x[0, 0, 5]  # an omitted constraint has a zero difference
    difference = (x[:, :, :1] - x[:, :, 1:]).flatten(1, 2)
    difference[0, 2] = 0
    query = z.repeat_interleave(16, dim=1)
    gram, counted = (difference @ difference.mT) * (query @ query.mT), difference.any(-1)
    multipliers, solved = many_dual_multipliers(gram, counted)
    assert int(solved.sum()) >= (39 if dim > 8 else 0)  # up to d constraints per query are independent
    for b in solved.nonzero().squeeze(-1).tolist():
        kept = counted[b]
        expected = dual_multipliers(gram[b][kept][:, kept])
        torch.testing.assert_close(multipliers[b, kept], expected, rtol=1e-7, atol=1e-9)
        assert not multipliers[b, ~kept].any()


def test_a_head_in_a_module_is_measured_as_on_its_own():
    """The heads and draws of a module are solved in one batch; duplicates and ties leave it."""
    tokens, heads = gaussian(20, 9, 12), gaussian(3, 12, 12, seed=1)
    tokens[3, 4] = tokens[3, 5]
    heads[1] = 0
    together = measured_by(seen(tokens, heads))._alignments((0, 0), 3, None)
    assert together[1].reason.startswith("W is zero")
    for head in (0, 2):
        subset = torch.Generator().manual_seed(0)
        pairs = torch.randperm(180, generator=subset)[: 85 // 5]  # 85 constraints for 16 queries: 5 each
        z, keys = tokens[pairs // 9, pairs % 9], torch.rand(17, 9, generator=subset).argsort(1)[:, :6]
        x = torch.stack([tokens[pair // 9][own.sort().values] for pair, own in zip(pairs, keys)])
        chosen = (x @ (z @ heads[head].T)[..., None]).squeeze(-1).argmax(-1)
        solution = attention_svm.frobenius_max_margin(distinct_constraints(x, z, chosen))
        expected = float((heads[head] * solution.W).sum() / heads[head].norm() / solution.norm)
        assert together[head].cosine == pytest.approx(expected, abs=1e-9)
        assert len(together[head].null.draws) == 3


def test_alignment_takes_numpy_arrays_and_float32():
    W, x = gaussian(6, 6), gaussian(4, 5, 6, seed=1)
    exact, other = (
        attention_svm.alignment(*data, generator=torch.Generator().manual_seed(0))
        for data in ((W, x, x), (W.numpy(), x.numpy(), x.numpy()))
    )
    assert exact == other
    single = attention_svm.alignment(
        W.float(), x.float(), x.float(), generator=torch.Generator().manual_seed(0)
    )
    assert single.cosine == pytest.approx(exact.cosine, abs=1e-3)


# ---- the metric


def seen(tokens, heads, layer=0):
    return Activations("block", layer, "attention", tokens, tokens, bilinear=heads)


def measured_by(*activations):
    metric = AlignmentMetric()
    for one in activations:
        metric.update(one)
    return metric


def test_the_metric_measures_every_head_and_forgets_on_reset():
    tokens, heads = gaussian(20, 9, 12, dtype=torch.float32), gaussian(2, 12, 12, seed=1, dtype=torch.float32)
    metric = measured_by(
        seen(tokens, heads), seen(tokens, heads, layer=1), Activations("mlp", 1, "features", tokens, tokens)
    )
    table = Table(metric.compute())
    assert [(row.layer, row.head) for row in table.select(quantity=COSINE)] == [
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
    ]
    assert {row.quantity for row in table} == {COSINE, MARGIN}
    assert attention_svm.THEORY.in_networks is not None
    assert attention_svm.THEORY.in_networks.headline == COSINE
    assert {(row.theory, row.kind, row.scope, row.n) for row in table} == {
        ("attention_svm", "in network", "training", 20)
    }
    for row in table:
        assert row.value is not None
        assert 0 < row.value < 1
        assert row.null is None
        assert row.side == ">="
    with_null = Table(metric.compute(draws=2))
    assert with_null.column("value") == table.column("value")
    assert [row.null is not None for row in with_null] == [row.quantity == COSINE for row in with_null]
    assert list(table) == metric.compute()
    metric.reset()
    assert metric.compute() == []


def test_the_caller_chooses_the_number_of_draws():
    metric = measured_by(seen(gaussian(20, 9, 12), gaussian(1, 12, 12, seed=1)))
    none, few, many, most = (
        Table(metric.compute(draws=draws)).select(quantity=COSINE).one().null for draws in (0, 2, 19, 199)
    )
    assert none is None
    assert (len(few.draws), len(many.draws)) == (2, 19)
    assert many.draws[:2] == pytest.approx(few.draws, rel=1e-9)
    assert most == many  # expensive, so never more than 19
    other = (
        Table(metric.compute(draws=2, generator=torch.Generator().manual_seed(5)))
        .select(quantity=COSINE)
        .one()
        .null
    )
    assert other != few


def test_batches_processes_and_stored_states_add_up():
    tokens, heads = gaussian(20, 9, 12), gaussian(1, 12, 12, seed=1)
    whole, batched = (
        measured_by(seen(tokens, heads)),
        measured_by(seen(tokens[:7], heads), seen(tokens[7:], heads)),
    )
    first, second = measured_by(seen(tokens[:7], heads)), measured_by(seen(tokens[7:], heads))
    first.merge(second)
    restored = AlignmentMetric()
    restored.load_state_dict(whole.state_dict())
    assert whole.compute() == batched.compute() == first.compute() == restored.compute()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_w_and_its_two_projections_have_the_same_rows(dtype):
    tokens = gaussian(20, 9, 12) * torch.linspace(2, 0.2, 12)
    keys, queries = gaussian(3, 4, 12, seed=1), gaussian(3, 4, 12, seed=2)
    keys[1], queries[1] = 1e18 * keys[1], 1e18 * queries[1]  # W = 1e36, whose square is no float32
    keys[2, :, 6:], queries[2, :, :6] = 0.0, 0.0
    whole = measured_by(seen(tokens, keys.mT @ queries))
    maps = {"key_map": keys.to(dtype), "query_map": queries.to(dtype)}
    parts = measured_by(Activations("block", 0, "attention", tokens, tokens, **maps))
    assert parts.sums[0, 0, 1].data_ptr() != maps["query_map"].data_ptr()
    restored = AlignmentMetric()
    restored.load_state_dict(parts.state_dict())
    assert restored.compute(draws=19) == parts.compute(draws=19)
    rows, expected = parts.compute(draws=19), whole.compute(draws=19)
    assert len(rows) == len(expected) == 6
    close = {"rel": 1e-3 if dtype == torch.float32 else 1e-8}
    for row, other in zip(rows, expected):
        assert (row.quantity, row.head, row.n, row.note) == (other.quantity, other.head, other.n, other.note)
        assert row.value == pytest.approx(other.value, **close)
        if row.quantity == COSINE:
            assert row.null.draws == pytest.approx(other.null.draws, **close)


def test_projections_whose_product_is_zero_select_nothing():
    """Keys are read from the first half of the entries, and written by queries into the second half."""
    keys, queries = torch.zeros(1, 4, 6), torch.zeros(1, 4, 6)
    keys[0, :2], queries[0, 2:] = gaussian(2, 6, dtype=torch.float32), gaussian(2, 6, dtype=torch.float32)
    tokens = gaussian(4, 5, 6, dtype=torch.float32)
    (row,) = measured_by(
        Activations("block", 0, "attention", tokens, tokens, key_map=keys, query_map=queries)
    ).compute()
    assert row.value is None
    assert "all tokens" in row.reason or "tied" in row.reason or "same" in row.reason


def test_the_norm_of_w_is_found_although_hardly_anything_of_its_projections_meets():
    """K K^T and Q Q^T are near 1, W is 1e-6: their product cancels to ten digits."""
    tokens, small = gaussian(20, 9, 12), 1e-6 * gaussian(2, 12, seed=3)
    keys, queries = torch.zeros(1, 4, 12, dtype=torch.float64), torch.zeros(1, 4, 12, dtype=torch.float64)
    keys[0, :2], queries[0, 2:] = gaussian(2, 12), gaussian(2, 12, seed=1)
    keys[0, 2:], queries[0, :2] = small, gaussian(2, 12, seed=2) * 1e-6
    activations = Activations("block", 0, "attention", tokens, tokens, key_map=keys, query_map=queries)
    rows = measured_by(activations).compute(draws=3)
    expected = measured_by(seen(tokens, keys.mT @ queries)).compute(draws=3)
    for row, other in zip(rows, expected):
        assert row.value == pytest.approx(other.value, rel=1e-6)


def test_a_head_that_selects_nothing_has_a_reason():
    (row,) = measured_by(seen(gaussian(4, 5, 6), torch.zeros(1, 6, 6, dtype=torch.float64))).compute()
    assert row.value is None
    assert "W is zero" in row.reason


def test_the_constraints_of_a_module_are_divided_among_its_heads():
    # eight per query with one head, otherwise four among five tokens, and at least sixteen queries
    for heads, queries, expected in ((1, 32, 256), (4, 16, 64), (8, 16, 64), (64, 16, 64)):
        metric = measured_by(seen(gaussian(30, 9, 12), gaussian(heads, 12, 12, seed=1)))
        for alignment in metric._alignments((0, 0), 1, None):
            assert (alignment.queries, alignment.constraints) == (queries, expected)


def test_long_sequences_have_as_many_queries():
    """One query of one sequence would give any head its noise."""
    metric = measured_by(seen(gaussian(20, 1024, 12), gaussian(12, 12, 12, seed=1)))
    assert metric.tokens((0, 0)).shape == (16, 1024, 12)
    assert {alignment.queries for alignment in metric._alignments((0, 0), 1, None)} == {16}


@pytest.mark.parametrize(("samples", "predicted"), [(3, 1.0), (4, None)])
def test_a_cosine_of_1_is_predicted_for_all_constraints_only(samples, predicted):
    """The 256 constraints of a head are those of all 27 positions of three sequences of nine tokens, and of
    32 of the 36 of four.
    """
    rows = measured_by(seen(gaussian(samples, 9, 12), gaussian(1, 12, 12, seed=1))).compute()
    assert [row.predicted for row in rows] == [predicted] * 2
    assert {row.basis for row in rows} == ({"limit"} if predicted else {"theory"})


def test_sequences_and_heads_that_are_not_finite_are_dropped():
    tokens, heads = gaussian(20, 9, 12), gaussian(2, 12, 12, seed=1)
    spoilt = torch.cat([tokens[:5], tokens[:3] / 0, tokens[5:]])
    heads[1, 0, 0] = torch.nan
    rows = measured_by(seen(tokens, heads)).compute()
    assert rows == measured_by(seen(spoilt, heads)).compute()
    assert [row.value is None for row in rows] == [False, False, True]
    assert "not finite" in rows[-1].reason


@pytest.mark.parametrize("length", [9, 4, 12])
def test_attention_to_other_tokens_does_not_count_as_self_attention(length):
    """The heads of a second attention of a block are counted on; its W acts on tokens that the probe does not
    see.
    """
    x, memory, (K, Q) = gaussian(6, 9, 12), gaussian(6, length, 12, seed=1), gaussian(2, 2, 12, 4, seed=2)
    metric = AlignmentMetric()
    for first, keys in ((0, x), (2, memory)):
        query, key = (y[:, None] @ P + 3.0 for y, P in ((x, Q), (keys, K)))  # biases change nothing
        metric.update(
            Activations("m", 0, "attention", x, x, query=query, key=key, bilinear=K @ Q.mT, first_head=first)
        )
    rows = {row.head: row for row in metric.compute() if row.quantity == COSINE}
    assert sorted(rows) == [0, 1, 2, 3]
    assert all(rows[head].value is not None for head in (0, 1))
    assert all(rows[head].reason == FOREIGN_TOKENS for head in (2, 3))

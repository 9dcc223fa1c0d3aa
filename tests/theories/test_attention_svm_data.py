"""The attention-SVM room on trained heads and on data: alignment with its null, rows for any data set, figures, the experiment."""

import numpy as np
import pytest
import torch

from transformer_theory.core.measurement import collect
from transformer_theory.core.result import Result
from transformer_theory.data import TokenData
from transformer_theory.probes import Observation
from transformer_theory.report import wording
from transformer_theory.theories import attention_svm as room
from transformer_theory.theories.attention_svm import measure
from transformer_theory.theories.attention_svm.alignment import MARGIN, QUANTITY
from transformer_theory.theories.attention_svm.solvers import multipliers_of


def gaussian(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def labelled(n=120, seq=6, dim=12, classes=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % classes
    tokens = torch.randn(n, seq, dim, generator=generator, dtype=torch.float64)
    tokens[:, 0] += 2 * torch.randn(classes, dim, generator=generator, dtype=torch.float64)[labels]
    return TokenData(tokens, labels=labels)


# ---- alignment


def test_a_max_margin_matrix_is_aligned_with_itself(generator):
    x, z = gaussian(8, 5, 16), gaussian(8, 16, seed=1)
    select = torch.randint(5, (8,), generator=generator)
    W = room.frobenius_max_margin(room.constraints(x, z, select)).W
    read = room.alignment(7.0 * W, x, z, generator=generator)
    assert read.cosine == pytest.approx(1)
    assert read.margin == pytest.approx(1)
    assert read.null is not None
    assert read.null < 0.5
    assert read.constraints == 32


@pytest.mark.parametrize(("n", "dim", "expected"), [(8, 64, 0.08), (16, 64, 0.11), (32, 64, 0.16), (16, 16, 0.41)])
def test_the_null_of_random_weights_is_not_zero(n, dim, expected, generator):
    read = room.alignment(
        gaussian(dim, dim), gaussian(n, 17, dim, seed=1), gaussian(n, dim, seed=2), generator=generator, constraints=600, draws=8
    )
    assert read.constraints == 16 * n
    assert read.null == pytest.approx(expected, abs=0.04)
    assert read.cosine == pytest.approx(expected, abs=0.07)


def test_random_tied_heads_do_not_read_above_their_null():
    """W = U U^T selects mostly each token for itself, which is not alignment: the null has that symmetry too."""
    above = []
    for seed in range(4):
        U, x = gaussian(96, 24, seed=seed), gaussian(16, 17, 96, seed=10 + seed)
        read = room.alignment(U @ U.T, x, x, generator=torch.Generator().manual_seed(seed), draws=4)
        assert read.cosine is not None
        assert read.null is not None
        assert read.null > 0.12  # a rotation of each side on its own gives about .07
        above.append(read.cosine - read.null)
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
def test_weights_shaped_like_the_covariance_do_not_read_above_their_null(weights, cosine):
    """The null that turns any direction reads .13, .13 and .16 for these."""
    cosines, above = [], []
    for seed in range(5):
        x, root = correlated(seed, 64, 17, 48)
        read = room.alignment(weights(root, 200 + seed), x, x, generator=torch.Generator().manual_seed(seed), draws=6)
        assert read.cosine is not None
        assert read.null is not None
        cosines.append(read.cosine)
        above.append(read.cosine - read.null)
    assert sum(cosines) / 5 == pytest.approx(cosine, abs=0.03)
    assert abs(sum(above) / 5) < 0.03


def test_queries_of_their_own_have_axes_of_their_own():
    above = []
    for seed in range(5):
        x, left = correlated(seed, 16, 17, 48)
        z, right = correlated(50 + seed, 400, 48)
        many = torch.stack([z[i::16] for i in range(16)])  # 25 queries an input
        W = left @ gaussian(48, 48, seed=200 + seed) @ right
        read = room.alignment(W, x, many, generator=torch.Generator().manual_seed(seed), draws=6)
        assert read.cosine is not None
        assert read.null is not None
        above.append(read.cosine - read.null)
    assert abs(sum(above) / 5) < 0.03  # the same axes for both leave .06


def test_heads_trained_by_descent_read_far_above_their_null_on_correlated_tokens():
    x, _ = correlated(0, 16, 17, 48)
    instance = room.Instance(x, x[:, 0].contiguous(), torch.nn.functional.one_hot(torch.arange(16), 17).double())
    W = room.normalised_descent(instance, room.start(instance), steps=1500).W
    read = room.alignment(W, x, x[:, 0], generator=torch.Generator().manual_seed(0), draws=6)
    assert read.cosine is not None
    assert read.null is not None
    assert read.cosine > 0.98
    assert 0.15 < read.null < 0.35


def test_alignment_does_not_depend_on_scale_or_coordinates():
    W, x = gaussian(10, 10), gaussian(6, 5, 10, seed=1)
    q = torch.linalg.qr(gaussian(10, 10, seed=3))[0]
    for z, turned_z in ((x, x @ q.T), (gaussian(6, 10, seed=2), gaussian(6, 10, seed=2) @ q.T)):
        plain = room.alignment(W, x, z, generator=torch.Generator().manual_seed(0))
        turned = room.alignment(30 * q @ W @ q.T, x @ q.T, turned_z, generator=torch.Generator().manual_seed(0))
        assert turned.cosine == pytest.approx(plain.cosine)
        assert turned.margin == pytest.approx(plain.margin)
        assert turned.null == pytest.approx(plain.null)  # the axes turn with the tokens


def test_equal_tokens_count_as_one():
    x, W = gaussian(8, 5, 12), gaussian(12, 12, seed=1)
    twice = torch.cat([x, x[:, :3]], 1)
    plain, doubled = (room.alignment(W, v, x[:, 0], generator=torch.Generator().manual_seed(0)) for v in (x, twice))
    assert doubled.cosine == pytest.approx(plain.cosine)
    assert doubled.margin == pytest.approx(plain.margin)
    assert doubled.null is not None


@pytest.mark.parametrize(
    ("W", "x", "reason"),
    [
        (gaussian(4, 4), gaussian(3, 1, 4), "single token"),
        (torch.zeros(4, 4, dtype=torch.float64), gaussian(3, 5, 4), "W is zero"),
        (gaussian(4, 4), torch.ones(3, 5, 4, dtype=torch.float64), "all tokens of an input are equal"),
        (torch.diag(torch.tensor([1.0, 0, 0, 0])).double(), torch.eye(4).double()[None], "different tokens the same"),
    ],
)
def test_where_there_is_no_direction_it_says_why(W, x, reason, generator):
    z = torch.ones(len(x), 4, dtype=torch.float64)
    if "same" in reason:
        z[:, 0] = 0  # every token scores zero
    read = room.alignment(W, x, z, generator=generator)
    assert read.cosine is None
    assert reason in read.reason


def test_alignment_names_bad_input(generator, unchecked):
    with pytest.raises(ValueError, match=r"W must be \[4, 4\]"):
        room.alignment(gaussian(3, 4), gaussian(2, 5, 4), gaussian(2, 4), generator=generator)
    with pytest.raises(ValueError, match="finite"):
        room.alignment(gaussian(4, 4) / 0, gaussian(2, 5, 4), gaussian(2, 4), generator=generator)


@pytest.mark.parametrize("dim", [8, 24, 96])
def test_multipliers_from_inner_products_are_those_of_the_solver(dim):
    for seed in range(10):
        W, x, z = gaussian(dim, dim, seed=seed), gaussian(4, 17, dim, seed=10 + seed), gaussian(4, dim, seed=20 + seed)
        pairs = room.constraints(x, z, (x @ (z @ W.T)[..., None]).squeeze(-1).argmax(-1))
        solution, multipliers = room.frobenius_max_margin(pairs), multipliers_of(pairs.gram())
        assert multipliers is not None
        torch.testing.assert_close(pairs.combine(multipliers), solution.W, rtol=1e-7, atol=1e-9 * solution.norm)
        assert float(multipliers.sum()) ** 0.5 == pytest.approx(solution.norm, rel=1e-9)
    assert multipliers_of(torch.zeros(2, 2, dtype=torch.float64)) is None
    opposed = torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=torch.float64)
    assert multipliers_of(opposed) is None  # infeasible


# ---- the reducer


def seen(tokens, heads, layer=0):
    return Observation("block", layer, "attention", tokens, tokens, bilinear=heads)


def test_the_reducer_reads_every_head_and_forgets_on_reset():
    tokens, heads = gaussian(20, 9, 12, dtype=torch.float32), gaussian(2, 12, 12, seed=1, dtype=torch.float32)
    reducer = room.AlignmentReducer()
    reducer.update(seen(tokens, heads), None)
    reducer.update(seen(tokens, heads, layer=1), None)
    reducer.update(Observation("mlp", 1, "features", tokens, tokens), None)
    rows = reducer.compute()
    assert [(row["layer"], row["head"]) for row in rows if row["quantity"] == QUANTITY] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert {row["quantity"] for row in rows} == {QUANTITY, MARGIN}
    assert room.THEORY.order_parameter == QUANTITY
    for row in rows:
        assert row["theory"] == "attention_svm"
        assert 0 < row["value"] < 1
    assert all(0 < row["null"] < 1 for row in rows if row["quantity"] == QUANTITY)
    assert rows == reducer.compute()
    reducer.reset()
    assert reducer.compute() == []


def test_batches_and_processes_add_up():
    tokens, heads = gaussian(20, 9, 12), gaussian(1, 12, 12, seed=1)
    whole, batched, first, second = (room.AlignmentReducer() for _ in range(4))
    whole.update(seen(tokens, heads), None)
    batched.update(seen(tokens[:7], heads), None)
    batched.update(seen(tokens[7:], heads), None)
    first.update(seen(tokens[:7], heads), None)
    second.update(seen(tokens[7:], heads), None)
    first.merge(second)
    assert whole.compute() == batched.compute() == first.compute()


def test_a_head_that_selects_nothing_gives_a_row_that_says_so():
    reducer = room.AlignmentReducer()
    reducer.update(seen(gaussian(4, 5, 6), torch.zeros(1, 6, 6, dtype=torch.float64)), None)
    (row,) = reducer.compute()
    assert row["value"] is None
    assert row["verdict"] == "not applicable: W is zero, so it selects nothing"


def test_the_constraints_of_a_module_are_divided_among_its_heads():
    for heads, expected in ((1, 256), (4, 64), (8, 32), (64, 8)):  # 8 a query
        reducer = room.AlignmentReducer()
        reducer.update(seen(gaussian(30, 9, 12), gaussian(heads, 12, 12, seed=1)), None)
        assert {row["note"].split(";")[0] for row in reducer.compute() if "note" in row} == {f"{expected} constraints"}


def test_sequences_and_heads_that_are_not_finite_are_left_out():
    tokens, heads = gaussian(20, 9, 12), gaussian(2, 12, 12, seed=1)
    spoilt = torch.cat([tokens[:5], tokens[:3] / 0, tokens[5:]])
    heads[1, 0, 0] = torch.nan
    whole, some = room.AlignmentReducer(), room.AlignmentReducer()
    whole.update(seen(tokens, heads), None)
    some.update(seen(spoilt, heads), None)
    assert whole.compute() == some.compute()
    assert [row["value"] is None for row in some.compute()] == [False, False, True]
    assert "not finite" in some.compute()[-1]["verdict"]


@pytest.mark.parametrize("length", [9, 4, 12])
def test_attention_to_other_tokens_is_not_read_as_self_attention(length):
    """A second attention of a block counts its heads on; W then acts on tokens that the probe does not see."""
    x, memory, (K, Q) = gaussian(6, 9, 12), gaussian(6, length, 12, seed=1), gaussian(2, 2, 12, 4, seed=2)
    reducer = room.AlignmentReducer()
    for first, read in ((0, x), (2, memory)):
        query, key = (y[:, None] @ P + 3.0 for y, P in ((x, Q), (read, K)))  # biases change nothing
        reducer.update(Observation("m", 0, "attention", x, x, query=query, key=key, bilinear=K @ Q.mT, first_head=first), None)
    found = {row["head"]: row for row in reducer.compute() if row["quantity"] == QUANTITY}
    assert sorted(found) == [0, 1, 2, 3]
    assert all(found[head]["value"] is not None for head in (0, 1))
    assert all("other tokens" in found[head]["verdict"] for head in (2, 3))


# ---- data


def measured(data, seed=0):
    return collect(room.THEORY.measure(data, torch.Generator().manual_seed(seed)))


def only(rows, quantity):
    (row,) = [row for row in rows if row["quantity"] == quantity]
    return row


SELECTABLE = "number of inputs whose best tokens one W can select"


def selectable(data):
    """The row on feasibility and the arrays that come before it; descent on the inputs, which comes after, is not made."""
    arrays = {}
    for item in measure.predict_and_measure(data, torch.Generator().manual_seed(0)):
        if item.get("quantity") == SELECTABLE:
            return item, arrays
        arrays |= item
    raise AssertionError("there is no such row")


@pytest.fixture(scope="module")
def on_labelled():
    return measured(labelled())


def test_descent_on_data_goes_to_the_max_margin_direction_of_what_it_selects(on_labelled):
    rows, arrays = on_labelled
    answer = only(rows, room.THEORY.answer)
    assert answer["value"] > 0.99
    assert answer["verdict"] == "consistent"
    assert answer["null"] < 0.6
    assert only(rows, SELECTABLE)["value"] >= 12
    assert only(rows, "attention on the selected token (smallest over the inputs)")["value"] > 0.999
    assert only(rows, "assumption: every input has one best token")["verdict"] == "holds"
    assert only(rows, "assumption: all other tokens of an input score the same")["verdict"] == "fails"
    assert only(rows, "cosine of W to the max-margin direction of the best tokens")["verdict"] in ("outside assumptions", "consistent")
    assert np.isfinite(arrays["attention_svm/cosine_selected"]).all()
    assert arrays["attention_svm/attention"].sum(-1) == pytest.approx(1)
    assert all(name.startswith("attention_svm/") for name in arrays)


def test_a_run_too_short_to_select_is_not_said_to_tie():
    instance = room.equal_distractors(inputs=5, tokens=6, dim=12, generator=torch.Generator().manual_seed(0))
    short = room.analyse(instance.tokens, instance.query, instance.scores, at=(0, 1, 2, 3))
    rows, _ = collect(measure._descent(short, 5))
    assert rows[-1]["quantity"] == measure.ANSWER
    assert rows[-1]["verdict"] == "not applicable: no input selects a token"
    assert wording.verdict(rows[-1]) == ("not applicable", "no input selects a token")


def test_a_margin_that_is_only_small_does_not_refute_feasibility(unchecked):
    close = 3 + 0.05 * gaussian(400, 8, 24)  # in general position, so 24 inputs are feasible, with norms far above what descent resolves
    row, _ = selectable(TokenData(close, labels=torch.arange(400) % 4))
    assert row["value"] < row["bound"] == 24
    assert row["verdict"] == "inconclusive"


def test_feasibility_is_promised_for_independent_queries_only(unchecked):
    tokens, labels = gaussian(100, 5, 12), torch.arange(100) % 2
    row, _ = selectable(TokenData(tokens, labels=labels, query=torch.ones(100, 12, dtype=torch.float64)))
    assert row["bound"] == 1  # all queries are equal
    assert row["verdict"] == "consistent"
    row, _ = selectable(TokenData(tokens, labels=labels, query=gaussian(100, 12, seed=1)))
    assert row["value"] >= row["bound"] == 12


def test_narrow_tokens_are_mostly_infeasible(unchecked):
    row, arrays = selectable(labelled(seq=16, dim=3))
    assert arrays["attention_svm/feasible_share"][-1] == 0
    assert row["verdict"] == "outside assumptions"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (TokenData(gaussian(5, 4, 3)), "needs labels"),
        (TokenData(gaussian(5, 4, 3), labels=torch.zeros(5, dtype=torch.long)), "at least two classes"),
        (TokenData(gaussian(6, 1, 3), labels=torch.arange(6) % 2), "at least two tokens"),
        (TokenData(torch.ones(6, 4, 3, dtype=torch.float64), labels=torch.arange(6) % 2), ""),
        (TokenData(torch.zeros(6, 4, 3, dtype=torch.float64), labels=torch.arange(6) % 2), ""),
        (TokenData(gaussian(2, 2, 1), labels=torch.tensor([0, 1])), ""),
        (TokenData(gaussian(2, 5, 3), labels=torch.tensor([0, 7])), ""),
        (TokenData(gaussian(1, 5, 3), labels=torch.tensor([0])), "at least two classes"),
        (TokenData(gaussian(9, 5, 3)[torch.zeros(9, dtype=torch.long)], labels=torch.arange(9) % 3), ""),
        (TokenData(gaussian(8, 3, 2), labels=torch.arange(8) % 2, query=torch.zeros(8, 2, dtype=torch.float64)), "infeasible"),
        (TokenData(1e150 * gaussian(8, 3, 4), labels=torch.arange(8) % 2), ""),
        (TokenData(1e-150 * gaussian(8, 3, 4), labels=torch.arange(8) % 2), ""),
    ],
)
def test_any_valid_data_give_rows_and_a_figure_never_an_exception(data, reason, unchecked):  # shapes were checked above
    rows, arrays = measured(data)
    assert rows
    assert reason in " ".join(str(row.get("verdict")) for row in rows)
    for row in rows:
        assert row["value"] is None or np.isfinite(row["value"]), row
    figure = room.draw(Result("test", {}, rows, arrays))
    assert figure.get_axes()


def test_figures_are_drawn_from_the_stored_result(on_labelled, tmp_path):
    rows, arrays = on_labelled
    stored = Result("test", {}, rows, arrays)
    stored.save(tmp_path / "result")
    figure = room.draw(Result.load(tmp_path / "result"))
    assert [ax.get_title(loc="left") for ax in figure.get_axes()] == [
        "Cosine to max-margin W",
        "Margins",
        "Attention: 6 of 24 inputs",
        "Feasible random sets",
    ]

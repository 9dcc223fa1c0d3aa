"""TokenData: every error says what was expected, what came and what to do; indexing, splitting and files keep
what is known.
"""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cases import each_case
from transformer_theory.data import TokenData
from transformer_theory.data.ids import integer_tensor
from transformer_theory.data.tokens import patch_grid


def data(n=6, seq=3, dim=2, **fields) -> TokenData:
    tokens = torch.arange(n * seq * dim, dtype=torch.float64).reshape(n, seq, dim)
    return TokenData(tokens, **fields)


def test_query_is_the_last_token_unless_given():
    assert torch.equal(data().query, data().tokens[:, -1])
    assert torch.equal(data(query=torch.zeros(6, 2).double()).query, torch.zeros(6, 2).double())


def test_vocabulary_covers_ids_and_next_id():
    assert data(ids=torch.full((6, 3), 4), next_id=torch.full((6,), 7)).vocab_size == 8
    assert data().vocab_size is None
    assert data(ids=torch.zeros(6, 3).long(), vocab_size=50).vocab_size == 50


NAN = torch.full((6, 3, 2), 1.0).double()
NAN[2, 1, 0] = float("nan")
INF = torch.full((6, 2), float("inf")).double()


@each_case(
    ("fields", "message"),
    [
        ({"tokens": torch.zeros(6, 3).double()}, r"tokens must have shape \[n, seq, dim\] .* got \[6, 3\]"),
        (
            {"tokens": torch.zeros(6, 3, 2, dtype=torch.complex64)},
            "tokens must hold real numbers, got torch.complex64",
        ),
        ({"tokens": None}, "tokens must be a .* got NoneType"),
        (
            {"tokens": torch.zeros(0, 3, 2).double()},
            r"at least one sequence, token and dimension, got \[0, 3, 2\]",
        ),
        ({"tokens": torch.zeros(6, 0, 2).double()}, "at least one sequence"),
        (
            {"tokens": NAN},
            "tokens must be finite, got 1 NaN or infinite values of 36, the first in sequence 2",
        ),
        ({"tokens": torch.zeros(6, 3, 2).double().requires_grad_()}, "requires gradients; use .detach"),
        (
            {"labels": torch.zeros(5).long()},
            r"labels must have shape \[6\] to fit tokens \[6, 3, 2\], got \[5\]",
        ),
        ({"labels": torch.zeros(0).long()}, r"labels must have shape \[6\]"),
        ({"labels": torch.zeros(6)}, "labels must be integers, got torch.float32"),
        (
            {"labels": torch.zeros(6, 1).long()},
            r"labels must have shape \[n\], got \[6, 1\]; pass labels.squ",
        ),
        ({"labels": torch.tensor([0, 1, 2, 3, 4, -1])}, "labels must be 0, 1, ..., got -1"),
        ({"query": torch.zeros(6, 3).double()}, r"query must have shape \[6, 2\]"),
        ({"query": INF}, "query must be finite, got 12"),
        ({"ids": torch.zeros(6, 2).long()}, r"ids must have shape \[6, 3\]"),
        (
            {"ids": torch.full((6, 3), 5), "vocab_size": 5},
            r"ids must lie in \[0, 5\), got 5; pass vocab_size=6",
        ),
        ({"ids": torch.full((6, 3), -2)}, "ids must lie in .* got -2"),
        ({"next_id": torch.full((6,), 9), "vocab_size": 9}, r"next_id must lie in \[0, 9\), got 9"),
        (
            {"ids": torch.full((6, 3), 5), "words": ("a", "b")},
            "words must hold a word for each of the 6 ids, got 2",
        ),
        (
            {"images": torch.zeros(6, 4, 4).double()},
            r"images must have shape \[6, ·, ·, ·\] .* got \[6, 4, 4\]",
        ),
        ({"images": torch.zeros(5, 1, 4, 4).double()}, "images must have shape"),
    ],
)
def test_bad_fields_are_named(unchecked, fields, message):
    with pytest.raises((ValueError, TypeError), match=message) as error:
        TokenData(**{"tokens": torch.zeros(6, 3, 2).double()} | fields)
    assert "\n" not in str(error.value)


def test_numpy_arrays_lists_and_other_dtypes_are_converted(unchecked):
    tokens = np.random.default_rng(0).normal(size=(4, 3, 2))
    labels, ids, images = (
        [0, 1, 1, 0],
        np.arange(12, dtype=np.int16).reshape(4, 3),
        np.arange(64, dtype=np.uint8).reshape(4, 1, 4, 4),
    )
    converted = TokenData(
        tokens.astype(np.float32),
        labels=labels,
        ids=ids,
        next_id=torch.arange(4, dtype=torch.int32),
        images=images,
    )
    assert torch.equal(converted.tokens, torch.from_numpy(tokens.astype(np.float32)).double())
    assert converted.tokens.dtype == converted.query.dtype == converted.images.dtype == torch.float64
    assert converted.labels.dtype == converted.ids.dtype == converted.next_id.dtype == torch.int64
    assert converted.labels.tolist() == labels
    assert converted.ids.tolist() == ids.tolist()
    assert TokenData(np.ones((4, 3, 2), dtype=int)).tokens.dtype == torch.float64
    whole = torch.ones(4, 3, 2, dtype=torch.float64)
    assert TokenData(whole).tokens is whole, "nothing is copied that fits"


def test_index_takes_numbers_slices_positions_and_masks():
    full = data(
        labels=torch.arange(6),
        ids=torch.arange(18).reshape(6, 3),
        next_id=torch.arange(6),
        images=torch.rand(6, 1, 2, 2).double(),
    )
    for index, rows in (
        (2, [2]),
        (-1, [5]),
        (np.int64(3), [3]),
        (slice(1, 3), [1, 2]),
        (torch.tensor([4, 0]), [4, 0]),
    ):
        part = full[index]
        for name in ("tokens", "labels", "query", "ids", "next_id", "images"):
            assert torch.equal(getattr(part, name), getattr(full, name)[rows]), name
        assert part.vocab_size == full.vocab_size == 18
    assert len(full[full.labels > 2]) == 3
    with pytest.raises(ValueError, match="at least one sequence"):
        full[6:]


def test_the_repr_shows_shapes():
    unlabelled = TokenData(torch.zeros(2, 3, 4).double(), name="mine")
    assert repr(unlabelled) == "TokenData('mine', tokens [2, 3, 4], query [2, 4])"
    ids, labels = torch.arange(6).reshape(2, 3), torch.tensor([0, 1])
    full = TokenData(
        torch.zeros(2, 3, 4).double(), labels=labels, ids=ids, next_id=torch.tensor([7, 8]), name="mine"
    )
    assert (
        repr(full)
        == "TokenData('mine', tokens [2, 3, 4], labels [2] of 2 classes, query [2, 4], ids [2, 3] of 9, "
        "next_id [2])"
    )
    assert "labels [1] of 1 class," in repr(full[0])


def test_an_explicit_query_survives_indexing():
    full = data(query=torch.arange(12).reshape(6, 2).double())
    assert torch.equal(full[torch.tensor([3])].query, full.query[3:4])


def test_contexts_leave_the_query_out():
    ids = torch.arange(18).reshape(6, 3)
    context, query = data(ids=ids).context_and_query()
    assert torch.equal(context, ids[:, :2])
    assert torch.equal(query, ids[:, 2])
    first = data(ids=ids, query=data().tokens[:, 0])
    assert first.query_position == 0
    assert torch.equal(first.context_and_query()[1], ids[:, 0])
    with pytest.raises(ValueError, match="contexts need ids"):
        data().context_and_query()


def test_classes_count_to_the_largest_label():
    assert data(labels=torch.tensor([0, 0, 1, 1, 4, 1])).classes == 5
    with pytest.raises(ValueError, match="classes need labels"):
        _ = data().classes


@settings(max_examples=60, deadline=None)
@given(n=st.integers(2, 60), classes=st.integers(1, 5), share=st.floats(0.05, 0.95), seed=st.integers(0, 99))
def test_split_is_a_stratified_partition(n, classes, share, seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (n,), generator=generator)
    full = TokenData(torch.arange(n, dtype=torch.float64).reshape(n, 1, 1), labels=labels)
    first_size = int(np.floor(n * share + 1e-9))
    if first_size in (0, n):
        with pytest.raises(ValueError, match="share must leave"):
            full.split(share, generator)
        return
    order = torch.randperm(n, generator=torch.Generator().set_state(generator.get_state()))
    order = order[torch.argsort(labels[order], stable=True)]
    floors = [int(np.floor(i * share + 1e-9)) for i in range(n + 1)]
    drawn = {int(labels[order[i]]) for i in range(n) if floors[i + 1] > floors[i]}
    rare = len(set(labels.tolist()) - drawn)  # classes that get their one sample beyond the share
    size = first_size + rare
    if size == n and len(set(labels.tolist())) < n:
        size -= 1  # a class of two samples gives one to the second part
    if size == n:
        with pytest.raises(ValueError, match="share must leave"):
            full.split(share, generator)
        return
    first, second = full.split(share, generator)
    assert len(first) == size
    assert set(first.labels.tolist()) == set(labels.tolist())
    assert torch.equal(
        torch.cat([first.tokens, second.tokens]).flatten().sort().values, full.tokens.flatten()
    )
    for k in range(classes):
        assert abs(int((first.labels == k).sum()) - share * int((labels == k).sum())) < 1 + 1e-6
    assert all(
        int(full.tokens[int(t), 0, 0]) == int(t) and full.labels[int(t)] == y
        for t, y in zip(first.tokens.flatten(), first.labels)
    )


def test_split_takes_its_share_to_the_digit(generator):
    assert len(data(n=10).split(0.7, generator)[0]) == 7  # 0.7 * 10 is 6.999... in single precision
    assert 100 * 0.29 < 29  # so that the floor of the product alone would lose a sample
    assert len(data(n=100).split(0.29, generator)[0]) == 29


def test_rare_classes_have_their_samples_in_the_first_part(generator):
    labels = torch.tensor([0] * 20 + [1] * 10 + [2] * 5 + [3, 3, 4, 4, 5, 6, 7, 8, 9])
    full = TokenData(torch.arange(len(labels), dtype=torch.float64).reshape(-1, 1, 1), labels=labels)
    for seed in range(20):
        first, second = full.split(0.8, torch.Generator().manual_seed(seed))
        assert first.labels.bincount(minlength=10)[5:].tolist() == [1] * 5
        assert first.labels.bincount()[:3].tolist() == [16, 8, 4]
        assert set(second.labels.tolist()) <= {0, 1, 2, 3, 4}
        assert len(first) + len(second) == len(labels)
    alone = TokenData(torch.zeros(5, 1, 1), labels=torch.arange(5))
    with pytest.raises(ValueError, match="share must leave sequences on both sides"):
        alone.split(0.8, generator)


@each_case("share", [0.0, 1.0, -1.0, 2.0, float("nan")])
def test_split_refuses_an_empty_side(share, generator):
    with pytest.raises(ValueError, match="share must leave sequences on both sides"):
        data().split(share, generator)


def test_a_file_gives_back_what_was_stored(tmp_path):
    path = tmp_path / "mine.npz"
    tokens = np.random.default_rng(0).normal(size=(4, 3, 2)).astype(np.float32)
    np.savez(
        path,
        tokens=tokens,
        labels=np.array([0, 1, 1, 0], dtype=np.uint8),
        ids=np.arange(12).reshape(4, 3),
        vocab_size=20,
    )
    read = TokenData.from_npz(path)
    assert read.name == "mine.npz"  # mine.txt has another name
    assert read.vocab_size == 20
    assert torch.equal(read.tokens, torch.from_numpy(tokens.astype(np.float64)))
    assert read.labels.tolist() == [0, 1, 1, 0]
    assert read.labels.dtype == read.ids.dtype == torch.int64


def test_a_file_may_be_big_endian_and_in_columns(tmp_path):
    tokens = np.asfortranarray(np.arange(24.0).reshape(4, 3, 2)).astype(">f4")
    np.savez_compressed(tmp_path / "a.npz", tokens=tokens)
    assert TokenData.from_npz(tmp_path / "a.npz").tokens.flatten().tolist() == list(range(24))


def test_the_grid_of_square_patches():
    assert patch_grid(12, 6, 8) == (3, 4)
    assert patch_grid(1, 5, 5) == (1, 1)
    for patches, height, width in ((0, 4, 4), (3, 4, 4), (12, 8, 7), (64, 4, 4), (2, 3, 6 + 1)):
        assert patch_grid(patches, height, width) is None


def test_one_number_beyond_int64_is_named():
    numbers, largest = (np.array([1, last], dtype=np.uint64) for last in (2**63, 2**63 - 1))
    with pytest.raises(ValueError, match=f"ids must fit into int64, got {2**63}; recode"):
        integer_tensor(numbers, name="ids", shape="[n]")
    assert integer_tensor(largest, name="ids", shape="[n]").tolist() == [1, 2**63 - 1]

"""Batches of counted sequences: lists of tokens against dense counts."""

import sys
import time

import torch
from torch.testing import assert_close

from tests.cases import each_case
from transformer_theory.theories.scan_snap import (
    Batch,
    Weights,
    count_sequences,
    forward,
    gradient_descent,
    minibatches,
)
from transformer_theory.theories.scan_snap.dynamics import SparseBatch, sequence_batches

MODULE = sys.modules[SparseBatch.__module__]


def texts(*, n: int = 40, words: int = 200, context: int = 12, classes: int = 4, seed: int = 0):
    """Counted sequences of a text: few of many words in each."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(words, (n, context), generator=generator)
    ids[:, 0] = ids[:, 1]  # some word occurs twice
    following = torch.randint(classes, (n,), generator=generator)
    return count_sequences(ids, torch.full((n,), words), following, words + 1)


def random_weights(data, *, runs: tuple[int, ...], rest: int, seed: int = 1) -> Weights:
    generator = torch.Generator().manual_seed(seed)
    S, K, Q = len(data.token_ids), len(data.next_ids), len(data.query_ids)
    Y = torch.randn(*runs, S, K + (rest > 0), generator=generator, dtype=torch.float64)
    return Weights(Y, torch.randn(*runs, Q, S, generator=generator, dtype=torch.float64), rest)


@each_case("runs", [(), (3,)])
@each_case("rest", [0, 7])
def test_lists_of_tokens_give_the_directions_of_dense_counts(runs: tuple[int, ...], rest: int, generator):
    data = texts()
    weights, index = random_weights(data, runs=runs, rest=rest), torch.randperm(40, generator=generator)[:9]
    target = torch.randint(len(data.next_ids), (*runs, 9), generator=generator)
    query = data.query[index].expand(target.shape)
    sparse = sequence_batches(data.counts)(index, query, target)
    assert isinstance(sparse, SparseBatch)
    assert sparse.tokens.shape[-1] == 11  # twelve words, one of them twice
    dense = forward(weights, Batch(data.counts[index].expand(*runs, -1, -1), query, target))
    found = sparse.descent(weights)
    assert_close(found.loss, dense.loss, rtol=1e-12, atol=0)
    assert_close(found.decoder, dense.decoder, rtol=1e-11, atol=1e-15)
    assert_close(found.attention, dense.attention, rtol=1e-11, atol=1e-15)


def test_each_run_can_have_its_own_sequences(generator):
    sets = torch.stack([texts(seed=seed, words=60).counts[:, :50] for seed in (0, 1)])
    data, index, target = texts(), torch.arange(6), torch.zeros(2, 6, dtype=torch.long)
    weights = Weights(
        torch.randn(2, 50, 5, generator=generator).double(),
        torch.randn(2, 1, 50, generator=generator).double(),
        0,
    )
    batch = sequence_batches(sets)(index, data.query[index].expand(2, -1), target)
    assert isinstance(batch, SparseBatch)
    for run in range(2):
        alone = forward(
            Weights(weights.decoder[run], weights.attention[run], 0),
            Batch(sets[run, :6], data.query[:6], target[run]),
        )
        assert_close(batch.descent(weights).decoder[run], alone.decoder, rtol=1e-11, atol=1e-15)


def test_dense_counts_stay_dense_and_train_alike(monkeypatch):
    data = texts(words=200)
    paths = []
    for share in (0.0, 0.25):
        monkeypatch.setattr(MODULE, "SPARSE_SHARE", share)
        batches = minibatches(data, 16, generator=torch.Generator().manual_seed(0))
        assert isinstance(batches(0), SparseBatch if share else Batch)
        start = Weights.zeros(len(data.token_ids), 1, len(data.next_ids), 201)
        draws = minibatches(data, 16, generator=torch.Generator().manual_seed(0))
        paths.append(gradient_descent(start, draws, steps=30, eta_y=1.0, eta_z=0.5).attention)
    assert_close(paths[0], paths[1], rtol=1e-9, atol=1e-14)
    assert float(paths[0].abs().max()) > 1e-3


def test_logarithms_of_counts_can_be_given():
    data = texts(words=20)
    weights, index = random_weights(data, runs=(), rest=3), torch.arange(5)
    batch = sequence_batches(data.counts)(index, data.query[index], data.target[index])
    assert isinstance(batch, Batch)
    assert batch.log_counts is not None
    bare = forward(weights, Batch(batch.counts, batch.query, batch.target))
    assert_close(forward(weights, batch).attention, bare.attention, rtol=0, atol=0)


def test_the_cost_does_not_grow_with_the_vocabulary(unchecked):
    """Four runs on 34 of 1500 words with 20 classes: lists of tokens are several times faster than dense
    counts.
    """
    data = texts(n=128, words=1500, context=34, classes=20)
    start = random_weights(data, runs=(4,), rest=100)
    target, index = data.target.expand(4, -1), torch.arange(128)
    query = data.query.expand(4, -1)
    sparse = sequence_batches(data.counts)(index, query, target)
    dense = Batch(data.counts.expand(4, -1, -1), query, target)
    seconds = []
    for batch in (sparse, dense):
        spent = []
        for _ in range(4):
            began = time.process_time()
            batch.descent(start)
            spent.append(time.process_time() - began)
        seconds.append(min(spent))
    assert seconds[0] < seconds[1] / 2

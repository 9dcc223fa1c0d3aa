"""Whether attention is to the module's own tokens, by cosines of scores that numpy computes."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from transformer_theory.core.metric import Activations
from transformer_theory.metrics.own_tokens import attends_elsewhere

D, P = 6, 3
SCALES = np.array([3.0, 1.0, 1.0, 0.5, 0.3, 0.1])


def weights(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """W_Q and W_K of two unequal heads, [2, d, p]."""
    rng = np.random.default_rng(seed)
    return tuple(rng.normal(size=(2, D, P)) * np.array([1.0, 4.0])[:, None, None] for _ in range(2))


def module(x: np.ndarray, others: np.ndarray, *, bias: float = 0.0) -> Activations:
    """Attention of the tokens to other ones; score(key x, query z) = x^T W_K W_Q^T z."""
    Q, K = weights()
    queries = np.einsum("ntd,hdp->nhtp", x, Q) + bias
    keys = np.einsum("ntd,hdp->nhtp", others, K) - 2 * bias
    tokens, query, key, bilinear = map(torch.from_numpy, (x, queries, keys, K @ Q.transpose(0, 2, 1)))
    return Activations("", 0, "attention", tokens, tokens, query=query, key=key, bilinear=bilinear)


def cosine(x: np.ndarray, others: np.ndarray, sequences: list[int], places: np.ndarray) -> float:
    """Of stored and recomputed scores, both centred over queries and keys, of all heads together."""
    Q, K = weights()
    a, b = [], []
    for n in sequences:
        own = x[n, places] - x[n, places].mean(0)
        other = others[n, places] - others[n, places].mean(0)
        for head in (0, 1):
            a.append(own @ Q[head] @ (other @ K[head]).T)
            b.append(own @ Q[head] @ (own @ K[head]).T)
    a, b = np.array(a), np.array(b)
    return float((a * b).sum() / np.linalg.norm(a) / np.linalg.norm(b))


def tokens(n: int, T: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_t(4, size=(n, T, D)) * SCALES + 0.5


def mixed(x: np.ndarray, share: float, seed: int) -> np.ndarray:
    return (1 - share) * x + share * tokens(*x.shape[:2], seed)


@pytest.mark.parametrize("T", [5, 40])
def test_the_cosine_decides_at_nine_tenths(T: int):
    """Tokens that differ more and more; of forty, sixteen evenly spaced ones are compared."""
    x = tokens(3, T, 1)
    places = np.linspace(0, T - 1, min(T, 16)).astype(int)
    found = []
    for share in np.linspace(0, 0.9, 60):
        others = mixed(x, share, 2)
        value = cosine(x, others, [0, 1, 2], places)
        found.append((value, attends_elsewhere(module(x, others))))
    assert [elsewhere for _, elsewhere in found] == [value < 0.9 for value, _ in found]
    near = sorted(abs(value - 0.9) for value, _ in found)
    assert near[0] < 0.02
    assert {elsewhere for _, elsewhere in found} == {True, False}


def test_three_finite_sequences_of_the_first_eight_are_compared():
    x = tokens(10, 5, 3)
    others = x.copy()
    x[[0, 2]] = np.nan
    others[[5, 6, 7, 8, 9]] = 30 * tokens(5, 5, 4)
    # the sequences 1, 3 and 4 are compared, and the others do not count
    for third, expected in ((x[4], False), (tokens(1, 5, 5)[0] * 30, True)):
        others[4] = third
        assert attends_elsewhere(module(x, others)) == expected
        assert (cosine(x, others, [1, 3, 4], np.arange(5)) < 0.9) == expected


def test_biases_cancel():
    x = tokens(3, 7, 6)
    assert not attends_elsewhere(module(x, x, bias=50.0))
    assert attends_elsewhere(module(x, tokens(3, 7, 7), bias=50.0))


def test_what_is_not_known_is_taken_for_own_tokens_and_other_lengths_are_not():
    x, other = tokens(2, 6, 8), tokens(2, 6, 9)
    one = module(x, other)
    assert attends_elsewhere(one)
    for part in ("query", "key", "bilinear"):
        assert not attends_elsewhere(replace(one, **{part: None}))
    more = module(np.concatenate([x, x]), np.concatenate([other, other]))
    windows = replace(more, tokens=one.tokens, output=one.output)
    assert not attends_elsewhere(windows), "windows of a sequence"
    # fewer keys than tokens, or other queries, are not the module's own tokens
    own = module(x, x)
    assert not attends_elsewhere(own)
    assert attends_elsewhere(replace(own, key=own.key[:, :, :5]))
    assert attends_elsewhere(replace(own, query=own.query[:, :, :5]))
    # a further key, such as a learnt one, is left out
    further = torch.cat([own.key, torch.full_like(own.key[:, :, :1], 9.0)], 2)
    assert not attends_elsewhere(replace(own, key=further))

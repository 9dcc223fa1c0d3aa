"""Compression and non-zeros of a block against numbers from numpy: two unequal heads, anisotropic tokens."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from transformer_theory.core.metric import Activations
from transformer_theory.theories import crate
from transformer_theory.theories.crate import in_networks, on_data

EPS = 0.5


@dataclass
class Block:
    bases: torch.Tensor

    def subspaces(self) -> torch.Tensor:
        return self.bases


def subspaces(seed: int) -> np.ndarray:
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(2, 7, 3)))[0]


def rate(tokens: np.ndarray, bases: np.ndarray) -> float:
    """R^c: the sum over heads of log det(I + p/(n eps^2) W^T W) / 2."""
    total = 0.0
    for U in bases:
        W = tokens @ U
        total += 0.5 * np.linalg.slogdet(np.eye(3) + 3 / (len(W) * EPS**2) * W.T @ W)[1]
    return total


def centred_units(tokens: np.ndarray) -> np.ndarray:
    x = tokens - tokens.mean(-1, keepdims=True)
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def streams(n: int = 20) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng, U = np.random.default_rng(0), subspaces(1)
    before = rng.standard_t(4, size=(n, 5, 7)) * np.linspace(2, 0.3, 7) + 0.3
    inside = before @ (U[0] @ U[0].T)
    return before, before - (0.9 * inside + 0.2 * before @ (U[1] @ U[1].T)) + 0.1, U


def mean_rates(pair, bases: np.ndarray, count: int) -> list[float]:
    """The mean rates before and after, of evenly spaced sequences."""
    some = np.round(np.linspace(0, len(pair[0]) - 1, count)).astype(int)
    return [float(np.mean([rate(part[i], bases) for i in some])) for part in pair]


def measured(metric, before: np.ndarray, after: np.ndarray, U: np.ndarray, draws: int) -> dict:
    x, y = torch.from_numpy(before), torch.from_numpy(after)
    metric.update(Activations("", 0, "attention", x, y - x, module=Block(torch.from_numpy(U))))
    metric.update(Activations("", 0, "features", x, y, after_attention=y))
    return {row.quantity: row for row in metric.compute(draws=draws)}


@pytest.mark.parametrize("draws", [4, 40])
def test_compression_and_its_rotations(draws: int):
    """Of 20 sequences 16 are measured, and four with rotations, of both subspaces together."""
    before, after, U = streams()
    rows = measured(crate.Compression(), before, after, U, draws)
    units = [[centred_units(each) for each in stream] for stream in (before, after)]
    first, last = mean_rates(units, U, 16)
    row = rows[in_networks.COMPRESSION]
    assert rows[in_networks.BEFORE].value == pytest.approx(first)
    assert rows[in_networks.AFTER].value == pytest.approx(last)
    assert row.value == pytest.approx(1 - last / first)
    null = [mean_rates(units, Q @ U, 4) for Q in in_networks.random_rotations(7, min(draws, 19)).numpy()]
    assert row.null.draws == pytest.approx([1 - b / a for a, b in null])
    assert rows[in_networks.BEFORE].null.draws == pytest.approx([a for a, _ in null])
    assert rows[in_networks.AFTER].null.draws == pytest.approx([b for _, b in null])
    first, last = mean_rates(units, U, 4)
    assert row.null.value == pytest.approx(1 - last / first)
    assert (row.side, row.n) == (">=", 16)
    assert row.value > max(row.null.draws)
    assert in_networks.IN_NETWORKS.side == ">="


def test_growth_keeps_the_lengths_of_the_tokens():
    before, after, U = streams(6)
    row = measured(crate.Growth(), before, after, U, 5)[in_networks.GROWTH]
    first, last = mean_rates((before, after), U, 6)
    assert row.value == pytest.approx(last / first - 1)
    null = [mean_rates((before, after), Q @ U, 4) for Q in in_networks.random_rotations(7, 5).numpy()]
    assert row.null.draws == pytest.approx([b / a - 1 for a, b in null])
    assert row.side is None


def test_rotations_are_uniform():
    """Entries of orthogonal matrices have the mean 0 and the variance 1/d."""
    Q = in_networks.random_rotations(5, 400).numpy()
    assert Q @ Q.transpose(0, 2, 1) == pytest.approx(np.broadcast_to(np.eye(5), Q.shape), abs=1e-12)
    assert Q.mean(0) == pytest.approx(np.zeros((5, 5)), abs=5 / np.sqrt(5 * 400))
    assert (Q**2).mean(0) == pytest.approx(np.full((5, 5), 0.2), abs=0.06)


def test_the_share_of_nonzeros_is_a_mean_over_sequences():
    x = np.random.default_rng(2).normal(size=(3, 2, 4)) * (np.random.default_rng(3).random((3, 2, 4)) < 0.3)
    x[1] = np.nan
    output, metric = torch.from_numpy(x), in_networks.Sparsity()
    metric.update(Activations("", 0, "features", output, output))
    (row,) = metric.compute()
    assert row.value == pytest.approx(np.mean(x[[0, 2]] != 0))
    assert (row.side, row.n) == ("<=", 2)


def test_the_share_that_is_left_of_the_rate():
    """The ratio of means, of the tokens and of their directions."""
    before, after, U = streams(6)
    found = on_data._left(*(torch.from_numpy(each) for each in (before, after, U)))
    size = on_data.EPS / EPS  # rates of this file have eps = 1/2
    units = [each / np.linalg.norm(each, axis=-1, keepdims=True) for each in (before, after)]
    expected = [
        np.mean([rate(x / size, U) for x in b]) / np.mean([rate(x / size, U) for x in a])
        for a, b in ((before, after), units)
    ]
    assert found == pytest.approx(tuple(expected))

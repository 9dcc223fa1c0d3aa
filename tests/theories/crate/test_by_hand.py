"""Compression and non-zeros of a block against numbers from numpy: two unequal heads, anisotropic tokens."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
import torch

from transformer_theory.core.metric import Activations
from transformer_theory.core.table import collect
from transformer_theory.data import TokenData
from transformer_theory.models.image_networks import Pixels, Sizes
from transformer_theory.theories import crate
from transformer_theory.theories.crate import in_networks, on_data
from transformer_theory.theories.crate.ladder import quantities
from transformer_theory.theories.crate.layer_curves import compression_layers
from transformer_theory.theories.crate.tasks import SparseRateReduction

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
    """Of 20 sequences 16 are measured, and two with rotations, of both subspaces together."""
    before, after, U = streams()
    rows = measured(crate.Compression(), before, after, U, draws)
    units = [[centred_units(each) for each in stream] for stream in (before, after)]
    first, last = mean_rates(units, U, 16)
    row = rows[in_networks.COMPRESSION]
    assert rows[in_networks.BEFORE].value == pytest.approx(first)
    assert rows[in_networks.AFTER].value == pytest.approx(last)
    assert row.value == pytest.approx(1 - last / first)
    null = [mean_rates(units, Q @ U, 2) for Q in in_networks.random_rotations(7, min(draws, 19)).numpy()]
    assert row.null.draws == pytest.approx([1 - b / a for a, b in null])
    assert rows[in_networks.BEFORE].null.draws == pytest.approx([a for a, _ in null])
    assert rows[in_networks.AFTER].null.draws == pytest.approx([b for _, b in null])
    first, last = mean_rates(units, U, 2)
    assert row.null.value == pytest.approx(1 - last / first)
    assert (row.side, row.n) == (">=", 16)
    assert row.value > max(row.null.draws)
    assert in_networks.IN_NETWORKS.side == ">="


def test_growth_keeps_the_lengths_of_the_tokens():
    before, after, U = streams(6)
    row = measured(crate.Growth(), before, after, U, 5)[in_networks.GROWTH]
    first, last = mean_rates((before, after), U, 6)
    assert row.value == pytest.approx(last / first - 1)
    null = [mean_rates((before, after), Q @ U, 2) for Q in in_networks.random_rotations(7, 5).numpy()]
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


def test_only_the_compression_has_rotated_updates_as_nulls():
    before, after, U = streams(6)
    rows = measured(quantities.CompressionInSubspaces(), before, after, U, 5)
    kinds = {name: [null.kind for null in row.nulls] for name, row in rows.items()}
    assert kinds == {
        in_networks.BEFORE: [in_networks.ROTATED],
        in_networks.AFTER: [in_networks.ROTATED],
        in_networks.COMPRESSION: [
            in_networks.ROTATED,
            quantities.ROTATED_UPDATES,
            quantities.BOTH_ROTATED,
        ],
        quantities.INCOHERENCE: [],
    }


def test_a_sequence_of_large_numbers_is_kept_and_one_with_nan_is_not():
    """The sum of four tokens of 2e38 exceeds the largest float32; each of them is finite."""
    before = torch.randn(4, 4, 7, generator=torch.Generator().manual_seed(0))
    before[1] = 2e38
    before[2, 3, 6] = float("nan")
    block = Activations("", 0, "features", before, before, after_attention=before + 1)
    found = in_networks.streams_around_attention(block, torch.from_numpy(subspaces(1)), None)
    assert found is not None
    assert torch.equal(found, torch.stack([before, before + 1])[:, [0, 1, 3]])


def test_changes_of_the_rate_and_cosines_of_the_tokens_on_data():
    """The rates of an unrolled step change by unequal amounts; cosines of unit tokens are 1 on the
    diagonal.
    """
    rng = np.random.default_rng(5)
    tokens = rng.standard_t(4, size=(30, 5, 8)) * np.linspace(2, 0.3, 8)
    problem = on_data.read(TokenData(tokens=torch.from_numpy(tokens)))
    table, arrays = collect(on_data.measure(problem, torch.Generator().manual_seed(0), draws=2))
    rows = {row.quantity: row for row in table}
    for quantity, step, end in (
        (on_data.LARGEST_CHANGE, "paper", max),
        (on_data.SMALLEST_CHANGE, "tied residual", min),
    ):
        rates = arrays[f"crate/rate/{step}"]
        changes = [(b - a) / rates[0] for a, b in pairwise(rates)]
        assert max(changes) > min(changes) + 1e-3
        assert rows[quantity].value == pytest.approx(end(changes))
    shown = arrays["crate/cosine/subspace"]
    assert (np.diff(shown) >= 0).all()
    for when in ("before", "after"):
        cosines = arrays[f"crate/cosine/{when}"]
        assert np.diag(cosines) == pytest.approx(np.ones(len(shown)))
        assert cosines.min() >= 0
        assert cosines.max() <= 1 + 1e-12


SIZES = Sizes(image_size=8, channels=1, num_classes=3, patch_size=2, dim=12, depth=2, heads=2)


def regularised(layer: int | None) -> tuple[SparseRateReduction, torch.nn.Module]:
    objective = SparseRateReduction(sparsity=2.0, layer=layer)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = objective.network("crate", SIZES)
    return objective, Pixels(network, torch.tensor([0.3]), torch.tensor([0.25])).double().eval()


@pytest.mark.parametrize("layer", [None, 0, 1])
def test_the_objective_is_measured_as_a_mean_over_images(layer: int | None):
    """Excess of the rates, l1 norm of a unit token and share of non-zeros, image by image."""
    objective, model = regularised(layer)
    images = torch.randint(0, 256, (7, 1, 8, 8), generator=torch.Generator().manual_seed(1))
    labels, seen = torch.arange(7) % 3, []
    parts = compression_layers(model)
    handles = [
        part[0].register_forward_hook(lambda _, __, tokens: seen.append(tokens.detach().numpy()))
        for part in parts
    ]
    with torch.no_grad():
        model(images.double() / 255)
    for handle in handles:
        handle.remove()
    data = (images.to(torch.uint8), labels)
    rows = {(row.quantity, row.layer): row.value for row in objective.measure(model, data, data, 3)}
    total = []
    for number, (tokens, part) in enumerate(zip(seen, parts)):
        U = np.linalg.qr(part[2].subspaces().detach().numpy())[0]
        p, d, excess = U.shape[2], tokens.shape[2], []
        x = tokens / np.linalg.norm(tokens, axis=2, keepdims=True)
        for z in x:
            scale = 1 / (len(z) * objective.eps**2)
            inner = sum(np.linalg.slogdet(np.eye(p) + p * scale * (z @ u).T @ (z @ u))[1] for u in U)
            excess.append(0.5 * (inner - np.linalg.slogdet(np.eye(d) + d * scale * z.T @ z)[1]))
        l1 = np.abs(x).sum(2).mean()
        assert rows["R^c - R", number] == pytest.approx(np.mean(excess))
        assert rows["l1 norm of a token", number] == pytest.approx(l1)
        assert rows[in_networks.NONZEROS, number] == pytest.approx(np.mean(tokens != 0))
        total.append(np.mean(excess) + 2 * l1)
    expected = np.mean(total) if layer is None else total[layer]
    assert rows["sparse rate reduction", None] == pytest.approx(expected)


def test_the_only_regularised_layer_must_exist():
    for layer in (2, 3):
        with pytest.raises(ValueError, match="below the depth, 2"):
            regularised(layer)

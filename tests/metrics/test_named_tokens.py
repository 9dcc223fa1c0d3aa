"""Sinks, first and previous tokens, and outliers by norm: each number beside one written out by hand."""

import pytest
import torch

from transformer_theory.core.metric import Activations
from transformer_theory.metrics import named_tokens
from transformer_theory.metrics.named_tokens import AttendedTokens, OutlierTokens


def attention(
    weights: torch.Tensor, value: torch.Tensor | None = None, tokens: torch.Tensor | None = None
) -> Activations:
    n, _, T, _ = weights.shape
    tokens = torch.zeros(n, T, 3, dtype=torch.float64) if tokens is None else tokens
    return Activations("a", 0, "attention", tokens, tokens, value=value, weights=weights)


def rows_of(metric, *activations: Activations) -> dict[tuple[str, int | None], float]:
    for each in activations:
        metric.update(each)
    return {(row.quantity, row.head): row.value for row in metric.compute()}


def random_weights(n: int, heads: int, T: int, seed: int = 0, *, causal: bool = False) -> torch.Tensor:
    scores = torch.randn(n, heads, T, T, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    if causal:
        scores = scores.masked_fill(~torch.ones(T, T).tril().bool(), -torch.inf)
    return scores.softmax(-1)


@pytest.mark.parametrize("causal", [False, True])
def test_the_sink_and_the_first_and_previous_tokens_by_loops(causal: bool):
    n, heads, T = 3, 2, 6
    w = random_weights(n, heads, T, causal=causal)
    v = torch.randn(n, heads, T, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = rows_of(AttendedTokens(), attention(w, v))
    for h in range(heads):
        mass = [sum(float(w[i, h, q, k]) for i in range(n) for q in range(T)) / (n * T) for k in range(T)]
        sink = max(range(T), key=lambda k: mass[k])
        assert found[named_tokens.SINK_PLACE, h] == (sink if sink < T - 1 else named_tokens.LAST)
        assert found[named_tokens.SINK_MASS, h] == pytest.approx(mass[sink], rel=1e-8)
        norms = v[:, h].norm(dim=-1)
        expected = sum(float(norms[i, sink] / norms[i].mean()) for i in range(n)) / n
        assert found[named_tokens.SINK_VALUE, h] == pytest.approx(expected)
        first = [float(w[i, h, q, 0]) for i in range(n) for q in range(1, T)]
        previous = [float(w[i, h, q, q - 1]) for i in range(n) for q in range(2, T)]
        assert found[named_tokens.FIRST_MASS, h] == pytest.approx(sum(first) / len(first))
        assert found[named_tokens.PREVIOUS_MASS, h] == pytest.approx(sum(previous) / len(previous))


def test_a_head_that_copies_the_previous_token_has_mass_one_and_none_on_the_first():
    w = torch.zeros(1, 1, 5, 5, dtype=torch.float64)
    w[0, 0, 0, 0] = 1.0
    for q in range(1, 5):
        w[0, 0, q, q - 1] = 1.0
    found = rows_of(AttendedTokens(), attention(w))
    assert found[named_tokens.PREVIOUS_MASS, 0] == 1.0
    assert found[named_tokens.FIRST_MASS, 0] == pytest.approx(1 / 4)  # the second token's previous one
    assert (named_tokens.SINK_VALUE, 0) not in found, "the values are not known"


def test_the_last_token_of_sequences_of_several_lengths_is_one_place():
    """Place by place no token has more than half of the attention; the last one has .8 in both sequences."""
    parts = []
    for T in (4, 7):
        w = torch.full((1, 1, T, T), 0.2 / (T - 1), dtype=torch.float64)
        w[..., -1] = 0.8
        v = torch.ones(1, 1, T, 2, dtype=torch.float64)
        v[:, :, -1] *= 0.1
        parts.append(attention(w, v))
    found = rows_of(AttendedTokens(), *parts)
    assert found[named_tokens.SINK_PLACE, 0] == named_tokens.LAST
    assert found[named_tokens.SINK_MASS, 0] == pytest.approx(0.8)
    expected = (0.1 / (3.1 / 4) + 0.1 / (6.1 / 7)) / 2
    assert found[named_tokens.SINK_VALUE, 0] == pytest.approx(expected)


def test_a_key_without_a_token_is_no_token():
    w = torch.full((1, 1, 3, 4), 0.1, dtype=torch.float64)
    w[..., 3] = 0.7
    found = rows_of(AttendedTokens(), attention(w, torch.ones(1, 1, 4, 2, dtype=torch.float64)))
    assert found[named_tokens.SINK_PLACE, 0] == named_tokens.LEARNT
    assert found[named_tokens.SINK_MASS, 0] == pytest.approx(0.7)
    assert found[named_tokens.SINK_VALUE, 0] == 0.0


def test_windows_and_other_keys_have_no_places():
    metric = AttendedTokens()
    metric.update(attention(random_weights(4, 1, 3), tokens=torch.zeros(1, 12, 2)))  # four windows
    metric.update(attention(random_weights(1, 1, 5)[:, :, :3], tokens=torch.zeros(1, 3, 2)))
    assert metric.compute() == []


def block(tokens: torch.Tensor, layer: int = 0) -> Activations:
    return Activations("b", layer, "features", tokens, tokens)


def test_outliers_their_places_and_their_attention():
    """Norms 1 to 1.2 beside one of 5 in place 2 of both sequences, and one of 8 at the end of one."""
    T = 10
    norms = 1 + 0.02 * torch.arange(T, dtype=torch.float64).repeat(2, 1)
    norms[:, 2], norms[1, -1] = 5.0, 8.0
    tokens = norms[..., None] * torch.tensor([0.6, 0.8], dtype=torch.float64)
    w = random_weights(2, 3, T)
    metric = OutlierTokens()
    metric.update(attention(w, tokens=tokens))
    metric.update(block(tokens))
    found = {row.quantity: row.value for row in metric.compute()}
    assert found[named_tokens.OUTLIERS] == 1.5
    medians = norms.sort(1).values[:, (T - 1) // 2]
    expected = (5 / float(medians[0]) + 8 / float(medians[1])) / 2
    assert found[named_tokens.LARGEST_NORM] == pytest.approx(expected)
    received = w.mean((1, 2))
    mass = (float(received[0, 2]) + float(received[1, 2] + received[1, -1])) / 2
    assert found[named_tokens.OUTLIER_MASS] == pytest.approx(mass)
    assert found[named_tokens.OUTLIER_PLACE] == 2
    assert found[named_tokens.OUTLIER_SHARE] == pytest.approx(2 / 3)


def test_outliers_in_the_last_place_of_sequences_of_several_lengths():
    """Four of five outliers are last, in the places 8 and 11; one is first."""
    metric = OutlierTokens()
    for T, first in ((9, False), (12, True)):
        norms = torch.ones(2, T, dtype=torch.float64) + 0.01 * torch.arange(T)
        norms[:, -1] = 7.0
        norms[0, 0] = 6.0 if first else 1.0
        metric.update(block(norms[..., None] * torch.tensor([0.8, -0.6], dtype=torch.float64)))
    found = {row.quantity: row.value for row in metric.compute()}
    assert found[named_tokens.OUTLIERS] == 5 / 4
    assert found[named_tokens.OUTLIER_PLACE] == named_tokens.LAST
    assert found[named_tokens.OUTLIER_SHARE] == pytest.approx(4 / 5)
    assert named_tokens.OUTLIER_MASS not in found, "no weights are known"


def test_a_norm_must_be_large_and_stand_out():
    T = 9
    equal = torch.ones(1, T, 1, dtype=torch.float64)
    equal[0, 4] = 1.5  # infinitely many deviations, but not twice the median
    spread = (torch.arange(1, T + 1, dtype=torch.float64) ** 2).view(1, T, 1)  # the largest: 3.2 medians
    for tokens in (equal, spread):
        metric = OutlierTokens()
        metric.update(block(tokens))
        found = {row.quantity: row.value for row in metric.compute()}
        assert found[named_tokens.OUTLIERS] == 0
        assert named_tokens.OUTLIER_PLACE not in found


@pytest.mark.parametrize("kind", [AttendedTokens, OutlierTokens])
def test_states_are_merged_stored_and_bounded(kind):
    def update(metric, seed: int, T: int):
        tokens = torch.randn(2, T, 3, generator=torch.Generator().manual_seed(seed)).double()
        tokens[:, 1] *= 100
        w = random_weights(2, 2, T, seed)
        metric.update(
            attention(w, torch.randn(2, 2, T, 3, generator=torch.Generator().manual_seed(seed)), tokens)
        )
        metric.update(block(tokens)) if kind is OutlierTokens else None

    parts = [(0, 8), (1, 12), (2, 9)]
    together = kind()
    for part in parts:
        update(together, *part)
    merged = kind()
    for part in parts:
        one = kind()
        update(one, *part)
        merged.merge(one)
    restored = kind()
    restored.load_state_dict(together.state_dict())
    values = [[row.value for row in each.compute()] for each in (together, merged, restored)]
    assert values[0]
    assert values[1] == pytest.approx(values[0])
    assert values[2] == values[0]
    assert max(sums.numel() for sums in together.sums.values()) <= 3 * 2 * 12
    together.reset()
    assert not together.sums

"""Contextual share and distance of contexts, on embeddings whose answers are known."""

import pytest
import torch

from transformer_theory import models, universal
from transformer_theory.core.metric import Activations
from transformer_theory.models import build
from transformer_theory.probes import probe
from transformer_theory.theories.universal.in_networks import DISTANCE, MAX_TOKENS, SHARE


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def measured(inputs: torch.Tensor, *outputs: torch.Tensor) -> dict:
    """The rows for blocks with these outputs, by quantity and layer."""
    metric = universal.Contexts()
    for layer, output in enumerate(outputs):
        metric.update(Activations("block", layer, "features", inputs, output))
    return {(row.quantity, row.layer): row for row in metric.compute()}


def words(n: int = 60, seq: int = 5, dim: int = 8) -> torch.Tensor:
    return torch.randn(4, dim, generator=generator())[torch.randint(4, (n, seq), generator=generator(1))]


def test_a_network_that_ignores_the_context_has_share_and_distance_zero():
    x = words()
    rows = measured(x, x @ torch.randn(8, 8, generator=generator(2)))
    assert rows[SHARE, 0].value == pytest.approx(0, abs=1e-10)
    assert rows[DISTANCE, 0].value == pytest.approx(0, abs=1e-5)
    assert rows[SHARE, 0].n == 300


def test_independent_noise_adds_its_share_of_the_variance():
    x = words(n=400)
    noise = 0.5 * torch.randn(x.shape, generator=generator(3))
    total = float((x + noise).flatten(0, 1).var(0).sum())
    assert measured(x, x + noise)[SHARE, 0].value == pytest.approx(0.25 * 8 / total, rel=0.05)
    assert measured(x, torch.randn(x.shape, generator=generator(3)))[SHARE, 0].value == pytest.approx(
        1, abs=0.02
    )


@pytest.mark.parametrize("members", [2, 3, 5])
def test_pure_noise_has_share_one_in_small_groups(members: int):
    group = torch.arange(400).repeat_interleave(members)
    share, used = universal.contextual_share(torch.randn(len(group), 8, generator=generator(3)), group)
    assert share == pytest.approx(1, abs=0.05)
    assert used == len(group)


def test_the_smallest_distance_is_that_of_the_nearest_pair():
    x = torch.tensor([[[1.0], [5.0]], [[1.0], [6.0]], [[1.0], [7.0]]])
    y = torch.tensor([[[0.0], [9.0]], [[0.5], [9.0]], [[2.0], [9.0]]])
    spread = float(y.flatten().var(correction=0).sqrt())
    assert measured(x, y)[DISTANCE, 0].value == pytest.approx(0.5 / spread)
    assert measured(x, y)[DISTANCE, 0].n == 3


def test_repeated_sequences_are_no_two_contexts():
    x = words(n=1).expand(10, -1, -1)
    row = measured(x, x)[DISTANCE, 0]
    assert row.value is None
    assert row.reason


def test_in_a_causal_network_only_the_prefix_is_context():
    x = words(n=100, seq=4)
    # a token depends on those before it only
    causal = (x * torch.tensor([1.0, 0.6, 0.37, 0.21])[:, None]).cumsum(1)
    assert measured(x, causal)[DISTANCE, 0].value > 1e-3, "equal prefixes must not count as two contexts"
    anything = x + x.sum(1, keepdim=True)
    assert measured(x, anything)[DISTANCE, 0].n > measured(x, causal)[DISTANCE, 0].n


def test_a_block_with_other_tokens_has_a_reason():
    x = words()
    rows = measured(x, x, x[:, :3])
    assert rows[SHARE, 1].value is None
    assert rows[SHARE, 1].reason == "the block has other tokens than the first block"


def test_the_store_is_limited():
    metric = universal.Contexts()
    for _ in range(3):
        metric.update(Activations("block", 0, "features", words(n=200), words(n=200)))
    assert all(len(stored) == MAX_TOKENS for stored in metric.sums.values())
    restored = universal.Contexts()
    restored.load_state_dict(metric.state_dict())
    assert restored.compute() == metric.compute()


def test_attention_that_is_switched_off_leaves_no_contextual_share():
    ids = torch.randint(5, (80, 6), generator=generator(4))
    x = torch.randn(5, 4, generator=generator(5))[ids]
    network = build(lambda: models.ViT.for_tokens(6, 4, 3, dim=16, depth=2, heads=2), generator(6))
    shares = []
    for scale in (1.0, 0.0):
        for block in network.blocks:
            block.attention.out.weight.data *= scale
            block.attention.out.bias.data *= scale
        with probe(network, [universal.Contexts()]) as p, torch.no_grad():
            network(x)
        shares.append(p.result().table.select(quantity=SHARE).column("value"))
    assert min(shares[0]) > 1e-4
    assert max(shares[1]) < 1e-9

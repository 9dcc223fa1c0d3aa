"""Learnt heads and the ladder: gradients, the floor of the loss, and nulls against relabelled tokens."""

import math
from functools import partial

import networkx
import pytest
import torch
from torch import nn

from transformer_theory.core.statistics import permutations
from transformer_theory.theories.graph_tokens import ladder
from transformer_theory.theories.graph_tokens.heads import attention_maps, overlap, query_rows
from transformer_theory.theories.graph_tokens.identifiers import Laplacian, Orthonormal, tokenize_graph
from transformer_theory.theories.graph_tokens.ladder import LADDER, WORST, null_overlaps
from transformer_theory.theories.graph_tokens.learning import (
    LearntHeads,
    draw_batch,
    padded,
    pattern_loss,
    train_heads,
)
from transformer_theory.theories.graph_tokens.patterns import PATTERNS, normalised_patterns


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Fixed(nn.Module):
    """Returns given attention weights, as logarithms."""

    def __init__(self, maps: torch.Tensor):
        super().__init__()
        self.maps = maps

    def forward(self, addresses: torch.Tensor) -> torch.Tensor:
        return self.maps.clamp_min(1e-30).log().expand(len(addresses), *self.maps.shape)


def test_the_loss_of_perfect_and_of_uniform_heads():
    batch, targets = draw_batch(5, 2, Orthonormal(), 5, generator()), normalised_patterns(5)
    # the entropy of the patterns
    floor = sum(math.log(pattern.keys_per_query(5)) for pattern in PATTERNS) / 15
    assert float(pattern_loss(Fixed(targets), batch)) == pytest.approx(floor)
    assert float(pattern_loss(Fixed(torch.full_like(targets, 1 / 25)), batch)) == pytest.approx(math.log(25))


def test_learnt_heads_are_attention():
    model, batch = LearntHeads(12, 6, generator()), draw_batch(4, 2, Orthonormal(), 5, generator())
    maps = model(batch).exp()
    assert maps.shape == (2, 15, 16, 16)
    z = batch[1].float()
    row = (z[3] @ model.query[8]) @ (z @ model.key[8]).T / math.sqrt(6)
    assert torch.allclose(maps[1, 8, 3], row.softmax(0), atol=1e-6)


def test_training_learns_the_patterns():
    trained = train_heads(Orthonormal(), sizes=(4, 5), width=5, steps=120, generator=generator())
    batch = draw_batch(5, 4, Orthonormal(), 5, generator(7))
    with torch.no_grad():
        values = {
            name: overlap(model(batch)[0].exp().double(), normalised_patterns(5), query_rows(5))
            for name, model in (("trained", trained), ("untrained", LearntHeads(12, 32, generator())))
        }
    assert values["trained"] > 0.9
    assert values["untrained"] < 0.5


def test_padding_keeps_inner_products():
    tokens = tokenize_graph(networkx.cycle_graph(4), generator=generator())
    wide = padded(tokens, 7)
    assert wide.shape == (16, 16)
    assert torch.allclose(wide @ wide.T, tokens.addresses @ tokens.addresses.T)
    with pytest.raises(ValueError, match=r"width must be at least 4, .* got 3"):
        padded(tokens, 3)


def test_the_null_is_that_of_relabelled_keys():
    """Draw i: queries of the graph, keys of the same graph with identifiers in another order."""
    n, graph = 5, networkx.path_graph(5)
    P = Laplacian(3)(graph, generator())
    tokens = tokenize_graph(graph, lambda *_: P)
    maps, targets, rows = attention_maps(tokens, scale=3.0), normalised_patterns(n), query_rows(n)
    draws = null_overlaps(maps, targets, rows, generator(1), draws=4)
    for draw, order in zip(draws, permutations(n, 4, generator(1))):
        keys = tokenize_graph(graph, lambda *_, order=order: P[order])
        both = torch.zeros(15, 25, 25, dtype=torch.float64)
        for number, pattern in enumerate(PATTERNS):
            first, second = tokens.structure.reshape(25, 2, 3), keys.structure.reshape(25, 2, 3)
            products = torch.einsum("ixd,jyd->xyij", first, second)
            t = 1 if pattern.key == "node" else -1
            scores = (pattern.signs[..., None, None] * products).sum((0, 1)) + 2 * t * (
                keys.types[:, 0] - keys.types[:, 1]
            )
            both[number] = (3.0 * scores).softmax(-1)
        assert draw == pytest.approx(overlap(both, targets, rows), abs=1e-12)
    assert len(set(draws)) > 1


def test_rungs(monkeypatch):
    """The first rung with all draws of its null, the others with a tenth of them."""
    assert [rung.column for rung in LADDER.rungs if rung.covered] == ["exact construction"]
    values = {}
    for rung in LADDER.rungs:
        if rung.column != "learnt":
            row, worst = rung.measure(generator(3))
            assert (row.quantity, worst.quantity, row.predicted) == (LADDER.quantity, WORST, 1.0)
            assert row.null is not None
            assert len(row.null.draws) == (39 if values else 399)
            values[rung.name] = row.value
            monkeypatch.setattr(ladder, "null_overlaps", partial(null_overlaps, draws=39))
    assert values["integers, hard-max"] == 1
    assert values["bfloat16"] > 0.999
    assert values["softmax, a = 5"] == pytest.approx(values["Laplacian, all n"], abs=0.01)
    assert (
        values["Laplacian, all n"]
        > values["random, 1024 dimensions"]
        > values["random, 64 dimensions"]
        > values["Laplacian, 5 of 10"]
    )

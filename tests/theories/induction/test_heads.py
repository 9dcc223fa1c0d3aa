"""The explicit head against a loop over the sequence, paths against brute force, and copying against the
whole circuit.
"""

import math

import pytest
import torch
from torch import nn

from tests.cases import each_case
from transformer_theory.theories import induction
from transformer_theory.theories.induction.circuits import AttentionOnly, eigenvalue_share
from transformer_theory.theories.induction.heads import (
    InductionHead,
    in_context_bigram,
    random_sequences,
    with_bos,
)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_the_in_context_bigram_is_a_count():
    ids = torch.tensor([[2, 0, 1, 0, 1, 1, 0]])
    target, known = in_context_bigram(ids, 2)  # 2 is BOS
    assert known.tolist() == [[False, False, False, True, True, True, True]]
    assert target[0, 3].tolist() == [0.0, 1.0]
    assert target[0, 5].tolist() == [0.5, 0.5]  # after 1: 0, 1
    assert target[0, 6].tolist() == [0.0, 1.0]  # after 0: 1, 1


def test_the_construction_is_a_count_with_softmax_weights():
    """A loop over queries and keys, with the weights of both heads from their formulas."""
    scale, ids = 4.0, random_sequences(2, vocabulary=3, length=9, generator=generator(1))
    out = InductionHead(3, 9, scale).output(ids)
    for n in range(2):
        for t in range(9):
            scores = []
            for j in range(t + 1):
                first = [math.exp(scale) if s == j - 1 else 1.0 for s in range(j + 1)]
                scores.append(
                    scale * sum(w for s, w in enumerate(first) if ids[n, s] == ids[n, t]) / sum(first)
                )
            weights = torch.tensor(scores, dtype=torch.float64).softmax(0)
            for v in range(3):
                expected = float(weights[ids[n, : t + 1] == v].sum())
                assert float(out[n, t, v]) == pytest.approx(expected, abs=1e-12)


def test_the_error_falls_with_the_scale():
    ids = random_sequences(8, vocabulary=5, length=60, generator=generator())
    target, known = in_context_bigram(ids, 5)
    errors = [
        float((InductionHead(5, 60, b).output(ids) - target)[known].abs().max()) for b in (5.0, 30.0, 400.0)
    ]
    assert 0.1 < errors[0] < 0.3
    assert errors[1] < 1e-10
    assert errors[2] < 1e-15
    assert InductionHead(5, 60, 30.0).bound() > errors[1]


def test_the_weight_on_the_previous_token():
    head = InductionHead(5, 41, 5.0)
    A = head.network().run(random_sequences(1, vocabulary=5, length=41, generator=generator()))[1][0][0, 0]
    assert float(A.diagonal(-1).mean()) == pytest.approx(0.8828, abs=1e-4)


def test_paths_of_three_layers_against_brute_force():
    def normal(*shape):
        return torch.randn(shape, generator=g, dtype=torch.float64)

    g = generator(2)
    layers = tuple(induction.Heads(normal(2, 6, 6) / 3, normal(2, 6, 6) / 3) for _ in range(3))
    model = AttentionOnly(normal(4, 6), normal(8, 6), layers, normal(6, 4))
    ids = torch.randint(4, (2, 8), generator=g)
    terms = induction.path_expansion(model, ids)
    assert len(terms) == 3**3  # each layer: one of two heads, or none
    logits, maps = model.run(ids)
    assert torch.allclose(torch.stack(list(terms.values())).sum(0), logits, atol=1e-12)
    chain = (
        maps[2][:, 1] @ maps[0][:, 0] @ model.stream(ids) @ layers[0].W_OV[0] @ layers[2].W_OV[1] @ model.W_U
    )
    assert torch.allclose(terms[(0, 0), (2, 1)], chain, atol=1e-12)


class Mixing(nn.Module):
    """Attention of two heads without a residual connection."""

    def __init__(self, bias: bool):
        super().__init__()
        self.o, self.v, self.k, self.q = (nn.Linear(8, 8, bias=bias) for _ in range(4))

    def forward(self, x):
        q, k, v = (part(x).unflatten(-1, (2, 4)).transpose(1, 2) for part in (self.q, self.k, self.v))
        return self.o(
            nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        )


class Foreign(nn.Module):
    """A network of another layout than those of the package."""

    def __init__(self, bias: bool):
        super().__init__()
        self.logits = nn.Linear(8, 7, bias=False)
        self.embedding, self.places = nn.Embedding(7, 8), nn.Parameter(torch.randn(50, 8))
        self.blocks = nn.ModuleList(Mixing(bias) for _ in range(2))

    def forward(self, ids):
        x = self.embedding(ids) + self.places[: ids.shape[1]]
        for block in self.blocks:
            x = x + block(x)
        return self.logits(x)


def test_an_attention_only_network_is_its_matrices():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        networks = induction.Network(vocabulary=7, length=10, layers=2, heads=2, dim=8), Foreign(bias=False)
        others = induction.Network(vocabulary=7, length=10, dim=8, norm=True), Foreign(bias=True)
    ids = torch.randint(7, (3, 10), generator=generator())
    for network in networks:
        model = induction.attention_only(network)
        assert torch.allclose(model.run(ids)[0].float(), network(ids), atol=1e-5)
        assert torch.allclose(
            torch.stack(list(induction.path_expansion(model, ids).values())).sum(0),
            model.run(ids)[0],
            atol=1e-10,
        )
    for network in others:
        with pytest.raises(
            ValueError, match="must consist of causal attention only, without norms, MLPs and biases"
        ):
            induction.attention_only(network)


def test_circuits_and_the_copying_score():
    W_E, W_V, W_O, W_U = (
        torch.randn(s, generator=generator(i), dtype=torch.float64)
        for i, s in enumerate([(20, 9), (9, 3), (3, 9), (9, 20)])
    )
    W = torch.randn(9, 9, generator=generator(5), dtype=torch.float64)
    QK, OV = AttentionOnly(W_E, W_E[:4], (induction.Heads(W[None], (W_V @ W_O)[None]),), W_U).circuits(0)
    assert float(QK[0, 3, 7]) == pytest.approx(float(W_E[3] @ W @ W_E[7]))
    values = torch.linalg.eigvals(OV[0])
    assert float(induction.copying_score(W_V, W_O, W_E, W_U)) == pytest.approx(
        float(values.sum().real / values.abs().sum()), abs=1e-8
    )
    assert float(eigenvalue_share(torch.eye(4))) == 1
    assert float(eigenvalue_share(-torch.eye(4))) == -1
    assert float(eigenvalue_share(torch.tensor([[0.0, 1.0], [-1.0, 0.0]]))) == 0


def test_one_layer_attends_uniformly():
    ids = random_sequences(3, vocabulary=4, length=12, generator=generator())
    out = InductionHead(4, 12, 9.0).output(ids, composed=False)
    for t in range(12):
        shares = torch.nn.functional.one_hot(ids[:, : t + 1], 5)[..., :4].double().mean(1)
        assert torch.allclose(out[:, t], shares)


HEAD, ONES = InductionHead(3, 8, 5.0), torch.ones(2, 4, 2)


@pytest.mark.usefixtures("unchecked")
@each_case(
    ("call", "message"),
    [
        (lambda: HEAD.output(torch.zeros(1, 4, dtype=torch.long)), "must start with BOS, the id 3"),
        (
            lambda: HEAD.output(with_bos(torch.zeros(1, 9, dtype=torch.long), 3)),
            r"n from 1 to 8, got \[1, 10\]",
        ),
        (lambda: HEAD.output(torch.tensor([3, 1, 2])), r"got \[3\]"),
        (lambda: HEAD.output(torch.zeros(2, 0, dtype=torch.long)), r"got \[2, 0\]"),
        (lambda: InductionHead(3, 8, 0.0), "scale must be positive"),
        (lambda: with_bos(torch.tensor([1, 2]), 5), r"ids must have shape \[batch, n\]"),
        (lambda: in_context_bigram(torch.tensor([[-1, 2, -1]]), 5), r"ids must lie in \[0, 6\), got -1 to 2"),
        (lambda: in_context_bigram(torch.tensor([[7, 8, 7]]), 5), r"ids must lie in \[0, 6\), got 7 to 8"),
        (lambda: in_context_bigram(torch.rand(2, 5), 5), "ids must be torch.int32 or torch.int64"),
        (
            lambda: induction.copying_score(ONES, torch.ones(2, 2, 5), torch.ones(7, 4), torch.ones(4, 7)),
            "must have a square product",
        ),
        (
            lambda: induction.copying_score(0 * ONES, ONES.mT, torch.ones(7, 4), torch.ones(4, 7)),
            "eigenvalue other than 0, got 2 without",
        ),
        (
            lambda: induction.copying_score(torch.nan * ONES, ONES.mT, torch.ones(7, 4), torch.ones(4, 7)),
            "must be finite, got 8 NaN",
        ),
    ],
)
def test_bad_inputs(call, message):
    with pytest.raises(ValueError, match=message):
        call()

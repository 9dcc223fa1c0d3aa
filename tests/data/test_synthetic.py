"""The samplers keep the facts that they state."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cases import each_case
from transformer_theory.data import TokenData
from transformer_theory.data.synthetic import noise_like, separable_tokens, sequence_classes, subspace_mixture


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(1, 20),
    seq=st.integers(1, 5),
    classes=st.integers(1, 4),
    rank=st.integers(1, 3),
    spare=st.integers(0, 4),
    seed=st.integers(0, 9),
)
def test_subspaces_are_orthonormal_and_hold_their_tokens(n, seq, classes, rank, spare, seed):
    drawn = subspace_mixture(
        n, seq=seq, dim=classes * rank + spare, classes=classes, rank=rank, generator=rng(seed)
    )
    frame = drawn.bases.transpose(1, 2).reshape(classes * rank, -1)
    torch.testing.assert_close(frame @ frame.T, torch.eye(classes * rank).double(), atol=1e-12, rtol=0)
    own = drawn.bases[drawn.data.labels]
    inside = torch.einsum("ndp,nsp->nsd", own, torch.einsum("ndp,nsd->nsp", own, drawn.data.tokens))
    torch.testing.assert_close(inside, drawn.data.tokens, atol=1e-12, rtol=0)
    counts = drawn.data.labels.bincount(minlength=classes)
    assert counts.max() - counts.min() <= 1


def test_tokens_have_the_stated_energy():
    drawn = subspace_mixture(4000, seq=5, dim=12, classes=3, rank=2, noise=0.5, generator=rng())
    energy = drawn.data.tokens.square().sum(-1)
    # variance of |x|^2: 2/p (1 + s^2 p/d)^2 + 2 (d-p) s^4/d^2 with p=2, d=12, s=.5
    deviation = (2 / 2 * (1 + 0.25 * 2 / 12) ** 2 + 2 * 10 * 0.0625 / 144) ** 0.5
    assert abs(float(energy.mean()) - 1.25) < 4 * deviation / 20_000**0.5


@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(1, 20),
    seq=st.integers(1, 6),
    dim=st.integers(3, 9),
    margin=st.sampled_from([0.1, 1.0, 7.0]),
    seed=st.integers(0, 9),
)
def test_the_margin_is_exact_and_the_head_sees_one_token(n, seq, dim, margin, seed):
    drawn = separable_tokens(n, seq=seq, dim=dim, margin=margin, generator=rng(seed))
    tokens, rows = drawn.data.tokens, torch.arange(n)
    W = torch.outer(drawn.key_direction, drawn.query_direction) / margin
    scores = torch.einsum("nsd,de,ne->ns", tokens, W, drawn.data.query)
    gaps = scores[rows, drawn.selected][:, None] - scores
    others = torch.ones(n, seq, dtype=torch.bool).index_put((rows, drawn.selected), torch.tensor(False))
    torch.testing.assert_close(gaps[others], torch.ones(n * (seq - 1)).double(), atol=1e-9, rtol=0)
    assert float(W.norm()) == pytest.approx(drawn.norm_bound)
    values = (2 * drawn.data.labels - 1)[:, None] * (tokens @ drawn.head)
    torch.testing.assert_close(values[rows, drawn.selected], torch.ones(n).double(), atol=1e-9, rtol=0)
    torch.testing.assert_close(values[others], torch.zeros(n * (seq - 1)).double(), atol=1e-9, rtol=0)


def test_the_norm_bound_holds_for_the_convex_solution():
    import cvxpy as cp

    drawn = separable_tokens(5, seq=4, dim=4, margin=0.5, generator=rng(3))
    tokens, query, W = drawn.data.tokens.numpy(), drawn.data.query.numpy(), cp.Variable((4, 4))
    constraints = [
        (tokens[i, a] - tokens[i, t]) @ W @ query[i] >= 1
        for i, a in enumerate(drawn.selected.tolist())
        for t in range(4)
        if t != a
    ]
    norm = cp.Problem(cp.Minimize(cp.norm(W, "fro")), constraints).solve(solver="CLARABEL")
    assert 0 < norm <= drawn.norm_bound + 1e-6
    assert norm < 0.999 * drawn.norm_bound  # a bound, not the value


@settings(max_examples=25, deadline=None)
@given(
    classes=st.integers(1, 4),
    common=st.integers(0, 4),
    distinct=st.integers(1, 4),
    share=st.sampled_from([0.2, 0.5, 0.9]),
)
def test_inner_products_of_the_conditional(classes, common, distinct, share):
    c = share if common else 0.0
    drawn = sequence_classes(
        7, seq=5, classes=classes, common=common, distinct=distinct, common_share=c, generator=rng()
    )
    P = drawn.conditional
    torch.testing.assert_close(P.sum(-1), torch.ones(classes).double())
    shared = c**2 / common if common else 0.0
    torch.testing.assert_close(P @ P.T, shared + (1 - c) ** 2 / distinct * torch.eye(classes).double())
    assert drawn.data.vocab_size == common + classes * distinct + 1 + classes == P.shape[1]


def test_sequences_follow_the_conditional():
    drawn = sequence_classes(600, seq=101, classes=3, common=2, distinct=4, common_share=0.3, generator=rng())
    ids, labels = drawn.data.ids, drawn.data.labels
    assert (ids[:, -1] == 14).all()
    assert torch.equal(drawn.data.next_id, 15 + labels)
    assert torch.equal(drawn.data.tokens.argmax(-1), ids)
    for k in range(3):
        shares = ids[labels == k, :-1].flatten().bincount(minlength=drawn.data.vocab_size).double() / 20_000
        spread = (drawn.conditional[k] * (1 - drawn.conditional[k]) / 20_000).sqrt()
        # and exactly zero where the class has no token
        assert ((shares - drawn.conditional[k]).abs() <= 4.5 * spread).all()


def test_samplers_leave_the_global_generator_alone():
    before = torch.get_rng_state()
    for _ in range(2):
        a = separable_tokens(4, seq=3, dim=3, generator=rng(1)).data.tokens
        b = subspace_mixture(4, seq=3, dim=4, classes=2, rank=2, noise=0.1, generator=rng(1)).data.tokens
        c = sequence_classes(4, seq=3, classes=2, common=1, distinct=1, generator=rng(1)).data.ids
        result = [np.asarray(x).tobytes() for x in (a, b, c)]
    assert result == [np.asarray(x).tobytes() for x in (a, b, c)]
    assert torch.equal(torch.get_rng_state(), before)


@each_case(
    ("call", "message"),
    [
        (
            lambda g: subspace_mixture(4, seq=2, dim=3, classes=2, rank=2, generator=g),
            r"classes \* rank must not exceed dim .* 2 \* 2 > 3",
        ),
        (
            lambda g: subspace_mixture(0, seq=2, dim=4, classes=2, rank=2, generator=g),
            "n must be at least 1, got 0",
        ),
        (
            lambda g: subspace_mixture(1, seq=2, dim=4, classes=2, rank=2, noise=-1.0, generator=g),
            "noise must be at least 0, got -1.0",
        ),
        (lambda g: separable_tokens(2, seq=2, dim=2, generator=g), "dim must be at least 3"),
        (
            lambda g: separable_tokens(2, seq=2, dim=3, margin=0.0, generator=g),
            "margin must be positive and finite, got 0.0",
        ),
        (
            lambda g: separable_tokens(2, seq=2, dim=3, margin=float("nan"), generator=g),
            "margin must be positive",
        ),
        (
            lambda g: sequence_classes(2, seq=1, classes=2, common=1, distinct=1, generator=g),
            "seq must be at least 2",
        ),
        (
            lambda g: sequence_classes(2, seq=3, classes=2, common=0, distinct=1, generator=g),
            "common_share must lie in",
        ),
        (
            lambda g: sequence_classes(
                2, seq=3, classes=2, common=1, distinct=1, common_share=1.0, generator=g
            ),
            "common_share must lie in",
        ),
        (
            lambda g: sequence_classes(2, seq=3, classes=2, common=1, distinct=0, generator=g),
            "distinct must be at least 1",
        ),
    ],
)
def test_samplers_refuse_impossible_sizes(generator, call, message):
    with pytest.raises(ValueError, match=message):
        call(generator)


def test_noise_has_the_shape_of_the_data_and_nothing_else():
    n, seq, dim = 400, 5, 3
    labels = torch.arange(n) % 4
    tokens = torch.randn(n, seq, dim, generator=rng(), dtype=torch.float64) + 5.0 * labels[:, None, None]
    ids = labels[:, None] * 10 + torch.arange(seq)
    data = TokenData(tokens, labels=labels, query=tokens[:, 2], ids=ids, next_id=labels, name="mine")
    noise = noise_like(data, rng(1))
    assert noise.tokens.shape == data.tokens.shape
    assert noise.query_position == 2
    assert float(noise.tokens.square().mean()) == pytest.approx(float(data.tokens.square().mean()), rel=0.05)
    assert torch.equal(noise.labels.bincount(), labels.bincount())
    assert torch.equal(noise.next_id, noise.labels)  # one permutation for both
    # the words of each position, in another order than those of the other positions
    for position in range(seq):
        assert torch.equal(noise.ids[:, position].sort().values, ids[:, position].sort().values)
    assert not torch.equal(noise.ids[:, 0] // 10, noise.ids[:, 1] // 10)
    # .25 by chance, 1 in the data
    assert float((noise.ids[:, 0] // 10 == noise.labels).double().mean()) < 0.4
    means = torch.stack([noise.tokens[noise.labels == k].mean() for k in range(4)])
    assert float(means.std() / noise.tokens.std()) < 0.15
    assert noise.name == "noise of the shape of mine"
    assert noise.images is None


def test_noise_without_labels_and_with_a_foreign_query():
    data = TokenData(torch.ones(900, 2, 2), query=2 * torch.ones(900, 2))
    noise = noise_like(data, rng())
    assert float(noise.query.square().mean()) == pytest.approx(4, rel=0.1)
    assert noise.labels is None
    assert noise.query_position is None

"""Heads are heads, windows are sequences, and channels are no tokens; every expected number comes from the
network itself.
"""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.testing import assert_close

from tests.cases import each_case
from tests.problems.networks import Keep, built, seen_in, tokens
from transformer_theory.metrics import AttentionStatistics
from transformer_theory.probes import probe

B, C, H, S, W = 3, 16, 4, 8, 2  # batch, channels, heads, side of the image, side of a window
D = C // H


class Windows(nn.Module):
    """Attention in windows of an image ``[b, c, x, y]``, as Twins has it; ``order`` is how batch, windows and
    heads share their axes; ``way`` is what happens to queries and keys before the product.
    """

    def __init__(self, order: str, way: str = "plain"):
        super().__init__()
        self.order, self.way = order, way
        kernel = 3 if way == "depthwise" else 1
        groups = {"groups": C, "padding": 1} if way == "depthwise" else {}
        self.q, self.k, self.v = (nn.Conv2d(C, C, kernel, **groups) for _ in range(3))
        self.out = nn.Conv2d(C, C, 1)
        self.table = torch.linspace(0.5, 1.5, D)
        self.weights: list[torch.Tensor] = []

    def cut(self, f):
        """[b, c, x, y] -> [b, windows, heads, tokens, d]."""
        f = f.reshape(B, H, D, S // W, W, S // W, W).permute(0, 3, 5, 1, 4, 6, 2)
        return f.reshape(B, (S // W) ** 2, H, W * W, D)

    def changed(self, x):
        if self.way == "normalised":
            return functional.normalize(x, dim=-1)
        if self.way == "rotated":
            return x * self.table + torch.cat([-x[..., D // 2 :], x[..., : D // 2]], -1) * self.table.flip(0)
        return x

    def forward(self, f):
        q, k, v = (self.cut(g(f)) for g in (self.q, self.k, self.v))
        q, k = self.changed(q), self.changed(k)
        n = (S // W) ** 2
        if self.order == "b w h":
            q, k, v = (x.flatten(0, 2) for x in (q, k, v))
        elif self.order == "b h w":
            q, k, v = (x.transpose(1, 2).flatten(0, 2) for x in (q, k, v))
        elif self.order == "(b h), w":
            q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (q, k, v))
        elif self.order == "b, h, w":
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        weights = (q @ k.mT / math.sqrt(D)).softmax(-1)
        out = weights @ v
        shape = (B, n, H, W * W)
        if self.order in ("b w h", "b, w, h"):
            out, weights = out.reshape(*shape, D), weights.reshape(*shape, -1)
        else:
            out, weights = (x.reshape(B, H, n, W * W, -1).transpose(1, 2) for x in (out, weights))
        with torch._C.DisableTorchFunction():
            self.weights.append(weights.detach().clone())
        out = out.reshape(B, S // W, S // W, H, W, W, D).permute(0, 3, 6, 1, 4, 2, 5).reshape(B, C, S, S)
        return self.out(out)


class Block(nn.Module):
    def __init__(self, attention: nn.Module):
        super().__init__()
        self.attention = attention

    def forward(self, x):
        return x + self.attention(x)


def entropies(weights: torch.Tensor) -> torch.Tensor:
    return torch.special.entr(weights).sum(-1).mean((0, 1, 3))


@each_case("way", ["plain", "depthwise", "normalised", "rotated"])
@each_case("order", ["b w h", "b h w", "(b h), w", "b, h, w", "b, w, h"])
def test_windows_are_sequences_and_heads_are_heads(order, way):
    model = built(lambda: nn.Sequential(Block(Windows(order, way)), Block(Windows(order, way)))).eval()
    x = torch.randn(B, C, S, S, generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), probe(model, [AttentionStatistics()], draws=0) as p:
        model(x)
    for layer, block in enumerate(model):
        rows = [row for row in p.rows if row.quantity == "attention entropy" and row.layer == layer]
        assert [row.head for row in rows] == list(range(H))
        expected = entropies(block.attention.weights[0])
        assert_close(torch.tensor([row.value for row in rows]), expected, rtol=1e-5, atol=1e-5)


class Divided(nn.Module):
    """Tokens are divided into heads first; all heads share small matrices, as in a widespread tutorial."""

    def __init__(self, *, first: bool):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(D, D, bias=False) for _ in range(3))
        self.first, self.out = nn.Linear(C, C) if first else nn.Identity(), nn.Linear(C, C)

    def forward(self, x):
        x = self.first(x)
        q, k, v = (layer(x.reshape(len(x), -1, H, D)) for layer in (self.q, self.k, self.v))
        weights = (torch.einsum("nqhd,nkhd->nhqk", q, k) / 2).softmax(-1)
        self.weights = weights.detach()
        return self.out(torch.einsum("nhql,nlhd->nqhd", weights, v).reshape(x.shape))


@pytest.mark.parametrize("first", [True, False])
def test_heads_that_share_their_matrices_are_heads(first):
    model, keep = built(lambda: nn.Sequential(Block(Divided(first=first)))).eval(), Keep()
    with torch.no_grad(), probe(model, [AttentionStatistics(), keep], draws=0) as p:
        model(tokens(B, 9, C))
    (seen,) = keep.of("attention")
    assert_close(seen.weights, model[0].attention.weights)
    assert seen.bilinear is None
    rows = [row.value for row in p.rows if row.quantity == "attention entropy"]
    assert_close(torch.tensor(rows), entropies(seen.weights[:, None]), rtol=1e-5, atol=1e-5)


class Channels(nn.Module):
    """Attention between channels (XCiT, Restormer, DaViT): softmax over ``[heads, d, d]``."""

    def __init__(self, way: str):
        super().__init__()
        self.way, self.temperature = way, nn.Parameter(torch.ones(H, 1, 1))
        self.qkv, self.out = nn.Linear(C, 3 * C), nn.Linear(C, C)
        self.conv = nn.Conv1d(C, 3 * C, 1)
        self.depthwise = nn.Conv1d(3 * C, 3 * C, 3, padding=1, groups=3 * C)

    def forward(self, x):
        n, t, _ = x.shape
        if self.way in ("linear", "normalised", "unknown"):
            q, k, v = self.qkv(x).reshape(n, t, 3, H, D).permute(2, 0, 3, 4, 1)
        else:
            q, k, v = self.depthwise(self.conv(x.mT)).chunk(3, 1)
            q, k, v = (part.reshape(n, H, D, t) for part in (q, k, v))
        if self.way != "linear":
            q, k = functional.normalize(q, dim=-1), functional.normalize(k, dim=-1)
        if self.way == "unknown":
            with torch._C.DisableTorchFunction():
                q, k = q.clone(), k.clone()
        if self.way == "kernel":
            out = functional.scaled_dot_product_attention(q, k, v)
        else:
            out = (q @ k.mT * self.temperature).softmax(-1) @ v
        return self.out(out.permute(0, 3, 1, 2).reshape(n, t, C))


class Mixtures(nn.Module):
    """Keys and values are a few mixtures of tokens (Linformer), formed in several ways."""

    def __init__(self, way: str):
        super().__init__()
        self.way, self.qkv, self.out = way, nn.Linear(C, 3 * C), nn.Linear(C, C)
        self.mix = nn.Parameter(torch.randn(9, 5))
        self.layer = nn.Linear(9, 5)

    def mixed(self, x):
        if self.way == "einsum":
            return torch.einsum("bnd,nk->bkd", x, self.mix)
        if self.way == "product":
            return torch.matmul(self.mix.t(), x)
        return self.layer(x.transpose(1, 2)).transpose(1, 2)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        q, k, v = (y.unflatten(-1, (H, D)).transpose(1, 2) for y in (q, self.mixed(k), self.mixed(v)))
        return self.out(((q @ k.mT / 2).softmax(-1) @ v).transpose(1, 2).flatten(2))


class Landmarks(nn.Module):
    """Nystrom attention: a few means of tokens stand between queries and keys."""

    def __init__(self, *, first: bool):
        super().__init__()
        self.first, self.qkv, self.out = first, nn.Linear(C, 3 * C), nn.Linear(C, C)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, H, D)).permute(2, 0, 3, 1, 4)
        few_q, few_k = (y.unflatten(2, (3, 3)).mean(3) for y in (q, k))
        pairs = ((q, few_k), (few_q, few_k), (few_q, k))
        a, b, c = ((left @ right.mT).softmax(-1) for left, right in pairs)
        inverse = b.mT / 2
        inverse = 2 * inverse - inverse @ b @ inverse
        right = c @ v if self.first else None
        left = a @ inverse
        return self.out((left @ (c @ v if right is None else right)).transpose(1, 2).flatten(2))


class Matrices(nn.Module):
    """One matrix for each head: x is multiplied by ``[heads, dim, d]``, or by an einsum of it."""

    def __init__(self, *, einsum: bool):
        super().__init__()
        self.einsum, self.maps = einsum, nn.Parameter(torch.randn(3, H, C, D) * 0.3)

    def forward(self, x):
        if self.einsum:
            q, k, v = (torch.einsum("btc,hcd->bhtd", x, W) for W in self.maps)
        else:
            q, k, v = (x[:, None] @ W for W in self.maps)
        weights = (q @ k.mT / 2).softmax(-1)
        self.weights = weights.detach()
        return (weights @ v).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("einsum", [True, False])
def test_heads_with_matrices_of_their_own(einsum):
    model = built(lambda: nn.Sequential(Block(Matrices(einsum=einsum)))).eval()
    (seen,) = seen_in(model, tokens(B, 9, C)).of("attention")
    assert_close(seen.weights, model[0].attention.weights)


REFUSED = {
    f"channels, {way}": (lambda way=way: Channels(way), "over channels")
    for way in ("linear", "normalised", "conv", "kernel", "unknown")
}
REFUSED |= {
    f"mixtures, {way}": (lambda way=way: Mixtures(way), "mixtures of tokens")
    for way in ("einsum", "product", "linear")
}
REFUSED["landmarks"] = (lambda: Landmarks(first=False), "low-rank")
REFUSED["landmarks, values first"] = (lambda: Landmarks(first=True), "low-rank")


@each_case("kind", REFUSED)
def test_what_is_no_attention_over_tokens_has_a_reason_and_no_rows(kind):
    make, reason = REFUSED[kind]
    model = built(lambda: nn.Sequential(Block(make()), Block(make()))).eval()
    keep = Keep()
    with torch.no_grad(), probe(model, [AttentionStatistics(), keep]) as p:
        model(tokens(B, 9, C))
    assert not keep.of("attention")
    assert len(keep.of("features")) == 2
    assert not [row for row in p.rows if row.head is not None]
    reasons = [(row.layer, row.reason) for row in p.rows if row.quantity == "attention"]
    assert [layer for layer, _ in reasons] == [0, 1]
    assert all(reason in text and f"{layer}.attention" in text for layer, text in reasons)


class Unknown(nn.Module):
    """Windows and heads in one axis, made by operations that the probe does not see."""

    def forward(self, x):
        with torch._C.DisableTorchFunction():
            q = x.reshape(B, 4, 2, H, D).transpose(2, 3).reshape(B * 4 * H, 2, D)
        out = (q @ q.mT).softmax(-1) @ q
        return out.reshape(B, 4, H, 2, D).transpose(2, 3).reshape(B, 8, C)


def test_windows_that_may_be_heads_have_a_reason():
    with torch.no_grad(), probe(nn.Sequential(Unknown()), [AttentionStatistics()]) as p:
        p.model(tokens(B, 8, C))
    assert not [row for row in p.rows if row.head is not None]
    (row,) = (row for row in p.rows if row.quantity == "attention")
    assert "heads and windows" in row.reason


def test_softmax_over_the_keys_of_linear_attention_is_no_attention():
    class Linear(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Linear(C, 3 * C)

        def forward(self, x):
            q, k, v = self.qkv(x).unflatten(-1, (3, H, D)).permute(2, 0, 3, 1, 4)
            context = k.softmax(-2).mT @ v
            return (q.softmax(-1) @ context).transpose(1, 2).flatten(2)

    class Plain(Linear):
        def forward(self, x):
            q, k, v = self.qkv(x).unflatten(-1, (3, H, D)).permute(2, 0, 3, 1, 4)
            return ((q @ k.mT).softmax(-1) @ v).transpose(1, 2).flatten(2)

    model = built(lambda: nn.Sequential(Block(Plain()), Block(Linear()))).eval()
    with torch.no_grad(), probe(model, [AttentionStatistics()]) as p:
        model(tokens(B, 9, C))
    assert {row.layer for row in p.rows if row.head is not None} == {0}
    (row,) = (row for row in p.rows if row.quantity == "attention")
    assert row.layer == 1
    assert "not recognised in 1" in row.reason

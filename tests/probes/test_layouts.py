"""The residual stream, W and the order of heads in layouts of other people's networks, each with its stream
noted by the network itself.
"""

import math
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from tests.cases import each_case
from tests.problems.networks import Keep, all_metrics, built, tokens
from transformer_theory.core.metric import Metric
from transformer_theory.data import TokenData
from transformer_theory.metrics import AttentionStatistics, Geometry
from transformer_theory.probes import NoAttention, probe
from transformer_theory.probes.features import features
from transformer_theory.theories.crate.in_networks import Sparsity

D, H, DEPTH, N, T = 8, 2, 3, 3, 5


class Attention(nn.Module):
    """Attention in several ways of writing it; ``norm`` is applied inside, as in vit-pytorch."""

    def __init__(self, way: str = "fused", *, norm: bool = False):
        super().__init__()
        self.way, self.norm = way, nn.LayerNorm(D) if norm else nn.Identity()
        self.to_qkv, self.out, self.local = nn.Linear(D, 3 * D), nn.Linear(D, D), nn.Linear(D // H, D // H)
        self.few = nn.Linear(D, 2 * D // H)

    def forward(self, x):
        x = self.norm(x)
        n, t, _ = x.shape
        if self.way == "heads first":
            # [heads * batch, tokens, head_dim]
            q, k, v = (torch.cat(part.split(D // H, -1), 0) for part in self.to_qkv(x).chunk(3, -1))
            out = torch.bmm((q @ k.mT / math.sqrt(D // H)).softmax(-1), v)
            return self.out(torch.cat(out.split(n, 0), -1))
        q, k, v = self.to_qkv(x).view(n, t, 3, H, -1).permute(2, 0, 3, 1, 4).unbind(0)
        if self.way == "tied":
            q = k = v
        if self.way == "grouped":
            k, v = (
                part.expand(-1, H, -1, -1) for part in self.few(x).view(n, t, 2, 1, -1).permute(2, 0, 3, 1, 4)
            )
        if self.way == "grouped in the kernel":
            k, v = self.few(x).view(n, t, 2, 1, -1).permute(2, 0, 3, 1, 4)
            out = functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        elif self.way == "chunks":
            out = torch.cat(
                [functional.scaled_dot_product_attention(part, k, v) for part in q.split(2, 2)], 2
            )
        elif self.way == "one head at a time":
            out = torch.stack(
                [functional.scaled_dot_product_attention(q[:, h], k[:, h], v[:, h]) for h in range(H)], 1
            )
        elif self.way == "written out":
            out = (q * (D // H) ** -0.5 @ k.mT).softmax(-1) @ v
        elif self.way == "hidden":  # softmax by exp and a sum
            weights = (q @ k.mT * (D // H) ** -0.5).exp()
            out = weights / weights.sum(-1, keepdim=True) @ v
        else:
            out = functional.scaled_dot_product_attention(q, k, v)
        if self.way == "value residual":
            out = out + v
        if self.way == "local values":
            out = out + self.local(v)
        return self.out(out.transpose(1, 2).reshape(n, t, D))


def mlp() -> nn.Module:
    return nn.Sequential(nn.LayerNorm(D), nn.Linear(D, D), nn.GELU(), nn.Linear(D, D))


def hidden_sum(x: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    """A sum that the probe does not see."""
    with torch._C.DisableTorchFunction():
        return x.detach() + part.detach()


class Noted(nn.Module):
    """A network that notes its stream before and after each attention, and after each layer."""

    def __init__(self):
        super().__init__()
        self.stream: list[tuple[torch.Tensor, ...]] = []

    def note(self, *streams: torch.Tensor) -> None:
        with torch._C.DisableTorchFunction():
            self.stream.append(tuple(x.detach().clone() for x in streams))


class Block(nn.Module):
    """One layer; ``kind`` is how it adds its parts to the stream."""

    def __init__(self, network: Noted, kind: str, way: str):
        super().__init__()
        self.note, self.kind = network.note, kind
        self.norm, self.attention, self.after, self.mlp = (
            nn.LayerNorm(D),
            Attention(way),
            nn.LayerNorm(D),
            mlp(),
        )

    def forward(self, x):
        kind, z = self.kind, x
        if kind == "in place":
            z = x.detach().clone()
            x += self.attention(self.norm(x))
            middle = x.detach().clone()
            x += self.mlp(x)
            self.note(z, middle, x)
            return x
        if kind == "parallel":
            part = self.attention(self.norm(x))
            middle, x = hidden_sum(x, part), x + (part + self.mlp(x))
        elif kind == "parallel, attention last":
            part = self.attention(self.norm(x))
            middle, x = hidden_sum(x, part), x + self.mlp(x) + part
        elif kind == "post-norm":
            middle = x = x + self.attention(x)
            x = self.norm(x)
            x = self.after(x + self.mlp(x))
        elif kind == "deep norm":
            middle = x = x * 1.7 + self.attention(x)
            x = self.after(x * 1.7 + self.mlp(x))
        elif kind == "sandwich":
            middle = x = x + self.after(self.attention(self.norm(x)))
            x = x + self.after(self.mlp(x))
        elif kind == "wide stream":
            middle = x = x + self.attention(self.norm(x.float())).double()
            x = x + self.mlp(x.float()).double()
        elif kind == "checkpoint":
            middle = x = x + checkpoint(self.attention, self.norm(x), use_reentrant=False)
            x = x + self.mlp(x)
        else:
            middle = x = torch.add(self.attention(self.norm(x)), x)
            x = x + functional.dropout(self.mlp(x), 0.1, self.training)
        self.note(z, middle, x)
        return x


class Blocks(Noted):
    """Layers as modules of their own."""

    def __init__(self, kind: str = "pre-norm", way: str = "fused"):
        super().__init__()
        self.kind = kind
        self.layers = nn.ModuleList(Block(self, kind, way) for _ in range(DEPTH))

    def forward(self, x):
        first = x = x.double() if self.kind == "wide stream" else x.clone()
        for layer in self.layers:
            x = layer(x)
        return (x + first if self.kind == "long skip" else x).float().mean(1)


class PreNorm(nn.Module):
    def __init__(self, inside):
        super().__init__()
        self.norm, self.fn = nn.LayerNorm(D), inside

    def forward(self, x):
        return self.fn(self.norm(x))


class Sparse(nn.Module):
    """One step of proximal descent as the authors' CRATE has it: no skip, exact zeros."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(D, D) / D**0.5)

    def forward(self, x):
        return functional.relu(
            x + 0.1 * functional.linear(x - functional.linear(x, self.weight), self.weight.t()) - 0.1
        )


class Pairs(Noted):
    """Layers as lists [attention, MLP], which never run: the layout of the authors' CRATE and
    of vit-pytorch.
    """

    def __init__(self, kind: str):
        super().__init__()
        self.kind = kind
        crate = kind == "authors' CRATE"
        attention = (lambda: PreNorm(Attention("tied"))) if crate else lambda: Attention("fused", norm=True)
        rest = (lambda: PreNorm(Sparse())) if crate else mlp
        self.layers = nn.ModuleList(nn.ModuleList([attention(), rest()]) for _ in range(DEPTH))

    def forward(self, x):
        for attention, rest in self.layers:
            z = x
            middle = x = attention(x) + x
            x = rest(x) if self.kind == "authors' CRATE" else rest(x) + x
            self.note(z, middle, x)
        return x.mean(1)


class Flat(Noted):
    """All attentions in one list, all MLPs in another."""

    def __init__(self):
        super().__init__()
        self.attentions = nn.ModuleList(Attention() for _ in range(DEPTH))
        self.mlps = nn.ModuleList(mlp() for _ in range(DEPTH))

    def forward(self, x):
        for attention, rest in zip(self.attentions, self.mlps):
            z = x
            middle = x = x + attention(x)
            x = x + rest(x)
            self.note(z, middle, x)
        return x.mean(1)


KINDS = (
    "pre-norm",
    "in place",
    "post-norm",
    "deep norm",
    "sandwich",
    "wide stream",
    "parallel",
    "parallel, attention last",
    "long skip",
)
WAYS = (
    "heads first",
    "tied",
    "grouped",
    "grouped in the kernel",
    "chunks",
    "one head at a time",
    "written out",
    "value residual",
)
LAYOUTS = {kind: lambda kind=kind: Blocks(kind) for kind in (*KINDS, "checkpoint")}
LAYOUTS |= {way: lambda way=way: Blocks(way=way) for way in (*WAYS, "local values")}
LAYOUTS |= {
    "authors' CRATE": lambda: Pairs("authors' CRATE"),
    "vit-pytorch": lambda: Pairs("vit-pytorch"),
    "flat lists": Flat,
}


@each_case("layout", LAYOUTS)
def test_the_stream_is_found(layout):
    """Z, Z+ and the output of every layer to the last bit; W of every head gives the observed weights."""
    model, keep = built(LAYOUTS[layout]).eval(), Keep()
    with torch.no_grad(), probe(model, [keep]) as p:
        model(tokens(N, T, D))
    assert not any(row.reason for row in p.rows)
    assert [seen.layer for seen in keep.of("features")] == list(range(DEPTH))
    for seen, (before, after, output) in zip(keep.of("features"), model.stream, strict=True):
        assert torch.equal(seen.tokens, before)
        assert torch.equal(seen.after_attention, after)
        assert torch.equal(seen.output, output)
    attention = keep.of("attention")
    assert len(attention) == DEPTH * (H if layout == "one head at a time" else 1)
    for seen in attention:
        heads = 1 if layout == "one head at a time" else H
        assert seen.weights.shape == (N, heads, T, T)
        scores = torch.einsum("bjd,hde,bie->bhij", *(seen.tokens.float(), seen.bilinear, seen.tokens.float()))
        # biases of the projections drop out when centred over queries and over keys
        difference = scores - seen.weights.log()
        difference = difference - difference.mean(-1, keepdim=True)
        assert_close(difference, difference.mean(-2, keepdim=True).expand_as(difference), rtol=0, atol=1e-4)


@each_case("layout", sorted(LAYOUTS.keys() - {"in place"}))  # autograd itself refuses that one
def test_nothing_changes(layout):
    """Outputs, gradients and random state in training, to the last bit."""
    results = []
    for metrics in ([], [Keep()]):
        model = built(LAYOUTS[layout]).train()
        with torch.random.fork_rng():
            torch.manual_seed(3)
            with probe(model, metrics) as p:
                out = p.model(tokens(N, T, D)) if metrics else type(model).forward(model, tokens(N, T, D))
            out.square().sum().backward()
            results.append(
                [out, torch.get_rng_state(), *(x.grad for x in model.parameters() if x.grad is not None)]
            )
    assert len(results[0]) > 5
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


def test_the_share_of_non_zeros_is_that_of_the_stream():
    """In the authors' CRATE the outputs of layers are exactly sparse; the attention's branch is not."""
    model = built(LAYOUTS["authors' CRATE"]).eval()
    with torch.no_grad(), probe(model, [Sparsity()]) as p:
        model(tokens(N, T, D))
    shares = [float((output != 0).double().mean()) for *_, output in model.stream]
    assert [row.value for row in p.rows] == pytest.approx(shares)
    assert max(shares) < 0.9


def test_without_a_residual_addition_there_is_no_guess():
    class Bare(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = Attention()

        def forward(self, x):
            return self.attention(x)

    model, keep = built(lambda: nn.Sequential(Bare(), Bare())).eval(), Keep()
    with torch.no_grad(), probe(model, [keep]) as p:
        model(tokens(N, T, D))
    assert [seen.after_attention for seen in keep.of("features")] == [None, None]
    assert [(row.layer, row.value) for row in p.rows if row.quantity == "residual stream"] == [
        (0, None),
        (1, None),
    ]


def test_a_layer_whose_attention_is_not_seen_keeps_its_number():
    model = built(lambda: Blocks()).eval()
    model.layers[1].attention.way = "hidden"
    model.layers[2].attention.way = "written out"
    keep = Keep()
    with torch.no_grad(), probe(model, [keep]) as p:
        model(tokens(N, T, D))
    assert [seen.layer for seen in keep.of("attention")] == [0, 2]
    (row,) = (row for row in p.rows if row.reason)
    assert (row.quantity, row.layer, row.value) == ("attention", 1, None)
    assert "layers.1" in row.reason
    assert torch.equal(keep.of("features")[1].tokens, model.stream[2][0])


class Mixer(nn.Module):
    """A layer of an MLP-Mixer: tokens are mixed by a matrix."""

    def __init__(self):
        super().__init__()
        self.across, self.mlp = nn.Linear(T, T), mlp()

    def forward(self, x):
        x = x + self.across(x.mT).mT
        return x + self.mlp(x)


def test_features_need_no_attention():
    """Metrics of features alone measure any network; its layers are the longest list of similar modules."""
    model = built(
        lambda: nn.Sequential(nn.Linear(D, D), nn.Sequential(Mixer(), Mixer(), Mixer()), nn.Linear(D, 2))
    ).eval()
    keep = type("Features", (Keep,), {"kinds": ("features", "outputs")})()
    x = tokens(N, T, D)
    with torch.no_grad():
        plain = model(x)
        with probe(model, [keep, Geometry(), Sparsity()]) as p:
            assert torch.equal(model(x), plain)
        assert [(seen.name, seen.layer) for seen in keep.of("features")] == [
            ("1.0", 0),
            ("1.1", 1),
            ("1.2", 2),
        ]
        assert torch.equal(keep.of("features")[2].output, model[1](model[0](x)))
        assert keep.of("outputs")[0].layer == 3
        assert {row.layer for row in p.rows if row.theory == "crate"} == {0, 1, 2}
        with pytest.raises(NoAttention), probe(model, [Geometry(), AttentionStatistics()]):
            model(x)


@each_case("dtype", [torch.bfloat16, torch.float16])
@each_case("way", ["fused", "written out", "heads first"])
def test_half_precision(way, dtype):
    """Weights are distributions to the precision of float32, and every metric measures."""
    model, keep = built(lambda: Blocks(way=way)).to(dtype).eval(), Keep()
    metrics: list[Metric] = [*all_metrics(), keep]
    with torch.no_grad(), probe(model, metrics) as p:
        p.labels = torch.arange(N) % 2
        model(tokens(N, T, D).to(dtype))
    assert not [row.reason for row in p.rows if "Error" in row.reason]
    for seen in keep.of("attention"):
        assert_close(seen.weights.sum(-1), torch.ones(N, H, T), rtol=0, atol=1e-6)
        assert seen.bilinear is not None


@pytest.mark.parametrize("norm", [True, False])
def test_padded_places_are_those_of_torchs_fused_encoder(norm):
    layer = nn.TransformerEncoderLayer(D, H, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(D) if norm else None).eval()
    x, padding = tokens(N, T, D), torch.arange(T) >= torch.tensor([5, 4, 2])[:, None]
    with torch.no_grad():
        plain = model(x, src_key_padding_mask=padding)
        with probe(model, [Geometry(), AttentionStatistics()]) as p:
            assert_close(model(x, src_key_padding_mask=padding), plain)
    assert not any(row.reason for row in p.rows)


def test_labels_of_a_network_with_time_first():
    layer = nn.TransformerEncoderLayer(D, H, 16)
    model, keep = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval(), Keep()
    with torch.no_grad(), probe(model, [keep]) as p:
        p.labels = torch.arange(N)
        model(tokens(T, N, D))
    assert all(labels.tolist() == [0, 1, 2] for labels in keep.labels)


@pytest.mark.parametrize("where", ["before", "inside"])
def test_a_model_inside_a_compiled_network(where):
    torch._dynamo.reset()
    model, x, keep = built(lambda: Blocks()).eval(), tokens(N, T, D), Keep()
    host = torch.compile(nn.Sequential(model, nn.Linear(D, 2)), backend="eager")
    with torch.no_grad():
        plain = host._orig_mod(x)
        if where == "before":
            host(x)
        with probe(model, [keep], every=2):
            outputs = [host(x) for _ in range(3)]
        outputs.append(host(x))
    assert all(torch.equal(out, plain) for out in outputs)
    assert (len(keep.of("attention")), keep.resets) == (DEPTH, 2)


@pytest.mark.parametrize("layout", ["authors' CRATE", "flat lists"])
def test_features_of_a_block_that_is_no_module(layout: str):
    """The networks keep the residual stream: before and after the attention, and at the end of each layer."""
    model = built(LAYOUTS[layout]).eval()
    data = TokenData(tokens(5, T, D).double())
    with torch.no_grad():
        model(data.tokens.float())
    for layer in range(-DEPTH, DEPTH):
        assert torch.equal(features(model, data, layer=layer).tokens, model.stream[layer][2].double())
    with pytest.raises(ValueError, match=f"got {DEPTH}; .* has {DEPTH} blocks"):
        features(model, data, layer=DEPTH)


def test_padding_stays_where_the_first_layer_of_an_encoder_is_trained():
    """The encoder of torch leaves the padding out only if no gradients are needed there."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).eval().requires_grad_(False)
    x, padding = torch.randn(3, 4, 8), torch.arange(4) >= torch.tensor([[4], [3], [1]])
    for trained in (False, True):
        model.layers[0].requires_grad_(trained)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # nested tensors are a prototype
            expected = model(x, src_key_padding_mask=padding).detach()
            assert bool((expected[padding] == 0).all()) == (not trained)
            with probe(model, [Keep()]):
                found = model(x, src_key_padding_mask=padding).detach()
        assert_close(found, expected)

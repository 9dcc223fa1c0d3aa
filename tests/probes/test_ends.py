"""Where a block ends if no module returns its stream, branches that read the same stream, and blocks without
tokens. Every network notes its stream itself.
"""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.testing import assert_close

from tests.cases import each_case
from tests.probes.test_layouts import DEPTH, Attention, D, H, N, Noted, PreNorm, Sparse, T, hidden_sum, mlp
from tests.problems.networks import Keep, built, tokens
from transformer_theory.data import TokenData
from transformer_theory.metrics import AttentionStatistics, FeatureRates, Geometry
from transformer_theory.probes import probe
from transformer_theory.probes.features import features
from transformer_theory.theories.crate.in_networks import Sparsity


def rms(x):
    """A norm of several operations."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


AFTER = {
    "relu": torch.relu,
    "relu in place": lambda x: functional.relu(x, inplace=True),
    "gelu": functional.gelu,
    "dropout": lambda x: functional.dropout(x, 0.5, training=True),
    "functional norm": lambda x: functional.layer_norm(x, (D,)),
    "written norm": rms,
    "scale": lambda x: 0.5 * x,
    "norm, relu": lambda x: functional.layer_norm(x, (D,)).relu(),
    "nothing": lambda x: x,
}


class Lists(Noted):
    """Layers as lists [attention, MLP], with an operation after each sum, or after the second sum alone."""

    def __init__(self, after: str, *, depth: int = DEPTH, twice: bool = False, both: bool = True):
        super().__init__()
        self.after, self.twice, self.both = AFTER[after], twice, both
        self.layers = nn.ModuleList(nn.ModuleList([Attention(norm=True), mlp()]) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, 3)

    def forward(self, x):
        for _ in range(1 + self.twice):
            for attention, rest in self.layers:
                z = x
                x = x + attention(x)
                middle = x.detach().clone()
                x = self.after(x) if self.both else x
                x = self.after(x + rest(x))
                self.note(z, middle, x)
        return self.head(self.norm(x).relu().mean(1))


def the_stream_is_found(model: Noted, *, same=torch.equal, x: torch.Tensor | None = None) -> Keep:
    keep = Keep()
    with torch.no_grad(), torch.random.fork_rng(), probe(model, [keep]) as p:
        torch.manual_seed(0)
        model(tokens(N, T, D) if x is None else x)
    assert not [row.reason for row in p.rows if row.reason]
    assert [seen.layer for seen in keep.of("features")] == list(range(len(model.stream)))
    for seen, (before, after, output) in zip(keep.of("features"), model.stream, strict=True):
        assert same(seen.tokens, before)
        assert same(seen.after_attention, after)
        assert same(seen.output, output)
    return keep


@each_case("both", [True, False])
@each_case("after", AFTER)
def test_what_follows_the_sum_belongs_to_every_block(after, both):
    the_stream_is_found(built(lambda: Lists(after, both=both)).eval())


@each_case("after", AFTER)
@each_case("depth", [1, 2])
def test_a_list_that_runs_twice_and_a_single_block(after, depth):
    """What followed the sum after the attention follows the sum after the MLP; the last norm does not."""
    the_stream_is_found(built(lambda: Lists(after, depth=1)).eval())
    the_stream_is_found(built(lambda: Lists(after, depth=depth, twice=True)).eval())


def test_the_share_of_non_zeros_is_that_of_the_stream_after_the_relu():
    model = built(lambda: Lists("relu")).eval()
    with torch.no_grad(), probe(model, [Sparsity()]) as p:
        model(tokens(N, T, D))
    shares = [float((output != 0).double().mean()) for *_, output in model.stream]
    assert [row.value for row in p.rows] == pytest.approx(shares)
    assert max(shares) < 0.95


class Steps(Noted):
    """A list of layers whose step, a function of the layer and the stream, returns Z+ and the end."""

    def __init__(self, step: str, depth: int):
        super().__init__()
        self.step = STEPS[step]
        self.layers = nn.ModuleList(nn.ModuleList([Attention(norm=True), mlp()]) for _ in range(depth))
        self.last = nn.LayerNorm(D)

    def forward(self, x):
        for layer in self.layers:
            z, (middle, x) = x, self.step(*layer, x)
            self.note(z, middle, x)
        return self.last(x).mean(1)


def deep_norm(attention, rest, x):
    middle = x * 1.7 + attention(x)
    x = functional.layer_norm(middle, (D,))
    return middle, functional.layer_norm(x * 1.7 + rest(x), (D,))


def halved(attention, rest, x):
    middle = x + attention(x)
    x = middle / 2**0.5
    return middle, (x + rest(x)) / 2**0.5


def in_place(attention, rest, x):
    x = x.clone()
    x += attention(x)
    middle = x.clone()
    x.relu_()
    x += rest(x)
    return middle, x.relu_()


def parallel(attention, rest, x):
    part, other = attention(x), rest(x)
    return hidden_sum(x, part), functional.gelu(x + (part + other))


def gated(attention, rest, x):
    x = middle = x + attention(x)
    new, gate = rest(x).tanh(), torch.sigmoid(rest(x))
    return middle, gate * x + (1 - gate) * new


def channels_first(attention, rest, x):
    middle = x + attention(x)
    return middle, (middle.mT + rest(middle).mT).mT.contiguous().relu()


STEPS = {step.__name__: step for step in (deep_norm, halved, in_place, parallel, gated, channels_first)}


@each_case("step", STEPS)
def test_the_last_block_ends_like_the_others(step):
    the_stream_is_found(built(lambda: Steps(step, 3)).eval())
    if step in ("deep_norm", "halved", "in_place"):
        the_stream_is_found(built(lambda: Steps(step, 1)).eval())


def test_an_activation_that_may_belong_to_a_single_block_is_reported():
    model, keep = built(lambda: Steps("parallel", 1)).eval(), Keep()
    with torch.no_grad(), probe(model, [keep]) as p:
        model(tokens(N, T, D))
    (row,) = (row for row in p.rows if row.reason)
    assert (row.quantity, row.layer) == ("residual stream", 0)
    assert "'gelu', which follows, is left out" in row.reason
    (seen,) = keep.of("features")
    assert torch.equal(functional.gelu(seen.output), model.stream[0][2])


class Different(Noted):
    """Blocks whose MLPs differ: the last block does not repeat the block before it; norms follow the sums."""

    def __init__(self):
        super().__init__()
        wide = nn.Sequential(nn.Linear(D, D), nn.Tanh(), nn.Linear(D, D), nn.Sigmoid(), nn.Linear(D, D))
        self.layers = nn.ModuleList(
            nn.ModuleList([Attention(), nn.LayerNorm(D), rest, nn.LayerNorm(D)]) for rest in (mlp(), wide)
        )
        self.last = nn.LayerNorm(D)

    def forward(self, x):
        for attention, first, rest, second in self.layers:
            z = x
            middle = x = x + attention(x)
            x = first(x)
            x = second(x + rest(x))
            self.note(z, middle, x)
        return self.last(x).mean(1)


def test_a_last_block_unlike_the_others_ends_after_its_last_sum():
    the_stream_is_found(built(Different).eval())


def test_a_single_layer_of_a_crate():
    class Single(Noted):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.ModuleList([PreNorm(Attention("tied")), PreNorm(Sparse())])])
            self.norm = nn.LayerNorm(D)

        def forward(self, x):
            for attention, rest in self.layers:
                z = x
                middle = x = attention(x) + x
                x = rest(x)
                self.note(z, middle, x)
            return self.norm(x).mean(1)

    the_stream_is_found(built(Single).eval())


class Encoders(Noted):
    """Two lists of blocks that differ in width: the last block of the first list has no next block either."""

    def __init__(self):
        super().__init__()
        self.first, self.second = (
            nn.ModuleList(nn.ModuleList([Attention(), mlp()]) for _ in range(2)) for _ in range(2)
        )
        self.cross = Attention()

    def forward(self, x):
        memory = self.run(self.first, x)
        return self.run(self.second, memory[:, ::2].contiguous()).mean(1)

    def run(self, layers, x):
        for attention, rest in layers:
            z = x
            middle = x = x + attention(x)
            x = torch.relu(x + rest(x))
            self.note(z, middle, x)
        return x


def test_every_list_of_blocks_has_a_last_block():
    the_stream_is_found(built(Encoders).eval())


SUMS = {
    "sum": lambda x, parts: x + sum(parts),
    "sum first": lambda x, parts: sum(parts) + x,
    "stack": lambda x, parts: x + torch.stack(parts).sum(0),
    "mean": lambda x, parts: x + sum(parts) / len(parts),
    "one by one": lambda x, parts: sum(parts, x),
}


class Branches(Noted):
    """x + sum of attentions of x, then x + sum of MLPs of x, each in a list; ``loop``: added as they run."""

    def __init__(self, how: str, *, branches: int = 2, around: bool = False):
        super().__init__()
        self.how, self.around = how, around
        several = lambda make: nn.ModuleList(make() for _ in range(branches))  # noqa: E731
        self.layers = nn.ModuleList(
            nn.ModuleList([several(lambda: Attention(norm=True)), several(mlp)]) for _ in range(DEPTH)
        )

    def added(self, x, branches):
        if self.how == "loop":
            total = x
            for branch in branches:
                total = total + branch(x)
            return total
        if self.how == "generator":
            return x + sum(branch(x) for branch in branches)
        return SUMS[self.how](x, [branch(x) for branch in branches])

    def forward(self, x):
        for attentions, rest in self.layers:
            z = x
            middle = x = self.added(x, attentions)
            x = self.added(x, rest)
            self.note(z, middle, x)
        return x.mean(1)


@each_case("branches", [2, 3])
@each_case("how", [*SUMS, "loop", "generator"])
def test_parallel_attentions_are_one_layer(how, branches):
    """Streams to the last bit, or to rounding where the probe adds the terms itself; heads count on."""
    model = built(lambda: Branches(how, branches=branches)).eval()

    def close(seen, expected):
        return torch.allclose(seen, expected, rtol=0, atol=1e-6)

    keep = the_stream_is_found(model, same=close)
    assert [(seen.layer, seen.first_head) for seen in keep.of("attention")] == [
        (layer, H * branch) for layer in range(DEPTH) for branch in range(branches)
    ]


class Mixed(Noted):
    """Attentions and MLPs in one sum, as modules of their own: x + (a + m + a' + m')."""

    def __init__(self, order: str):
        super().__init__()
        self.order = order
        self.layers = nn.ModuleList(
            nn.ModuleList(
                [nn.ModuleList(Attention() for _ in range(2)), nn.ModuleList(mlp() for _ in range(2))]
            )
            for _ in range(DEPTH)
        )

    def forward(self, x):
        for (a, b), (m, n) in self.layers:
            z, makes = x, {"a": a, "b": b, "m": m, "n": n}
            parts = {name: makes[name](x) for name in self.order}
            middle = hidden_sum(x, hidden_sum(parts["a"], parts["b"]))
            first, *others = parts.values()
            x = x + sum(others, first)
            self.note(z, middle, x)
        return x.mean(1)


@each_case("order", ["ambn", "abmn", "mnab", "mabn"])
def test_attentions_and_mlps_in_one_sum(order):
    the_stream_is_found(built(lambda: Mixed(order)).eval(), same=lambda a, b: torch.allclose(a, b, atol=1e-6))


def test_blocks_of_an_ensemble_stay_blocks():
    """Members that add their attention themselves are no branches."""

    class Member(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = Attention()

        def forward(self, x):
            return x + self.attention(x)

    class Ensemble(nn.Module):
        def __init__(self):
            super().__init__()
            self.members = nn.ModuleList(Member() for _ in range(3))

        def forward(self, x):
            return sum(member(x) for member in self.members).mean(1)

    model, keep, x = built(Ensemble).eval(), Keep(), tokens(N, T, D)
    with torch.no_grad(), probe(model, [keep]):
        model(x)
        outputs = [member(x) for member in model.members]
    assert [seen.layer for seen in keep.of("features")] == [0, 1, 2]
    assert all(torch.equal(seen.output, own) for seen, own in zip(keep.of("features"), outputs))


def test_rows_of_parallel_attentions():
    """The rank-collapse residual of the stream, and the entropy of four heads, computed beside the probe."""
    model = built(lambda: Branches("sum")).eval()
    with torch.no_grad(), probe(model, [Geometry(), AttentionStatistics()], draws=0) as p:
        model(tokens(N, T, D))
    expected = [
        float((torch.linalg.matrix_norm(s - s.mean(1, keepdim=True)) / torch.linalg.matrix_norm(s)).mean())
        for *_, s in model.stream
    ]
    table = p.result().table
    assert [row.value for row in table if row.quantity == "rank-collapse residual"] == pytest.approx(expected)
    entropies = {(row.layer, row.head): row.value for row in table if row.quantity == "attention entropy"}
    assert sorted(entropies) == [(layer, head) for layer in range(DEPTH) for head in range(2 * H)]
    z, second = model.stream[1][0], model.layers[1][0][1]
    with torch.no_grad():
        q, k, _ = second.to_qkv(second.norm(z)).view(N, T, 3, H, -1).permute(2, 0, 3, 1, 4)
        weights = (q @ k.mT / (D // H) ** 0.5).softmax(-1)
    own = torch.special.entr(weights).sum(-1).mean((0, 2))
    assert_close(torch.tensor([entropies[1, H], entropies[1, H + 1]]), own, rtol=1e-4, atol=1e-5)


class Vectors(nn.Module):
    """One block of a network of single vectors."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, x):
        return x + self.second(self.first(x).relu())


def test_one_vector_per_sequence_is_no_sequence_of_vectors():
    """Rates by class, log-determinants computed beside the probe, need one vector per label."""
    model = built(lambda: nn.Sequential(Vectors(), Vectors(), nn.Linear(D, 3))).eval()
    x, labels = tokens(1, 24, D)[0], torch.arange(24) % 3
    with torch.no_grad(), probe(model, [FeatureRates(), Geometry()], draws=0) as p:
        p.labels = labels
        model(x)
    with torch.no_grad():
        X = functional.normalize(model[1](model[0](x)).double(), dim=1)

    def rate(Z):
        return float(0.5 * torch.logdet(torch.eye(D).double() + D / (len(Z) * 0.5) * Z.T @ Z))

    expected = rate(X) - sum(rate(X[labels == c]) for c in range(3)) / 3
    values = [row.value for row in p.rows if row.quantity == "rate reduction" and row.layer == 1]
    assert values == [pytest.approx(expected, rel=1e-6)]
    reasons = [(row.layer, row.reason) for row in p.rows if row.quantity == "residual stream"]
    assert [layer for layer, _ in reasons] == [0, 1]
    assert "one vector per sequence" in reasons[0][1]
    data = TokenData(tokens(5, 1, D).double())
    with pytest.raises(ValueError, match=r"must return \[batch, seq, dim\], got \[5, 8\]"):
        features(nn.Sequential(nn.Flatten(), *model), data, layer="1")


@pytest.mark.parametrize("module", [True, False])
def test_a_last_block_that_returns_one_vector_says_so(module):
    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.mlp = Attention(), mlp()

        def forward(self, x):
            x = x + self.attention(x)
            self.middle = x.detach()
            return x[:, 0] + self.mlp(x[:, 0])

    class Whole(Last):
        def forward(self, x):
            x = x + self.attention(x)
            return x + self.mlp(x)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([Whole(), Last()])

        def forward(self, x):
            if module:
                return self.layers[1](self.layers[0](x))
            x, last = self.layers[0](x), self.layers[1]
            x = x + last.attention(x)
            last.middle = x.detach()
            return x[:, 0] + last.mlp(x[:, 0])

    model, keep = built(Net).eval(), Keep()
    with torch.no_grad(), probe(model, [keep]) as p:
        model(tokens(N, T, D))
    assert torch.equal(keep.of("features")[1].output, model.layers[1].middle)
    (row,) = (row for row in p.rows if row.reason)
    assert (row.quantity, row.layer) == ("residual stream", 1)
    assert "another shape" in row.reason

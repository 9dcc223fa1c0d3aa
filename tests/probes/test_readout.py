"""The tokens from which a network computes its outputs. The expected ones are found by changing one token of
the last stream after the other, in plain torch.
"""

from dataclasses import dataclass

import einops
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from tests.cases import each_case
from tests.problems.networks import Block, Keep, built, seen_in, tokens
from transformer_theory.metrics.token_layout import MEAN, mean_feature, where
from transformer_theory.probes import probe
from transformer_theory.probes.readout import AT_EVERY_TOKEN, NOT_FOLLOWED

DIM, SEQ, BATCH = 8, 7, 5


class Network(nn.Module):
    """Blocks, and a head that receives their last stream ``[batch, seq, dim]``."""

    def __init__(self, head, depth: int = 2, **options):
        super().__init__()
        self.blocks = nn.ModuleList(Block(DIM, **options) for _ in range(depth))
        self.head = head() if isinstance(head, type) else head

    def stream(self, x):
        x = x.clone()
        for block in self.blocks:
            x = block(x)
        return x

    def forward(self, x):
        return self.head(self.stream(x))


def changed(head, stream) -> torch.Tensor:
    """Which tokens of a stream ``[batch, seq, dim]`` change the output of a head, ``[batch, seq]``."""
    base = head(stream.clone())
    found = []
    for token in range(stream.shape[1]):
        other = stream.clone()
        other[:, token] += 1e-2 * tokens(len(stream), DIM).to(other)
        found.append((head(other) != base).view(len(base), -1).any(1))
    return torch.stack(found, 1)


def read_of(keep: Keep) -> torch.Tensor | None:
    """The tokens that are read of the last of the blocks, the same as those of its attention."""
    last = [each for each in keep.of("features") if each.name.startswith("blocks.")][-1]
    attention = [each for each in keep.of("attention") if each.name.startswith("blocks.")][-1]
    assert last.reading == attention.reading
    assert (last.read is None) == (attention.read is None)
    return last.read


class Linear(nn.Module):
    """A linear head on a function of the tokens."""

    def __init__(self, function=None):
        super().__init__()
        self.linear = nn.Linear(DIM, 3)
        self.function = function

    def forward(self, x):
        return self.linear(self.pooled(x))

    def pooled(self, x):
        return self.function(x)


class MaskedMean(Linear):
    def pooled(self, x):
        mask = (torch.arange(SEQ) < torch.arange(3, 3 + BATCH)[:, None]).to(x)[..., None]
        return (x * mask).sum(1) / mask.sum(1)


class Query(Linear):
    """Attention of a learnt query, as in the head of SigLIP."""

    def __init__(self):
        super().__init__()
        self.probe = nn.Parameter(tokens(1, 1, DIM))
        self.attention = nn.MultiheadAttention(DIM, 2, batch_first=True, dropout=0.5)
        self.mlp = nn.Sequential(nn.LayerNorm(DIM), nn.Linear(DIM, DIM), nn.GELU(), nn.Linear(DIM, DIM))

    def pooled(self, x):
        x = self.attention(self.probe.expand(len(x), -1, -1), x, x, need_weights=False)[0]
        x = x + self.mlp(x)
        return x[:, 0]


class Scores(Linear):
    """A mean with weights softmax(score)."""

    def __init__(self):
        super().__init__()
        self.score = nn.Linear(DIM, 1)

    def pooled(self, x):
        return (self.score(x).softmax(1) * x).sum(1)


class Both(Linear):
    """The first token beside the mean of all but the first three, as in Dinov2 with registers."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2 * DIM, 3)
        self.norm = nn.LayerNorm(DIM)

    def pooled(self, x):
        x = self.norm(x)
        return torch.cat([x[:, 0], x[:, 3:].mean(1)], 1)


class InPlace(Linear):
    """Operations that change their argument."""

    def pooled(self, x):
        x += 1.0
        x[:, 0] *= 2.0
        first = x[:, 0]
        first.add_(0.5)
        pooled = functional.leaky_relu(first, 0.1, True)
        pooled = functional.dropout(pooled, 0.5, self.training, True)
        pooled += torch.rand_like(pooled) * self.training
        out = torch.empty_like(pooled)
        torch.mul(pooled, 2.0, out=out)
        return nn.functional.elu(out, 1.0, True)


class Buffers(Linear):
    """Sums and picks that are written into a tensor."""

    def pooled(self, x):
        out = x.new_zeros(len(x), DIM)
        for row in range(len(x)):
            out[row] = x[row, row % SEQ]
        return out.index_add_(0, torch.arange(len(x)), x[:, -1])


class Cleared(Linear):
    """All tokens but two are set to zero by means of a view."""

    def pooled(self, x):
        x = x * 1.0
        x[:, 2:].zero_()
        return x.mean(1)


class Batchnorm(Linear):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(DIM)

    def pooled(self, x):
        return self.norm(x[:, 0])


class TokenBatchnorm(Linear):
    """Batch normalisation of all tokens, of which one is read."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(DIM)

    def pooled(self, x):
        return self.norm(x.mT).mT[:, 0]


class Tied(Linear):
    """A head without a bias that begins at zero, as in fine-tuning."""

    def __init__(self):
        super().__init__()
        nn.init.zeros_(self.linear.weight)

    def pooled(self, x):
        return x[:, 1]


class Pooler(Linear):
    def __init__(self):
        super().__init__()
        self.dense = nn.Linear(DIM, DIM)

    def pooled(self, x):
        return self.dense(x[:, 0]).tanh()


ROWS = torch.arange(BATCH)
PLACES = torch.tensor([1, 3, 6, 2, 5])
HEADS = {
    "first token": lambda: Linear(lambda x: x[:, 0]),
    "class token at the end": lambda: Linear(lambda x: x[:, -1]),
    "class token in the middle": lambda: Linear(lambda x: x[:, 3]),
    "two tokens": lambda: Linear(lambda x: (x[:, 0] + x[:, 1]) / 2),
    "mean": lambda: Linear(lambda x: x.mean(1)),
    "sum of chunks": lambda: Linear(lambda x: sum(part.sum(1) for part in x.split([2, 2, 3], 1))),
    "mean without the first": lambda: Linear(lambda x: x[:, 1:].mean(1)),
    "mean without registers": lambda: Linear(lambda x: torch.cat([x[:, :2], x[:, 4:]], 1).mean(1)),
    "class token and mean": Both,
    "masked mean": MaskedMean,
    "masked fill": lambda: Linear(
        lambda x: x.masked_fill((torch.arange(SEQ) > 3)[None, :, None], 0.0).sum(1) / 4
    ),
    "maximum": lambda: Linear(lambda x: x.amax(1)),
    "maximum by max": lambda: Linear(lambda x: x.max(1).values),
    "adaptive pooling": lambda: Linear(lambda x: functional.adaptive_avg_pool1d(x.mT, 1).flatten(1)),
    "learnt query": Query,
    "softmax of scores": Scores,
    "by index": lambda: Linear(lambda x: x[ROWS, PLACES]),
    "gather": lambda: Linear(lambda x: x.gather(1, PLACES[:, None, None].expand(-1, 1, DIM)).squeeze(1)),
    "index_select": lambda: Linear(lambda x: x.index_select(1, torch.tensor([4]))[:, 0]),
    "boolean mask": lambda: Linear(
        lambda x: x[torch.arange(SEQ) == PLACES[:, None]].view(BATCH, -1, DIM)[:, -1]
    ),
    "one-hot product": lambda: Linear(
        lambda x: (functional.one_hot(PLACES, SEQ).to(x)[:, None] @ x).squeeze(1)
    ),
    "einsum": lambda: Linear(lambda x: torch.einsum("btd,t->bd", x, (torch.arange(SEQ) % 2).to(x))),
    "einops.reduce": lambda: Linear(lambda x: einops.reduce(x, "b t d -> b d", "mean")),
    "einops.rearrange": lambda: Linear(lambda x: einops.rearrange(x, "b t d -> t b d")[2]),
    "pooler": Pooler,
    "in place": InPlace,
    "buffers": Buffers,
    "cleared by a view": Cleared,
    "batch normalisation": Batchnorm,
    "log-softmax": lambda: nn.Sequential(Linear(lambda x: x[:, 0]), nn.LogSoftmax(1)),
    "softmax": lambda: nn.Sequential(Linear(lambda x: x[:, 0]), nn.Softmax(1)),
    "normalised": lambda: nn.Sequential(Linear(lambda x: x[:, 2]), nn.Tanh(), nn.LayerNorm(3)),
    "one number": lambda: nn.Sequential(Linear(lambda x: x[:, 0]), nn.Linear(3, 1)),
    "no axis of classes": lambda: nn.Sequential(Linear(lambda x: x[:, 1]), nn.Linear(3, 1), nn.Flatten(0)),
    "flattened": lambda: nn.Sequential(nn.Flatten(), nn.Linear(SEQ * DIM, 3)),
    "as many classes as tokens": lambda: nn.Sequential(Linear(lambda x: x[:, 0]), nn.Linear(3, SEQ)),
    "as many classes as tokens, of the mean": lambda: nn.Sequential(
        Linear(lambda x: x.mean(1)), nn.Linear(3, SEQ)
    ),
    "several heads": lambda: nn.Sequential(
        Linear(lambda x: x[:, 1:3].mean(1)), nn.Linear(3, 20), nn.Unflatten(1, (4, 5))
    ),
}


@each_case("training", [False, True])
@each_case("name", HEADS)
def test_the_tokens_that_change_the_outputs_are_read(name, training):
    model = built(lambda: Network(HEADS[name]()))
    x = tokens(BATCH, SEQ, DIM)
    with torch.no_grad():
        expected = changed(model.eval().head, model.stream(x))
    model.train(training)
    model.blocks.eval()  # so that dropout does not change the stream
    keep = seen_in(model, x)
    assert torch.equal(read_of(keep), expected)


@each_case("name", ["two tokens", "learnt query", "masked mean", "by index"])
def test_the_attention_alone_tells_the_same(name):
    """Without features the residual stream is not searched for."""
    model, x = built(lambda: Network(HEADS[name]())), tokens(BATCH, SEQ, DIM)

    class Attentions(Keep):
        kinds = ("attention",)

    keep = Attentions()
    with probe(model, [keep]), torch.no_grad():
        model(x)
    expected = changed(model.head, model.stream(x))
    assert torch.equal(next(each for each in keep.seen if each.name == "blocks.1.attention").read, expected)


class TorchLayers(nn.Module):
    """Layers of torch.nn, of which tokens are read by index."""

    def __init__(self, *, batch_first: bool, norm_first: bool, place: int = 2):
        super().__init__()
        options = {"batch_first": batch_first, "norm_first": norm_first, "dropout": 0.0}
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(DIM, 2, 16, **options) for _ in range(2))
        self.head, self.batch_first, self.place = nn.Linear(DIM, 3), batch_first, place

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x[:, self.place] if self.batch_first else x[self.place])


@each_case("kinds", [("attention",), ("attention", "features")])
@each_case("batch_first", [False, True])
@each_case("norm_first", [False, True])
@each_case("batch", [1, 3, SEQ])
def test_both_orders_of_axes(kinds, batch_first, norm_first, batch):
    model = built(lambda: TorchLayers(batch_first=batch_first, norm_first=norm_first))
    x, keep = tokens(batch, SEQ, DIM), Keep()
    keep.kinds = kinds
    with probe(model, [keep]), torch.no_grad():
        model(x if batch_first else x.transpose(0, 1))
    for seen in keep.seen:
        assert torch.equal(seen.read, (torch.arange(SEQ) == 2).expand(batch, -1))
        assert seen.reading == "the class token"


def test_a_sequence_without_an_axis_of_the_batch():
    one = built(lambda: TorchLayers(batch_first=False, norm_first=True, place=3))
    squeezed = built(lambda: Network(lambda x: x[:, 3].squeeze(0)))
    for model, x in ((one, tokens(SEQ, DIM)), (squeezed, tokens(1, SEQ, DIM))):
        for seen in seen_in(model, x).seen:
            assert torch.equal(seen.read, (torch.arange(SEQ) == 3)[None])


@dataclass
class Prediction:
    logits: torch.Tensor
    extra: torch.Tensor | None = None


FORMS = {
    "tuple": lambda x: (x[:, 0], x),
    "the tokens first": lambda x: (x, x[:, 0].tanh()),
    "dictionary": lambda x: {"hidden": x, "logits": x[:, 0]},
    "nested": lambda x: {"out": [{"of": (x[:, 0],)}]},
    "dataclass": lambda x: Prediction(x[:, 0]),
    "dataclass with tokens": lambda x: Prediction(x[:, 0], x),
    "classes first": lambda x: x[:, 0].mT,
    "loss": lambda x: functional.cross_entropy(x[:, 0], torch.arange(BATCH)),
    "loss and outputs": lambda x: (x[:, 0].square().mean(), x[:, 0]),
    "sum of losses": lambda x: {"loss": x[:, 0].square().mean() + 0.1 * x[:, 0].abs().sum(1).mean()},
    "loss of each sequence": lambda x: functional.cross_entropy(
        x[:, 0], torch.arange(BATCH), reduction="none"
    ).mean(),
    "loss of a number": lambda x: functional.binary_cross_entropy_with_logits(
        x[:, 0].mean(-1, keepdim=True).squeeze(-1), torch.ones(BATCH)
    ),
}


@each_case("name", FORMS)
def test_forms_of_outputs(name):
    keep = seen_in(built(lambda: Network(FORMS[name])), tokens(BATCH, SEQ, DIM))
    assert torch.equal(read_of(keep), (torch.arange(SEQ) == 0).expand(BATCH, -1))


def test_all_outputs_of_sequences_count():
    """Two heads for a class token and a distillation token, as in the training of a DeiT."""
    keep = seen_in(built(lambda: Network(lambda x: (x[:, 0], x[:, 1] * 2))), tokens(BATCH, SEQ, DIM))
    assert torch.equal(read_of(keep), (torch.arange(SEQ) < 2).expand(BATCH, -1))


@pytest.mark.parametrize("batch", [1, 4])
def test_a_sequence_of_nan_changes_nothing_for_the_others(batch):
    x = tokens(batch, SEQ, DIM)
    x[0] = torch.nan
    keep = seen_in(built(lambda: Network(Linear(lambda x: x[:, 2]))), x)
    assert torch.equal(read_of(keep), (torch.arange(SEQ) == 2).expand(batch, -1))


@pytest.mark.parametrize("most", [1, 2, 4])
def test_of_some_sequences_only(most):
    """``max_samples`` selects the same sequences of everything."""
    keep = seen_in(built(lambda: Network(HEADS["by index"]())), tokens(BATCH, SEQ, DIM), max_samples=most)
    chosen = torch.linspace(0, BATCH - 1, most).round().long()
    assert torch.equal(read_of(keep), torch.arange(SEQ) == PLACES[chosen][:, None])


WITH_TOKENS = {
    "tokens": lambda x: x,
    "classes": lambda x: nn.functional.linear(x, torch.ones(3, DIM)),
    "classes before tokens": lambda x: x.mT,
    "one number": lambda x: x.mean(-1),
    "spans": lambda x: (x.mean(-1), x.amax(-1)),
    "map": lambda x: x[:, :6].mT.unflatten(2, (2, 3)),
    "some tokens": lambda x: x[:, 2:5],
    "loss": lambda x: functional.cross_entropy(x.flatten(0, 1), torch.arange(BATCH * SEQ) % DIM),
    "loss of the next token": lambda x: functional.cross_entropy(
        x[:, :-1].mT, torch.arange(BATCH * (SEQ - 1)).view(BATCH, -1) % DIM
    ),
    "loss and outputs": lambda x: (x[:, :-1].square().mean(), x),
    "outputs and loss": lambda x: Prediction(x, x[:, :-1].square().mean()),
    "reconstruction": lambda x: x[:, 1:].square().mean(),
}


@each_case("name", WITH_TOKENS)
def test_outputs_at_tokens_have_no_tokens_that_are_read(name):
    for seen in seen_in(built(lambda: Network(WITH_TOKENS[name])), tokens(BATCH, SEQ, DIM)).of("features"):
        assert seen.read is None
        assert seen.reading == AT_EVERY_TOKEN


HIDDEN = {
    "zero weights": Tied,
    "detached": lambda: Linear(lambda x: x[:, 1].detach()),
    "data": lambda: Linear(lambda x: x[:, 1].data),
    "quantised": lambda: Linear(lambda x: x[:, 1] + (x[:, 1].round() - x[:, 1]).detach()),
    "dead units": lambda: Linear(lambda x: (x[:, 1] - 1e3).relu()),
    "infinite": lambda: Linear(lambda x: x[:, 1] * float("inf")),
    "saturated": lambda: nn.Sequential(Linear(lambda x: x[:, 1] * 1e4), nn.Softmax(1)),
}


@each_case("name", HIDDEN)
@each_case("grad", [False, True])
def test_tokens_are_read_where_no_gradient_tells(name, grad):
    model = built(lambda: Network(nn.Identity()))
    model.head = HIDDEN[name]()
    keep = Keep()
    with probe(model, [keep]), torch.set_grad_enabled(grad):
        model(tokens(BATCH, SEQ, DIM))
    assert torch.equal(read_of(keep), (torch.arange(SEQ) == 1).expand(BATCH, -1))


def test_statistics_of_batch_normalisation_do_not_read():
    model = built(lambda: Network(TokenBatchnorm())).train()
    keep = seen_in(model, tokens(BATCH, SEQ, DIM))
    assert torch.equal(read_of(keep), (torch.arange(SEQ) == 0).expand(BATCH, -1))


class Everything(nn.Module):
    """A head with random numbers, buffers, generators and operations in place."""

    def __init__(self):
        super().__init__()
        self.norm, self.token_norm = nn.BatchNorm1d(DIM), nn.InstanceNorm1d(DIM, track_running_stats=True)
        self.pool, self.drop = Query(), nn.Sequential(nn.Dropout(0.5), nn.Dropout1d(0.5))
        self.generator = torch.Generator().manual_seed(3)
        self.head = nn.Linear(DIM, 3)

    def forward(self, x):
        x = self.drop(self.token_norm(x.mT).mT)
        keep = torch.bernoulli(torch.full_like(x[..., :1], 0.7), generator=self.generator)
        x = x * keep * x.new_empty(len(x), 1, 1).bernoulli_(0.9)
        x += torch.randn_like(x[:, :1])
        x = self.norm(self.pool.pooled(x))
        return self.head(functional.rrelu(x, training=self.training))


@pytest.mark.parametrize("training", [False, True])
def test_a_training_step_does_not_change(training):
    """Outputs, gradients, buffers, generators and the random state, to the last bit."""

    def step(probed: bool):
        model = built(lambda: Network(Everything())).train(training)
        torch.manual_seed(5)
        x, keep = tokens(BATCH, SEQ, DIM).requires_grad_(), Keep()
        if probed:
            with probe(model, [keep]):
                output = model(x)
            assert read_of(keep) is not None
        else:
            output = model(x)
        output.square().sum().backward()
        state = [torch.get_rng_state(), model.head.generator.get_state(), *model.buffers()]
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        return [output, x.grad, *gradients, *state]

    for one, other in zip(step(False), step(True), strict=True):
        assert torch.equal(one, other)


@each_case("mode", ["inference", "bfloat16", "half", "double", "autocast", "autocast inside"])
@each_case("name", ["two tokens", "learnt query", "masked mean", "in place"])
def test_precisions_and_modes(mode, name):
    model, x = built(lambda: Network(HEADS[name]())).eval(), tokens(BATCH, SEQ, DIM)
    dtype = {"bfloat16": torch.bfloat16, "half": torch.half, "double": torch.double}.get(mode, torch.float32)
    model, x, keep = model.to(dtype), x.to(dtype), Keep()
    if "autocast" in mode and name == "in place":
        model.eval().requires_grad_(False)  # torch.mul(out=...) has no gradient
    if mode == "autocast inside":
        forward = model.forward
        model.forward = lambda x: torch.autocast("cpu", torch.bfloat16)(forward)(x)
    with (
        torch.inference_mode(mode == "inference"),
        torch.set_grad_enabled(mode == "autocast"),
        torch.autocast("cpu", torch.bfloat16, enabled=mode == "autocast"),
        probe(model, [keep]),
    ):
        model(x)
    with torch.no_grad():
        plain = built(lambda: Network(HEADS[name]())).eval()
        expected = changed(plain.head, plain.stream(tokens(BATCH, SEQ, DIM)))
    assert torch.equal(read_of(keep), expected)


def test_operations_that_need_autocast():
    """A product of bfloat16 tokens with float32 weights exists under autocast only."""
    model, keep = built(lambda: Network(Linear(lambda x: x[:, 2].bfloat16()))).eval(), Keep()
    with torch.no_grad(), probe(model, [keep]), torch.autocast("cpu", torch.bfloat16):
        model(tokens(BATCH, SEQ, DIM))
    assert torch.equal(read_of(keep), (torch.arange(SEQ) == 2).expand(BATCH, -1))


class Checkpointed(Network):
    reentrant = False

    def stream(self, x):
        for block in self.blocks:
            x = checkpoint(lambda x, block=block: block(x.clone()), x, use_reentrant=self.reentrant)
        return x


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing(reentrant):
    model = built(lambda: Checkpointed(Linear(lambda x: x[:, 2]))).train()
    model.reentrant = reentrant
    keep = Keep()
    with probe(model, [keep]):
        model(tokens(BATCH, SEQ, DIM).requires_grad_()).sum().backward()
    assert torch.equal(read_of(keep), (torch.arange(SEQ) == 2).expand(BATCH, -1))


def test_compiled_and_wrapped():
    model = built(lambda: Network(Linear(lambda x: x[:, 2])))
    for wrapped in (torch.compile(model, backend="eager"), nn.DataParallel(model), nn.Sequential(model)):
        for seen in seen_in(wrapped, tokens(BATCH, SEQ, DIM)).of("features"):
            assert torch.equal(seen.read, (torch.arange(SEQ) == 2).expand(BATCH, -1))


def test_an_operation_that_is_not_visible():
    class Hidden(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            with torch._C.DisableTorchFunction():
                return x.mul(2)

    for seen in seen_in(built(lambda: Network(lambda x: Hidden.apply(x)[:, 0])), tokens(2, 3, DIM)).seen:
        assert seen.read is None
        assert seen.reading == NOT_FOLLOWED


@each_case("batch", [1, 5])
@each_case("equal", [False, True])
def test_equal_tokens_and_batches_of_one(batch, equal):
    """A token that is the same in all sequences is not the class token for that."""
    x = tokens(batch, SEQ, DIM)
    x[:, 4] = 0.0
    x = x[:1].expand(batch, -1, -1).clone() if equal else x
    for seen in seen_in(built(lambda: Network(Linear(lambda x: x[:, 2]))), x).of("features"):
        assert torch.equal(seen.read, (torch.arange(SEQ) == 2).expand(batch, -1))
        assert torch.equal(seen.content, ~seen.read)


def test_a_causal_network_has_no_class_token():
    """Position 0 sees only itself; the head reads the last token, or the mean."""
    x = tokens(BATCH, SEQ, DIM)
    for seen in seen_in(built(lambda: Network(Linear(lambda x: x[:, -1]), is_causal=True)), x).of("features"):
        assert torch.equal(seen.read, (torch.arange(SEQ) == SEQ - 1).expand(BATCH, -1))
        assert seen.content is None
        assert where(seen) == "the last token"
        assert_close(mean_feature(seen), seen.output[:, -1].double())
    for seen in seen_in(built(lambda: Network(Linear(lambda x: x.mean(1)), is_causal=True)), x).of(
        "features"
    ):
        assert bool(seen.read.all())
        assert where(seen) == MEAN
    network = built(lambda: Network(Linear(lambda x: x[:, 0]), is_causal=True))
    assert where(seen_in(network, x).of("features")[0]) == "the token that the head reads"

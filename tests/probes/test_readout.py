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

from tests.problems.networks import Block, Keep, built, seen_in, tokens
from transformer_theory.metrics import AttentionStatistics
from transformer_theory.metrics.class_features import ClassFeatures
from transformer_theory.metrics.token_layout import MEAN, TokenLayout, mean_feature, mean_query, where
from transformer_theory.models import CRATE, ViT
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
    "boolean mask": lambda: Linear(lambda x: x[torch.arange(SEQ) == PLACES[:, None]].view(BATCH, -1, DIM)[:, -1]),
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


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", HEADS)
def test_the_tokens_that_change_the_outputs_are_read(name, training):
    model = built(lambda: Network(HEADS[name]()))
    x = tokens(BATCH, SEQ, DIM)
    with torch.no_grad():
        expected = changed(model.eval().head, model.stream(x))
    model.train(training)
    model.blocks.eval()  # so that dropout does not change the stream
    keep = seen_in(model, x)
    assert torch.equal(read_of(keep), expected)

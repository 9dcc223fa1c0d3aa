"""Small networks for probes, with every habit that probes must cope with, and a metric that keeps
activations.
"""

import torch
from torch import nn
from torch.nn import functional

from transformer_theory.core.measurement import Measurement
from transformer_theory.core.metric import Activations, Metric
from transformer_theory.metrics import AttentionMaps, AttentionStatistics, Geometry
from transformer_theory.models import build
from transformer_theory.probes import probe
from transformer_theory.theories.crate import Compression

WIDE = {"dim": 16, "depth": 2, "heads": 4}


class Keep(Metric):
    """A metric that keeps activations, and counts how often it was reset."""

    takes_padding = True
    resets = -1  # the first reset is that of the constructor

    def update(self, activations):
        self.seen.append(activations)

    def compute(self, *, draws=0, generator=None):
        return [Measurement("network", "network", "activations", float(len(self.seen)))]

    def reset(self):
        super().reset()
        self.seen: list[Activations] = []
        self.resets += 1

    def merge(self, other):
        self.seen += other.seen

    @property
    def labels(self) -> list:
        return [activations.labels for activations in self.seen]

    def of(self, kind: str) -> list[Activations]:
        return [activations for activations in self.seen if activations.kind == kind]


class Attention(nn.Module):
    """Attention with every option of the fused kernel."""

    def __init__(self, dim: int, heads: int, groups: int | None = None, **options):
        super().__init__()
        self.heads, self.groups, self.options = heads, groups or heads, options
        self.q = nn.Linear(dim, dim)
        self.kv = nn.Linear(dim, 2 * dim * self.groups // heads)
        self.out = nn.Linear(dim, dim)

    def forward(self, x, dropout=0.0):
        query = self.q(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        key, value = self.kv(x).unflatten(-1, (2, self.groups, -1)).permute(2, 0, 3, 1, 4)
        options = {"enable_gqa": True, **self.options} if self.groups != self.heads else self.options
        out = functional.scaled_dot_product_attention(query, key, value, dropout_p=dropout, **options)
        return self.out(out.transpose(1, 2).flatten(-2))


class Block(nn.Module):
    """Attention with dropout, then an MLP; the residual stream is changed in place, as some code does."""

    def __init__(self, dim: int, **options):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.attention = Attention(dim, 2, **options)
        self.second = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Dropout(0.3), nn.Linear(2 * dim, dim))

    def forward(self, x):
        if torch.is_grad_enabled():
            x = x + self.attention(self.norm(x), 0.2 if self.training else 0.0)
            return x + self.mlp(self.second(x))
        x += self.attention(self.norm(x))
        x += self.mlp(self.second(x))
        return x


class Net(nn.Module):
    """Blocks in a ModuleList, and a head."""

    def __init__(self, dim: int = 8, depth: int = 2, **options):
        super().__init__()
        self.blocks = nn.ModuleList(Block(dim, **options) for _ in range(depth))
        self.head = nn.Linear(dim, 3)

    def forward(self, x):
        x = x.clone()
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


def built(make, seed: int = 0) -> nn.Module:
    return build(make, torch.Generator().manual_seed(seed))


def tokens(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def theory_metrics(*names: str) -> list[Metric]:
    """Fresh metrics of the named theories, or of all."""
    from transformer_theory.theories import list_theories

    chosen = [
        theory
        for theory in list_theories()
        if theory.in_networks is not None and (not names or theory.name in names)
    ]
    return [metric for theory in chosen for metric in theory.in_networks.metrics()]


def all_metrics() -> list[Metric]:
    """The metrics of all theories and general ones. Each process would draw rotations for four sequences of
    its own; here all sequences have them.
    """
    found = [*theory_metrics(), AttentionStatistics(), Geometry(), AttentionMaps()]
    for metric in found:
        if isinstance(metric, Compression):
            metric.max_drawn = None
    return found


def seen_in(model: nn.Module, *inputs, **options) -> Keep:
    keep = Keep()
    with probe(model, [keep], **options), torch.no_grad():
        model(*inputs)
    return keep

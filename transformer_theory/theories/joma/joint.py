r"""A stack of attention and MLPs trained on a hierarchy of latents: recovery, stable rank and entropy over
the training.

A layer normalises after each sum and has one head, no matrix after it and no positions:

.. math:: Z' = \mathrm{LN}(Z + \mathrm{softmax}_{\text{causal}}(Z W_Q W_K^\top Z^\top / \sqrt d)\, Z W_V),
    \qquad
    h = \mathrm{relu}(Z' W_1 + b_1), \qquad Z^{l+1} = \mathrm{LN}(Z' + h W_2 + b_2) .

The class is decoded at the last position. The padding at the start of a sequence is one token repeated, and
each of its copies attends to other copies only, so all copies stay equal. :class:`Stack` computes a single
copy and adds the logarithm of their number to its scores. This is exact and shortens a sequence of 30 tokens
to at most 9.

Each class has one sequence, so a batch of B draws is replaced by the C sequences, weighted by their numbers
of draws. The gradient has the same distribution, at the cost of C sequences. The optimiser is Adam with the
decay added to the gradient, a constant learning rate and no clipping.
Source: :cite:t:`tian2024joma`, Table 1 and released code.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from ...core.validation import integers
from ...maths.linalg import stable_rank
from ...models.embedding import build
from ...training.fitting import at_steps, fit
from ...training.tasks import StreamTask
from .hierarchy import Hierarchy, recovery

Stream = Float[Tensor, "n t d"]
Curves = Float[Tensor, "t layers"]
MAX_RATE = 1e6  # largest learning rate; above it the arithmetic of Adam may overflow


@dataclass(frozen=True, eq=False)
class LayerTrace:
    """Hidden units and attention entropy of a layer in a forward pass.

    Attributes:
        hidden: h after the ReLU, ``[n, t, width]``.
        entropy: entropy of the attention of the last position, over all copies, nats, ``[n]``.
    """

    hidden: Float[Tensor, "n t width"]
    entropy: Float[Tensor, " n"]


class Layer(nn.Module):
    """Attention and MLP (see the module's docstring).

    Args:
        dim, width: widths of the stream and of the MLP.
    """

    def __init__(self, dim: int, width: int):
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.lower, self.upper = nn.Linear(dim, width), nn.Linear(width, dim)
        self.attention_norm, self.mlp_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)

    def forward(self, tokens: Stream, copies: Float[Tensor, " t"]) -> tuple[Stream, LayerTrace]:
        query, key, value = self.qkv(tokens).chunk(3, dim=-1)
        later = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool, device=tokens.device).triu(1)
        # k copies of a key have k times its weight: exp(score + ln k).
        scores = (query @ key.mT / math.sqrt(tokens.shape[-1]) + copies.log()).masked_fill(later, -math.inf)
        weights = torch.softmax(scores, dim=-1)
        tokens = self.attention_norm(tokens + weights @ value)
        hidden = torch.relu(self.lower(tokens))
        last = weights[:, -1].detach()
        # k copies share a weight w: their entropy is -k (w/k) ln(w/k) = -w ln w + w ln k.
        entropy = (torch.special.entr(last) + last * copies.log()).sum(-1)
        return self.mlp_norm(tokens + self.upper(hidden)), LayerTrace(hidden, entropy)


class Stack(nn.Module):
    """Network that maps words to logits of the class, decoded at the last position.

    Args:
        vocabulary, classes: numbers of words and of classes.
        dim, width, depth: width of the stream, width of the MLPs, and number of layers.
    """

    def __init__(self, *, vocabulary: int, classes: int, dim: int = 1024, width: int = 400, depth: int = 3):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, dim)
        self.layers = nn.ModuleList(Layer(dim, width) for _ in range(depth))
        self.head = nn.Linear(dim, classes)

    def forward(self, ids: Int[Tensor, "n L"]) -> Float[Tensor, "n classes"]:
        return self.trace(ids)[0]

    def trace(self, ids: Int[Tensor, "n L"]) -> tuple[Float[Tensor, "n classes"], tuple[LayerTrace, ...]]:
        """Returns the logits, and the trace of each layer. Position 0 represents all copies of the padding.

        Args:
            ids: words, ``[n, L]``. If all sequences start with repetitions of the same word, these are
                computed once.
        """
        # cumprod is 1 at the leading positions at which all sequences have the first word, and 0 from the
        # first other position on.
        is_padding = (ids == ids[:1, :1]).all(0).long().cumprod(0)
        padding = max(1, int(is_padding.sum()))
        tokens, traces = self.embedding(ids[:, padding - 1 :]), []  # [n, L - padding + 1, dim]
        copies = tokens.new_ones(tokens.shape[1])
        copies[0] = padding
        for layer in self.layers:
            tokens, trace = layer(tokens, copies)
            traces.append(trace)
        return self.head(tokens[:, -1]), tuple(traces)


@dataclass(frozen=True, eq=False)
class StackRun:
    """Result of a training run. The layers are ordered from the lowest: one for each layer of latents and one
    for the classes.

    Attributes:
        model: trained network.
        steps: steps at which the curves were measured; the first is 0.
        loss: cross-entropy over all classes, nats, ``[t]``.
        recovered: recovery of the latents of each layer by the units of that layer, ``[t, layers]``.
        rank: stable rank of each MLP's lower layer, ``[t, layers]``.
        entropy: entropy of the attention of the last position, mean over classes, nats, ``[t, layers]``.
        before, after: largest activation of each unit over positions, before and after training, ``[classes,
            width]`` per layer.
    """

    model: Stack
    steps: tuple[int, ...]
    loss: Float[Tensor, " t"]
    recovered: Curves
    rank: Curves
    entropy: Curves
    before: tuple[Float[Tensor, "classes width"], ...]
    after: tuple[Float[Tensor, "classes width"], ...]


def fit_stack(
    hierarchy: Hierarchy,
    generator: torch.Generator,
    *,
    steps: int,
    rate: float,
    length: int = 30,
    batch: int = 128,
    decay: float = 1e-4,
    dim: int = 1024,
    width: int = 400,
    measure_steps: Iterable[int] = (),
) -> StackRun:
    """Trains a stack with one layer for each layer of latents and one for the classes.

    Args:
        hierarchy: latents and classes that generate the sequences.
        generator: draws initial weights and batches.
        steps, rate, batch, decay: number of steps, learning rate, batch size and weight decay of Adam.
        length: L, the number of tokens per sequence, padding included.
        dim, width: widths of the stream and of the MLPs.
        measure_steps: steps after which the curves are measured, in addition to 0 and the last.
    Raises:
        ValueError: a class is longer than ``length``, ``measure_steps`` lie outside the run, or a setting is
            out of range.
        NotConverged: the loss, or a weight at the end, is not finite.
    """
    integers(steps=steps, batch=batch)
    if not 0 < rate <= MAX_RATE:
        raise ValueError(f"rate must lie in (0, {MAX_RATE:.0e}], got {rate:g}; try 1e-3")
    marks = sorted({0, steps} | set(measure_steps))
    if marks[0] < 0 or marks[-1] > steps:
        outside = marks[0] if marks[0] < 0 else marks[-1]
        raise ValueError(f"measure_steps must lie in [0, {steps}], the steps of this run, got {outside}")
    ids, latents, C = hierarchy.sequences(length), hierarchy.activity()[1:], hierarchy.classes
    sizes = {
        "vocabulary": hierarchy.vocabulary,
        "classes": C,
        "dim": dim,
        "width": width,
        "depth": len(latents),
    }
    model = build(lambda: Stack(**sizes), generator)
    assert isinstance(model, Stack)
    optimiser = torch.optim.Adam(model.parameters(), lr=rate, weight_decay=decay)
    snapshots: list[_Snapshot] = []

    def measure(step: int, network: nn.Module) -> None:
        snapshots.append(_snapshot(model, ids, latents))

    def loss_of(network: nn.Module, shares: Tensor) -> Tensor:
        return shares @ functional.cross_entropy(network(ids), torch.arange(C), reduction="none")

    task = StreamTask(loss_of, lambda draws: _batches(C, batch, draws))
    fit(
        model,
        task,
        optimiser=optimiser,
        steps=steps,
        callbacks=[at_steps(marks, measure, limit=steps)],
        generator=generator,
    )
    loss, recovered, rank, entropy = (
        torch.stack([getattr(snapshot, name) for snapshot in snapshots])
        for name in ("loss", "recovered", "rank", "entropy")
    )
    return StackRun(
        model, tuple(marks), loss, recovered, rank, entropy, snapshots[0].hidden, snapshots[-1].hidden
    )


@dataclass(frozen=True, eq=False)
class _Snapshot:
    loss: Tensor
    recovered: Tensor
    rank: Tensor
    entropy: Tensor
    hidden: tuple[Tensor, ...]


@torch.no_grad()
def _snapshot(model: Stack, ids: Tensor, latents: tuple[Bool[Tensor, "classes _"], ...]) -> _Snapshot:
    logits, traces = model.trace(ids)
    hidden = tuple(trace.hidden.amax(1) for trace in traces)
    return _Snapshot(
        functional.cross_entropy(logits, torch.arange(len(ids))),
        torch.stack([recovery(h, active) for h, active in zip(hidden, latents)]),
        torch.stack([stable_rank(layer.lower.weight.double()) for layer in model.layers]),  # pyright: ignore
        torch.stack([trace.entropy.mean() for trace in traces]),
        hidden,
    )


def _batches(classes: int, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Yields, without end, the shares of the classes among ``size`` draws, ``[classes]``."""
    while True:
        yield torch.bincount(torch.randint(classes, (size,), generator=generator), minlength=classes) / size

r"""Rungs of whole networks: the invariant in transformers with embeddings, values, heads, LayerNorm and a
residual stream.

The theory's tokens, logits and lower layer are defined in any layer of a transformer as follows. Let
:math:`x_l` be the mean input of attention over the occurrences of token l before a query m, and :math:`x_m`
that at the query. For a head with score matrix W, values :math:`W_V`, output matrix :math:`W_O`, and for the
MLP's first matrix :math:`W_1` behind a LayerNorm with scale :math:`\gamma`,

.. math:: z_l = x_l^\top W x_m, \qquad v_{\cdot l} = W_1 \operatorname{diag}(\gamma) \big(I - \tfrac1d 1
    1^\top\big) W_O W_V\, x_l / \sigma,

with the mean standard deviation :math:`\sigma` of the stream at the query. So :math:`v_{kl}` is the input of
hidden unit k per unit of attention on token l, as in the theory, where the LayerNorm is linearised.
:math:`\bar b_l` is the mean attention on token l at the start. The theory predicts the change of z by the
softmax invariant. Its size follows from the ratio of the learning rates of z and v, which such a network does
not have: only the direction is a prediction. Sizes are computed with equal rates. Source:
:cite:t:`tian2024joma`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor, nn
from torch.nn import functional

from ....core.errors import NotConverged
from ....core.measurement import Measurement
from ....core.statistics import LADDER_DRAWS, fixed_generator, permutations
from ....data import digits
from ....data.queries import most_frequent, subsample
from ....data.text import CONTEXT, UNKNOWN, Text
from ....models import build
from ....models.decoder import Decoder, PostNorm, PreNorm
from ....models.vit import Block as VisionBlock
from ....probes.evaluation import evaluation
from ....training.fitting import at_steps, fit, permuted
from ....training.recipes import RECIPES
from ....training.tasks import NextWord, StreamTask
from ....training.trained_rungs import STEPS as VIT_STEPS
from ....training.trained_rungs import digit_parts, trained_network
from ..invariants import fixed_mean_change
from ..query_data import MAX_SEQUENCES, MAX_TOKENS
from .blocks import ADAMW, BATCH, STEPS
from .comparison import Change, failed, rows_of

TEXT_STEPS, CLIP = 400, 0.5  # steps and largest norm of the gradient of the decoder of a text
MIN_OCCURRENCES = 5  # a token with fewer occurrences in the measured sequences is left out
PERMUTED_WEIGHTS = "changes of the lower layer permuted over units and tokens"


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The theory's quantities in all heads of all layers of a network.

    Attributes:
        logits: z, ``[heads, M]``.
        lower: v, ``[heads, K, M]``.
        mean: mean attention on each token, ``[heads, M]``.
    """

    logits: Float[Tensor, "heads M"]
    lower: Float[Tensor, "heads K M"]
    mean: Float[Tensor, "heads M"]


@dataclass(frozen=True, eq=False)
class Probe:
    """Sequences of one query in which a network is measured.

    Attributes:
        inputs: inputs of the network, ``[n, ...]``.
        tokens: column of the token at each position of the residual stream; -1: not counted, ``[n,
            positions]``.
        query: position of the query, 0 or -1.
    """

    inputs: Tensor
    tokens: Int[Tensor, "n positions"]
    query: int

    @property
    def frequency(self) -> Float[Tensor, " M"]:
        """Share of each token among the positions that count."""
        counts = torch.bincount(self.tokens[self.tokens >= 0]).double()
        return counts / counts.sum()

    @classmethod
    def of(
        cls, inputs: Tensor, ids: Int[Tensor, "n positions"], *, query: int, most: int = MAX_TOKENS
    ) -> "Probe":
        """Numbers the most frequent ids of the sequences from 0, except for those with few occurrences."""
        words = most_frequent(ids.flatten(), most, min_count=MIN_OCCURRENCES)
        matches = ids[..., None] == words
        return cls(inputs, torch.where(matches.any(-1), matches.long().argmax(-1), -1), query)

    def measure(self, network: nn.Module) -> Snapshot:
        """Measures the theory's quantities; the network's mode is restored."""
        blocks: list[VisionBlock] = list(network.blocks)  # pyright: ignore
        norms = [block.attention_norm if reads_attention_norm(block) else block.mlp_norm for block in blocks]
        streams, sums, handles = {}, {}, []
        for number, (block, norm) in enumerate(zip(blocks, norms)):
            for store, module in ((streams, block.attention), (sums, norm)):
                handles.append(module.register_forward_pre_hook(_store(store, number)))
        try:
            with evaluation(network):
                network(self.inputs)
                parts = [
                    self._layer(block, norm, streams[n], sums[n])
                    for n, (block, norm) in enumerate(zip(blocks, norms))
                ]
        finally:
            for handle in handles:
                handle.remove()
        return Snapshot(*(torch.cat(values) for values in zip(*parts)))

    def _layer(
        self, block: VisionBlock, norm: nn.Module, stream: Tensor, total: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        attention, stream = block.attention, stream.double()
        counted = self.tokens >= 0
        M, d = len(self.frequency), stream.shape[-1]
        x = torch.zeros(M, d, dtype=torch.float64).index_add_(0, self.tokens[counted], stream[counted])
        x = x / torch.bincount(self.tokens[counted], minlength=M)[:, None]
        asked, W = stream[:, self.query], attention.bilinear().double()  # [n, d], [heads, d, d]
        z = torch.einsum("ld,hde,e->hl", x, W, asked.mean(0))
        # The causal query is at the last position, the class token sees all positions: no key is masked.
        # [heads, counted]
        weights = torch.softmax(torch.einsum("nsd,hde,ne->nhs", stream, W, asked), dim=-1).transpose(0, 1)[
            :, counted
        ]
        mean = torch.zeros(len(W), M, dtype=torch.float64).index_add_(1, self.tokens[counted], weights) / len(
            stream
        )
        # [heads, p, d]
        value = attention.qkv.weight.double().unflatten(0, (3, attention.heads, attention.head_dim))[2]
        # [d, heads, p]
        output = attention.out.weight.double().unflatten(1, (attention.heads, attention.head_dim))
        # what attention on token l adds to the stream
        added = torch.einsum("dhp,hpe,le->hld", output, value, x)
        sigma = total[:, self.query].double().std(-1, unbiased=False).mean()
        centred = (added - added.mean(-1, keepdim=True)) * norm.weight.double() / sigma  # pyright: ignore
        return z, torch.einsum("kd,hld->hkl", block.mlp[0].weight.double(), centred), mean


def reads_attention_norm(block: nn.Module) -> bool:
    """Returns whether the MLP reads the norm after the attention (post-norm layers) and not its own norm
    (pre-norm layers).
    """
    return not isinstance(block, VisionBlock | PreNorm)


def _store(into: dict[int, Tensor], number: int) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
    def store(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        into[number] = inputs[0].detach()

    return store


def change_of(snapshots: list[Snapshot], probe: Probe, *, early: bool = True, note: str = "") -> Change:
    """Returns the predicted and measured changes between the first snapshot and the last, and early: between
    the first and the second.
    """
    first, last = snapshots[0], snapshots[-1]
    predicted = fixed_mean_change(torch.stack([one.lower for one in snapshots]), first.mean)
    # The second null: the weights move as far as they did, but the moves are dealt out anew over units and
    # tokens. What remains of the prediction is mainly the mean attention, times a number.
    moves, others = (last.lower - first.lower).flatten(1), []
    for order in permutations(moves.shape[1], LADDER_DRAWS):
        moved = first.lower + moves[:, order].view_as(first.lower)
        others.append(fixed_mean_change(torch.stack([first.lower, moved]), first.mean)[-1])
    before = (predicted[1], snapshots[1].logits - first.logits) if early else None
    measured = last.logits - first.logits
    size = float((measured - measured.mean(-1, keepdim=True)).square().mean().sqrt())
    note = f"{note}The logits move by {size:.3g} (root mean square)."
    return Change(
        predicted[-1], measured, before, probe.frequency, (PERMUTED_WEIGHTS, torch.stack(others)), False, note
    )


def digit_decoder(generator: Generator, *, depth: int) -> Iterator[Measurement]:
    """Trains a decoder without positions on the visual words of the digits, and measures it where the most
    frequent word is the query.
    """
    data = digits()
    ids, targets = data.ids, data.next_id
    assert ids is not None
    assert targets is not None
    with_query = (ids[:, -1] == most_frequent(ids[:, -1], 1)).nonzero()[:, 0]
    chosen = ids[subsample(with_query, MAX_SEQUENCES, fixed_generator())]
    task = StreamTask(
        lambda model, batch: functional.cross_entropy(model(ids[batch])[:, -1], targets[batch]),
        lambda draws: permuted(len(ids), BATCH, draws),
    )
    sizes = {"vocabulary": int(targets.max()) + 1, "dim": 32, "hidden": 64, "heads": 2, "depth": depth}
    network = build(lambda: Decoder(positions=nn.Identity, block=PostNorm, dropout=0.0, **sizes), generator)
    yield from _trained(network, task, Probe.of(chosen, chosen, query=-1), STEPS, generator, data="digits")


def text_decoder(generator: Generator, text: Text) -> Iterator[Measurement]:
    """Trains a decoder on a text, and measures it on windows of the text that end in its most frequent known
    word.
    """
    counts = torch.bincount(text.ids, minlength=len(text.vocabulary))
    counts[text.vocabulary.words.index(UNKNOWN)] = 0
    ends = (text.ids == int(counts.argmax())).nonzero()[:, 0]
    ends = ends[ends >= CONTEXT - 1]
    if len(ends) < 2:
        yield from failed(
            ValueError(f"{text.name}: no word ends two windows of {CONTEXT} words; choose a longer text")
        )
        return
    windows = text.ids.unfold(0, CONTEXT, 1)
    ends = ends - (CONTEXT - 1)  # number of the window that ends there
    chosen = windows[subsample(ends, MAX_SEQUENCES, fixed_generator())]
    network = build(
        lambda: Decoder(vocabulary=len(text.vocabulary), dim=64, hidden=128, heads=2, depth=2), generator
    )
    yield from _trained(
        network,
        NextWord(text),
        Probe.of(chosen, chosen, query=-1),
        TEXT_STEPS,
        generator,
        data=text.name,
        clip=CLIP,
    )


def _trained(
    network: nn.Module,
    task,
    probe: Probe,
    steps: int,
    generator: Generator,
    *,
    data: str,
    clip: float | None = None,
) -> Iterator[Measurement]:
    snapshots: list[Snapshot] = []
    optimiser = torch.optim.AdamW(network.parameters(), **ADAMW)
    marks = at_steps(
        (0, steps // 10, steps), lambda step, model: snapshots.append(probe.measure(model)), limit=steps
    )
    try:
        run = fit(
            network, task, optimiser=optimiser, steps=steps, callbacks=[marks], clip=clip, generator=generator
        )
    except NotConverged as error:
        yield from failed(error)
        return
    note = f"Loss {float(run.losses[:10].mean()):.3g} → {float(run.losses[-10:].mean()):.3g} nats. "
    yield from rows_of(change_of(snapshots, probe, note=note), data=data, model="decoder")


def vision_transformer(generator: Generator) -> Iterator[Measurement]:
    """Measures the ViT of the comparisons on the digits: the class token is the query, patches of one visual
    word are one token.
    """
    seed = generator.initial_seed()
    trained, validation = trained_network("ViT", seed)
    assert validation.ids is not None
    # The initial weights depend on the seed only, so they are drawn again.
    train, _ = digit_parts()
    untrained = build(lambda: RECIPES["ViT"].build(train), Generator().manual_seed(seed))
    class_token = torch.full((len(validation), 1), int(validation.ids.max()) + 1)
    inputs = validation.tokens.to(next(trained.parameters()).dtype)
    probe = Probe.of(inputs, torch.cat([class_token, validation.ids], dim=1), query=0)
    snapshots = [probe.measure(network) for network in (untrained, trained)]
    change = change_of(snapshots, probe, early=False, note=f"{VIT_STEPS} steps. ")
    yield from rows_of(change, data=validation.name, model="ViT")

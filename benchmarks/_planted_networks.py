r"""Small networks for the calibration: with random weights, and with one property built in.

Networks of tokens are vision transformers, networks of ids causal decoders; both have two layers of width
:data:`WIDTH` and two heads. What is built in has a size: that of the added weights in units of those that are
there, or of the added logits.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor, nn

from transformer_theory.models import Decoder, ViT, build
from transformer_theory.models.attention import softmax_attention
from transformer_theory.models.decoder import CausalAttention, PreNorm

from ._planted import CLASSES, CORRELATED, DIM, NOISE, TOKENS, WORDS, labels_of, noise, word_laws

READERS = ("tokens", "ids")
WIDTH, HEADS, DEPTH, VOCABULARY = 16, 2, 2, 1 + WORDS + CLASSES
INPUTS, LENGTH = 48, 40  # sequences that are measured, and ids of each


def inputs(reader: str, kind: str, seed: int, n: int = INPUTS) -> tuple[Tensor, Tensor]:
    """Returns noise of one kind for networks of tokens or of ids, and random labels."""
    if reader == "tokens":
        data = noise(kind, seed, n)
        assert data.labels is not None
        return data.tokens.float(), data.labels
    generator = torch.Generator().manual_seed(seed)
    law = word_laws(kind, n, generator)
    return torch.multinomial(law, LENGTH, replacement=True, generator=generator), labels_of(n, generator)


def network(reader: str, seed: int) -> nn.Module:
    """Returns a network with random weights."""

    if reader == "ids":
        return decoder(seed)
    sizes = {"dim": WIDTH, "depth": DEPTH, "heads": HEADS}
    generator = torch.Generator().manual_seed(seed)
    return build(lambda: ViT.for_tokens(TOKENS, DIM, CLASSES, **sizes), generator).eval()


def decoder(seed: int, **options: Any) -> nn.Module:
    """Returns a causal decoder with random weights; ``options`` are further ones of :class:`.Decoder`."""
    sizes = {"dim": WIDTH, "hidden": 4 * WIDTH, "heads": HEADS, "depth": DEPTH, "dropout": 0.0}
    generator = torch.Generator().manual_seed(seed)
    return build(lambda: Decoder(vocabulary=VOCABULARY, block=PreNorm, **sizes, **options), generator).eval()


def directions(number: int, size: int, generator: Generator) -> Tensor:
    """Returns orthonormal directions without a mean, which LayerNorm would remove, ``[number, size]``."""
    drawn = torch.randn(size, number, generator=generator)
    return torch.linalg.qr(drawn - drawn.mean(0))[0].T


def attentions(one: nn.Module) -> list[CausalAttention]:
    """Returns the attention of each layer."""
    return [block.attention for block in one.blocks]  # pyright: ignore


def one_token(size: float, seed: int) -> nn.Module:
    """Returns a network whose queries all prefer the class token: positions have one direction in common,
    which the queries read, and the class token has one of its own, which the keys read.
    """
    one, generator = network("tokens", seed), torch.Generator().manual_seed(seed)
    common, own = directions(2, WIDTH, generator)
    assert isinstance(one, ViT)
    with torch.no_grad():
        one.pos_embedding.add_(size * common)
        one.pos_embedding[:, 0] += size * own
        for attention in attentions(one):
            query, key, _ = attention.qkv.weight.split(WIDTH)
            written = torch.randn(WIDTH, generator=generator)
            written *= size * query.norm() / written.norm()
            query += torch.outer(written, common)
            key += torch.outer(written, own)
    return one


def values_with_outputs(size: float, seed: int) -> nn.Module:
    """Returns a decoder whose values read the direction in which ids differ most, of those with the same
    position, and whose outputs read what these values write: more of the context arrives than with
    independent matrices.
    """
    one, generator = network("ids", seed), torch.Generator().manual_seed(seed)
    assert isinstance(one, Decoder)
    with torch.no_grad():
        # in the second half of the channels the sinusoidal positions hardly change
        half = WIDTH // 2
        table = one.embedding.weight[:, half:]
        read = torch.zeros(WIDTH)
        read[half:] = torch.linalg.svd(table - table.mean(0))[2][0]
        for attention in attentions(one):
            value, out = attention.qkv.weight[2 * WIDTH :], attention.out.weight
            (written,) = directions(1, WIDTH, generator)
            between = torch.randn(WIDTH, generator=generator)
            between /= between.norm()
            value += size * value.norm() * torch.outer(between, read)
            out += size * out.norm() * torch.outer(written, between)
    return one


class ReadsTheTokenBefore(nn.Module):
    """Causal attention whose keys also read the token before them, and whose queries their own: heads attend
    to what followed earlier copies of the token.

    Args:
        attention: the attention to which this is added.
        size: factor of what is added to queries and keys.
    """

    def __init__(self, attention: CausalAttention, size: float):
        super().__init__()
        self.attention, self.size = attention, size

    def forward(self, tokens: Tensor) -> Tensor:
        heads, width = self.attention.heads, self.attention.head_dim
        query, key, value = self.attention.qkv(tokens).unflatten(-1, (3, heads, width)).permute(2, 0, 3, 1, 4)
        own = tokens.unflatten(-1, (heads, width)).transpose(1, 2)
        before = torch.cat([torch.zeros_like(own[:, :, :1]), own[:, :, :-1]], 2)
        found = softmax_attention(
            query + self.size * own,
            key + self.size * before,
            value,
            scale=width**-0.5,
            is_causal=True,
        )
        return self.attention.out(found.transpose(1, 2).flatten(-2))


def induction(size: float, seed: int) -> nn.Module:
    """Returns a decoder without positions, the keys of which read the token before them."""
    one = decoder(seed, positions=lambda dim: nn.Identity())
    for block in one.blocks:  # pyright: ignore[reportGeneralTypeIssues]
        block.attention = ReadsTheTokenBefore(block.attention, size)  # pyright: ignore
    return one


class WithContext(nn.Module):
    """A decoder whose logits are raised for ids of the context.

    Args:
        decoder: the decoder.
        before: what is added for the id before the last one.
        seen: what is added for each earlier occurrence, the last id included.
    """

    def __init__(self, decoder: nn.Module, *, before: float = 0.0, seen: float = 0.0):
        super().__init__()
        self.decoder, self.before, self.seen = decoder, before, seen

    def forward(self, ids: Tensor) -> Tensor:
        one_hot = nn.functional.one_hot(ids, VOCABULARY).float()
        earlier = torch.cat([torch.zeros_like(one_hot[:, :1]), one_hot[:, :-1]], 1)
        return self.decoder(ids) + self.before * earlier + self.seen * one_hot.cumsum(1)


@dataclass(frozen=True)
class PlantedInNetwork:
    """An effect in a network that a theory should find.

    Attributes:
        theory: name of the theory.
        effect: what is planted, and what its size means.
        sizes: two sizes, the larger first.
        reader: "tokens" or "ids".
        make: ``(size, seed) -> network``.
        kind: kind of noise of the inputs.
        quantity, setting: the quantity that should show it, in a test on synthetic inputs; empty: the
            headline.
        copies: whether it is compared with copies of the network; otherwise with its own null.
    """

    theory: str
    effect: str
    sizes: tuple[float, float]
    reader: str
    make: Callable[[float, int], nn.Module]
    kind: str = NOISE[0]
    quantity: str = ""
    setting: str = ""
    copies: bool = True


ADDED = "norm of these weights to that of the others"
CLASS_TOKEN = f"all queries prefer the class token; {ADDED}"
PLANTED_IN_NETWORKS = (
    PlantedInNetwork("length", CLASS_TOKEN, (2.0, 0.5), "tokens", one_token),
    PlantedInNetwork("turing", CLASS_TOKEN, (2.0, 0.5), "tokens", one_token),
    PlantedInNetwork(
        "universal",
        f"outputs of attention read what its values write; {ADDED}",
        (2.0, 0.5),
        "ids",
        values_with_outputs,
    ),
    PlantedInNetwork(
        "chain_of_thought",
        "logit of the id before the last one, the answer in the chain",
        (2.0, 0.05),
        "ids",
        lambda size, seed: WithContext(network("ids", seed), before=size),
        copies=False,
    ),
    PlantedInNetwork(
        "induction",
        "keys read the token before them; factor of this part of queries and keys",
        (1.0, 0.25),
        "ids",
        induction,
        quantity="prefix matching",
        setting="repeated blocks",
        copies=False,
    ),
    PlantedInNetwork(
        "in_context",
        "logit of each earlier occurrence of an id, on sequences with words of their own",
        (0.05, 0.005),
        "ids",
        lambda size, seed: WithContext(network("ids", seed), seen=size),
        kind=CORRELATED,
        quantity="in-context score",
        setting="own context",
        copies=False,
    ),
)

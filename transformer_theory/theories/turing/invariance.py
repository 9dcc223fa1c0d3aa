r"""Transformers without positions cannot count: their output depends on the proportions of the symbols only.

For a word w let :math:`\mathrm{PropInv}(w)` be the set of words, of any length, in which every symbol has the
same share as in w. In an encoder whose attention is normalised over the keys, the vector of a token depends
on its symbol and on the shares, and so does the decoder's attention over the encoder; so :math:`T(u) = T(w)`
for :math:`u \in \mathrm{PropInv}(w)`. A token at the start of the sequence, a causal mask, or attention that
sums instead of averaging break this. Source: :cite:t:`perez2021attention`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

# scores of equal tokens differ by rounding; hard-max averages over all keys within this distance of the best
TIE_ATOL = 1e-9
Pool = Callable[[Float[Tensor, "q k"]], Float[Tensor, "q k"]]


def softmax_weights(scores: Float[Tensor, "q k"]) -> Float[Tensor, "q k"]:
    """Returns the softmax of the scores, ``[q, k]``."""
    return scores.softmax(-1)


def hard_weights(scores: Float[Tensor, "q k"]) -> Float[Tensor, "q k"]:
    """Returns equal weights on the keys with the smallest absolute score, the construction's attention, ``[q,
    k]``.
    """
    size = -scores.abs().masked_fill(scores.isinf(), torch.inf)
    best = (size >= size.amax(-1, keepdim=True) - TIE_ATOL).to(scores.dtype)
    return best / best.sum(-1, keepdim=True)


def sum_weights(scores: Float[Tensor, "q k"]) -> Float[Tensor, "q k"]:
    """Returns the logistic function of the scores, ``[q, k]``: attention that sums over the keys instead of
    averaging.
    """
    return scores.sigmoid()


@dataclass(frozen=True)
class EncoderDecoder:
    """An encoder and a decoder with random weights and no positions.

    Attributes:
        embedding: vectors of the symbols, ``[symbols, d]``.
        encoder: matrices of query, key, value and of the two parts of the MLP for each layer, ``[layers, 5,
            d, d]``.
        decoder: the same for each layer of the decoder, whose query reads the decoder's token and whose keys
            and values read the encoder.
        seed: first token of the decoder, ``[d]``.
    """

    embedding: Float[Tensor, "symbols d"]
    encoder: Float[Tensor, "layers 5 d d"]
    decoder: Float[Tensor, "blocks 5 d d"]
    seed: Float[Tensor, " d"]

    def encode(
        self, ids: Int[Tensor, " n"], pool: Pool, mask: Bool[Tensor, "n n"] | None
    ) -> Float[Tensor, "n d"]:
        """Returns the encoder's vectors, ``[n, d]``."""
        x = self.embedding[ids]
        for query, key, value, up, down in self.encoder:
            scores = (x @ query) @ (x @ key).mT
            if mask is not None:
                scores = scores.masked_fill(~mask, -torch.inf)
            x = x + pool(scores) @ (x @ value)
            x = x + (x @ up).relu() @ down
        return x

    def output(
        self, ids: Int[Tensor, " n"], *, pool: Pool, mask: Bool[Tensor, "n n"] | None = None, steps: int = 2
    ) -> Float[Tensor, " d"]:
        """Returns the decoder's last token after ``steps`` steps, ``[d]``.

        Args:
            ids: symbols of the word, ``[n]``.
            pool: function from scores to weights of attention, in encoder and decoder.
            mask: pairs (query, key) of the encoder that may attend, ``[n, n]``; None for all.
            steps: number of tokens that the decoder generates.
        """
        memory, tokens = self.encode(ids, pool, mask), self.seed[None]
        for _ in range(steps):
            x = tokens
            for query, key, value, up, down in self.decoder:
                own = pool((x @ query) @ (x @ key).mT)  # attention over the tokens generated so far
                x = x + own @ (x @ value)
                x = x + pool((x @ query) @ (memory @ key).mT) @ (memory @ value)
                x = x + (x @ up).relu() @ down
            tokens = torch.cat([tokens, x[-1:]])
        return tokens[-1]


def random_network(
    generator: torch.Generator, *, symbols: int = 4, d: int = 6, layers: int = 3, blocks: int = 2
) -> EncoderDecoder:
    """Draws Gaussian weights; the last symbol can serve as a token at the start of the sequence."""

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    return EncoderDecoder(
        draw(symbols, d), draw(layers, 5, d, d) / d**0.5, draw(blocks, 5, d, d) / d**0.5, draw(d)
    )


def same_proportions(
    generator: torch.Generator, *, symbols: int = 3, longest: int = 4
) -> tuple[Int[Tensor, " n"], Int[Tensor, " m"]]:
    """Draws two words with the same proportions: each symbol 1 to ``longest`` times, and two or three times
    as often; both shuffled.
    """
    counts = torch.randint(1, longest + 1, (symbols,), generator=generator)
    factor = int(torch.randint(2, 4, (), generator=generator))
    u, w = (torch.arange(symbols).repeat_interleave(times) for times in (counts, factor * counts))
    return tuple(word[torch.randperm(len(word), generator=generator)] for word in (u, w))  # type: ignore[return-value]


def majority_network(preference: float = 0.0) -> EncoderDecoder:
    """Writes the weights of the transformer for majority: after one step the first entry is the mean of 1
    (symbol 0) and -1 (symbol 1).

    Args:
        preference: score of the symbol 0, and minus that of the symbol 1; 0 for uniform attention.
    """
    decoder = torch.zeros(1, 5, 2, 2, dtype=torch.float64)
    decoder[0, 0, 1, 0] = preference  # query: of the seed's constant entry
    decoder[0, 1, 0, 0] = decoder[0, 2, 0, 0] = 1  # key and value
    embedding, seed = torch.tensor([[1.0, 0.0], [-1.0, 0.0]]).double(), torch.tensor([0.0, 1.0]).double()
    return EncoderDecoder(embedding, torch.zeros(0, 5, 2, 2, dtype=torch.float64), decoder, seed)

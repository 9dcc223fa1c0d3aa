r"""An induction head with explicit weights, whose output tends to the bigram statistics of the sequence.

The stream has four blocks: token (V + 1 dimensions, the last for the start token BOS), position (T), previous
token (V + 1), output (V).

* Layer 1, *previous-token head*: score b for the key at position i - 1, otherwise 0; copies the token block
  into the previous block.
* Layer 2, *induction head*: score b times the previous block of the key, at the token of the query; copies
  the token block into the output.

.. math:: a^1_{i, i-1} = \frac{e^b}{e^b + i}, \qquad
    \text{out}_t \to \frac{\#\{j \le t: x_{j-1} = x_t,\ x_j = v\}}{\#\{j \le t: x_{j-1} = x_t\}} \quad (b \to
    \infty).

*Bound.* Let :math:`\delta = T e^{-b}`. A key after an earlier copy of :math:`x_t` has a score in :math:`[b(1
- \delta), b]`, any other key one in :math:`[0, b\delta]`. So all other keys together have at most the mass
:math:`T e^{-b(1 - 2\delta)}`, the shares of the former differ by factors of at most :math:`e^{b\delta}`, and
where there is a copy the error of the output is at most :math:`T e^{-b(1-2\delta)} + e^{b\delta} - 1`.
Without a copy attention is spread over all positions: the output is a unigram statistic. Sources:
:cite:t:`elhage2021mathematical`, :cite:t:`olsson2022incontext`; the bound is our own.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor

from ...core.validation import integers, positive
from ...models.embedding import check_ids
from .circuits import AttentionOnly, Heads


@dataclass(frozen=True)
class InductionHead:
    """The construction for V ids and sequences of up to T tokens, BOS included, at the scale b of both
    scores.

    Raises:
        ValueError: a size is below 1, or the scale is not positive.
    """

    vocabulary: int
    length: int
    scale: float

    def __post_init__(self):
        integers(vocabulary=self.vocabulary, length=self.length)
        positive(scale=self.scale)

    @property
    def bos(self) -> int:
        """Number of the start token, V."""
        return self.vocabulary

    def network(self, *, composed: bool = True) -> AttentionOnly:
        """Returns the weights, float64.

        Args:
            composed: whether layer 2 reads the previous tokens of the keys. If not, it attends to all
                positions equally, which needs no layer 1: its output is the share of each id among the tokens
                so far.
        """
        V, T = self.vocabulary + 1, self.length
        token, position, previous, output = (
            slice(a, b) for a, b in ((0, V), (V, V + T), (V + T, 2 * V + T), (2 * V + T, 3 * V + T - 1))
        )
        dim = output.stop
        zeros, eye = torch.zeros(1, dim, dim, dtype=torch.float64), torch.eye(dim, dtype=torch.float64)
        QK1, OV1, QK2, OV2 = (zeros.clone() for _ in range(4))
        # score(key x, query z) = x^T W z: the key at position i - 1 for the query at position i.
        QK1[0, position, position] = self.scale * torch.diag(torch.ones(T - 1, dtype=torch.float64), 1)
        OV1[0, token, previous] = torch.eye(V, dtype=torch.float64)
        if composed:
            QK2[0, previous, token] = self.scale * torch.eye(V, dtype=torch.float64)
        OV2[0, token, output] = torch.eye(V, dtype=torch.float64)[:, :-1]  # BOS is not an output
        return AttentionOnly(eye[token], eye[position], (Heads(QK1, OV1), Heads(QK2, OV2)), eye[:, output])

    def output(
        self, ids: Int[Tensor, "batch n"], *, composed: bool = True
    ) -> Float[Tensor, "batch n vocabulary"]:
        """Returns what the head predicts after each token of sequences that start with BOS, ``[batch, n,
        V]``; sums are 1 less the mass on BOS.

        Raises:
            ValueError: a sequence does not start with BOS, or holds it later; or the ids do not fit.
        """
        check_ids(ids, vocabulary=self.vocabulary + 1, context=self.length)
        if bool((ids[:, 0] != self.bos).any()) or bool((ids[:, 1:] == self.bos).any()):
            raise ValueError(
                f"each sequence must start with BOS, the id {self.bos}, and not hold it again; prepend it "
                "with with_bos"
            )
        return self.network(composed=composed).run(ids)[0]

    def bound(self) -> float:
        """Returns the bound on the error of the output, see the module's docstring."""
        b, delta = self.scale, self.length * math.exp(-self.scale)
        return self.length * math.exp(-b * (1 - 2 * delta)) + math.expm1(b * delta)


def with_bos(ids: Int[Tensor, "batch n"], bos: int) -> Int[Tensor, "batch longer"]:
    """Returns the sequences with the start token before them, ``[batch, n + 1]``.

    Raises:
        ValueError: the ids are no integers ``[batch, n]`` below that of the start token.
    """
    check_ids(ids, vocabulary=bos)
    return torch.cat([torch.full((len(ids), 1), bos), ids], dim=1)


def in_context_bigram(
    ids: Int[Tensor, "batch n"], vocabulary: int
) -> tuple[Float[Tensor, "batch n vocabulary"], Bool[Tensor, "batch n"]]:
    """Returns the empirical distribution of the ids that followed earlier copies of each token, and where
    there is a copy.

    Args:
        ids: sequences, which may start with BOS, the id ``vocabulary``.
        vocabulary: number of ids that are counted, ``[0, vocabulary)``.
    Returns:
        Distributions ``[batch, n, vocabulary]``, zero where no copy has a successor; and whether there is
        one, ``[batch, n]``.
    Raises:
        ValueError: the ids are no integers ``[batch, n]`` in ``[0, vocabulary]``.
    """
    integers(vocabulary=vocabulary)
    check_ids(ids, vocabulary=vocabulary + 1)
    n = ids.shape[1]
    # the first token has no predecessor
    before = torch.cat([torch.full((len(ids), 1), -1), ids[:, :-1]], dim=1)
    matches = ((before[:, None, :] == ids[:, :, None]) & torch.ones(n, n, dtype=torch.bool).tril()).double()
    count = matches.sum(-1, keepdim=True)
    one_hot = (ids[..., None] == torch.arange(vocabulary)).double()
    return matches @ one_hot / count.clamp(min=1), count[..., 0] > 0


def random_sequences(
    n: int, *, vocabulary: int, length: int, generator: Generator
) -> Int[Tensor, "n length"]:
    """Draws independent ids that start with BOS, the id ``vocabulary``, ``[n, length]``."""
    return with_bos(torch.randint(vocabulary, (n, length - 1), generator=generator), vocabulary)

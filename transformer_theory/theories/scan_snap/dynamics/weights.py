r"""The two trained matrices, and how training starts: at zero, as in the theory, or from random numbers, as linear layers do.

The explicit model has two M x M matrices over the whole vocabulary; only the rows of Y and columns of Z that belong to contextual tokens,
and the rows of Z that belong to queries, ever move. From Y = 0 the M - K columns of Y whose token never follows stay equal to one another,
so one column stands for all of them ("rest"); from a random start they differ, and all M are kept.

Source: :cite:t:`tian2023scan`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ..problem import SequenceClasses


@dataclass(frozen=True, eq=False)
class Weights:
    """The two trained matrices.

    Attributes:
        decoder: Y; a column for each class, then one for each of the equal others if there are any, ``[*runs, S, K or K + 1]``; from a
            random start all M columns, the classes first.
        attention: Z, a row of logits for each query token, ``[*runs, Q, S]``.
        rest: how many equal columns the last one stands for (0: there is none).
    """

    decoder: Float[Tensor, "*runs S C"]
    attention: Float[Tensor, "*runs Q S"]
    rest: int

    @classmethod
    def zeros(
        cls,
        tokens: int,
        queries: int,
        classes: int,
        vocab_size: int,
        *,
        runs: tuple[int, ...] = (),
        dtype: torch.dtype = torch.float64,
    ) -> "Weights":
        """The start of the theory: Y = 0, Z = 0."""
        rest = vocab_size - classes
        decoder = torch.zeros(*runs, tokens, classes + (rest > 0), dtype=dtype)
        return cls(decoder, torch.zeros(*runs, queries, tokens, dtype=dtype), rest)

    @classmethod
    def random(cls, classes: SequenceClasses, *, seeds: Sequence[int], dtype: torch.dtype = torch.float64) -> "Weights":
        r"""One run a seed, all entries independent and uniform in :math:`\pm 1/\sqrt M`: the usual start of a linear layer of M inputs.

        Args:
            classes: S, Q and M are theirs.
            seeds: of the runs; a run's start depends on its own alone.
            dtype: of the weights; the random numbers are the same.
        Raises:
            ValueError: there is no seed.
        """
        if not len(seeds):
            raise ValueError("seeds must name at least one run, got none; pass e.g. seeds=range(10)")
        drawn = [_uniform(classes, torch.Generator().manual_seed(seed)) for seed in seeds]
        decoder, attention = (torch.stack(parts).to(dtype) for parts in zip(*drawn))
        return cls(decoder, attention, 0)

    def decoder_row_sums(self) -> Float[Tensor, "*runs S"]:
        """Sums of the rows of Y over the whole vocabulary, which plain descent with any momentum conserves (Lemma 1)."""
        total = self.decoder.sum(-1)
        return total + (self.rest - 1) * self.decoder[..., -1] if self.rest else total


def _uniform(classes: SequenceClasses, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    S, Q, M = classes.tokens, classes.queries, classes.vocab_size
    Y, Z = (torch.rand(*shape, generator=generator, dtype=torch.float64) for shape in ((S, M), (Q, S)))
    return (2 * Y - 1) / M**0.5, (2 * Z - 1) / M**0.5

r"""Sequences made from a hierarchy of latents: each class is a set of latents, each latent a set of latents below, the lowest are tokens.

Every latent of layer l is another random set of p units of the layer below (tokens for l = 0); a class is such a set too. A class is
expanded from the top, :math:`y \to \text{set} \to \dots \to \text{set of tokens}`, without noise: **one class, one sequence**. Its tokens
stand in ascending order at the end of a sequence of padding (the last word of the vocabulary). So the data of C classes are C sequences,
and the activity of a latent is a vector of C zeros and ones.
Source: :cite:t:`tian2024joma`, Table 1 and its released code (settings; the order of the tokens there is that of a set in memory).
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Hierarchy:
    """Which units below each latent is made of. Source: :cite:t:`tian2024joma`.

    Attributes:
        parts: one table a layer, from the lowest: ``[latents, p]``, indices of units below; the last table are the classes.
        vocabulary: M; the last word is the padding.
    """

    parts: tuple[Int[Tensor, "_ _"], ...]
    vocabulary: int

    @property
    def classes(self) -> int:
        """Number C of classes."""
        return len(self.parts[-1])

    def activity(self) -> tuple[Bool[Tensor, "classes _"], ...]:
        """Which units each class makes active: tokens first (without padding), then each layer of latents from the lowest, classes last."""
        sizes = [self.vocabulary - 1, *(len(table) for table in self.parts)]
        active = [torch.eye(self.classes, dtype=torch.bool)]
        for table, below in zip(reversed(self.parts), reversed(sizes[:-1])):
            made_of = torch.zeros(len(table), below).scatter_(1, table, 1.0)
            active.append((active[-1].float() @ made_of) > 0)
        return tuple(reversed(active))

    def sequences(self, length: int) -> Int[Tensor, "classes length"]:
        """The sequence of each class: padding, then its tokens in ascending order.

        Args:
            length: L.
        Raises:
            ValueError: a class has more than ``length`` tokens.
        """
        tokens = self.activity()[0]
        if (most := int(tokens.sum(1).max())) > length:
            raise ValueError(f"length must hold the {most} tokens of the longest class, got {length}; pass length={most}")
        padded = torch.full((self.classes, length), self.vocabulary - 1)
        for row, active in zip(padded, tokens):
            own = active.nonzero()[:, 0]
            row[length - len(own) :] = own
        return padded


def random_hierarchy(
    generator: torch.Generator, *, vocabulary: int = 100, latents: tuple[int, ...] = (10, 20), classes: int = 20, parts: int = 2
) -> Hierarchy:
    """Every latent and every class another random set of ``parts`` units below; defaults: the smaller setting of the paper's Table 1.

    Args:
        generator: draws the sets.
        vocabulary: M, with the padding.
        latents: how many in each layer, from the lowest.
        classes: C.
        parts: p, size of a set.
    Raises:
        ValueError: a layer has fewer different sets than latents are asked for.
    Source: :cite:t:`tian2024joma`, Table 1.
    """
    tables, below = [], vocabulary - 1
    for number in (*latents, classes):
        if (most := math.comb(below, parts)) < number:
            raise ValueError(f"{below} units have {most} different sets of {parts}, got {number} latents to make of them; ask for fewer")
        tables.append(_different_sets(generator, below, parts, number))
        below = number
    return Hierarchy(tuple(tables), vocabulary)


def _different_sets(generator: torch.Generator, units: int, parts: int, number: int) -> Int[Tensor, "number parts"]:
    found: dict[tuple[int, ...], None] = {}
    while len(found) < number:
        found[tuple(torch.randperm(units, generator=generator)[:parts].sort().values.tolist())] = None
    return torch.tensor([*found])

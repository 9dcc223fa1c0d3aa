r"""A binary tree of latents: how often two leaves occur together, by how far up their common ancestor is.

The root :math:`y_0` takes one of D values, equally likely, and is the label. Its children are binary,
:math:`P(\text{child} = 0 \mid y_0 = k) = p_k`; below, every node keeps its parent's value with probability :math:`(1 + \rho)/2`, the same
for all edges of a level. Every node above the leaves has two children, so :math:`L` levels of edges make :math:`2^L` leaves. Leaf
:math:`y_l = 1` says that token l is in the sequence.

With signs :math:`s = (-1)^y`, an edge multiplies a mean by its :math:`\rho`, so that with :math:`\rho_0 = 2 E_k[p_k] - 1`, all edges alike
and the common ancestor H levels up, below the root,

.. math:: E[s_l] = \rho^{L-1} \rho_0, \quad E[s_l s_m] = \rho^{2H}, \qquad
    P(y_l = 1 \mid y_m = 1) = \frac12\, \frac{1 + \rho^{2H} - 2 \rho^{L-1} \rho_0}{1 - \rho^{L-1} \rho_0} .

If the common ancestor is the root (H = L), :math:`E[s_l s_m] = \rho^{2(L-1)} E_k[(2 p_k - 1)^2]`. The statement is about the data: near
relatives occur together more often. Source: :cite:t:`tian2024joma` (the hierarchical binary latent tree).
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True)
class Tree:
    r"""Probabilities of a tree. Source: :cite:t:`tian2024joma`.

    Attributes:
        zero: p_k, the probability that a child of the root is 0, for each of the D labels.
        keep: rho of each level of edges below the root's children, from the top, in [-1, 1]; L - 1 of them.

    Raises:
        ValueError: a probability outside [0, 1], a rho outside [-1, 1], or none at all.
    """

    zero: tuple[float, ...]
    keep: tuple[float, ...]

    def __post_init__(self):
        if not self.zero or not all(0 <= p <= 1 for p in self.zero):
            raise ValueError(f"zero must hold a probability in [0, 1] for each label, at least one, got {self.zero}")
        if not self.keep or not all(-1 <= rho <= 1 for rho in self.keep):
            raise ValueError(f"keep must hold a rho in [-1, 1] for each level of edges, at least one, got {self.keep}")

    @property
    def levels(self) -> int:
        """L, edges from the root to a leaf."""
        return 1 + len(self.keep)

    @property
    def leaves(self) -> int:
        """2^L."""
        return 2**self.levels

    def kinship(self, leaf: int) -> Int[Tensor, " leaves"]:
        """H of every leaf to the given one: how many levels up their common ancestor is, 0 for itself and 1 for its sibling.

        Raises:
            ValueError: no such leaf.
        """
        if not 0 <= leaf < self.leaves:
            raise ValueError(f"leaf must lie in [0, {self.leaves}), got {leaf}")
        others = torch.arange(self.leaves) ^ leaf
        return torch.tensor([int(other).bit_length() for other in others])

    def mean_sign(self) -> float:
        """E[s] of a leaf. Source: :cite:t:`tian2024joma`."""
        return sum(2 * p - 1 for p in self.zero) / len(self.zero) * math.prod(self.keep)

    def sign_product(self, up: int) -> float:
        """E[s_l s_m] of two leaves whose common ancestor is ``up`` levels up, in [0, L]. Source: :cite:t:`tian2024joma`.

        Raises:
            ValueError: no such ancestor.
        """
        if not 0 <= up <= self.levels:
            raise ValueError(f"up must lie in [0, {self.levels}], the levels of the tree, got {up}")
        if up == self.levels:
            return sum((2 * p - 1) ** 2 for p in self.zero) / len(self.zero) * math.prod(self.keep) ** 2
        return math.prod(self.keep[len(self.keep) - up :]) ** 2

    def frequency(self) -> float:
        """P(y_l = 1), the same for all leaves."""
        return (1 - self.mean_sign()) / 2

    def cooccurrence(self, up: int) -> float:
        """P(y_l = 1 | y_m = 1) of two leaves whose common ancestor is ``up`` levels up. See the module's docstring.

        >>> from transformer_theory import joma
        >>> tree = joma.uniform_tree(rho=0.7, levels=4, zero=(0.4, 0.82))
        >>> [round(tree.cooccurrence(up), 3) for up in (1, 2, 3)]  # siblings most often
        [0.724, 0.589, 0.523]

        Raises:
            ValueError: no such ancestor, or no leaf is ever 1. Source: :cite:t:`tian2024joma`.
        """
        mean = self.mean_sign()
        if mean >= 1:
            raise ValueError("a leaf must be 1 with some probability to condition on it, got a tree whose leaves are all 0")
        return (1 + self.sign_product(up) - 2 * mean) / (2 * (1 - mean))


def uniform_tree(*, rho: float, levels: int, zero: tuple[float, ...]) -> Tree:
    """All edges below the root's children alike.

    Args:
        rho: an edge keeps its parent's value with probability (1 + rho) / 2.
        levels: L, edges from the root to a leaf.
        zero: for each label of the root, the probability that a child of the root is 0, ``[labels]``.
    Raises:
        ValueError: see :class:`Tree`.
    Source: :cite:t:`tian2024joma`.
    """
    return Tree(zero, (rho,) * (levels - 1))


def pair_table(tree: Tree, up: int) -> Float[Tensor, "2 2"]:
    """P(y_l, y_m) of two leaves by products of transition matrices down the tree: a second route to :meth:`Tree.cooccurrence`.

    Args:
        tree: the probabilities.
        up: H, in [1, L].
    Returns:
        The joint distribution, ``[2, 2]``, symmetric.
    Raises:
        ValueError: no such ancestor.
    Source: textbook (Markov chains on trees).
    """
    if not 1 <= up <= tree.levels:
        raise ValueError(f"up must lie in [1, {tree.levels}], the levels of the tree, got {up}")
    zero = torch.tensor(tree.zero, dtype=torch.float64)
    first = torch.stack([zero, 1 - zero], dim=1)  # label -> value of a child of the root
    edges = [torch.tensor([[1 + rho, 1 - rho], [1 - rho, 1 + rho]], dtype=torch.float64) / 2 for rho in tree.keep]
    chain = [first, *edges]
    above, below = chain[: tree.levels - up], chain[tree.levels - up :]
    start = torch.full((1, len(zero)), 1 / len(zero), dtype=torch.float64)
    ancestor = torch.linalg.multi_dot([start, *above]) if above else start
    down = torch.linalg.multi_dot(below) if len(below) > 1 else below[0]
    return down.T @ (ancestor.T * down)


def sample_leaves(tree: Tree, n: int, *, generator: torch.Generator) -> Bool[Tensor, "n leaves"]:
    """Draws the tree ``n`` times, from the root down.

    Args:
        tree: the probabilities.
        n: how many.
        generator: draws everything.
    Returns:
        Which leaves are 1; leaves l and m have a common ancestor as many levels up as l XOR m has binary digits.
    Source: :cite:t:`tian2024joma`.
    """
    zero = torch.tensor(tree.zero, dtype=torch.float64)[torch.randint(len(tree.zero), (n, 1), generator=generator)]
    nodes = torch.rand(n, 2, generator=generator, dtype=torch.float64) >= zero
    for rho in tree.keep:
        nodes = nodes.repeat_interleave(2, dim=1)
        nodes = nodes ^ (torch.rand(nodes.shape, generator=generator, dtype=torch.float64) >= (1 + rho) / 2)
    return nodes

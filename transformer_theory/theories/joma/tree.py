r"""A binary tree of latents: the co-occurrence of two leaves, and the task of predicting one leaf from the
others.

**The tree.** The root :math:`y_0` takes one of D values, equally likely, and is the label. Its children are
binary with :math:`P(\text{child} = 0 \mid y_0 = k) = p_k`. Below, every node keeps its parent's value with
probability :math:`(1 + \rho)/2`, the same for all edges of a level. Every node above the leaves has two
children, so :math:`L` levels of edges make :math:`2^L` leaves. Leaf :math:`y_l = 1` means that token l is in
the sequence.

With signs :math:`s = (-1)^y` an edge multiplies a mean by its :math:`\rho`. Let all edges be alike,
:math:`\rho_0 = 2 E_k[p_k] - 1`, and let the common ancestor of leaves l and m be H levels up, below the root.
Then

.. math:: E[s_l] = \rho^{L-1} \rho_0, \quad E[s_l s_m] = \rho^{2H}, \qquad
    P(y_l = 1 \mid y_m = 1) = \frac12\, \frac{1 + \rho^{2H} - 2 \rho^{L-1} \rho_0}{1 - \rho^{L-1} \rho_0} .

If the common ancestor is the root (H = L), :math:`E[s_l s_m] = \rho^{2(L-1)} E_k[(2 p_k - 1)^2]`. So near
relatives occur together more often. This is a property of the data, not of learning.

**The task.** All sequences have one query, "is leaf m present?". The context consists of the other leaves
that are present; the target is :math:`y_m`. At first the logit of leaf l moves by its discriminancy times its
frequency. On a tree whose edges are alike all leaves are equally frequent, so co-occurrence determines the
order, and it falls with H. Two conditions matter. First, near relatives that are rarely present are learnt
late, because co-occurrence matters, not kinship. Second, if attention is normalised, each leaf receives less
where many near relatives are present too. Far leaves then predict the absence of leaf m, and attention, which
follows :math:`v^2`, is blind to the sign.

The flows of the theory imply the order. With a constant gradient :math:`\Delta_l = P(y_l = 1 \mid y_m = 1)`
the sibling blows up first (:mod:`.orbit`); with critical points :math:`\mu_l = s\, P(y_l = 1 \mid y_m = 1)`
the nonlinear flow learns leaves at speeds :math:`e^{(\mu_j^2 - \mu_k^2)/2}` (:mod:`.nonlinear`). The block is
trained without either assumption. Source: :cite:t:`tian2024joma`.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ...core.validation import converted, integers
from .block import Contexts


@dataclass(frozen=True)
class Tree:
    r"""Probabilities of a tree.

    Attributes:
        zero: p_k, the probability that a child of the root is 0, for each of the D labels.
        rho: one number in [-1, 1] per level of edges below the root's children, from the top; L - 1 numbers.

    Raises:
        ValueError: a probability is outside [0, 1], a rho is outside [-1, 1], or one of the tuples is empty.
    """

    zero: tuple[float, ...]
    rho: tuple[float, ...]

    def __post_init__(self):
        if not self.zero or not all(0 <= p <= 1 for p in self.zero):
            raise ValueError(
                f"zero must hold a probability in [0, 1] for each label, at least one, got {self.zero}"
            )
        if not self.rho or not all(-1 <= rho <= 1 for rho in self.rho):
            raise ValueError(
                f"rho must hold a number in [-1, 1] for each level of edges, at least one, got {self.rho}"
            )

    @property
    def levels(self) -> int:
        """L, the number of edges from the root to a leaf."""
        return 1 + len(self.rho)

    @property
    def leaves(self) -> int:
        """2^L, the number of leaves."""
        return 2**self.levels

    def kinship(self, leaf: int) -> Int[Tensor, " leaves"]:
        """Returns H of every leaf with respect to this one: 0 for itself, 1 for its sibling, ``[leaves]``.

        Raises:
            ValueError: the leaf does not exist.
        """
        if not 0 <= leaf < self.leaves:
            raise ValueError(f"leaf must lie in [0, {self.leaves}), got {leaf}")
        # The binary digits of a leaf's number are its path from the root, so the highest differing digit of
        # two leaves gives H.
        others = torch.arange(self.leaves) ^ leaf
        return torch.tensor([int(other).bit_length() for other in others])

    def mean_sign(self) -> float:
        """Returns E[s] of a leaf."""
        return sum(2 * p - 1 for p in self.zero) / len(self.zero) * math.prod(self.rho)

    def sign_product(self, up: int) -> float:
        """Returns E[s_l s_m] of two leaves whose common ancestor is ``up`` levels up, in [0, L].

        Raises:
            ValueError: the ancestor does not exist.
        """
        if not 0 <= up <= self.levels:
            raise ValueError(f"up must lie in [0, {self.levels}], the levels of the tree, got {up}")
        if up == self.levels:
            return sum((2 * p - 1) ** 2 for p in self.zero) / len(self.zero) * math.prod(self.rho) ** 2
        return math.prod(self.rho[len(self.rho) - up :]) ** 2

    def frequency(self) -> float:
        """Returns P(y_l = 1), which is the same for all leaves."""
        return (1 - self.mean_sign()) / 2

    def cooccurrence(self, up: int) -> float:
        """Returns P(y_l = 1 | y_m = 1) of two leaves whose common ancestor is ``up`` levels up (see the
        module's docstring).

        >>> from transformer_theory import joma
        >>> tree = joma.uniform_tree(rho=0.7, levels=4, zero=(0.4, 0.82))
        >>> [round(tree.cooccurrence(up), 3) for up in (1, 2, 3)]  # siblings most often
        [0.724, 0.589, 0.523]

        Raises:
            ValueError: the ancestor does not exist, or no leaf is ever 1.
        """
        mean = self.mean_sign()
        if mean >= 1:
            raise ValueError(
                "a leaf must be 1 with some probability to condition on it, got a tree whose leaves are all 0"
            )
        return (1 + self.sign_product(up) - 2 * mean) / (2 * (1 - mean))


def uniform_tree(*, rho: float, levels: int, zero: tuple[float, ...]) -> Tree:
    """Returns a tree whose edges below the root's children are alike.

    Args:
        rho: correlation along an edge; a node keeps its parent's value with probability (1 + rho) / 2.
        levels: L, the number of edges from the root to a leaf.
        zero: probability, for each label of the root, that a child of the root is 0.
    Raises:
        ValueError: see :class:`Tree`.
    """
    return Tree(zero, (rho,) * (levels - 1))


def pair_table(tree: Tree, up: int) -> Float[Tensor, "2 2"]:
    """Computes P(y_l, y_m) of two leaves by products of transition matrices, without the formula of
    :meth:`Tree.cooccurrence`.

    Args:
        tree: probabilities of the tree.
        up: H, in [1, L].
    Returns:
        The joint distribution, ``[2, 2]``, symmetric.
    Raises:
        ValueError: the ancestor does not exist.
    """
    if not 1 <= up <= tree.levels:
        raise ValueError(f"up must lie in [1, {tree.levels}], the levels of the tree, got {up}")
    zero = torch.tensor(tree.zero, dtype=torch.float64)
    first = torch.stack([zero, 1 - zero], dim=1)  # label -> value of a child of the root
    edges = [
        torch.tensor([[1 + rho, 1 - rho], [1 - rho, 1 + rho]], dtype=torch.float64) / 2 for rho in tree.rho
    ]
    chain = [first, *edges]
    above, below = chain[: tree.levels - up], chain[tree.levels - up :]
    start = torch.full((1, len(zero)), 1 / len(zero), dtype=torch.float64)
    # distribution of the common ancestor
    ancestor = torch.linalg.multi_dot([start, *above]) if above else start
    down = torch.linalg.multi_dot(below) if len(below) > 1 else below[0]  # ancestor -> leaf
    # given the ancestor, the two leaves are independent with the same distribution
    return down.T @ (ancestor.T * down)


def sample_leaves(tree: Tree, n: int, *, generator: torch.Generator) -> Bool[Tensor, "n leaves"]:
    """Draws the tree ``n`` times, from the root down.

    Args:
        tree: probabilities of the tree.
        n: number of draws, >= 1.
        generator: source of labels and nodes.
    Returns:
        A mask of the leaves that are 1, ``[n, leaves]``. H of leaves l and m is the number of binary digits
        of l XOR m.
    Raises:
        ValueError: n is less than 1.
    """
    integers(n=n)
    zero = torch.tensor(tree.zero, dtype=torch.float64)[
        torch.randint(len(tree.zero), (n, 1), generator=generator)
    ]
    nodes = torch.rand(n, 2, generator=generator, dtype=torch.float64) >= zero
    for rho in tree.rho:
        nodes = nodes.repeat_interleave(2, dim=1)
        nodes = nodes ^ (torch.rand(nodes.shape, generator=generator, dtype=torch.float64) >= (1 + rho) / 2)
    return nodes


@dataclass(frozen=True, eq=False)
class MaskedLeaf:
    """Samples of the task.

    Attributes:
        contexts: the leaves that are present, one query, targets 0 or 1.
        kinship: H of every leaf of the context with respect to the masked one, ``[M]``.
    """

    contexts: Contexts
    kinship: Int[Tensor, " M"]

    @converted(float64=("values",))
    def by_kinship(self, values: Float[Tensor, "*batch M"]) -> Float[Tensor, "*batch L"]:
        """Returns means over the leaves of equal H, for H = 1, ..., L, ``[*batch, L]``."""
        return torch.stack(
            [values[..., self.kinship == up].mean(-1) for up in range(1, int(self.kinship.max()) + 1)], dim=-1
        )


def masked_leaf(tree: Tree, n: int, *, generator: torch.Generator, sibling_rate: float = 1.0) -> MaskedLeaf:
    """Draws sequences, hides their leaf 0 and drops empty contexts.

    Args:
        tree: probabilities of the tree.
        n: number of sequences to draw.
        generator: draws the sequences.
        sibling_rate: probability that the sibling, if present, enters the context. Below 1 the leaves are not
            equally frequent.
    Raises:
        ValueError: the rate is outside [0, 1], or n is less than 1.
    """
    if not 0 <= sibling_rate <= 1:
        raise ValueError(
            f"sibling_rate must lie in [0, 1], got {sibling_rate:g}; it is a share of occurrences"
        )
    leaves = sample_leaves(tree, n, generator=generator)
    kinship, context = tree.kinship(0)[1:], leaves[:, 1:].double()
    present = (torch.rand(n, 1, generator=generator, dtype=torch.float64) < sibling_rate) | (kinship > 1)
    context = context * present
    has_context = context.sum(1) > 0
    query = torch.zeros(int(has_context.sum()), dtype=torch.long)
    return MaskedLeaf(Contexts(context[has_context], query, leaves[has_context, 0].long()), kinship)

r"""Near relatives are learnt first: a block that has to guess a leaf of a binary tree from the others.

All sequences ask with one query, "is leaf m there?"; the context are the other leaves that are there, the target is :math:`y_m`. What moves
the logit of leaf l at first is how much it tells times how often it occurs, and on a tree whose edges are alike all leaves occur equally
often, so co-occurrence decides, and it falls with the distance H (see :mod:`.tree`). If near relatives are rarely heard, it is they that
are learnt late: kinship itself is not what counts. Nor does it hold if attention is normalised: each leaf then gets less where many near
relatives are there too, so far ones tell *against* leaf m, and attention, which follows :math:`v^2`, does not see the sign.

In the flows of the theory the order is built in. With a constant gradient :math:`\Delta_l = P(y_l = 1 \mid y_m = 1)`, so the sibling blows
up first (:mod:`.orbit`); with critical points :math:`\mu_l = s\, P(y_l = 1 \mid y_m = 1)`, the nonlinear flow learns them at speeds
:math:`e^{(\mu_j^2 - \mu_k^2)/2}` (:mod:`.nonlinear`). The block is trained without either. Source: :cite:t:`tian2024joma`.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .problem import Contexts
from .tree import Tree, sample_leaves


@dataclass(frozen=True, eq=False)
class MaskedLeaf:
    """Samples of the task, and who is who.

    Attributes:
        contexts: the leaves that are there, one query, targets 0 or 1.
        kinship: H of every leaf of the context to the masked one, ``[M]``.
    """

    contexts: Contexts
    kinship: Int[Tensor, " M"]

    def by_kinship(self, values: Float[Tensor, "*batch M"]) -> Float[Tensor, "*batch L"]:
        """Means over the leaves of equal H, for H = 1, ..., L."""
        return torch.stack([values[..., self.kinship == up].mean(-1) for up in range(1, int(self.kinship.max()) + 1)], dim=-1)


def masked_leaf(tree: Tree, n: int, *, generator: torch.Generator, heard: float = 1.0) -> MaskedLeaf:
    """Draws sequences, hides their leaf 0 and leaves out empty contexts.

    Args:
        tree: where sequences come from.
        n: how many are drawn.
        generator: draws everything.
        heard: share of its occurrences in which the sibling stands in the context; less than 1 breaks that leaves occur equally often.
    Raises:
        ValueError: the share is outside [0, 1].
    Source: :cite:t:`tian2024joma` (the tree); the task is ours.
    """
    if not 0 <= heard <= 1:
        raise ValueError(f"heard must lie in [0, 1], got {heard:g}; it is a share of occurrences")
    leaves = sample_leaves(tree, n, generator=generator)
    kinship, context = tree.kinship(0)[1:], leaves[:, 1:].double()
    kept = (torch.rand(n, 1, generator=generator, dtype=torch.float64) < heard) | (kinship > 1)
    context = context * kept
    some = context.sum(1) > 0
    none = torch.zeros(int(some.sum()), dtype=torch.long)
    return MaskedLeaf(Contexts(context[some], none, leaves[some, 0].long()), kinship)

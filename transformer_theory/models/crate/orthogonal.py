r"""Blocks whose subspaces stay orthonormal and mutually orthogonal while they are trained, as the theory has them.

Source: :cite:t:`yu2023white` (the assumption).
"""

from typing import TypeVar

from torch.nn.utils import parametrizations

from .compression import Subspaces

Block = TypeVar("Block", bound=Subspaces)


def orthogonal(block: Block) -> Block:
    r"""The block with :math:`[U_1 \ldots U_K]^\top [U_1 \ldots U_K] = I`, by parametrisation: orthonormal bases, incoherence 0.

    Training then moves an unconstrained matrix of which ``qkv.weight`` is a function. As a variant:
    ``attention=lambda dim, **sizes: orthogonal(PaperAttention(dim, **sizes))``.

    Args:
        block: a compression block; it is changed, and returned.
    Raises:
        ValueError: K p > d, where there is no room for K orthogonal subspaces. Source: :cite:t:`yu2023white`.
    """
    inner, dim = block.qkv.weight.shape
    if inner > dim:
        raise ValueError(f"heads * head_dim must be at most dim for orthogonal subspaces, got {block.heads} * {block.head_dim} > {dim}")
    parametrizations.orthogonal(block.qkv, "weight")
    return block

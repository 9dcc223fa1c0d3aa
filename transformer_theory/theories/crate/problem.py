r"""Sparse rate reduction: the objective that the layers of CRATE lower step by step.

Tokens (rows of Z, n x d) are assumed to lie near a mixture of K subspaces of dimension p with orthonormal bases U_k (d x p). Good
representations are compact in those subspaces, spread over all of space, and sparse:

    minimise   R^c(Z; U_[K]) + lambda ||Z||_0 - R(Z),       R^c(Z; U_[K]) = 1/2 sum_k logdet(I + p/(n eps^2) (Z U_k)^T Z U_k).

The subspaces of the theory are orthonormal, mutually incoherent (U_i^T U_j near 0) and complete (sum_k U_k U_k^T = I);
:func:`incoherence` and :func:`incompleteness` measure how far bases are from that.

Source: :cite:t:`yu2023white`. Notation: docs/notation.md.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...metrics.coding import coding_rate, subspace_coding_rate, unit_norm

Bases = Float[Tensor, "K d p"]


def sparse_rate_objective(tokens: Float[Tensor, "*batch n d"], bases: Bases, *, eps: float, lam: float) -> Float[Tensor, "*batch"]:
    r"""What CRATE minimises: :math:`R^c(Z; U_{[K]}) + \lambda \|Z\|_0 - R(Z)`, nats.

    Args:
        tokens: Z, ``[*batch, n, d]``.
        bases: U_k, [K, d, p].
        eps: distortion (squared inside).
        lam: price of a non-zero entry, nats.
    Returns:
        ``[*batch]``.
    Raises:
        ValueError: shapes do not fit, values are not finite, or ``eps`` is not positive. Source: :cite:t:`yu2023white`.
    """
    zeros = (tokens != 0).sum((-2, -1))
    return subspace_coding_rate(tokens, bases, eps=eps) + lam * zeros - coding_rate(tokens, eps=eps)


def nonzeros(tokens: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch"]:
    r"""Share of entries that are not exactly zero, :math:`\|Z\|_0 / (n d)`, in [0, 1]. Source: :cite:t:`yu2023white`."""
    return (tokens != 0).to(tokens.dtype).mean((-2, -1))


def random_subspaces(K: int, d: int, p: int, *, generator: torch.Generator) -> Bases:
    r"""K random subspaces with orthonormal bases, float64 [K, d, p]; orthogonal to one another as far as d allows.

    With K p <= d all K p columns are orthonormal, with more the subspaces come in such groups of floor(d / p).

    Raises:
        ValueError: not 1 <= p <= d or K < 1. Source: :cite:t:`yu2023white` (the model of the tokens).
    """
    if not (1 <= p <= d and K >= 1):
        raise ValueError(f"expected K >= 1 subspaces of dimension 1 <= p <= d, got K={K}, p={p}, d={d}")
    together = min(K, d // p)
    groups = [torch.linalg.qr(torch.randn(d, together * p, generator=generator, dtype=torch.float64))[0] for _ in range(-(-K // together))]
    return torch.cat([frame.unflatten(1, (together, p)).transpose(0, 1) for frame in groups])[:K].contiguous()


def fit_subspaces(
    tokens: Float[Tensor, "n d"], *, K: int, p: int, generator: torch.Generator, rounds: int = 30, starts: int = 5
) -> tuple[Bases, Int[Tensor, " n"]]:
    r"""K-subspaces: bases that keep most of the tokens' energy when each token is projected on the best of them.

    Lloyd's alternation: assign each token to argmax_k ||U_k^T z||, then take the p leading directions of each group (an empty group keeps
    its basis). Each start takes K random tokens, each with those most aligned with it; the best end is kept. A local optimum: no guarantee.

    Args:
        tokens: z as rows, [n, d].
        K, p: number and dimension of the subspaces.
        generator: of the starts.
        rounds: at most, each start.
    Returns:
        orthonormal bases [K, d, p] and the subspace of each token [n].
    Raises:
        ValueError: not 1 <= p <= d or K < 1. Source: :cite:t:`yu2023white` (the model of the tokens).
    """
    best, best_energy, labels = random_subspaces(K, tokens.shape[1], p, generator=generator).to(tokens), -1.0, None
    for _ in range(starts):
        bases, before = _start(tokens, best, generator), None
        for _ in range(rounds):
            owner = _energies(tokens, bases).argmax(-1)
            if before is not None and torch.equal(owner, before):
                break
            bases, before = _refit(tokens, owner, bases), owner
        energy, owner = _energies(tokens, bases).max(-1)
        if float(energy.sum()) > best_energy:
            best, best_energy, labels = bases, float(energy.sum()), owner
    assert labels is not None
    return best, labels


def incoherence(bases: Bases) -> float:
    r"""Largest cosine between directions of two subspaces, :math:`\max_{i \ne j} \|U_i^\top U_j\|_2`: 1 if they share one.

    >>> from transformer_theory import crate
    >>> bases = crate.random_subspaces(3, 6, 2, generator=torch.Generator().manual_seed(0))  # three planes in six dimensions
    >>> crate.incoherence(bases) < 1e-12  # they fit beside each other, so they are orthogonal
    True

    Args:
        bases: orthonormal, [K, d, p].
    Returns:
        a number in [0, 1]; 0 for a single subspace. Source: :cite:t:`yu2023white`.
    """
    cross = torch.linalg.matrix_norm(bases.mT[:, None] @ bases[None], 2)
    return float((cross - torch.diag(cross.diagonal())).max())


def incompleteness(bases: Bases) -> float:
    r"""How far the projections are from adding up to the identity, :math:`\|\sum_k U_k U_k^\top - I\|_2`: 0 if complete and orthogonal.

    Source: :cite:t:`yu2023white`.
    """
    whole = (bases @ bases.mT).sum(0)
    return float(torch.linalg.matrix_norm(whole - torch.eye(len(whole), dtype=whole.dtype, device=whole.device), 2))


def _start(tokens: Tensor, bases: Tensor, generator: torch.Generator) -> Tensor:
    """Subspaces of the tokens most aligned with K random ones; those of ``bases`` where there are too few tokens."""
    K, _, p = bases.shape
    unit = unit_norm(tokens)
    seeds = torch.randperm(len(tokens), generator=generator)[:K]
    near = (unit @ unit[seeds].T).abs().topk(min(p, len(tokens)), dim=0).indices
    fitted = torch.stack([_leading(tokens[group], p) for group in near.T])
    return torch.cat([fitted, bases[len(fitted) :]])


def _energies(tokens: Tensor, bases: Tensor) -> Float[Tensor, "n K"]:
    return (tokens @ bases).square().sum(-1).T


def _refit(tokens: Tensor, owner: Tensor, bases: Tensor) -> Tensor:
    groups = [tokens[owner == k] for k in range(len(bases))]
    return torch.stack([_leading(group, bases.shape[-1]) if len(group) else old for group, old in zip(groups, bases)])


def _leading(tokens: Tensor, p: int) -> Float[Tensor, "d p"]:
    """The p directions that carry most of the tokens' energy."""
    return torch.linalg.eigh(tokens.mT @ tokens)[1][:, -p:]

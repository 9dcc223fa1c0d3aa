r"""Sparse rate reduction, the objective that each layer of CRATE lowers, and the theory's model of the
tokens.

Tokens (rows of Z, n x d) are assumed to lie near a mixture of K subspaces of dimension p with orthonormal
bases U_k (d x p). Good representations are compact in those subspaces, spread over the whole space, and
sparse:

    minimise   R^c(Z; U_[K]) + lambda ||Z||_0 - R(Z),
               R^c(Z; U_[K]) = 1/2 sum_k logdet(I + p/(n eps^2) (Z U_k)^T Z U_k).

The subspaces of the theory are orthonormal, mutually incoherent (U_i^T U_j near 0) and complete (sum_k U_k
U_k^T = I); :func:`incoherence` and :func:`incompleteness` measure the deviations.

Source: :cite:t:`yu2023white`. Notation: docs/notation.md.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...core.sources import Source
from ...core.threads import single_threaded
from ...core.validation import converted, finite, in_range, integers
from ...maths.linalg import binary_scale
from ...metrics.coding import coding_rate, subspace_coding_rate, unit_norm
from ...models.crate.compression import Bases

PAPER, LASSO = Source("yu2023white"), Source("beck2009fast")
# settings of statements of this library
OBJECTIVE, CODING = Source("yu2023white", "", "own"), Source("beck2009fast", "", "own")
GRADIENT = Source("yu2023white", "Section 2.3, Eqs. (8)-(10)", "confirmed")
# the paper has the gradient, not the guaranteed decrease
DECREASE = Source("yu2023white", "Section 2.3, Eqs. (8)-(10)", "own")
# the paper has the step, not its fall
STEP = Source("yu2023white", "Eqs. (10)-(12); Approximation 4, App. A.2", "own")
SERIES = Source("yu2023white", "Eqs. (67)-(68), App. A.2", "own")  # the paper has the series, not its error
CURVES = Source("yu2023white", "Section 3.1, Figs. 3, 4", "confirmed")
SIGN = Source("hu2024indepth", "attention-only experiment, figure with panels (a) and (b)", "second-hand")
RATES = Source("beck2009fast", "Theorem 3.1 (ISTA), Theorem 4.4 (FISTA)", "second-hand")


@in_range
@converted(floats=("tokens", "bases"))
def sparse_rate_objective(
    tokens: Float[Tensor, "*batch n d"], bases: Bases, *, eps: float, lam: float
) -> Float[Tensor, "*batch"]:
    r"""Returns the objective of CRATE, :math:`R^c(Z; U_{[K]}) + \lambda \|Z\|_0 - R(Z)`, nats.

    Args:
        tokens: Z, ``[*batch, n, d]``.
        bases: U_k, [K, d, p].
        eps: distortion (squared inside).
        lam: price of a non-zero entry, nats.
    Returns:
        The objective, ``[*batch]``.
    Raises:
        ValueError: shapes do not fit, values are not finite, or ``eps`` is not positive.
    """
    count = (tokens != 0).sum((-2, -1))
    return subspace_coding_rate(tokens, bases, eps=eps) + lam * count - coding_rate(tokens, eps=eps)


@converted(floats=("tokens",))
def nonzeros(tokens: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch"]:
    r"""Returns the share of entries that are not exactly zero, :math:`\|Z\|_0 / (n d)`, in [0, 1].

    Raises:
        ValueError: there is no entry, or one is not finite.
    """
    finite(tokens=tokens)
    if not tokens.numel():
        raise ValueError(f"tokens must hold at least one entry, got the shape {list(tokens.shape)}")
    return (tokens != 0).to(tokens.dtype).mean((-2, -1))


def random_subspaces(K: int, d: int, p: int, *, generator: torch.Generator) -> Bases:
    r"""Draws K random subspaces with orthonormal bases, float64 [K, d, p], mutually orthogonal as far as d
    allows.

    If K p <= d, all K p columns are orthonormal; otherwise only the columns within each group of floor(d / p)
    subspaces are.

    Raises:
        ValueError: p lies outside [1, d], or K < 1.
    """
    integers(K=K, d=d, p=p)
    if p > d:
        raise ValueError(
            f"p must be at most d for subspaces of dimension p in d dimensions, got p={p} and d={d}"
        )
    size = min(K, d // p)  # subspaces per group: as many as fit orthogonally into d dimensions
    groups = -(-K // size)  # K / size, rounded up
    frames = [
        torch.linalg.qr(torch.randn(d, size * p, generator=generator, dtype=torch.float64))[0]
        for _ in range(groups)
    ]
    return torch.cat([frame.unflatten(1, (size, p)).transpose(0, 1) for frame in frames])[:K].contiguous()


@in_range
@single_threaded
@converted(floats=("tokens",))
def fit_subspaces(
    tokens: Float[Tensor, "n d"],
    *,
    K: int,
    p: int,
    generator: torch.Generator,
    rounds: int = 30,
    starts: int = 5,
) -> tuple[Bases, Int[Tensor, " n"]]:
    r"""Fits K subspaces that retain as much of the tokens' energy as possible if each token is projected on
    its best one (K-subspaces).

    Lloyd's algorithm alternates two steps: assign each token to argmax_k ||U_k^T z||, then replace each basis
    by the p leading directions of its group (an empty group keeps its basis). A start consists of K random
    tokens, each with the p tokens most aligned with it. The result is the best of several local optima, which
    need not be the global one.

    Args:
        tokens: z as rows, [n, d].
        K, p: number and dimension of the subspaces.
        generator: draws the random starts.
        rounds: largest number of alternations per start.
        starts: number of starts.
    Returns:
        Orthonormal bases [K, d, p], and the index of the subspace of each token [n].
    Raises:
        ValueError: p lies outside [1, d], K < 1, or a token is not finite.
    """
    integers(rounds=rounds, starts=starts)
    finite(tokens=tokens)
    tokens = tokens / binary_scale(tokens, (-2, -1))  # energies are compared with one another only
    # With fewer than K tokens _start fits fewer than K bases; the last ones of these random bases supply the
    # rest.
    best, best_energy, labels = (
        random_subspaces(K, tokens.shape[1], p, generator=generator).to(tokens),
        -1.0,
        None,
    )
    for _ in range(starts):
        bases, previous = _start(tokens, best, generator), None
        for _ in range(rounds):
            # Both steps raise the retained energy and there are finitely many assignments, so the alternation
            # ends at a fixed assignment.
            assigned = _energies(tokens, bases).argmax(-1)
            if previous is not None and torch.equal(assigned, previous):
                break
            bases, previous = _refit(tokens, assigned, bases), assigned
        energy, assigned = _energies(tokens, bases).max(-1)
        if float(energy.sum()) > best_energy:
            best, best_energy, labels = bases, float(energy.sum()), assigned
    assert labels is not None
    return best, labels


@in_range
@converted(floats=("bases",))
def incoherence(bases: Bases) -> float:
    r"""Returns the largest cosine between two subspaces, :math:`\max_{i \ne j} \|U_i^\top U_j\|_2`: 1 if they
    share a direction.

    >>> from transformer_theory import crate
    >>> bases = crate.random_subspaces(3, 6, 2, generator=torch.Generator().manual_seed(0))  # three planes in six dimensions
    >>> crate.incoherence(bases) < 1e-12  # six dimensions suffice for three orthogonal planes
    True

    Args:
        bases: orthonormal, [K, d, p].
    Returns:
        The cosine, in [0, 1]; 0 for a single subspace.
    """  # noqa: E501
    cross = torch.linalg.matrix_norm(bases.mT[:, None] @ bases[None], 2)
    return float((cross - torch.diag(cross.diagonal())).max())


@in_range
@converted(floats=("bases",))
def incompleteness(bases: Bases) -> float:
    r"""Returns the distance of the sum of the projections from I, :math:`\|\sum_k U_k U_k^\top - I\|_2`: 0 if
    complete and orthogonal.
    """
    total = (bases @ bases.mT).sum(0)
    return float(
        torch.linalg.matrix_norm(total - torch.eye(len(total), dtype=total.dtype, device=total.device), 2)
    )


def _start(tokens: Tensor, bases: Tensor, generator: torch.Generator) -> Tensor:
    """Returns bases of the tokens most aligned with each of K random tokens. With fewer tokens, ``bases``
    supplies the rest.
    """
    K, _, p = bases.shape
    unit = unit_norm(tokens)
    seeds = torch.randperm(len(tokens), generator=generator)[:K]
    neighbours = (unit @ unit[seeds].T).abs().topk(min(p, len(tokens)), dim=0).indices
    fitted = torch.stack([_leading(tokens[group], p) for group in neighbours.T])
    return torch.cat([fitted, bases[len(fitted) :]])


def _energies(tokens: Tensor, bases: Tensor) -> Float[Tensor, "n K"]:
    """Returns ||U_k^T z||^2 of every token and subspace."""
    return (tokens @ bases).square().sum(-1).T


def _refit(tokens: Tensor, assigned: Tensor, bases: Tensor) -> Tensor:
    """Returns the leading directions of each group of tokens; an empty group keeps its basis."""
    groups = [tokens[assigned == k] for k in range(len(bases))]
    return torch.stack(
        [_leading(group, bases.shape[-1]) if len(group) else old for group, old in zip(groups, bases)]
    )


def _leading(tokens: Tensor, p: int) -> Float[Tensor, "d p"]:
    """Returns the p directions that carry most of the tokens' energy."""
    return torch.linalg.eigh(tokens.mT @ tokens)[1][:, -p:]  # eigenvalues ascend

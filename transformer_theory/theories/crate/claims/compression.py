r"""Compression: the exact step, the paper's step, the sign of the released residual form, and token
statistics.

The paper's step and the sign of the residual form are not theorems. With orthonormal, complete U_k each head
moves separately, :math:`W_k^+ = M_k W_k`, where M is :math:`I + c P` in the tied residual form and :math:`(1
- \kappa\beta) I + \kappa\beta^2 P` in the paper's, and P is the attention of the head. :math:`P = D^{-1} E`,
where E, the entrywise exponential of a Gram matrix, is positive semidefinite (Schur), and D holds its row
sums.

* If the row sums are equal, P is symmetric with eigenvalues between 0 and 1. Then :math:`M \succeq I` in the
  residual form for every c > 0, and :math:`0 \preceq M \preceq I` in the paper's form for :math:`\beta \le 1`
  and :math:`0 < \kappa\beta \le 1`. Since
  :math:`\log\det(I + \beta M W W^\top M) = \log\det(I + \beta W^\top M^2 W)`, the rate rises in the residual
  form and falls in the paper's, for all tokens.
* If they differ, :math:`P + P^\top` may have negative eigenvalues: tokens of unequal length can make the
  residual form *lower* the rate (the tests have an instance).
* For n = 1 attention is 1, and the paper's step multiplies the token by :math:`1 + \kappa\beta (\beta - 1)`:
  it raises the rate if
  :math:`\beta > 1`.
"""

import torch
from torch import Tensor

from ....core.claims import Measured, but, claim
from ....core.sources import Source
from ....metrics.coding import subspace_coding_rate, unit_norm
from ....models.crate.compression import coordinates, expansion, memberships, rate_gradient
from ..approximations import spectral_radii
from ..problem import DECREASE, SIGN, STEP, random_subspaces
from ..steps import (
    exact_step,
    lipschitz,
    membership_rate,
    paper_step,
    released_step,
    tssa_gradient,
    variational_rate,
)

# numbers of tokens, dimensions, subspaces, and dimensions per subspace; K P = D: complete
N, D, K, P = 20, 24, 4, 6
ROUNDING = 1e-9  # slack of the thresholds for rounding errors
EPS = 0.5  # distortion for token statistics
SHARPNESS = 20.0  # temperature at which a token belongs clearly more to one subspace than to the others


def complete_instance(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draws tokens of norm one, [N, D], and complete orthonormal subspaces, [K, D, P]."""
    bases = random_subspaces(K, D, P, generator=generator)
    return unit_norm(torch.randn(N, D, generator=generator, dtype=torch.float64)), bases


def perturbed_instance(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draws tokens of norm one, [N, D], and matrices that are neither orthonormal nor orthogonal to one
    another, [K, D, P].
    """
    tokens, bases = complete_instance(generator)
    return tokens, bases + 0.3 * torch.randn(bases.shape, generator=generator, dtype=bases.dtype)


@claim(
    "crate/exact-step",
    measures="largest change of R^c over step sizes, in units of the guaranteed decrease",
    at_most=-1 + ROUNDING,
    margin=(
        "the threshold is the bound of the statement; the control claims twice the decrease, which is"
        " the nearest wrong statement and falls short by a factor of 1.9"
    ),
    source=DECREASE,
    assumptions=(
        "the subspaces may be any matrices U_k",
        "the paper states the gradient; the guaranteed decrease is derived in this library "
        "(`steps.lipschitz`)",
    ),
    control=but("twice the guaranteed decrease is claimed", times=2.0),
)
def exact_step_compresses(generator: torch.Generator, *, times: float = 1.0) -> Measured:
    r"""A gradient step $Z - \kappa \nabla R^c$ on the rate of $n$ tokens in their subspaces, $R^c(Z; U_{[K]})
    = \frac12 \sum_k \log\det(I + \beta\, U_k^\top Z^\top Z U_k)$, $\beta = p / (n \varepsilon^2)$, lowers it
    by at least $\kappa (1 - \kappa L / 2) \|\nabla R^c\|_F^2$ for every $0 < \kappa < 2/L$, $L = \beta
    \|\sum_k U_k U_k^\top\|_2$.
    """
    tokens, bases = perturbed_instance(generator)
    eps = 0.5
    L = lipschitz(bases, n=N, eps=eps)
    before = subspace_coding_rate(tokens, bases, eps=eps)
    slope = rate_gradient(tokens, bases, eps=eps).square().sum()
    changes = {}
    for share in (0.1, 0.5, 1.0, 1.5, 1.9):
        stepped = exact_step(tokens, bases, kappa=share / L, eps=eps)
        after = subspace_coding_rate(stepped, bases, eps=eps)
        changes[f"kappa L = {share}"] = float(
            (after - before) / (times * share / L * (1 - share / 2) * slope)
        )
    return Measured(max(changes.values()), changes)


def _relative_change(before: Tensor, after: Tensor, bases: Tensor, eps: float) -> float:
    """Returns the relative change of R^c between two sets of tokens."""
    rate = subspace_coding_rate(before, bases, eps=eps)
    return float(subspace_coding_rate(after, bases, eps=eps) / rate - 1)


@claim(
    "crate/paper-step",
    measures="largest relative change of R^c over step sizes",
    at_most=0.0,
    source=STEP,
    assumptions=(
        "the paper derives the step as an approximation of the gradient step and claims no fall of the rate",
        "U_k orthonormal, mutually orthogonal, K p = d; the paper asks for incoherent ones",
        "random tokens of norm one; the paper asks for tokens near the union of the subspaces, too",
        r"$\beta \|W_k\|_2^2 < 1$: the Neumann series converges",
        r"$\beta \le 1$: beyond, the rate of a single token rises",
    ),
    control=but(
        r"the shrinkage $1 - \kappa\beta$ is left out, as in a residual connection", tied_residual=True
    ),
)
def paper_step_compresses(generator: torch.Generator, *, tied_residual: bool = False) -> Measured:
    r"""With orthonormal, complete and mutually orthogonal $U_{[K]}$ the step $(1 - \kappa\beta) Z +
    \kappa\beta\, \mathrm{MSSA}(Z)$ lowers the rate $R^c(Z; U_{[K]})$ for $0 < \kappa\beta \le 1$, in every
    instance tried. Here $W_k = Z U_k$, $\beta = p / (n \varepsilon^2)$ and $\mathrm{MSSA}(Z) = \beta \sum_k
    \mathrm{softmax}(W_k W_k^\top) W_k U_k^\top$, so attention enters with $\kappa\beta^2$.
    """
    tokens, bases = complete_instance(generator)
    eps = 1.0
    beta = expansion(bases, n=N, eps=eps)
    radius = float(spectral_radii(tokens, bases, eps=eps))
    changes = {}
    for share in (0.1, 0.25, 0.5, 1.0):
        after = paper_step(tokens, bases, kappa=share / beta, eps=eps)
        if tied_residual:
            after = after + share * tokens  # without the shrinkage: Z + kappa beta MSSA(Z)
        changes[f"kappa beta = {share}"] = _relative_change(tokens, after, bases, eps)
    covered = radius < 1 and beta <= 1
    return Measured(
        max(changes.values()), covered=covered, detail={**changes, "beta ||W_k||^2": radius, "beta": beta}
    )


@claim(
    "crate/released-sign",
    measures="smallest relative change of R^c over sizes of the output",
    at_least=0.0,
    source=SIGN,
    assumptions=(
        "U_k orthonormal, mutually orthogonal, K p = d: two lines at an angle of 60 degrees and one "
        "token are a counterexample",
        "tokens of norm one: long tokens of unequal length are counterexamples",
    ),
    control=but(r"the output is tied with a minus sign, $V_k = -c\, U_k^\top$", sign=-1.0),
    corrects=(
        r"The layer adds attention to the residual stream without the shrinkage $1 - \kappa\beta$ of the "
        r"step, Eqs. (10)-(12), that it is derived from, and calls it compression; with the derived output "
        r"$U_k^\top$ it raises the rate for orthogonal subspaces. The free output matrix, Eq. (115), is "
        r"the paper's own, too."
    ),
    corrected=Source("yu2023white", "Eq. (18)", "confirmed"),
)
def released_sign(generator: torch.Generator, *, sign: float = 1.0) -> Measured:
    r"""For tokens of norm one and orthonormal, mutually orthogonal $U_k$ the residual form $Z + \sum_k
    \mathrm{softmax}(W_k W_k^\top / \sqrt p) W_k V_k$, $W_k = Z U_k$, raises the rate $R^c(Z; U_{[K]})$ if its
    output is tied, $V_k = c\, U_k^\top$ with $0 < c \le 1$, in every instance tried: with such $U_k$ a
    network needs another $V$ to compress.
    """
    tokens, bases = complete_instance(generator)
    eps = 0.5
    changes = {}
    for size in (0.25, 0.5, 1.0):
        after = released_step(tokens, bases, sign * size * bases.mT)
        changes[f"size {size}"] = _relative_change(tokens, after, bases, eps)
    return Measured(min(changes.values()), changes)


def _unnormalised(tokens: Tensor, bases: Tensor, pi: Tensor) -> Tensor:
    """Returns the bound with second moments that divide by all n tokens instead of the n_k of
    the subspace.
    """
    moments = (pi.unsqueeze(-1) * coordinates(tokens, bases).square()).sum(-2) / N
    logs = torch.log1p(bases.shape[-1] / EPS**2 * moments).sum(-1)
    return 0.5 * (pi.sum(-1) / N * logs).sum(-1)


@claim(
    "crate/tssa-bound",
    measures="bound over rate, less 1; in diagonalising bases minus its absolute value; the smaller",
    at_least=-ROUNDING,
    source=Source(
        "wu2025token",
        "variational bound of the rate and its corollary for orthonormal bases",
        "second-hand",
    ),
    assumptions=(
        "memberships are non-negative; the bases may be any matrices",
        r"the rate is that of the coordinates in the subspaces, with $p/\varepsilon^2$; the source "
        r"bounds the rate of whole tokens, with $d/\varepsilon^2$, and needs the image of $Z^\top "
        r"\mathrm{diag}(\pi_k) Z$ in that of $U_k$",
    ),
    control=but(
        r"the second moments are taken over $n$ tokens, not over the $n_k$ of the "
        r"subspace",
        normalised=False,
    ),
)
def tssa_bound(generator: torch.Generator, *, normalised: bool = True) -> Measured:
    r"""For $n$ tokens with memberships $\pi_{ik}$ and coordinates $W_k = Z U_k$, the rate $\frac12 \sum_k
    \frac{n_k}{n} \log\det(I + \frac{p}{n_k \varepsilon^2} W_k^\top \mathrm{diag}(\pi_k) W_k)$, $n_k = \sum_i
    \pi_{ik}$, is at most $\frac12 \sum_k \frac{n_k}{n} \sum_c \log(1 + \frac{p}{n_k \varepsilon^2} \sum_i
    \pi_{ik} (W_k)_{ic}^2)$, with equality where $W_k^\top \mathrm{diag}(\pi_k) W_k$ is diagonal.
    """
    # With the bases as drawn, the excess must not be negative. With bases that diagonalise the second
    # moments, it must be zero. The value of the evidence is the smaller of the first excess and minus the
    # absolute value of the second.
    tokens, bases = complete_instance(generator)
    pi = memberships(coordinates(tokens, bases), temperature=SHARPNESS)
    detail = {}
    for name in ("as drawn", "diagonalised"):
        if name == "diagonalised":
            coords = coordinates(tokens, bases)
            # Rotate each basis to the eigenvectors of the weighted second moment of its coordinates.
            bases = bases @ torch.linalg.eigh((pi.unsqueeze(-1) * coords).mT @ coords)[1]
        rate = membership_rate(tokens, bases, pi, eps=EPS)
        bound = (
            variational_rate(tokens, bases, pi, eps=EPS) if normalised else _unnormalised(tokens, bases, pi)
        )
        detail[name] = float(bound / rate - 1)
    return Measured(min(detail["as drawn"], -abs(detail["diagonalised"])), detail)


@claim(
    "crate/tssa-step",
    measures="largest change of the bound over step sizes, in units of the guaranteed decrease",
    at_most=-1 + ROUNDING,
    margin=(
        "the threshold is the bound of the statement; the control claims twice the decrease, which is"
        " the nearest wrong statement and falls short by a factor of 1.9"
    ),
    source=Source("wu2025token", "gradient of the bound and token update", "own"),
    assumptions=(
        "the subspaces may be any matrices U_k, memberships between 0 and 1",
        "the source states the gradient; the guaranteed decrease is derived in this library "
        "(`steps.lipschitz`)",
    ),
    control=but("twice the guaranteed decrease is claimed", times=2.0),
)
def tssa_step(generator: torch.Generator, *, times: float = 1.0) -> Measured:
    r"""At fixed memberships $\pi_{ik}$ a step $Z - \kappa \nabla B$ on the bound of token statistics, $B(Z) =
    \frac12 \sum_k \frac{n_k}{n} \sum_c \log(1 + \frac{p}{n_k \varepsilon^2} \sum_i \pi_{ik} (Z U_k)_{ic}^2)$
    with $n_k = \sum_i \pi_{ik}$, lowers it by at least $\kappa (1 - \kappa L / 2) \|\nabla B\|_F^2$ for every
    $0 < \kappa < 2/L$, $L = \beta \|\sum_k U_k U_k^\top\|_2$, $\beta = p / (n \varepsilon^2)$.
    """
    tokens, bases = perturbed_instance(generator)
    pi = memberships(coordinates(tokens, bases), temperature=SHARPNESS)
    L = lipschitz(bases, n=N, eps=EPS)
    before, gradient = variational_rate(tokens, bases, pi, eps=EPS), tssa_gradient(tokens, bases, pi, eps=EPS)
    changes = {}
    for share in (0.1, 0.5, 1.0, 1.5, 1.9):
        after = variational_rate(tokens - share / L * gradient, bases, pi, eps=EPS)
        changes[f"kappa L = {share}"] = float(
            (after - before) / (times * share / L * (1 - share / 2) * gradient.square().sum())
        )
    return Measured(max(changes.values()), changes)


CLAIMS = (exact_step_compresses, paper_step_compresses, released_sign, tssa_bound, tssa_step)

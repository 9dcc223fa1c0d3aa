r"""The unrolled model: steps of compression on given tokens, the guarantee of the exact steps, and sparse
codes.

Sources: :cite:t:`yu2023white`, :cite:t:`hu2024indepth` (the tied residual form), :cite:t:`beck2009fast`
(ISTA). Notation: docs/notation.md.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ...core.validation import integers
from ...maths.linalg import LARGEST_GRAM_CONDITION
from ...metrics.coding import subspace_coding_rate, unit_norm
from ...models.crate.compression import Bases, coordinates, expansion, rate_gradient
from ...models.crate.sparsification import curvature, ista_step
from .sparse_coding import lasso, signed_dictionary
from .steps import exact_step, lipschitz, paper_step, released_step

LAYERS, LAM, ISTA_STEPS = 6, 0.1, 40
LASSO_RTOL = 1e-8  # relative to the first objective: smaller decreases are rounding errors

Sequences = Float[Tensor, "m n d"]
Step = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Trajectory:
    """The tokens before and after each unrolled step.

    Attributes:
        states: tokens before the first and after each step, [layers + 1, m, n, d].
        rates: R^c(Z; U_[K]) of these tokens in nats, mean over the sequences, [layers + 1].
    """

    states: Float[Tensor, "layers m n d"]
    rates: Float[Tensor, " layers"]

    @property
    def changes(self) -> Float[Tensor, " steps"]:
        """Change of R^c in each step, as a share of the first R^c."""
        return self.rates.diff() / self.rates[0]

    def unit_rates(self, bases: Bases, *, eps: float) -> Float[Tensor, " layers"]:
        """Computes R^c of the tokens scaled to norm one, nats, [layers + 1]."""
        return torch.stack(
            [subspace_coding_rate(unit_norm(state), bases, eps=eps).mean() for state in self.states]
        )


def unroll(tokens: Sequences, bases: Bases, step: Step, *, eps: float, layers: int = LAYERS) -> Trajectory:
    r"""Applies ``step`` ``layers`` times and measures R^c(Z; U_[K]) after each.

    A step after which :math:`\beta \|W_k\|_F^2` of a sequence exceeds 1e10 in some head is left out, and so
    are those after it: beyond, the identity in :math:`I + \beta W_k^\top W_k` is lost to rounding.

    Args:
        tokens: [m, n, d].
        bases: U_k in which R^c is measured, [K, d, p].
        step: function from tokens to tokens of the same shape.
        eps: distortion (squared inside).
        layers: number of steps.
    Raises:
        ValueError: shapes do not fit, or ``eps`` is not positive.
    """
    integers(minimum=0, layers=layers)
    states = [tokens]
    beta = expansion(bases, n=tokens.shape[-2], eps=eps)
    for _ in range(layers):
        after = step(states[-1])
        largest = beta * coordinates(after, bases).square().sum((-2, -1)).max()
        states.append(after if bool(largest <= LARGEST_GRAM_CONDITION) else states[-1])
    rates = torch.stack([subspace_coding_rate(state, bases, eps=eps).mean() for state in states])
    return Trajectory(torch.stack(states), rates)


def forms(bases: Bases, *, n: int, eps: float) -> dict[str, Step]:
    r"""Returns three forms of a compression step: exact (kappa = 1/L), paper (kappa beta = 1/2), tied
    residual (released, V_k = U_k^T / 2).

    Args:
        bases: U_k, [K, d, p].
        n: tokens in a sequence.
        eps: distortion (squared inside).
    Returns:
        Functions from tokens [m, n, d] to tokens, by name of the form.
    Raises:
        ValueError: ``eps`` is not positive.
    """
    L, beta = lipschitz(bases, n=n, eps=eps), expansion(bases, n=n, eps=eps)
    return {
        "exact": lambda tokens: exact_step(tokens, bases, kappa=1 / L, eps=eps),
        "paper": lambda tokens: paper_step(tokens, bases, kappa=0.5 / beta, eps=eps),
        "tied residual": lambda tokens: released_step(tokens, bases, 0.5 * bases.mT),
    }


def exact_steps(
    tokens: Sequences, bases: Bases, *, kappa: float, eps: float, layers: int = LAYERS
) -> Sequences:
    """Returns the tokens after ``layers`` exact steps along the subspaces.

    Args:
        tokens: [m, n, d].
        bases: U_k, [K, d, p].
        kappa: step size.
        eps: distortion (squared inside).
        layers: number of steps.
    Raises:
        ValueError: shapes do not fit, or ``kappa`` or ``eps`` is not positive.
    """
    for _ in range(layers):
        tokens = exact_step(tokens, bases, kappa=kappa, eps=eps)
    return tokens


def guaranteed_rates(run: Trajectory, bases: Bases, *, eps: float) -> Float[Tensor, " layers"]:
    r"""Returns an upper bound on R^c of exact steps with kappa = 1/L, nats, [layers + 1].

    The bound after l steps is :math:`R^c_0 - \sum_{j<l} \|\nabla R^c_j\|^2 / (2L)`.

    Raises:
        ValueError: shapes do not fit.
    """
    # The descent lemma with kappa = 1/L: each step lowers R^c by at least ||grad||^2 / (2L).
    L = lipschitz(bases, n=run.states.shape[-2], eps=eps)
    squared_norms = torch.stack(
        [rate_gradient(state, bases, eps=eps).square().sum((-2, -1)).mean() for state in run.states[:-1]]
    )
    return run.rates[0] - torch.cat([squared_norms.new_zeros(1), squared_norms.cumsum(0) / (2 * L)])


def sparse_code(
    tokens: Float[Tensor, "n d"], bases: Bases
) -> tuple[Float[Tensor, "n m"], Float[Tensor, " steps"], float]:
    r"""Computes the code of the tokens in D = [U, -U] by ``ISTA_STEPS`` steps of ISTA from zero with eta =
    1/L.

    Returns:
        Three values. The code, [n, 2 K p]. The objective per token before the first and after each step,
        [steps + 1]. The largest ratio of the change of the objective in a step to the guaranteed decrease L/2
        ||Z+ - Z||^2; in theory this ratio is at most -1.
    Raises:
        ValueError: shapes do not fit.
    """
    dictionary = signed_dictionary(bases)
    L = curvature(dictionary)
    code, worst = tokens.new_zeros(len(tokens), dictionary.shape[1]), -torch.inf
    objective = [lasso(code, tokens, dictionary, lam=LAM) / len(tokens)]
    for _ in range(ISTA_STEPS):
        new = ista_step(code, tokens, dictionary, eta=1 / L, lam=LAM)
        objective.append(lasso(new, tokens, dictionary, lam=LAM) / len(tokens))
        # Near convergence both numbers are rounding errors, and their ratio is meaningless.
        guaranteed = float(0.5 * L * (new - code).square().sum() / len(tokens))
        if guaranteed > LASSO_RTOL * float(objective[0]):
            worst = max(worst, float(objective[-1] - objective[-2]) / guaranteed)
        code = new
    return code, torch.stack(objective), worst

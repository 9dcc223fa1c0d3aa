r"""Attention on several tokens: the direction in which W diverges, and the finite part that determines the
shares (Gen-SVM).

With a nonlinear head, a set :math:`O_i` of tokens of each input may keep attention.
:cite:t:`tarzanagh2023transformers` conjecture that after k steps :math:`W(k) \approx W_{fin} + R(k)\,
W_{dir}` with :math:`R(k) \to \infty`, where

.. math::
    W_{dir} &= \arg\min \|W\|_F: && (x_{i,t} - x_{i,\tau})^\top W z_i = 0 \ (t, \tau \in O_i),\quad
        \ge 1 \ (t \in O_i, \tau \notin O_i),\\
    W_{fin} &= \arg\min \|W\|_F: && (x_{i,t} - x_{i,\tau})^\top W z_i = \log (s_{i,t} / s_{i,\tau}) \ (t, \tau
    \in O_i),

and s is the attention in the limit. The scale R for a given W is the least-squares fit
:math:`R = \langle W_{dir}, W - W_{fin}\rangle / \|W_{dir}\|_F^2`.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from ....core.threads import single_threaded
from ....core.validation import as_float64, converted, number
from ..builders import multi_token
from ..constraint_set import Constraints
from ..solution import MaxMargin, MaxMargins
from ..validation import check_real, check_shape, check_tokens
from .frobenius import frobenius_max_margin
from .frobenius_batched import frobenius_max_margins

SUM_ATOL = 1e-5  # largest error of a sum of attention; it allows for thousands of tokens in single precision


@dataclass(frozen=True)
class Generalised:
    r"""The two parts of the predicted weights, of one problem or of a batch of B.

    Attributes:
        direction: :math:`W_{dir}`.
        finite: :math:`W_{fin}`, from the equations alone: the other constraints are replaced by 0 >= -1.
    """

    direction: MaxMargin | MaxMargins
    finite: MaxMargin | MaxMargins

    def scale(self, W: Float[Tensor, "*B d d_z"]) -> Float[Tensor, "*B"]:
        r"""Returns R, the multiple of the direction that brings the prediction nearest to W; 0 if the
        direction is zero (no divergence).
        """
        square = self.direction.W.square().sum((-2, -1))
        inner = (self.direction.W * (as_float64("W", W) - self.finite.W)).sum((-2, -1))
        return torch.where(square > 0, inner / square.clamp(min=1e-300), 0.0)

    def predict(self, W: Float[Tensor, "*B d d_z"]) -> Float[Tensor, "*B d d_z"]:
        r"""Returns :math:`W_{fin} + R\, W_{dir}` with R from :meth:`scale`."""
        return self.finite.W + self.scale(W)[..., None, None] * self.direction.W


@single_threaded
def generalised_max_margin(
    tokens: Float[Tensor, "n T d"],
    query: Float[Tensor, "n d_z"],
    attention: Float[Tensor, "n T"],
    *,
    threshold: float = 1e-3,
) -> Generalised:
    r"""Computes the direction and the finite part for the tokens that keep attention.

    Args:
        tokens: x, ``[n, T, d]``.
        query: z, ``[n, d_z]``.
        attention: s, ``[n, T]``, at weights so large that the tokens outside the sets :math:`O_i` have almost
            no attention.
        threshold: attention above which a token belongs to the set :math:`O_i`.
    Returns:
        Both parts, each a verified solution with its own residual.
    Raises:
        Infeasible: no W separates the tokens that share attention from the others, or no W gives them these
            shares.
        NotConverged: a solution could not be verified.
        TypeError: the data are not tensors or arrays, or the threshold is not a number.
        ValueError: as for :func:`~..builders.multi_token`; or attention is negative or does not sum to one,
            the threshold is outside [0, 1), or some input has no token with more attention than the
            threshold.
    """
    direction, equations = _constraints(tokens, query, attention, threshold)
    return Generalised(frobenius_max_margin(direction), frobenius_max_margin(equations))


@single_threaded
def generalised_max_margins(
    tokens: Float[Tensor, "B n T d"],
    query: Float[Tensor, "B n d_z"],
    attention: Float[Tensor, "B n T"],
    *,
    threshold: float = 1e-3,
) -> Generalised:
    """Solves :func:`generalised_max_margin` for a batch of B problems; ``direction.solved`` and
    ``finite.solved`` mark the solved problems.

    Args:
        tokens, query, attention, threshold: as in :func:`generalised_max_margin`, with a leading dimension of
            B problems.
    Returns:
        Both parts of all problems, each with its status and residual.
    Raises:
        TypeError, ValueError: as for :func:`generalised_max_margin`.
    """
    direction, equations = _constraints(tokens, query, attention, threshold)
    return Generalised(frobenius_max_margins(direction), frobenius_max_margins(equations))


@converted(float64=("tokens", "query", "attention"))
def _constraints(
    tokens: Tensor, query: Tensor, attention: Tensor, threshold: float
) -> tuple[Constraints, Constraints]:
    """Returns the constraints of the direction and the constraints of the finite part."""
    if not 0 <= number("threshold", threshold) < 1:
        raise ValueError(
            f"threshold must lie in [0, 1), got {threshold}; it is the attention below which a token counts "
            "as unattended"
        )
    check_tokens(tokens, query)
    check_real("attention", attention, "[..., n, T]", tokens.ndim - 1)
    check_shape("attention", attention, tokens.shape[:-1])
    attention = attention.detach()
    if float(attention.min()) < 0:
        raise ValueError(
            f"attention must be at least 0, got {float(attention.min()):.3g}; pass the output of a softmax"
        )
    error = attention.sum(-1) - 1
    if float(error.abs().max()) > SUM_ATOL:
        total = float(error.ravel()[error.abs().argmax()]) + 1
        raise ValueError(
            f"attention must sum to 1 in each input, got {total:.6g}; pass the output of a softmax"
        )
    attended = attention > threshold
    direction = multi_token(tokens, query, attended)
    # The finite part has the same equations with other right-hand sides. Its inequalities become 0 >= -1,
    # which holds for every W. They are not dropped, since all problems of a batch must have the same number
    # of constraints.
    finite = multi_token(tokens, query, attended, logits=attention.clamp(min=1e-300).log())
    equation = finite.equality
    rhs, difference = torch.where(equation, finite.rhs, -1.0), finite.difference * equation[..., None]
    return direction, replace(finite, difference=difference, rhs=rhs)

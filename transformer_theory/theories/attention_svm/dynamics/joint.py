r"""Joint descent on a prompt p and the head v. Their limits solve max-margin problems; the problem for p
depends on the solution for v.

Input i has tokens :math:`x_{i,t}`, keys :math:`k_{i,t}` and a label :math:`Y_i = \pm 1`. One prompt
determines the attention of all inputs:

.. math:: f_i(v, p) = v^\top X_i^\top \operatorname{softmax}(K_i p), \qquad L(v, p) = \tfrac1n \sum_i \ell(Y_i
    f_i(v, p)).

Once attention selects the tokens :math:`a_i`, the head separates the labels like a hard-margin classifier of
these tokens, :math:`v_{mm} = \arg\min \|v\|` subject to :math:`Y_i v^\top x_{i,a_i} \ge 1`. If every input is
a support vector of :math:`v_{mm}`, the prompt goes to :math:`p_{mm} = \arg\min\|p\|` subject to
:math:`(k_{i,a_i} - k_{i,t})^\top p \ge 1`. Otherwise it goes to :math:`p_{relax}`: the margin must be at
least 1 only for support vectors, and at least 0 for the other inputs. Their label margin exceeds 1, and
attention need not be sharp on them. :cite:t:`tarzanagh2023maxmargin` prove this joint convergence for the
regularisation path.

For descent, the margin that these inputs need depends on the growth of v relative to p. This library derives
it for steps of equal length. Input i contributes to the gradient in p in proportion to :math:`|\ell'(f_i)|(1
- s_{i,a_i})`. The logarithm of this factor is about minus the sum of the margins of the input in v and in p.
With equal steps :math:`\|p\| \approx \|v\|`, and the contributions balance if

.. math:: (k_{i,a_i} - k_{i,t})^\top p \;\ge\; \max\Big(0,\; 1 - (Y_i v_{mm}^\top x_{i,a_i} -
    1)\,\frac{\|p\|}{\|v_{mm}\|}\Big).

The right-hand side contains the norm of p, so the prediction is a fixed point: :math:`p_{eq}` is the shortest
p for the right-hand side with the norm of :math:`p_{eq}`. It is unique, and its norm lies between the norms
of :math:`p_{relax}` and :math:`p_{mm}`. It equals :math:`p_{relax}` if the label margins of the other inputs
are large enough.
"""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import no_type_check

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ....core.threads import single_threaded
from ....core.validation import converted, integers, positive
from ..builders import prompt
from ..constraint_set import Constraints
from ..problem import Instance, convert_fields
from ..solution import MaxMargin
from ..solvers import frobenius_max_margin
from ..validation import (
    check_finite_weights,
    check_nonnegative,
    check_real,
    check_shape,
    check_signs,
    check_tokens,
    check_type,
)
from .gradient import check_scale, unit
from .losses import LOGISTIC, Loss, check_loss

EXPONENT_MAX = 690.0  # exp stays finite up to this
FIXED_POINT_RTOL = 1e-9  # largest relative difference of equal norms


@dataclass(frozen=True)
class JointInstance:
    r"""Tokens with labels on which prompt and head are trained jointly, batched over independent trials.

    Attributes:
        tokens: x, ``[*trials, n, T, d]``, float64. For this and all other tensors, numpy arrays, float32 and
            integers are converted.
        labels: Y, -1 or 1, ``[*trials, n]``.
        keys: k, ``[*trials, n, T, d_k]``. None: the tokens.

    Raises:
        TypeError: an argument is not a tensor or array.
        ValueError: shapes do not fit, a value is not finite, or a label is not -1 or 1.
    """

    tokens: Float[Tensor, "*trials n T d"]
    labels: Float[Tensor, "*trials n"]
    _: KW_ONLY
    keys: Float[Tensor, "*trials n T d_k"] | None = None

    def __post_init__(self):
        convert_fields(self, "tokens", "labels")
        check_real("tokens", self.tokens, "[..., n, T, d]", max(3, self.tokens.ndim))
        check_signs("labels", self.labels, self.tokens.shape[:-2])
        check_tokens(self.tokens, self.labels[..., None], query_name="labels")
        if self.keys is None:
            object.__setattr__(self, "keys", self.tokens)
        convert_fields(self, "keys")
        check_real("keys", self.key_vectors, "[..., n, T, d_k]", self.tokens.ndim)
        check_shape(
            "keys",
            self.key_vectors,
            (*self.tokens.shape[:-1], self.key_vectors.shape[-1]),
            "[..., n, T, d_k]",
        )

    @property
    def key_vectors(self) -> Float[Tensor, "*trials n T d_k"]:
        """:attr:`keys`, or the tokens if no keys were passed."""
        assert self.keys is not None
        return self.keys

    def prompt(self, v: Float[Tensor, "*trials d"]) -> Instance:
        r"""Returns the problem for p at a fixed head v, with scores :math:`Y_i v^\top x_{i,t}` and
        query 1.
        """
        scores = self.labels[..., None] * (self.tokens @ v[..., None, :, None]).squeeze(-1)
        return Instance(self.key_vectors, torch.ones_like(self.labels)[..., None], scores)

    def attention(self, p: Float[Tensor, "*trials d_k"]) -> Float[Tensor, "*trials n T"]:
        """Returns the attention weights; rows sum to one."""
        return (self.key_vectors @ p[..., None, :, None]).squeeze(-1).softmax(-1)

    def predictions(self, state: "JointState") -> Float[Tensor, "*trials n"]:
        """Returns the predictions Y f, label included."""
        mixture = (self.attention(state.p)[..., None, :] @ self.tokens).squeeze(-2)
        return self.labels * (mixture @ state.v[..., None]).squeeze(-1)


@dataclass(frozen=True)
class JointState:
    """The state of joint descent: p ``[*trials, d_k]``, v ``[*trials, d]`` and the number of steps taken."""

    p: Float[Tensor, "*trials d_k"]
    v: Float[Tensor, "*trials d"]
    step: int = 0


@single_threaded
@torch.no_grad()
def joint_descent(
    instance: JointInstance,
    state: JointState,
    *,
    steps: int,
    rate: float = 0.1,
    loss: Loss = LOGISTIC,
    eps: tuple[float, float] = (0.0, 0.0),
) -> JointState:
    r"""Runs descent on p and v at once: :math:`p \leftarrow p - \eta\nabla_p L/\|\nabla_p L\|` and likewise
    for v, normalised separately.

    Both gradients are exact for any norm of p and v if the loss has an exact logarithm of its slope
    (``Loss.log``).

    Args:
        instance: the problems, one or a batch of trials.
        state: the first state, or the result of an earlier run.
        steps: number of steps.
        rate: :math:`\eta`, the length of each step.
        loss: loss of the prediction, label included.
        eps: numbers added to the norms of the gradients in p and in v; 0 gives exact steps. In the released
            run they finally stop descent.
    Returns:
        The state after these steps; another call continues exactly from it.
    Raises:
        ValueError: ``steps`` is negative, ``rate`` is not positive and finite, ``eps`` is negative or not
            finite, the state does not belong to the instance, tokens or keys are out of range
            (:func:`~.gradient.check_scale`), or the weights overflow.
        TypeError: an argument has the wrong type.
    """
    integers(minimum=0, steps=steps)
    positive(rate=rate)
    if not isinstance(eps, Sequence) or len(eps) != 2:
        raise TypeError(
            f"eps must be a pair of numbers, for p and for v, got {eps!r}; pass eps=(0.1, 0.1) for the same "
            "in both"
        )
    for value in eps:
        check_nonnegative(eps=value)
    check_loss(loss)
    _check_state(instance, state)
    check_scale(tokens=instance.tokens, keys=instance.key_vectors)
    signed = instance.labels[..., None, None] * instance.tokens
    p, v, n = state.p, state.v, instance.labels.shape[-1]
    for _ in range(steps):
        direction_p, scale_p, direction_v, scale_v = _descent_directions(
            signed, instance.key_vectors, p, v, loss
        )
        p = p + rate * _normalised(direction_p, eps[0] * n, scale_p)
        v = v + rate * _normalised(direction_v, eps[1] * n, scale_v)
    end = JointState(p, v, state.step + steps)
    check_finite_weights(end.step, p=end.p, v=end.v)
    return end


def _check_instance(instance: JointInstance) -> None:
    check_type("instance", instance, JointInstance, hint="JointInstance(tokens, labels) makes one")


def _check_state(instance: JointInstance, state: JointState) -> None:
    _check_instance(instance)
    check_type("state", state, JointState, hint="JointState(p, v) makes one")
    for name, value, like in (("p", state.p, instance.key_vectors), ("v", state.v, instance.tokens)):
        shape = [*like.shape[:-3], like.shape[-1]]
        check_real(name, value, str(shape), len(shape))
        check_shape(name, value, shape)


@no_type_check
def _descent_directions(
    signed: Tensor, keys: Tensor, p: Tensor, v: Tensor, loss: Loss
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns the negative gradients in p and v, each as a direction and a logarithmic scale: -n gradient =
    e^scale direction.

    The formulas are in :mod:`.gradient`; here the scale always includes the slope of the loss. ``signed``
    holds tokens times labels.
    """
    scores = (signed @ v[..., None, :, None]).squeeze(-1)
    logits = (keys @ p[..., None, :, None]).squeeze(-1)
    highest, top = logits.max(-1, keepdim=True)
    share = logits.softmax(-1)
    log_slope = loss.log_slope((share * scores).sum(-1, keepdim=True))
    delta = scores - scores.gather(-1, top)
    # As in :mod:`.gradient`, tokens with the same score as the most attended one exert no pull, so they must
    # not determine the scale.
    level = (logits - highest + log_slope).masked_fill(delta == 0, -torch.inf)
    scale_p = level.amax((-2, -1), keepdim=True).clamp(min=-1e300)
    scaled = (level - scale_p).exp() * share.gather(-1, top) * delta
    coefficient = scaled - share * scaled.sum(-1, keepdim=True)
    scale_v = log_slope.amax(-2, keepdim=True)
    mixture = (share[..., None, :] @ signed).squeeze(-2)
    direction_p = (coefficient[..., None] * keys).sum((-3, -2))
    direction_v = ((log_slope - scale_v).exp() * mixture).sum(-2)
    return direction_p, scale_p.squeeze(-1), direction_v, scale_v.squeeze(-1)


@no_type_check
def _normalised(vector: Tensor, eps: float, scale: Tensor) -> Tensor:
    """Returns the gradient g = e^scale ``vector`` divided by its norm plus ``eps``."""
    # g / (|g| + eps) = unit / (1 + eps / |g|). The norm |g| may underflow, but its logarithm cannot.
    direction, log_size = unit(vector, over=-1)
    return direction / (1 + eps * (-scale - log_size).clamp(max=EXPONENT_MAX).exp()) if eps else direction


@dataclass(frozen=True)
class JointTargets:
    """The directions that the theory predicts for joint descent with a given selection.

    Attributes:
        head: v_mm; its ``W`` is ``[d, 1]``.
        sharp: p_mm; its ``W`` is ``[d_k, 1]``.
        relaxed: p_relax, of the same shape; equal to ``sharp`` if every input is a support vector.
        equal_steps: p_eq, of the same shape, for descent with steps of equal length on p and v.
        support: mask of the inputs that are support vectors of the head, ``[n]``.
    """

    head: MaxMargin
    sharp: MaxMargin
    relaxed: MaxMargin
    equal_steps: MaxMargin
    support: Bool[Tensor, " n"]

    @property
    def tight(self) -> bool:
        """Whether every input is a support vector of the head; then p goes to p_mm."""
        return bool(self.support.all())


@single_threaded
@converted(int64=("select",))
def joint_targets(instance: JointInstance, select: Int[Tensor, " n"], *, tol: float = 1e-6) -> JointTargets:
    """Solves the max-margin problems of a single instance for the selection ``select``.

    Args:
        instance: a single problem.
        select: position of the selected token of each input, ``[n]``.
        tol: largest excess over 1 of the label margin of a support vector.
    Returns:
        The verified solutions.
    Raises:
        Infeasible: no head separates the labels of the selected tokens, or no prompt selects the tokens.
        TypeError: an argument has the wrong type.
        ValueError: ``instance`` is a batch, positions have a wrong shape or are outside 0..T-1, or ``tol`` is
            negative or not finite.
    """
    _check_instance(instance)
    check_nonnegative(tol=tol)
    if instance.labels.ndim != 1:
        raise ValueError(
            f"instance must be a single problem, got trials {list(instance.labels.shape[:-1])}; make an "
            "instance of one trial"
        )
    pairs = prompt(instance.key_vectors, select)
    selected = instance.tokens[torch.arange(len(select)), select]
    # The head is a W with one column: differences Y x and queries 1.
    head = frobenius_max_margin(
        Constraints(instance.labels[:, None] * selected, torch.ones_like(selected[:, :1]))
    )
    support = head.margins <= 1 + tol
    sharp = frobenius_max_margin(pairs)
    relaxed = frobenius_max_margin(replace(pairs, rhs=support[pairs.input].double()))
    return JointTargets(head, sharp, relaxed, _equal_steps(pairs, head, sharp, relaxed), support)


def _equal_steps(pairs: Constraints, head: MaxMargin, sharp: MaxMargin, relaxed: MaxMargin) -> MaxMargin:
    """Returns the solution p_eq of the fixed-point problem in the module docstring.

    The right-hand side depends on the norm of the solution. A larger norm there requires smaller margins and
    gives a shorter solution, so there is exactly one fixed point.
    """
    from scipy.optimize import brentq

    spare = (head.margins - 1).clamp(min=0.0)[pairs.input] / head.norm

    def solve(norm: float) -> MaxMargin:
        return frobenius_max_margin(replace(pairs, rhs=(1 - spare * norm).clamp(min=0.0)))

    # The required margins lie between the margins for p_relax and p_mm, so the two norms bracket the fixed
    # point. Root finding needs a change of sign. If the fixed point is an end of the bracket, the solution
    # there is returned without it.
    if solve(relaxed.norm).norm <= relaxed.norm * (1 + FIXED_POINT_RTOL):
        return relaxed
    if not solve(sharp.norm).norm < sharp.norm * (1 - FIXED_POINT_RTOL):
        return sharp
    return solve(float(brentq(lambda norm: solve(norm).norm - norm, relaxed.norm, sharp.norm, xtol=1e-13)))  # pyright: ignore[reportArgumentType]

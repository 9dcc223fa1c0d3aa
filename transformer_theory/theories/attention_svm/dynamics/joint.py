r"""Joint descent on a prompt p and the head v: two max-margin problems, the second of which depends on the first.

Input i has tokens :math:`x_{i,t}`, keys :math:`k_{i,t}` and a label :math:`Y_i = \pm 1`; attention comes from one prompt for all inputs:

.. math:: f_i(v, p) = v^\top X_i^\top \operatorname{softmax}(K_i p), \qquad L(v, p) = \tfrac1n \sum_i \ell(Y_i f_i(v, p)).

Once attention selects the tokens :math:`a_i`, the head separates the labels as a hard-margin classifier of those tokens does,
:math:`v_{mm} = \arg\min \|v\|` subject to :math:`Y_i v^\top x_{i,a_i} \ge 1`. If every input is a support vector of :math:`v_{mm}`, the
prompt goes to :math:`p_{mm} = \arg\min\|p\|` subject to :math:`(k_{i,a_i} - k_{i,t})^\top p \ge 1`. Otherwise it goes to
:math:`p_{relax}`, for which that margin is required of the support vectors only and :math:`\ge 0` of the other inputs: these have label
margin to spare, and attention need not be sharp on them. Theorem: :cite:t:`tarzanagh2023maxmargin` on joint convergence, for the
regularisation path.

How much less margin descent requires of them depends on the growth of v relative to p; this library derives it for steps of equal length.
Input i pulls at the prompt with :math:`|\ell'(f_i)|(1 - s_{i,a_i})`, whose logarithm is minus the sum of its two margins, in v and in p.
With equal steps :math:`\|p\| \approx \|v\|`, and the pulls balance if

.. math:: (k_{i,a_i} - k_{i,t})^\top p \;\ge\; \max\Big(0,\; 1 - (Y_i v_{mm}^\top x_{i,a_i} - 1)\,\frac{\|p\|}{\|v_{mm}\|}\Big),

a problem for p that has one fixed point, :math:`p_{eq}`. It lies between :math:`p_{mm}` and :math:`p_{relax}`, and is :math:`p_{relax}` if
the other inputs have enough label margin to spare.
"""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import no_type_check

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ....core.parallel import single_threaded
from ....core.validation import converted, integers, positive
from ..builders import prompt
from ..constraint_set import Constraints
from ..problem import Instance, convert_fields
from ..solution import MaxMargin
from ..solvers import frobenius_max_margin
from ..validation import check_nonnegative, check_real, check_shape, check_signs, check_tokens, check_type
from .gradient import check_scale, unit
from .losses import LOGISTIC, Loss, check_loss

EXPONENT_MAX = 690.0  # exp of more overflows
FIXED_POINT_RTOL = 1e-9  # norms of two solutions that differ by less are equal


@dataclass(frozen=True)
class JointInstance:
    r"""Tokens with labels, for which prompt and head are both trained; batched over independent trials.

    Attributes:
        tokens: x, ``[*trials, n, T, d]``, float64; numpy arrays, float32 and integers are converted, here and below.
        labels: Y, -1 or 1, ``[*trials, n]``.
        keys: k, ``[*trials, n, T, d_k]``; the tokens by default.

    Raises:
        TypeError: an argument that is no tensor or array.
        ValueError: shapes that do not fit, values that are not finite, or labels other than -1 and 1.
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
        check_shape("keys", self.key_vectors, (*self.tokens.shape[:-1], self.key_vectors.shape[-1]), "[..., n, T, d_k]")

    @property
    def key_vectors(self) -> Float[Tensor, "*trials n T d_k"]:
        """:attr:`keys`, which are the tokens by default."""
        assert self.keys is not None
        return self.keys

    def prompt(self, v: Float[Tensor, "*trials d"]) -> Instance:
        r"""The problem for p with the head held fixed: scores :math:`Y_i v^\top x_{i,t}`, query 1."""
        scores = self.labels[..., None] * (self.tokens @ v[..., None, :, None]).squeeze(-1)
        return Instance(self.key_vectors, torch.ones_like(self.labels)[..., None], scores)

    def attention(self, p: Float[Tensor, "*trials d_k"]) -> Float[Tensor, "*trials n T"]:
        """Attention weights; rows sum to one."""
        return (self.key_vectors @ p[..., None, :, None]).squeeze(-1).softmax(-1)

    def predictions(self, state: "JointState") -> Float[Tensor, "*trials n"]:
        """Y f, label included."""
        pooled = (self.attention(state.p)[..., None, :] @ self.tokens).squeeze(-2)
        return self.labels * (pooled @ state.v[..., None]).squeeze(-1)


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
    r"""Normalised descent on p and v at once, each with its own norm: :math:`p \leftarrow p - \eta\nabla_p L/\|\nabla_p L\|`, and so for v.

    Both gradients are exact for any norm of p and v if the loss has an exact logarithm of its slope (``Loss.log``).

    Args:
        instance: the problems, one or a batch of trials.
        state: the start, or what an earlier run returned.
        steps: number of steps.
        rate: :math:`\eta`, the length of each step.
        loss: of the prediction, label included.
        eps: added to the norms of the gradients in p and in v, as in the released run, which then stops moving; 0 is exact.
    Returns:
        The state after these steps; another call continues exactly from it.
    Raises:
        ValueError: ``steps`` is negative, ``rate`` not positive and finite, ``eps`` negative or not finite; the state does not belong to
            the instance; tokens or keys out of range (:func:`~.gradient.check_scale`); or the weights overflow.
        TypeError: an argument of another type.
    """
    integers(minimum=0, steps=steps)
    positive(rate=rate)
    if not isinstance(eps, Sequence) or len(eps) != 2:
        raise TypeError(f"eps must be a pair of numbers, for p and for v, got {eps!r}; pass eps=(0.1, 0.1) for the same in both")
    for value in eps:
        check_nonnegative(eps=value)
    check_loss(loss)
    _check_state(instance, state)
    check_scale(tokens=instance.tokens, keys=instance.key_vectors)
    signed = instance.labels[..., None, None] * instance.tokens
    p, v, n = state.p, state.v, instance.labels.shape[-1]
    for _ in range(steps):
        direction_p, scale_p, direction_v, scale_v = _descent_directions(signed, instance.key_vectors, p, v, loss)
        p = p + rate * _normalised(direction_p, eps[0] * n, scale_p)
        v = v + rate * _normalised(direction_v, eps[1] * n, scale_v)
    end = JointState(p, v, state.step + steps)
    _check_state(instance, end)
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
def _descent_directions(signed: Tensor, keys: Tensor, p: Tensor, v: Tensor, loss: Loss) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Negative gradients in p and v, each as a direction and the logarithm of its scale: n times the gradient is minus e^scale direction.

    As in :mod:`.gradient`; here the slope of the loss is always part of the scale. ``signed`` are the tokens times the labels.
    """
    scores = (signed @ v[..., None, :, None]).squeeze(-1)
    logits = (keys @ p[..., None, :, None]).squeeze(-1)
    highest, top = logits.max(-1, keepdim=True)
    share = logits.softmax(-1)
    pull = loss.log_slope((share * scores).sum(-1, keepdim=True))
    delta = scores - scores.gather(-1, top)
    # As in :mod:`.gradient`: tokens with the score of the most attended one have no pull, so they do not determine the scale.
    level = (logits - highest + pull).masked_fill(delta == 0, -torch.inf)
    scale_p = level.amax((-2, -1), keepdim=True).clamp(min=-1e300)
    scaled = (level - scale_p).exp() * share.gather(-1, top) * delta
    coefficient = scaled - share * scaled.sum(-1, keepdim=True)
    scale_v = pull.amax(-2, keepdim=True)
    pooled = (share[..., None, :] @ signed).squeeze(-2)
    direction_p = (coefficient[..., None] * keys).sum((-3, -2))
    direction_v = ((pull - scale_v).exp() * pooled).sum(-2)
    return direction_p, scale_p.squeeze(-1), direction_v, scale_v.squeeze(-1)


@no_type_check
def _normalised(vector: Tensor, eps: float, scale: Tensor) -> Tensor:
    """The gradient divided by its norm plus ``eps``, for a gradient of e^scale ``vector``."""
    # g / (|g| + eps) = unit / (1 + eps / |g|), where |g| may underflow: its logarithm does not.
    direction, log_size = unit(vector, over=-1)
    return direction / (1 + eps * (-scale - log_size).clamp(max=EXPONENT_MAX).exp()) if eps else direction


@dataclass(frozen=True)
class JointTargets:
    """The directions that the theory predicts for joint descent that selects given tokens.

    Attributes:
        head: v_mm, its ``W`` is ``[d, 1]``.
        sharp: p_mm, ``W`` ``[d_k, 1]``.
        relaxed: p_relax, ``W`` ``[d_k, 1]``; equal to ``sharp`` if every input is a support vector.
        equal_steps: p_eq, ``W`` ``[d_k, 1]``, for descent that moves p and v by equal lengths.
        support: which inputs are support vectors of the head, ``[n]``.
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
    """The max-margin problems of a single instance whose attention selects ``select``.

    Args:
        instance: a single problem.
        select: position of the selected token of each input, ``[n]``.
        tol: an input whose label margin is at most 1 + tol is a support vector.
    Returns:
        The solutions, each verified.
    Raises:
        Infeasible: the labels of the selected tokens cannot be separated, or their keys not selected.
        TypeError: an argument of another type.
        ValueError: a batch of trials, positions of another shape or outside 0..T-1, or a tolerance that is negative or not finite.
    """
    _check_instance(instance)
    check_nonnegative(tol=tol)
    if instance.labels.ndim != 1:
        raise ValueError(
            f"instance must be a single problem, got trials {list(instance.labels.shape[:-1])}; make an instance of one of them"
        )
    pairs = prompt(instance.key_vectors, select)
    chosen = instance.tokens[torch.arange(len(select)), select]
    head = frobenius_max_margin(Constraints(instance.labels[:, None] * chosen, torch.ones_like(chosen[:, :1])))
    support = head.margins <= 1 + tol
    sharp = frobenius_max_margin(pairs)
    relaxed = frobenius_max_margin(replace(pairs, rhs=support[pairs.input].double()))
    return JointTargets(head, sharp, relaxed, _equal_steps(pairs, head, sharp, relaxed), support)


def _equal_steps(pairs: Constraints, head: MaxMargin, sharp: MaxMargin, relaxed: MaxMargin) -> MaxMargin:
    """The solution p_eq of the problem in the module docstring, whose right-hand side depends on the norm of the solution.

    Larger norms in the right-hand side require smaller margins and give shorter solutions, so there is exactly one fixed point.
    """
    from scipy.optimize import brentq

    spare = (head.margins - 1).clamp(min=0.0)[pairs.input] / head.norm

    def solve(norm: float) -> MaxMargin:
        return frobenius_max_margin(replace(pairs, rhs=(1 - spare * norm).clamp(min=0.0)))

    # Right-hand sides lie between those of p_relax and p_mm, so the two norms bracket the fixed point. Where it coincides with one of the
    # two, that solution is returned, since root finding needs a change of sign.
    least = solve(relaxed.norm)
    if least.norm <= relaxed.norm * (1 + FIXED_POINT_RTOL):
        return relaxed
    if not solve(sharp.norm).norm < sharp.norm * (1 - FIXED_POINT_RTOL):
        return sharp
    return solve(float(brentq(lambda norm: solve(norm).norm - norm, relaxed.norm, sharp.norm, xtol=1e-13)))  # pyright: ignore[reportArgumentType]

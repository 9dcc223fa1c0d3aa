r"""What training conserves: the logits of attention are determined by the MLP's lower layer, so they can be
eliminated.

Suppose that z and the :math:`v_k` are trained only by samples with query m, without momentum and weight
decay, and let
:math:`\rho = \eta_z / \eta_v`. Then, for any activation and any loss, elementwise,

.. math::
    \text{linear: } z^2 - \rho \textstyle\sum_k v_k^2 = \text{const}, \qquad
    \text{exponential: } z - \tfrac{\rho}{2T} \textstyle\sum_k v_k^2 = \text{const} .

Both are exact. For linear attention :math:`z \circ \dot z = \eta_z \sum_k v_k \circ E[g_k\, z \circ x] = \rho
\sum_k v_k \circ \dot v_k`; for exponential attention :math:`\dot z = \frac{\eta_z}{T} E[b \circ \sum_k g_k
v_k] = \frac{\rho}{T} \sum_k v_k \circ \dot v_k`. For softmax attention

.. math:: \dot z = \tfrac{1}{T} \Big(\rho \sum_k v_k \circ \dot v_k - \eta_z \sum_k E[g_k\, b b^\top]
    v_k\Big).

With two approximations, :math:`E[g_k b b^\top] \approx \bar b\, E[g_k b]^\top` and a constant mean attention
:math:`\bar b = E[b]`,

.. math:: \text{softmax: } z \approx \tfrac{\rho}{2T} \textstyle\sum_k (v_k^2 - \|v_k\|^2\, \bar b) +
    \text{const} .

The correlation of the two sides is blind to a wrong scale, so :class:`Fit` also has the relative error.
Source: :cite:t:`tian2024joma`.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ...core.validation import converted
from .block import AttentionForm, Contexts, Softmax
from .dynamics import Model, Path

Logits = Float[Tensor, "*batch M"]
Lower = Float[Tensor, "*batch K M"]


@converted(float64=("logits", "lower"))
def conserved(form: AttentionForm, logits: Logits, lower: Lower, *, ratio: float = 1.0) -> Logits:
    r"""Returns :math:`\phi(z) - \rho \kappa \sum_k v_k^2` of each token, which training conserves for linear
    and exponential attention.

    Args:
        form: form of attention.
        logits: z of one query, ``[*batch, M]``.
        lower: v, ``[*batch, K, M]``.
        ratio: eta_z / eta_v.
    Returns:
        ``[*batch, M]``.
    """
    return form.curve(logits) - ratio * form.factor * lower.square().sum(-2)


def drift(form: AttentionForm, path: Path, *, query: int = 0, ratio: float = 1.0) -> Float[Tensor, "*runs"]:
    """Returns the largest change of :func:`conserved` along a path, over tokens and times, in units of
    phi(z), ``[*runs]``.
    """
    values = conserved(form, path.states.logits[..., query, :], path.states.lower, ratio=ratio)
    return (values - values[0]).abs().amax(-1).amax(0)


def first_term(form: AttentionForm, path: Path, *, ratio: float = 1.0) -> Float[Tensor, "t *runs M"]:
    """Returns the change of rho kappa sum_k v_k^2, ``[t, *runs, M]``.

    For linear and exponential attention it predicts the change of phi(z).
    """
    squares = ratio * form.factor * path.states.lower.square().sum(-2)
    return squares - squares[0]


def fixed_mean(model: Model, contexts: Contexts, path: Path, *, query: int = 0) -> Float[Tensor, "t *runs M"]:
    """Returns the change of z that the paper's softmax invariant predicts, with the mean attention at the
    start.

    Args:
        model: model with softmax attention.
        contexts, path: the samples, and the saved states of training on them.
        query: m.
    Returns:
        ``[t, *runs, M]``; the sum over tokens is zero, as it is for the change of z.
    Raises:
        ValueError: attention is not softmax, or no sample has this query.
    """
    _check_softmax(model)
    mean = mean_attention(model, contexts, path, query=query)
    return fixed_mean_change(path.states.lower, mean[0], factor=model.ratio * model.attention.factor)


@converted(float64=("lower", "mean"))
def fixed_mean_change(
    lower: Float[Tensor, "t *batch K M"], mean: Float[Tensor, "*batch M"], *, factor: float = 0.5
) -> Float[Tensor, "t *batch M"]:
    """Returns the change of z that the softmax invariant predicts from lower layers and the mean attention at
    the start.

    Args:
        lower: lower layers at several times.
        mean: mean attention at the start.
        factor: rho kappa.
    Returns:
        The change since the first time, ``[t, *batch, M]``.
    """
    squares = factor * lower.square().sum(-2)
    logits = squares - squares.sum(-1, keepdim=True) * mean
    return logits - logits[0]


def moving_mean(
    model: Model, contexts: Contexts, path: Path, *, query: int = 0
) -> Float[Tensor, "t *runs M"]:
    """Returns the same prediction as :func:`fixed_mean`, but with the current mean attention at each time.

    The remaining error is due to the factorisation. The integral of the mean attention is a trapezoidal sum
    over the saved states, so many states must be saved.

    Raises:
        ValueError: attention is not softmax, or no sample has this query.
    """
    squares, total, mean = _terms(model, contexts, path, query)
    # Integrate the mean attention over d(total), total = rho kappa sum_k ||v_k||^2, by the trapezoidal rule
    # in the total, not in time: each increment of the total is multiplied by the average of the mean
    # attention at its two ends. For a constant mean attention this is exact and equals fixed_mean.
    integral = ((total[1:] - total[:-1]) * (mean[1:] + mean[:-1]) / 2).cumsum(0)
    return squares.sum(-2) - squares[0].sum(-2) - torch.cat([torch.zeros_like(integral[:1]), integral])


def shift_invariant(
    model: Model, contexts: Contexts, path: Path, *, query: int = 0
) -> Float[Tensor, "t *runs M"]:
    r"""Returns the change of z by an approximation that, like softmax, ignores a shift of v_k by the same
    number for all tokens.

    Write :math:`b = \bar b + \delta`. The factorisation of :math:`E[g b b^\top] v` loses :math:`E[g \delta
    \delta^\top] v`, and also :math:`E[g \delta]\, (\bar b^\top v)`, which is of first order in the
    differences between the samples. With the second term,

    .. math:: \dot z \approx \tfrac{\rho}{T} \textstyle\sum_k \big(w_k \circ \dot v_k - \bar b\, w_k^\top \dot
        v_k\big), \qquad
        w_k = v_k - (\bar b^\top v_k) 1 .

    This is no invariant: it is not the derivative of a function of v, and is integrated along the path by the
    midpoint rule, so many states must be saved. Derived here.

    Raises:
        ValueError: attention is not softmax, or no sample has this query.
    """
    _check_softmax(model)
    lower, mean = path.states.lower, mean_attention(model, contexts, path, query=query)
    b = ((mean[1:] + mean[:-1]) / 2)[..., None, :]
    v, step = (lower[1:] + lower[:-1]) / 2, lower[1:] - lower[:-1]
    work = (v - (v * b).sum(-1, keepdim=True)) * step
    change = (
        2 * model.ratio * model.attention.factor * (work - work.sum(-1, keepdim=True) * b).sum(-2).cumsum(0)
    )
    return torch.cat([torch.zeros_like(change[:1]), change])


def mean_attention(
    model: Model, contexts: Contexts, path: Path, *, query: int = 0
) -> Float[Tensor, "t *runs M"]:
    """Returns E[b] over the samples with this query, at each saved time, ``[t, *runs, M]``.

    Raises:
        ValueError: no sample has this query.
    """
    matching = contexts.query == query
    if not bool(matching.any()):
        raise ValueError(f"query must be the query of some sample, in [0, {contexts.queries}), got {query}")
    return model.attend(path.states, contexts)[..., matching, :].mean(-2)


def factorisation_error(model: Model, contexts: Contexts, path: Path) -> Float[Tensor, "t *runs"]:
    """Returns the relative norm of the part of dz/dt that the factorisation of E[g b b^T] drops, at each
    saved time, ``[t, *runs]``.

    Raises:
        ValueError: attention is not softmax, or the samples have several queries.
    """
    _check_softmax(model)
    if contexts.queries > 1:
        raise ValueError(f"contexts must have one query, got {contexts.queries}; select the samples of one")
    velocity, factor = model.velocity(path.states, contexts), 2 * model.ratio * model.attention.factor
    # By the factorisation dz/dt = (rho/T) (sum_k v_k o dv_k/dt - b sum_k v_k.dv_k/dt), with rho/T = 2 rho
    # kappa.
    work = factor * (path.states.lower * velocity.lower).sum(-2)
    remainder = velocity.logits[..., 0, :] - (
        work - work.sum(-1, keepdim=True) * mean_attention(model, contexts, path)
    )
    return remainder.norm(dim=-1) / velocity.logits[..., 0, :].norm(dim=-1)


def _terms(model: Model, contexts: Contexts, path: Path, query: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns rho kappa v^2, its sum over units and tokens, and the mean attention.

    The shapes are ``[t, *runs, K, M]``, ``[t, *runs, 1]`` and ``[t, *runs, M]``.
    """
    _check_softmax(model)
    squares = model.ratio * model.attention.factor * path.states.lower.square()
    return squares, squares.sum((-1, -2))[..., None], mean_attention(model, contexts, path, query=query)


def _check_softmax(model: Model) -> None:
    if not isinstance(model.attention, Softmax):
        name = type(model.attention).__name__.lower()
        raise ValueError(
            f"the mean attention enters the invariant of softmax attention only, got {name} attention; use "
            "first_term"
        )


@dataclass(frozen=True, eq=False)
class Fit:
    """Goodness of fit of a predicted change of the logits.

    Attributes:
        correlation: centred cosine over tokens (the paper's NC), in [-1, 1]; NaN if one of the two is
            constant.
        error: ||predicted - measured|| / ||measured||, both centred. 0 is perfect; predicting no change has
            error 1.
    """

    correlation: Float[Tensor, "*batch"]
    error: Float[Tensor, "*batch"]


@converted(float64=("predicted", "measured"))
def goodness_of_fit(predicted: Float[Tensor, "*#batch M"], measured: Float[Tensor, "*#batch M"]) -> Fit:
    """Compares changes of the logits over the last axis, up to an additive constant, which does not change a
    softmax.

    Args:
        predicted, measured: changes of the logits, ``[*batch, M]``, in shapes that broadcast.
    Returns:
        Correlation and relative error, ``[*batch]``; NaN where the measured change is the same for all
        tokens.
    """
    p, m = (x - x.mean(-1, keepdim=True) for x in (predicted, measured))
    size = m.norm(dim=-1)
    return Fit((p * m).sum(-1) / (p.norm(dim=-1) * size), (p - m).norm(dim=-1) / size)

r"""What training leaves alone: attention follows from the MLP's lower layer, so it can be integrated out.

Let only samples with query m move z and the :math:`v_k`, without momentum and weight decay, and let :math:`\rho = \eta_z / \eta_v`. Then,
for any activation and any loss, elementwise,

.. math::
    \text{linear: } z^2 - \rho \textstyle\sum_k v_k^2 = \text{const}, \qquad
    \text{exponential: } z - \tfrac{\rho}{2T} \textstyle\sum_k v_k^2 = \text{const},

exactly: for linear attention :math:`z \circ \dot z = \eta_z \sum_k v_k \circ E[g_k\, z \circ x] = \rho \sum_k v_k \circ \dot v_k`, for the
exponential one :math:`\dot z = \frac{\eta_z}{T} E[b \circ \sum_k g_k v_k] = \frac{\rho}{T} \sum_k v_k \circ \dot v_k`. For softmax

.. math:: \dot z = \tfrac{1}{T} \Big(\rho \sum_k v_k \circ \dot v_k - \eta_z \sum_k E[g_k\, b b^\top] v_k\Big),

and two approximations, :math:`E[g_k b b^\top] \approx \bar b\, E[g_k b]^\top` and a mean attention :math:`\bar b = E[b]` that stays, give

.. math:: \text{softmax: } z \approx \tfrac{\rho}{2T} \textstyle\sum_k (v_k^2 - \|v_k\|^2\, \bar b) + \text{const} .

The correlation of the two sides hides an error of their size, so :class:`Agreement` has both. Source: :cite:t:`tian2024joma`.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from .dynamics import Model, Path
from .forms import AttentionForm, Softmax
from .problem import Contexts

Logits = Float[Tensor, "*batch M"]
Lower = Float[Tensor, "*batch K M"]


def conserved(form: AttentionForm, logits: Logits, lower: Lower, *, ratio: float = 1.0) -> Logits:
    r"""The quantity :math:`\phi(z) - \rho \kappa \sum_k v_k^2` of each token: constant for linear and exponential attention.

    Args:
        form: the way of attending.
        logits: z of the one query, ``[*batch, M]``.
        lower: v, ``[*batch, K, M]``.
        ratio: eta_z / eta_v.
    Returns:
        ``[*batch, M]``.
    Source: :cite:t:`tian2024joma`.
    """
    return form.curve(logits) - ratio * form.factor * lower.square().sum(-2)


def drift(form: AttentionForm, path: Path, *, query: int = 0, ratio: float = 1.0) -> Float[Tensor, "*runs"]:
    """How far :func:`conserved` moves along a path, the largest over tokens and times, in units of phi(z).

    Source: :cite:t:`tian2024joma`.
    """
    kept = conserved(form, path.states.logits[..., query, :], path.states.lower, ratio=ratio)
    return (kept - kept[0]).abs().amax(-1).amax(0)


def first_term(form: AttentionForm, path: Path, *, ratio: float = 1.0) -> Float[Tensor, "t *runs M"]:
    """The change of rho kappa sum_k v_k^2: what the invariant of linear and exponential attention predicts for phi(z).

    Source: :cite:t:`tian2024joma`.
    """
    squares = ratio * form.factor * path.states.lower.square().sum(-2)
    return squares - squares[0]


def fixed_mean(model: Model, contexts: Contexts, path: Path, *, query: int = 0) -> Float[Tensor, "t *runs M"]:
    """The change of z that the paper's softmax invariant predicts, with the mean attention of the start.

    Args:
        model: with softmax attention.
        contexts, path: what was trained on, and the training.
        query: m.
    Returns:
        ``[t, *runs, M]``; sums to zero over tokens, as the change of z does.
    Raises:
        ValueError: attention is not softmax, or nobody asks with the query.
    Source: :cite:t:`tian2024joma`.
    """
    squares, total, mean = _terms(model, contexts, path, query)
    change = squares.sum(-2) - total * mean[0]
    return change - change[0]


def moving_mean(model: Model, contexts: Contexts, path: Path, *, query: int = 0) -> Float[Tensor, "t *runs M"]:
    """As :func:`fixed_mean` with the mean attention of each moment, by the trapezoidal rule over the states kept: keep many.

    What is left of the error is then due to the factorisation alone.

    Raises:
        ValueError: as :func:`fixed_mean`. Source: :cite:t:`tian2024joma`.
    """
    squares, total, mean = _terms(model, contexts, path, query)
    taken = ((total[1:] - total[:-1]) * (mean[1:] + mean[:-1]) / 2).cumsum(0)
    return squares.sum(-2) - squares[0].sum(-2) - torch.cat([torch.zeros_like(taken[:1]), taken])


def mean_attention(model: Model, contexts: Contexts, path: Path, *, query: int = 0) -> Float[Tensor, "t *runs M"]:
    """E[b] over the samples that ask with the query, at each time kept.

    Raises:
        ValueError: none asks with it. Source: :cite:t:`tian2024joma`.
    """
    asked = contexts.query == query
    if not bool(asked.any()):
        raise ValueError(f"query must be one that asks, in [0, {contexts.queries}), got {query}, which no sample asks with")
    return torch.stack([model.attend(path.at(t), contexts)[..., asked, :].mean(-2) for t in range(len(path.times))])


def unfactored(model: Model, contexts: Contexts, path: Path) -> Float[Tensor, "t *runs"]:
    """How much of dz/dt the factorisation of the gradient's second moment leaves out, relative, at each time kept; contexts of one query.

    Raises:
        ValueError: attention is not softmax, or there are several queries. Source: :cite:t:`tian2024joma`.
    """
    _softmax(model)
    if contexts.queries > 1:
        raise ValueError(f"contexts must have one query, got {contexts.queries}; take those of one")
    velocity, factor = model.velocity(path.states, contexts), 2 * model.ratio * model.attention.factor
    work = factor * (path.states.lower * velocity.lower).sum(-2)
    left = velocity.logits[..., 0, :] - (work - work.sum(-1, keepdim=True) * mean_attention(model, contexts, path))
    return left.norm(dim=-1) / velocity.logits[..., 0, :].norm(dim=-1)


def _terms(model: Model, contexts: Contexts, path: Path, query: int) -> tuple[Tensor, Tensor, Tensor]:
    """rho kappa v^2 ``[t, *runs, K, M]``, its sum over units and tokens ``[t, *runs, 1]``, and the mean attention ``[t, *runs, M]``."""
    _softmax(model)
    squares = model.ratio * model.attention.factor * path.states.lower.square()
    return squares, squares.sum((-1, -2))[..., None], mean_attention(model, contexts, path, query=query)


def _softmax(model: Model) -> None:
    if not isinstance(model.attention, Softmax):
        name = type(model.attention).__name__.lower()
        raise ValueError(f"the mean attention enters softmax attention's invariant, got {name} attention; first_term is that one's")


@dataclass(frozen=True, eq=False)
class Agreement:
    """How well a predicted change of the logits fits the true one.

    Attributes:
        correlation: centred cosine over tokens (the paper's NC), in [-1, 1]; NaN if one of them is constant.
        error: ||predicted - true|| / ||true||, both centred; 0 is perfect, 1 as bad as predicting no change.
    """

    correlation: Float[Tensor, "*batch"]
    error: Float[Tensor, "*batch"]


def agreement(predicted: Float[Tensor, "*#batch M"], true: Float[Tensor, "*#batch M"]) -> Agreement:
    """Compares changes over the last axis, up to a constant, which softmax does not see.

    Args:
        predicted, true: changes of the logits, ``[*batch, M]``, of shapes that broadcast.
    Returns:
        Correlation and relative error, ``[*batch]``; NaN where the true change is the same for all tokens.
    Source: :cite:t:`tian2024joma`.
    """
    p, t = (x - x.mean(-1, keepdim=True) for x in (predicted, true))
    size = t.norm(dim=-1)
    return Agreement((p * t).sum(-1) / (p.norm(dim=-1) * size), (p - t).norm(dim=-1) / size)

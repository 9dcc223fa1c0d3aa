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
from .forms import AttentionForm
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
    Source: :cite:t:`tian2024joma`.
    """
    squares = model.ratio * model.attention.factor * path.states.lower.square()
    total = squares.sum((-1, -2))[..., None]
    mean = mean_attention(model, contexts, path, query=query)
    change = squares.sum(-2) - total * mean[0]
    return change - change[0]


def moving_mean(model: Model, contexts: Contexts, path: Path, *, query: int = 0) -> Float[Tensor, "t *runs M"]:
    """As :func:`fixed_mean` with the mean attention of each moment, by the trapezoidal rule over the states kept: keep many.

    What is left of the error is then due to the factorisation alone. Source: :cite:t:`tian2024joma`.
    """
    squares = model.ratio * model.attention.factor * path.states.lower.square()
    total = squares.sum((-1, -2))[..., None]
    mean = mean_attention(model, contexts, path, query=query)
    taken = ((total[1:] - total[:-1]) * (mean[1:] + mean[:-1]) / 2).cumsum(0)
    return squares.sum(-2) - squares[0].sum(-2) - torch.cat([torch.zeros_like(taken[:1]), taken])


def mean_attention(model: Model, contexts: Contexts, path: Path, *, query: int = 0) -> Float[Tensor, "t *runs M"]:
    """E[b] over the samples that ask with the query, at each time kept. Source: :cite:t:`tian2024joma`."""
    asked = contexts.query == query
    return torch.stack([model.attend(path.at(t), contexts)[..., asked, :].mean(-2) for t in range(len(path.times))])


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
    """Compares changes over the last axis, up to a constant, which softmax does not see. Source: :cite:t:`tian2024joma`."""
    p, t = (x - x.mean(-1, keepdim=True) for x in (predicted, true))
    size = t.norm(dim=-1)
    return Agreement((p * t).sum(-1) / (p.norm(dim=-1) * size), (p - t).norm(dim=-1) / size)

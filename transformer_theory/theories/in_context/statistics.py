r"""Transformers of ReLU attention that run statistical algorithms on the examples of their prompt.

A layer is :math:`h_i \mathrel{+}= \tfrac{1}{N+1} \sum_{\text{heads}} \sum_j \mathrm{ReLU}(\langle Q h_i, K
h_j \rangle) V h_j` over all N + 1 tokens, then an MLP. Tokens are :math:`h = [x; y; \hat w; 1; t]` with t = 1
for examples and 0 for the query; all carry the same estimate.

* Residuals: :math:`\mathrm{ReLU}(r_j) - \mathrm{ReLU}(-r_j) = r_j` by two heads with :math:`r_j = \langle
  \hat w, x_j \rangle - y_j`; the term :math:`-R (1 - t_j)` in the scores removes the query, for an R above
  all scores. Their values carry (N + 1)/N, so that the mean runs over the examples.
* Ridge: a third head, whose score is 1, subtracts :math:`\eta \lambda \hat w`. With :math:`\eta = 1/(\beta +
  \lambda)`, L layers are within :math:`(1 - 1/\kappa)^L \|w_\lambda\|` of ridge, :math:`\kappa = (\beta +
  \lambda)/(\alpha + \lambda)`; :math:`\alpha, \beta` are the extreme eigenvalues of :math:`X^\top X / N`.
* Lasso: the MLP replaces :math:`\hat w` by :math:`\mathrm{ReLU}(\hat w - \eta\lambda) - \mathrm{ReLU}(-\hat w
  - \eta\lambda)` (ISTA).
* Logistic regression: M heads hold the link as a sum of ReLUs, which interpolates it linearly between knots.
* Model selection: K such transformers run on one part of the examples, and a softmax of minus their losses on
  the other part weighs them.

Source: :cite:t:`bai2023transformers`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ...core.validation import full_precision, in_range, integers, positive
from .descent import Head
from .prompts import Prompts

Estimates = tuple[Float[Tensor, "n d"], Float[Tensor, " n"]]
# removes the query's token from the sums: larger than any score, and multiplied by zero in the examples
R = 1e100
KNOTS = 33  # of the logistic link, on [-LINK_RANGE, LINK_RANGE]
LINK_RANGE = 8.0


@dataclass(frozen=True, eq=False)
class Slots:
    """Places of x, y, w, 1 and t in a token, of width 2 d + 3."""

    d: int

    @property
    def width(self) -> int:
        """Width of the tokens."""
        return 2 * self.d + 3

    def tokens(self, prompts: Prompts) -> Float[Tensor, "n tokens width"]:
        """Returns the tokens of the prompts with w = 0, ``[n, N + 1, 2 d + 3]``."""
        n, N, d = prompts.x.shape
        tokens = torch.zeros(n, N + 1, self.width, dtype=torch.float64)
        tokens[:, :N, :d], tokens[:, N, :d], tokens[:, :N, d] = prompts.x, prompts.query, prompts.y
        tokens[:, :, -2], tokens[:, :N, -1] = 1.0, 1.0
        return tokens

    def matrix(self, *blocks: tuple[str, str, float]) -> Float[Tensor, "width width"]:
        """Returns a matrix that copies slots: ``(to, from, factor)`` with the names x, y, w, one and t; their
        widths must agree.
        """
        places = {
            "x": range(self.d),
            "y": [self.d],
            "w": range(self.d + 1, 2 * self.d + 1),
            "one": [-2],
            "t": [-1],
        }
        matrix = torch.zeros(self.width, self.width, dtype=torch.float64)
        for to, source, factor in blocks:
            for row, column in zip(places[to], places[source], strict=True):
                matrix[row, column] += factor
        return matrix


def residual_heads(slots: Slots, eta: float, N: int) -> tuple[Head, Head]:
    """Returns the two heads that subtract eta times the mean of r_j x_j over the examples from w."""
    key = slots.matrix(("x", "x", 1.0), ("y", "y", 1.0), ("t", "one", 1.0), ("t", "t", -1.0))  # (x, y, 1 - t)
    heads = []
    for sign in (1.0, -1.0):
        query = slots.matrix(("x", "w", sign), ("y", "one", -sign), ("t", "one", -R))
        heads.append(Head(query, key, slots.matrix(("w", "x", -sign * eta * (N + 1) / N)), relu=True))
    return heads[0], heads[1]


def decay_head(slots: Slots, eta: float, strength: float) -> Head:
    """Returns the head whose score is 1 and that subtracts eta lambda w from w."""
    one = slots.matrix(("one", "one", 1.0))
    return Head(one, one, slots.matrix(("w", "w", -eta * strength)), relu=True)


def link_heads(slots: Slots, eta: float, N: int, knots: Float[Tensor, " m"]) -> tuple[Head, ...]:
    """Returns the heads of a step of logistic regression, whose link is interpolated between knots ``[m]``.

    The link is :math:`\\sum_m c_m \\mathrm{ReLU}(u - u_m)` plus a constant; one head per knot, one for the
    constant, one for the labels 0 and 1.
    """
    values = torch.sigmoid(knots)
    slopes = torch.diff(values) / torch.diff(knots)
    changes = torch.cat([slopes[:1], torch.diff(slopes), -slopes[-1:]])  # the last knot ends the slope
    key = slots.matrix(("x", "x", 1.0), ("one", "one", 1.0), ("t", "one", 1.0), ("t", "t", -1.0))
    factor = eta * (N + 1) / N
    heads = []
    for knot, change in zip(knots, changes):
        query = slots.matrix(("x", "w", 1.0), ("one", "one", -float(knot)), ("t", "one", -R))
        heads.append(Head(query, key, slots.matrix(("w", "x", -factor * float(change))), relu=True))
    only = slots.matrix(("one", "one", 1.0), ("t", "one", -R))  # score 1 for examples, 0 for the query
    heads.append(Head(only, key, slots.matrix(("w", "x", -factor * float(values[0]))), relu=True))
    label = slots.matrix(("y", "one", 1.0), ("t", "one", -R))
    keys = slots.matrix(("y", "y", 1.0), ("t", "one", 1.0), ("t", "t", -1.0))
    return (*heads, Head(label, keys, slots.matrix(("w", "x", factor)), relu=True))


def soft_threshold(
    tokens: Float[Tensor, "n tokens width"], slots: Slots, threshold: float
) -> Float[Tensor, "n tokens width"]:
    """Computes the MLP of the lasso, ``h + W2 ReLU(W1 h)``, which replaces w by its soft threshold, ``[n,
    tokens, width]``.
    """
    hidden, out, bias = [], [], torch.zeros(slots.width, slots.width, dtype=torch.float64)
    bias[slots.d + 1 : 2 * slots.d + 1, -2] = -threshold
    for sign in (1.0, -1.0):
        copy = slots.matrix(("w", "w", sign))
        hidden += [copy + bias, copy]  # soft threshold minus w = relu(w) - relu(-w)
        out += [copy, -copy]
    return tokens + torch.relu(tokens @ torch.cat(hidden).mT) @ torch.cat(out, dim=1).mT


def run(
    prompts: Prompts, heads: Sequence[Head], layers: int, mlp: Callable[[Tensor], Tensor] | None = None
) -> Estimates:
    """Runs equal layers and returns the estimates w that the query's token carries, ``[n, d]``, and the
    answers, ``[n]``.

    Raises:
        ValueError: there is no layer, or the answers grow without bound.
    """
    integers(layers=layers)
    slots = Slots(prompts.x.shape[2])
    tokens = slots.tokens(prompts)
    for _ in range(layers):
        tokens = tokens + torch.stack([head(tokens) for head in heads]).sum(0) / tokens.shape[1]
        tokens = tokens if mlp is None else mlp(tokens)
        w = tokens[:, -1, slots.d + 1 : 2 * slots.d + 1]
        answers = (prompts.query * w).sum(1)
        if not bool((answers.abs() < R / 2).all()):
            raise ValueError(
                f"expected answers below {R / 2:g}, got {float(answers.abs().max()):g}; take a smaller step"
            )
    return w, answers


def extreme_eigenvalues(prompts: Prompts) -> tuple[float, float]:
    """Returns the smallest and the largest eigenvalue of X^T X / N over all prompts."""
    values = torch.linalg.eigvalsh(prompts.x.mT @ prompts.x / prompts.x.shape[1])
    return float(values.min()), float(values.max())


def step_size(prompts: Prompts, strength: float, eta: float | None) -> float:
    """Returns eta, or 1/(beta + strength) for None, where beta is the largest eigenvalue of all prompts.

    Raises:
        ValueError: descent diverges with this eta, or all inputs are zero.
    """
    largest = extreme_eigenvalues(prompts)[1] + strength
    if not largest > 0:
        raise ValueError("expected inputs that are not zero, got zeros only; pass other prompts")
    eta = 1 / largest if eta is None else eta
    if not 0 < eta * largest <= 2:
        raise ValueError(
            f"expected a step eta in (0, {2 / largest:.4g}], where descent does not diverge, got {eta}; "
            "pass None for 1/beta"
        )
    return eta


@in_range
@full_precision
def ridge_transformer(
    prompts: Prompts, strength: float, layers: int, *, eta: float | None = None
) -> Estimates:
    """Runs ridge by three heads. Returns estimates ``[n, d]`` and answers ``[n]``, see :func:`run`.

    The step eta is a weight of the network. It is 1/(beta + lambda) by default, with the largest eigenvalue
    beta of *all* prompts, so that the answers of few layers to one prompt depend on the others.

    Raises:
        ValueError: a number is out of range, or descent diverges with this step.
    """
    positive(strength=strength)
    eta, slots = step_size(prompts, strength, eta), Slots(prompts.x.shape[2])
    return run(
        prompts, (*residual_heads(slots, eta, prompts.x.shape[1]), decay_head(slots, eta, strength)), layers
    )


@in_range
@full_precision
def lasso_transformer(
    prompts: Prompts, strength: float, layers: int, *, eta: float | None = None
) -> Estimates:
    """Runs the lasso by two heads and an MLP; eta is 1/beta by default, for the rest see
    :func:`ridge_transformer`.
    """
    positive(strength=strength)
    eta, slots = step_size(prompts, 0.0, eta), Slots(prompts.x.shape[2])
    return run(
        prompts,
        residual_heads(slots, eta, prompts.x.shape[1]),
        layers,
        partial(soft_threshold, slots=slots, threshold=eta * strength),
    )


@in_range
@full_precision
def logistic_transformer(prompts: Prompts, eta: float, layers: int, *, knots: int = KNOTS) -> Estimates:
    """Runs descent with the step eta on the logistic loss of labels 0 and 1. Returns estimates ``[n, d]`` and
    scores ``[n]``.

    Raises:
        ValueError: a label is neither 0 nor 1, or a number is out of range.
    """
    integers(knots=knots, minimum=2)
    positive(eta=eta)
    if not bool(((prompts.y == 0) | (prompts.y == 1)).all()):
        raise ValueError("expected labels y of 0 and 1, got others; pass (y > 0).double()")
    places = torch.linspace(-LINK_RANGE, LINK_RANGE, knots, dtype=torch.float64)
    return run(prompts, link_heads(Slots(prompts.x.shape[2]), eta, prompts.x.shape[1], places), layers)


def link_error(knots: int = KNOTS) -> float:
    """Computes the largest error of the interpolated logistic link on the whole line."""
    from scipy.special import expit

    places, u = (
        np.linspace(-reach, reach, points)
        for reach, points in ((LINK_RANGE, knots), (3 * LINK_RANGE, 60 * knots + 1))
    )
    return float(np.abs(np.interp(u, places, expit(places)) - expit(u)).max())


@in_range
def select(
    prompts: Prompts, strengths: Sequence[float], *, layers: int = 100, held_out: int, temperature: float
) -> tuple[Float[Tensor, "n k"], Float[Tensor, "n k"], Float[Tensor, "n k"]]:
    """Runs layers of ridge with several strengths on the first examples and weighs them by their losses on
    the last ``held_out`` ones.

    Few layers are far from ridge where a strength is small beside the eigenvalues of X^T X / N.

    Returns:
        Weights of the strengths, ``[n, k]``, their losses (half the mean squared error on the held-out
        examples), and their answers.
    Raises:
        ValueError: there is no strength, no example is left on one side, or a number is out of range.
    """
    N = prompts.x.shape[1]
    positive(temperature=temperature)
    integers(held_out=held_out)
    if held_out >= N:
        raise ValueError(f"held_out must leave examples on both sides, between 1 and {N - 1}, got {held_out}")
    if not len(strengths):
        raise ValueError("expected at least one strength, got none; pass e.g. (0.01, 0.1)")
    cut = N - held_out
    training = replace(prompts, x=prompts.x[:, :cut], y=prompts.y[:, :cut])
    estimates, answers = zip(*(ridge_transformer(training, strength, layers) for strength in strengths))
    errors = (
        torch.einsum("njd,knd->nkj", prompts.x[:, cut:], torch.stack(estimates)) - prompts.y[:, None, cut:]
    )
    losses = errors.square().mean(-1) / 2
    return (-losses / temperature).softmax(1), losses, torch.stack(answers, dim=1)

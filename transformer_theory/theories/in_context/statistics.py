r"""Transformers of ReLU attention that run statistical algorithms on the examples of their prompt.

A layer is :math:`h_i \mathrel{+}= \tfrac{1}{N+1} \sum_{\text{heads}} \sum_j \mathrm{ReLU}(\langle Q h_i, K h_j \rangle) V h_j` over all N +
1 tokens, then an MLP. Tokens are :math:`h = [x; y; \hat w; 1; t]` with t = 1 for examples and 0 for the query; all carry the same estimate.

* Residuals: :math:`\mathrm{ReLU}(r_j) - \mathrm{ReLU}(-r_j) = r_j` by two heads with :math:`r_j = \langle \hat w, x_j \rangle - y_j`; the
  term :math:`-R (1 - t_j)` in the scores removes the query. Their values carry (N + 1)/N, so that the mean runs over the examples.
* Ridge: a third head, whose score is 1, subtracts :math:`\eta \lambda \hat w`. With :math:`\eta = 1/(\beta + \lambda)`, L layers are within
  :math:`(1 - 1/\kappa)^L \|w_\lambda\|` of ridge, :math:`\kappa = (\beta + \lambda)/(\alpha + \lambda)`; :math:`\alpha, \beta` are the
  extreme eigenvalues of :math:`X^\top X / N`.
* Lasso: the MLP replaces :math:`\hat w` by :math:`\mathrm{ReLU}(\hat w - \eta\lambda) - \mathrm{ReLU}(-\hat w - \eta\lambda)` (ISTA).
* Logistic regression: M heads hold the link as a sum of ReLUs, which interpolates it linearly between knots.
* Model selection: K such transformers run on one part of the examples, and a softmax of minus their losses on the other part weighs them.

Source: :cite:t:`bai2023transformers`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ...core.validation import integers, positive
from .prompts import Prompts

Matrix = Float[Tensor, "rows width"]
R = 1e6  # removes the query's token from the sums; larger than any residual
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
        """Returns a matrix that copies slots: ``(to, from, factor)`` with the names x, y, w, one and t; their widths must agree."""
        places = {"x": range(self.d), "y": [self.d], "w": range(self.d + 1, 2 * self.d + 1), "one": [-2], "t": [-1]}
        matrix = torch.zeros(self.width, self.width, dtype=torch.float64)
        for to, source, factor in blocks:
            for row, column in zip(places[to], places[source], strict=True):
                matrix[row, column] += factor
        return matrix


@dataclass(frozen=True, eq=False)
class ReluHead:
    """A head of ReLU attention with matrices ``[width, width]``."""

    Q: Matrix
    K: Matrix
    V: Matrix

    def __call__(self, tokens: Float[Tensor, "n tokens width"]) -> Float[Tensor, "n tokens width"]:
        """Returns what the head adds to each token, ``[n, tokens, width]``."""
        scores = (tokens @ self.Q.mT) @ (tokens @ self.K.mT).mT
        return torch.relu(scores) @ (tokens @ self.V.mT) / tokens.shape[1]


def residual_heads(slots: Slots, eta: float, N: int) -> tuple[ReluHead, ReluHead]:
    """Returns the two heads that subtract eta times the mean of r_j x_j over the examples from w."""
    key = slots.matrix(("x", "x", 1.0), ("y", "y", 1.0), ("t", "one", 1.0), ("t", "t", -1.0))  # (x, y, 1 - t)
    heads = []
    for sign in (1.0, -1.0):
        query = slots.matrix(("x", "w", sign), ("y", "one", -sign), ("t", "one", -R))
        heads.append(ReluHead(query, key, slots.matrix(("w", "x", -sign * eta * (N + 1) / N))))
    return heads[0], heads[1]


def decay_head(slots: Slots, eta: float, strength: float) -> ReluHead:
    """Returns the head whose score is 1 and that subtracts eta lambda w from w."""
    one = slots.matrix(("one", "one", 1.0))
    return ReluHead(one, one, slots.matrix(("w", "w", -eta * strength)))


def link_heads(slots: Slots, eta: float, N: int, knots: Float[Tensor, " m"]) -> tuple[ReluHead, ...]:
    """Returns the heads of a step of logistic regression, whose link is interpolated between knots ``[m]``.

    The link is :math:`\\sum_m c_m \\mathrm{ReLU}(u - u_m)` plus a constant; one head per knot, one for the constant, one for the labels 0
    and 1.
    """
    values = torch.sigmoid(knots)
    slopes = torch.diff(values) / torch.diff(knots)
    changes = torch.cat([slopes[:1], torch.diff(slopes), -slopes[-1:]])  # the last knot ends the slope
    key = slots.matrix(("x", "x", 1.0), ("one", "one", 1.0), ("t", "one", 1.0), ("t", "t", -1.0))
    factor = eta * (N + 1) / N
    heads = [
        ReluHead(
            slots.matrix(("x", "w", 1.0), ("one", "one", -float(knot)), ("t", "one", -R)),
            key,
            slots.matrix(("w", "x", -factor * float(change))),
        )
        for knot, change in zip(knots, changes)
    ]
    only = slots.matrix(("one", "one", 1.0), ("t", "one", -R))  # score 1 for examples, 0 for the query
    heads.append(ReluHead(only, key, slots.matrix(("w", "x", -factor * float(values[0])))))
    label = slots.matrix(("y", "one", 1.0), ("t", "one", -R))
    keys = slots.matrix(("y", "y", 1.0), ("t", "one", 1.0), ("t", "t", -1.0))
    return (*heads, ReluHead(label, keys, slots.matrix(("w", "x", factor))))


@dataclass(frozen=True, eq=False)
class SoftThreshold:
    """The MLP of the lasso: replaces w by its soft threshold, ``h + W2 ReLU(W1 h)``."""

    slots: Slots
    threshold: float

    def __call__(self, tokens: Float[Tensor, "n tokens width"]) -> Float[Tensor, "n tokens width"]:
        """Returns the tokens after the MLP, ``[n, tokens, width]``."""
        hidden, out = [], []
        for sign in (1.0, -1.0):
            copy, bias = self.slots.matrix(("w", "w", sign)), torch.zeros(self.slots.width, self.slots.width, dtype=torch.float64)
            bias[self.slots.d + 1 : 2 * self.slots.d + 1, -2] = -self.threshold
            hidden += [copy + bias, copy]  # soft threshold minus w = relu(w) - relu(-w)
            out += [self.slots.matrix(("w", "w", sign)), self.slots.matrix(("w", "w", -sign))]
        return tokens + torch.relu(tokens @ torch.cat(hidden).mT) @ torch.cat(out, dim=1).mT


def run(
    prompts: Prompts, heads: Sequence[ReluHead], layers: int, mlp: SoftThreshold | None = None
) -> tuple[Float[Tensor, "n d"], Float[Tensor, " n"]]:
    """Runs equal layers and returns the estimates w that the query's token carries, ``[n, d]``, and the answers, ``[n]``."""
    integers(layers=layers)
    slots = Slots(prompts.x.shape[2])
    tokens = slots.tokens(prompts)
    for _ in range(layers):
        tokens = tokens + torch.stack([head(tokens) for head in heads]).sum(0)
        tokens = tokens if mlp is None else mlp(tokens)
    w = tokens[:, -1, slots.d + 1 : 2 * slots.d + 1]
    return w, (prompts.query * w).sum(1)


def extreme_eigenvalues(prompts: Prompts) -> tuple[float, float]:
    """Returns the smallest and the largest eigenvalue of X^T X / N over all prompts."""
    values = torch.linalg.eigvalsh(prompts.x.mT @ prompts.x / prompts.x.shape[1])
    return float(values.min()), float(values.max())


def ridge_transformer(
    prompts: Prompts, strength: float, layers: int, *, eta: float | None = None
) -> tuple[Float[Tensor, "n d"], Float[Tensor, " n"]]:
    """Runs ridge by three heads; eta defaults to 1/(beta + lambda). Returns estimates ``[n, d]`` and answers ``[n]``, see :func:`run`."""
    positive(strength=strength)
    N, d = prompts.x.shape[1:]
    eta = 1 / (extreme_eigenvalues(prompts)[1] + strength) if eta is None else eta
    slots = Slots(d)
    return run(prompts, (*residual_heads(slots, eta, N), decay_head(slots, eta, strength)), layers)


def lasso_transformer(prompts: Prompts, strength: float, layers: int) -> tuple[Float[Tensor, "n d"], Float[Tensor, " n"]]:
    """Runs the lasso by two heads and an MLP with the step 1/beta. Returns estimates ``[n, d]`` and answers ``[n]``, see :func:`run`."""
    positive(strength=strength)
    N, d = prompts.x.shape[1:]
    eta, slots = 1 / extreme_eigenvalues(prompts)[1], Slots(d)
    return run(prompts, residual_heads(slots, eta, N), layers, SoftThreshold(slots, eta * strength))


def logistic_transformer(
    prompts: Prompts, eta: float, layers: int, *, knots: int = KNOTS
) -> tuple[Float[Tensor, "n d"], Float[Tensor, " n"]]:
    """Runs descent on the logistic loss of labels 0 and 1. Returns estimates ``[n, d]`` and scores ``[n]``, see :func:`run`."""
    integers(knots=knots, minimum=2)
    places = torch.linspace(-LINK_RANGE, LINK_RANGE, knots, dtype=torch.float64)
    return run(prompts, link_heads(Slots(prompts.x.shape[2]), eta, prompts.x.shape[1], places), layers)


def link_error(knots: int = KNOTS) -> float:
    """Computes the largest error of the interpolated logistic link on the whole line."""
    places = torch.linspace(-LINK_RANGE, LINK_RANGE, knots, dtype=torch.float64)
    u = torch.linspace(-LINK_RANGE, LINK_RANGE, 20 * knots + 1, dtype=torch.float64)
    right = torch.searchsorted(places, u).clamp(1, knots - 1)
    low, high = places[right - 1], places[right]
    line = torch.sigmoid(low) + (u - low) / (high - low) * (torch.sigmoid(high) - torch.sigmoid(low))
    return max(float((line - torch.sigmoid(u)).abs().max()), float(torch.sigmoid(places[0])))


def select(
    prompts: Prompts, strengths: Sequence[float], *, layers: int = 100, held_out: int, temperature: float
) -> tuple[Float[Tensor, "n k"], Float[Tensor, "n k"], Float[Tensor, "n k"]]:
    """Runs ridge with several strengths on the first examples and weighs them by their losses on the last ``held_out`` ones.

    Returns:
        Weights of the strengths, ``[n, k]``, their losses (half the mean squared error on the held-out examples), and their answers.
    Raises:
        ValueError: no example is left on one side, or a number is out of range.
    """
    N = prompts.x.shape[1]
    positive(temperature=temperature)
    if not 1 <= held_out < N:
        raise ValueError(f"held_out must leave examples on both sides, between 1 and {N - 1}, got {held_out}")
    cut = N - held_out
    training = Prompts(prompts.x[:, :cut], prompts.y[:, :cut], prompts.query, prompts.target)
    estimates, answers = zip(*(ridge_transformer(training, strength, layers) for strength in strengths))
    errors = torch.einsum("njd,knd->nkj", prompts.x[:, cut:], torch.stack(estimates)) - prompts.y[:, None, cut:]
    losses = errors.square().mean(-1) / 2
    return (-losses / temperature).softmax(1), losses, torch.stack(answers, dim=1)


def selection_slack(temperature: float, candidates: int) -> float:
    """Computes gamma log K, by which the loss of the weighted answer may exceed the best candidate's."""
    return temperature * math.log(candidates)

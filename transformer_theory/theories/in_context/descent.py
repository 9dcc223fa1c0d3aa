r"""Linear attention whose layers are steps of gradient descent on the prompt's own least-squares problem.

Tokens are :math:`e_j = (x_j, y_j)`, and the query's is :math:`(x, -W_0 x)`. With :math:`W_K = W_Q =
\operatorname{diag}(I_x, 0)`, :math:`W_V = \begin{pmatrix} 0 & 0 \\ W_0 & -I \end{pmatrix}` and :math:`P =
\tfrac{\eta}{N} I`, the layer :math:`e \mathrel{+}= P \sum_j W_V e_j (W_K e_j)^\top W_Q e` (the code holds
:math:`V = P W_V`) over the N examples subtracts :math:`\Delta W x` from y, where
:math:`\Delta W = -\tfrac{\eta}{N} \sum_j (W_0 x_j - y_j) x_j^\top` is a step of descent on
:math:`\tfrac{1}{2N} \sum_j \|W x_j - y_j\|^2`. L layers are L steps, and the answer is minus the query's y.

A second head with values :math:`-\tfrac{\gamma}{N} x_j` changes the inputs as well, :math:`x \leftarrow (I -
\gamma S) x` with :math:`S = \tfrac1N \sum_j x_j x_j^\top` ("GD++"). In an eigendirection of S with eigenvalue
:math:`\lambda_0` the error after L layers is then
:math:`\prod_l (1 - \eta \lambda_l)`, with :math:`\lambda_{l+1} = \lambda_l (1 - \gamma \lambda_l)^2`.
Source: :cite:t:`vonoswald2023transformers`; the product is the library's own.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ...core.validation import finite, integers, number, positive
from .prompts import Prompts


@dataclass(frozen=True, eq=False)
class Head:
    """A head of attention without softmax: token i receives the sum over keys j of f(<Q h_i, K h_j>) V h_j.

    Attributes:
        Q, K, V: matrices ``[width, width]``.
        relu: whether f is ReLU; otherwise it is the identity.
    """

    Q: Float[Tensor, "width width"]
    K: Float[Tensor, "width width"]
    V: Float[Tensor, "width width"]
    relu: bool = False

    def __call__(
        self, tokens: Float[Tensor, "n tokens width"], examples: int | None = None
    ) -> Float[Tensor, "n tokens width"]:
        """Returns what the head adds to each token, ``[n, tokens, width]``; its keys are the first
        ``examples`` tokens, or all.
        """
        keys = tokens[:, :examples]
        scores = (tokens @ self.Q.mT) @ (keys @ self.K.mT).mT
        return (torch.relu(scores) if self.relu else scores) @ (keys @ self.V.mT)


@dataclass(frozen=True, eq=False)
class LinearAttentionGD:
    """A stack of linear attention that takes one step of descent per layer.

    Attributes:
        eta: step size.
        steps: number of layers.
        gamma: step of the head that changes the inputs (GD++); 0: plain descent.
        initial: weights W_0 before the first step of plain descent, ``[d]``. None: zero.

    Raises:
        ValueError: there is no step, a number is out of range, or the initial weights have another length or
            stand beside GD++.
    """

    eta: float
    steps: int = 1
    gamma: float = 0.0
    initial: Float[Tensor, " d"] | None = None

    def __post_init__(self):
        integers(steps=self.steps)
        positive(eta=self.eta)
        if not 0 <= number("gamma", self.gamma) < math.inf:
            raise ValueError(f"gamma must be a step of at least 0, got {self.gamma}")
        if self.initial is not None:
            finite(initial=self.initial)
            if self.gamma:  # the values W_0 x - y would hold inputs that the second head has changed
                raise ValueError(
                    "expected zero initial weights with gamma > 0, got others; pass labels y - W_0 x and "
                    "add W_0 x"
                )

    def heads(self, d: int, N: int) -> tuple[Head, ...]:
        """Returns the heads of a layer for inputs ``[d]`` and N examples; all layers are equal."""
        inputs, label = (
            torch.zeros(d + 1, d + 1, dtype=torch.float64),
            torch.zeros(d + 1, d + 1, dtype=torch.float64),
        )
        inputs[:d, :d], label[d, d] = torch.eye(d, dtype=torch.float64), -1.0
        if self.initial is not None:
            if self.initial.shape != (d,):
                raise ValueError(
                    f"expected initial weights [{d}], got {list(self.initial.shape)}; pass one for each "
                    "coordinate"
                )
            label[d, :d] = self.initial
        descent = Head(inputs, inputs, self.eta / N * label)
        return (descent, Head(inputs, inputs, -self.gamma / N * inputs)) if self.gamma else (descent,)

    def __call__(self, prompts: Prompts) -> Float[Tensor, " n"]:
        """Answers the queries of prompts in float64, ``[n]``; raises :class:`ValueError` if descent diverges
        beyond float64.
        """
        N, d = prompts.x.shape[1:]
        heads = self.heads(d, N)
        W = torch.zeros(d, dtype=torch.float64) if self.initial is None else self.initial.double()
        tokens = prompts.tokens(torch.float64)
        tokens[:, -1, -1] = -(prompts.query @ W)
        for _ in range(self.steps):
            tokens = tokens + torch.stack([head(tokens, N) for head in heads]).sum(0)
        if not bool(tokens.isfinite().all()):
            raise ValueError(
                f"expected a step with finite answers, got eta = {self.eta}, which diverges; take a smaller "
                "one"
            )
        return -tokens[:, -1, -1]


def plus_plus_answers(prompts: Prompts, eta: float, gamma: float, steps: int) -> Float[Tensor, " n"]:
    """Computes the answers of GD++ from the eigenvalues of S, without attention, for prompts without noise,
    ``[n]``.
    """
    S = prompts.x.mT @ prompts.x / prompts.x.shape[1]
    eigenvalues, vectors = torch.linalg.eigh(S)
    left, value = torch.ones_like(eigenvalues), eigenvalues
    for _ in range(steps):
        left, value = left * (1 - eta * value), value * (1 - gamma * value).square()
    # Without noise b = S w, so that (1 - left) / eigenvalue acts on the coordinates of b.
    coordinates = torch.einsum("nde,nd->ne", vectors, prompts.moment) * (1 - left) / eigenvalues
    return torch.einsum("nde,ne,nd->n", vectors, coordinates, prompts.query)

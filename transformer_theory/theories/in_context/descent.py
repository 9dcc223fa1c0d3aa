r"""Linear attention whose layers are steps of gradient descent on the prompt's own least-squares problem.

Tokens are :math:`e_j = (x_j, y_j)`, and the query's is :math:`(x, -W_0 x)`. With :math:`W_K = W_Q = \operatorname{diag}(I_x, 0)`,
:math:`W_V = \begin{pmatrix} 0 & 0 \\ W_0 & -I \end{pmatrix}` and :math:`P = \tfrac{\eta}{N} I`, the layer :math:`e \mathrel{+}= P \sum_j
W_V e_j (W_K e_j)^\top W_Q e` over the N examples subtracts :math:`\Delta W x` from y, where :math:`\Delta W = -\tfrac{\eta}{N} \sum_j (W_0
x_j - y_j) x_j^\top` is a step of descent on :math:`\tfrac{1}{2N} \sum_j \|W x_j - y_j\|^2`. L layers are L steps, and the answer is minus
the query's y.

A second head with values :math:`-\tfrac{\gamma}{N} x_j` changes the inputs as well, :math:`x \leftarrow (I - \gamma S) x` with :math:`S =
\tfrac1N \sum_j x_j x_j^\top` ("GD++"). In an eigendirection of S with eigenvalue :math:`\lambda_0` the error after L layers is then
:math:`\prod_l (1 - \eta \lambda_l)`, with :math:`\lambda_{l+1} = \lambda_l (1 - \gamma \lambda_l)^2`.
Source: :cite:t:`vonoswald2023transformers`; the product is the library's own.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ...core.validation import integers
from .prompts import Prompts


@dataclass(frozen=True, eq=False)
class LinearHead:
    """One head of linear attention, ``e += P sum_j (W_V e_j)(W_K e_j)^T W_Q e``.

    Attributes:
        W_Q, W_K, W_V, P: matrices ``[width, width]``.
    """

    W_Q: Float[Tensor, "width width"]
    W_K: Float[Tensor, "width width"]
    W_V: Float[Tensor, "width width"]
    P: Float[Tensor, "width width"]

    def __call__(self, tokens: Float[Tensor, "n tokens width"], examples: int) -> Float[Tensor, "n tokens width"]:
        """Returns what the head adds to each token, ``[n, tokens, width]``; its keys are the first ``examples`` tokens."""
        keys = tokens[:, :examples]
        scores = (tokens @ self.W_Q.mT) @ (keys @ self.W_K.mT).mT
        return scores @ (keys @ self.W_V.mT) @ self.P.mT


@dataclass(frozen=True, eq=False)
class LinearAttentionGD:
    """A stack of linear attention that takes one step of descent per layer.

    Attributes:
        eta: step size.
        steps: number of layers.
        gamma: step of the head that changes the inputs (GD++); 0: plain descent.
        initial: weights W_0 before the first step, ``[d]``. None: zero.

    Raises:
        ValueError: there is no step.
    """

    eta: float
    steps: int = 1
    gamma: float = 0.0
    initial: Float[Tensor, " d"] | None = None

    def __post_init__(self):
        integers(steps=self.steps)

    def heads(self, d: int, N: int) -> tuple[LinearHead, ...]:
        """Returns the heads of a layer for inputs ``[d]`` and N examples; all layers are equal."""
        inputs, label = torch.zeros(d + 1, d + 1, dtype=torch.float64), torch.zeros(d + 1, d + 1, dtype=torch.float64)
        inputs[:d, :d], label[d, d] = torch.eye(d, dtype=torch.float64), -1.0
        if self.initial is not None:
            label[d, :d] = self.initial
        eye = torch.eye(d + 1, dtype=torch.float64)
        descent = LinearHead(inputs, inputs, label, self.eta / N * eye)
        return (descent, LinearHead(inputs, inputs, -inputs, self.gamma / N * eye)) if self.gamma else (descent,)

    def __call__(self, prompts: Prompts) -> Float[Tensor, " n"]:
        """Answers the queries of prompts in float64, ``[n]``."""
        N, d = prompts.x.shape[1:]
        W = torch.zeros(d, dtype=torch.float64) if self.initial is None else self.initial
        examples = torch.cat([prompts.x, prompts.y[..., None]], dim=-1)
        query = torch.cat([prompts.query, -(prompts.query @ W)[:, None]], dim=-1)
        tokens = torch.cat([examples, query[:, None]], dim=1)
        heads = self.heads(d, N)
        for _ in range(self.steps):
            tokens = tokens + torch.stack([head(tokens, N) for head in heads]).sum(0)
        return -tokens[:, -1, -1]


def plus_plus_answers(prompts: Prompts, eta: float, gamma: float, steps: int) -> Float[Tensor, " n"]:
    """Computes the answers of GD++ from the eigenvalues of S, without attention, for prompts without noise, ``[n]``."""
    S = prompts.x.mT @ prompts.x / prompts.x.shape[1]
    eigenvalues, vectors = torch.linalg.eigh(S)
    left, value = torch.ones_like(eigenvalues), eigenvalues
    for _ in range(steps):
        left, value = left * (1 - eta * value), value * (1 - gamma * value).square()
    # Without noise b = S w, so that (1 - left) / eigenvalue acts on the coordinates of b.
    coordinates = torch.einsum("nde,nd->ne", vectors, prompts.moment) * (1 - left) / eigenvalues
    return torch.einsum("nde,ne,nd->n", vectors, coordinates, prompts.query)

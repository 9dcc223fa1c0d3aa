"""Descent on attention weights by automatic differentiation of softmax and loss.

Each function takes one trial, or a batch of trials if the tensors have a leading dimension. Shapes of one
trial: tokens [n, T, d], query [n, d], scores [n, T], W, K and Q [d, d].
"""

import torch
from torch import Tensor

EPS = torch.finfo(torch.float64).eps


def loss_of(tokens: Tensor, query: Tensor, scores: Tensor, W: Tensor) -> Tensor:
    """Computes the mean logistic loss over the inputs, summed over the trials of a batch."""
    attention = torch.softmax((tokens @ (query @ W.mT)[..., None]).squeeze(-1), -1)  # [n, T]
    return torch.nn.functional.softplus(-(attention * scores).sum(-1)).mean(-1).sum()


def unit(gradient: Tensor) -> Tensor:
    """Divides the gradient of each trial by its norm plus the rounding unit, as the released code does."""
    return gradient / (torch.linalg.matrix_norm(gradient)[..., None, None] + EPS)


def on_weights(
    tokens: Tensor, query: Tensor, scores: Tensor, W: Tensor, *, steps: int, rate: float
) -> Tensor:
    """Returns W after normalised descent."""
    W = W.clone().requires_grad_()
    for _ in range(steps):
        (gradient,) = torch.autograd.grad(loss_of(tokens, query, scores, W), W)
        with torch.no_grad():
            W -= rate * unit(gradient)
    return W.detach()


def on_factors(
    tokens: Tensor,
    query: Tensor,
    scores: Tensor,
    K: Tensor,
    Q: Tensor,
    *,
    steps: int,
    rate: float,
    penalty: float,
) -> tuple[Tensor, Tensor]:
    """Returns K and Q after normalised descent on W = K Q^T; each factor's gradient is divided by its own
    norm.
    """
    K, Q = K.clone().requires_grad_(), Q.clone().requires_grad_()
    for _ in range(steps):
        loss = loss_of(tokens, query, scores, K @ Q.mT) + penalty * (K.square().sum() + Q.square().sum())
        gradients = torch.autograd.grad(loss, (K, Q))
        with torch.no_grad():
            for V, gradient in zip((K, Q), gradients):
                V -= rate * unit(gradient)
    return K.detach(), Q.detach()

"""Descent on attention weights by automatic differentiation of softmax and loss.

Each function takes one trial, or a batch if the tensors have a leading dimension.
"""

import torch
from torch import Tensor

EPS = torch.finfo(torch.float64).eps


def loss_of(tokens: Tensor, query: Tensor, scores: Tensor, W: Tensor) -> Tensor:
    """Mean logistic loss, added up over the trials of a batch."""
    attention = torch.softmax((tokens @ (query @ W.mT)[..., None]).squeeze(-1), -1)
    return torch.nn.functional.softplus(-(attention * scores).sum(-1)).mean(-1).sum()


def unit(gradient: Tensor) -> Tensor:
    """The gradient of each trial over its norm, the rounding unit added as in the released runs."""
    return gradient / (torch.linalg.matrix_norm(gradient)[..., None, None] + EPS)


def on_weights(tokens: Tensor, query: Tensor, scores: Tensor, W: Tensor, *, steps: int, rate: float) -> Tensor:
    """Normalised descent on W."""
    W = W.clone().requires_grad_()
    for _ in range(steps):
        (gradient,) = torch.autograd.grad(loss_of(tokens, query, scores, W), W)
        with torch.no_grad():
            W -= rate * unit(gradient)
    return W.detach()


def on_factors(
    tokens: Tensor, query: Tensor, scores: Tensor, K: Tensor, Q: Tensor, *, steps: int, rate: float, penalty: float
) -> tuple[Tensor, Tensor]:
    """Normalised descent on the factors of W = K Q^T, each with its own norm."""
    K, Q = K.clone().requires_grad_(), Q.clone().requires_grad_()
    for _ in range(steps):
        loss = loss_of(tokens, query, scores, K @ Q.mT) + penalty * (K.square().sum() + Q.square().sum())
        gradients = torch.autograd.grad(loss, (K, Q))
        with torch.no_grad():
            for V, gradient in zip((K, Q), gradients):
                V -= rate * unit(gradient)
    return K.detach(), Q.detach()

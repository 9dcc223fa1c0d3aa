"""The exact population flow as one would write it first: gradients by autograd, plain time, scipy's default pair or its stiff solvers."""

import torch
from torch import Tensor


def rate_by_autograd(conditional: Tensor, vocab_size: int, ratio: float):
    """Derivative by time of the decoder [S, M] and of one query's logits [S], flat, from the mean cross-entropy of K classes; eta_Y = 1."""
    K, S = conditional.shape
    log_p, target = conditional.log(), torch.arange(K)

    def rate(_: float, state):
        both = torch.from_numpy(state.copy()).requires_grad_()
        Y, z = both[: S * vocab_size].reshape(S, vocab_size), both[S * vocab_size :]
        c = torch.softmax(log_p + z, dim=1)
        loss = torch.nn.functional.cross_entropy(c / c.norm(dim=1, keepdim=True) @ Y, target)
        (slope,) = torch.autograd.grad(loss, both)
        slope = -slope
        slope[S * vocab_size :] *= ratio
        return slope.numpy()

    return rate


def in_plain_time(conditional: Tensor, vocab_size: int, end: float, *, ratio: float, method: str, tolerance: float):
    """Logits [S] at the end, and the number of evaluations."""
    import numpy as np
    from scipy.integrate import solve_ivp

    S = conditional.shape[1]
    rate = rate_by_autograd(conditional, vocab_size, ratio)
    solved = solve_ivp(rate, (0.0, end), np.zeros(S * vocab_size + S), method=method, rtol=tolerance, atol=tolerance * 1e-3, t_eval=[end])
    return torch.from_numpy(solved.y[-S:, -1].copy()), solved.nfev

"""The exact population flow in its simplest form: gradients by autograd, plain time, a solver of scipy."""

import torch
from torch import Tensor


def rate_by_autograd(conditional: Tensor, vocab_size: int, ratio: float):
    """Returns the time derivative of the flat state: the decoder [S, M] and one query's logits [S]; eta_Y =
    1.

    The loss is the mean cross-entropy of K classes with token probabilities ``conditional`` [K, S]; ``ratio``
    is eta_Z / eta_Y.
    """
    K, S = conditional.shape
    log_p, target = conditional.log(), torch.arange(K)

    def rate(_: float, state):
        parameters = torch.from_numpy(state.copy()).requires_grad_()
        Y, z = parameters[: S * vocab_size].reshape(S, vocab_size), parameters[S * vocab_size :]
        c = torch.softmax(log_p + z, dim=1)
        loss = torch.nn.functional.cross_entropy(c / c.norm(dim=1, keepdim=True) @ Y, target)
        (slope,) = torch.autograd.grad(loss, parameters)
        slope = -slope
        slope[S * vocab_size :] *= ratio
        return slope.numpy()

    return rate


def in_plain_time(
    conditional: Tensor, vocab_size: int, end: float, *, ratio: float, method: str, tolerance: float
):
    """Integrates from zero and returns the logits [S] at the time ``end``, and the number of evaluations;
    ``conditional`` is [K, S].
    """
    import numpy as np
    from scipy.integrate import solve_ivp

    S = conditional.shape[1]
    rate = rate_by_autograd(conditional, vocab_size, ratio)
    solved = solve_ivp(
        rate,
        (0.0, end),
        np.zeros(S * vocab_size + S),
        method=method,
        rtol=tolerance,
        atol=tolerance * 1e-3,
        t_eval=[end],
    )
    return torch.from_numpy(solved.y[-S:, -1].copy()), solved.nfev

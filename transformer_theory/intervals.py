r"""Shares with their uncertainty: the interval that binomial counts leave open.

:math:`k` successes in :math:`n` trials leave open every p whose binomial tails beyond k both exceed :math:`\alpha/2`: the interval of
Clopper and Pearson, from quantiles of the beta distribution. It covers the truth with probability at least :math:`1 - \alpha`.

Source: :cite:t:`clopper1934use`.
"""

import numpy as np


def clopper_pearson(successes, trials, *, confidence: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper ends of the interval for a share; (0, 1) where there was no trial.

    >>> low, high = clopper_pearson(5, 5)  # five of five seeds say little
    >>> f"{low:.2f} to {high:.2f}"
    '0.48 to 1.00'

    Args:
        successes, trials: whole numbers, arrays of one shape or single ones.
        confidence: 1 - alpha.
    """
    from scipy.stats import beta

    k, n = np.asarray(successes, dtype=float), np.asarray(trials, dtype=float)
    tail = (1 - confidence) / 2
    low = np.where(k > 0, beta.ppf(tail, np.maximum(k, 1), n - k + 1), 0.0)
    high = np.where(k < n, beta.ppf(1 - tail, k + 1, np.maximum(n - k, 1)), 1.0)
    return low, high


def share_interval(share: float, n: int) -> tuple[float, float] | None:
    """Lower and upper end of the 95 % interval for a share of n things; None where it is not a whole number of them.

    >>> low, high = share_interval(0.65, 540)
    >>> f"{low:.2%} to {high:.2%}"
    '60.81% to 69.02%'
    """
    right = round(share * n)
    if n < 1 or not 0 <= right <= n or abs(right - share * n) > 1e-6 * n:
        return None
    low, high = clopper_pearson(right, n)
    return float(low), float(high)

r"""How sharp softmax attention must be to replace hard-max attention in the contextual mapping.

Codes are integers and thresholds half-integers, so keys differ by at least 1 and queries are at least 1/2 in
size, in units of
:math:`\delta`. A head of softmax attention at inverse temperature :math:`\beta` therefore errs by at most
:math:`(n-1) R\, e^{-\beta\delta^2/2}`, R the range of the keys. Each of the T selective shifts has two heads
and the factor S. The error of
:math:`\tilde l_{j-1}` enters that of :math:`\tilde l_j` with a factor of at most 1 + 2 S, and the global
shift multiplies it by 1 + F. So

.. math:: \beta^* = \frac{2}{\delta^2} \ln\big(8\, T S (n-1) R\, (1 + 2S)^n (1 + F)\big)

keeps the error of the codes at or below 1/4, within which the value layers are exact. The derivation is ours.
Setting: :cite:t:`yun2020transformers`.
"""

import math

from .mapping import ContextualMapping


def sufficient_inverse_temperature(mapping: ContextualMapping) -> float:
    r"""Returns :math:`\beta^*`, in the units of the paper (tokens in [0, 1), not divided by delta).

    >>> round(sufficient_inverse_temperature(ContextualMapping(d=1, n=3, delta=1 / 4, positions="integers")))
    849
    """
    S, n = mapping.states, mapping.n
    shifts = len(mapping.layers()) - 1
    terms = (8 * shifts * S * max(n - 1, 1), mapping.range, (1 + 2 * S) ** n, 1 + mapping.factor)
    return 2 * mapping.k**2 * sum(math.log(term) for term in terms)

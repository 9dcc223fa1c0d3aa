r"""The third layer alone: its scores in closed form, with any number of binary digits.

With :math:`e_i = 1/(i+1)` the query of time i and the key of time :math:`j \le i` have the product
:math:`e_i e_j (c^{(i+1)} - c^{(j)} + e_i e_j / 3)`. The two terms of size :math:`e_i e_j |c|` cancel where
the cells agree. What remains differs by at least :math:`\frac43 (i+1)^{-5}` between two visits, so with the
unit roundoff u = 2^-digits the latest visit is lost at about :math:`(i+1)^3 \approx 4 / (3 u |c|)`. If all
:math:`|c|` are powers of two, the rounded terms are equal and cancel exactly, unless the processor fuses a
product with the addition after it, which rounds only the other term. Source: :cite:t:`perez2021attention` for
the scores.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from .machine import Trace


def rounded(x: Float[Tensor, "*n"], digits: int) -> Float[Tensor, "*n"]:
    """Rounds float64 numbers to a number of binary digits, to nearest, ``[*n]``."""
    mantissa, exponent = torch.frexp(x)
    return torch.ldexp((mantissa * 2.0**digits).round(), exponent - digits)


def first_wrong_retrieval(trace: Trace, digits: int) -> int | None:
    """Returns the first time whose latest visit is not the only best score; None if there is none.

    Positions, queries, keys, products and sums are rounded to ``digits`` binary digits; 53 are float64.
    """
    c = torch.tensor(trace.heads, dtype=torch.float64)
    p = torch.arange(1, len(c), dtype=torch.float64)
    first, square = rounded(1 / p, digits), rounded(1 / p.square(), digits)
    third = rounded(square * rounded(torch.tensor(1 / 3, dtype=torch.float64), digits), digits)
    pairs = ((rounded(c[1:] / p, digits), first), (first, -rounded(c[:-1] / p, digits)), (third, square))
    terms = [rounded(query[:, None] * key, digits) for query, key in pairs]
    size = rounded(rounded(terms[0] + terms[1], digits) + terms[2], digits).abs()
    size = size.masked_fill(torch.ones_like(size).triu(1).bool(), torch.inf)  # later keys are not allowed
    best = size == size.amin(-1, keepdim=True)
    right = (best.sum(-1) == 1) & best.gather(1, torch.tensor(trace.attended[1:])[:, None])[:, 0]
    return None if bool(right.all()) else int((~right).nonzero()[0]) + 1

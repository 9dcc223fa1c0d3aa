r"""The scores of the third layer in closed form, and their resolution in floating point with any number of binary digits.

With :math:`e_i = 1/(i+1)` the query of time i and the key of time :math:`j \le i` have the product
:math:`e_i e_j (c^{(i+1)} - c^{(j)} + e_i e_j / 3)`.
The two largest terms, of size :math:`e_i e_j |c|`, cancel where the cells agree. What remains differs by at least
:math:`\frac43 (i+1)^{-5}` between two visits, so with the unit roundoff u = 2^-digits the latest visit is lost at about
:math:`(i+1)^3 \approx 4 / (3 u |c|)`. If all :math:`|c|` are powers of two, the rounded terms are equal and cancel exactly.
Source: :cite:t:`perez2021attention` for the scores.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from .machine import Trace


def rounded(x: Float[Tensor, "*n"], digits: int | None) -> Float[Tensor, "*n"]:
    """Rounds float64 numbers to a number of binary digits, to nearest; None leaves them as they are, ``[*n]``."""
    if digits is None:
        return x
    mantissa, exponent = torch.frexp(x)
    return torch.ldexp((mantissa * 2.0**digits).round(), exponent - digits)


def products(heads: Sequence[int], *, digits: int | None = None) -> Float[Tensor, "T T"]:
    """Returns the products <q_i, k_j> for the times i, j = 0 to T - 1, ``[T, T]`` float64; infinity for j > i, which are not allowed.

    Args:
        heads: cells of the head at the times 0 to T.
        digits: binary digits to which positions, queries, keys, products and sums are rounded; None for float64.
    """
    c = torch.tensor(heads, dtype=torch.float64)
    p = torch.arange(1, len(c), dtype=torch.float64)
    inverse, square = rounded(1 / p, digits), rounded(1 / p.square(), digits)
    query = torch.stack(
        [rounded(c[1:] / p, digits), inverse, rounded(square * rounded(torch.tensor(1 / 3, dtype=torch.float64), digits), digits)]
    )
    key = torch.stack([inverse, -rounded(c[:-1] / p, digits), square])
    terms = [rounded(q[:, None] * k, digits) for q, k in zip(query, key)]
    total = rounded(rounded(terms[0] + terms[1], digits) + terms[2], digits)
    return total.masked_fill(torch.ones_like(total).triu(1).bool(), torch.inf)


def first_wrong_retrieval(trace: Trace, *, digits: int | None = None) -> int | None:
    """Returns the first time whose latest visit is not the only best score in this arithmetic; None if there is none."""
    size = products(trace.heads, digits=digits).abs()
    wanted = torch.tensor(trace.attended[1:])
    best = size == size.amin(-1, keepdim=True)
    right = (best.sum(-1) == 1) & best.gather(1, wanted[:, None])[:, 0]
    return None if bool(right.all()) else int((~right).nonzero()[0]) + 1

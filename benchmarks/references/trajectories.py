"""The two examples in the plane: solutions by cvxpy, descent on W by automatic differentiation.

Head, tokens and queries are drawn in single precision in this order, from seed 1 (tokens of standard
deviation .3 around (-1, 0) for the first input and around (1, 0) for the second) and from seed 3 (.5 around
(-1, 0), the first tokens at (1, 1/2) and (1, -1/2)). All labels are 1. Descent takes 2,000 normalised steps
of .1 from W = 0.
"""

from collections.abc import Iterator

import numpy as np
import torch

from benchmarks.references import Reference
from benchmarks.references._tools import cosine, descend, frobenius, nuclear, pairs, shifted_logistic, unit
from transformer_theory.theories.attention_svm.figures import trajectories as figure

RANK_RTOL = 1e-4


def picture(number: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Draws one of the two examples: tokens, queries and scores."""
    g = torch.Generator().manual_seed({1: 1, 2: 3}[number])
    head, left = unit(torch.randn(2, generator=g)), torch.tensor([-1.0, 0.0])
    if number == 1:
        x = 0.3 * torch.randn(2, 3, 2, generator=g)
        x[0] += left
        x[1] -= left
    else:
        x = 0.5 * torch.randn(2, 5, 2, generator=g) + left
        x[0, 0], x[1, 0] = torch.tensor([1.0, 0.5]), torch.tensor([1.0, -0.5])
    z = unit(torch.randn(2, 2, generator=g)).double()
    return x.double(), z, x.double() @ head.double()


def references() -> Iterator[Reference]:
    """Yields the entries, norms and rank of the solutions, and the cosine of descent on W."""
    for number, stored in figure.KNOWN.items():
        x, z, scores = picture(number)
        constraints = pairs(x, z, scores.argmax(-1))
        W, W_star = frobenius(*constraints), nuclear(*constraints)
        assert W is not None
        assert W_star is not None
        for name, matrix in (("W_mm", W), ("W*_mm", W_star)):
            for i, j in np.ndindex(2, 2):
                yield Reference(f"{name}[{i},{j}], picture {number}", stored[name][i][j], float(matrix[i, j]))
        sigma = np.linalg.svd(W_star, compute_uv=False)
        yield Reference(
            f"Frobenius norm of W_mm, picture {number}", stored["Frobenius norm"], float(np.linalg.norm(W))
        )
        yield Reference(
            f"nuclear norm of W*_mm, picture {number}", stored["nuclear norm"], float(sigma.sum())
        )
        yield Reference(
            f"rank of W*_mm, picture {number}", stored["rank"], float((sigma > RANK_RTOL * sigma[0]).sum())
        )
        (end,) = descend(
            lambda W, x=x, z=z, scores=scores: shifted_logistic((x @ (z @ W.mT)[..., None])[..., 0], scores),
            [torch.zeros(2, 2, dtype=torch.float64)],
            steps=2000,
            rate=0.1,
        )
        yield Reference(
            f"cosine of W to W_mm, picture {number}, step 2,000", stored["cosine"], cosine(end, W)
        )

"""The share of problems in which descent from W = 0 selects every best token, by automatic differentiation,
batched over the seeds.

Seeds 0 to 99 of the published problems; 1,000 normalised steps of .1; a token is selected if it has more than
.999 of the attention. The paper states no settings for this figure, so the stored numbers are those of this
recipe.
"""

from collections.abc import Iterator

import torch

from benchmarks.references import Reference
from benchmarks.references._tools import descend, published, shifted_logistic
from transformer_theory.theories.attention_svm.figures import global_convergence as figure

TRIALS = 100


def share(n: int, T: int, d: int) -> float:
    """Returns the share of the seeds in which descent selects the best token of every input."""
    x, z, scores = published(range(TRIALS), n, T, d)
    (W,) = descend(
        lambda W: shifted_logistic((x @ (z @ W.mT)[..., None])[..., 0], scores),
        [torch.zeros(TRIALS, d, d, dtype=torch.float64)],
        steps=1000,
        rate=0.1,
    )
    attention = (x @ (z @ W.mT)[..., None])[..., 0].softmax(-1)
    best = attention.gather(-1, scores.argmax(-1, keepdim=True))[..., 0]
    return float((best > 0.999).all(-1).double().mean())


def references(dims: tuple[int, ...] = figure.KNOWN_DIMS) -> Iterator[Reference]:
    """Yields one share per size."""
    for (n, T), shares in figure.KNOWN.items():
        for d, stored in zip(figure.KNOWN_DIMS, shares):
            if d in dims:
                yield Reference(f"{figure.BEST_SELECTED}, n={n}, T={T}, d={d}", stored, share(n, T, d))

"""Normalised descent on W for 10,000 steps with pairwise differences of scores: median of 1 - cosine to the
Frobenius solution.

The gradient in the logits is -l' s_t (score_t - sum_u s_u score_u) = -l' s_t sum_u s_u (score_t - score_u).
The second form subtracts no nearly equal numbers and stays accurate as long as the shares do not underflow,
which they do after about 10,000 steps. Eight problems with n = 6, T = 8, d = 10: unit vectors in random
directions. The draws differ from those of the stored numbers.
"""

from collections.abc import Iterator

import numpy as np
import torch

from benchmarks.references import Reference
from benchmarks.references._tools import frobenius, pairs, unit
from transformer_theory.theories.attention_svm.figures import long_run as figure

TRIALS, SIZE, SEED, LOW_SHARE = 32, (6, 8, 10), 0, 8


def references(steps: int = 10_000) -> Iterator[Reference]:
    """Yields one median per stored step."""
    n, T, d = SIZE
    g = torch.Generator().manual_seed(SEED)
    head = unit(torch.randn(TRIALS, d, generator=g, dtype=torch.float64))
    label = torch.randint(2, (TRIALS, n), generator=g).double() * 2 - 1
    x, z = (
        unit(torch.randn(TRIALS, *shape, d, generator=g, dtype=torch.float64)) for shape in ((n, T), (n,))
    )
    scores = label[..., None] * (x @ head[:, None, :, None])[..., 0]
    difference = scores[..., :, None] - scores[..., None, :]
    W, seen = torch.zeros(TRIALS, d, d, dtype=torch.float64), {}
    for step in range(steps + 1):
        if step in figure.KNOWN:
            seen[step] = W.clone()
        share = (x @ (z @ W.mT)[..., None])[..., 0].softmax(-1)
        slope = torch.sigmoid(-(share * scores).sum(-1, keepdim=True))
        pull = slope * share * (difference * share[..., None, :]).sum(-1)  # minus the gradient in the logits
        direction = (pull[..., None] * x).sum(-2).mT @ z
        direction = direction / direction.abs().amax((-2, -1), keepdim=True)
        W = W + 0.1 * direction / torch.linalg.matrix_norm(direction)[:, None, None]
    select = (x @ (z @ W.mT)[..., None])[..., 0].argmax(-1)
    targets = [frobenius(*pairs(x[trial], z[trial], select[trial])) for trial in range(TRIALS)]
    for step, stored in figure.KNOWN.items():
        if step in seen:
            units = [
                (w / w.norm()).numpy() - t / np.linalg.norm(t)
                for w, t in zip(seen[step], targets)
                if t is not None
            ]
            errors = sorted(float((u**2).sum()) / 2 for u in units)
            middle = errors[len(errors) // 2]
            note = (
                f"quartiles {errors[len(errors) // 4]:.1e} to {errors[3 * len(errors) // 4]:.1e} over "
                f"{len(errors)} problems"
            )
            yield Reference(f"{figure.DISTANCE}, step {step}", stored, middle, "another draw", note)

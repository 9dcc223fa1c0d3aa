"""ReduNet on the Gaussian toy, layer by layer from its formulas with numpy, on ten draws of the noise.

500 samples per axis of the plane or space, noise .1, projected to the unit sphere. With alpha = d / (n
eps^2), alpha_j = d / (n_j eps^2), E = alpha (I + alpha Z Z^T)^-1, C_j = alpha_j (I + alpha_j Z_j Z_j^T)^-1
and weights n_j / n, a layer moves Z along E Z - sum (n_j / n) C_j Z_j by eta = 1/2 and projects it to the
sphere; eps^2 = .1. The rate reduction is (ln det(I + alpha Z Z^T) - sum (n_j / n) ln det(I + alpha_j Z_j
Z_j^T)) / 2.
"""

from collections.abc import Iterator

import numpy as np

from benchmarks.references import Reference
from transformer_theory.theories.rate_reduction.figures import redunet_gaussians as figure

PER_CLASS, NOISE, STEP, SQUARED_EPS, DRAWS = 500, 0.1, 0.5, 0.1, 10


def reduction_after(dim: int, layers: int, seed: int) -> float:
    """Returns the rate reduction after ``layers`` layers."""
    labels = np.repeat(np.arange(dim), PER_CLASS)
    Z = (np.eye(dim)[labels] + NOISE * np.random.default_rng(seed).standard_normal((len(labels), dim))).T
    Z /= np.linalg.norm(Z, axis=0)
    masks = [labels == j for j in range(dim)]

    def gram(columns: np.ndarray) -> np.ndarray:
        return np.eye(dim) + dim / (columns.shape[1] * SQUARED_EPS) * columns @ columns.T

    for _ in range(layers):
        direction = dim / (Z.shape[1] * SQUARED_EPS) * np.linalg.solve(gram(Z), Z)
        for mask in masks:  # (n_j / n) alpha_j = alpha
            direction[:, mask] -= (
                dim / (Z.shape[1] * SQUARED_EPS) * np.linalg.solve(gram(Z[:, mask]), Z[:, mask])
            )
        Z = Z + STEP * direction
        Z /= np.linalg.norm(Z, axis=0)
    inner = sum(mask.mean() * np.linalg.slogdet(gram(Z[:, mask]))[1] for mask in masks)
    return 0.5 * float(np.linalg.slogdet(gram(Z))[1] - inner)


def references() -> Iterator[Reference]:
    """Yields the mean of the rate reduction over the draws, per dimension."""
    for dim, stored in figure.REFERENCE.items():
        values = [reduction_after(dim, figure.REFERENCE_LAYERS, seed) for seed in range(DRAWS)]
        note = f"range {min(values):.4f} to {max(values):.4f} over {DRAWS} draws"
        yield Reference(
            f"rate reduction after 300 layers, d = {dim}",
            stored,
            float(np.mean(values)),
            "another draw",
            note,
        )

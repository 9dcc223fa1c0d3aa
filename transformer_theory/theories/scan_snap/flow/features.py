"""Features of the classes and their dual basis in numpy: called thousands of times on small arrays by the integrator.

So what it calls has no run-time check of its annotations in the tests (``no_type_check``), and reduces by numpy's ufuncs themselves, whose
sums are those of the methods without their detour. What comes in and goes out of a flow is checked.

Source: :cite:t:`tian2023scan` (features, Lemma 3).
"""

from collections.abc import Callable
from typing import no_type_check

import numpy as np
import torch

from ....core.errors import Infeasible
from ..problem import SequenceClasses

SINGULAR = 1e10  # condition number of the Gram matrix of the classes from which on Lemma 3's dual basis is not computed


def features(classes: SequenceClasses) -> Callable[[np.ndarray], np.ndarray]:
    """The function that maps logits ``[Q, S]`` to features ``[K, S]`` of norm one."""
    with np.errstate(divide="ignore"):
        log_p = np.log(classes.conditional.numpy())
    psi = classes.query.numpy()

    @no_type_check
    def at(logits: np.ndarray) -> np.ndarray:
        scores = log_p + logits[psi]
        f = np.exp(scores - np.maximum.reduce(scores, 1, keepdims=True))
        f /= np.sqrt(np.add.reduce(f * f, 1, keepdims=True))
        return f

    return at


def asked(classes: SequenceClasses) -> np.ndarray:
    """Shares of the classes by query, ``[Q, K]``: what sums the classes' pulls at the logits."""
    return np.eye(classes.queries)[classes.query.numpy()].T * classes.weights.numpy()


@no_type_check
def inverse_gram(f: np.ndarray) -> np.ndarray:
    """Inverse of the Gram matrix of features ``[K, S]``.

    Raises:
        Infeasible: the features are (numerically) linearly dependent, so that the dual basis does not exist.
    """
    values, vectors = np.linalg.eigh(f @ f.T)
    if values[0] * SINGULAR < values[-1]:
        raise Infeasible(
            f"Lemma 3 needs linearly independent classes, got a Gram matrix with eigenvalues {values[0]:.1e} to {values[-1]:.1e}; "
            "merge classes with equal tokens",
            certificate=torch.from_numpy(vectors[:, 0]),
        )
    return (vectors / values) @ vectors.T


@no_type_check
def normal_part(f: np.ndarray, g: np.ndarray) -> np.ndarray:
    """f o (g - f (f.g)), rows ``[K, S]``: what the pull g at the features does to the logits."""
    return f * (g - f * np.add.reduce(f * g, 1, keepdims=True))

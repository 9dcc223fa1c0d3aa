"""Co-occurrence of two leaves of the binary latent tree, by passing the probabilities of a node's values
along the edges.

Four levels, a root with two equally likely labels, children of the root that are 0 with probability .4 or
.82, and edges below that keep the value with probability (1 + .7) / 2. Given the common ancestor, the two
leaves are independent.
"""

from collections.abc import Iterator

import numpy as np

from benchmarks.references import Reference
from transformer_theory.theories.joma.figures import relatives as figure

RHO, ZERO, LEVELS = 0.7, (0.4, 0.82), 4


def references() -> Iterator[Reference]:
    """Yields P(y_l = 1 | y_m = 1) for a common ancestor H levels up."""
    edge = np.array([[1 + RHO, 1 - RHO], [1 - RHO, 1 + RHO]]) / 2  # parent -> child
    child = np.array([np.mean(ZERO), 1 - np.mean(ZERO)])  # a child of the root, whatever the label
    for up, stored in figure.RECOMPUTED.items():
        ancestor = child @ np.linalg.matrix_power(edge, LEVELS - 1 - up)
        present = np.linalg.matrix_power(edge, up)[:, 1]  # P(leaf = 1 | ancestor)
        yield Reference(
            f"P(leaf | leaf), H = {up}", stored, float(ancestor @ present**2) / float(ancestor @ present)
        )

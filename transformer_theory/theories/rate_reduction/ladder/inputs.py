r"""The second null: the share of the optimum that the inputs have without any training.

Permuted labels are easily exceeded: features that separate the classes in any way do so, and so do inputs.
The second null asks for more than the inputs have. The mean training input is subtracted from the inputs,
since a common direction of all samples hides the rest. They are then mapped to the dimension d of the
features by a random linear map that changes as little as possible, and scaled to norm 1:

- D > d: the orthogonal projection to a random subspace of dimension d;
- D <= d: an isometry. :math:`\Delta R` does not depend on which one, so all draws are equal.

The samples, the class sizes, d, the normalisation and the optimum are those of the rung. Gaussian matrices
would distort the inputs, and untrained networks hide them behind a common direction; both give lower shares,
which are easier to exceed. Source of the optimum: :cite:t:`yu2020learning`.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from ....core.measurement import Null
from ....core.statistics import fixed_generator
from ....maths.linalg import orthonormalise
from ....metrics.class_features import EPS
from ....metrics.coding import rate_reduction, unit_norm
from ..optimum import optimum

PROJECTIONS = "random projections of the inputs"


def isometric(
    inputs: Float[Tensor, "n inputs"], dim: int, generator: torch.Generator
) -> Float[Tensor, "n d"]:
    """Maps inputs to ``dim`` dimensions: projects them to a random subspace if they have more, otherwise
    appends zeros.
    """
    D = inputs.shape[1]
    if dim >= D:
        return pad(inputs, (0, dim - D))
    return inputs @ orthonormalise(torch.randn(D, dim, dtype=inputs.dtype, generator=generator))


def projections(
    inputs: Float[Tensor, "n inputs"], labels: Int[Tensor, " n"], dim: int, *, draws: int
) -> Null:
    """Computes the null :data:`PROJECTIONS` of the share of the optimum.

    Args:
        inputs: inputs with the mean training input subtracted, ``[n, inputs]``.
        labels: classes 0, 1, ..., none of them empty, ``[n]``.
        dim: dimension d of the features, at least the number of classes.
        draws: number of projections. They depend on the dimensions alone, so seeds share them.
    """
    best = optimum(torch.bincount(labels).tolist(), dim, eps=EPS).value
    generator = fixed_generator()
    # isometries all give the same share, which is computed once
    different = draws if inputs.shape[1] > dim else 1
    features = (unit_norm(isometric(inputs.double(), dim, generator)) for _ in range(different))
    shares = [float(rate_reduction(x, labels, eps=EPS)) / best for x in features]
    return Null(PROJECTIONS, tuple(shares * (draws // different)))

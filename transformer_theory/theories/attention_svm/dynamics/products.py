r"""Products of many small matrices, the same ones at every step of a run.

Of a step on factors, :math:`K Q^\top` with K, Q of ten rows, products are most of the cost. NumPy multiplies a batch of such matrices in
about half the time of ``torch.bmm``, and larger ones in the same; it reads and writes the memory of the tensors.

Source: the sizes are those of the runs of :cite:t:`tarzanagh2023transformers`.
"""

from typing import no_type_check

import numpy as np
from torch import Tensor


class Product:
    """``left @ right`` of matrices ``[b, n, k]`` and ``[b, k, m]``, from where they lie to ``out`` ``[b, n, m]``, whenever it is called."""

    def __init__(self, left: Tensor, right: Tensor, out: Tensor):
        self.left, self.right, self.out = left.numpy(), right.numpy(), out.numpy()

    @no_type_check
    def __call__(self) -> None:
        np.matmul(self.left, self.right, out=self.out)


class Rows:
    """Vectors ``[rows, k]`` times a matrix ``[k, m]`` each."""

    def __init__(self, matrices: Tensor):
        self.matrices = matrices.contiguous().numpy()

    @no_type_check
    def __call__(self, vectors: Tensor, out: Tensor | None = None) -> Tensor:
        """``[trials, n, k]`` -> ``[trials, n, m]``, to ``out`` if given."""
        rows, k, m = self.matrices.shape
        if out is None:
            out = vectors.new_empty(*vectors.shape[:-1], m)
        np.matmul(vectors.reshape(rows, 1, k).numpy(), self.matrices, out=out.view(rows, 1, m).numpy())
        return out

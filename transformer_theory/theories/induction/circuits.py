r"""Attention-only networks as sums over paths, and the circuits of their heads.

.. math:: x^{l+1} = x^l + \sum_h A^{l,h} x^l W_{OV}^{l,h}, \qquad A^{l,h} = \text{softmax}(x_j^\top
    W_{QK}^{l,h} x_i), \qquad
    \text{logits} = x^L W_U .

Given the attention matrices the network is linear, so its logits are exactly a sum over *paths*: choose some
layers in order, and one head in each. The path of heads :math:`h_1, \ldots, h_m` adds :math:`A^{h_m} \cdots
A^{h_1} x^0 W_{OV}^{h_1} \cdots W_{OV}^{h_m} W_U`; the empty path is the direct one, :math:`x^0 W_U`. One
layer has bigrams and skip-trigrams only; paths of two heads are *virtual heads*.

Head h has the *QK circuit* :math:`W_E W_{QK} W_E^\top` (score of a key id, in rows, for a query id) and the
*OV circuit* :math:`W_E W_{OV} W_U` (what an attended id, in rows, adds to the logits). A head copies if its
OV circuit has positive eigenvalues; its *copying score* is :math:`\sum \lambda / \sum |\lambda|`, between -1
and 1. Source: :cite:t:`elhage2021mathematical`.
"""

from dataclasses import dataclass
from itertools import combinations, product

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...core.validation import converted, finite, full_precision, in_range
from ...maths.linalg import binary_scale
from ...models.attention import causal_mask, softmax
from ...models.embedding import check_ids

Path = tuple[tuple[int, int], ...]
"""The (layer, head) pairs of a path, from the bottom up."""


@dataclass(frozen=True, eq=False)
class Heads:
    """The heads of one layer.

    Attributes:
        W_QK: score(key x, query z) = x^T W_QK z, scale included, ``[heads, dim, dim]``.
        W_OV: what an attended token adds to the stream, x W_OV, ``[heads, dim, dim]``.
    """

    W_QK: Float[Tensor, "heads dim dim"]
    W_OV: Float[Tensor, "heads dim dim"]

    def attention(self, x: Float[Tensor, "*batch n dim"]) -> Float[Tensor, "*batch heads n n"]:
        """Returns the causal attention weights, ``[*batch, heads, queries, keys]``."""
        scores = x[..., None, :, :] @ self.W_QK.mT @ x[..., None, :, :].mT
        return softmax(scores, causal_mask(x.shape[-2], x.shape[-2]))


@dataclass(frozen=True, eq=False)
class AttentionOnly:
    """A causal network of attention layers, given by its matrices.

    Attributes:
        W_E: embedding of the ids, ``[vocabulary, dim]``.
        positions: ``[length, dim]``.
        layers: heads of each layer, from the bottom up.
        W_U: ``[dim, outputs]``.
    """

    W_E: Float[Tensor, "vocabulary dim"]
    positions: Float[Tensor, "length dim"]
    layers: tuple[Heads, ...]
    W_U: Float[Tensor, "dim outputs"]

    def stream(self, ids: Int[Tensor, "batch n"]) -> Float[Tensor, "batch n dim"]:
        """Returns the stream before the first layer, ``[batch, n, dim]``.

        Raises:
            ValueError: the ids lie outside the vocabulary, or the sequences are too long.
        """
        check_ids(ids, vocabulary=len(self.W_E), context=len(self.positions))
        return self.W_E[ids] + self.positions[: ids.shape[1]]

    def run(
        self, ids: Int[Tensor, "batch n"]
    ) -> tuple[Float[Tensor, "batch n outputs"], list[Float[Tensor, "batch heads n n"]]]:
        """Returns the logits and the attention weights of each layer."""
        x, maps = self.stream(ids), []
        for heads in self.layers:
            A = heads.attention(x)
            maps.append(A)
            x = x + (A @ x[:, None] @ heads.W_OV).sum(1)
        return x @ self.W_U, maps

    def circuits(
        self, layer: int
    ) -> tuple[Float[Tensor, "heads vocabulary vocabulary"], Float[Tensor, "heads vocabulary outputs"]]:
        """Returns the QK circuits of the heads of a layer, without positions, and their OV circuits."""
        heads = self.layers[layer]
        return self.W_E @ heads.W_QK @ self.W_E.mT, self.W_E @ heads.W_OV @ self.W_U

    def paths(self) -> list[Path]:
        """Returns all paths, the direct one first."""
        numbers = range(len(self.layers))
        chosen = [layers for size in range(len(self.layers) + 1) for layers in combinations(numbers, size)]
        heads = [[range(len(self.layers[layer].W_QK)) for layer in layers] for layers in chosen]
        return [
            tuple(zip(layers, each)) for layers, ranges in zip(chosen, heads) for each in product(*ranges)
        ]


@full_precision
def path_expansion(
    model: AttentionOnly, ids: Int[Tensor, "batch n"]
) -> dict[Path, Float[Tensor, "batch n outputs"]]:
    """Returns what each path adds to the logits; the sum over all paths is the logits exactly."""
    x, (_, maps) = model.stream(ids), model.run(ids)
    terms = {}
    for path in model.paths():
        term = x
        for layer, head in path:
            term = maps[layer][:, head] @ term @ model.layers[layer].W_OV[head]
        terms[path] = term @ model.W_U
    return terms


def _matching(*factors: Tensor) -> None:
    """Checks that matrices can be multiplied, and that the product is square."""
    shapes = [list(factor.shape) for factor in factors]
    if any(len(shape) < 2 for shape in shapes) or any(
        a[-1] != b[-2] for a, b in zip(shapes, [*shapes[1:], shapes[0]])
    ):
        product = " @ ".join(map(str, shapes))
        raise ValueError(
            f"the matrices must have a square product, got {product}; pass them as the documentation gives "
            "their shapes"
        )


def eigenvalue_share(matrix: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch"]:
    """Returns the sum of the eigenvalues over the sum of their absolute values.

    The sum of the eigenvalues is the trace, a real number.

    Raises:
        ValueError: a matrix is zero, or not finite.
    """
    finite(matrix=matrix)
    size = torch.linalg.eigvals(matrix).abs().sum(-1)
    if not bool((size > 0).all()):
        raise ValueError(
            f"a matrix must have an eigenvalue other than 0, got {int((size == 0).sum())} without; leave "
            "these heads out"
        )
    return matrix.diagonal(dim1=-2, dim2=-1).sum(-1) / size


@in_range
@converted(floats=("W_V", "W_O", "W_E", "W_U"))
def copying_score(
    W_V: Float[Tensor, "*heads dim p"],
    W_O: Float[Tensor, "*heads p dim"],
    W_E: Float[Tensor, "vocabulary dim"],
    W_U: Float[Tensor, "dim vocabulary"],
) -> Float[Tensor, "*heads"]:
    """Returns the copying score of heads with the factors W_OV = W_V W_O, in [-1, 1].

    A B and B A have the same non-zero eigenvalues, so those of the OV circuit W_E W_V W_O W_U, ``[vocabulary,
    vocabulary]``, are those of W_O (W_U W_E) W_V, ``[p, p]``.

    Raises:
        ValueError: the shapes do not fit, a matrix is not finite, or a head has no eigenvalue other than 0.
    """
    _matching(W_E, W_V, W_O, W_U)
    # the share does not depend on the scales, and products of scaled matrices are in range
    W_E, W_U = (W / binary_scale(W, (0, 1)) for W in (W_E, W_U))
    W_V, W_O = (W / binary_scale(W, (-2, -1)) for W in (W_V, W_O))
    return eigenvalue_share(W_O @ (W_U @ W_E) @ W_V)

r"""Equivariant layers of order two, their stack, and the same computed by attention heads.

A layer maps ``[n, n, c]`` to ``[n, n, c']``:

.. math:: L(X) = \sum_\mu B^\mu X w_\mu + 1_{\mathrm{node}} b_1^\top + 1_{\mathrm{edge}} b_2^\top,\ w_\mu \in
    \mathbb{R}^{c \times c'} .

:func:`by_sums` computes it from row sums, column sums and totals in O(n^2). :func:`by_heads` computes it as a
transformer does: fifteen heads of values :math:`X w_\mu`, whose outputs a feed-forward layer multiplies by
the number of keys, sets to zero at queries of the wrong type and adds. A network (:class:`Network`) is a
stack of such layers with ReLU between them, followed by the invariant read-out: the sum over nodes, the sum
over edges and an MLP. It is a 2-IGN, and invariant under permutations of the nodes.

Source: :cite:t:`maron2019invariant`, :cite:t:`kim2022pure`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor

from ...core.validation import full_precision, in_range, integers
from ...maths.linalg import vector_norm
from .heads import attention_maps, query_rows
from .identifiers import GraphTokens
from .patterns import PATTERNS, pattern_sums

# a at which the spurious attention of orthonormal heads, n^2 e^-a, is below the rounding of float64
SCALE = 40.0


@dataclass(frozen=True, eq=False)
class EquivariantLayer:
    """One layer of order two.

    Attributes:
        weights: w, one matrix per pattern, ``[15, c, c']``.
        bias: b of nodes and of edges, ``[2, c']``.
    """

    weights: Float[Tensor, "15 c d"]
    bias: Float[Tensor, "2 d"]


Apply = Callable[[EquivariantLayer, Float[Tensor, "n n c"]], Float[Tensor, "n n d"]]


@in_range
@full_precision
def by_sums(layer: EquivariantLayer, tensor: Float[Tensor, "n n c"]) -> Float[Tensor, "n n d"]:
    """Computes the layer from :func:`.pattern_sums`, ``[n, n, c']``."""
    tensor = _features(layer, tensor)
    return torch.einsum("pijc,pcd->ijd", pattern_sums(tensor), layer.weights) + _bias(layer, tensor.shape[0])


@in_range
@full_precision
def by_heads(
    layer: EquivariantLayer, tensor: Float[Tensor, "n n c"], tokens: GraphTokens, *, scale: float = SCALE
) -> Float[Tensor, "n n d"]:
    """Computes the layer by the fifteen heads of :func:`.attention_maps` and a feed-forward layer, ``[n, n,
    c']``.

    Args:
        layer: weights.
        tensor: features of all pairs, ``[n, n, c]``.
        tokens: dense tokens of a graph with n nodes, of which only identifiers and types are used.
        scale: a; ``math.inf`` for hard-max attention.
    Raises:
        ValueError: the tokens are not the n^2 dense tokens, row by row, or the tensor has another shape.
    """
    tensor = _features(layer, tensor)
    n, c = tensor.shape[0], tensor.shape[2]
    if not torch.equal(tokens.pairs, torch.cartesian_prod(torch.arange(n), torch.arange(n))):
        got = f"{len(tokens.pairs)} tokens of {tokens.nodes} nodes"
        raise ValueError(
            f"tokens must be the {n * n} dense tokens of {n} nodes, row by row, got {got}; tokenize with "
            "tokens='dense'"
        )
    values = tensor.reshape(n * n, c) @ layer.weights  # [15, n^2, c']
    attended = attention_maps(tokens, scale=scale) @ values
    counts = torch.tensor([pattern.keys_per_query(n) for pattern in PATTERNS], dtype=tensor.dtype)
    gated = gate(counts[:, None, None] * attended, query_rows(n).to(tensor.dtype)[..., None])
    return gated.sum(0).reshape(n, n, -1) + _bias(layer, n)


def gate(values: Float[Tensor, "*batch d"], open: Float[Tensor, "*batch 1"]) -> Float[Tensor, "*batch d"]:
    r"""Returns the values where the gate is 1 and zero where it is 0, by two ReLU units per value, ``[*batch,
    d]``.

    With a bound :math:`M \ge |v|`: :math:`\mathrm{relu}(v - M(1 - g)) - \mathrm{relu}(-v - M(1 - g))`. This
    is exact, also in floating point: for g = 1 nothing is subtracted, for g = 0 both units are off.
    """
    closed = values.abs().max() * (1 - open)
    return torch.relu(values - closed) - torch.relu(-values - closed)


@dataclass(frozen=True, eq=False)
class Network:
    """A stack of layers with ReLU after each, and the invariant read-out.

    Attributes:
        layers: the layers; the first one has one input channel, the adjacency.
        hidden: first matrix of the read-out's MLP, ``[2 c, h]``; it acts on the means over nodes and over
            edges.
        output: second matrix, ``[h, o]``.
    """

    layers: tuple[EquivariantLayer, ...]
    hidden: Float[Tensor, "readout h"]
    output: Float[Tensor, "h o"]

    def __call__(self, tensor: Float[Tensor, "n n c"], apply: Apply = by_sums) -> Float[Tensor, " o"]:
        """Computes the output ``[o]`` from the graph's tensor ``[n, n, c]``.

        Args:
            tensor: features of all pairs; of a plain graph the adjacency ``[n, n, 1]``.
            apply: how a layer is computed: :func:`by_sums`, or :func:`by_heads` with tokens.
        """
        for layer in self.layers:
            tensor = torch.relu(apply(layer, tensor))
        n = tensor.shape[0]
        nodes = tensor.diagonal().sum(-1)
        edges = tensor.sum((0, 1)) - nodes
        # Means in place of sums keep outputs of order one; for graphs of one size they differ by a factor
        # that the MLP can absorb.
        pooled = torch.cat([nodes / n, edges / max(1, n * (n - 1))])
        return torch.relu(pooled @ self.hidden) @ self.output


def random_layer(channels: int, outputs: int, n: int, *, generator: torch.Generator) -> EquivariantLayer:
    """Draws Gaussian weights for graphs of n nodes, divided by the number of keys of each pattern, so that no
    sum dominates.
    """
    integers(channels=channels, outputs=outputs, n=n)
    counts = torch.tensor([max(1, pattern.keys_per_query(n)) for pattern in PATTERNS], dtype=torch.float64)
    weights = (
        torch.randn(len(PATTERNS), channels, outputs, generator=generator, dtype=torch.float64)
        / channels**0.5
    )
    bias = torch.randn(2, outputs, generator=generator, dtype=torch.float64)
    return EquivariantLayer(weights / counts[:, None, None], bias)


def random_network(
    n: int, *, widths: Sequence[int] = (1, 8, 8, 8), outputs: int = 8, generator: torch.Generator
) -> Network:
    """Draws a network for graphs of n nodes.

    Args:
        n: number of nodes.
        widths: channels of the input and of each layer.
        outputs: number of outputs.
        generator: draws the weights.
    """
    layers = tuple(random_layer(c, d, n, generator=generator) for c, d in pairwise(widths))
    hidden = (
        torch.randn(2 * widths[-1], 4 * outputs, generator=generator, dtype=torch.float64)
        / (2 * widths[-1]) ** 0.5
    )
    output = (
        torch.randn(4 * outputs, outputs, generator=generator, dtype=torch.float64) / (4 * outputs) ** 0.5
    )
    return Network(layers, hidden, output)


def relative_difference(first: Float[Tensor, "..."], second: Float[Tensor, "..."]) -> float:
    """Returns the norm of the difference of two tensors [...] over the larger of their norms; 0 if both are
    zero.
    """
    size, difference = (
        [float(vector_norm(x.flatten(), -1)) for x in each] for each in ((first, second), (first - second,))
    )
    return difference[0] / max(size) if max(size) else 0.0


def _features(layer: EquivariantLayer, tensor: Float[Tensor, "n n c"]) -> Float[Tensor, "n n c"]:
    """Returns the features [n, n, c] of all pairs in the dtype of the weights."""
    tensor, c = torch.as_tensor(tensor, dtype=layer.weights.dtype), layer.weights.shape[1]
    if tensor.ndim != 3 or tensor.shape[0] != tensor.shape[1] or tensor.shape[2] != c:
        raise ValueError(
            f"tensor must be [n, n, {c}], got {list(tensor.shape)}; for the adjacency pass adjacency[..., "
            "None]"
        )
    return tensor


def _bias(layer: EquivariantLayer, n: int) -> Float[Tensor, "n n d"]:
    eye = torch.eye(n, dtype=layer.bias.dtype)[..., None]
    return eye * layer.bias[0] + (1 - eye) * layer.bias[1]

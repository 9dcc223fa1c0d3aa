r"""Prompts of regression: N examples :math:`(x_j, y_j)` and a query x, from a function that is drawn anew for
each prompt.

The linear prompts are :math:`y_j = w^\top x_j + \varepsilon_j` with :math:`w \sim N(0, I)`, :math:`x \sim
N(0, \Lambda)` and noise of variance :math:`\sigma^2`; the target of the query is :math:`w^\top x` without
noise. The other functions are those of :cite:t:`garg2022what`: sparse linear functions, networks with one
hidden layer, and decision trees.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor

from ...core.validation import as_float64, finite, integers

TREE_DEPTH, HIDDEN = 2, 8


@dataclass(frozen=True, eq=False)
class Prompts:
    """Prompts of one length, in float64.

    Attributes:
        x, y: examples, ``[n, N, d]`` and ``[n, N]``.
        query: inputs to answer, ``[n, d]``.
        target: values of the functions there, ``[n]``.

    Raises:
        ValueError: shapes do not belong together, there is no example, or an entry is not finite.
        TypeError: an entry is not a real number.
    """

    x: Float[Tensor, "n N d"]
    y: Float[Tensor, "n N"]
    query: Float[Tensor, "n d"]
    target: Float[Tensor, " n"]

    def __post_init__(self):
        tensors = {name: as_float64(name, getattr(self, name)) for name in ("x", "y", "query", "target")}
        shapes = [tuple(tensor.shape) for tensor in tensors.values()]
        x = tensors["x"]
        if x.ndim != 3 or not x.numel() or shapes[1:] != [x.shape[:2], (len(x), x.shape[2]), (len(x),)]:
            raise ValueError(
                f"expected x [n, N, d], y [n, N], query [n, d] and target [n], got {shapes}; pass at least "
                "one example"
            )
        finite(**tensors)
        for name, tensor in tensors.items():
            object.__setattr__(self, name, tensor)

    def __len__(self) -> int:
        return len(self.x)

    @property
    def moment(self) -> Float[Tensor, "n d"]:
        r"""The vector :math:`b = \tfrac1N \sum_j y_j x_j` of each prompt, ``[n, d]``."""
        return torch.einsum("nj,njd->nd", self.y, self.x) / self.x.shape[1]

    def tokens(self, dtype: torch.dtype = torch.float32) -> Float[Tensor, "n tokens width"]:
        """Returns the tokens (x, y) of the examples and (x, 0) of the query, ``[n, N + 1, d + 1]``."""
        examples = torch.cat([self.x, self.y[..., None]], dim=-1)
        query = torch.cat([self.query, torch.zeros_like(self.target)[:, None]], dim=-1)
        return torch.cat([examples, query[:, None]], dim=1).to(dtype)

    def with_contexts(self, order: Int[Tensor, " n"]) -> "Prompts":
        """Returns the same queries after the examples of other prompts, in the order of ``order``."""
        return replace(self, x=self.x[order], y=self.y[order])


def gaussian_inputs(spectrum: Float[Tensor, " d"]) -> Callable[[tuple[int, ...], Generator], Tensor]:
    """Returns a function that draws x from a Gaussian with a diagonal covariance; ``spectrum`` holds its
    eigenvalues.

    Raises:
        ValueError: the eigenvalues are not a vector of finite numbers of at least 0.
    """
    if spectrum.ndim != 1 or not len(spectrum) or not bool(((spectrum >= 0) & (spectrum < math.inf)).all()):
        raise ValueError(
            f"expected eigenvalues [d] of at least 0, got {list(spectrum.shape)} with other values or "
            "another shape"
        )
    scale = spectrum.double().sqrt()
    return lambda shape, generator: (
        scale * torch.randn(*shape, len(scale), generator=generator, dtype=torch.float64)
    )


def linear_prompts(
    n: int,
    N: int,
    inputs: Callable[[tuple[int, ...], Generator], Tensor],
    *,
    noise: float = 0.0,
    generator: Generator,
) -> Prompts:
    """Draws prompts of linear functions with weights from N(0, I), in float64.

    Args:
        n: number of prompts.
        N: number of examples.
        inputs: ``(shape, generator) -> x [*shape, d]``: draws independent inputs, e.g.
            :func:`gaussian_inputs`.
        noise: variance of the noise of the examples.
        generator: draws everything.
    Raises:
        ValueError: a number is below 1, the noise is negative, or the inputs have another shape.
    """
    integers(n=n, N=N)
    if not 0 <= noise < math.inf:
        raise ValueError(f"noise must be a variance of at least 0, got {noise}")
    x = inputs((n, N + 1), generator).double()
    if x.ndim != 3 or x.shape[:2] != (n, N + 1):
        raise ValueError(
            f"inputs must return x [{n}, {N + 1}, d], got {list(x.shape)}; return one input for each place "
            "of the shape"
        )
    values = _linear(x, generator)
    errors = math.sqrt(noise) * torch.randn(n, N, generator=generator, dtype=torch.float64)
    return Prompts(x[:, :N], values[:, :N] + errors, x[:, N], values[:, N])


def _linear(x: Tensor, generator: Generator) -> Tensor:
    w = torch.randn(len(x), x.shape[-1], generator=generator, dtype=torch.float64)
    return torch.einsum("njd,nd->nj", x, w)


def _sparse(x: Tensor, generator: Generator) -> Tensor:
    """Linear functions of two coordinates."""
    kept = torch.rand(len(x), x.shape[-1], generator=generator).argsort(1) < min(2, x.shape[-1])
    return _linear(x * kept[:, None], generator)


def _two_layer(x: Tensor, generator: Generator) -> Tensor:
    """Networks with one hidden layer of ReLUs; the variance of an output is about d."""
    d = x.shape[-1]
    inner = torch.randn(len(x), d, HIDDEN, generator=generator, dtype=torch.float64)
    outer = torch.randn(len(x), HIDDEN, generator=generator, dtype=torch.float64) * math.sqrt(2 / HIDDEN)
    return torch.einsum("njh,nh->nj", torch.relu(x @ inner), outer)


def _tree(x: Tensor, generator: Generator) -> Tensor:
    """Balanced decision trees: each node asks for the sign of one coordinate, and the leaves hold Gaussian
    numbers.
    """
    n, _, d = x.shape
    coordinates = torch.randint(d, (n, 2**TREE_DEPTH - 1), generator=generator)
    leaves = torch.randn(n, 2**TREE_DEPTH, generator=generator, dtype=torch.float64)
    place = torch.zeros(x.shape[:2], dtype=torch.long)  # number of the node within its level
    for level in range(TREE_DEPTH):
        asked = coordinates.gather(1, 2**level - 1 + place)
        place = 2 * place + (x.gather(2, asked[..., None])[..., 0] > 0)
    return leaves.gather(1, place)


FUNCTIONS: dict[str, Callable[[Tensor, Generator], Tensor]] = {
    "linear": _linear,
    "sparse": _sparse,
    "two layers": _two_layer,
    "tree": _tree,
}


def function_prompts(name: str, n: int, N: int, d: int, *, generator: Generator) -> Prompts:
    """Draws prompts of a class of functions with inputs from N(0, I) and without noise, in float64.

    Args:
        name: a key of :data:`FUNCTIONS`: "linear", "sparse", "two layers" or "tree".
        n, N, d: number of prompts, of examples, and of coordinates.
        generator: draws everything.
    Raises:
        ValueError: the name is unknown, or a number is below 1.
    """
    integers(n=n, N=N, d=d)
    if name not in FUNCTIONS:
        raise ValueError(f"functions must be one of {', '.join(map(repr, FUNCTIONS))}, got {name!r}")
    x = torch.randn(n, N + 1, d, generator=generator, dtype=torch.float64)
    y = FUNCTIONS[name](x, generator)
    return Prompts(x[:, :N], y[:, :N], x[:, N], y[:, N])

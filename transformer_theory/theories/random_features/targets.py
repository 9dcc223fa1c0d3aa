r"""Inputs and targets of the paper's kind.

Query and keys are independent and uniform on the sphere. Targets are averages over keys, :math:`\frac1N
\sum_i F(x_0, x_i)`, so they do not change if keys are permuted. Source: :cite:t:`fu2023what`.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from ...core.validation import integers
from .kernels import Inputs

NAME = "random_features"
D, N = 4, 16
Target = Callable[[Inputs], Float[Tensor, " n"]]


def sphere(n: int, *, keys: int = N, d: int = D, generator: Generator) -> Inputs:
    """Draws n inputs of a query and ``keys`` keys on the unit sphere, ``[n, 1 + keys, d]``.

    Raises:
        ValueError: a number is below 1.
    """
    integers(n=n, keys=keys, d=d)
    x = torch.randn(n, 1 + keys, d, generator=generator, dtype=torch.float64)
    return x / x.norm(dim=-1, keepdim=True)


def square(x: Inputs) -> Float[Tensor, " n"]:
    r"""The mean of :math:`(\beta^\top x_i)^2` over keys, for the first basis vector :math:`\beta`."""
    return x[:, 1:, 0].square().mean(1)


def correlation(x: Inputs) -> Float[Tensor, " n"]:
    """The mean of the squared correlation of query and key."""
    return torch.einsum("nd,nid->ni", x[:, 0], x[:, 1:]).square().mean(1)


def product(x: Inputs) -> Float[Tensor, " n"]:
    r"""The mean of the cubed correlation of query and key times :math:`\beta^\top x_i`."""
    return (torch.einsum("nd,nid->ni", x[:, 0], x[:, 1:]).pow(3) * x[:, 1:, 0]).mean(1)


def first_key(x: Inputs) -> Float[Tensor, " n"]:
    r""":math:`(\beta^\top x_1)^2` of the first key alone, which depends on the order of the keys."""
    return x[:, 1, 0].square()


TARGETS: dict[str, Target] = {
    "mean of (b·x)²": square,
    "mean of ⟨x₀, x⟩²": correlation,
    "mean of ⟨x₀, x⟩³ (b·x)": product,
}

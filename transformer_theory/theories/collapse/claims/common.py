"""Random numbers of the checks, and the sources."""

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from ....core.sources import Source

DONG_OWN, NOCI_OWN = Source("dong2021attention", status="own"), Source("noci2022signal", status="own")
REM = Source("giorlandino2026two", status="own")


def normal(generator: Generator, *shape: int) -> Float[Tensor, "..."]:
    """Draws standard normal numbers, float64."""
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def one_of(generator: Generator, *values: float) -> float:
    """Draws one of the values."""
    return values[int(torch.randint(len(values), (), generator=generator))]


def decades(generator: Generator) -> float:
    """Draws a factor over 3.5 decades, uniform in the logarithm."""
    return 10 ** (3.5 * (float(torch.rand((), generator=generator)) - 0.5))

"""Sources that several files of claims cite, and the sizes of the grids that claims draw."""

import torch

from ....core.sources import Source

CLAIM_1 = Source("yun2020transformers", "Claim 1", "second-hand")
OWN = Source("yun2020transformers", status="own")

GRID = "tokens on the grid, entries 0, 1/k, ..., 1 - 1/k"
EXACT = "exact integer arithmetic"
HARD = "hard-max attention"

Size = tuple[int, int, int]  # k, d, n


def one_of(sizes: tuple[Size, ...], generator: torch.Generator) -> Size:
    """Draws one of the sizes (k, d, n)."""
    return sizes[int(torch.randint(len(sizes), (), generator=generator))]


def listed(sizes: tuple[Size, ...]) -> str:
    """Returns the sizes as an assumption of a claim."""
    return f"(k, d, n) is one of {', '.join(map(str, sizes))}; seeds repeat these {len(sizes)} sizes"

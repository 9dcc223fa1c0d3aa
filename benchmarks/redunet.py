"""Construction of ReduNet: ours against the formulas as written, on digits, and against a loop over
frequencies, on a grid.

Both versions take turns on one thread.
"""

import time
from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks._common import take_turns
from benchmarks._rows import Row, table
from benchmarks.baselines.redunet import frequency_by_frequency, textbook
from transformer_theory.metrics.coding import unit_norm
from transformer_theory.theories.rate_reduction import (
    construct,
    construct_shift_invariant,
    lift,
    random_filters,
)
from transformer_theory.theories.rate_reduction.digit_training import digit_images

SETTINGS = {"eps": 0.1**0.5, "step": 0.5}


def row_of(
    what: str, other: str, size: str, ours: Callable[[], Tensor], baseline: Callable[[], Tensor], rounds: int
) -> Row:
    """Returns the row of two versions, which return the features."""
    times = take_turns({"ours": ours, "baseline": baseline}, rounds, clock=time.process_time)
    error = float((ours() - baseline()).abs().max())
    return Row(what, other, size, times["ours"], times["baseline"], error, "features", target=3)


def main() -> list[Row]:
    """Returns the rows of both networks."""
    images, labels = digit_images()
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[:1300]
    images, labels = images[order], labels[order]
    X = unit_norm(images.flatten(1))
    ours = lambda: construct(X, labels, layers=100, **SETTINGS).features  # noqa: E731
    theirs = lambda: textbook(X, labels, layers=100, **SETTINGS)[0]  # noqa: E731
    digits = row_of(
        "ReduNet on digits",
        "one inverse per class",
        "n = 1,300, d = 64, 10 classes, 100 layers",
        ours,
        theirs,
        7,
    )
    lifted = lift(images[:300], random_filters(16, 1, (3, 3), generator=torch.Generator().manual_seed(0)))
    few = labels[:300]
    ours = lambda: construct_shift_invariant(lifted, few, layers=5, **SETTINGS).features  # noqa: E731
    theirs = lambda: frequency_by_frequency(lifted, few, layers=5, **SETTINGS)  # noqa: E731
    grid = row_of(
        "ReduNet, shift-invariant",
        "loop over frequencies",
        "n = 300, 16 channels on 8 x 8, 5 layers",
        ours,
        theirs,
        5,
    )
    return [digits, grid]


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(table(main()))

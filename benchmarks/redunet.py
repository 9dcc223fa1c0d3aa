"""Construction of ReduNet: ours against the formulas as written, on digits, and against a loop over
frequencies, on a grid.

Both versions take turns on one thread. Times are medians; ratios are medians of the rounds' ratios.
"""

import statistics
from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks._common import ratio, take_turns, verdict
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


def report(
    title: str,
    ours: Callable[[], Tensor],
    baseline: Callable[[], Tensor],
    *,
    rounds: int,
    factor: float,
    limit: float,
) -> None:
    """Prints the times of both versions, after a check that their features agree.

    Args:
        title: first line of the output.
        ours: our version; it returns the features.
        baseline: the version to compare with.
        rounds: number of timed rounds.
        factor: target ratio of the baseline's time to ours.
        limit: target for our time in seconds.
    """
    error = float((ours() - baseline()).abs().max())
    assert error < 1e-9, f"features differ by {error:.1e}"
    times = take_turns({"ours": ours, "baseline": baseline}, rounds)
    gain, seconds = ratio(times, "baseline"), statistics.median(times["ours"])
    print(
        f"{title}\n  ours      {seconds:7.2f} s\n  baseline  {statistics.median(times['baseline']):7.2f} s  "
        f" {gain:.1f}x slower"
    )
    print(f"  target: >= {factor:g}x faster, <= {limit:g} s ({verdict(gain >= factor and seconds <= limit)})")


def main() -> None:
    """Prints times and ratios of both networks."""
    images, labels = digit_images()
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[:1300]
    images, labels = images[order], labels[order]
    X = unit_norm(images.flatten(1))
    ours = lambda: construct(X, labels, layers=100, **SETTINGS).features  # noqa: E731
    theirs = lambda: textbook(X, labels, layers=100, **SETTINGS)[0]  # noqa: E731
    report(
        "ReduNet on digits, n = 1300, d = 64, 10 classes, 100 layers, float64",
        ours,
        theirs,
        rounds=7,
        factor=3,
        limit=4,
    )
    lifted = lift(images[:300], random_filters(16, 1, (3, 3), generator=torch.Generator().manual_seed(0)))
    few = labels[:300]
    ours = lambda: construct_shift_invariant(lifted, few, layers=5, **SETTINGS).features  # noqa: E731
    theirs = lambda: frequency_by_frequency(lifted, few, layers=5, **SETTINGS)  # noqa: E731
    report(
        "shift-invariant, n = 300, 16 channels on 8 x 8, 5 layers, float64",
        ours,
        theirs,
        rounds=5,
        factor=3,
        limit=4,
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()

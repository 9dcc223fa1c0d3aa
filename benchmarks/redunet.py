"""Construction of ReduNet: ours against the formulas as they are written, on digits; on a grid against a loop over frequencies.

Both sides run in turn on one thread; times are medians, ratios medians of the rounds' ratios.
"""

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.baselines.redunet import frequency_by_frequency, textbook
from transformer_theory.metrics.coding import unit_norm
from transformer_theory.theories.rate_reduction import construct, construct_shift_invariant, lift, random_filters
from transformer_theory.theories.rate_reduction.figures.redunet_digits import digit_images

SETTINGS = {"eps": 0.1**0.5, "step": 0.5}


def interleaved(ours: Callable[[], Tensor], theirs: Callable[[], Tensor], rounds: int) -> tuple[list[float], list[float]]:
    """Seconds of each, alternating after one warm-up; the results must agree."""
    error = float((ours() - theirs()).abs().max())
    assert error < 1e-9, f"features differ by {error:.1e}"
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for function, seconds in zip((ours, theirs), times):
            started = time.perf_counter()
            function()
            seconds.append(time.perf_counter() - started)
    return times


def report(title: str, ours: list[float], theirs: list[float], *, factor: float, limit: float) -> None:
    ratio, seconds = statistics.median(b / a for a, b in zip(ours, theirs)), statistics.median(ours)
    print(f"{title}\n  ours      {seconds:7.2f} s\n  baseline  {statistics.median(theirs):7.2f} s   {ratio:.1f}x slower")
    met = "met" if ratio >= factor and seconds <= limit else "MISSED"
    print(f"  target: >= {factor:g}x faster, <= {limit:g} s ({met})")


def main() -> None:
    images, labels = digit_images()
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[:1300]
    images, labels = images[order], labels[order]
    X = unit_norm(images.flatten(1))
    ours = lambda: construct(X, labels, layers=100, **SETTINGS).features  # noqa: E731
    theirs = lambda: textbook(X, labels, layers=100, **SETTINGS)[0]  # noqa: E731
    report("ReduNet on digits, n = 1300, d = 64, 10 classes, 100 layers, float64", *interleaved(ours, theirs, 7), factor=3, limit=4)
    lifted = lift(images[:300], random_filters(16, 1, (3, 3), generator=torch.Generator().manual_seed(0)))
    few = labels[:300]
    ours = lambda: construct_shift_invariant(lifted, few, layers=5, **SETTINGS).features  # noqa: E731
    theirs = lambda: frequency_by_frequency(lifted, few, layers=5, **SETTINGS)  # noqa: E731
    report("shift-invariant, n = 300, 16 channels on 8 x 8, 5 layers, float64", *interleaved(ours, theirs, 5), factor=3, limit=4)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()

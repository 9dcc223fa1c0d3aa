"""Timing of versions that take turns, ratios, targets, and figures, for all benchmarks.

A benchmark with a figure draws it as ``python -m benchmarks.NAME FIGURE.svg``.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from benchmarks.__main__ import header
from transformer_theory.core.files import replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def take_turns(
    versions: Mapping[str, Callable[[], object]],
    rounds: int,
    *,
    clock: Callable[[], float] = time.perf_counter,
    prepare: Callable[[int], object] = lambda number: None,
) -> dict[str, list[float]]:
    """Seconds of each version in each round.

    The versions alternate, so that other jobs on the machine slow all of them alike; one more round in the beginning warms up.

    Args:
        clock: ``time.perf_counter``, or ``time.process_time`` where the machine is shared.
        prepare: called with the number of the round before each version, outside of the time.
    """
    seconds: dict[str, list[float]] = {name: [] for name in versions}
    for number in range(-1, rounds):
        for name, version in versions.items():
            prepare(number)
            started = clock()
            version()
            taken = clock() - started
            if number >= 0:
                seconds[name].append(taken)
    return seconds


def ratio(seconds: Mapping[str, list[float]], other: str, ours: str = "ours") -> float:
    """How many times longer the other version takes: median of the rounds' ratios, since the machine's speed drifts."""
    return statistics.median(theirs / mine for theirs, mine in zip(seconds[other], seconds[ours]))


def verdict(met: bool) -> str:
    """Whether a target is met."""
    return "met" if met else "MISSED"


def write(path: Path, draw: Callable[[str], "Figure"], setting: str) -> None:
    """Writes a figure as SVG; its caption has the setting, the machine and the date.

    Args:
        draw: makes the figure from the caption.
    """
    from transformer_theory.core.plotting import svg

    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as draft:
        draft.write_text(svg(draw(f"{setting}\n{header().replace(chr(10), ' · ')}")), encoding="utf-8")


def command_line(main: Callable[[Path | None], None], about: str | None) -> None:
    """The command line of a benchmark with a figure, on one thread."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("figure", type=Path, nargs="?", help="where to draw it")
    torch.set_num_threads(1)
    main(parser.parse_args().figure)

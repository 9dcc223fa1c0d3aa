"""Tools of all benchmarks: alternating timings, ratios, targets and figures.

A benchmark with a figure draws it on ``python -m benchmarks.NAME FIGURE.svg``.
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
    """Times all versions in turn and returns the seconds of each version in each round.

    Because the versions alternate, other jobs on the machine slow all of them alike. An extra round at the
    start warms up and is not timed.

    Args:
        versions: functions to time, by name.
        rounds: number of timed rounds.
        clock: ``time.perf_counter``, or ``time.process_time`` on a shared machine.
        prepare: function that is called with the number of the round before each version; its time does not
            count.
    """
    seconds: dict[str, list[float]] = {name: [] for name in versions}
    for number in range(-1, rounds):
        for name, version in versions.items():
            prepare(number)
            started = clock()
            version()
            elapsed = clock() - started
            if number >= 0:
                seconds[name].append(elapsed)
    return seconds


def ratio(seconds: Mapping[str, list[float]], other: str, ours: str = "ours") -> float:
    """Returns the time of the other version divided by ours: the median of the rounds' ratios, because the
    machine's speed drifts.
    """
    return statistics.median(theirs / mine for theirs, mine in zip(seconds[other], seconds[ours]))


def verdict(met: bool) -> str:
    """Returns "met" or "MISSED" for a target."""
    return "met" if met else "MISSED"


def write(path: Path, draw: Callable[[str], "Figure"], setting: str) -> None:
    """Writes a figure as SVG. Its caption states the setting, the machine and the date.

    Args:
        path: file to write.
        draw: function that makes the figure from its caption.
        setting: first line of the caption.
    """
    from transformer_theory.core.plotting import svg

    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as draft:
        draft.write_text(svg(draw(f"{setting}\n{header().replace(chr(10), ' · ')}")), encoding="utf-8")


def command_line(main: Callable[[Path | None], object], about: str | None) -> None:
    """Runs a benchmark with a figure on one thread; the command line may name the file of the figure."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("figure", type=Path, nargs="?", help="where to draw it")
    torch.set_num_threads(1)
    main(parser.parse_args().figure)

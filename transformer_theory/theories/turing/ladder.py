r"""The ladder: how long the transformer runs a machine as arithmetic gets coarser and attention softer.

The quantity is the share of the steps before the first wrong state, symbol or head, mean over three machines
that rewrite cells. Its null replaces the attention of the third layer: the symbol of a cell that was visited
before is the one written at a random earlier time. It is not zero, because no cell is visited twice while the
word is read, and because two times may have the same symbol. A second null knows the cell and not the time:
the symbol is that of a random earlier visit of the same cell.

The rungs of softmax return to float64, and the last one to hard-max: after bfloat16 nothing is left to lose.
Source: :cite:t:`perez2021attention`.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from ...core.ladder import Ladder, Rung
from ...core.measurement import Measurement, Null
from ...core.sources import Source
from ...core.statistics import LADDER_DRAWS
from .claims.construction import without_tie_break
from .claims.instances import Run, rewriting_runs
from .construction import PerezTransformer, compile_machine
from .machine import TuringMachine

NAME, SOURCE = "turing", Source("perez2021attention")
FLOAT64: dict[str, Any] = {"arithmetic": "float64"}
STEPS = 300  # float64 does not fail in them, float32 fails in most runs
FIRST_ERROR = "share of the steps before the first error"
NULL_KIND, VISITS = "symbols of random earlier times", "symbols of random visits of the same cell"


def chance(run: Run, draws: int, generator: torch.Generator) -> dict[str, np.ndarray]:
    """Draws the share of the steps before the first error if the symbol of a visited cell is that of a random
    earlier time.

    Up to the first error all configurations are the machine's, so only the symbols have to be compared.

    Returns:
        Shares by kind of the null, ``[draws]``: any earlier time, or an earlier visit of the same cell.
    """
    machine, trace = run.machine, run.reference
    codes = {symbol: number for number, symbol in enumerate(machine.alphabet)}
    written = np.array([codes[symbol] for symbol in run.written])
    symbols, heads, times = (
        np.array([codes[s] for s in trace.symbols]),
        np.array(trace.heads),
        np.arange(1, run.steps + 1),
    )
    visited = np.array(trace.attended[1:]) < times - 1
    uniform = torch.rand(2, draws, run.steps, generator=generator, dtype=torch.float64).numpy()
    drawn = {NULL_KIND: (uniform[0] * times).astype(int), VISITS: np.zeros((draws, run.steps), dtype=int)}
    for time in times[visited]:
        visits = np.flatnonzero(heads[:time] == heads[time])
        drawn[VISITS][:, time - 1] = visits[(uniform[1, :, time - 1] * len(visits)).astype(int)]
    shares = {}
    for kind, earlier in drawn.items():
        wrong = visited & (written[earlier] != symbols[1:])
        shares[kind] = np.where(wrong.any(1), wrong.argmax(1), run.steps) / run.steps
    return shares


def measure(
    generator: torch.Generator,
    build: Callable[[TuringMachine], PerezTransformer] = compile_machine,
    **settings,
) -> Iterator[Measurement]:
    """Measures the mean share over a counter, a zigzag and a random walk that the generator draws, with the
    weights of ``build``.
    """
    runs = rewriting_runs(generator, STEPS)
    shares = [
        build(run.machine).run(run.word, run.steps, **settings).agreement(run.reference) for run in runs
    ]
    draws = [chance(run, LADDER_DRAWS, generator) for run in runs]
    note = ", ".join(f"{run.name} {share:.2f}" for run, share in zip(runs, shares))
    nulls = tuple(
        Null(kind, tuple(np.mean([each[kind] for each in draws], axis=0).tolist()))
        for kind in (NULL_KIND, VISITS)
    )
    columns = {"predicted": 1.0, "nulls": nulls, "n": len(runs), "source": SOURCE}
    yield LADDER.row(NAME, float(np.mean(shares)), note=note, **columns)


def without_inverse_square(machine: TuringMachine) -> PerezTransformer:
    """Builds the transformer without the position 1/p^2."""
    return without_tie_break(compile_machine(machine))


def _rung(column: str, name: str, relaxes: str, *, covered: bool = False, **settings) -> Rung:
    return Rung(name, relaxes, partial(measure, **settings), column, covered=covered)


def _soft(power: int) -> Rung:
    relaxes = (
        "hard-max attention (in float64)" if power == 12 else f"a larger inverse temperature than 1e{power}"
    )
    return _rung(
        "softmax",
        f"softmax at 1e{power}",
        relaxes,
        **FLOAT64,
        score="softmax",
        inverse_temperature=10.0**power,
    )


LADDER = Ladder(quantity=FIRST_ERROR, unit="share", side=">=", null_kind=NULL_KIND)
LADDER = replace(
    LADDER,
    rungs=(
        _rung("exact construction", "exact arithmetic", "", covered=True, arithmetic="exact"),
        _rung("floating point", "float64", "exact arithmetic", **FLOAT64),
        _rung("floating point", "float32", "53 binary digits", arithmetic="float32"),
        _rung("floating point", "bfloat16", "24 binary digits", arithmetic="bfloat16"),
        *(_soft(power) for power in (12, 8, 6, 4, 3)),
        _rung(
            "relaxed encoding",
            "positions p and 1/p",
            "the position 1/p^2 (hard-max, float64)",
            build=without_inverse_square,
            **FLOAT64,
        ),
    ),
)

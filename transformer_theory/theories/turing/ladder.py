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
from typing import Any

import numpy as np
import torch

from ...core.ladder import Ladder, Measure
from ...core.measurement import Measurement, Null
from ...core.sources import Source
from ...core.statistics import LADDER_DRAWS
from .claims.construction import without_tie_break
from .claims.instances import Run, rewriting_runs
from .construction import PerezTransformer, compile_machine
from .machine import TuringMachine

NAME = "turing"
STEPS = 300  # float64 does not fail in them, float32 fails in most runs
FIRST_ERROR = "share of the steps before the first error"
NULL_KIND, VISITS = "symbols of random earlier times", "symbols of random visits of the same cell"
LADDER = Ladder(
    theory=NAME,
    quantity=FIRST_ERROR,
    unit="share",
    side=">=",
    null=NULL_KIND,
    source=Source("perez2021attention"),
)


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


def softmax(temperature: str, *, relaxes: str) -> Callable[[Measure], Measure]:
    """Adds a rung with softmax attention at this inverse temperature, in float64."""
    return LADDER.rung(
        f"softmax at {temperature}",
        relaxes=relaxes,
        column="softmax",
        arithmetic="float64",
        score="softmax",
        inverse_temperature=float(temperature),
    )


def without_inverse_square(machine: TuringMachine) -> PerezTransformer:
    """Builds the transformer without the position 1/p^2."""
    return without_tie_break(compile_machine(machine))


@LADDER.rung("exact arithmetic", column="exact construction", covered=True, arithmetic="exact")
@LADDER.rung("float64", relaxes="exact arithmetic", column="floating point", arithmetic="float64")
@LADDER.rung(
    "float32", relaxes="24 binary digits instead of 53", column="floating point", arithmetic="float32"
)
@LADDER.rung(
    "bfloat16", relaxes="8 binary digits instead of 24", column="floating point", arithmetic="bfloat16"
)
@softmax("1e12", relaxes="hard-max attention (in float64)")
@softmax("1e8", relaxes="inverse temperature 1e8 instead of 1e12")
@softmax("1e6", relaxes="inverse temperature 1e6 instead of 1e8")
@softmax("1e4", relaxes="inverse temperature 1e4 instead of 1e6")
@softmax("1e3", relaxes="inverse temperature 1e3 instead of 1e4")
@LADDER.rung(
    "positions p and 1/p",
    relaxes="the position 1/p^2 (hard-max, float64)",
    column="relaxed encoding",
    build=without_inverse_square,
    arithmetic="float64",
)
def measure(
    generator: torch.Generator,
    *,
    build: Callable[[TuringMachine], PerezTransformer] = compile_machine,
    **settings: Any,
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
    yield LADDER.row(float(np.mean(shares)), predicted=1.0, nulls=nulls, n=len(runs), note=note)

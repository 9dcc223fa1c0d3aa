"""Work that kills the process that does it, once: a metric, the check of a claim, and a rung. A file marks
that it has happened.
"""

import contextlib
import os
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from transformer_theory.core.claims import Claim, but
from transformer_theory.core.ladder import COLUMNS, Ladder, Rung
from transformer_theory.core.measurement import Null
from transformer_theory.core.metric import Activations, Metric
from transformer_theory.core.sources import Source
from transformer_theory.core.theory import Theory

LADDER = Ladder(theory="toy", quantity="height", side=">=", null="normal draws")


def die_once(marker: Path) -> None:
    with contextlib.suppress(FileExistsError):
        marker.touch(exist_ok=False)
        os.kill(os.getpid(), signal.SIGKILL)


class Lethal(Metric):
    """Has no rows; kills the process at the third measurement of one network."""

    kinds = ("attention",)

    def __init__(self, marker: Path):
        self.marker, self.count = marker, 0
        super().__init__()

    def update(self, activations: Activations) -> None:
        self.count += 1
        if self.count == 3:
            die_once(self.marker)

    def compute(self, *, draws: int = 0, generator: torch.Generator | None = None) -> list:
        return []

    def reset(self) -> None:
        pass


def lethal(marker: Path) -> list[Metric]:
    return [Lethal(marker)]


def measured(marker: Path, generator: torch.Generator) -> float:
    """A random number; on seed 1 the process dies first."""
    if generator.initial_seed() == 1:
        die_once(marker)
    return float(torch.rand((), generator=generator))


def control(generator: torch.Generator) -> float:
    return 2.0


def claims(marker: Path) -> list[Claim]:
    fields = {"statement": "$v$", "measures": "v", "assumptions": ("none",), "op": "<=", "threshold": 1.0}
    fields |= {"source": Source("tian2023scan"), "change": but("none", control)}
    return [Claim(id=f"toy/{name}", function=partial(measured, marker), **fields) for name in ("one", "two")]


def rung(marker: Path, generator: torch.Generator):
    if generator.initial_seed() == 1:
        die_once(marker)
    value, *null = torch.randn(20, generator=generator, dtype=torch.float64).tolist()
    yield LADDER.row(value, nulls=(Null("normal draws", tuple(null)),), predicted=1.0)


def theory(marker: Path) -> Theory:
    names = (("own", ""), ("real", "an assumption"))
    rungs = tuple(
        Rung(name, relaxes, partial(rung, marker), column) for (name, relaxes), column in zip(names, COLUMNS)
    )
    ladder = replace(LADDER, rungs=rungs)
    return Theory(
        "toy", "Toy", "Which?", "None.", sources=(), assumptions=("none",), claims=(), ladder=ladder
    )

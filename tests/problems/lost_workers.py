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

from transformer_theory.core.claims import Claim, Evidence
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


def measured(marker: Path, generator: torch.Generator) -> Evidence:
    """A random number; on seed 1 the process dies first."""
    if generator.initial_seed() == 1:
        die_once(marker)
    return Evidence(float(torch.rand((), generator=generator)), 1.0, "<=")


def control(generator: torch.Generator) -> Evidence:
    return Evidence(2.0, 1.0, "<=")


def claims(marker: Path) -> list[Claim]:
    fields = {"statement": "$v$", "measures": "v", "assumptions": ("none",), "control_description": "none"}
    fields |= {"source": Source("tian2023scan"), "control": control}
    return [Claim(id=f"toy/{name}", check=partial(measured, marker), **fields) for name in ("one", "two")]


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

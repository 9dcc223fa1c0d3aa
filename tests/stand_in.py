"""A theory made up for the tests of the frame: quick, and with claims of every verdict. It stands in for the rooms."""

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from transformer_theory.core.claims import Claim, Evidence
from transformer_theory.core.experiment import RandomExperiment, sweep
from transformer_theory.core.measurement import Arrays, Row, finding
from transformer_theory.core.result import Result
from transformer_theory.core.sources import Source
from transformer_theory.core.theory import Theory
from transformer_theory.data import TokenData

SOURCE = Source("tian2023scan", "Sec. 2")


@dataclass(frozen=True)
class Coin(RandomExperiment):
    """Throws a coin."""

    throws: int = 1000
    bias: float = 0.5
    fair_only: bool = False
    widths: tuple[int, ...] = (1, 2)

    name = "stand_in.coin"
    sources = (SOURCE,)

    @classmethod
    def quick(cls) -> "Coin":
        return cls(throws=20)

    def measure(self) -> Iterator[Row | Arrays]:
        if self.fair_only and self.bias != 0.5:
            raise ValueError(f"bias must be 0.5 for a fair coin, got {self.bias}; drop --fair-only")
        heads = torch.rand(self.throws, generator=self.generator()) < self.bias
        yield Row(
            theory="stand_in",
            quantity="share of heads",
            value=float(heads.double().mean()),
            predicted=self.bias,
            basis="theory",
            step=self.throws,
        )
        for width, found in zip(self.widths, sweep(_area, [{"width": width} for width in self.widths])):
            yield Row(theory="stand_in", quantity=f"area of width {width}", value=found)
        yield Arrays({"stand_in/heads": heads.numpy()})

    def draw(self, result: Result):
        from transformer_theory.core.plotting import axes

        figure, grid = axes(1, 1)
        np.ravel(grid)[0].plot(np.cumsum(result.arrays["stand_in/heads"]))
        return figure


def _area(*, width: int) -> float:
    return float(width**2)


def _claim(name: str, value: float, control: float) -> Claim:
    return Claim(
        f"stand_in/{name}",
        "$v \\le 1$",
        SOURCE,
        ("v is a number",),
        lambda generator: Evidence(value, 1.0, "<="),
        lambda generator: Evidence(control, 1.0, "<="),
        "v is replaced",
    )


def _measure(data: TokenData, generator: torch.Generator) -> Iterator[Row | Arrays]:
    yield finding("stand_in", "largest token", Evidence(float(data.tokens.abs().max()), 1.0, "<="), source=SOURCE)


def _draw(result: Result):
    from transformer_theory.core.plotting import axes

    return axes(1, 1)[0]


THEORY = Theory(
    name="stand_in",
    title="A stand-in",
    question="Are tokens small?",
    statement="$v \\le 1$",
    sources=(SOURCE,),
    assumptions=("v is a number",),
    claims=(_claim("good", 0.5, 2.0), _claim("violated", 2.0, 3.0), _claim("powerless", 0.5, 0.6)),
    experiments=(Coin,),
    needs=(),
    predict_and_measure=_measure,
    reducers=lambda: (),
    draw=_draw,
    order_parameter="nothing",
    answer="largest token",
)


def install(monkeypatch) -> None:
    """Puts this theory in the place of all rooms, for the length of a test."""
    for module in ("transformer_theory.theories", "transformer_theory.compare"):
        monkeypatch.setattr(importlib.import_module(module), "THEORIES", (THEORY,))


def process(*arguments, **options):
    """The command line in a process of its own, with the real rooms."""
    environment = {k: v for k, v in os.environ.items() if k != "COLUMNS"}
    return subprocess.Popen(
        [sys.executable, "-m", "transformer_theory", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        **options,
    )

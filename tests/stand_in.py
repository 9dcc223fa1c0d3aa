"""A theory made up for the tests of the frame: quick, and with claims of every verdict."""

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from transformer_theory.core.claims import Claim, but
from transformer_theory.core.experiment import RandomExperiment, sweep
from transformer_theory.core.ladder import Ladder
from transformer_theory.core.measurement import Measurement, judge
from transformer_theory.core.result import Result
from transformer_theory.core.sources import Source
from transformer_theory.core.table import Arrays
from transformer_theory.core.theory import InNetworks, OnData, Theory
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

    def measure(self) -> Iterator[Measurement | Arrays]:
        if self.fair_only and self.bias != 0.5:
            raise ValueError(f"bias must be 0.5 for a fair coin, got {self.bias}; drop --fair-only")
        heads = torch.rand(self.throws, generator=self.generator()) < self.bias
        yield Measurement(
            "stand_in",
            "figure",
            "share of heads",
            float(heads.double().mean()),
            predicted=self.bias,
            step=self.throws,
        )
        for width, area in zip(self.widths, sweep(_area, [{"width": width} for width in self.widths])):
            yield Measurement("stand_in", "figure", "area", area, at={"setting": f"width {width}"})
        yield Arrays({"stand_in/heads": heads.numpy()})

    def plot(self, result: Result):
        from transformer_theory.core.plotting import axes

        figure, grid = axes(1, 1)
        np.ravel(grid)[0].plot(np.cumsum(result.arrays["stand_in/heads"]))
        return figure


def _area(*, width: int) -> float:
    return float(width**2)


def _claim(name: str, value: float, control: float) -> Claim:
    return Claim(
        id=f"stand_in/{name}",
        statement="$v \\le 1$",
        measures="v",
        op="<=",
        threshold=1.0,
        source=SOURCE,
        assumptions=("v is a number",),
        function=lambda generator: value,
        change=but("v is replaced", lambda generator: control),
    )


def _measure(data: TokenData, generator: torch.Generator, *, draws: int) -> Iterator[Measurement | Arrays]:
    value = float(data.tokens.abs().max())
    verdict = judge(value, "<=", 1.0)
    yield Measurement(
        "stand_in", "on data", "largest token", value, op="<=", threshold=1.0, verdict=verdict, source=SOURCE
    )


def _plot(result: Result):
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
    ladder=Ladder(theory="stand_in", quantity="largest token", side="<=", null="none"),
    experiments=(Coin,),
    on_data=OnData(read=lambda data: data, measure=_measure, headline="largest token", plot=_plot),
    in_networks=InNetworks(metrics=lambda: (), headline="nothing"),
)


def install(monkeypatch) -> None:
    """Puts this theory in place of all others, for the length of a test."""
    replace_theories(monkeypatch, THEORY)


def replace_theories(monkeypatch, *records: Theory) -> None:
    """Puts these records in place of all theories, for the length of a test."""
    module = importlib.import_module("transformer_theory.theories")
    catalogue = importlib.import_module("transformer_theory.cli.catalogue")
    module.list_theories()  # it caches what it returns, which must not be these records
    monkeypatch.setattr(module, "THEORIES", tuple(record.name for record in records))
    monkeypatch.setattr(module, "list_theories", lambda: records)
    monkeypatch.setattr(module, "_imported", lambda name: {record.name: record for record in records}[name])
    monkeypatch.setattr(catalogue, "stored", lambda: [catalogue.texts_of(record) for record in records])


# the command line with a log of every stage of progress
LOGGING = """
import sys
from transformer_theory.cli import main
from transformer_theory.core import progress
progress.LOGGED = 0.0
sys.exit(main())
"""


def process(*arguments, logs=False, **options):
    """The command line in a process of its own, with the real theories. ``logs``: whether it prints every
    stage of its progress, not one in five seconds.
    """
    environment = {k: v for k, v in os.environ.items() if k != "COLUMNS"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": environment}
    program = ["-c", LOGGING] if logs else ["-m", "transformer_theory"]
    return subprocess.Popen([sys.executable, *program, *arguments], **{**pipes, **options})

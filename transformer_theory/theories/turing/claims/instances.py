"""Random machines and words of the claims and of the ladder, and the sources that they cite."""

from dataclasses import dataclass, replace
from functools import cached_property

import torch

from ....core.sources import Source
from ..construction import PerezTransformer, compile_machine
from ..machine import Trace, TuringMachine
from ..machines import random_machine, random_walk, repeated_counter, zigzag

SETTING = Source("perez2021attention", status="own")
SECOND_HAND = Source("perez2021attention", status="second-hand")


@dataclass(frozen=True)
class Run:
    """A machine in normal form, a word and a number of steps.

    Attributes:
        name: name of the machine's kind.
        machine: machine in normal form.
        word, steps: word and number of steps.
    """

    name: str
    machine: TuringMachine
    word: str
    steps: int

    @cached_property
    def transformer(self) -> PerezTransformer:
        """The transformer that runs the machine."""
        return compile_machine(self.machine)

    @cached_property
    def reference(self) -> Trace:
        """The machine's own trace."""
        return self.machine.run(self.word, self.steps)

    @cached_property
    def written(self) -> tuple[str, ...]:
        """The symbol that the machine writes at each time."""
        return tuple(
            self.machine.step(q, s)[1] for q, s in zip(self.reference.states, self.reference.symbols)
        )

    def trace(self, **settings) -> Trace:
        """Returns the transformer's trace; the settings are those of :meth:`.PerezTransformer.run`."""
        return self.transformer.run(self.word, self.steps, **settings)


def integer(low: int, high: int, generator: torch.Generator) -> int:
    """Draws an integer from ``low`` to ``high``."""
    return int(torch.randint(low, high + 1, (), generator=generator))


def letters(length: int, generator: torch.Generator, symbols: str = "01") -> str:
    """Draws a word of two symbols."""
    return "".join(symbols[k] for k in torch.randint(2, (length,), generator=generator).tolist())


def rewriting_runs(generator: torch.Generator, steps: int) -> tuple[Run, ...]:
    """Draws three machines that rewrite cells: a repeated counter, a zigzag of width 5 to 20 and a closed
    random walk of 40 steps.

    The counter has 8 to 12 digits, all zero at the start.
    """
    counter = Run("counter", repeated_counter().normalise(), "0" * integer(8, 12, generator), steps)
    turning = Run("zigzag", zigzag(integer(5, 20, generator)).normalise(), "", steps)
    walk = Run("random walk", random_walk(40, generator).normalise(), "", steps)
    return counter, turning, walk


def random_run(generator: torch.Generator, steps: int) -> Run:
    """Draws a machine with four states and a random table, and a word of six bits."""
    return Run("random table", random_machine(4, generator).normalise(), letters(6, generator), steps)


def runs_without_normal_form(generator: torch.Generator, walks: int) -> tuple[Run, ...]:
    """Draws a random table with moves by 0, and walks over words of 20 bits that start on cell 0 and do not
    read the word first.
    """
    machines = [replace(random_walk(40, generator), first_cell=0) for _ in range(walks)]
    early = (Run("random walk", machine, letters(20, generator), 60) for machine in machines)
    return Run("random table", random_machine(4, generator), letters(6, generator), 30), *early

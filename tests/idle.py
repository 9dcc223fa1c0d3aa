"""An experiment that sweeps over nothing, in a module that knows of no sweep."""

from collections.abc import Iterator
from dataclasses import dataclass

from tests.stand_in import SOURCE
from transformer_theory.core.experiment import Experiment
from transformer_theory.core.measurement import Row


@dataclass(frozen=True)
class Still(Experiment):
    """Measures one number."""

    name = "stand_in.still"
    sources = (SOURCE,)

    def measure(self) -> Iterator[Row]:
        yield Row(theory="stand_in", quantity="q", value=1.0)

"""What every theory reads in a network on held-out images, beside what untrained networks of the same sizes read on them.

Source: the theories', each row names its own.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import nn

from ..data.image_data import Images
from ..probes import AttentionStatistics, Geometry, NeuralCollapse, NoAttention, Probe, Reducer, Remembering, probe
from ..rows import Row, not_applicable
from ..theory import Theory
from .objectives.reading import scaled

READ = 256  # held-out images of a reading: constraints of a few hundred sequences are enough, and it takes well under a second
AT_A_TIME = 128  # of them, whose attention maps are in memory together
UNTRAINED = 3  # networks behind the null "random weights"

Place = tuple[str, str, int | None, int | None]


class Observer:
    """Reads a network through every theory.

    Args:
        images: held-out ones; the first :data:`READ` are read.
        theories: whose order parameters are read; statistics of attention, geometry and collapse of classes are added.
        name: column ``model``.
        untrained: makes networks with random weights: the null of quantities whose reducer has none of its own.
    Raises:
        ValueError: there are no images.
    """

    def __init__(self, images: Images, theories: Sequence[Theory], *, name: str, untrained: Callable[[int], nn.Module]):
        if not len(images):
            raise ValueError("there must be held-out images to read, got none")
        self.images, self.name = images[:READ], name
        try:  # fresh reducers each time: some look back at the reading before, which must not be of another network
            self.nulls = means([self._probed(untrained(number), 0, _reducers(theories)).rows for number in range(UNTRAINED)])
        except NoAttention:
            self.nulls = {}
        self.reducers = _reducers(theories)

    def memory(self) -> list[dict]:
        """What the reducers that look back carry from reading to reading."""
        return [reducer.memory() for reducer in self.reducers if isinstance(reducer, Remembering)]

    def remember(self, memory: Sequence[dict]) -> None:
        """Takes up a :meth:`memory`, so that what was interrupted reads on as if it had not been.

        Raises:
            ValueError: it is that of other theories.
        """
        own = [reducer for reducer in self.reducers if isinstance(reducer, Remembering)]
        if len(own) != len(memory):
            raise ValueError(f"a memory of {len(own)} reducers was expected, got one of {len(memory)}; give the same theories")
        for reducer, carried in zip(own, memory):
            reducer.remember(carried)

    def read(self, model: nn.Module, step: int) -> list[Row]:
        """The rows of a network at a step, at the first one with a row for each theory that can read nothing in it.

        Its mode is restored, and no random numbers are drawn.
        """
        try:
            found = self._probed(model, step, self.reducers)
        except NoAttention:
            none = not_applicable("network", "the network has no attention maps")
            return [] if step else [Row(**{**none, "model": self.name, "step": step})]
        rows = found.rows if step else found.result().table
        fill_nulls(rows, self.nulls)
        return rows

    def _probed(self, model: nn.Module, step: int, reducers: Sequence[Reducer]) -> Probe:
        parameter = next(model.parameters())
        training = model.training
        model.eval()
        try:
            with probe(model, reducers, name=self.name) as p, torch.no_grad(), p.together(step):
                for pixels, labels in zip(self.images.pixels.split(AT_A_TIME), self.images.labels.split(AT_A_TIME)):
                    p.labels = labels
                    model(scaled(pixels, parameter))
        finally:
            model.train(training)
        return p


def _reducers(theories: Sequence[Theory]) -> list[Reducer]:
    own = [reducer for theory in theories for reducer in theory.reducers()]
    return [*own, AttentionStatistics(), Geometry(), NeuralCollapse()]


def place(row: Row) -> Place:
    """What a row is about, whatever the step: theory, quantity, layer and head."""
    return row["theory"], row["quantity"], row.get("layer"), row.get("head")


def means(readings: Sequence[Sequence[Row]]) -> dict[Place, float]:
    """The mean of each quantity over readings of several networks."""
    found: dict[Place, list[float]] = {}
    for rows in readings:
        for row in rows:
            if row["value"] is not None:
                found.setdefault(place(row), []).append(row["value"])
    return {where: float(np.mean(values)) for where, values in found.items()}


def fill_nulls(rows: Sequence[Row], nulls: dict[Place, float]) -> None:
    """Gives each row without a null the one of its place, in place."""
    for row in rows:
        if row.get("null") is None and place(row) in nulls:
            row["null"] = nulls[place(row)]

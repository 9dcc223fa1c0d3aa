"""What every theory reads in a network on held-out images, beside what untrained networks of the same sizes read on them.

Attention is read on a few hundred images; features by class on many more, for rates and collapse of classes are biased by few samples, and
cost no more than a forward pass. What rows are read from stands in their notes.
Source: the theories', each row names its own.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..core.measurement import Row, not_applicable
from ..core.notes import annotate
from ..core.parallel import one_thread
from ..core.theory import Theory
from ..data.image_data import Images
from ..models import CRATEMAE
from ..probes import AttentionStatistics, Geometry, NeuralCollapse, NoAttention, Probe, Reducer, Remembering, probe
from ..probes.class_features import ClassFeatures
from .networks import Pixels
from .objectives.masked_autoencoding import Completion
from .objectives.reading import scaled

READ = 256  # images of a reading: constraints of a few hundred sequences are enough, and it takes well under a second
READ_BY_CLASS = 3_072  # images whose features are read by class: beyond them value and null fall together, see docs/probes.md
AT_A_TIME, BY_CLASS_AT_A_TIME = 128, 512  # images whose attention maps, or features alone, are in memory together
UNTRAINED = 3  # networks behind the null "random weights"

Place = tuple[str, str, int | None, int | None]
Null = tuple[float, str]  # the mean over untrained networks, and in words how many they are and how far apart


class Encoder(nn.Module):
    """The encoder of a masked autoencoder, nothing hidden: ``[b, c, h, w] -> [b, 1 + seq, dim]``, the class token first.

    Source: :cite:t:`pai2024masked`.
    """

    def __init__(self, autoencoder: CRATEMAE):
        super().__init__()
        self.autoencoder = autoencoder

    @property
    def cls_token(self) -> Tensor:
        """The first token, ``[1, 1, dim]``."""
        return self.autoencoder.cls_token

    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b n dim"]:
        return self.autoencoder.encode(images)


def reader_of(model: nn.Module) -> nn.Module:
    """The network as theories read it, images in [0, 1] in: of a masked autoencoder the encoder, with nothing hidden; else the network."""
    if not isinstance(model, Pixels) or not isinstance(model.network, Completion):
        return model
    encoder = Encoder(model.network.autoencoder)
    return Pixels(encoder, model.mean.flatten(), model.std.flatten()).train(model.training)


class Observer:
    """Reads a network through every theory.

    Args:
        images: in random order; the first :data:`READ` are read, features by class of the first :data:`READ_BY_CLASS`.
        theories: whose order parameters are read; :func:`and_general` adds others.
        name: column ``model``.
        untrained: makes networks with random weights: the null of quantities whose reducer has none of its own.
        kind: of images, for the notes.
    Raises:
        ValueError: there are no images.
    """

    def __init__(
        self,
        images: Images,
        theories: Sequence[Theory],
        *,
        name: str,
        untrained: Callable[[int], nn.Module],
        kind: str = "held-out",
    ):
        if not len(images):
            raise ValueError("there must be held-out images to read, got none")
        self.images, self.name, self.kind = images[:READ_BY_CLASS], name, kind
        try:  # fresh reducers each time: some look back at the reading before, which must not be of another network
            self.nulls = nulls_of([self._rows(untrained(number), _reducers(theories)) for number in range(UNTRAINED)])
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
            rows = self._rows(model, self.reducers, step)
        except NoAttention:
            none = not_applicable("network", "the network has no attention maps")
            return [] if step else [Row(**{**none, "model": self.name, "step": step})]
        fill_nulls(rows, self.nulls)
        return rows

    def _rows(self, model: nn.Module, reducers: Sequence[Reducer], step: int = 0) -> list[Row]:
        by_class = [reducer for reducer in reducers if isinstance(reducer, ClassFeatures)]
        others = [reducer for reducer in reducers if not isinstance(reducer, ClassFeatures)]
        with one_thread():
            rows = self._read(model, step, others, self.images[:READ], AT_A_TIME)
        return rows + self._read(model, step, by_class, self.images, BY_CLASS_AT_A_TIME)

    def _read(self, model: nn.Module, step: int, reducers: Sequence[Reducer], images: Images, at_a_time: int) -> list[Row]:
        found = self._probed(model, step, reducers, images, at_a_time)
        rows = found.rows if step else [*found.rows, *found.silent()]
        annotate(rows, f"{len(images):,} {self.kind} images")
        return rows

    def _probed(self, model: nn.Module, step: int, reducers: Sequence[Reducer], images: Images, at_a_time: int) -> Probe:
        parameter = next(model.parameters())
        training = model.training
        model.eval()
        reader = reader_of(model)
        try:
            with probe(reader, reducers, name=self.name) as p, torch.no_grad(), p.together(step):
                for pixels, labels in zip(images.pixels.split(at_a_time), images.labels.split(at_a_time)):
                    p.labels = labels
                    reader(scaled(pixels, parameter))
        finally:
            model.train(training)
        return p


def _reducers(theories: Sequence[Theory]) -> list[Reducer]:
    return and_general([reducer for theory in theories for reducer in theory.reducers()])


def and_general(own: Sequence[Reducer]) -> list[Reducer]:
    """The theories' reducers, and those of no theory: statistics of attention, geometry of the features, collapse of classes."""
    return [*own, AttentionStatistics(), Geometry(), NeuralCollapse()]


def place(row: Row) -> Place:
    """What a row is about, whatever the step: theory, quantity, layer and head."""
    return row["theory"], row["quantity"], row.get("layer"), row.get("head")


def nulls_of(readings: Sequence[Sequence[Row]]) -> dict[Place, Null]:
    """Each quantity's null by readings of several untrained networks."""
    found: dict[Place, list[float]] = {}
    for rows in readings:
        for row in rows:
            if row["value"] is not None:
                found.setdefault(place(row), []).append(row["value"])
    return {where: (float(np.mean(values)), _told(values)) for where, values in found.items()}


def _told(values: Sequence[float]) -> str:
    return f"{len(values)} untrained networks: {min(values):.3g} to {max(values):.3g}"


def fill_nulls(rows: Sequence[Row], nulls: dict[Place, Null]) -> None:
    """Gives each row without a null the one of its place, in place; the note tells its spread."""
    for row in rows:
        if row.get("null") is None and place(row) in nulls:
            row["null"], told = nulls[place(row)]
            annotate([row], told)

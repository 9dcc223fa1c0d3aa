"""A network on inputs, with and without a change of its forward pass.

Outputs of the unchanged network are computed once. All numbers are those of single sequences
(:mod:`.sample`), so that effects are paired.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..core.intervention import Attended, Change, Site
from ..core.statistics import fixed_generator
from .changed_pass import ChangedAttention, changed_attention, check_changed
from .evaluation import evaluation, logits_of
from .passes import Inputs, run, selected
from .sample import Sample

BATCH = 64  # largest number of sequences per forward pass
ENTRIES = 2**23  # largest number of weights of one attention, or of outputs, in a forward pass
FEWEST = 4  # sequences on which controls are drawn at least, if there are as many
FOR_EFFECTS = 0.4  # of the time, for the effects of the changes themselves
CHANGED_PASS = 1.6  # times the duration of a pass, that of a changed one


@dataclass(frozen=True)
class Effects:
    """Numbers of each sequence with and without a change, by the name of the measure, ``[n]``."""

    unchanged: Mapping[str, Float[Tensor, " n"]]
    changed: Mapping[str, Float[Tensor, " n"]]

    def difference(self, name: str) -> Float[Tensor, " n"]:
        """Returns the paired differences of one measure."""
        return self.changed[name] - self.unchanged[name]


class Subject:
    """A network on inputs. Its unchanged outputs are computed once, when they are first needed.

    Args:
        model: the network.
        sample: inputs.
    """

    def __init__(self, model: nn.Module, sample: Sample):
        if sample.numbers is None:
            sample = replace(sample, numbers=torch.arange(len(sample)))
        self.model, self.sample, self.measures = model, sample, sample.measures()

    @property
    def unchanged(self) -> dict[str, Float[Tensor, " n"]]:
        """Numbers of each sequence without a change, by the name of the measure."""
        return self._own[1]

    @cached_property
    def _own(self) -> tuple[Tensor, dict[str, Float[Tensor, " n"]]]:
        """The largest unchanged outputs, and the numbers of the unchanged network."""
        with evaluation(self.model):
            return self._numbers(None)

    def places(self, n: int) -> Int[Tensor, " chosen"]:
        """Returns the places of n of the sequences, drawn at random; fewer are among more."""
        if n >= len(self.sample):
            return torch.arange(len(self.sample))
        return torch.randperm(len(self.sample), generator=fixed_generator())[:n].sort().values

    def on_some(self, n: int) -> "Subject":
        """Returns the network on n of its sequences, see :meth:`places`."""
        if n >= len(self.sample):
            return self
        which = self.places(n)
        some = Subject(self.model, self.sample.part(which))
        some.measures = self.measures
        some._own = self._own[0][which], {name: numbers[which] for name, numbers in self.unchanged.items()}
        return some

    def _batches(self) -> Iterator[Sample]:
        # Batches of nearly equal size: some changes need another sequence of the batch.
        n = len(self.sample)
        for part in torch.arange(n).tensor_split(math.ceil(n / self.sample.batch)):
            yield self.sample.part(part)

    def _run(self, batch: Sample) -> Tensor:
        outputs = logits_of(run(self.model, batch.inputs))
        assert outputs is not None  # a first pass has shown that there are some
        return outputs.cpu()

    def _numbers(
        self, unchanged: Tensor | None, changed: ChangedAttention | None = None
    ) -> tuple[Tensor, dict[str, Float[Tensor, " n"]]]:
        """Runs the network, and returns its largest outputs and its numbers.

        Args:
            unchanged: largest outputs of the unchanged network. None: this is the unchanged network.
            changed: its changes, which receive the numbers of the sequences.
        """
        own: list[Tensor] = []
        found: dict[str, list[Tensor]] = {measure.name: [] for measure in self.measures}
        first = 0
        for batch in self._batches():
            if changed is not None:
                changed.numbers = batch.numbers
            outputs = self._run(batch)
            own.append(outputs.argmax(-1))
            reference = own[-1] if unchanged is None else unchanged[first : first + len(batch)]
            for measure in self.measures:
                found[measure.name].append(measure.of(outputs, batch.targets, reference))
            first += len(batch)
        return torch.cat(own), {name: torch.cat(parts) for name, parts in found.items()}

    def effects(
        self, change: Change, name: str, *, site: Site = "attention", seed: int = 0, structure: Any = None
    ) -> Effects:
        """Runs the network with changed attention, blocks or inputs.

        Args:
            change: the change.
            name: what it is called in errors.
            site: what is changed, see :class:`~..core.intervention.Intervention`.
            seed, structure: see :func:`.changed_attention`.
        Raises:
            NotChanged: the change changed no weight, no value, no output and no input.
        """
        unchanged, numbers = self._own
        with changed_attention(self.model, change, site=site, seed=seed, structure=structure) as changed:
            _, after = self._numbers(unchanged, changed)
        check_changed(changed, name)
        return Effects(numbers, after)

    def read(self, function: Callable[[Any], None], *, site: Site = "attention") -> None:
        """Runs the unchanged network, and calls the function with what each attention or block computes, and
        the classes of the sequences.
        """

        def reading(passed: Any) -> Any:
            function(passed)
            return passed

        with changed_attention(self.model, reading, site=site) as changed:
            for batch in self._batches():
                of_tokens = batch.targets is not None and batch.targets.ndim > 1
                changed.labels = None if of_tokens else batch.targets
                changed.next_ids = batch.targets if of_tokens else None
                self._run(batch)


def batch_size(model: nn.Module, inputs: Inputs) -> int:
    """Returns the number of sequences per forward pass, from the sizes of the attentions and the outputs of
    one sequence; two at least, since some changes need another sequence.
    """
    largest = 1

    def reading(attended: Attended) -> Attended:
        nonlocal largest
        largest = max(largest, attended.weights.numel())
        return attended

    with changed_attention(model, reading):
        outputs = logits_of(run(model, selected(inputs, slice(1))))
    largest = max(largest, 1 if outputs is None else outputs.numel())
    return max(2, min(BATCH, ENTRIES // largest))


def affordable(model: nn.Module, sample: Sample, passes: int, seconds: float) -> Sample:
    """Returns as many of the sequences as leave most of the time for draws, :data:`FEWEST` pairs at least.

    Args:
        model: the network.
        sample: inputs.
        passes: number of changed passes over all of them.
        seconds: the time.
    """
    few = sample.part(torch.arange(min(len(sample), FEWEST)))
    begun = time.monotonic()
    Subject(model, few).unchanged  # noqa: B018  one pass
    of_sequence = CHANGED_PASS * (time.monotonic() - begun) / len(few)
    n = int(FOR_EFFECTS * seconds / (of_sequence * max(1, passes)))
    if n >= len(sample):
        return sample
    order = torch.randperm(len(sample), generator=fixed_generator())
    return sample.part(order[: max(n, 2 * FEWEST)].sort().values)


def halves_of(model: nn.Module, sample: Sample) -> tuple[Subject, Subject] | None:
    """Returns a network on a random half of the sequences, half of each class, and on the others; None if
    there is one sequence. All calls for as many sequences draw the same half.
    """
    if len(sample) < 2:
        return None
    order = torch.randperm(len(sample), generator=fixed_generator())
    if sample.targets is not None and sample.targets.ndim == 1:
        order = order[sample.targets[order].argsort(stable=True)]  # every class is halved
    first, second = (Subject(model, sample.part(part.sort().values)) for part in (order[::2], order[1::2]))
    return first, second

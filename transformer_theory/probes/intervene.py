r"""The effect of an intervention on the outputs of a network, beside that of matched random changes.

A measure gives each sequence a number m: whether the class is right, its cross-entropy, the mean
cross-entropy of its next ids, or the share of largest outputs that stay. The effect is the mean of the
paired differences

.. math:: \Delta = \frac1n \sum_i \bigl( m_i(\text{changed}) - m_i(\text{unchanged}) \bigr),

with Student's interval over sequences. Draw j of a control is the same mean for its j-th random change; the
p-value of :math:`\Delta` is its rank among them, on the side that the theory predicts: less loss than matched
changes cause if the structure is kept, more if it is broken. A network that is no better than a constant
output has nothing to lose: its effects are not tested.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from ..core.format import counted
from ..core.intervention import Attended, Change, Control, Intervention
from ..core.measurement import Measurement, Null, Side
from ..core.statistics import clopper_pearson, evenly_spaced, student_interval
from .changed_pass import changed_attention, check_changed
from .evaluation import evaluation, logits_of
from .passes import Inputs, count, run, selected

MINUTES = 5.0  # time of all interventions in a network, if the user names none
BATCH = 64  # largest number of sequences per forward pass
ENTRIES = 2**23  # largest number of weights of one attention in a forward pass
FEWEST = 16  # sequences on which controls are drawn at least, if there are as many
SHARE = 0.7  # of the time that is planned for draws
LATEST = 2.0  # times the planned time, until which draws go on if they take longer than expected
REPEATS = 20  # attempts for each new structure of a control
UNCHANGED, CHANGED = "unchanged", "changed"
MEASURE = "measure"
"""Coordinate of a row: what the intervention changes."""
ACCURACY, LOSS, NEXT, AGREEMENT = "accuracy", "loss", "next-token loss", "agreement of outputs"
AT_CHANCE = (
    "not tested: the {} of the unchanged network, {:.4g}, is not better than that of a constant output, "
    "{:.4g}"
)
NO_IDS = "the intervention needs a causal language model, which returns logits for every id"
PAIRED = "over samples, paired"


@dataclass(frozen=True)
class Measure:
    """What an intervention changes: a number for each sequence.

    Attributes:
        name: name of the measure.
        of: ``(outputs, targets, largest unchanged outputs) -> [n]``.
        better: whether larger numbers are better (1) or smaller ones (-1).
        chance: mean of a constant output; None if there is no such number.
    """

    name: str
    of: Callable[[Tensor, Tensor | None, Tensor], Float[Tensor, " n"]]
    better: Literal[1, -1] = 1
    chance: float | None = None

    @property
    def is_share(self) -> bool:
        """Whether the mean is a share."""
        return self.name in (ACCURACY, AGREEMENT)


@dataclass(frozen=True)
class Sample:
    """Inputs on which an intervention is measured, with what their outputs are compared with.

    Attributes:
        inputs: tensors ``[n, ...]``.
        targets: class of each sequence, ``[n]``, or next id of each token, ``[n, seq]``; negative where none
            is scored. None: outputs are compared with those of the unchanged network.
        batch: number of sequences per forward pass.
    """

    inputs: Inputs
    targets: Tensor | None
    batch: int

    def __len__(self) -> int:
        return count(self.inputs)

    def part(self, which: Int[Tensor, " chosen"]) -> "Sample":
        """Returns some of the sequences."""
        targets = None if self.targets is None else self.targets[which]
        return Sample(selected(self.inputs, which), targets, self.batch)

    def measures(self) -> tuple[Measure, ...]:
        """Returns the measures: accuracy and loss, next-token loss, or the agreement of outputs."""
        if self.targets is None:
            return (Measure(AGREEMENT, _agreement),)
        known = self.targets[self.targets >= 0]
        shares = torch.bincount(known.flatten()).double() / max(1, known.numel())
        entropy = float(torch.special.entr(shares).sum())
        if self.targets.ndim > 1:
            return (Measure(NEXT, _next_loss, -1, entropy),)
        return (
            Measure(ACCURACY, _right, 1, float(shares.max())),
            Measure(LOSS, _class_loss, -1, entropy),
        )


def _right(outputs: Tensor, targets: Tensor | None, unchanged: Tensor) -> Float[Tensor, " n"]:
    """Returns 1 for each sequence ``[n]`` whose largest output is its class, otherwise 0."""
    assert targets is not None
    return (outputs.argmax(-1) == targets).double()


def _class_loss(outputs: Tensor, targets: Tensor | None, unchanged: Tensor) -> Float[Tensor, " n"]:
    """Returns the cross-entropy of each sequence, in nats."""
    assert targets is not None
    return functional.cross_entropy(outputs.double(), targets, reduction="none")


def _next_loss(outputs: Tensor, targets: Tensor | None, unchanged: Tensor) -> Float[Tensor, " n"]:
    """Returns the mean cross-entropy of the scored next ids of each sequence, in nats."""
    assert targets is not None
    scored = targets >= 0
    losses = functional.cross_entropy(
        outputs.float().flatten(0, 1), targets.clamp_min(0).flatten(), reduction="none"
    ).view(targets.shape)
    return (losses.double() * scored).sum(1) / scored.sum(1).clamp_min(1)


def _agreement(outputs: Tensor, targets: Tensor | None, unchanged: Tensor) -> Float[Tensor, " n"]:
    """Returns the share of the largest outputs of each sequence that stay."""
    same = outputs.argmax(-1) == unchanged
    return same.double().flatten(1).mean(1) if same.ndim > 1 else same.double()


@dataclass(frozen=True)
class Effects:
    """Numbers of each sequence with and without a change, by the name of the measure, ``[n]``."""

    unchanged: Mapping[str, Float[Tensor, " n"]]
    changed: Mapping[str, Float[Tensor, " n"]]

    def difference(self, name: str) -> Float[Tensor, " n"]:
        """Returns the paired differences of one measure."""
        return self.changed[name] - self.unchanged[name]


class Subject:
    """A network whose attention is changed, with its unchanged outputs, which are computed once.

    Args:
        model: the network.
        sample: inputs.
        site: what is changed, see :class:`~..core.intervention.Intervention`.
    """

    def __init__(self, model: nn.Module, sample: Sample, site: Literal["attention", "block"] = "attention"):
        self.model, self.sample, self.measures = model, sample, sample.measures()
        self.site: Literal["attention", "block"] = site
        self.largest: list[Tensor] = []
        with evaluation(model):
            for batch in self._batches():
                self.largest.append(self._run(batch).argmax(-1))
            self.unchanged = self._numbers()

    def on_some(self, n: int) -> "Subject":
        """Returns the network on n of its sequences, evenly spaced."""
        return Subject(self.model, self.sample.part(evenly_spaced(len(self.sample), n)), self.site)

    def _batches(self) -> Iterator[Sample]:
        # Batches of nearly equal size: some changes need another sequence of the batch.
        n = len(self.sample)
        for part in torch.arange(n).tensor_split(math.ceil(n / self.sample.batch)):
            yield self.sample.part(part)

    def _run(self, batch: Sample) -> Tensor:
        outputs = logits_of(run(self.model, batch.inputs))
        assert outputs is not None  # a first pass has shown that there are some
        return outputs.cpu()

    def _numbers(self) -> dict[str, Float[Tensor, " n"]]:
        found: dict[str, list[Tensor]] = {measure.name: [] for measure in self.measures}
        for batch, largest in zip(self._batches(), self.largest):
            outputs = self._run(batch)
            for measure in self.measures:
                found[measure.name].append(measure.of(outputs, batch.targets, largest))
        return {name: torch.cat(parts) for name, parts in found.items()}

    def effects(self, change: Change, name: str, *, seed: int = 0, structure: Any = None) -> Effects:
        """Runs the network with changed attention.

        Raises:
            NotChanged: the change changed no weight and no value.
        """
        with changed_attention(self.model, change, site=self.site, seed=seed, structure=structure) as changed:
            numbers = self._numbers()
        check_changed(changed, name)
        return Effects(self.unchanged, numbers)

    def read(self, function: Callable[[Any], None]) -> None:
        """Runs the unchanged network, and calls the function with what each attention or block computes, and
        the classes of the sequences.
        """

        def reading(passed: Any) -> Any:
            function(passed)
            return passed

        with changed_attention(self.model, reading, site=self.site) as changed:
            for batch in self._batches():
                changed.labels = batch.targets if batch.targets is None or batch.targets.ndim == 1 else None
                self._run(batch)


def batch_size(model: nn.Module, inputs: Inputs) -> int:
    """Returns the number of sequences per forward pass, from the sizes of the attentions of one sequence."""
    largest = 1

    def reading(attended: Attended) -> Attended:
        nonlocal largest
        largest = max(largest, attended.weights.numel())
        return attended

    with changed_attention(model, reading):
        run(model, selected(inputs, slice(1)))
    return max(1, min(BATCH, ENTRIES // largest))


def measure_intervention(
    model: nn.Module,
    sample: Sample,
    theory: str,
    intervention: Intervention,
    *,
    limits: Mapping[str, int],
    name: str,
    draws: int,
    seconds: float = math.inf,
    deadline: float = math.inf,
    seed: int = 0,
    progress: Callable[[str], None] = lambda text: None,
) -> list[Measurement]:
    """Measures one intervention of a theory in a network.

    Args:
        model: the network.
        sample: inputs of the caller, with labels or next ids as targets.
        theory: name of the theory.
        intervention: the intervention.
        limits: "vocabulary" and "length" of a causal language model; otherwise empty.
        name: column ``model`` of the rows.
        draws: largest number of draws of each control.
        seconds: planned time. If it does not suffice, controls are drawn on fewer sequences
            (:attr:`.Null.value` is the effect on them).
        deadline: time of ``time.monotonic()`` after which no control has a second draw.
        seed: seed of inputs, structures and draws.
        progress: receives a line per step.
    Returns:
        For each measure its mean in the changed network, and the effect with its interval and its nulls.
    Raises:
        NotChanged: the change changed no weight and no value.
        NoAttention: the network has no attention that can be changed.
    """
    started = time.monotonic()
    quantity, structure = intervention.name, None
    generator = torch.Generator().manual_seed(seed)
    if intervention.inputs is not None:
        if "vocabulary" not in limits:
            return [Measurement(theory, "intervention", quantity, None, reason=NO_IDS, model=name)]
        try:
            made = intervention.inputs(dict(limits), generator)
        except ValueError as error:  # sequences or vocabulary are too small
            return [Measurement(theory, "intervention", quantity, None, reason=str(error), model=name)]
        sample, structure = Sample(made.ids, made.targets, sample.batch), made.structure
    if intervention.choose is not None:
        if len(sample) < 2:
            reason = "the structure is chosen on one half of the sequences and scored on the other, got one"
            return [Measurement(theory, "intervention", quantity, None, reason=reason, model=name)]
        every = torch.arange(len(sample))
        structure = intervention.choose(Subject(model, sample.part(every[::2]), intervention.site).read)
        sample = sample.part(every[1::2])
    progress(f"{theory}: {quantity}")
    subject = Subject(model, sample, intervention.site)
    effects = subject.effects(intervention.change, quantity, seed=seed, structure=structure)
    tested = [
        measure for measure in subject.measures if not at_chance(measure, subject.unchanged[measure.name])
    ]
    controls = intervention.controls if tested else ()
    nulls: dict[str, list[Null]] = {measure.name: [] for measure in subject.measures}
    notes: list[str] = []
    for number, control in enumerate(controls):
        now = time.monotonic()
        planned = max(0.0, started + seconds - now) / (len(controls) - number)
        structures = _structures(control, structure, min(draws, control.draws), seed)
        change = intervention.change if control.change is None else control.change
        beside = _affordable(subject, change, control.kind, structures, planned)
        drawn: list[Effects] = []
        for index, other in enumerate(structures, 1):
            if drawn and time.monotonic() > min(deadline, now + LATEST * planned):
                break
            progress(f"{quantity}: {control.kind}, draw {index}")
            drawn.append(beside.effects(change, control.kind, seed=seed + index, structure=other))
        if len(drawn) < control.draws:
            notes.append(f"{control.kind}: {counted(len(drawn), 'draw')}")
        same = beside is subject
        own = (
            effects if same else beside.effects(intervention.change, quantity, seed=seed, structure=structure)
        )
        for measure in tested:
            means = tuple(float(each.difference(measure.name).mean()) for each in drawn)
            value = None if same else float(own.difference(measure.name).mean())
            nulls[measure.name].append(Null(control.kind, means, value))
    return [
        row
        for measure in subject.measures
        for row in _rows(measure, effects, nulls[measure.name], intervention, theory, name, notes)
    ]


def at_chance(measure: Measure, values: Float[Tensor, " n"]) -> bool:
    """Returns whether the mean of a measure of the unchanged network is not better than that of a constant
    output: whether its 95 % interval reaches the latter.
    """
    if measure.chance is None:
        return False
    if measure.name == ACCURACY:
        low, _ = clopper_pearson(int(values.sum()), len(values))
        return float(low) <= measure.chance
    interval = student_interval(values.tolist())
    return interval is None or interval[1] >= measure.chance


def _affordable(
    subject: Subject, change: Change, name: str, structures: Sequence[Any], seconds: float
) -> Subject:
    """Returns the network on as many of its sequences as leave time for all draws, from the time that a draw
    takes on some of them.
    """
    n = len(subject.sample)
    if not structures or n <= FEWEST:
        return subject
    few = subject.on_some(min(n, subject.sample.batch))
    begun = time.monotonic()
    few.effects(change, name, structure=structures[0])
    of_sequence = (time.monotonic() - begun) / len(few.sample)
    size = max(FEWEST, int(SHARE * seconds / (of_sequence * len(structures))))
    return subject if size >= n else subject.on_some(size)


def _structures(control: Control, chosen: Any, draws: int, seed: int) -> list[Any]:
    """Returns the structure of each draw; different ones, if the control draws structures."""
    if control.structure is None:
        return [chosen] * draws
    generator, found = torch.Generator().manual_seed(seed), []
    for _ in range(REPEATS * draws):
        if len(found) == draws:
            break
        other = control.structure(chosen, generator)
        if other is not None and other != chosen and other not in found:
            found.append(other)
    return found


def _rows(
    measure: Measure,
    effects: Effects,
    nulls: Sequence[Null],
    intervention: Intervention,
    theory: str,
    name: str,
    notes: Sequence[str],
) -> list[Measurement]:
    """Returns the rows of one measure: the mean without the change and with it, and the effect."""
    before, after = effects.unchanged[measure.name], effects.changed[measure.name]
    differences = effects.difference(measure.name)
    side: Side = ">=" if (measure.better == 1) == (intervention.predicts == "kept") else "<="
    unit = "share" if measure.is_share else "nats"
    row = partial(
        Measurement,
        theory,
        "intervention",
        intervention.name,
        unit=unit,
        model=name,
        n=len(differences),
        source=intervention.source,
    )
    chance = at_chance(measure, before)
    note = (
        AT_CHANCE.format(measure.name, float(before.mean()), measure.chance) if chance else "; ".join(notes)
    )
    means = (
        row(float(values.mean()), at={MEASURE: measure.name, "attention": which})
        for which, values in ((UNCHANGED, before), (CHANGED, after))
    )
    return [
        row(
            float(differences.mean()),
            at={MEASURE: measure.name},
            interval=_interval(differences, measure),
            interval_kind=PAIRED,
            nulls=tuple(nulls),
            side=None if chance else side,
            bounds=(-1.0, 1.0) if measure.is_share else None,
            note=note,
        ),
        *means,
    ]


def _interval(differences: Float[Tensor, " n"], measure: Measure) -> tuple[float, float] | None:
    """Returns the interval of a mean difference. If no sequence of many changed, up to
    :math:`1 - 0.025^{1/n}` of all may.
    """
    if measure.is_share and not bool(differences.any()):
        _, high = clopper_pearson(0, len(differences))
        return -float(high), float(high)
    return student_interval(differences.tolist())

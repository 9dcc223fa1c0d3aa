r"""The effect of an intervention on the outputs of a network, beside that of matched random changes.

A measure gives each sequence a number m (:mod:`.sample`). The effect is the mean of the paired differences

.. math:: \Delta = \frac1n \sum_i \bigl( m_i(\text{changed}) - m_i(\text{unchanged}) \bigr),

with Student's interval over sequences. The p-value of :math:`\Delta` is its rank among means for matched
random changes, on the side that the theory predicts: less loss than they cause if the structure is kept, more
if it is broken. A control that is one change of the network, such as other heads, gives such a mean per draw.
Most controls draw for every sequence anew, such as other keys. Then a few draws suffice, and the means are
those after exchanges of the change with its random ones within each sequence (:func:`exchanged`). If an
intervention has a baseline of effect
:math:`\Delta_0`, such as uniform weights, a note has the recovered share :math:`1 - \Delta / \Delta_0`. A
network that is no better than a constant output has nothing to lose: its effects are not tested.
"""

import bisect
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import BrokenExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..core.forked import forked
from ..core.format import counted
from ..core.intervention import Control, Intervention, NotChanged
from ..core.measurement import Measurement, Null, Side
from ..core.statistics import LEVEL, RANGE_DRAWS, clopper_pearson, fixed_generator, student_interval
from .sample import Measure, Sample, at_chance
from .subject import FEWEST, Effects, Subject, halves_of

MINUTES = 5.0  # time of all interventions in a network, if the user names none
SHARE = 0.8  # of the time that is left, for which draws are planned
GROUP_SHARE = 0.6  # of the time that is left, for controls of one kind while others follow
CONTROL_COST = 1.5  # times the duration of a pass of the change, that of a control, until it is known
REPEATS = 20  # attempts for each new structure of a control
EXCHANGES = 499  # with them one finding among 25 tests is possible
UNCHANGED, CHANGED = "unchanged", "changed"
MEASURE = "measure"
"""Coordinate of a row: what the intervention changes."""
AT_CHANCE = (
    "not tested: the {} of the unchanged network, {:.4g}, is not better than that of a constant output, "
    "{:.4g}"
)
NO_IDS = "the intervention needs a causal language model, which returns logits for every id"
PAIRED = "over samples, paired"
NO_OTHER = "there is no other structure of this size"
HOPELESS = "no test can succeed any more"
OVER = "the time was over"
ENDED = "a process was ended from outside, as the system does if memory is short; measure fewer sequences"


@dataclass(frozen=True)
class Applied:
    """An intervention that was applied to a network; its controls are not drawn yet.

    Attributes:
        theory: name of the theory.
        intervention: the intervention.
        subject: the network on the inputs that are scored.
        structure: the structure that was chosen; None without one.
        effects: numbers of each sequence without the change and with it.
        seconds: duration of the changed pass, for each sequence.
        baseline: the same of the baseline of the intervention; None if it has none.
    """

    theory: str
    intervention: Intervention
    subject: Subject
    structure: Any
    effects: Effects
    seconds: float
    baseline: Effects | None = None

    @property
    def tested(self) -> list[Measure]:
        """The measures in which the unchanged network has something to lose."""
        unchanged = self.effects.unchanged
        return [each for each in self.subject.measures if not at_chance(each, unchanged[each.name])]


@dataclass
class Drawing:
    """A control of an intervention with its draws.

    Attributes:
        applied: the intervention.
        control: the control.
        structures: structure of each draw that is planned.
        seed: seed of the draws.
        n: number of sequences of the draws.
        drawn: for each draw the differences of each sequence by the name of the measure, ``[n]``.
        nothing: number of draws that changed nothing, bit for bit.
        stopped: why there are fewer draws than planned; empty if there are all.
        error: why there is no control; None if there is one.
    """

    applied: Applied
    control: Control
    structures: list[Any]
    seed: int
    n: int
    drawn: list[dict[str, Float[Tensor, " n"]]] = field(default_factory=list)
    nothing: int = 0
    stopped: str = ""
    error: ValueError | RuntimeError | None = None

    @property
    def differences(self) -> dict[str, Float[Tensor, " n"]]:
        """The effects of the intervention on the sequences of the draws by the name of the measure."""
        which = self.applied.subject.places(self.n)
        return {
            each.name: self.applied.effects.difference(each.name)[which]
            for each in self.applied.subject.measures
        }

    def draw(self, number: int, n: int) -> dict[str, Float[np.ndarray, " n"]] | None:
        """Returns the effects of one draw on n sequences; None if it changed nothing.

        Args:
            number: number of the draw, from 0.
            n: number of sequences.
        """
        one, subject = self.applied.intervention, self.applied.subject.on_some(n)
        try:
            found = subject.effects(
                self.control.change or one.change,
                self.control.kind,
                site=one.site,
                seed=self.seed + 1 + number,
                structure=self.structures[number],
            )
        except NotChanged:
            return None
        # a tensor would come from a forked process through a file of its own
        return {measure.name: found.difference(measure.name).numpy() for measure in subject.measures}

    def add(self, found: dict[str, Float[np.ndarray, " n"]] | None) -> None:
        """Adds the effects of a draw; what changed nothing has none."""
        self.nothing += found is None
        if found is None:
            found = {measure.name: np.zeros(self.n) for measure in self.applied.subject.measures}
        self.drawn.append({name: torch.from_numpy(each) for name, each in found.items()})

    def null(self, measure: str) -> Null:
        """Returns the null of the mean effect on one measure: the means of the draws, or, if every sequence
        has draws of its own, means after exchanges (:func:`exchanged`).
        """
        own, kind = self.differences[measure], self.control.kind
        if not self.drawn:
            return Null(kind, ())
        drawn = torch.stack([each[measure] for each in self.drawn])
        if self.control.is_of_sequences:
            value, draws = exchanged(own, drawn)
            return Null(kind, draws, value, center=float(drawn.mean()))
        # the same sum as that of the row, so that equal effects are equal numbers
        draws = tuple(float(each.mean()) for each in drawn)
        return Null(kind, draws, float(own.mean()), self.stopped == HOPELESS)

    @property
    def is_hopeless(self) -> bool:
        """Whether further draws can give no finding on either side, see :func:`.can_still_decide`. Exchanges
        are as many as they are with few draws of each sequence.
        """
        if self.control.is_of_sequences:
            return False
        enough = 2 * LEVEL * (1 + len(self.structures))
        for measure in self.applied.tested:
            null = self.null(measure.name)
            draws = np.asarray(null.draws)
            if min((draws >= null.value).sum(), (draws <= null.value).sum()) + 1 < enough:
                return False
        return True


def exchanged(own: Float[Tensor, " n"], drawn: Float[Tensor, "draws n"]) -> tuple[float, tuple[float, ...]]:
    r"""Returns the mean effect, and what it becomes if the change is no other than its random ones.

    If the change of each sequence is exchangeable with the K random ones of the same sequence, independently
    of all others, the difference between its effect and their mean keeps its distribution when one of the
    K + 1 takes its part in each sequence. With P the sum of the effects of those that take it, O that of the
    change itself and n sequences, the mean effect of the random ones plus this difference is

    .. math:: \frac{(K + 1) P - O}{K n},

    which is O / n for P = O. The test is exact with any K and n: K = 1 exchanges signs. Of few
    sequences there are few exchanges, and then too few draws for a finding.

    Args:
        own: effect of the change on each sequence.
        drawn: effects of the random changes.
    """
    K, n = drawn.shape
    pool = torch.cat([own[None], drawn]).double()
    exchanges = min(EXCHANGES, (K + 1) ** n - 1)  # no more than there are
    picks = torch.randint(K + 1, (1 + exchanges, n), generator=fixed_generator())
    picks[0] = 0  # the sum that all others are compared with, in the same order of summation
    sums = pool.gather(0, picks).sum(1)
    draws = ((K + 1) * sums - sums[0]) / (K * n)
    return float(draws[0]), tuple(draws[1:].tolist())


def apply_intervention(
    whole: Subject,
    halves: tuple[Subject, Subject] | None,
    theory: str,
    intervention: Intervention,
    *,
    limits: Mapping[str, int],
    seed: int = 0,
) -> Applied:
    """Applies one intervention of a theory to a network.

    Args:
        whole: the network on the inputs of the caller.
        halves: the network on those that choose a structure, and on those that are scored with it; None if
            there is one sequence.
        theory: name of the theory.
        intervention: the intervention.
        limits: "vocabulary" and "length" of a causal language model; otherwise empty.
        seed: seed of inputs and structures.
    Raises:
        NotChanged: the change changed no weight, no value, no output and no input.
        NoAttention: the network has no attention, or no block, that can be changed.
        ValueError: the network has no place for the change, or the inputs do not suffice.
    """
    subject, structure, site = whole, None, intervention.site
    if intervention.inputs is not None:
        if "vocabulary" not in limits:
            raise ValueError(NO_IDS)
        made = intervention.inputs(dict(limits), torch.Generator().manual_seed(seed))
        sample, structure = Sample(made.ids, made.targets, whole.sample.batch), made.structure
        subject, halves = Subject(whole.model, sample), halves_of(whole.model, sample)
    if intervention.choose is not None:
        if halves is None:
            raise ValueError(
                "the structure is chosen on one half of the sequences and scored on the other, got one"
            )
        choosing, subject = halves
        structure = intervention.choose(partial(choosing.read, site=site))
        subject = whole if intervention.on_own else subject
    subject.unchanged  # noqa: B018  computed before the changed pass is timed
    begun = time.monotonic()
    effects = subject.effects(
        intervention.change, intervention.name, site=site, seed=seed, structure=structure
    )
    seconds = (time.monotonic() - begun) / len(subject.sample)
    if intervention.baseline is None:
        return Applied(theory, intervention, subject, structure, effects, seconds)
    kind, change = intervention.baseline
    baseline = subject.effects(change, kind, site=site, seed=seed, structure=structure)
    return Applied(theory, intervention, subject, structure, effects, seconds, baseline)


def draw_controls(
    applied: Sequence[Applied],
    *,
    draws: int,
    fewer: int | None = None,
    deadline: float = math.inf,
    seed: int = 0,
    processes: int = 1,
    progress: Callable[[str], None] = lambda text: None,
) -> list[list[Drawing]]:
    """Draws the controls of interventions: first those that decide, then further ones.

    Args:
        applied: the interventions.
        draws: largest number of draws of each control.
        fewer: largest number of sequences on which controls are drawn that are one change for all of them.
            None: all.
        deadline: time of ``time.monotonic()`` at which all draws should be done. If they would take longer,
            controls of every sequence have fewer draws, then all are drawn on fewer sequences
            (:attr:`.Null.value` is the effect on them); after it no control has a second draw.
        seed: seed of the draws.
        processes: number of forked processes that draw, on one thread each; 1: this one.
        progress: receives a line per step.
    Returns:
        The controls of each intervention with their draws.
    """
    found = [
        [
            Drawing(
                each,
                control,
                _structures(control, each.structure, min(draws, control.planned), seed),
                seed,
                len(each.subject.sample)
                if fewer is None or control.is_of_sequences
                else min(len(each.subject.sample), fewer),
            )
            for control in each.intervention.controls
            if each.tested
        ]
        for each in applied
    ]
    # the first controls of all interventions, then the second ones; those that need few draws before others
    groups: list[list[Drawing]] = []
    for same in zip_longest(*found):
        known = [each for each in same if each is not None and each.structures]
        groups += [[each for each in known if each.control.is_of_sequences is own] for own in (True, False)]
    every = [drawing for group in groups for drawing in group]
    begun: deque[tuple[Drawing, Callable[[], dict[str, np.ndarray] | None]]] = deque()
    done = 0.0  # expected seconds of the draws that have ended

    def collect(left: int = 0) -> None:
        """Waits for draws in their order until no more than ``left`` are awaited."""
        nonlocal done
        while len(begun) > left:
            drawing, result = begun.popleft()
            try:
                drawing.add(result())
            except BrokenExecutor:
                drawing.stopped = ENDED
            except (ValueError, RuntimeError) as error:
                drawing.error = error
            done += drawing.n * drawing.applied.seconds

    def drawn(task: tuple[int, int, int]) -> dict[str, np.ndarray] | None:
        which, number, n = task
        return every[which].draw(number, n)

    with forked(drawn, processes) as begin:
        started, which = time.monotonic(), 0
        for place, group in enumerate(groups):
            now = time.monotonic()
            until = deadline if place + 1 == len(groups) else now + GROUP_SHARE * (deadline - now)
            for first, drawing in enumerate(group):
                now = time.monotonic()
                # how much longer draws take than a pass of the change
                slower = (now - started) / done if done else CONTROL_COST
                planned, drawing.n = _planned(drawing, _size(group[first:], SHARE * (until - now) / slower))
                own = until if drawing.control.is_of_sequences else now + (until - now) / len(group[first:])
                for number in range(planned):
                    if number >= RANGE_DRAWS and not (number + 1) % 10:
                        collect()
                        if not (drawing.stopped or drawing.error) and drawing.is_hopeless:
                            drawing.stopped = HOPELESS
                    if number > 0 and time.monotonic() > own:
                        drawing.stopped = drawing.stopped or OVER
                    if drawing.stopped or drawing.error:
                        break
                    progress(
                        f"{drawing.applied.intervention.name}: {drawing.control.kind}, draw {number + 1}"
                    )
                    begun.append((drawing, begin((which, number, drawing.n))))
                    collect(processes if processes > 1 else 0)
                if planned < len(drawing.structures):
                    drawing.stopped = drawing.stopped or OVER
                which += 1
            collect()
    for drawing in every:
        if drawing.drawn and drawing.nothing == len(drawing.drawn):
            drawing.error = NotChanged(f"{drawing.control.kind} changed nothing, bit for bit")
    return found


def _size(drawings: Sequence[Drawing], seconds: float) -> int:
    """Returns on how many sequences in all each of some controls may run the network."""

    def expected(size: int) -> float:
        planned = ((each, _planned(each, size)) for each in drawings)
        return sum(draws * n * each.applied.seconds for each, (draws, n) in planned)

    largest = max(len(each.structures) * each.n for each in drawings)
    return max(1, bisect.bisect_right(range(1, largest + 1), seconds, key=expected))


def _planned(drawing: Drawing, size: int) -> tuple[int, int]:
    """Returns the number of draws of a control, and of their sequences, if it may run the network on about
    ``size`` sequences in all.

    If every sequence has draws of its own, more sequences say more than more draws: the difference between
    the change and K random ones has a variance in proportion to (1 + 1 / K) / n.
    """
    draws = len(drawing.structures)
    if not drawing.control.is_of_sequences:
        return draws, min(drawing.n, max(FEWEST, size // draws))
    n = min(drawing.n, max(2 * FEWEST, size))  # eight sequences have 256 exchanges with one draw
    return min(draws, max(1, size // n)), n


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


def rows_of(applied: Applied, drawings: Sequence[Drawing], name: str) -> list[Measurement]:
    """Returns the rows of an intervention: for each measure the effect with its interval and its nulls, and
    the mean without the change, with it, and with the baseline. The note of the effect has the recovered
    share.

    Args:
        applied: the intervention.
        drawings: its controls with their draws.
        name: column ``model`` of the rows.
    Raises:
        ValueError: a control is not possible in this network.
    """
    notes: list[str] = []
    for drawing in drawings:
        if drawing.error:
            raise drawing.error
        whole, some, planned = len(applied.subject.sample), drawing.n, drawing.control.planned
        said = [counted(len(drawing.drawn), "draw")] if len(drawing.drawn) < planned else []
        said += [f"on {some} of {counted(whole, 'sequence')}"] if some < whole else []
        if said:
            stopped = drawing.stopped or ("" if drawing.structures else NO_OTHER)
            why = f", {stopped}" if stopped else ""
            notes.append(f"{drawing.control.kind}: {' '.join(said)}{why}")
    return [
        row
        for measure in applied.subject.measures
        for row in _rows(
            measure,
            applied,
            tuple(each.null(measure.name) for each in drawings if measure in applied.tested),
            name,
            notes,
        )
    ]


def _rows(
    measure: Measure, applied: Applied, nulls: tuple[Null, ...], name: str, notes: Sequence[str]
) -> list[Measurement]:
    """Returns the rows of one measure."""
    intervention, effects = applied.intervention, applied.effects
    before, after = effects.unchanged[measure.name], effects.changed[measure.name]
    differences = effects.difference(measure.name)
    values = {UNCHANGED: before, CHANGED: after}
    if applied.baseline is not None and intervention.baseline is not None:
        kind = intervention.baseline[0]
        values[kind] = applied.baseline.changed[measure.name]
        recovered = recovered_share(differences, applied.baseline.difference(measure.name), measure)
        notes = [*notes, *([] if recovered is None else [f"recovered share beside {kind}: {recovered:.2f}"])]
    side: Side = ">=" if (measure.better == 1) == (intervention.predicts == "kept") else "<="
    unit = "share" if measure.is_share else "nats"
    row = partial(
        Measurement,
        applied.theory,
        "intervention",
        intervention.name,
        unit=unit,
        model=name,
        n=len(differences),
        source=intervention.source,
    )
    chance, share = at_chance(measure, before), float(before.mean())
    note = AT_CHANCE.format(measure.name, share, measure.chance) if chance else "; ".join(notes)
    means = (
        row(float(each.mean()), at={MEASURE: measure.name, "attention": which})
        for which, each in values.items()
    )
    return [
        row(
            float(differences.mean()),
            at={MEASURE: measure.name},
            interval=_interval(differences, measure),
            interval_kind=PAIRED,
            nulls=nulls,
            side=None if chance else side,
            bounds=(-share, 1 - share) if measure.is_share else None,
            note=note,
        ),
        *means,
    ]


def recovered_share(
    differences: Float[Tensor, " n"], without: Float[Tensor, " n"], measure: Measure
) -> float | None:
    """Returns the share of the loss of a baseline that a change avoids, 1 - mean(differences) /
    mean(without): 1 if the change loses nothing, 0 if it loses as much; None if the interval of what the
    baseline loses reaches 0.

    Args:
        differences, without: of each sequence, changed less unchanged, with the change and with the baseline.
        measure: what differs.
    """
    interval = student_interval((measure.better * without).tolist())
    if interval is None or interval[1] >= 0:
        return None
    return 1 - float(differences.mean()) / float(without.mean())


def _interval(differences: Float[Tensor, " n"], measure: Measure) -> tuple[float, float] | None:
    """Returns the interval of a mean difference. If no sequence of many changed, up to
    :math:`1 - 0.025^{1/n}` of all may.
    """
    if measure.is_share and not bool(differences.any()):
        _, high = clopper_pearson(0, len(differences))
        return -float(high), float(high)
    return student_interval(differences.tolist())

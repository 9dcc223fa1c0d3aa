"""The chance level of one network: the same measurements in randomised copies of it.

    equal scale                    the entries of every trained matrix permuted, in all layers at once
    equal scale, inputs held       the same in one layer at a time, with the inputs of the trained layer
    equal spectrum                 the singular values of every matrix with random singular vectors
    fresh weights of equal norm    initial weights, every matrix scaled to the norm of the trained one
    untrained networks             initial weights, shown beside the others

Copies have the code, the masks and the inputs of the network. They are measured on some of the inputs, and
the network beside them on the same ones. The first kind decides, with as many copies as the time permits
(:class:`.cost.MeasurementPlan`). Its first 19 copies, and untrained networks, give the range of every
quantity; the others are measured only where a quantity is tested (:func:`.measure.tested_metrics`). Copies
are left out if no headline and no head can reach a decision any more, whatever they give
(:func:`~.statistics.can_still_decide`).
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor
from dataclasses import dataclass, field

import numpy as np
from torch import nn

from ..core.forked import forked
from ..core.journal import Pieces
from ..core.measurement import Measurement
from ..core.statistics import (
    EQUAL_NORM,
    EQUAL_SCALE,
    EQUAL_SPECTRUM,
    HELD_INPUTS,
    RANGE_DRAWS,
    UNTRAINED,
    can_still_decide,
)
from ..models.copies import Copies
from ..models.user_model import untrained_network
from .held_inputs import held_inputs

Rows = list[Measurement]
STOPPED = "a process was ended from outside, as the system does if memory is short; give less --memory"


@dataclass
class Randomised:
    """Measurements of randomised copies of a network.

    Attributes:
        networks: for each kind of copy, the rows of each of them: those with a value, without nulls.
        reasons: why there are no copies, or fewer than planned, by kind.
    """

    networks: dict[str, list[Rows]] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)


def measure_randomised(
    network: nn.Module,
    rows_of: Callable[[nn.Module, bool], Rows],
    beside: Rows,
    *,
    planned: Mapping[str, int],
    deadline: float,
    families: Callable[[Rows], Sequence[Mapping[tuple, float]]],
    seed: int,
    stored: Pieces,
    progress: Callable[[str], None],
    processes: int = 1,
) -> Randomised:
    """Measures randomised copies of a network.

    Args:
        network: the network; it is not changed.
        rows_of: measures a network on the inputs of the copies: all quantities, or only those that are
            tested.
        beside: rows of the network itself on these inputs.
        planned: number of copies of each kind.
        deadline: time of ``time.monotonic()`` after which no copy is begun, except the first
            :data:`~.statistics.RANGE_DRAWS` of equal scale.
        families: maps rows to the values of the tests by family; if none can be decided any more, no further
            copies are measured.
        seed: seed of the copies.
        stored: rows of the copies that are known already; it receives the others.
        progress: receives a line per copy.
        processes: number of forked processes in which copies are measured, on one thread each; 1: here.
    """
    found = Randomised()
    if not any(planned.values()):
        return found
    try:
        copies: Copies | None = Copies(network)
    except ValueError as error:
        copies, found.reasons[EQUAL_SCALE] = None, str(error)
    observed = families(beside)
    tested: list[Sequence[Mapping[tuple, float]]] = []  # of each copy of equal scale
    begun: deque[tuple[str, int, Callable[[], Rows]]] = deque()  # copies, the rows of which are awaited

    def measured(copy: tuple[str, int]) -> Rows:
        kind, number = copy
        whole = kind == UNTRAINED or (kind == EQUAL_SCALE and number < RANGE_DRAWS)
        return [*_bare(_measured(network, copies, kind, seed + number, lambda copy: rows_of(copy, whole)))]

    def collect(left: int = 0) -> None:
        """Waits for copies in their order until no more than ``left`` are awaited."""
        while len(begun) > left:
            kind, number, rows = begun.popleft()
            try:
                found.networks.setdefault(kind, []).append(stored((kind, str(number)), rows))
            except ValueError as error:
                found.reasons[kind] = str(error)
            except BrokenExecutor:
                for each in planned:
                    found.reasons.setdefault(each, STOPPED)

    def number_of(kind: str) -> str:
        return f"{len(found.networks.get(kind, ()))} of {planned[kind]} copies"

    with forked(measured, processes) as begin:
        for kind, number in _order(planned):
            if kind in found.reasons or (copies is None and kind != UNTRAINED):
                continue
            if time.monotonic() > deadline and not (kind == EQUAL_SCALE and number < RANGE_DRAWS):
                collect()
                found.reasons[kind] = f"{number_of(kind)}: the time was over"
                continue
            if kind == EQUAL_SCALE and number > RANGE_DRAWS and not number % 10:
                collect()
                tested += [families(rows) for rows in found.networks.get(kind, [])[len(tested) :]]
                if not any(_undecided(*each, planned[kind]) for each in zip(observed, zip(*tested))):
                    found.reasons[kind] = f"{number_of(kind)}: no test can succeed any more"
                    continue
            if (kind, str(number)) not in stored:
                progress(f"{kind}, copy {number + 1} of {planned[kind]}")
                begun.append((kind, number, begin((kind, number))))
            else:
                begun.append((kind, number, list))
            collect(processes if processes > 1 else 0)
        collect()
    found.networks = {kind: drawn for kind, drawn in found.networks.items() if drawn}
    return found


def _order(planned: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """Yields kinds and numbers of the copies: those that give a first test, then the other kinds, then the
    rest of the first kind.
    """
    first = planned.get(EQUAL_SCALE, 0)
    yield from ((EQUAL_SCALE, number) for number in range(min(first, RANGE_DRAWS)))
    for kind in (HELD_INPUTS, EQUAL_SPECTRUM, EQUAL_NORM, UNTRAINED):
        yield from ((kind, number) for number in range(planned.get(kind, 0)))
    yield from ((EQUAL_SCALE, number) for number in range(RANGE_DRAWS, first))


def _measured(
    network: nn.Module,
    copies: Copies | None,
    kind: str,
    seed: int,
    rows_of: Callable[[nn.Module], Rows],
) -> Rows:
    """Measures one copy."""
    if copies is None:
        return rows_of(untrained_network(network, seed))
    if kind != HELD_INPUTS:
        return rows_of(copies.draw(kind, seed))
    copy = copies.draw(EQUAL_SCALE, seed)
    with held_inputs(network, copy):
        return rows_of(copy)


def _bare(rows: Rows) -> Iterator[Measurement]:
    """Yields the rows with a value, with their places alone: there are hundreds of copies."""
    for row in rows:
        if row.value is not None:
            yield Measurement(
                row.theory, row.kind, row.quantity, row.value, at=row.at, layer=row.layer, head=row.head
            )


def _undecided(observed: Mapping[tuple, float], draws: Sequence[Mapping[tuple, float]], planned: int) -> bool:
    """Returns whether a test can still be decided; tests that a copy lacks are left out."""
    places = [place for place in observed if all(place in draw for draw in draws)]
    if not places:
        return True
    values = np.array([observed[place] for place in places])
    return can_still_decide(values, np.array([[draw[place] for place in places] for draw in draws]), planned)

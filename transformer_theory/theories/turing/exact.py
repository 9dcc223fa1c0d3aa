r"""Runs of the transformer in exact arithmetic: vectors are dictionaries of rational numbers, which hold the
nonzero entries only.

A run of T steps costs :math:`O(T^2)` products of keys and queries with three entries each. Source:
:cite:t:`perez2021attention`.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

from .machine import Trace, TuringMachine
from .matrices import LAYERS, Matrix, Number, coordinates

Vector = dict[int, Number]


@dataclass(frozen=True)
class Step:
    """One generated token: the configuration at a time, and how the third layer found its symbol.

    Attributes:
        state, symbol: names; None if the entries of the token are no one-hot vector.
        head: cell of the head, :math:`(i + 1) x_4`.
        attended: positions over which the third layer averaged; empty at time 0.
        scores: scores of the third layer, one per earlier position; empty at time 0.
        token: the token itself, without its position: number of the coordinate -> entry.
    """

    state: str | None
    symbol: str | None
    head: Number
    attended: tuple[int, ...]
    scores: tuple[Number, ...]
    token: Vector


def times(x: Mapping[int, Number], matrix: Matrix) -> Vector:
    """Returns x @ W."""
    y: Vector = {}
    for row, number in x.items():
        for column, weight in matrix.by_row.get(row, ()):
            y[column] = y.get(column, 0) + number * weight
    return {column: number for column, number in y.items() if number}


def plus(x: Mapping[int, Number], *others: Mapping[int, Number]) -> Vector:
    """Returns the sum of vectors."""
    y = dict(x)
    for other in others:
        for column, number in other.items():
            y[column] = y.get(column, 0) + number
    return {column: number for column, number in y.items() if number}


def relu(x: Mapping[int, Number]) -> Vector:
    """Returns max(x, 0)."""
    return {column: number for column, number in x.items() if number > 0}


def attend(
    query: Mapping[int, Number], keys: list[Vector], values: list[Vector]
) -> tuple[Vector, tuple[int, ...], tuple[Number, ...]]:
    """Returns the mean of the values of the best keys, their positions, and all scores -|<q, k>|."""
    scores = tuple(
        -abs(sum(number * key[column] for column, number in query.items() if column in key)) for key in keys
    )
    best = max(scores)
    chosen = tuple(position for position, score in enumerate(scores) if score == best)
    total = plus({}, *(values[position] for position in chosen))
    return {column: Fraction(number, 1) / len(chosen) for column, number in total.items()}, chosen, scores


def run(machine: TuringMachine, weights: Mapping[str, Matrix], word: str, steps: int) -> Iterator[Step]:
    """Yields the steps 0 to ``steps`` of a run."""
    place = {name: number for number, name in enumerate(coordinates(machine))}

    def position(p: int) -> Vector:
        return {
            place["1"]: 1,
            place["p"]: p,
            place["1/p"]: Fraction(1, p),
            place["1/p^2"]: Fraction(1, p * p),
        }

    # The encoder is the identity. The empty word is read as one blank, since attention needs a key.
    tokens = [
        plus({place[f"s3[{symbol}]"]: 1}, position(p)) for p, symbol in enumerate(word or machine.blank, 1)
    ]
    keys, values = (
        [times(token, weights[f"encoder.{part}"]) for token in tokens] for part in ("key", "value")
    )
    own_keys: dict[int, list[Vector]] = {layer: [] for layer in LAYERS}
    own_values: dict[int, list[Vector]] = {layer: [] for layer in LAYERS}
    y: Vector = {place[f"q1[{machine.start}]"]: 1, place[f"s1[{machine.blank}]"]: 1}
    head: Number = 0
    chosen, scores = (), ()
    for time in range(steps + 1):
        yield Step(
            _decoded(y, place, "q1", machine.states),
            _decoded(y, place, "s1", machine.alphabet),
            head,
            chosen,
            scores,
            y,
        )
        if time == steps:
            return
        x = plus(y, position(time + 1))
        for layer in LAYERS:
            part = f"decoder.{layer}"
            own_keys[layer].append(times(x, weights[f"{part}.key"]))
            own_values[layer].append(times(x, weights[f"{part}.value"]))
            attended, chosen, scores = attend(
                times(x, weights[f"{part}.query"]), own_keys[layer], own_values[layer]
            )
            x = plus(x, times(attended, weights[f"{part}.output"]))
            x = plus(x, attend(x, keys, values)[0])
            x = plus(x, times(relu(times(x, weights[f"{part}.up"])), weights[f"{part}.down"]))
        head = (time + 1) * x.get(place["x4"], 0)
        y = times(relu(times(relu(times(x, weights["map.1"])), weights["map.2"])), weights["map.3"])


def trace(steps: Iterable[Step]) -> Trace:
    """Decodes the tokens of a run; an entry that is no one-hot vector becomes "?"."""
    found = list(steps)
    # A run of the construction attends to one position. Of several, the last one is named.
    attended = tuple(step.attended[-1] if step.attended else -1 for step in found)
    heads = tuple(round(step.head) for step in found)
    return Trace(tuple(s.state or "?" for s in found), tuple(s.symbol or "?" for s in found), heads, attended)


def _decoded(y: Vector, place: Mapping[str, int], block: str, names: tuple[str, ...]) -> str | None:
    """Returns the name whose coordinate is one, if all others of the block are zero."""
    entries = {name: y[place[f"{block}[{name}]"]] for name in names if place[f"{block}[{name}]"] in y}
    return next(iter(entries)) if list(entries.values()) == [1] else None

r"""The weights of a transformer that runs a Turing machine: one encoder layer, three decoder layers, one head
each.

Tokens are rows of size :math:`d = 2|Q| + 4|\Sigma| + 11`, in four blocks:

.. math:: (q_1, s_1, x_1 \;|\; q_2, s_2, x_2, x_3, x_4, x_5 \;|\; s_3, x_6, s_4, x_7 \;|\; 1, p, 1/p, 1/p^2),

with one-hot states q and symbols s. The position p of token i counts from 1, so :math:`p = i + 1` in the
decoder. Attention has the score :math:`-|\langle q, k \rangle|` and is the mean over the best keys
(hard-max); each layer adds attention over its own tokens, attention over the encoder and a layer of ReLU
units. At time i the decoder maps :math:`(q^{(i)}, s^{(i)}, m^{(i-1)})` to time i + 1:

* Every layer reads the symbol :math:`w_{\min(p, n)}` from the encoder: the query (1, p) and the keys (k, -1)
  have the product k - p.
* Layer 1: one unit per pair (q, s) looks up :math:`\delta`, so the second block becomes
  :math:`(q^{(i+1)}, v^{(i)}, m^{(i)}, m^{(i-1)}, 0, 0)`.
* Layer 2: keys are zero, so attention is the mean over all tokens: :math:`x_4 = c^{(i+1)}/(i+1)`, :math:`x_5
  = c^{(i)}/(i+1)` with the head's cell :math:`c^{(i)} = \sum_{j<i} m^{(j)}`.
* Layer 3: with :math:`e_i = 1/(i+1)` the query :math:`(x_4, 1/p, 1/(3p^2))` and the keys :math:`(1/p, -x_5,
  1/p^2)` have the product

  .. math:: \langle q_i, k_j \rangle = e_i e_j \big(c^{(i+1)} - c^{(j)} + e_i e_j / 3\big), \qquad j = 0,
      \dots, i,

  whose absolute value is smallest for the latest visit :math:`\ell(i+1)` of the cell :math:`c^{(i+1)}`, and
  for j = i if there was none. Attention returns :math:`s_4 = v^{(\ell)}` and :math:`x_7 = \ell`.
* Output: :math:`s^{(i+1)}` is :math:`s_4` if :math:`\ell < i`, else the symbol of the encoder if i + 1 <= n,
  else the blank.

All weights are rational numbers. Source: :cite:t:`perez2021attention`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import Literal, get_args

import torch

from ...core.errors import nearest
from ...core.validation import positive
from . import exact, floating
from .machine import Trace, TuringMachine, check_type
from .matrices import LAYERS, Matrix, Number, coordinates

Arithmetic = Literal["exact", "float64", "float32", "bfloat16"]
Score = Literal["hard", "softmax"]


@dataclass(frozen=True)
class PerezTransformer:
    """A transformer with explicit weights that runs one Turing machine on any word.

    Attributes:
        machine: machine that it runs, in normal form.
        weights: matrices by name: ``"encoder.key"`` and ``"encoder.value"`` for what the decoder reads from
            the encoder; ``query``, ``key``, ``value``, ``output``, ``up`` and ``down`` of ``"decoder.L."``
            for L = 1, 2, 3; ``"map.1"`` to ``"map.3"``. The encoder's own layer is the identity: its weights
            are zero.
    """

    machine: TuringMachine
    weights: Mapping[str, Matrix] = field(hash=False, repr=False)

    @property
    def d(self) -> int:
        r"""Size of a token, :math:`2|Q| + 4|\Sigma| + 11` for the states Q of the normal form."""
        return len(self.coordinates)

    @cached_property
    def coordinates(self) -> tuple[str, ...]:
        """Names of the coordinates of a token."""
        return coordinates(self.machine)

    def __getitem__(self, name: str) -> Matrix:
        if name not in self.weights:
            raise KeyError(f"unknown matrix {name!r}{nearest(name, self.weights)}")
        return self.weights[name]

    def __str__(self) -> str:
        size = f"d = {self.d} for {len(self.machine.states)} states and {len(self.machine.alphabet)} symbols"
        lines = [
            f"{name}: [{len(m.rows)}, {len(m.columns)}], {len(m.entries)} nonzero"
            for name, m in self.weights.items()
        ]
        return "\n".join([size, *lines])

    def changed(self, name: str, entries: Mapping[tuple[str, str], Number]) -> "PerezTransformer":
        """Returns a transformer in which some entries of one matrix have other values; 0 removes an entry.

        Raises:
            KeyError: the matrix, a row or a column is unknown.
            TypeError: a value is not rational.
        """
        matrix = self[name]
        for pair, value in entries.items():
            for key, names in zip(pair, (matrix.rows, matrix.columns)):
                if key not in names:
                    raise KeyError(f"unknown row or column {key!r} of {name!r}{nearest(key, names)}")
            if not isinstance(value, int | Fraction):
                raise TypeError(
                    f"an entry must be an integer or a Fraction, got {value!r} at {pair}; pass e.g. "
                    f"Fraction('{value}')"
                )
        merged = {key: value for key, value in {**matrix.entries, **entries}.items() if value}
        return replace(self, weights={**self.weights, name: replace(matrix, entries=merged)})

    def run(
        self,
        word: str,
        steps: int,
        *,
        arithmetic: Arithmetic = "exact",
        score: Score = "hard",
        inverse_temperature: float | None = None,
    ) -> Trace:
        """Generates the tokens of the decoder one after the other and decodes them.

        Args:
            word: input of the machine.
            steps: number T of generated tokens.
            arithmetic: "exact" for rational numbers, or the number type of all weights and activations.
            score: "hard" for the mean over the best keys, "softmax" for softmax of the scores.
            inverse_temperature: factor of the scores in the softmax.
        Returns:
            The trace at the times 0 to T. In floating point, a state and a symbol are those with the largest
            entry, and the head is :math:`(i + 1) x_4`, rounded.
        Raises:
            TypeError: the word is not a text, ``steps`` not an integer, or the inverse temperature not a
                number.
            ValueError: a name is unknown, the word has foreign symbols, ``steps`` is negative, or softmax is
                combined with exact arithmetic or has no positive inverse temperature.
        """
        check_choice("arithmetic", arithmetic, get_args(Arithmetic))
        check_choice("score", score, get_args(Score))
        self.machine.check_run(word, steps)
        if score == "hard" and inverse_temperature is not None:
            raise ValueError(
                f"inverse_temperature belongs to score='softmax', got {inverse_temperature!r} with 'hard'; "
                "leave it out"
            )
        if score == "softmax":
            if arithmetic == "exact":
                raise ValueError(
                    "softmax needs floating point, got arithmetic='exact'; pass arithmetic='float64'"
                )
            if inverse_temperature is None:
                raise ValueError(
                    "softmax needs a positive, finite inverse_temperature, got None; pass e.g. 1e6"
                )
            positive(inverse_temperature=inverse_temperature)
        if arithmetic == "exact":
            return exact.trace(self.steps(word, steps))
        return floating.trace(
            self.machine,
            self.weights,
            word,
            steps,
            dtype=getattr(torch, arithmetic),
            inverse_temperature=inverse_temperature,
        )

    def steps(self, word: str, steps: int) -> Iterator[exact.Step]:
        """Yields the steps of a run in exact arithmetic, with the scores of the third layer; errors as in
        :meth:`run`.
        """
        self.machine.check_run(word, steps)
        return exact.run(self.machine, self.weights, word, steps)


def check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    """Raises ValueError if a value is not among the choices."""
    if value not in choices:
        raise ValueError(
            f"{name} must be one of {', '.join(choices)}, got {value!r}{nearest(str(value), choices)}"
        )


def compile_machine(machine: TuringMachine) -> PerezTransformer:
    """Writes the weights of the transformer that runs a machine, after :meth:`TuringMachine.normalise`."""
    check_type("machine", machine, TuringMachine)
    return without_normal_form(machine.normalise())


def without_normal_form(machine: TuringMachine) -> PerezTransformer:
    """Writes the weights for a machine as it is. Outside normal form the transformer reads symbols of the
    word at wrong times.
    """
    names = coordinates(machine)
    weights = {"encoder.key": _matrix(names, names, {("p", "1"): 1, ("1", "p"): -1})}
    weights["encoder.value"] = _matrix(
        names, names, {**_copies("s3", "s3", machine.alphabet), ("p", "x6"): 1}
    )
    for layer, make in zip(LAYERS, (_lookup, _head, _retrieval)):
        weights |= {f"decoder.{layer}.{part}": matrix for part, matrix in make(machine, names).items()}
    return PerezTransformer(machine, weights | _output_map(machine, names))


def _matrix(rows: Sequence[str], columns: Sequence[str], entries: Mapping[tuple[str, str], Number]) -> Matrix:
    return Matrix(tuple(rows), tuple(columns), dict(entries))


def _copies(
    source: str, target: str, names: Iterable[str], factor: Number = 1
) -> dict[tuple[str, str], Number]:
    return {(f"{source}[{name}]", f"{target}[{name}]"): factor for name in names}


def _attention(
    names: Sequence[str], query: Mapping, key: Mapping, value: Mapping[tuple[str, str], Number]
) -> dict[str, Matrix]:
    """Builds query, key, value and output of a head. The value matrix maps to the coordinates that it writes,
    named as in the token.
    """
    size = tuple(dict.fromkeys(column for _, column in (*query, *key))) or ("0",)
    written = tuple(dict.fromkeys(column for _, column in value)) or ("0",)
    output = {(name, name): 1 for name in written if name != "0"}
    parts = {
        "query": (names, size, query),
        "key": (names, size, key),
        "value": (names, written, value),
        "output": (written, names, output),
    }
    return {part: _matrix(*arguments) for part, arguments in parts.items()}


class _Units:
    """ReLU units: each has its inputs and the coordinates to which it adds its output."""

    def __init__(self):
        self.names: list[str] = []
        self.up: dict[tuple[str, str], Number] = {}
        self.down: dict[tuple[str, str], Number] = {}

    def add(self, name: str, inputs: Mapping[str, Number], outputs: Mapping[str, Number]) -> None:
        """Adds the unit relu(sum of inputs)."""
        self.names.append(name)
        self.up |= {(coordinate, name): factor for coordinate, factor in inputs.items()}
        self.down |= {(name, coordinate): factor for coordinate, factor in outputs.items()}

    def matrices(self, rows: Sequence[str], columns: Sequence[str]) -> tuple[Matrix, Matrix]:
        """Returns the matrices before and after the ReLU."""
        return _matrix(rows, self.names, self.up), _matrix(self.names, columns, self.down)


def _lookup(machine: TuringMachine, names: Sequence[str]) -> dict[str, Matrix]:
    """Layer 1: no attention of its own; the table."""
    units = _Units()
    for q in machine.states:
        for s in machine.alphabet:
            target, written, move = machine.step(q, s)
            # q1 + s1 - 1 is 1 for the current pair and at most 0 for all others.
            inputs = {f"q1[{q}]": 1, f"s1[{s}]": 1, "1": -1}
            units.add(f"delta({q},{s})", inputs, {f"q2[{target}]": 1, f"s2[{written}]": 1, "x2": move})
    for coordinate in (*(f"q1[{q}]" for q in machine.states), *(f"s1[{s}]" for s in machine.alphabet)):
        units.add(f"erase {coordinate}", {coordinate: 1}, {coordinate: -1})
    # A move may be negative, so two units carry it.
    units.add("move right", {"x1": 1}, {"x3": 1, "x1": -1})
    units.add("move left", {"x1": -1}, {"x3": -1, "x1": 1})
    up, down = units.matrices(names, names)
    return {**_attention(names, {}, {}, {}), "up": up, "down": down}


def _head(machine: TuringMachine, names: Sequence[str]) -> dict[str, Matrix]:
    """Layer 2: all scores are zero, so attention is the mean over all tokens, of the moves."""
    up, down = _halves(machine, names)
    return {**_attention(names, {}, {}, {("x2", "x4"): 1, ("x3", "x5"): 1}), "up": up, "down": down}


def _retrieval(machine: TuringMachine, names: Sequence[str]) -> dict[str, Matrix]:
    """Layer 3: the latest visit of the head's next cell, with the symbol that was written there."""
    query = {("x4", "a"): 1, ("1/p", "b"): 1, ("1/p^2", "c"): Fraction(1, 3)}
    key = {("1/p", "a"): 1, ("x5", "b"): -1, ("1/p^2", "c"): 1}
    value = {**_copies("s2", "s4", machine.alphabet), ("p", "x7"): 1, ("1", "x7"): -1}
    up, down = _halves(machine, names)
    return {**_attention(names, query, key, value), "up": up, "down": down}


def _halves(machine: TuringMachine, names: Sequence[str]) -> tuple[Matrix, Matrix]:
    """Every decoder layer adds the encoder's answer once more. Layers 2 and 3 subtract half of the doubled
    value.
    """
    units = _Units()
    for coordinate in (*(f"s3[{s}]" for s in machine.alphabet), "x6"):
        units.add(f"halve {coordinate}", {coordinate: 1}, {coordinate: Fraction(-1, 2)})
    return units.matrices(names, names)


def _output_map(machine: TuringMachine, names: Sequence[str]) -> dict[str, Matrix]:
    """Two layers of ReLU units that choose the next symbol; the map does not add its input."""
    first, second = _Units(), _Units()
    # clip(x) = relu(x) - relu(x - 1) is 0 for x <= 0 and 1 for x >= 1.
    first.add("visited +", {"p": 1, "1": -1, "x7": -1}, {})  # p - 1 - x7 = i - l
    first.add("visited -", {"p": 1, "1": -2, "x7": -1}, {})
    first.add("in word +", {"x6": 1, "p": -1, "1": 1}, {})  # x6 = i + 1 inside the word, n behind it
    first.add("in word -", {"x6": 1, "p": -1}, {})
    first.add("1", {"1": 1}, {})
    for block in ("s3", "s4"):
        for s in machine.alphabet:
            first.add(f"{block}[{s}]", {f"{block}[{s}]": 1}, {})
    carried = {f"q2[{q}]": f"q1[{q}]" for q in machine.states}
    for coordinate in carried:
        first.add(coordinate, {coordinate: 1}, {})
    first.add("x2 +", {"x2": 1}, {})
    first.add("x2 -", {"x2": -1}, {})
    visited = {"visited +": 1, "visited -": -1}
    in_word = {"in word +": 1, "in word -": -1}

    def minus(gate: Mapping[str, int]) -> dict[str, int]:
        return {name: -factor for name, factor in gate.items()}

    for s in machine.alphabet:
        second.add(f"from tape {s}", {f"s4[{s}]": 1, **visited, "1": -1}, {f"s1[{s}]": 1})
        second.add(f"from word {s}", {f"s3[{s}]": 1, **in_word, **minus(visited), "1": -1}, {f"s1[{s}]": 1})
    second.add("blank", {"1": 1, **minus(visited), **minus(in_word)}, {f"s1[{machine.blank}]": 1})
    for source, target in carried.items():
        second.add(f"{source}'", {source: 1}, {target: 1})
    second.add("x2 + '", {"x2 +": 1}, {"x1": 1})
    second.add("x2 - '", {"x2 -": 1}, {"x1": -1})
    return {
        "map.1": _matrix(names, first.names, first.up),
        "map.2": _matrix(first.names, second.names, second.up),
        "map.3": _matrix(second.names, names, second.down),
    }

r"""Turing machines: definition, normal form, traces, and machines as text files.

A machine has states Q, an alphabet :math:`\Sigma` with a blank, a start state and a table
:math:`\delta(q, s) = (q', v, m)`: in state q, reading s, it writes v, moves by :math:`m \in \{-1, 0, 1\}` and
goes to q'. The tape is infinite in both directions; the word :math:`w_1 \dots w_n` is in the cells 1 to n.
Accepting and rejecting states halt: the machine stays in them, writes what it reads and moves right.

**Normal form**, which the construction needs :cite:p:`perez2021attention`: the head starts on the blank cell
0; the first step moves right into a state that moves right over the whole word; there are no moves by 0.
During the first n steps the head is then in cell i at time i.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from ...core.errors import reason
from ...core.reading import check_file
from ...core.validation import integers

MOVES = {"L": -1, "S": 0, "R": 1}
HALTING_MOVE = 1  # the move in a halting state; the construction needs a machine that always moves
Transition = tuple[str, str, int]
Table = Mapping[tuple[str, str], Transition]


def check_type(name: str, value: object, kind: type) -> None:
    """Raises TypeError if a value has another type."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be a {kind.__name__}, got {type(value).__name__} {value!r}")


@dataclass(frozen=True)
class Trace:
    """The configurations of a run at the times 0 to T.

    Attributes:
        states: state at each time.
        symbols: symbol that the head reads at each time.
        heads: cell of the head at each time.
        attended: at time i the last earlier time at which the head was in the same cell; i - 1 if it never
            was, and -1 at time 0. In a transformer, the position that the third layer attends to.
    """

    states: tuple[str, ...]
    symbols: tuple[str, ...]
    heads: tuple[int, ...]
    attended: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.states)

    def wrong_times(
        self, other: "Trace", parts: tuple[str, ...] = ("states", "symbols", "heads")
    ) -> list[int]:
        """Returns the times at which one of the parts differs.

        Raises:
            ValueError: the traces have different lengths.
        """
        if len(self) != len(other):
            raise ValueError(
                f"traces must have the same length, got {len(self)} and {len(other)} times; run both for "
                "the same steps"
            )
        pairs = (zip(getattr(self, part), getattr(other, part)) for part in parts)
        return [time for time, row in enumerate(zip(*pairs)) if any(own != others for own, others in row)]

    def first_difference(self, other: "Trace") -> int | None:
        """Returns the first time at which state, symbol or head differ; None if there is none."""
        return next(iter(self.wrong_times(other)), None)

    def agreement(self, other: "Trace") -> float:
        """Returns the number of steps before the first difference as a share of all steps; 0 if the times 0
        differ.
        """
        first = self.first_difference(other)
        return 1.0 if first is None else max(first - 1, 0) / max(len(self) - 1, 1)


@dataclass(frozen=True)
class TuringMachine:
    r"""A deterministic Turing machine with one tape.

    >>> flip = TuringMachine(("go", "end"), ("#", "0", "1"), {
    ...     ("go", "0"): ("go", "1", 1), ("go", "1"): ("go", "0", 1), ("go", "#"): ("end", "#", -1)}, "go", ("end",))
    >>> flip.tape("1011", 5)
    '0100'

    Attributes:
        states: names of the states Q.
        alphabet: symbols :math:`\Sigma`, one character each, with the blank.
        delta: table :math:`(q, s) \mapsto (q', v, m)` with an entry for every state that does not halt and
            every symbol.
        start: state at time 0.
        accept: states in which the machine halts and accepts.
        reject: states in which it halts and does not accept.
        blank: symbol of all cells outside the word; a word does not contain it.
        first_cell: cell of the head at time 0: 1, the first symbol of the word, or 0 in normal form.

    Raises:
        TypeError: a name is not a text, or ``delta`` is not a table of transitions.
        ValueError: a name is repeated or unknown, a symbol is not one character, a transition is missing,
            leaves a halting state or has an unknown move, or ``first_cell`` is neither 0 nor 1.
    """  # noqa: E501

    states: tuple[str, ...]
    alphabet: tuple[str, ...]
    delta: Table = field(hash=False)
    start: str
    accept: tuple[str, ...]
    reject: tuple[str, ...] = ()
    blank: str = "#"
    first_cell: int = 1

    def __post_init__(self):
        for name in ("states", "alphabet", "accept", "reject"):
            values = tuple(getattr(self, name))
            object.__setattr__(self, name, values)
            for value in values:
                check_type(f"an entry of {name}", value, str)
            if len(set(values)) < len(values):
                raise ValueError(
                    f"{name} must not repeat a name, got {', '.join(values)}; leave the second one out"
                )
        check_type("delta", self.delta, Mapping)
        object.__setattr__(self, "delta", dict(self.delta))
        if bad := [symbol for symbol in self.alphabet if len(symbol) != 1 or symbol.isspace()]:
            raise ValueError(
                f"symbols must be single characters other than spaces, got {bad[0]!r}; rename it"
            )
        if self.blank not in self.alphabet:
            raise ValueError(
                f"the alphabet must contain the blank {self.blank!r}, got {' '.join(self.alphabet)}; add "
                "it, or pass blank="
            )
        if unknown := [
            state for state in (self.start, *self.accept, *self.reject) if state not in self.states
        ]:
            raise ValueError(
                f"start, accept and reject must be states, got {unknown[0]!r}; the states are "
                f"{', '.join(self.states)}"
            )
        if both := set(self.accept) & set(self.reject):
            raise ValueError(
                f"a state must not accept and reject, got {min(both)!r} in both; remove it from one"
            )
        if self.first_cell not in (0, 1):
            raise ValueError(f"first_cell must be 1, or 0 in normal form, got {self.first_cell}")
        self._check_table()

    def _check_table(self) -> None:
        for key, value in self.delta.items():
            if not (isinstance(key, tuple) and isinstance(value, tuple) and (len(key), len(value)) == (2, 3)):
                raise TypeError(
                    f"delta must map (state, symbol) to (state, symbol, move), got {key!r}: {value!r}"
                )
            (q, s), (target, written, move) = key, value
            entry = f"({q}, {s}) -> ({target}, {written}, {move})"
            if unknown := [state for state in (q, target) if state not in self.states]:
                raise ValueError(
                    f"a transition must use the states {', '.join(self.states)}, got {unknown[0]!r} in "
                    f"{entry}"
                )
            if unknown := [symbol for symbol in (s, written) if symbol not in self.alphabet]:
                raise ValueError(
                    f"a transition must use the symbols {' '.join(self.alphabet)}, got {unknown[0]!r} in "
                    f"{entry}"
                )
            if move not in (-1, 0, 1):
                raise ValueError(f"a move must be -1, 0 or 1, got {move!r} in {entry}")
            if q in self.halting:
                raise ValueError(
                    f"a halting state must have no transitions, got {entry}; remove it: the machine stays "
                    f"in {q!r}"
                )
        missing = [
            (q, s)
            for q in self.states
            if q not in self.halting
            for s in self.alphabet
            if (q, s) not in self.delta
        ]
        if missing:
            names = ", ".join(f"({q}, {s})" for q, s in missing[:3]) + (
                f" and {len(missing) - 3} more" if len(missing) > 3 else ""
            )
            raise ValueError(
                f"every state that does not halt needs a transition for every symbol, got none for {names}; "
                "add them"
            )

    @cached_property
    def halting(self) -> frozenset[str]:
        """States in which the machine halts."""
        return frozenset((*self.accept, *self.reject))

    def step(self, state: str, symbol: str) -> Transition:
        """Returns the next state, the symbol that is written and the move."""
        return (state, symbol, HALTING_MOVE) if state in self.halting else self.delta[state, symbol]

    def check_run(self, word: str, steps: int) -> None:
        """Checks a word and a number of steps.

        Raises:
            TypeError: the word is not a text, or ``steps`` not an integer.
            ValueError: the word holds the blank or a symbol outside the alphabet, or ``steps`` is negative.
        """
        check_type("word", word, str)
        integers(minimum=0, steps=steps)
        letters = [symbol for symbol in self.alphabet if symbol != self.blank]
        if foreign := [symbol for symbol in word if symbol not in letters]:
            expected = (
                f"of the symbols {' '.join(letters)}"
                if letters
                else "empty, as there is no symbol but the blank"
            )
            raise ValueError(
                f"a word must be {expected}, got {foreign[0]!r} in {word!r}; leave out blanks and other "
                "symbols"
            )

    def configurations(self, word: str, steps: int) -> Iterator[tuple[str, int, dict[int, str]]]:
        """Yields state, head and tape at the times 0 to ``steps``. The tape, symbols by cell, is changed in
        place between the times.

        Raises:
            TypeError, ValueError: as in :meth:`check_run`.
        """
        self.check_run(word, steps)
        tape, head, state = dict(enumerate(word, 1)), self.first_cell, self.start
        yield state, head, tape
        for _ in range(steps):
            state, tape[head], move = self.step(state, tape.get(head, self.blank))
            head += move
            yield state, head, tape

    def run(self, word: str, steps: int) -> Trace:
        """Runs the machine, without any transformer.

        Args:
            word: input, a string of symbols without blanks; may be empty.
            steps: number of steps T; a machine that has halted stays in its state.
        Raises:
            TypeError, ValueError: as in :meth:`check_run`.
        """
        states, symbols, heads, attended = [], [], [], []
        last: dict[int, int] = {}
        for time, (state, head, tape) in enumerate(self.configurations(word, steps)):
            states.append(state)
            symbols.append(tape.get(head, self.blank))
            heads.append(head)
            attended.append(last.get(head, time - 1))
            last[head] = time
        return Trace(tuple(states), tuple(symbols), tuple(heads), tuple(attended))

    def halting_time(self, word: str, max_steps: int) -> int | None:
        """Returns the first time in a halting state; None if there is none up to ``max_steps``."""
        return next(
            (
                t
                for t, (state, _, _) in enumerate(self.configurations(word, max_steps))
                if state in self.halting
            ),
            None,
        )

    def accepts(self, word: str, max_steps: int) -> bool:
        """Returns whether the machine is in an accepting state after ``max_steps`` steps."""
        return [state for state, _, _ in self.configurations(word, max_steps)][-1] in self.accept

    def tape(self, word: str, steps: int) -> str:
        """Returns the symbols on the tape after a number of steps, from the first to the last cell that is
        not blank.
        """
        *_, (_, _, tape) = self.configurations(word, steps)
        cells = [cell for cell, symbol in tape.items() if symbol != self.blank]
        return (
            "".join(tape.get(cell, self.blank) for cell in range(min(cells), max(cells) + 1)) if cells else ""
        )

    @cached_property
    def in_normal_form(self) -> bool:
        """Whether the machine starts on the blank before the word, first moves right over the word, and never
        stays in a cell.
        """
        if (
            self.first_cell
            or any(move == 0 for _, _, move in self.delta.values())
            or self.start in self.halting
        ):
            return False
        reading, written, move = self.delta[self.start, self.blank]
        letters = [symbol for symbol in self.alphabet if symbol != self.blank]
        sweeps = all(self.step(reading, s) == (reading, s, 1) for s in letters)
        return (written, move) == (self.blank, 1) and sweeps and reading not in self.halting

    def normalise(self) -> "TuringMachine":
        r"""Returns a machine in normal form that accepts the same words: this machine itself if it is in
        normal form.

        Three states are added: one moves from cell 0 to cell 1, one right over the word, one back to the
        start of the word, where this machine starts after 2n + 3 steps. A move by 0 becomes a step right and
        a step back, with one more state per target.
        """
        if self.in_normal_form:
            return self
        names = list(self.states)

        def new(name: str) -> str:
            while name in names:
                name += "'"
            names.append(name)
            return name

        init, reading, rewinding = new("init"), new("read"), new("rewind")
        table: dict[tuple[str, str], Transition] = {}
        for symbol in self.alphabet:
            table[init, symbol] = (reading, symbol, 1)
            table[reading, symbol] = (reading, symbol, 1)
            table[rewinding, symbol] = (rewinding, symbol, -1)
        table[reading, self.blank] = (rewinding, self.blank, -1)
        # In cell 0; a machine whose own start is cell 0 takes over there, two steps later.
        table[rewinding, self.blank] = (self.start, self.blank, 1)
        if self.first_cell == 0:
            back = new("back")
            table[rewinding, self.blank] = (back, self.blank, 1)
            table |= {(back, symbol): (self.start, symbol, -1) for symbol in self.alphabet}
        returns: dict[str, str] = {}
        for (q, s), (target, written, move) in self.delta.items():
            if move == 0:
                if target not in returns:
                    returns[target] = new(f"{target}<")
                    table |= {(returns[target], symbol): (target, symbol, -1) for symbol in self.alphabet}
                table[q, s] = (returns[target], written, 1)
            else:
                table[q, s] = (target, written, move)
        return TuringMachine(
            tuple(names), self.alphabet, table, init, self.accept, self.reject, self.blank, 0
        )

    @classmethod
    def load(cls, path: str | Path) -> "TuringMachine":
        """Reads a machine from a text file, see :meth:`parse`.

        Raises:
            ValueError: the file cannot be read, or does not describe a machine; the message gives the line.
        """
        try:
            check_file(Path(path))
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, ValueError, TypeError) as error:
            raise ValueError(
                f"a machine must be a readable text file, got {str(path)!r} ({reason(error)}); check the path"
            ) from error
        try:
            return cls.parse(text)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    @classmethod
    def parse(cls, text: str) -> "TuringMachine":
        """Reads a machine from text: one transition per line, and lines that name the start and the halting
        states.

        ::

            ; adds one to a binary number; a comment starts with a semicolon
            start: right
            accept: done
            right 0 -> right 0 R
            right 1 -> right 1 R
            right # -> carry # L
            carry 1 -> carry 0 L
            carry 0 -> done 1 L
            carry # -> done 1 L

        Moves are L, R and S (stay). States and symbols are those of the transitions. Further lines: ``reject:
        STATE ...``, ``blank: SYMBOL`` (default ``#``), and ``accept:`` may name several states.

        Raises:
            ValueError: a line does not parse, is given twice, or the start is missing (the message gives the
                line), or the machine is incomplete.
        """
        check_type("text", text, str)
        names: dict[str, list[str]] = {}
        table: dict[tuple[str, str], Transition] = {}
        number = 1
        for number, raw in enumerate(text.splitlines(), 1):
            words, place = raw.partition(";")[0].split(), f"line {number}"
            if words and words[0] in ("start:", "accept:", "reject:", "blank:"):
                key, *values = words[0][:-1], *words[1:]
                single = key in ("start", "blank")
                if key in names:
                    raise ValueError(f"{place}: {key} must be given once, got a second line; remove one")
                if not values or (single and len(values) > 1):
                    raise ValueError(
                        f"{place}: {key}: needs {'one name' if single else 'names'}, got {raw.strip()!r}"
                    )
                names[key] = values
            elif words:
                if len(words) != 6 or words[2] != "->" or words[5] not in MOVES:
                    raise ValueError(
                        f"{place}: must read 'state symbol -> state symbol L|R|S', got {raw.strip()!r}; "
                        "mend the line"
                    )
                q, s, _, target, written, move = words
                if bad := [symbol for symbol in (s, written) if len(symbol) != 1]:
                    raise ValueError(f"{place}: symbols must be single characters, got {bad[0]!r}; rename it")
                if (q, s) in table:
                    raise ValueError(
                        f"{place}: ({q}, {s}) must have one transition, got a second; remove one"
                    )
                table[q, s] = (target, written, MOVES[move])
        if "start" not in names or not table:
            missing = (
                "a line 'start: STATE'" if table else "a transition 'state symbol -> state symbol L|R|S'"
            )
            raise ValueError(f"line {number}: the text must hold {missing}, got none up to here; add it")
        accept, reject = (tuple(names.get(key, ())) for key in ("accept", "reject"))
        return from_table(names["start"][0], table, accept, reject, names.get("blank", ["#"])[0])


def from_table(
    start: str, delta: Table, accept: tuple[str, ...] = (), reject: tuple[str, ...] = (), blank: str = "#"
) -> TuringMachine:
    """Builds a machine whose states and symbols are those of its transitions."""
    states = dict.fromkeys(
        (start, *(name for (q, _), (target, _, _) in delta.items() for name in (q, target)), *accept, *reject)
    )
    alphabet = dict.fromkeys(
        (blank, *(symbol for (_, s), (_, written, _) in delta.items() for symbol in (s, written)))
    )
    return TuringMachine(tuple(states), tuple(alphabet), delta, start, accept, reject, blank)

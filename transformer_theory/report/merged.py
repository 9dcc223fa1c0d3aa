"""Several stored results as one: runs that differ only in their seed become one line, mean and standard deviation over them.

What does not matter, and so keeps no runs apart: date, machine, command, processes, which other theories and networks took part. Every
other difference does, and the subject names it: ``"digits: features of ViT, steps 200"``. A seed counts once, however often it was
measured.

Numbers are averaged only over rows of one quantity, one place and one kind of line; where the predictions or the lines of
such rows differ, the note gives their range.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ..core.measurement import Basis, Row
from ..core.notes import joined, shared
from ..core.result import Result
from ..core.theory import Theory
from ..core.verification import Summary, summaries
from . import wording
from .averages import close, exactly, finite, mean, spread
from .located import Kind, Located, located, unfinished
from .views import theories_of

SEVERE = ("violated", "fails", "consistent", "holds", "inconclusive", "outside assumptions", "not applicable")  # which of several is told


@dataclass(frozen=True, eq=False)
class Entry:
    """One number over all runs that measured it.

    Attributes:
        theory: name of its record; ``"network"`` for what the networks themselves reached.
        kind: see :data:`~.located.Kind`.
        quantity: what was measured; of a claim its id, of an assumption its sentence.
        subject: on what, in plain words: data, view or network or experiment, place, and settings where these differ. Of a claim empty.
        rows: one a run (of a claim one a seed), without repetition.
        runs: for each row the index of its result in :attr:`Merged.results`.
        n: how many rows have a number.
        value: mean over these, None if there is none.
        spread: their standard deviation, with n - 1; None of fewer than two.
        null, predicted, bound: means over the rows that state one; None if none does.
        op, basis: of all rows; None where they state none.
        verdict: the gravest of the rows' (see :data:`SEVERE`); of a claim that of all its seeds, or what is wrong with its control.
        verdicts: all verdicts and how many rows have each.
        source: as the rows store it; may be empty.
        note: what all rows say, and what has to be said of the merging.
        again: which of the rows of one run that nothing but their notes tells apart, counted from 1; 0 where the runs have different
            numbers of them, so that it is not known which belong together and each stays alone.
        claim: of a claim: seeds, share with interval, worst seed, control; else None.
    """

    theory: str
    kind: Kind
    quantity: str
    subject: str
    rows: tuple[Row, ...]
    runs: tuple[int, ...]
    n: int
    value: float | None
    spread: float | None
    null: float | None
    predicted: float | None
    bound: float | None
    op: Literal["<=", ">="] | None
    basis: Basis | None
    verdict: str
    verdicts: dict[str, int]
    source: str
    note: str
    again: int = 1
    claim: Summary | None = None

    @property
    def row(self) -> Row:
        """The merged numbers as one row, so that whatever tells a row can tell an entry (:func:`~.wording.prediction`, ...)."""
        row = Row(theory=self.theory, quantity=self.quantity, value=self.value, verdict=self.verdict, source=self.source, note=self.note)
        optional = {name: getattr(self, name) for name in ("null", "predicted", "bound", "op", "basis")}
        return Row(**row, **{name: value for name, value in optional.items() if value is not None})  # pyright: ignore

    @property
    def holds(self) -> bool:
        """Whether it is a claim that is consistent on every seed, with a control that fails."""
        return self.claim is not None and self.verdict == "consistent" and self.claim.consistent == self.claim.seeds

    @property
    def told(self) -> str:
        """The verdict, with counts where the runs differ: ``"violated (1 of 3 runs), consistent (2)"``; without a reason."""
        if self.claim is not None or len(self.verdicts) == 1:
            return self.verdict if self.claim is not None else next(iter(self.verdicts))
        names, runs = sorted(self.verdicts, key=_severity), sum(self.verdicts.values())
        return ", ".join(f"{name or 'not judged'} ({self.verdicts[name]}{'' if i else f' of {runs} runs'})" for i, name in enumerate(names))


@dataclass(frozen=True, eq=False)
class Merged:
    """Several results as one.

    Attributes:
        results: in the given order.
        entries: sorted by theory, what the networks reached last, then in order of appearance.
        theories: records of the theories in it: those of the registry in its order, then strangers.
        notes: what a reader of all of it must know (results of different versions, trainings that are not at their end).
    """

    results: tuple[Result, ...]
    entries: tuple[Entry, ...]
    theories: tuple[Theory, ...]
    notes: tuple[str, ...]

    def select(self, **equal: object) -> list[Entry]:
        """The entries whose attributes have the given values; a tuple lists choices: ``select(kind=("claim", "reading"))``."""
        return [one for one in self.entries if all(_among(getattr(one, name), wanted) for name, wanted in equal.items())]

    def label(self, run: int) -> str:
        """What a result is called in tables: ``"R1"`` for the first."""
        return f"R{run + 1}"

    def labels(self, entry: Entry) -> str:
        """The results behind an entry: ``"R1, R3"``."""
        return ", ".join(self.label(run) for run in sorted(set(entry.runs)))


def _among(value: object, wanted: object) -> bool:
    return value in wanted if isinstance(wanted, tuple) else value == wanted


def merged(results: Iterable[Result], *, theories: Iterable[Theory] | None = None) -> Merged:
    """The results as one.

    Args:
        results: of ``compare``, ``verify``, ``train`` and experiments, in any mixture.
        theories: records to look in; the registry if None.
    Raises:
        ValueError: there is none.
    """
    results = tuple(results)
    if not results:
        raise ValueError("results must hold at least one, got none; name a folder that compare, verify, run or train has written")
    records = _records(results, theories)
    found = [(run, one) for run, result in enumerate(results) for one in located(result, records)]
    words = _settings_in_words([one for _, one in found])
    entries = [entry for again, group in _groups(found) for entry in _entries(group, again, words)]
    order = {name: at for at, name in enumerate(theory.name for theory in records)}
    entries.sort(key=lambda entry: order.get(entry.theory, len(order)))
    return Merged(results, tuple(entries), tuple(records), _warnings(results))


def _records(results: Sequence[Result], theories: Iterable[Theory] | None) -> list[Theory]:
    """Records of all theories that the results have rows of, each once: known ones in their order, then strangers."""
    if theories is None:
        from ..theories import THEORIES

        theories = THEORIES
    known = tuple(theories)
    order = {theory.name: at for at, theory in enumerate(known)}
    found = {theory.name: theory for result in results for theory in theories_of(result, known)}
    return sorted(found.values(), key=lambda theory: order.get(theory.name, len(order)))


def _groups(found: Iterable[tuple[int, Located]]) -> Iterator[tuple[int, list[tuple[int, Located]]]]:
    """What is one number over the runs, with :attr:`Entry.again`. Rows of one run that nothing but their notes tells apart are not runs
    of each other; they belong together in their order if every run has equally many.
    """
    by_key: dict[Hashable, dict[Hashable, list[tuple[int, Located]]]] = {}
    for run, one in found:
        key = one.theory, one.kind, one.quantity, one.family, one.place, one.setting, *_line_kind(one)
        by_key.setdefault(key, {}).setdefault((run, one.seed), []).append((run, one))
    for runs in by_key.values():
        parts = list(runs.values())
        if parts[0][0][1].kind == "claim" or len({len(part) for part in parts}) == 1:
            for at in range(max(map(len, parts))):
                yield at + 1, [part[at] for part in parts if at < len(part)]
        else:
            yield from ((0, [one]) for part in parts for one in part)


def _line_kind(one: Located) -> tuple[str | None, str | None]:
    """What must be one for numbers to be averaged; the seeds of a claim are sorted by :func:`_checks`."""
    return (None, None) if one.kind == "claim" else (one.row.get("op"), one.row.get("basis"))


def _settings_in_words(found: Iterable[Located]) -> Callable[[Located], str]:
    """A function that names the settings in which an item differs from others of its family; empty if there is no other setting."""
    families: dict[str, dict[tuple, None]] = {}
    for one in found:
        families.setdefault(one.family, {})[one.setting] = None
    differing = {family: _differing([dict(setting) for setting in settings]) for family, settings in families.items()}

    def words(one: Located) -> str:
        return ", ".join(f"{name} {value}" for name, value in one.setting if name in differing[one.family])

    return words


def _differing(settings: Sequence[dict[str, str]]) -> set[str]:
    names = {name for setting in settings for name in setting}
    return {name for name in names if len({setting.get(name) for setting in settings}) > 1}


def _entries(group: list[tuple[int, Located]], again: int, words: Callable[[Located], str]) -> Iterator[Entry]:
    run, one = group[0]
    subject = ", ".join(filter(None, (one.family, one.place, words(one))))
    if one.kind != "claim":
        alone = f"of {_plural('result', [run + 1])}, not merged, since not all runs have as many rows of this name"
        entry = _entry(one, subject, group)
        yield replace(entry, again=again, note=entry.note if again else joined(entry.note, alone))
        return
    checks = _checks(group)
    for check in checks:
        entry = replace(_claim(one, _lines(check) if len(checks) > 1 else "", check), again=again)
        where = _plural("result", sorted({run + 1 for run, _ in check}))
        yield replace(entry, note=joined(entry.note, f"of {where}")) if len(checks) > 1 else entry


def _entry(one: Located, subject: str, group: Sequence[tuple[int, Located]]) -> Entry:
    kept, repeated = _once(group)
    rows = tuple(found.row for _, found in kept)
    column = {name: finite(row.get(name) for row in rows) for name in ("value", "null", "predicted", "bound")}
    means = {name: mean(numbers) for name, numbers in column.items()}
    values = column["value"]
    verdicts: dict[str, int] = {}
    for row in rows:
        name = wording.verdict(row)[0]
        verdicts[name] = verdicts.get(name, 0) + 1
    gravest = min((row.get("verdict") or "" for row in rows), key=_severity)
    numbered = [row for row in rows if row["value"] is not None and math.isfinite(row["value"])]
    note = joined(
        shared(row.get("note") or "" for row in rows if row["value"] is not None or len(values) == 0),
        repeated,
        f"a number in {len(values)} of {len(rows)} runs" if 0 < len(values) < len(rows) else None,
        *_partly(numbered),
        _range("predicted", column["predicted"]) if column["predicted"] != column["null"] else None,
        _range("line", column["bound"]) if column["bound"] not in (column["null"], column["predicted"]) else None,
    )
    return Entry(
        theory=one.theory,
        kind=one.kind,
        quantity=one.quantity,
        subject=subject,
        rows=rows,
        runs=tuple(run for run, _ in kept),
        n=len(values),
        value=means["value"],
        spread=spread(values),
        null=means["null"],
        predicted=means["predicted"],
        bound=means["bound"],
        op=rows[0].get("op"),
        basis=rows[0].get("basis"),
        verdict=gravest,
        verdicts=verdicts,
        source=next((source for row in rows if (source := row.get("source"))), ""),
        note=note,
    )


def _claim(one: Located, subject: str, group: Sequence[tuple[int, Located]]) -> Entry:
    """Evidence of one check, a seed once; the control must have failed in every result."""
    entry = _entry(one, subject, group)
    (found,) = summaries(Result("merged", table=list(entry.rows)))
    return replace(entry, op=found.op, verdict=found.said, claim=found)


def _checks(group: list[tuple[int, Located]]) -> list[list[tuple[int, Located]]]:
    """The evidence of a claim, apart where results held it against different lines: a check of another version is another check."""
    by_result: dict[int, list[tuple[int, Located]]] = {}
    for run, one in group:
        by_result.setdefault(run, []).append((run, one))
    checks: list[list[list[tuple[int, Located]]]] = []
    for part in by_result.values():
        home = next((check for check in checks if all(_one_line(part, other) for other in check)), None)
        if home is None:
            checks.append([part])
        else:
            home.append(part)
    return [[found for part in check for found in part] for check in checks]


def _one_line(left: Sequence[tuple[int, Located]], right: Sequence[tuple[int, Located]]) -> bool:
    """Whether two results hold a claim against one line. The line of some claims depends on the seed; then common seeds tell.

    A seed whose solver gave up has no line, so it says nothing of it; a result with no other seeds fits any line.
    """
    first, second = ({one.seed: (one.row.get("op"), one.row.get("bound")) for _, one in _lined(part)} for part in (left, right))
    if not first or not second:
        return True
    pairs = [(first[seed], second[seed]) for seed in first.keys() & second.keys()]
    if not pairs and len(set(first.values())) == len(set(second.values())) == 1:
        pairs = [(next(iter(first.values())), next(iter(second.values())))]
    if {op for op, _ in first.values()} != {op for op, _ in second.values()}:
        return False
    return all(close(one, other) for (_, one), (_, other) in pairs)


def _lined(part: Sequence[tuple[int, Located]]) -> list[tuple[int, Located]]:
    return [found for found in part if finite([found[1].row.get("bound")])]


def _once(group: Sequence[tuple[int, Located]]) -> tuple[list[tuple[int, Located]], str | None]:
    """Each seed once, the first of its gravest verdict; and a sentence if a seed was measured again with another number."""
    by_seed: dict[Hashable, list[tuple[int, Located]]] = {}
    for run, one in group:
        by_seed.setdefault(one.seed, []).append((run, one))
    kept = [min(same, key=lambda found: _severity(found[1].row.get("verdict") or "")) for same in by_seed.values()]
    other = [same for same in by_seed.values() if any(not _alike(same[0][1].row, one.row) for _, one in same)]
    if not other:
        return kept, None
    example = " and ".join(dict.fromkeys(exactly(one.row["value"]) for _, one in other[0]))
    who = "the run" if len(by_seed) == 1 and None in by_seed else f"{len(other)} of {len(by_seed)} seeds"
    results = _plural("result", sorted({run + 1 for same in other for run, _ in same}))
    return kept, f"{who} gave other numbers when measured again ({example}, {results}), and counts once, with its worst verdict"


def _alike(left: Row, right: Row) -> bool:
    """Whether two rows of one seed say the same, up to the rounding of another machine beside the numbers they are held against."""
    if left.get("verdict") != right.get("verdict"):
        return False
    beside = finite(row.get(name) for row in (left, right) for name in ("value", "bound", "predicted"))
    return close(left["value"], right["value"], max(map(abs, beside), default=0.0))


def _partly(rows: Sequence[Row]) -> Iterator[str]:
    """``"null stated by 2 of 3 runs"``: what only some of the rows that have a number state, so that its mean is not of all."""
    told: dict[int, list[str]] = {}
    for name, column in (("null", "null"), ("prediction", "predicted"), ("line", "bound")):
        told.setdefault(len(finite(row.get(column) for row in rows)), []).append(name)
    yield from (f"{' and '.join(names)} stated by {n} of {len(rows)} runs" for n, names in told.items() if 0 < n < len(rows))


def _range(name: str, numbers: Sequence[float]) -> str | None:
    """``"predicted 0.9 to 0.95 over the runs"``; None if all are one number."""
    if not numbers or all(close(numbers[0], number) for number in numbers):
        return None
    return f"{name} {wording.number(min(numbers))} to {wording.number(max(numbers))} over the runs"


def _lines(check: Sequence[tuple[int, Located]]) -> str:
    """``"line ≥ 0.99"``, ``"line ≤ 0.1 to 0.25"``: what a claim was held against, in the digits that tell it from another line."""
    found = [one.row for _, one in _lined(check)]
    ends = dict.fromkeys(exactly(end) for bounds in [finite(row.get("bound") for row in found)] for end in (min(bounds), max(bounds)))
    return f"line {'≤' if found[0].get('op') == '<=' else '≥'} {' to '.join(ends)}"


def _severity(verdict: str) -> int:
    """Unknown words (a control that passes) first, no verdict last."""
    name = verdict.partition(": ")[0]
    return SEVERE.index(name) if name in SEVERE else len(SEVERE) if not name else -1


def _plural(name: str, numbers: Sequence[int]) -> str:
    return f"{name}{'s' if len(numbers) > 1 else ''} {', '.join(f'R{number}' for number in numbers)}"


def _warnings(results: Sequence[Result]) -> tuple[str, ...]:
    """What has to be said of the results as a whole."""
    found = []
    if early := [run + 1 for run, result in enumerate(results) if unfinished(result)]:
        found.append(f"The training of {_plural('result', early)} has not come to its end: what is shown is of its last reading so far.")
    commits: dict[str, list[int]] = {}
    for run, result in enumerate(results):
        commits.setdefault(str(result.provenance.get("commit") or "")[:8], []).append(run + 1)
    if len(commits) > 1:
        told = "; ".join(f"{commit or 'commit not known'}: {_plural('result', runs)}" for commit, runs in commits.items())
        found.append(f"The results were measured by different versions of the library ({told}).")
    if changed := [run + 1 for run, result in enumerate(results) if result.provenance.get("dirty")]:
        found.append(f"{_plural('Result', changed)} {'were' if len(changed) > 1 else 'was'} measured with changes that were not committed.")
    return tuple(found)

r"""A LaTeX macro for each number of the results: a document that uses them is updated when the results
change.

The name of a measured value is ``\TT``, the theory (``attnsvm``), the quantity without articles and
prepositions, and the place: ``\TTattnsvmCosineMaxMarginDirectionRawTokens``. Suffixes name further numbers of
the same row: ``Low`` and ``High`` (the interval), ``Null``, ``SecondNull``, ``Predicted``, ``Threshold``,
``Agreement``, ``P`` and ``Seeds``.

The name of a claim's macro is ``\TT``, the theory and the claim: ``\TTattnsvmGlobalDirection``, the value of
the worst seed. Suffixes: ``Consistent``, ``Seeds``, ``Low`` and ``High`` (the interval of the share),
``Median``, ``Threshold`` and ``Control``.

LaTeX allows only letters in names, so digits are spelt out. If several numbers would have the same name, the
columns in which they differ (data, setting, split, layer, head, step, rung, settings of the run) are added to
it. Numbers that differ in no column get no macro.

The list begins with the commands behind the numbers, R1, R2 and so on, and with macros for the whole:
``\TTVersion``, ``\TTCommit``, ``\TTDate``, ``\TTTheories``, and counts of claims, tests and rungs. The macros
of one row or claim follow a comment that states quantity, place, null, n, interval and command.
"""

import re
import textwrap
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from ..comparison.judged import findings, rung_results
from ..comparison.pooling import Aggregate, Checked, Entry, result_label
from ..core import format
from ..core.math_text import escape
from ..core.table import grouped
from .number_tables import experiment_of
from .origins import commits, dates, made_by, versions

PREFIX = "TT"
# words that names omit
_SMALL = frozenset(
    re.findall(
        r"\w+", "a an and as at by for from in is it its of on or that the their to was were which with"
    )
)
MAX_COMMAND = 160  # characters of a command above the macros; the head of the list has it in full
_DIGITS = ("Zero", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine")
# columns that may be added to a name, in this order
_QUALIFIERS = (
    "split",
    "setting",
    "layer",
    "head",
    "step",
    "rung",
    "unit",
    "scope",
    "kind",
    "data",
    "op",
    "basis",
)


@dataclass(frozen=True)
class Macro:
    """A number with the name of its macro.

    Attributes:
        name: name of the macro, without the backslash.
        text: what the macro prints: the rounded number, or a version, a commit or a date.
        value: the number in full precision, or the text.
        suffix: which number of its row it is, for the comment behind the definition; empty for the value.
        about: quantity, place, null, n, interval and command of the row or claim, for the comment above the
            definitions.
    """

    name: str
    text: str
    value: float | int | str
    suffix: str = ""
    about: str = ""

    def __str__(self) -> str:
        exact = repr(float(self.value)) if isinstance(self.value, float) else str(self.value)
        digits = (
            escape(self.text).replace(",", "{,}") if not isinstance(self.value, str) else escape(self.text)
        )
        return (
            f"\\newcommand{{\\{self.name}}}{{{digits}}} % "
            f"{f'{self.suffix} = ' if self.suffix else ''}{_comment(exact)}"
        )


def macros(aggregate: Aggregate) -> list[Macro]:
    """Returns the macros of the whole, of the claims and of the entries. If several have the same name, all
    of them are dropped.
    """
    candidates = [*_of_all(aggregate), *_of_claims(aggregate), *_of_entries(aggregate)]
    names = Counter(macro.name for macro in candidates)
    return [macro for macro in candidates if names[macro.name] == 1]


def definitions(aggregate: Aggregate) -> str:
    r"""Returns the definitions of all macros: the text of a file to ``\input`` in the preamble."""
    lines = [
        "% Every number of the results as a macro, with its value in full behind it. The comment above it "
        "states quantity and place; the",
        "% null; n, the number of seeds or samples; the interval; and the command that made it, of a long "
        "one the beginning.",
        "% Without a suffix: the mean over the seeds, or the value of a claim's worst seed.",
        "% The commands, with version, commit and date:",
    ]
    lines += [
        _comment(f"% {_command(aggregate, index)} ({_state(aggregate, index)})")
        for index in _indices(aggregate)
    ]
    for about, group in groupby(macros(aggregate), key=lambda macro: macro.about):
        lines += ["", *([_comment(f"% {about}")] if about else []), *map(str, group)]
    return "\n".join([*lines, ""])


def _comment(text: str) -> str:
    """Returns a text on one line, for a comment. Names keep their letters and blanks, since commands are
    copied from comments.
    """
    return re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+", " ", text).encode(errors="backslashreplace").decode()


def _indices(aggregate: Aggregate) -> range:
    return range(len(aggregate.results))


def _command(aggregate: Aggregate, index: int) -> str:
    """Returns the label and the command of a result: ``"R1: transformer-theory compare --data digits"``."""
    result = aggregate.results[index]
    return (
        f"{result_label(index)}: "
        f"{format.portable_command(result.provenance) or f'{result.name}, command not stored'}"
    )


def _state(aggregate: Aggregate, index: int) -> str:
    """Returns version, commit and date of a result."""
    result = [aggregate.results[index]]
    return ", ".join(filter(None, (made_by(result), dates(result))))


def _about(aggregate: Aggregate, results: Iterable[int], *parts: str) -> str:
    """Joins the parts of a comment and the commands behind the numbers; the head of the list has long
    commands in full.
    """
    indices = sorted(set(results))
    commands = "; ".join(
        textwrap.shorten(_command(aggregate, index), MAX_COMMAND, placeholder=" ...") for index in indices[:2]
    )
    more = f"; {', '.join(map(result_label, indices[2:]))}" if indices[2:] else ""
    return " | ".join(filter(None, (*parts, commands + more)))


def example(candidates: Sequence[Macro]) -> Macro | None:
    """Selects the macro for the example document: the first measured value, otherwise the first count; None
    without candidates.
    """
    numbers = [macro for macro in candidates if not isinstance(macro.value, str)]
    return next(
        (macro for macro in numbers if isinstance(macro.value, float)), numbers[0] if numbers else None
    )


def _of_all(aggregate: Aggregate) -> Iterator[Macro]:
    """Yields the macros of the whole: version, commit and date of the results, and counts of theories, claims
    and corrections.
    """
    results = aggregate.results
    about = _about(aggregate, _indices(aggregate), "of all results")
    texts = {
        "Version": ", ".join(versions(results)),
        "Commit": ", ".join(commits(results)),
        "Date": dates(results),
    }
    for name, text in texts.items():
        if text:
            yield Macro(PREFIX + name, text, text, "", about)
    claims = [checked.verification for checked in aggregate.claims]
    numbers = {"Theories": (len(aggregate.theories), "theories in these results")}
    if claims:
        seeds = [len(claim.seeds) for claim in claims]
        numbers |= {
            "Claims": (len(claims), "claims that were verified"),
            "ClaimsConsistent": (
                sum(claim.verdict == "consistent" for claim in claims),
                "of these consistent on every decided seed",
            ),
            "ControlsFail": (
                sum(claim.control == "fails" for claim in claims),
                "controls that fail on every seed, as they must",
            ),
            "Corrections": (
                sum(claim.corrects_published for claim in claims),
                "claims that correct a published text",
            ),
            "SeedsMin": (min(seeds), "smallest number of seeds of a claim"),
            "SeedsMax": (max(seeds), "largest number of seeds of a claim"),
        }
    if found := findings(aggregate):
        numbers["Tests"] = (
            found.tests,
            "tests over which the false discovery rate of the findings is controlled",
        )
        numbers["Found"] = (
            sum(finding.judged.outcome == "as predicted" for finding in found.all),
            "findings that are as predicted",
        )
    if rungs := [rung for rung in rung_results(aggregate) if rung.judged.row.value is not None]:
        numbers["Rungs"] = (len(rungs), "rungs that were measured")
        numbers["RungsBeyond"] = (
            sum(rung.judged.outcome == "as predicted" for rung in rungs),
            "of these as predicted: beyond chance on the predicted side",
        )
        numbers["RungSeeds"] = (max(rung.judged.seeds for rung in rungs), "largest number of seeds of a rung")
    for name, (value, what) in numbers.items():
        yield Macro(PREFIX + name, format.number(value), value, what, about)


def _of_claims(aggregate: Aggregate) -> Iterator[Macro]:
    origins: dict[str, list[int]] = {}
    for index, result in enumerate(aggregate.results):
        for verification in result.verifications:
            origins.setdefault(verification.id, []).append(index)
    for theory in aggregate.theories:
        claims, name = aggregate.claims_of(theory), PREFIX + _theory(theory.name)
        if claims:
            consistent = sum(checked.verification.outcome == "consistent" for checked in claims)
            sources = {index for checked in claims for index in origins[checked.verification.id]}
            about = _about(
                aggregate, sources, f"{theory.name}: claims", f"n = {format.counted(len(claims), 'claim')}"
            )
            yield Macro(f"{name}Claims", str(len(claims)), len(claims), "verified", about)
            yield Macro(f"{name}ClaimsConsistent", str(consistent), consistent, "of these consistent", about)
        for checked in claims:
            yield from _of_claim(aggregate, checked, name, origins[checked.verification.id])


def _of_claim(aggregate: Aggregate, checked: Checked, name: str, origins: Sequence[int]) -> Iterator[Macro]:
    claim, number = checked.verification, "" if checked.number == 1 else _words(str(checked.number))
    words = name + _words(checked.name) + number
    low, high = claim.interval
    share = f"95 % interval of the consistent share {low:.3g} to {high:.3g}"
    about = _about(
        aggregate,
        origins,
        claim.id,
        claim.measures,
        f"n = {format.counted(len(claim.seeds), 'seed')}",
        share,
    )
    numbers: list[tuple[str, float | int | None, str]] = [
        ("", claim.worst.value, format.number(claim.worst.value)),
        ("Threshold", claim.worst.threshold, format.number(claim.worst.threshold)),
        ("Consistent", claim.consistent, str(claim.consistent)),
        ("Seeds", len(claim.seeds), str(len(claim.seeds))),
        ("Low", low, f"{low:.2f}"),
        ("High", high, f"{high:.2f}"),
        ("Median", claim.median, format.number(claim.median)),
        ("Control", claim.worst_control.value, format.number(claim.worst_control.value)),
    ]
    for suffix, value, text in numbers:
        if value is not None:
            yield Macro(words + suffix, text, value, suffix.lower() or "worst seed", about)


def _of_entries(aggregate: Aggregate) -> Iterator[Macro]:
    for name, entries in grouped(aggregate.entries, lambda entry: _base(aggregate, entry)).items():
        # Columns in which entries of the same name differ become part of the name. If there are none, the
        # place does.
        columns = [
            column for column in _QUALIFIERS if len({getattr(entry.row, column) for entry in entries}) > 1
        ]
        for entry in entries:
            qualifier = "".join(_words(format.place(entry.row, column)) for column in columns)
            if len({other.on for other in entries}) > 1 and not columns:
                qualifier = _words(entry.on)
            yield from _numbers(aggregate, name + qualifier, entry)


def _base(aggregate: Aggregate, entry: Entry) -> str:
    """Returns the name without qualifiers and suffix: theory, quantity, and the tokens, network or experiment
    in which it was measured.
    """
    row = entry.row
    where = {
        "on data": format.view_name(row.model),
        "assumption": f"assumption {format.view_name(row.model)}",
        "in network": f"trained {row.model}",
        "network": row.model,
    }.get(row.kind, f"{experiment_of(aggregate, entry).rpartition('.')[2]} {row.model}")
    return PREFIX + _theory(row.theory) + _words(row.quantity) + _words(where)


def _numbers(aggregate: Aggregate, name: str, entry: Entry) -> Iterator[Macro]:
    """Yields the macros of one entry: its value without a suffix, its other numbers with theirs. Missing
    numbers are skipped.
    """
    row = entry.row
    low, high = row.interval or (None, None)
    null = None if row.null is None or not row.null.draws else row.null.median
    of_value = [("", row.value), ("Low", low), ("High", high), ("Null", null)]
    of_value += [("SecondNull", second.median) for second in row.nulls[1:2] if second.draws]
    stated = (("Predicted", row.predicted), ("Threshold", row.threshold))
    numbers: list[tuple[str, float | int | None, str]] = [
        *((suffix, value, format.of_row(value, row)) for suffix, value in of_value),
        *((suffix, value, format.amount(value, row.unit)) for suffix, value in stated),
        ("Agreement", row.agreement, format.effect(row.agreement)),
        ("P", row.p, format.p_value(row.p)),
        ("Seeds", entry.seeds if len(entry.rows) > 1 else None, str(entry.seeds)),
    ]
    # over which layers and heads the mean is, for example
    note = textwrap.shorten(row.note, MAX_COMMAND, placeholder=" ...")
    drawn = (
        f"null: {row.null.kind}, {format.counted(len(row.null.draws), 'draw')}"
        if row.null is not None and row.null.draws
        else ""
    )
    about = _about(
        aggregate, entry.results, row.theory, format.label(row), entry.on, note, drawn, *_extent(entry)
    )
    for suffix, value, text in numbers:
        if value is not None:
            yield Macro(name + suffix, text, value, suffix.lower(), about)


def _extent(entry: Entry) -> tuple[str, str]:
    """Returns n and the interval of an entry as texts: the seeds, and what each seed measured if the rows
    know it.
    """
    row = entry.row
    counts = {single.n for single in entry.rows if single.value is not None}
    each = counts.pop() if len(counts) == 1 else None
    samples = (
        ""
        if each is None
        else f", {format.number(each)} each"
        if len(entry.rows) > 1
        else format.number(each)
    )
    seeds = format.counted(entry.seeds, "seed") if len(entry.rows) > 1 or not samples else ""
    if row.interval is None:
        return f"n = {seeds}{samples}", "no interval"
    low, high = (format.of_row(bound, row) for bound in row.interval)
    return f"n = {seeds}{samples}", f"95 % interval {row.interval_kind or 'over seeds'} {low} to {high}"


def _theory(name: str) -> str:
    """Abbreviates the name of a theory: ``"attention_svm" -> "attnsvm"``. The first capital after it begins
    the quantity.
    """
    return "".join(re.findall(r"[a-z]", name.lower().replace("attention", "attn"))) or "x"


def _words(text: str) -> str:
    """Joins the words of a text, except ``_SMALL``, in camel case: ``"cosine of W to the null, layer 2" ->
    "CosineWNullLayerTwo"``.
    """
    text = re.sub(r"(?<=\d),(?=\d{3}\b)", "", text)  # separators of thousands, which are always commas
    text = re.sub(r"(?<=\d)\.(?=\d)", " point ", text)  # 0.5
    text = re.sub(r"(?<![A-Za-z0-9])[-−](?=\d)", " minus ", text)  # -1, but not the hyphen of GPT-2
    text = "".join(_spelt(letter) for letter in unicodedata.normalize("NFKD", text))
    words = re.findall(r"[A-Za-z]+", re.sub(r"'s\b", "s", text))
    long = [word for word in words if word not in _SMALL] or words
    return "".join(word[0].upper() + word[1:] for word in long)


def _spelt(letter: str) -> str:
    """Spells a character in ASCII letters: a digit or Greek letter becomes a word, an accent is dropped,
    other signs become a blank.
    """
    if letter.isascii():
        return f" {_DIGITS[int(letter)]} " if letter.isdigit() else letter
    name = unicodedata.name(letter, "")
    if match := re.fullmatch(r"GREEK \w+ LETTER (\w+)", name):
        return f" {match[1].replace('LAMDA', 'LAMBDA').lower()} "
    return "" if unicodedata.combining(letter) else " "

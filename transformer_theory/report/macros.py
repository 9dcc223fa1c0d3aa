r"""A LaTeX macro for each number of the results: a document that uses them is updated when the results
change.

A name has at most :data:`MAX_NAME` letters: ``\TT``, the theory, what was measured where, and a suffix that
says which number of its row or claim it is (:data:`SUFFIXES`). Each suffix has one meaning, and no other part
of a name is spelt like a suffix.

* ``\TTattnsvmRungAdamW``: the quantity of the theory's ladder on a rung;
* ``\TTattnsvmRawTokens``, ``\TTattnsvmTrainedViT``: the theory's headline on data, and in a network;
* ``\TTattnsvmGlobalDirection``: a claim, whose number is that of the worst seed;
* other quantities have their own words before the place. Words of long names are cut.

LaTeX allows only letters in names, so numbers are Roman. If several numbers would have the same name, the
columns in which they differ (data, setting, split, layer, head, step, rung, settings of the run) are added to
it; names that are alike only because words were cut get three letters more. Numbers that differ in no column
get no macro.

The list begins with the commands behind the numbers, R1, R2 and so on, and with macros for the whole:
``\TTVersion``, ``\TTCommit``, ``\TTDate``, ``\TTTheories``, and counts of claims, tests and rungs. The macros
of one row or claim follow a comment that states quantity, place, null, n, interval and command.
:func:`index` is the same list as a page with a search field.
"""

import hashlib
import math
import re
import textwrap
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from ..comparison.judged import findings, rung_results
from ..comparison.pooling import Aggregate, Checked, Entry, result_label
from ..core import format
from ..core.math_text import escape
from ..core.table import grouped
from ..core.theory import Theory
from .html import environment
from .number_tables import experiment_of
from .origins import dates, last_commit, made_by, versions

PREFIX = "TT"
# words that names omit
_SMALL = frozenset(
    re.findall(
        r"\w+", "a an and as at by for from in is it its of on or that the their to was were which with"
    )
)
MAX_NAME = 40  # letters of a name
SUFFIXES = {
    "": "the value, over several seeds their mean; of a claim, the worst seed, undecided ones included",
    "Low": "lower end of the 95 % interval of the value",
    "High": "upper end of the 95 % interval of the value",
    "Null": "median of the null",
    "SecondNull": "median of the second null",
    "N": "n: the number of seeds; of a single run, of samples",
    "Predicted": "the number that the theory predicts",
    "Threshold": "the threshold that decides the verdict",
    "Agreement": "share of the way from the median of the null to the prediction",
    "PValue": "p-value before it is adjusted",
    "Median": "median over the seeds of a claim",
    "Control": "value of the control of a claim that is nearest to passing",
    "Consistent": "number of seeds on which a claim is consistent",
    "Undecided": "number of seeds on which a claim is not decided",
    "ShareLow": "lower end of the 95 % interval of the share of consistent seeds",
    "ShareHigh": "upper end of the 95 % interval of the share of consistent seeds",
}
MAX_BASE = MAX_NAME - max(map(len, SUFFIXES))
MAX_THEORY, THEORY_WORD = 10, 5  # letters of a theory in a name, and of each of its words if it is longer
MARK = 3  # letters that tell names apart whose words were cut
CUTS = (MAX_NAME, 8, 6, 5, 4, 3)  # letters of each word, the first choice that fits
MAX_DIGITS = 6  # of a claim's value that lies near its threshold
MAX_COMMAND = 160  # characters of a command above the macros; the head of the list has it in full
_ROMAN = tuple(
    zip(
        (1000, 900, 500, 400, 100, 90, 50, 40, 10, 9, 5, 4, 1),
        ("M", "CM", "D", "CD", "C", "XC", "L", "XL", "X", "IX", "V", "IV", "I"),
    )
)
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
        suffix: which number of its row it is, one of :data:`SUFFIXES`, or what a number of the whole is.
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
            f"{f'{SUFFIXES.get(self.suffix, self.suffix)} = ' if self.suffix else ''}{_comment(exact)}"
        )


def macros(aggregate: Aggregate) -> list[Macro]:
    """Returns the macros of the whole, of the claims and of the entries. If several have the same name, all
    of them are dropped.
    """
    candidates = [*_of_all(aggregate), *_named(aggregate, [*_of_claims(aggregate), *_of_entries(aggregate)])]
    names = Counter(macro.name for macro in candidates)
    return [macro for macro in candidates if names[macro.name] == 1]


def _named(aggregate: Aggregate, groups: Sequence["_Group"]) -> Iterator[Macro]:
    """Yields the macros of rows and claims, with names that are short and differ.

    Words that are alike before they are cut leave their numbers without a name.
    """
    theories = list(dict.fromkeys(group.theory for group in groups))
    prefix = dict(zip(theories, map(_theory, theories)))
    whole = Counter((group.theory, group.words) for group in groups)
    groups = [group for group in groups if whole[group.theory, group.words] == 1]

    def name(group: "_Group", letters: int = 0) -> str:
        start = PREFIX + prefix[group.theory]
        return start + _cut(group.words, MAX_BASE - len(start) - letters)

    names = Counter(name(group) for group in groups)
    for group in groups:
        base = name(group)
        if names[base] > 1:  # alike because words were cut
            digest = hashlib.sha256(" ".join((group.theory, *group.words)).encode()).digest()
            marks = "".join(chr(ord("a") + byte % 26) for byte in digest[:MARK])
            base = name(group, MARK) + marks.capitalize()
        for suffix, value, text in group.numbers:
            if value is not None:
                yield Macro(base + suffix, text, value, suffix, group.about)


@dataclass(frozen=True)
class _Group:
    """The numbers of one row or claim: triples (suffix, number, text), and the words of their name."""

    theory: str
    words: tuple[str, ...]
    about: str
    numbers: tuple[tuple[str, float | int | None, str], ...]


def definitions(aggregate: Aggregate, named: Sequence[Macro] | None = None) -> str:
    r"""Returns the definitions of all macros: the text of a file to ``\input`` in the preamble.

    Args:
        aggregate: the results.
        named: their :func:`macros`, if they are known.
    """
    named = macros(aggregate) if named is None else named
    lines = [
        "% Every number of the results as a macro, with its value in full behind it. The comment above it "
        "states quantity and place; the",
        "% null; n, the number of seeds or samples; the interval; and the command that made it, of a long "
        "one the beginning.",
        "% The end of a name says which number it is:",
        *(f"%   {suffix or '(nothing)'}: {meaning}" for suffix, meaning in SUFFIXES.items()),
        "% The same list with a search field is macros.html. The commands, with version, commit and date:",
    ]
    lines += [
        _comment(f"% {_command(aggregate, index)} ({_state(aggregate, index)})")
        for index in _indices(aggregate)
    ]
    for about, group in groupby(named, key=lambda macro: macro.about):
        lines += ["", *([_comment(f"% {about}")] if about else []), *map(str, group)]
    return "\n".join([*lines, ""])


def index(aggregate: Aggregate, named: Sequence[Macro] | None = None) -> str:
    """Returns the page that lists all macros, a row or claim a line, with a search field; see
    :func:`definitions`.
    """
    named = macros(aggregate) if named is None else named
    groups = [(about, list(group)) for about, group in groupby(named, key=lambda macro: macro.about)]
    commands = [
        f"{_command(aggregate, number)} ({_state(aggregate, number)})" for number in _indices(aggregate)
    ]
    page = environment().get_template("macro_index.html.j2")
    return page.render(groups=groups, commands=commands, suffixes=SUFFIXES) + "\n"


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
        "Commit": last_commit(results),
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


def _of_claims(aggregate: Aggregate) -> Iterator[_Group]:
    origins: dict[str, list[int]] = {}
    for index, result in enumerate(aggregate.results):
        for verification in result.verifications:
            origins.setdefault(verification.id, []).append(index)
    for theory in aggregate.theories:
        claims = aggregate.claims_of(theory)
        if claims:
            consistent = sum(checked.verification.outcome == "consistent" for checked in claims)
            sources = {index for checked in claims for index in origins[checked.verification.id]}
            about = _about(
                aggregate, sources, f"{theory.name}: claims", f"n = {format.counted(len(claims), 'claim')}"
            )
            counts = (("", len(claims)), ("Consistent", consistent))
            numbers = tuple((suffix, count, str(count)) for suffix, count in counts)
            yield _Group(theory.name, ("Claims",), about, numbers)
        for checked in claims:
            yield _of_claim(aggregate, checked, origins[checked.verification.id])


def _of_claim(aggregate: Aggregate, checked: Checked, origins: Sequence[int]) -> _Group:
    claim, number = checked.verification, () if checked.number == 1 else _words(str(checked.number))
    low, high = claim.interval
    about = _about(
        aggregate,
        origins,
        claim.id,
        claim.measures,
        f"n = {format.counted(len(claim.seeds), 'seed')}",
        f"95 % interval of the consistent share {low:.3g} to {high:.3g}",
    )
    threshold, undecided = claim.worst.threshold, claim.undecided
    numbers: tuple[tuple[str, float | int | None, str], ...] = (
        ("", claim.worst.value, _beside(claim.worst.value, threshold)),
        ("Threshold", threshold, format.number(threshold)),
        ("N", len(claim.seeds), str(len(claim.seeds))),
        ("Consistent", claim.consistent, str(claim.consistent)),
        ("Undecided", undecided or None, str(undecided)),
        ("ShareLow", low, f"{low:.3f}" if 0 < low < 1 else f"{low:g}"),
        ("ShareHigh", high, f"{high:.3f}" if 0 < high < 1 else f"{high:g}"),
        ("Median", claim.median, _beside(claim.median, threshold)),
        ("Control", claim.worst_control.value, _beside(claim.worst_control.value, threshold)),
    )
    return _Group(claim.theory, (*_words(checked.name), *number), about, numbers)


def _beside(value: float | None, threshold: float) -> str:
    """Formats a number of a claim so that rounding takes at most a tenth of its distance to the threshold:
    ``0.99974`` beside ``0.999`` as ``"0.9997"``, not ``"1.00"``.
    """
    if value is None or not math.isfinite(value):
        return format.NOTHING
    distance, digits = abs(value - threshold), 3
    while digits < MAX_DIGITS and abs(float(f"{value:.{digits - 1}e}") - value) > distance / 10:
        digits += 1
    return format.number(value, digits)


def _of_entries(aggregate: Aggregate) -> Iterator[_Group]:
    theories = {theory.name: theory for theory in aggregate.theories}
    for (theory, words), entries in grouped(
        aggregate.entries, lambda entry: (entry.row.theory, _base(aggregate, entry, theories))
    ).items():
        # Columns in which entries of the same name differ become part of the name. If there are none, the
        # place does.
        columns = [
            column for column in _QUALIFIERS if len({getattr(entry.row, column) for entry in entries}) > 1
        ]
        for entry in entries:
            more = [word for column in columns for word in _words(format.place(entry.row, column))]
            if len({other.on for other in entries}) > 1 and not columns:
                more = [*_words(entry.on)]
            yield _numbers(aggregate, theory, (*words, *more), entry)


def _base(aggregate: Aggregate, entry: Entry, theories: Mapping[str, Theory]) -> tuple[str, ...]:
    """Returns the words of a name without qualifiers and suffix: the quantity, except where it is that of the
    ladder or a headline, and the tokens, network, rung or experiment in which it was measured.
    """
    row, theory = entry.row, theories.get(entry.row.theory)
    where = {
        "rung": f"rung {row.rung}",
        "on data": format.view_name(row.model),
        "assumption": f"assumption {format.view_name(row.model)}",
        "in network": f"trained {row.model}",
        "network": row.model,
    }.get(row.kind, f"{experiment_of(aggregate, entry).rpartition('.')[2]} {row.model}")
    usual = {
        "rung": theory and theory.ladder and theory.ladder.quantity,
        "on data": theory and theory.on_data and theory.on_data.headline,
        "in network": theory and theory.in_networks and theory.in_networks.headline,
    }.get(row.kind)
    return (*(() if row.quantity == usual else _words(row.quantity)), *_words(where))


def _numbers(aggregate: Aggregate, theory: str, words: tuple[str, ...], entry: Entry) -> _Group:
    """Returns the numbers of one entry: its value without a suffix, its other numbers with theirs."""
    row = entry.row
    low, high = row.interval or (None, None)
    null = None if row.null is None or not row.null.draws else row.null.median
    of_value = [("", row.value), ("Low", low), ("High", high), ("Null", null)]
    of_value += [("SecondNull", second.median) for second in row.nulls[1:2] if second.draws]
    stated = (("Predicted", row.predicted), ("Threshold", row.threshold))
    count = entry.seeds if len(entry.rows) > 1 else row.n
    numbers: tuple[tuple[str, float | int | None, str], ...] = (
        *((suffix, value, format.of_row(value, row)) for suffix, value in of_value),
        *((suffix, value, format.amount(value, row.unit)) for suffix, value in stated),
        ("Agreement", row.agreement, format.effect(row.agreement)),
        ("PValue", row.p, format.p_value(row.p)),
        ("N", count, format.number(count)),
    )
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
    return _Group(theory, words, about, numbers if row.value is not None else ())


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
    what was measured.
    """
    words = re.findall(r"[a-z]+", name.lower().replace("attention", "attn"))
    if sum(map(len, words)) > MAX_THEORY and len(words) > 1:
        words = [word[:THEORY_WORD] for word in words if word not in _SMALL]
    return "".join(words)[:MAX_THEORY] or "x"


def _words(text: str) -> tuple[str, ...]:
    """Returns the words of a text, except ``_SMALL``, each with a capital: ``"cosine of W to the null, layer
    2" -> ("Cosine", "W", "null", "Layer", "II")``. No word ends like a suffix.
    """
    text = re.sub(r"(?<=\d),(?=\d{3}\b)", "", text)  # separators of thousands, which are always commas
    text = re.sub(r"(?<![A-Za-z0-9])[-−](?=\d)", " minus ", text)  # -1, but not the hyphen of GPT-2
    text = re.sub(r"\d+(?:\.\d+)?", lambda number: f" {_numeral(number[0])} ", text)
    text = "".join(_spelt(letter) for letter in unicodedata.normalize("NFKD", text))
    words = re.findall(r"[A-Za-z]+", re.sub(r"'s\b", "s", text))
    long = [word for word in words if word not in _SMALL] or words
    capital = (word[0].upper() + word[1:] for word in long)
    return tuple(map(_unlike_suffix, capital))


def _unlike_suffix(word: str) -> str:
    """Returns a word in small letters if it is a suffix, and with one capital if it ends in one: ``"null"``,
    ``"Cnn"``.
    """
    if word in SUFFIXES:
        return word.lower()
    return word.capitalize() if word.endswith(tuple(filter(None, SUFFIXES))) else word


def _numeral(digits: str) -> str:
    """Spells a number in letters: a whole one that is not too large in Roman numerals, others digit by
    digit.
    """
    if "." not in digits and 0 < int(digits) < 4000:
        rest, text = int(digits), ""
        for value, letters in _ROMAN:
            text += letters * (rest // value)
            rest %= value
        return text
    return " ".join("point" if digit == "." else _DIGITS[int(digit)] for digit in digits)


def _cut(words: Sequence[str], most: int) -> str:
    """Joins words to at most ``most`` letters. Each word is cut to the same length; if even the shortest are
    too many, those in the middle are left out.
    """
    for cut in CUTS:
        kept = [_unlike_suffix(word[:cut]) for word in words]
        if sum(map(len, kept)) <= most:
            return "".join(kept)
    while sum(map(len, kept)) > most:
        del kept[len(kept) // 2]
    return "".join(kept)


def _spelt(letter: str) -> str:
    """Spells a character in ASCII letters: a Greek letter becomes a word, an accent is dropped, other signs
    become a blank.
    """
    if letter.isascii():
        return letter
    name = unicodedata.name(letter, "")
    if match := re.fullmatch(r"GREEK \w+ LETTER (\w+)", name):
        return f" {match[1].replace('LAMDA', 'LAMBDA').lower()} "
    return "" if unicodedata.combining(letter) else " "

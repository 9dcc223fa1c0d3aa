r"""A LaTeX macro for each number of the results: a document that uses them is updated when the results change.

The name of a measured value is ``\TT``, the theory (``attnsvm``), the quantity without articles and prepositions, and the place:
``\TTattnsvmCosineMaxMarginDirectionRawTokens``. Suffixes name further numbers of the same row: ``Low`` and ``High`` (the interval),
``Null``, ``Predicted``, ``Threshold``, ``P`` and ``Seeds``.

The name of a claim's macro is ``\TT``, the theory and the claim: ``\TTattnsvmGlobalDirection``, the value of the worst seed. Suffixes:
``Consistent``, ``Seeds``, ``Low`` and ``High`` (the interval of the share), ``Median``, ``Threshold`` and ``Control``.

LaTeX allows only letters in names, so digits are spelt out. If several numbers would have the same name, the columns in which they differ
(data, setting, split, layer, head, step, rung, settings of the run) are added to it. Numbers that differ in no column get no macro.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from . import format
from .aggregate import Aggregate, Entry
from .latex_text import escape
from .tables import experiment_of

PREFIX = "TT"
# words that names omit
_SMALL = frozenset(re.findall(r"\w+", "a an and as at by for from in is it its of on or that the their to was were which with"))
_DIGITS = ("Zero", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine")
# columns that may be added to a name, in this order
_QUALIFIERS = ("split", "setting", "layer", "head", "step", "rung", "unit", "scope", "kind", "data", "op", "basis")


@dataclass(frozen=True)
class Macro:
    """A number with the name of its macro.

    Attributes:
        name: name of the macro, without the backslash.
        text: the rounded number that the macro prints.
        value: the number in full precision.
        description: theory, quantity, place and suffix, for the comment behind the definition.
    """

    name: str
    text: str
    value: float | int
    description: str

    def __str__(self) -> str:
        exact = str(self.value) if isinstance(self.value, int) else repr(float(self.value))
        shown = escape(self.text).replace(",", "{,}")
        comment = " ".join(self.description.split()).encode("ascii", "backslashreplace").decode()
        return f"\\newcommand{{\\{self.name}}}{{{shown}}} % {comment} = {exact}"


def macros(aggregate: Aggregate) -> list[Macro]:
    """The macros of the claims, then those of the entries, in order. Names that several numbers share are dropped."""
    candidates = [*_of_claims(aggregate), *_of_entries(aggregate)]
    names = [macro.name for macro in candidates]
    return [macro for macro in candidates if names.count(macro.name) == 1] if len(set(names)) < len(names) else candidates


def definitions(aggregate: Aggregate) -> str:
    r"""The definitions of all macros, a file to ``\input`` in the preamble."""
    head = (
        "% Every number of the results as a macro, with what it is and its value in full behind it.",
        "% Without a suffix: the mean over the seeds, or the value of a claim's worst seed.",
    )
    return "\n".join([*head, *map(str, macros(aggregate)), ""])


def example(found: Sequence[Macro]) -> Macro | None:
    """The macro that the example document shows: the first measured value, or the first count if there is none."""
    return next((macro for macro in found if isinstance(macro.value, float)), found[0] if found else None)


def _of_claims(aggregate: Aggregate) -> Iterator[Macro]:
    for theory in aggregate.theories:
        own, name = aggregate.claims_of(theory), PREFIX + _theory(theory.name)
        if own:
            held = sum(one.verification.outcome == "consistent" for one in own)
            yield Macro(f"{name}Claims", str(len(own)), len(own), f"{theory.name}: claims that were verified")
            yield Macro(f"{name}ClaimsConsistent", str(held), held, f"{theory.name}: of these consistent")
        for checked in own:
            one, words = checked.verification, name + _words(checked.name) + ("" if checked.number == 1 else _words(str(checked.number)))
            low, high = one.interval
            numbers: list[tuple[str, float | int | None, str]] = [
                ("", one.worst.value, format.number(one.worst.value)),
                ("Threshold", one.worst.threshold, format.number(one.worst.threshold)),
                ("Consistent", one.consistent, str(one.consistent)),
                ("Seeds", len(one.seeds), str(len(one.seeds))),
                ("Low", low, f"{low:.2f}"),
                ("High", high, f"{high:.2f}"),
                ("Median", one.median, format.number(one.median)),
                ("Control", one.worst_control.value, format.number(one.worst_control.value)),
            ]
            for suffix, value, text in numbers:
                if value is not None:
                    yield Macro(words + suffix, text, value, " | ".join(filter(None, (one.id, one.measures, suffix.lower()))))


def _of_entries(aggregate: Aggregate) -> Iterator[Macro]:
    by_name: dict[str, list[Entry]] = {}
    for entry in aggregate.entries:
        by_name.setdefault(_base(aggregate, entry), []).append(entry)
    for name, entries in by_name.items():
        # Columns in which entries of the same name differ become part of the name. If there are none, the place does.
        columns = [column for column in _QUALIFIERS if len({getattr(entry.row, column) for entry in entries}) > 1]
        for entry in entries:
            qualifier = "".join(_words(format.place(entry.row, column)) for column in columns)
            if len({other.on for other in entries}) > 1 and not columns:
                qualifier = _words(entry.on)
            yield from _numbers(name + qualifier, entry)


def _base(aggregate: Aggregate, entry: Entry) -> str:
    """The name without qualifiers and suffix: theory, quantity, and the tokens, network or experiment in which it was measured."""
    row = entry.row
    where = {
        "on data": format.view_name(row.model),
        "assumption": f"assumption {format.view_name(row.model)}",
        "in network": f"trained {row.model}",
        "network": row.model,
    }.get(row.kind, f"{experiment_of(aggregate, entry).rpartition('.')[2]} {row.model}")
    return PREFIX + _theory(row.theory) + _words(row.quantity) + _words(where)


def _numbers(name: str, entry: Entry) -> Iterator[Macro]:
    """The macros of one entry: its value without a suffix, the other numbers with theirs; numbers that it lacks are skipped."""
    row = entry.row
    low, high = row.interval or (None, None)
    numbers: list[tuple[str, float | int | None, str]] = [
        (suffix, value, format.amount(value, row.unit))
        for suffix, value in (
            ("", row.value),
            ("Low", low),
            ("High", high),
            ("Null", None if row.null is None or not row.null.draws else row.null.median),
            ("Predicted", row.predicted),
            ("Threshold", row.threshold),
        )
    ]
    numbers += [("P", row.p, format.number(row.p)), ("Seeds", entry.seeds if len(entry.rows) > 1 else None, str(entry.seeds))]
    for suffix, value, text in numbers:
        if value is not None:
            yield Macro(name + suffix, text, value, " | ".join(filter(None, (row.theory, format.label(row), entry.on, suffix.lower()))))


def _theory(name: str) -> str:
    """``"attention_svm" -> "attnsvm"``: lower case, so that the capital of the quantity marks where the theory ends."""
    return "".join(re.findall(r"[a-z]", name.lower().replace("attention", "attn"))) or "x"


def _words(text: str) -> str:
    """The words in camel case, without those of ``_SMALL``: ``"cosine of W to the null, layer 2" -> "CosineWNullLayerTwo"``."""
    text = re.sub(r"(?<=\d),(?=\d{3}\b)", "", text)  # separators of thousands, which are always commas
    text = re.sub(r"(?<=\d)\.(?=\d)", " point ", text)
    text = re.sub(r"(?<![A-Za-z0-9])[-−](?=\d)", " minus ", text)
    text = "".join(_spelt(letter) for letter in unicodedata.normalize("NFKD", text))
    words = re.findall(r"[A-Za-z]+", re.sub(r"'s\b", "s", text))
    kept = [word for word in words if word not in _SMALL] or words
    return "".join(word[0].upper() + word[1:] for word in kept)


def _spelt(letter: str) -> str:
    """A character in ASCII letters: digits and Greek letters as words, accents removed, any other sign a blank."""
    if letter.isascii():
        return f" {_DIGITS[int(letter)]} " if letter.isdigit() else letter
    name = unicodedata.name(letter, "")
    if found := re.fullmatch(r"GREEK \w+ LETTER (\w+)", name):
        return f" {found[1].replace('LAMDA', 'LAMBDA').lower()} "
    return "" if unicodedata.combining(letter) else " "

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
        description: theory, quantity, place and suffix, for the comment after the definition.
    """

    name: str
    text: str
    value: float | int
    description: str

    def __str__(self) -> str:
        exact = str(self.value) if isinstance(self.value, int) else repr(float(self.value))
        digits = escape(self.text).replace(",", "{,}")
        comment = " ".join(self.description.split()).encode("ascii", "backslashreplace").decode()
        return f"\\newcommand{{\\{self.name}}}{{{digits}}} % {comment} = {exact}"


def macros(aggregate: Aggregate) -> list[Macro]:
    """Returns the macros of the claims, then those of the entries. If several have the same name, all of them are dropped."""
    candidates = [*_of_claims(aggregate), *_of_entries(aggregate)]
    names = [macro.name for macro in candidates]
    return [macro for macro in candidates if names.count(macro.name) == 1] if len(set(names)) < len(names) else candidates


def definitions(aggregate: Aggregate) -> str:
    r"""Returns the definitions of all macros: the text of a file to ``\input`` in the preamble."""
    head = (
        "% Every number of the results as a macro, with what it is and its value in full behind it.",
        "% Without a suffix: the mean over the seeds, or the value of a claim's worst seed.",
    )
    return "\n".join([*head, *map(str, macros(aggregate)), ""])


def example(candidates: Sequence[Macro]) -> Macro | None:
    """Selects the macro for the example document: the first measured value, otherwise the first count; None without candidates."""
    return next((macro for macro in candidates if isinstance(macro.value, float)), candidates[0] if candidates else None)


def _of_claims(aggregate: Aggregate) -> Iterator[Macro]:
    for theory in aggregate.theories:
        claims, name = aggregate.claims_of(theory), PREFIX + _theory(theory.name)
        if claims:
            consistent = sum(checked.verification.outcome == "consistent" for checked in claims)
            yield Macro(f"{name}Claims", str(len(claims)), len(claims), f"{theory.name}: claims that were verified")
            yield Macro(f"{name}ClaimsConsistent", str(consistent), consistent, f"{theory.name}: of these consistent")
        for checked in claims:
            claim, number = checked.verification, "" if checked.number == 1 else _words(str(checked.number))
            words = name + _words(checked.name) + number
            low, high = claim.interval
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
                    yield Macro(words + suffix, text, value, " | ".join(filter(None, (claim.id, claim.measures, suffix.lower()))))


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
    """Returns the name without qualifiers and suffix: theory, quantity, and the tokens, network or experiment in which it was measured."""
    row = entry.row
    where = {
        "on data": format.view_name(row.model),
        "assumption": f"assumption {format.view_name(row.model)}",
        "in network": f"trained {row.model}",
        "network": row.model,
    }.get(row.kind, f"{experiment_of(aggregate, entry).rpartition('.')[2]} {row.model}")
    return PREFIX + _theory(row.theory) + _words(row.quantity) + _words(where)


def _numbers(name: str, entry: Entry) -> Iterator[Macro]:
    """Yields the macros of one entry: its value without a suffix, its other numbers with theirs. Missing numbers are skipped."""
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
    """Abbreviates the name of a theory: ``"attention_svm" -> "attnsvm"``. The first capital after it begins the quantity."""
    return "".join(re.findall(r"[a-z]", name.lower().replace("attention", "attn"))) or "x"


def _words(text: str) -> str:
    """Joins the words of a text, except ``_SMALL``, in camel case: ``"cosine of W to the null, layer 2" -> "CosineWNullLayerTwo"``."""
    text = re.sub(r"(?<=\d),(?=\d{3}\b)", "", text)  # separators of thousands, which are always commas
    text = re.sub(r"(?<=\d)\.(?=\d)", " point ", text)  # 0.5
    text = re.sub(r"(?<![A-Za-z0-9])[-−](?=\d)", " minus ", text)  # -1, but not the hyphen of GPT-2
    text = "".join(_spelt(letter) for letter in unicodedata.normalize("NFKD", text))
    words = re.findall(r"[A-Za-z]+", re.sub(r"'s\b", "s", text))
    long = [word for word in words if word not in _SMALL] or words
    return "".join(word[0].upper() + word[1:] for word in long)


def _spelt(letter: str) -> str:
    """Spells a character in ASCII letters: a digit or Greek letter becomes a word, an accent is dropped, other signs become a blank."""
    if letter.isascii():
        return f" {_DIGITS[int(letter)]} " if letter.isdigit() else letter
    name = unicodedata.name(letter, "")
    if match := re.fullmatch(r"GREEK \w+ LETTER (\w+)", name):
        return f" {match[1].replace('LAMDA', 'LAMBDA').lower()} "
    return "" if unicodedata.combining(letter) else " "

r"""Every number of the merged results as a LaTeX macro, so that a text never has to be searched for numbers that changed.

A name is made of what the number is: ``\TT``, the theory (``attnsvm``), the quantity without small words, and on what it was measured:
``\TTattnsvmCosineWMaxMarginDirectionDigitsRawTokens``; of a claim the theory and its name, ``\TTattnsvmGlobalDirection``, which is the
value of the worst seed. Further numbers of a row end in ``Spread``, ``Null``, ``Predicted``, ``Line`` and ``Runs``; of a claim in
``Consistent``, ``Seeds``, ``Low`` and ``High`` (the interval of the share), ``Median``, ``Line`` and ``Control``. Names have letters only;
digits are spelt.

Within one report a name is of one number, and it keeps its meaning when results are added: where two numbers would have one name, each gets
letters made of what it is, and the short name is gone, so that a document that used it does not compile instead of showing another number.
Names do not depend on the order of the results. Numbers that nothing tells apart from those of another run have none
(:attr:`~.merged.Entry.again`).
"""

import hashlib
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from . import wording
from .latex_text import escape
from .located import IN_LAYER
from .merged import Entry, Merged

PREFIX = "TT"
_SMALL = frozenset(re.findall(r"\w+", "a an and as at by for from in is it its of on or that the their to was were which with"))
_DIGITS = ("Zero", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine")
_LETTERS = 5  # that tell two numbers of one name apart


@dataclass(frozen=True)
class Macro:
    """A number under a name.

    Attributes:
        name: without the backslash.
        told: the number as a text shows it, three digits.
        value: in full.
        says: theory, quantity, subject and what of it.
    """

    name: str
    told: str
    value: float | int
    says: str

    def __str__(self) -> str:
        exact = str(self.value) if isinstance(self.value, int) else repr(float(self.value))
        return f"\\newcommand{{\\{self.name}}}{{{number(self.told)}}} % {_comment(self.says)} = {exact}"


def macros(merged: Merged) -> list[Macro]:
    """All of them, sorted as the entries; equal results give equal names."""
    found = [*_totals(merged), *(one for entry in merged.entries for one in _of_entry(entry))]
    often = Counter((identity, part) for _, identity, part, *_ in found)
    by_name: dict[str, set[str]] = {}
    for name, identity, part, *_ in found:
        by_name.setdefault(name + part, set()).add(identity)
    shared = {identity for identities in by_name.values() if len(identities) > 1 for identity in identities}
    return [
        Macro(f"{name}{_told_apart(id) if id in shared else ''}{part}", told, value, says)
        for name, id, part, told, value, says in found
        if often[id, part] == 1
    ]


def definitions(merged: Merged) -> str:
    """The file ``macros.tex``."""
    head = (
        "% Numbers of stored results, to be used in the text: each line defines one, and says what it is and its value in full.",
        "% Accuracies are in per cent. Without a suffix: the mean over the runs, or the value of a claim's worst seed.",
    )
    return "\n".join([*head, *map(str, macros(merged)), ""])


def number(told: str) -> str:
    r"""A number of :mod:`.wording` for text and for formulas: ``"1,797" -> "1{,}797"``, ``"1.20·10⁻¹³" -> "\ensuremath{...}"``."""
    return escape(told).replace(",", "{,}")


_Part = tuple[str, str, str, str, float | int, str]  # name, identity, suffix, told, value, what it is


def _totals(merged: Merged) -> Iterator[_Part]:
    for theory in merged.theories:
        own = merged.select(theory=theory.name, kind="claim")
        if own:
            held = sum(entry.holds for entry in own)
            name = PREFIX + _theory(theory.name)
            yield name, theory.name, "Claims", str(len(own)), len(own), f"{theory.name}: claims that were verified"
            yield name, theory.name, "ClaimsConsistent", str(held), held, f"{theory.name}: of these consistent on every seed"


def _of_entry(entry: Entry) -> Iterator[_Part]:
    if not entry.again:
        return
    quantity = entry.quantity.rpartition("/")[2] if entry.kind == "claim" else entry.quantity
    quantity = quantity.removesuffix(wording.TRAINED).removesuffix(IN_LAYER)  # the subject says so
    name = PREFIX + _theory(entry.theory) + _words(quantity) + _words(entry.subject)
    place = {key: entry.rows[0].get(key) for key in ("model", "layer", "head", "step")}
    lines = sorted({bound for row in entry.rows if (bound := row.get("bound")) is not None}) if entry.claim is not None else []
    told = [entry.theory, entry.kind, entry.quantity, entry.subject, entry.op, entry.basis, entry.again]
    identity = json.dumps([*told, place, lines], sort_keys=True)
    says = " | ".join(filter(None, (entry.theory, entry.quantity, entry.subject)))
    for part, value, told in _numbers(entry):
        if value is not None:
            yield name, identity, part, told, value, f"{says}{f' | {part.lower()}' if part else ''}"


def _numbers(entry: Entry) -> Iterator[tuple[str, float | int | None, str]]:
    """Suffix, value and text of each number of an entry."""
    if (found := entry.claim) is not None:
        yield "", found.worst, wording.number(found.worst)
        yield "Line", found.bound, wording.number(found.bound)
        yield "Consistent", found.consistent, str(found.consistent)
        yield "Seeds", found.seeds, str(found.seeds)
        if found.decided:
            for part, end in zip(("Low", "High"), found.interval):
                yield part, end, f"{end:.2f}"
        yield "Median", found.median, wording.number(found.median)
        yield "Control", found.control_value, wording.number(found.control_value)
        return
    for part, value in (
        ("", entry.value),
        ("Spread", entry.spread),
        ("Null", entry.null),
        ("Predicted", entry.predicted),
        ("Line", entry.bound),
    ):
        yield part, value, wording.amount(value, entry.quantity)
    if len(entry.rows) > 1:
        yield "Runs", entry.n, str(entry.n)


def _theory(name: str) -> str:
    """``"attention_svm" -> "attnsvm"``: small letters, so that the quantity's capital ends it."""
    return "".join(re.findall(r"[a-z]", name.lower().replace("attention", "attn"))) or "x"


def _words(text: str) -> str:
    """Words with a capital each, small ones left out: ``"cosine of W to the null, layer 2" -> "CosineWNullLayerTwo"``."""
    text = re.sub(r"(?<=\d)[,.](?=\d{3}\b)", "", text)
    text = re.sub(r"(?<=\d)\.(?=\d)", " point ", text)
    text = re.sub(r"(?<![A-Za-z0-9])[-−](?=\d)", " minus ", text)
    text = "".join(_spelt(c) for c in unicodedata.normalize("NFKD", text))
    words = re.findall(r"[A-Za-z]+", re.sub(r"'s\b", "s", text))
    kept = [word for word in words if word not in _SMALL] or words
    return "".join(word[0].upper() + word[1:] for word in kept)


def _spelt(character: str) -> str:
    if character.isascii():
        return f" {_DIGITS[int(character)]} " if character.isdigit() else character
    name = unicodedata.name(character, "")
    if found := re.fullmatch(r"GREEK \w+ LETTER (\w+)", name):
        return f" {found[1].replace('LAMDA', 'LAMBDA').lower()} "
    return "" if unicodedata.combining(character) else " "


def _told_apart(identity: str) -> str:
    """Letters made of what a number is, the same in every report."""
    digest = hashlib.sha256(identity.encode()).digest()
    return "X" + "".join(chr(ord("a") + byte % 26) for byte in digest[:_LETTERS])


def _comment(text: str) -> str:
    """One line of ASCII."""
    return " ".join(text.split()).encode("ascii", "backslashreplace").decode()


def example(found: Sequence[Macro]) -> Macro | None:
    """One that a document can show: of a measured value rather than of a count."""
    return next((macro for macro in found if isinstance(macro.value, float)), found[0] if found else None)

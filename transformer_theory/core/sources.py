"""Sources: the places in the literature that claims, figures and rows cite, and their BibTeX.

The bibliography is ``references.bib`` in this folder; a :class:`Source` is one of its keys with a locator
("Thm. 3").
"""

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import date
from functools import cache
from pathlib import Path
from typing import Literal, get_args

from .errors import nearest
from .typed import Record

# Combining characters by LaTeX accent, and letters by LaTeX command.
ACCENTS = {
    '"': "\u0308",
    "'": "\u0301",
    "`": "\u0300",
    "^": "\u0302",
    "~": "\u0303",
    "c": "\u0327",
    "v": "\u030c",
    "H": "\u030b",
}
LETTERS = {
    "AA": "Å",
    "aa": "å",
    "O": "Ø",
    "o": "ø",
    "ss": "ß",
    "L": "Ł",
    "l": "ł",
    "ae": "æ",
    "AE": "Æ",
    "&": "&",
}
BIBLIOGRAPHY = Path(__file__).with_name("references.bib")
# LICENSE, CITATION.cff and pyproject.toml repeat these, and a test compares them. The package does not
# contain these files.
AUTHORS = "The transformer_theory developers"
TITLE = "transformer_theory: theories of transformers, side by side"
REPOSITORY = "https://github.com/transformer-theory/transformer_theory"
RELEASED = "2026-11-27"  # date of the version, as ISO 8601
YEAR = RELEASED[:4]
PREAMBLE = r'@preamble{"\providecommand{\url}[1]{\texttt{\detokenize{#1}}}"}'

Status = Literal["", "confirmed", "second-hand", "not found", "own"]
"""Result of the search for the cited statement.

- confirmed: read in the full text, under this number;
- second-hand: found in another text that cites it;
- not found;
- own: the statement is this library's; the source, with its number if there is one, is that of the setting;
- empty: not searched for.
"""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Source(Record):
    """A place in the literature.

    >>> import transformer_theory as tt
    >>> source = tt.Source("tian2023scan", "Thm. 2")
    >>> str(source), source.label
    ('tian2023scan, Thm. 2', 'Tian et al. (2023), Thm. 2')

    Attributes:
        key: key of the BibTeX entry in ``references.bib``.
        locator: theorem, equation, figure or section; may be empty.
        status: result of the search for the statement (:data:`Status`).

    Raises:
        ValueError: the key is not in the bibliography, or the status is unknown.
    """

    key: str
    locator: str = ""
    status: Status = ""

    def __post_init__(self):
        if self.key not in entries():
            raise ValueError(
                f"source key must be in references.bib, got {self.key!r}{nearest(self.key, entries())}"
            )
        if self.status not in get_args(Status):
            raise ValueError(
                f"status must be one of {', '.join(map(repr, get_args(Status)))}, got {self.status!r}"
            )

    def __str__(self) -> str:
        return f"{self.key}, {self.locator}" if self.locator else self.key

    def to_json(self) -> dict[str, str]:
        """Returns the fields that are not empty."""
        return {name: value for name, value in asdict(self).items() if value}

    @classmethod
    def from_json(cls, stored: Mapping[str, str]) -> "Source":
        """Restores a source from :meth:`to_json`. Its key may be missing from the bibliography, since another
        version may have stored it.

        Raises:
            ValueError: the key is missing, or a field is not text.
        """
        if not isinstance(stored, Mapping):
            raise ValueError(f"a stored source must have a key, a locator and a status, got {stored!r}")
        fields = {name: stored.get(name, "") for name in ("key", "locator", "status")}
        if not fields["key"] or not all(isinstance(value, str) for value in fields.values()):
            raise ValueError(f"a stored source must have a key, a locator and a status, got {stored!r}")
        source = object.__new__(cls)  # __init__ would refuse an unknown key
        for name, value in fields.items():
            object.__setattr__(source, name, value)
        return source

    @property
    def known(self) -> bool:
        """Whether the bibliography holds the key."""
        return self.key in entries()

    @property
    def published(self) -> bool:
        """Whether the text was published: its entry is not ``@unpublished``. An unknown key counts as
        published.
        """
        return not self.known or not entries()[self.key].startswith("@unpublished")

    @property
    def label(self) -> str:
        """Text for readers: ``"Tarzanagh et al. (2023a), Thm. 3"``; an unknown key stays a key."""
        name = short(self.key) if self.known else self.key
        return f"{name}, {self.locator}" if self.locator else name

    @property
    def url(self) -> str:
        """Address of the text (arXiv, DOI or publisher); empty if the entry has none."""
        return field(self.key, "url") if self.known else ""


@cache
def entries() -> dict[str, str]:
    """Returns all BibTeX entries by key, verbatim."""
    text = BIBLIOGRAPHY.read_text(encoding="utf-8")
    # An entry, "@article{key, ...}", ends at the first closing brace at the start of a line; other braces are
    # indented.
    return {
        match[1]: match[0].strip()
        for match in re.finditer(r"^@\w+\{([^,\s]+),.*?^\}", text, re.MULTILINE | re.DOTALL)
    }


def field(key: str, name: str) -> str:
    """Returns one field of an entry as plain text, without braces and with LaTeX accents as letters; empty if
    absent.
    """
    # A field is one line, such as "  year = {2020},".
    match = re.search(rf"^\s*{name}\s*=\s*\{{(.*)\}},?\s*$", entries()[key], re.MULTILINE | re.IGNORECASE)
    return re.sub(r"[{}]", "", _letters(match[1])) if match else ""


def _letters(text: str) -> str:
    r"""Replaces LaTeX accents by letters: ``Bj{\"o}rck`` becomes ``Björck``."""
    text = re.sub(r"\\(AA|aa|ss|ae|AE|[OoLl&])(?![A-Za-z])", lambda m: LETTERS[m[1]], text)
    # A letter is followed by its combining accent, and NFC merges the two. Accents named by letters (\c, \v,
    # \H) need a brace.
    accented = re.sub(r"\\([\"'`^~]|[cvH](?=\{))\{?([A-Za-z])\}?", lambda m: m[2] + ACCENTS[m[1]], text)
    return unicodedata.normalize("NFC", accented)


def short(key: str) -> str:
    """Returns authors and year, as in running text.

    >>> short("yu2020learning")
    'Yu et al. (2020)'
    """
    return f"{_authors(key)} ({year(key)})"


@cache
def year(key: str) -> str:
    """Returns the year, with a letter (``"2023a"``) if several entries have the same authors and year in
    running text.
    """
    twins = [
        other
        for other in entries()
        if (_authors(other), field(other, "year")) == (_authors(key), field(key, "year"))
    ]
    return field(key, "year") + (chr(ord("a") + twins.index(key)) if len(twins) > 1 else "")


def _authors(key: str) -> str:
    """Returns the surnames as in running text: "Ma", "Ma and Wright", or "Ma et al." for three authors or
    more.
    """
    authors = [name.split(",")[0].strip() for name in field(key, "author").split(" and ")]
    return (
        authors[0]
        if len(authors) == 1
        else " and ".join(authors)
        if len(authors) == 2
        else f"{authors[0]} et al."
    )


def bibtex(keys) -> str:
    """Returns the BibTeX entries of the keys, in order and without repetition, as :func:`portable` writes
    them.

    Raises:
        ValueError: a key is not in the bibliography.
    """
    keys = list(dict.fromkeys(keys))
    for key in keys:
        Source(key)  # raises the error for an unknown key
    return "\n\n".join(portable(entries()[key]) for key in keys) + "\n"


def portable(entry: str) -> str:
    r"""Returns an entry whose locator every style prints, and prints once.

    The standard styles print neither ``eprint`` nor ``doi`` nor ``url``, while natbib's and biblatex print
    all of them. A number of arXiv therefore stands in the note, unless it is in the journal, and an address
    stands there if it is the only locator. Addresses that repeat the number or the doi are left out. Names of
    authors stay as they are: how many are printed is up to the style.
    """
    head, *lines = entry.splitlines()
    fields: dict[str, str] = {}
    for line in lines:
        if match := re.match(r"\s*(\w+)\s*=\s*\{(.*)\},?\s*$", line):
            fields[match[1].lower()] = match[2]
    number, url = fields.pop("eprint", ""), fields.get("url", "")
    fields.pop("archiveprefix", None)
    notes = [fields.pop("note", "")]
    if number and number not in fields.get("journal", ""):
        notes.append(f"arXiv:{number}")
    elsewhere = number or fields.keys() & {"volume", "pages"}
    if doi := fields.get("doi", "") if not elsewhere else "":
        fields.pop("doi")
        notes.append(f"doi:{doi}")
    if number or "doi" in fields or doi:
        fields.pop("url", None)
    elif url and not elsewhere:
        fields.pop("url")
        notes.append(rf"\url{{{url}}}")
    if note := "; ".join(filter(None, notes)):
        fields["note"] = note
    width = max(map(len, fields))
    return "\n".join([head, *(f"  {name:<{width}} = {{{text}}}," for name, text in fields.items()), "}"])


def software() -> str:
    r"""Returns the BibTeX entry of this library: the installed version, its date and the address of the
    repository.

    The address is in ``howpublished``, since ``plain`` and the other standard styles do not print ``url``,
    and in no other field, so that no style prints it twice. The preamble defines ``\url`` for documents
    without the packages url and hyperref.
    """
    from .. import __version__

    author, title = (text.replace("_", r"\_") for text in (AUTHORS, TITLE))
    name, colon, rest = title.partition(":")
    day = date.fromisoformat(RELEASED)
    fields = {
        # Braces keep BibTeX from splitting the author's name and from changing the case of the title.
        "author": f"{{{author}}}",
        "title": f"{{{name}}}{colon}{rest}",
        "year": YEAR,
        "howpublished": rf"\url{{{REPOSITORY}}}",
        "note": f"Python library, version {__version__}, {day.day} {day:%B} {day.year}",
    }
    lines = [f"  {field:<12} = {{{value}}},\n" for field, value in fields.items()]
    # not @software, which BibTeX's standard styles do not know
    return f"@misc{{transformertheory{YEAR},\n{''.join(lines)}}}\n{PREAMBLE}\n"

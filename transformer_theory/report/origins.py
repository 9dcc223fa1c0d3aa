"""Where the numbers of a report come from: the folders of stored results, the version and commit of the
library that measured them, and the works that they cite.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from ..comparison.pooling import VERIFY, Aggregate, theories_of
from ..core import sources
from ..core.claims import Verification, sources_of
from ..core.files import of_file
from ..core.reading import read_json
from ..core.result import FILES, Provenance, Result
from ..core.theory import Theory
from ..core.typed import check_types

NAME = "transformer_theory"
COMMIT_LETTERS = 8


# ---- stored results


@dataclass(frozen=True, eq=False)
class Stored:
    """A stored result: its folder, or the file of its ledger, and the SHA-256 of each of its files by
    name.
    """

    folder: Path
    result: Result
    checksums: dict[str, str]


def stored_results(places: Iterable[Path]) -> list[Stored]:
    """Loads the results in these places, each once.

    A place is the folder of a result; a folder that holds such folders, whose results are sorted by name; or
    a ledger, as ``make ledger`` writes it (``docs/claims.json``), which holds a result for each command that
    verified claims.

    Raises:
        ValueError: a folder neither is nor contains a result, a file is no ledger, or a result lacks a file,
            cannot be read or was edited after it was stored.
        FileNotFoundError: a place does not exist.
    """
    folders: dict[Path, Path] = {}
    for place in places:
        if place.is_file():
            folders.setdefault(place.resolve(), place)
            continue
        if not place.is_dir():
            raise FileNotFoundError(
                f"there is no folder {place}; name one that compare, verify, run or train has written"
            )
        inside = [place] if _is_result(place) else sorted(filter(_is_result, place.iterdir()))
        if not inside:
            raise ValueError(
                f"{place} is no stored result and holds none; name a folder that compare, verify, run or "
                "train has written"
            )
        for folder in inside:
            folders.setdefault(folder.resolve(), folder)
    return [stored for folder in folders.values() for stored in _load(folder)]


def _load(place: Path) -> list[Stored]:
    if place.is_file():
        return [Stored(place, result, {place.name: of_file(place)}) for result in _of_ledger(place)]
    return [Stored(place, Result.load(place), {name: of_file(place / name) for name in FILES})]


def _is_result(folder: Path) -> bool:
    """Returns whether a folder has at least one file of a result. If others are missing, loading the result
    raises an error.
    """
    return (
        folder.is_dir()
        and not folder.name.startswith(".")
        and any((folder / name).is_file() for name in FILES)
    )


def _of_ledger(path: Path) -> list[Result]:
    """Loads a ledger, the JSON that :func:`.ledger.main` writes, as results of ``verify``: one for each
    command that verified some of its claims.

    Raises:
        ValueError: the file is no ledger.
    """
    try:
        found = []
        for item in read_json(path):
            verifications = tuple(map(Verification.from_json, item["verifications"]))
            check_types(Provenance, item["provenance"])
            found.append(Result(VERIFY, verifications=verifications, provenance=dict(item["provenance"])))
    except (ValueError, KeyError, TypeError, AttributeError):
        found = []
    if not found:
        raise ValueError(
            f"a file must be a ledger such as docs/claims.json, which `make ledger` writes, got {path}; "
            "name one, or the folder of a result"
        )
    return found


# ---- the library


def versions(results: Sequence[Result]) -> list[str]:
    """Returns the versions of the library that measured the results, each once."""
    return _distinct(
        (result.provenance.get("versions") or {}).get("transformer-theory") for result in results
    )


def commits(results: Sequence[Result], theories: Collection[str] = ()) -> list[str]:
    """Returns the abbreviated commits of the library that measured the results, each once."""
    return _distinct(
        str(record.get("commit") or "")[:COMMIT_LETTERS] for record in _records(results, theories)
    )


def dates(results: Sequence[Result]) -> str:
    """Returns the day, or the first and the last day, of the results: ``"23 November 2026 to 26 November
    2026"``; empty if not stored.
    """
    days = sorted(_distinct(str(record.get("date") or "")[:10] for record in _records(results)))
    spelt = [_spelt(day) for day in (days if len(days) < 2 else (days[0], days[-1]))]
    return " to ".join(spelt)


def _spelt(day: str) -> str:
    """Spells an ISO date: ``"2026-11-27" -> "27 November 2026"``. Other texts stay as they are."""
    try:
        parsed = date.fromisoformat(day)
    except ValueError:
        return day
    return f"{parsed.day} {parsed:%B} {parsed.year}"


def last_commit(results: Sequence[Result], theories: Collection[str] = ()) -> str:
    """Returns the abbreviated commit of the newest of the results; empty if none is stored.

    Args:
        results: the results.
        theories: theories whose numbers count, if they were measured one by one; empty for all.
    """
    known = [record for record in _records(results, theories) if record.get("commit")]
    newest = max(known, key=lambda record: str(record.get("date") or ""), default={})
    return str(newest.get("commit") or "")[:COMMIT_LETTERS]


def made_by(results: Sequence[Result], theories: Collection[str] = ()) -> str:
    """Names the library with version and commit: ``"transformer_theory 0.1.0, commit 90748cab"``; empty if
    neither is stored.

    Of several commits it names the last one and the number: ``"commit 90748cab, the last of 9"``; the table
    of provenance lists them.

    Args:
        results: the results.
        theories: see :func:`last_commit`.
    """
    known, names = versions(results), commits(results, theories)
    if not known and not names:
        return ""
    version = f" {' and '.join(known)}" if known else ""
    text = f"commit {last_commit(results, theories)}" if names else ""
    text += f", the last of {len(names)}" if len(names) > 1 else ""
    dirty = [bool(result.provenance.get("dirty")) for result in results]
    changed = f"{'' if all(dirty) else ', some'} with uncommitted changes" if any(dirty) else ""
    return f"{NAME}{version}{f', {text}{changed}' if text else ''}"


def sentence(results: Sequence[Result], theories: Collection[str] = ()) -> str:
    """Returns :func:`made_by` as a sentence for a caption: ``"Measured with transformer_theory 0.1.0, commit
    90748cab."``; may be empty.
    """
    made = made_by(results, theories)
    return f"Measured with {made}." if made else ""


def behind(combined: Aggregate, theory: str, *, claims: bool) -> list[Result]:
    """Returns the results that hold claims of a theory, or its other numbers."""
    return [
        result
        for result in combined.results
        if any(one.theory == theory for one in (result.verifications if claims else result.table))
    ]


def _records(results: Sequence[Result], theories: Collection[str] = ()) -> Iterator[Mapping[str, Any]]:
    """Yields the records of commit and date: of each result, or of its theories if they were measured one by
    one, as in a merged reach; then of the given theories alone, or of all.
    """
    for result in results:
        measured = result.settings.get("measured")
        if not isinstance(measured, Mapping):
            yield result.provenance
            continue
        yield from (record for name, record in measured.items() if not theories or name in theories)


def _distinct(texts: Iterable[str | None]) -> list[str]:
    """Returns the texts that are not empty, each once."""
    return [text for text in dict.fromkeys(texts) if text]


# ---- cited works


def keys(results: Result | Iterable[Result], theories: Iterable[Theory] | None = None) -> list[str]:
    """Returns the BibTeX keys of all works that a report cites or uses: sources of the results, then of
    theories, claims, with the texts that they correct, and rows, then those behind data and statistics.
    """
    all_results = (results,) if isinstance(results, Result) else tuple(results)
    cited = [source for result in all_results for source in result.sources]
    for theory in theories_of(all_results, theories):
        cited += [*theory.sources, *sources_of(theory.claims)]
    known = (source.key for source in cited if source.known)
    return list(dict.fromkeys([*known, *(key for result in all_results for key in result.citations)]))


def bibtex(results: Result | Iterable[Result], *, theories: Iterable[Theory] | None = None) -> str:
    """Returns the BibTeX entries of all works that the report and the tables of the results cite, with the
    preamble that their addresses need; empty if they cite nothing.
    """
    cited = keys(results, theories)
    return f"{sources.bibtex(cited)}\n{sources.PREAMBLE}\n" if cited else ""


def references(results: Result | Iterable[Result], *, theories: Iterable[Theory] | None = None) -> str:
    """Returns the entries of :func:`bibtex`, followed by that of this library, which has the preamble."""
    cited = keys(results, theories)
    return "\n".join([*([sources.bibtex(cited)] if cited else []), sources.software()])


def software_key() -> str:
    """Returns the key of this library's entry in :func:`references`."""
    return re.findall(r"@\w+\{([^,\s]+),", sources.software())[0]  # "@software{key," -> "key"


def works(results: Iterable[Result], theories: Iterable[Theory]) -> list[dict[str, str]]:
    """Returns the works that the results cite, in the order of the page's list of sources."""
    found = []
    for key in keys(tuple(results), theories):
        entry = {
            name: sources.field(key, name) for name in ("title", "journal", "booktitle", "url", "author")
        }
        # BibTeX has "Last, First and Last, First"; the page prints "First Last, First Last".
        authors = [" ".join(reversed(name.split(", "))) for name in entry["author"].split(" and ")]
        venue = entry["journal"] or entry["booktitle"]
        found.append(
            {**entry, "key": key, "year": sources.year(key), "author": ", ".join(authors), "venue": venue}
        )
    return found

"""The library behind the numbers: versions, commits and dates of results, as a sentence for the tables."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from typing import Any

from ..core.result import Result

NAME = "transformer_theory"
COMMIT_LETTERS = 8
MAX_COMMITS = 3  # commits that a sentence lists; of more it names the number


def versions(results: Sequence[Result]) -> list[str]:
    """Returns the versions of the library that measured the results, each once."""
    return _distinct(
        (result.provenance.get("versions") or {}).get("transformer-theory") for result in results
    )


def commits(results: Sequence[Result]) -> list[str]:
    """Returns the abbreviated commits of the library that measured the results, each once."""
    return _distinct(str(record.get("commit") or "")[:COMMIT_LETTERS] for record in _records(results))


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


def made_by(results: Sequence[Result]) -> str:
    """Names the library with version and commit: ``"transformer_theory 0.1.0, commit 90748cab"``; empty if
    neither is stored.

    Of more than :data:`MAX_COMMITS` commits only the number is named; the table of provenance lists them.
    """
    known, names = versions(results), commits(results)
    if not known and not names:
        return ""
    version = f" {' and '.join(known)}" if known else ""
    text = (
        f"{len(names)} commits"
        if len(names) > MAX_COMMITS
        else f"commit{'s' * (len(names) > 1)} {', '.join(names)}"
        if names
        else ""
    )
    dirty = [bool(result.provenance.get("dirty")) for result in results]
    changed = f"{'' if all(dirty) else ', some'} with uncommitted changes" if any(dirty) else ""
    return f"{NAME}{version}{f', {text}{changed}' if text else ''}"


def sentence(results: Sequence[Result]) -> str:
    """Returns :func:`made_by` as a sentence for a caption: ``"Measured with transformer_theory 0.1.0, commit
    90748cab."``; may be empty.
    """
    made = made_by(results)
    return f"Measured with {made}." if made else ""


def _records(results: Sequence[Result]) -> Iterator[Mapping[str, Any]]:
    """Yields the records of commit and date: of each result, or of its theories if they were measured one by
    one, as in a merged reach.
    """
    for result in results:
        measured = result.settings.get("measured")
        yield from measured.values() if isinstance(measured, Mapping) else (result.provenance,)


def _distinct(texts: Iterable[str | None]) -> list[str]:
    """Returns the texts that are not empty, each once."""
    return [text for text in dict.fromkeys(texts) if text]

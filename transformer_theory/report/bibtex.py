"""The literature behind results, as BibTeX."""

import re
from collections.abc import Iterable

from ..core import sources as citations
from ..core.result import Result
from ..core.sources import Source
from ..core.theory import Theory
from .views import theories_of


def keys(results: Result | Iterable[Result], known: Iterable[Theory] | None = None) -> list[str]:
    """BibTeX keys of everything a report cites, in order: the results' sources, their theories and claims, their rows."""
    known = None if known is None else tuple(known)
    found: list[str] = []
    for result in [results] if isinstance(results, Result) else results:
        found += [source.key for source in result.sources]
        for theory in theories_of(result, known):
            found += [source.key for source in theory.sources]
            found += [claim.source.key for claim in theory.claims]
        found += [source.key for row in result.table if (source := Source.find(row.get("source"))) is not None]
    return list(dict.fromkeys(found))


def bibtex(results: Result | Iterable[Result], *, theories: Iterable[Theory] | None = None) -> str:
    """BibTeX of everything that the report and the tables of one result or several cite; empty if nothing is cited."""
    found = keys(results, theories)
    return citations.bibtex(found) if found else ""


def references(results: Iterable[Result], *, theories: Iterable[Theory] | None = None) -> str:
    """:func:`bibtex` of all of them, and the library itself last."""
    return "\n".join(filter(None, (bibtex(tuple(results), theories=theories), citations.software())))


def software_key() -> str:
    """The key of the library in :func:`references`."""
    return re.findall(r"@\w+\{([^,\s]+),", citations.software())[0]

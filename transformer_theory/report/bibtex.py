"""The literature behind a comparison, as BibTeX."""

from collections.abc import Iterable

from .. import citations
from ..experiment import Result
from ..theory import Theory
from .views import cite, theories_of


def keys(result: Result, known: Iterable[Theory] | None = None) -> list[str]:
    """BibTeX keys of everything the report cites, in order: the result's sources, its theories and claims, its rows."""
    found = [source.key for source in result.sources]
    for theory in theories_of(result, known):
        found += [source.key for source in theory.sources]
        found += [claim.source.key for claim in theory.claims]
    found += [source.key for row in result.table if (source := cite(row.get("source"))) is not None]
    return list(dict.fromkeys(found))


def bibtex(result: Result, *, theories: Iterable[Theory] | None = None) -> str:
    """BibTeX of everything that the report and the table cite; empty if nothing is cited."""
    found = keys(result, theories)
    return citations.bibtex(found) if found else ""

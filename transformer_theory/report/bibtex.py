"""The literature behind results, as BibTeX."""

import re
from collections.abc import Iterable

from ..core import sources
from ..core.result import Result
from ..core.theory import Theory
from .aggregate import theories_of


def keys(results: Result | Iterable[Result], theories: Iterable[Theory] | None = None) -> list[str]:
    """BibTeX keys of everything that a report cites, in order: the results' sources, their theories and claims, their rows."""
    together = (results,) if isinstance(results, Result) else tuple(results)
    cited = [source for result in together for source in result.sources]
    for theory in theories_of(together, theories):
        cited += [*theory.sources, *(claim.source for claim in theory.claims)]
    for result in together:
        cited += [one.source for one in result.verifications]
        cited += [row.source for row in result.table if row.source is not None]
    return list(dict.fromkeys(source.key for source in cited if source.known))


def bibtex(results: Result | Iterable[Result], *, theories: Iterable[Theory] | None = None) -> str:
    """BibTeX of everything that the report and the tables of these results cite; empty if nothing is cited."""
    cited = keys(results, theories)
    return sources.bibtex(cited) if cited else ""


def references(results: Result | Iterable[Result], *, theories: Iterable[Theory] | None = None) -> str:
    """:func:`bibtex` of the results, and the library itself last."""
    return "\n".join(filter(None, (bibtex(results, theories=theories), sources.software())))


def software_key() -> str:
    """The key of the library in :func:`references`."""
    return re.findall(r"@\w+\{([^,\s]+),", sources.software())[0]

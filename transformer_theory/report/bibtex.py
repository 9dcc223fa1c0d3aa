"""BibTeX entries of the works that results cite."""

import re
from collections.abc import Iterable

from ..core import sources
from ..core.result import Result
from ..core.theory import Theory
from .aggregate import theories_of


def keys(results: Result | Iterable[Result], theories: Iterable[Theory] | None = None) -> list[str]:
    """Returns the BibTeX keys of all works that a report cites: sources of the results, then of theories,
    claims and rows.
    """
    all_results = (results,) if isinstance(results, Result) else tuple(results)
    cited = [source for result in all_results for source in result.sources]
    for theory in theories_of(all_results, theories):
        cited += [*theory.sources, *(claim.source for claim in theory.claims)]
    for result in all_results:
        cited += [verification.source for verification in result.verifications]
        cited += [row.source for row in result.table if row.source is not None]
    return list(dict.fromkeys(source.key for source in cited if source.known))


def bibtex(results: Result | Iterable[Result], *, theories: Iterable[Theory] | None = None) -> str:
    """Returns the BibTeX entries of all works that the report and the tables of the results cite; empty if
    they cite nothing.
    """
    cited = keys(results, theories)
    return sources.bibtex(cited) if cited else ""


def references(results: Result | Iterable[Result], *, theories: Iterable[Theory] | None = None) -> str:
    """Returns :func:`bibtex` of the results, followed by the entry of this library."""
    return "\n".join(filter(None, (bibtex(results, theories=theories), sources.software())))


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

"""Where the numbers of a paper come from, as an appendix: of each result its command, date, machine, versions, commit and checksums."""

from collections.abc import Mapping, Sequence

from .latex import longtable
from .merged import Merged
from .tables import provenance


def appendix(merged: Merged, *, folders: Sequence[str] = (), checksums: Sequence[Mapping[str, str]] = ()) -> str:
    """The provenance of these results as a table that breaks across pages, for ``\\input`` in a text of one column.

    Args:
        merged: the results.
        folders: where they are stored, in their order; empty if they are not.
        checksums: for each the SHA-256 of its files by their names; empty if they are not stored.
    """
    return longtable(provenance(merged, folders, checksums))

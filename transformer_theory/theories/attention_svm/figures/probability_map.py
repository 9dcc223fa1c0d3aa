"""The figure of the probability map."""

from typing import TYPE_CHECKING

from ....experiment import Result
from .size_map import MapRow, size_map

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROWS = (("feasible", "best tokens feasible"), ("best", "best tokens selected"), ("locally_optimal", "selection locally optimal"))


def probability_map(result: Result) -> "Figure":
    """Inputs against tokens, one column a dimension: shares, below them half the width of their 95 % bands."""
    a = {name.split("/", 1)[1]: value for name, value in result.arrays.items()}
    rows = [MapRow(words, a[name], (a[f"{name}_high"] - a[f"{name}_low"]) / 2, 1.0) for name, words in ROWS]
    return size_map(a["inputs"], a["tokens"], a["dims"], rows, absent="none\nsettled")

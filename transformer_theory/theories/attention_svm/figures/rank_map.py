"""The figure of the rank map."""

from typing import TYPE_CHECKING

from ....experiment import Result
from .size_map import MapRow, size_map

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROWS = (("feasible", "feasible share"), ("frobenius", "rank, Frobenius"), ("nuclear", "rank, nuclear"))


def rank_map(result: Result) -> "Figure":
    """Inputs against tokens, one column a dimension: feasible share and mean ranks, below them half the width of their 95 % intervals."""
    a = {name.split("/", 1)[1]: value for name, value in result.arrays.items()}
    a["feasible_half"] = (a["feasible_high"] - a["feasible_low"]) / 2
    most = {"feasible": 1.0}
    rows = [MapRow(words, a[name], a[f"{name}_half"], most.get(name, float(a["inputs"].max()))) for name, words in ROWS]
    return size_map(a["inputs"], a["tokens"], a["dims"], rows, absent="none")

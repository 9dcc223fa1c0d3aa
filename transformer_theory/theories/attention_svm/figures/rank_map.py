"""The figure of the rank map."""

from typing import TYPE_CHECKING

import numpy as np

from ....core.result import Result
from .size_map import MapRow, size_map

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROWS = (("feasible", "feasible"), ("frobenius", "rank, Frobenius"), ("nuclear", "rank, nuclear"))


def rank_map(result: Result) -> "Figure":
    """Inputs against tokens, one column a dimension: feasible share and mean ranks, below them how far their 95 % intervals reach."""
    a = {name.split("/", 1)[1]: value for name, value in result.arrays.items()}
    a["feasible_half"] = np.maximum(a["feasible_high"] - a["feasible"], a["feasible"] - a["feasible_low"])
    most = {"feasible": 1.0}
    rows = [MapRow(words, a[name], a[f"{name}_half"], most.get(name, float(a["inputs"].max()))) for name, words in ROWS]
    says = (
        f"Feasible: share of {result.params['trials']} random problems for each size; ±: to the farther end of its 95 % interval "
        "(Clopper-Pearson). Ranks: mean over the feasible problems; ±: half the 95 % interval of the mean (normal approximation); –: no "
        "problem was feasible."
    )
    return size_map(a["inputs"], a["tokens"], a["dims"], rows, says=says)

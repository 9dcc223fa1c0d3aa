"""The figure of the probability map."""

from typing import TYPE_CHECKING

import numpy as np

from ....core.result import Result
from .size_map import MapRow, size_map

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROWS = (("feasible", "feasible"), ("best", "all best selected"), ("locally_optimal", "locally optimal"))


def probability_map(result: Result) -> "Figure":
    """Inputs against tokens, one column a dimension: shares, below them the distance to the farther end of their 95 % intervals."""
    a = {name.split("/", 1)[1]: value for name, value in result.arrays.items()}
    rows = [MapRow(words, a[name], np.maximum(a[f"{name}_high"] - a[name], a[name] - a[f"{name}_low"]), 1.0) for name, words in ROWS]
    says = (
        f"Shares of {result.params['trials']} random problems for each size; ±: to the farther end of the 95 % interval "
        "(Clopper-Pearson). Feasible: some W selects every best token. All best selected: descent from zero does. Locally optimal: what "
        f"descent selects is, among the runs that gave one token of every input all but {result.params['threshold']:g} of its attention; "
        "–: no run did."
    )
    return size_map(a["inputs"], a["tokens"], a["dims"], rows, says=says)

"""The reach of the theories: the section of a page."""

from typing import Any

from ..comparison.judged import rung_results
from ..comparison.pooling import Aggregate
from . import judged_figures, tables
from .html import inline
from .sentences import FALSE_DISCOVERIES, MAX_LEADS, reach_statements


def section(combined: Aggregate) -> dict[str, Any] | None:
    """Returns what a page says: sentences, figure and numbers; None if the results hold no reach."""
    rungs = rung_results(combined)
    if not rungs:
        return None
    figure = inline(
        lambda: judged_figures.reach_map(rungs),
        "reach-map",
        "Theories by the assumptions that are relaxed: agreement with the prediction",
    )
    caption = f"Effect in each theory as its assumptions are relaxed; {FALSE_DISCOVERIES}."
    said = reach_statements(rungs)
    return {
        "leads": said[:MAX_LEADS],
        "statements": said,
        "figure": figure,
        "caption": caption,
        "table": tables.reach(rungs),
    }

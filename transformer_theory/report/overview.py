"""All theories of a comparison in a few lines: which of them lie where they predict, on the data and in the
networks.

The statements of a page (:func:`.findings.statements`) describe at most five theories; these lines name every
theory.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ..core.theory import Theory
from .findings import Finding, Findings

ORDER: dict[str, str] = {  # outcome of a theory in all cells of a view, and how a line says so
    "as predicted": "as predicted",
    "changed as predicted": "changed as predicted",
    "differs": "different from case to case",
    "explained": "explained by the quantity's own null",
    "opposite": "opposite to the prediction",
    "at chance": "at chance",
    "any data": "statements about any data",
    "not tested": "without a test",
    "not measured": "not measured",
}


@dataclass(frozen=True)
class Line:
    """The theories with one outcome.

    Attributes:
        outcome: the outcome in words.
        theories: the theories that have it, in the order of the page.
    """

    outcome: str
    theories: tuple[Theory, ...]


def overview(found: Findings, theories: Sequence[Theory]) -> list[tuple[str, list[Line]]]:
    """Returns groups (title, lines): the headlines on data, those in networks, and the theories without a
    headline.

    On data the raw tokens count, or features if there are no raw tokens. In networks a theory has an outcome
    if it has it in every network.

    Args:
        found: the findings.
        theories: all theories of the page.
    """
    on_data, inside = {}, {}
    for theory in theories:
        cells = [finding for finding in found.all if finding.theory is theory]
        outside = [cell for cell in cells if cell.view == "raw tokens"] or [
            cell for cell in cells if cell.view == "features"
        ]
        on_data[theory.name] = _outcome(outside)
        inside[theory.name] = _outcome([cell for cell in cells if cell.view == "network"])
    groups = [
        (title, _lines(theories, outcomes))
        for title, outcomes in (("On the data", on_data), ("In networks", inside))
    ]
    rest = tuple(theory for theory in theories if not on_data[theory.name] and not inside[theory.name])
    if rest:
        groups.append(("Neither", [Line("claims and figures only", rest)]))
    return [(title, lines) for title, lines in groups if lines]


def _outcome(cells: Sequence[Finding]) -> str:
    """Returns the outcome that all cells share, "differs" if they do not, and an empty text without cells."""
    outcomes = {cell.outcome for cell in cells}
    return "" if not outcomes else outcomes.pop() if len(outcomes) == 1 else "differs"


def _lines(theories: Sequence[Theory], outcomes: dict[str, str]) -> list[Line]:
    lines = [
        Line(text, tuple(theory for theory in theories if outcomes[theory.name] == outcome))
        for outcome, text in ORDER.items()
    ]
    return [line for line in lines if line.theories]

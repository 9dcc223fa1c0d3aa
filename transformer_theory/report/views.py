"""What the report reads from a stored comparison: views of the data, summary lines, a theory's rows sorted by kind.

A *view* is what the rooms read: ``"raw"`` (the tokens themselves) or the name of a network (its features). A finding without ``model`` is
raw; arrays of another view are stored as ``"<view>::<name>"``.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from ..core.claims import CLAIM, CLAIM_VERDICT, CONTROL_WORDS, Claim
from ..core.measurement import Row
from ..core.result import Result
from ..core.theory import Theory
from ..core.verification import Summary, summaries
from . import wording
from .timeline import Series, series

RAW = "raw"


def view(result: Result, model: str) -> Result:
    """The findings on one view, as the room yielded them: without readings and claims, with plain array names, so that
    ``theory.draw(view(result, "ViT"))`` draws what the room measured on the features of the network "ViT"."""
    rows = [row for row in findings(result) if view_of(row) == model]
    prefix = f"{model}::"
    if model == RAW:
        arrays = {name: array for name, array in result.arrays.items() if "::" not in name}
    else:
        arrays = {name.removeprefix(prefix): array for name, array in result.arrays.items() if name.startswith(prefix)}
    return replace(result, table=rows, arrays=arrays)


def views(result: Result) -> list[str]:
    """The views that have findings: raw first, then networks in order of appearance."""
    found = dict.fromkeys(view_of(row) for row in findings(result) if row["theory"] != "network")
    return sorted(found, key=lambda name: name != RAW)


def view_of(row: Row) -> str:
    """The view of the data that a row was measured on: "raw" or the name of a network."""
    return row.get("model") or RAW


def findings(result: Result) -> list[Row]:
    """Rows that are neither readings in training (``step``) nor claims."""
    return [row for row in result.table if row.get("step") is None and not row["quantity"].startswith((CLAIM, CLAIM_VERDICT))]


def networks(result: Result) -> list[str]:
    """The networks that were trained, in order of appearance."""
    return list(dict.fromkeys(row["model"] for row in result.table if row.get("step") is not None and row.get("model")))  # pyright: ignore


def theories_of(result: Result, known: Iterable[Theory] | None = None) -> list[Theory]:
    """Records of the theories in the result, in its order. One that is not known any more gets a record that only says its name.

    Args:
        known: records to look in; the registry if None.
    """
    if known is None:
        from ..theories import THEORIES

        known = THEORIES
    records = {theory.name: theory for theory in known}
    names = result.params.get("theories") or dict.fromkeys(row["theory"] for row in result.table)
    return [records.get(name) or _stranger(name) for name in names if name != "network"]


def _stranger(name: str) -> Theory:
    from ..core.plotting import text_figure

    return Theory(
        name=name,
        title=name,
        question="",
        statement="",
        sources=(),
        assumptions=(),
        claims=(),
        experiments=(),
        needs=(),
        predict_and_measure=lambda data, generator: iter(()),
        reducers=lambda: (),
        draw=lambda result: text_figure(f"{name} is not among the theories of this version"),
        order_parameter="",
        answer="",
    )


@dataclass(frozen=True)
class Line:
    """One line of the summary: what a theory predicted and what was measured on one view. ``row`` is None if nothing was measured.

    If ``trained``, it is the theory's order parameter in the trained network ``view`` instead of its minimal model on the features.
    """

    theory: Theory
    view: str
    row: Row | None
    trained: bool = False

    @property
    def subject(self) -> str:
        return wording.subject(self.view, self.trained)


def summary(result: Result, known: Iterable[Theory] | None = None) -> list[Line]:
    """A line for each theory and view: the row whose quantity is the theory's answer, or the row that says why there is none; then a line
    for each trained network in which the theory's order parameter was read."""
    lines = []
    for theory in theories_of(result, known):
        mine = [row for row in findings(result) if row["theory"] == theory.name]
        inside = [row for row in mine if in_trained(row, theory)]
        for name in views(result) or [RAW]:
            own = [row for row in mine if view_of(row) == name and row not in inside]
            answer = [row for row in own if row["quantity"] == theory.answer and row.get("layer") is None]
            reason = [row for row in own if (row.get("verdict") or "").startswith("not applicable")]
            row = (answer or reason or [None])[0]
            if row is not None or name == RAW:
                lines.append(Line(theory, name, row))
        lines += [Line(theory, view_of(row), row, trained=True) for row in inside]
    return lines


def in_trained(row: Row, theory: Theory) -> bool:
    """Whether a finding is the theory's order parameter in a trained network, or says that the network does not show it."""
    missing = f"not applicable: no layer of {row.get('model')} shows its "
    return row["quantity"] == theory.order_parameter + wording.TRAINED or (row.get("verdict") or "").startswith(missing)


@dataclass(frozen=True)
class Checked:
    """A claim with what its seeds said.

    Attributes:
        claim: its record; None if this version does not know it.
        summary: of its seeds.
        source: as the rows store it; may be empty.
    """

    claim: Claim | None
    summary: Summary
    source: str

    @property
    def id(self) -> str:
        return self.summary.id

    @property
    def verdict(self) -> str:
        """That of all seeds, or what is wrong with the control."""
        return self.summary.said

    @property
    def control_words(self) -> str:
        """What the control did, in words."""
        return CONTROL_WORDS[self.summary.control]


def checked(result: Result, theory: Theory) -> list[Checked]:
    """The theory's claims as they were verified in this result."""
    own = [row for row in result.table if row["theory"] == theory.name]
    known = {claim.id: claim for claim in theory.claims}
    sources = {row["quantity"]: row.get("source") or "" for row in own}
    return [Checked(known.get(one.id), one, sources[CLAIM + one.id]) for one in summaries(replace(result, table=own))]


def on_timeline(result: Result, theories: Iterable[Theory]) -> list[Series]:
    """The series that stand for the theories, then the few of the network's own readings that everybody knows."""
    orders = [(theory.name, theory.order_parameter) for theory in theories if theory.order_parameter]
    read = dict.fromkeys(row["quantity"] for row in result.table if row.get("step") is not None and row["theory"] == "network")
    words = ("accuracy", "loss", "stable rank", "rank-collapse")
    known = [("network", found[0]) for word in words if (found := [name for name in read if word in name.lower()])]
    return series(result, [*orders, *dict.fromkeys(known)])


def image_grid(count: int) -> int | None:
    """Side of the square grid of ``count`` patches; None if it is not a square."""
    side = math.isqrt(count)
    return side if side * side == count and side > 1 else None

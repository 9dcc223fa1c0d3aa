"""What the report reads from a stored comparison: views of the data, summary lines, a theory's rows sorted by kind.

A *view* is what the rooms read: ``"raw"`` (the tokens themselves) or the name of a network (its features). A finding without ``model`` is
raw; arrays of another view are stored as ``"<view>::<name>"``.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal

from ..citations import Source, entries
from ..claims import CONTROL_WORDS, Claim, ControlName, Evidence, Verdict
from ..experiment import Result
from ..rows import Row
from ..theory import Theory
from ..timeline import Series, series
from . import wording

RAW = "raw"
CLAIM, CLAIM_VERDICT, ASSUMPTION = "claim: ", "claim verdict: ", "assumption: "


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
    return [row for row in result.table if row.get("step") is None and not row["quantity"].startswith(("claim: ", "claim verdict: "))]


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
    from ..plotting import text_figure

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
    """A claim with what its seeds said, read back from the rows."""

    claim: Claim | None
    id: str
    rows: Sequence[Row]
    verdict: str
    note: str

    @property
    def judged(self) -> int:
        return sum(row.get("verdict") in ("consistent", "violated") for row in self.rows)

    @property
    def consistent(self) -> int:
        return sum(row.get("verdict") == "consistent" for row in self.rows)

    @property
    def op(self) -> str:
        """The claim holds if ``value op bound``."""
        return next((op for row in self.rows if (op := row.get("op"))), "<=")

    @property
    def value(self) -> float | None:
        """Of the seed nearest to its line, or farthest beyond it, among those that decide (if none does, among all)."""
        return self._nearest[0]

    @property
    def bound(self) -> float | None:
        """The line of that seed."""
        return self._nearest[1]

    @property
    def median(self) -> float | None:
        """Over all seeds."""
        finite = [value for row in self.rows if (value := row["value"]) is not None and math.isfinite(value)]
        return median(finite) if finite else None

    @property
    def control_value(self) -> float | None:
        """The control's value that comes nearest to passing."""
        return max(self._lines(self.rows, "null"), default=(0.0, None, None))[1]

    @property
    def _nearest(self) -> tuple[float | None, float | None]:
        decided = [row for row in self.rows if row.get("verdict") in ("consistent", "violated")]
        return min(self._lines(decided or self.rows, "value"), default=(0.0, None, None))[1:]

    def _lines(self, rows: Iterable[Row], column: Literal["value", "null"]) -> list[tuple[float, float, float]]:
        """How far on its side of the line each number lies, the number, and the line; of rows where both are finite."""
        found = [(row.get(column), row.get("bound")) for row in rows]
        sign = 1 if self.op == ">=" else -1
        return [(sign * (v - b), v, b) for v, b in found if v is not None and b is not None and math.isfinite(v) and math.isfinite(b)]

    @property
    def control(self) -> ControlName | None:
        """What the control did (:attr:`~transformer_theory.claims.Verdict.control`); None if the result does not say."""
        return next((said for row in self.rows if (said := row.get("control"))), None)

    @property
    def control_words(self) -> str:
        """The same in words; empty if the result does not say."""
        return CONTROL_WORDS[self.control] if self.control else ""

    @property
    def interval(self) -> tuple[float, float] | None:
        """Clopper-Pearson interval of the share of consistent seeds, as :class:`~transformer_theory.claims.Verdict` computes it."""
        if not self.judged:
            return None
        decided = [row for row in self.rows if row.get("verdict") in ("consistent", "violated")]
        stand_in = [Evidence(0.0, 0.0 if row.get("verdict") == "consistent" else -1.0, "<=") for row in decided]
        return Verdict(self.claim, tuple(range(len(decided))), tuple(stand_in), ()).interval  # pyright: ignore[reportArgumentType]


def checked(result: Result, theory: Theory) -> list[Checked]:
    """The theory's claims as they were verified in this result."""
    own = [row for row in result.table if row["theory"] == theory.name]
    ids = dict.fromkeys(row["quantity"].removeprefix(CLAIM) for row in own if row["quantity"].startswith(CLAIM))
    known = {claim.id: claim for claim in theory.claims}
    found = []
    for name in ids:
        total = next((row for row in own if row["quantity"] == CLAIM_VERDICT + name), None)
        rows = [row for row in own if row["quantity"] == CLAIM + name]
        said = (total or {}).get("verdict") or next((row.get("verdict") or "" for row in rows), "")
        found.append(Checked(known.get(name), name, rows, said, (total or {}).get("note") or ""))
    return found


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


def cite(text: str | None) -> Source | None:
    """The source that a row states; None if it states none that is in the bibliography."""
    return Source.parse(text) if text and text.partition(", ")[0] in entries() else None

"""The page of a training on images: what was trained and reached, how it learned, and what every theory read in it at each interval.

One HTML file made from the stored result alone, as :mod:`.html`; the same result gives the same bytes.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from ..core.notes import is_share, shared, without
from ..core.result import Result
from ..core.theory import Theory
from . import parts, training_figures, wording
from .facts import facts
from .figures import positions
from .readings import Readings, readings
from .timeline import Series
from .views import on_timeline, theories_of

BY_LAYER = (
    ("rate_reduction", "coding rate"),
    ("rate_reduction", "class coding rate"),
    ("rate_reduction", "rate reduction"),
    ("crate", "share of non-zeros"),
    ("network", "attention entropy"),
    ("network", "rank-collapse residual"),
)


def training_page(result: Result, *, theories: Iterable[Theory] | None = None) -> str:
    """The page of a training, finished or not.

    Args:
        result: of ``train``, fresh or loaded.
        theories: records that give titles, statements and order parameters; the registry if None.
    Returns:
        A complete HTML document.
    """
    known, read = theories_of(result, theories), readings(result)
    group = on_timeline(result, known)
    curves = {curve.theory: curve for curve in group if curve.theory != "network"}
    told, settings = facts(result, read), result.params.get("settings") or {}
    steps = sorted({int(step) for r in read for step in r.steps})
    chosen = [steps[i] for i in positions(len(steps), 3)]
    orders = [(t, r) for t in known for r in read if (r.theory, r.quantity) == (t.name, t.order_parameter) and not r.empty]
    own = [r for r in read if r.theory == "network" and r.layers != (None,) and not r.empty]
    layerwise = [r for pair in BY_LAYER for r in read if (r.theory, r.quantity) == pair]
    context: dict[str, Any] = {
        **parts.shared(result, known, group),
        "facts": told,
        "settings": settings,
        "objective": result.params.get("objective") or {},
        "images": wording.with_commas(result.params.get("images", "").partition(",")[0]),
        "network": settings.get("network", "network"),
        "summary": [_line(theory, r, told.kept, curves.get(theory.name)) for theory, r in orders],
        "silent": _silent(result, known, [theory.name for theory, _ in orders]),
        "learning": parts.inline(training_figures.learning(read, told), "learning", "Loss and accuracy over the training steps"),
        "sections": [_section(theory, read) for theory in known if any(r.theory == theory.name and not r.empty for r in read)],
        "own": _tables(own),
        "own_note": _note(own),
        "own_figure": parts.inline(training_figures.panels(own), "own", "Readings of attention and geometry by layer and step"),
        "chosen": chosen,
        "layers": parts.inline(training_figures.by_layer(layerwise, chosen), "layers", "Quantities from the first layer to the last"),
        "layer_rows": [row for r in layerwise if not r.empty for row in _by_layer(r, chosen)],
        "clock": wording.clock,
        "is_share": is_share,
    }
    return parts.rendered("training.html.j2", context, "training.css")


def _silent(result: Result, known: Sequence[Theory], read: Sequence[str]) -> list[tuple[str, list[Theory]]]:
    """Why theories read nothing, each reason once, with the theories that it keeps from it."""
    reasons = {row["theory"]: wording.verdict(row)[1] or row.get("note") or "" for row in reversed(result.table) if wording.absent(row)}
    found: dict[str, list[Theory]] = {}
    for theory in known:
        if theory.name not in read:
            found.setdefault(reasons.get(theory.name, reasons.get("network", "it was not read")), []).append(theory)
    return list(found.items())


def _line(theory: Theory, found: Readings, kept: int | None, curve: Series | None) -> dict[str, Any]:
    """A theory's line of the summary: its order parameter at the first reading, in the kept network and at the last, beside its null."""
    last, null = found.values[-1], found.nulls[-1]
    sides = (last > null) if theory.order_relation == ">=" else (last < null)
    compared = int(sum(1 for v, n in zip(last, null) if v == v and n == n))
    ends = [int(step) for step in found.steps]
    return {
        "theory": theory,
        "reading": found,
        "first": found.at(ends[0]),
        "kept": None if kept is None else found.at(kept),
        "last": found.at(ends[-1]),
        "null": found.at(ends[-1], "nulls"),
        "expected": "above" if theory.order_relation == ">=" else "below",
        "sides": (int(sides.sum()), compared),
        "half": None if curve is None else curve.crossing,
    }


def _section(theory: Theory, read: Sequence[Readings]) -> dict[str, Any]:
    own = [r for r in read if r.theory == theory.name and not r.empty]
    order = next((r for r in own if r.quantity == theory.order_parameter), None)
    others = [r for r in own if r is not order]
    name = wording.slug(theory.name)
    return {
        "theory": theory,
        "order": order,
        "figure": parts.inline(
            training_figures.theory(order, others), f"{name}-order", f"{theory.title}: readings over the training steps"
        ),
        "pictures": parts.inline(training_figures.panels(own), f"{name}-pictures", f"{theory.title}: all readings by layer and step")
        if training_figures.many(own)
        else None,
        "several": any(r.several for r in own),
        "rows": _tables(own),
        "note": _note(own),
    }


def _note(own: Sequence[Readings]) -> str:
    """What the notes of all these quantities say, to be said once."""
    return shared(r.note for r in own)


def _tables(own: Sequence[Readings]) -> list[dict[str, Any]]:
    """For each quantity: mean over layers at the first and the last reading, with the null and what only its own note says."""
    own = [r for r in own if not r.empty]
    said = _note(own)
    ends = [(int(r.steps[0]), int(r.steps[-1])) for r in own]
    return [
        {"reading": r, "first": r.at(first), "last": r.at(last), "null": r.at(last, "nulls"), "note": without(r.note, said)}
        for r, (first, last) in zip(own, ends)
    ]


def _by_layer(r: Readings, chosen: Sequence[int]) -> list[dict[str, Any]]:
    """For each layer: value, spread over heads and null at the chosen steps."""
    at = {int(step): i for i, step in enumerate(r.steps)}
    cells = lambda layer: [  # noqa: E731
        (r.values[at[step], layer], r.spread[at[step], layer], r.nulls[at[step], layer]) if step in at else (None, None, None)
        for step in chosen
    ]
    return [{"quantity": r.quantity, "layer": number, "cells": cells(position)} for position, number in enumerate(r.layers)]

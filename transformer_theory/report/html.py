"""The report: one HTML file made from a stored comparison alone, which needs no network, and no script to be whole.

Everything that comes from the data or the rows is escaped; formulas become MathML, figures inline SVG.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from markupsafe import Markup

from ..core.measurement import ASSUMPTION, Row
from ..core.notes import is_share, shared
from ..core.plotting import style
from ..core.result import Result
from ..core.theory import Theory
from . import figures, parts, wording
from .claimtable import ClaimLine, board, tally
from .facts import TEST
from .frames import film
from .timeline import Series, series
from .views import RAW, Line, checked, findings, networks, on_timeline, summary, theories_of, view, view_of, views


def html(result: Result, *, theories: Iterable[Theory] | None = None) -> str:
    """The page of a comparison: the same result gives the same bytes.

    Args:
        result: of ``compare``, fresh or loaded.
        theories: records that give titles, statements and figures; the registry if None.
    Returns:
        A complete HTML document.
    """
    known = theories_of(result, theories)
    models = networks(result)
    lines = summary(result, known)
    claims = {theory.name: [ClaimLine(theory, claim) for claim in checked(result, theory)] for theory in known}
    measured = [row for row in findings(result) if row["theory"] == "network"]
    reached = _reached(measured) if "models" in result.params else []
    rest = [row for row in measured if row not in reached]
    context: dict[str, Any] = {
        **parts.shared(result, known, on_timeline(result, known)),
        **pictures(result, models),
        "summary": [(theory, *_lines(lines, theory), [line.checked for line in claims[theory.name]]) for theory in known],
        "board": board([line for own in claims.values() for line in own], result.params.get("data", "")),
        "tally": tally,
        "shared": shared,
        "verdicts": [(name, meaning) for name, (_, _, meaning) in wording.VERDICTS.items() if name not in ("holds", "fails")],
        "sections": [{**_section(result, theory, models), "claims": claims[theory.name]} for theory in known],
        "learning": parts.inline(figures.learning(result), "learning", "Loss and accuracy of the networks over the training steps"),
        "network": _training(result, "network", models),
        "reached": reached,
        "first": [row for row in rest if _comes_first(row)],
        "more": [row for row in rest if not _comes_first(row)],
    }
    return parts.rendered("report.html.j2", context)


def _reached(measured: Sequence[Row]) -> list[Row]:
    """The first accuracy of each network on test images."""
    first: dict[str, Row] = {}
    for row in measured:
        if row["quantity"].startswith(TEST) and is_share(row["quantity"]):
            first.setdefault(row.get("model", ""), row)
    return list(first.values())


def _comes_first(row: Row) -> bool:
    """Whether a row of the networks is an accuracy, or says why their runs cannot be compared."""
    return is_share(row["quantity"]) or "side by side" in row["quantity"]


def _lines(lines: Sequence[Line], theory: Theory) -> tuple[list[Line], list[Line]]:
    """The theory's lines of the summary: each by itself, and the readings in trained networks, which share quantity and prediction."""
    own = [line for line in lines if line.theory is theory]
    inside = [line for line in own if line.trained and line.row is not None and not wording.absent(line.row)]
    return [line for line in own if line not in inside], inside


def pictures(result: Result, models: Sequence[str], prefix: str = "") -> dict[str, Any]:
    """What the template of pictures shows: frames for the slider, and figures for print and for readers without script.

    Args:
        prefix: of ids, where pages show several results.
    """
    shown = []
    for model in models:
        name = f"{prefix}attention-{wording.slug(model)}"
        label = f"Where {model} looks: the attention that each token receives, at some of the training steps"
        drawn = parts.inline(figures.attention(result, model), name, label)
        shown.append({"model": model, "film": film(result, model), "attention": drawn, "id": f"{prefix}film-{wording.slug(model)}"})
    features = figures.features(result, models)
    pictured = {model for model in models if f"network/{model}/features" in result.arrays}
    moving = {each["model"] for each in shown if each["film"] and each["film"].moving}
    return {
        "pictures": shown,
        "features": parts.inline(features, f"{prefix}features", "Features of the trained networks in the plane, by class"),
        "all_move": pictured <= moving,
        "unseen": "test images" if "models" in result.params else "held-out data",
    }


def _drawn(theory: Theory, part: Result, view_name: str) -> Markup | None:
    """The theory's figure. One that cannot be drawn must not cost the reader the whole page: the reason stands in its place."""
    with style():
        try:
            label = f"{theory.title}: what was measured on the {wording.subject(view_name)}"
            return parts.inline(theory.draw(part), f"{theory.name}-{view_name}", label)
        except Exception as error:
            return parts.undrawn(error)


def _section(result: Result, theory: Theory, models: Sequence[str]) -> dict[str, Any]:
    shown = []
    for name in views(result) or [RAW]:
        rows = [row for row in findings(result) if row["theory"] == theory.name and view_of(row) == name]
        measured = [row for row in rows if not row["quantity"].startswith(ASSUMPTION)]
        reasons = [row for row in measured if wording.absent(row)]
        if not rows:
            continue
        shown.append(
            {
                "view": name,
                "rows": sorted((row for row in measured if not wording.absent(row)), key=lambda row: row["quantity"] != theory.answer),
                "answer": next((row for row in measured if row["quantity"] == theory.answer and not wording.absent(row)), None),
                "reasons": reasons,
                "assumptions": [(row["quantity"].removeprefix(ASSUMPTION), row) for row in rows if row["quantity"].startswith(ASSUMPTION)],
                "figure": None if len(reasons) == len(measured) else _drawn(theory, view(result, name), name),
            }
        )
    return {"theory": theory, "parts": shown, "training": _training(result, theory.name, models)}


def _training(result: Result, theory: str, models: Sequence[str]) -> list[tuple[str, list[tuple[str, Series | None]]]]:
    """For each quantity read during training: its series in each network."""
    own = [s for s in series(result) if s.theory == theory]
    found = {(s.quantity, s.model): s for s in own}
    return [(quantity, [(m, found.get((quantity, m))) for m in models]) for quantity in dict.fromkeys(s.quantity for s in own)]

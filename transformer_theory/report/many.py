"""One page of several results: what was merged, all claims with their seeds pooled, and what each theory measured over the runs.

As :mod:`.html` it needs no network, and no script to be whole; the same results give the same bytes.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from markupsafe import Markup

from ..core.measurement import Row
from ..core.notes import is_share
from ..core.plotting import style
from ..core.result import Result
from ..core.theory import Theory
from . import figures, parts
from .claimtable import ClaimLine, board
from .html import pictures
from .located import COMPARE, TRAIN, data_of
from .merged import Entry, Merged, merged
from .pictures import pictures as all_pictures
from .views import RAW, Checked
from .views import networks as networks_of
from .wording import TRAINED

MOST = 300  # numbers that a theory's table shows
FIRST = 12  # of them, those outside of <details>, if none comes first by itself


def many(results: Sequence[Result], *, theories: Iterable[Theory] | None = None) -> str:
    """The page of these results.

    Args:
        results: of ``compare``, ``verify``, ``train`` and experiments, in any mixture; at least one.
        theories: records that give titles, statements and figures; the registry if None.
    Returns:
        A complete HTML document.
    Raises:
        ValueError: there is no result.
    """
    found = merged(results, theories=theories)
    lines = {theory.name: _claims(found, theory) for theory in found.theories}
    told = [_told(found, run, result) for run, result in enumerate(found.results)]
    data = ", ".join(dict.fromkeys(data_of(result) for result in found.results if result.name in (COMPARE, TRAIN)))
    context: dict[str, Any] = {
        "heading": _heading(found),
        "lead": _lead(found),
        "merged": found,
        "results": told,
        "board": board([line for own in lines.values() for line in own], data),
        "sections": [_section(found, theory, lines[theory.name]) for theory in found.theories],
        "networks": _group([entry for entry in found.entries if entry.theory == "network"], _reached),
        "learning": _learning(found),
        "pictured": _pictured(found),
        "bibliography": parts.bibliography(_whole(found), found.theories),
    }
    return parts.rendered("many.html.j2", context)


def _heading(found: Merged) -> str:
    if any(result.name in (COMPARE, TRAIN) for result in found.results):
        return "Theories of transformers on " + " and ".join(
            dict.fromkeys(data_of(result) for result in found.results if result.name in (COMPARE, TRAIN))
        )
    kinds = {"verify": "claims"}
    return "Theories of transformers: " + " and ".join(dict.fromkeys(kinds.get(result.name, result.name) for result in found.results))


def _lead(found: Merged) -> str:
    count = len(found.results)
    return f"What was measured in {f'{count} results' if count > 1 else 'one result'}, beside what the theories predict."


def _claims(found: Merged, theory: Theory) -> list[ClaimLine]:
    """The theory's claims over all results; one that was held against several lines has a line of the table for each."""
    known = {claim.id: claim for claim in theory.claims}
    lines, seen = [], dict[str, int]()
    for entry in found.select(theory=theory.name, kind="claim"):
        number = seen[entry.quantity] = seen.get(entry.quantity, 0) + 1
        note = "; ".join(filter(None, (entry.subject, entry.note)))
        if entry.claim is not None:
            lines.append(ClaimLine(theory, Checked(known.get(entry.quantity), entry.claim, entry.source), note, number))
    return lines


def _section(found: Merged, theory: Theory, claims: Sequence[ClaimLine]) -> dict[str, Any]:
    own = [entry for entry in found.entries if entry.theory == theory.name and entry.kind != "claim"]

    def answers(entry: Entry) -> bool:
        if entry.kind == "reading":
            return entry.quantity == theory.order_parameter + TRAINED
        return entry.kind == "absent" or (entry.quantity == theory.answer and entry.row.get("layer") is None)

    return {**_group(own, answers), "theory": theory, "claims": claims, "figures": _figures(found, theory)}


def _reached(entry: Entry) -> bool:
    """Whether an entry is an accuracy of a network."""
    return entry.kind == "network" and is_share(entry.quantity)


def _group(entries: Sequence[Entry], comes_first: Callable[[Entry], bool]) -> dict[str, Any]:
    """Entries as the page shows them: those that come first, the others in <details>; assumptions apart."""
    numbers = [entry for entry in entries if entry.kind != "assumption"]
    first = [entry for entry in numbers if comes_first(entry)][:MOST]
    rest = [entry for entry in numbers if entry not in first]
    if not first:
        first, rest = rest[:FIRST], rest[FIRST:]
    return {
        "first": first,
        "more": rest[:MOST],
        "left": max(0, len(rest) - MOST),
        "assumptions": [entry for entry in entries if entry.kind == "assumption"],
    }


def _figures(found: Merged, theory: Theory) -> list[dict[str, Any]]:
    """What the theory draws of each result: of a comparison on the raw tokens only, since every view is on the comparison's own page."""
    experiments = {kind.name for kind in theory.experiments}
    drawn = []
    for picture in all_pictures(found):
        if picture.theory != theory.name or picture.view not in ("", RAW):
            continue
        label = found.label(picture.run)
        with style():
            try:
                figure = parts.inline(picture.draw(), f"{label}-{picture.name}", picture.title)
            except Exception as error:  # one that cannot be drawn must not cost the reader the whole page
                figure = parts.undrawn(error)
        result = found.results[picture.run]
        params = result.params if result.name in experiments else {}
        told = ", ".join(f"{name.replace('_', ' ')} {_short(value)}" for name, value in params.items())
        if figure is None:
            continue
        title = picture.title.replace(f" ({label})", "", 1)  # the caption begins with it
        drawn.append({"label": label, "title": title, "told": told, "drawn": figure})
    return drawn


def _short(value: object) -> str:
    return " and ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _learning(found: Merged) -> list[tuple[str, Markup]]:
    """For each data set the curves of its networks on held-out data, each under the label of its result; a run is drawn once."""
    rows: dict[str, list[Row]] = {}
    seen: set[tuple] = set()
    for run, result in enumerate(found.results):
        if result.name not in (COMPARE, TRAIN):
            continue
        network = (result.params.get("settings") or {}).get("network", "network")
        curves = [row for row in result.table if "step" in row and row["theory"] == "network" and _curve(row["quantity"])]
        for model in dict.fromkeys(row.get("model", network) for row in curves):
            own = [row for row in curves if row.get("model", network) == model]
            told = tuple((row["quantity"], row.get("step"), row["value"]) for row in own)
            if told not in seen:
                seen.add(told)
                name = f"{found.label(run)} {model}" if len(found.results) > 1 else model
                rows.setdefault(data_of(result), []).extend(Row(**{**row, "model": name}) for row in own)
    drawn = []
    for data, own in rows.items():
        label = f"Loss and accuracy on {data} over the training steps"
        figure = parts.inline(figures.learning(Result(COMPARE, {"models": {}}, own)), f"learning-{data}", label)
        drawn += [(data, figure)] if figure is not None else []
    return drawn


def _curve(quantity: str) -> bool:
    return quantity.startswith(("held-out ", "validation ")) and quantity.endswith(("loss", "accuracy"))


def _pictured(found: Merged) -> list[dict[str, Any]]:
    """Of each comparison with networks: its pictures."""
    shown = []
    for run, result in enumerate(found.results):
        if result.name != COMPARE:
            continue
        own = pictures(result, networks_of(result), f"{found.label(run)}-")
        if own["features"] or any(each["attention"] for each in own["pictures"]):
            shown.append({**own, "label": found.label(run), "data": data_of(result)})
    return shown


def _told(found: Merged, run: int, result: Result) -> dict[str, Any]:
    """What the table of results says of one."""
    record, params = result.provenance, result.params
    seeds = params.get("seeds", params.get("seed", (params.get("settings") or {}).get("seed")))
    claims = params.get("claims")
    return {
        "label": found.label(run),
        "what": result.name,
        "data": str(params["data"]) if "data" in params else f"{len(claims)} claims" if claims else "",
        "seeds": ("" if seeds is None else f"{seeds} seed{'s' if seeds != 1 else ''}" if "seeds" in params else f"seed {seeds}"),
        "date": str(record.get("date", "")).partition("T")[0],
        "commit": f"{str(record.get('commit', ''))[:8]}{' (changed)' if record.get('dirty') else ''}",
        "seconds": record.get("seconds"),
        "command": record.get("command", ""),
        "flat": [*parts.flat(params), *parts.flat(record)],
    }


def _whole(found: Merged) -> Result:
    """Rows and sources of all results as one, for the bibliography."""
    rows = [row for result in found.results for row in result.table]
    sources = tuple(dict.fromkeys(source for result in found.results for source in result.sources))
    return Result("merged", {"theories": [theory.name for theory in found.theories]}, rows, sources=sources)

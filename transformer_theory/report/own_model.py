"""The page about one network: what its heads and layers do beside the chance level of each theory's quantities."""

from collections.abc import Sequence
from typing import Any

from ..core.measurement import Measurement
from ..core.result import Result
from ..core.statistics import RANGE_DRAWS
from ..core.theory import Theory
from . import format, network_figures, table_model
from .aggregate import NETWORK, Aggregate
from .bibtex import works
from .findings import p_text, plain_number, short
from .html import inline, rendered
from .own_model_figures import by_layer
from .own_quantities import BEYOND, BEYOND_RANGE, LEAVING, OPPOSITE, ORDER, OUTCOMES, Quantity, headlines, quantities, standing_out
from .table_model import Block, Column, Line, Note, Plain, Strong

MAX_SENTENCES = 6
MAX_STANDING_OUT = 12  # quantities in the table of places that stand out
TOP = 3  # places that are named for each quantity


def page(combined: Aggregate) -> str:
    """Returns the page about one network, a complete HTML document."""
    (result,) = combined.results
    context: dict[str, Any] = {
        **head(result),
        **section(result, combined.theories),
        "sections": combined.theories,
        "bibliography": works(combined.results, combined.theories),
        "provenance": [("R1", result.name, format.flatten(result.settings) + format.flatten(result.provenance))],
    }
    return rendered("own_model.html.j2", context)


def section(result: Result, theories: Sequence[Theory]) -> dict[str, Any]:
    """Returns what the page says about the network: glance, sentences, tables and figures."""
    found = quantities(result, theories)
    chosen = headlines(found, theories)
    titles = {theory.name: theory.title for theory in theories}
    shown = [each for each in chosen if each.rows]
    model = next((row.model for row in result.table), "network")
    general = [each for each in found if each.theory == NETWORK]
    return {
        "glance": glance(result, found),
        "statements": statements(chosen, found, titles),
        "rest": rest(chosen, found, titles),
        "headlines": _headline_table(chosen, titles),
        "outcomes": {name: meaning for name, meaning in OUTCOMES.items() if any(each.outcome == name for each in chosen)},
        "tests": sum(each.q is not None for each in chosen),
        "standing_out": _places_table(found, titles),
        "figure_layers": inline(lambda: by_layer(shown, titles), "own-layers", "The headline of each theory in each layer and head"),
        "attention": inline(lambda: network_figures.attention(result, model), "own-attention", "Attention maps"),
        "on_images": "network/images" in result.arrays,
        "theories": {theory.name: of_theory(found, theory) for theory in theories},
        "general": _numbers([each for each in general if each.rows], "network", "Attention and geometry"),
        "general_reasons": [(each.label, each.reason) for each in general if not each.rows],
    }


def head(result: Result) -> dict[str, Any]:
    """Returns title, heading, lead and facts of the page."""
    from markupsafe import Markup

    settings = result.settings
    model = next((row.model for row in result.table if row.model), str(settings.get("model", "network")))
    kind, parameters = settings.get("class", ""), settings.get("parameters")
    described = [shape(result), f"{parameters:,} parameters" if isinstance(parameters, int) else ""]
    facts = ", ".join(filter(None, described))
    inputs = settings.get("inputs") or format.several(int(settings.get("forward_passes") or 1), "forward pass").replace("passs", "passes")
    name = f"{kind if kind and kind != model else 'The network'}"
    lead = f"{name}{' has ' if facts else ''}{facts}. It was measured on {inputs}."
    below = [f"{settings['untrained_networks']} networks with random weights beside it" if settings.get("untrained_networks") else ""]
    below += [f"seed {settings['seed']}" if "seed" in settings else "", str(result.provenance.get("date", "")).partition("T")[0]]
    return {
        "title": f"{model}: theories of transformers in one network",
        "heading": Markup("What theories of transformers measure in <em>{}</em>").format(model),
        "lead": lead,
        "facts": " · ".join(filter(None, below)),
    }


def shape(result: Result) -> str:
    """Returns layers and heads of a network in words: ``"4 layers of 4 heads"``; empty if nothing was measured by layer."""
    rows = [row for row in result.table if row.layer is not None and row.value is not None]
    if not rows:
        return ""
    heads = {row.layer: 0 for row in rows}
    for row in rows:
        if row.head is not None:
            heads[row.layer] = max(heads[row.layer], row.head + 1)
    counts = set(heads.values())
    own = f" of {format.several(counts.pop(), 'head')}" if len(counts) == 1 and counts != {0} else ""
    return f"{format.several(len(heads), 'layer')}{own}"


def glance(result: Result, found: Sequence[Quantity]) -> list[tuple[str, str]]:
    """Returns the facts about the network and the measurement, pairs of a name and a text."""
    settings = result.settings
    missing = [each for each in found if not each.rows]
    causal = {True: "yes: later ids do not change earlier logits", False: "no, or not a language model"}
    labels = settings.get("labels")
    attention = f"attention implementation {settings['attention']}" if settings.get("attention") else ""
    pairs = [
        ("class", " ".join(filter(None, (str(settings.get("class", "")), f"({shape(result)})" if shape(result) else "")))),
        ("parameters", f"{settings['parameters']:,}" if isinstance(settings.get("parameters"), int) else ""),
        ("weights", ", ".join(filter(None, (str(settings.get("precision", "")), attention)))),
        ("inputs", str(settings.get("inputs", ""))),
        ("labels", f"{labels} classes" if labels else "none: quantities of classes have no value" if labels == 0 else ""),
        ("causal language model", causal[settings["causal"]] if isinstance(settings.get("causal"), bool) else ""),
        ("quantities", f"{len(found) - len(missing)} measured, {len(missing)} not measured, each with its reason below"),
    ]
    return [(name, text) for name, text in pairs if text]


# ---- sentences


def statements(chosen: Sequence[Quantity], found: Sequence[Quantity], titles: dict[str, str]) -> list[tuple[str, str]]:
    """Returns at most :data:`MAX_SENTENCES` pairs (title of a theory, what stands out).

    Headlines that leave their null come first, then other quantities of :func:`standing_out`, one per theory.
    """
    leaving = sorted((each for each in chosen if each.outcome in LEAVING), key=_strength)
    named = {each.theory for each in leaving}
    others = []
    for each in standing_out(found):
        if each.theory not in named:
            named.add(each.theory)
            others.append(each)
    pairs = [(each.theory, _statement(each)) for each in leaving] + [(each.theory, _places_statement(each)) for each in others]
    return [(titles.get(theory, theory), text) for theory, text in pairs[:MAX_SENTENCES]]


def rest(chosen: Sequence[Quantity], found: Sequence[Quantity], titles: dict[str, str]) -> list[tuple[str, str]]:
    """Returns pairs (outcome, titles of theories) for the headlines that have no sentence, those that leave their null first."""
    named = {title for title, _ in statements(chosen, found, titles)}
    groups: dict[str, list[str]] = {}
    for each in chosen:
        title = titles.get(each.theory, each.theory)
        if each.outcome not in LEAVING or title not in named:
            groups.setdefault(each.outcome, []).append(title.partition(":")[0])
    return [(f"also {outcome}" if outcome in LEAVING else outcome, ", ".join(groups[outcome])) for outcome in ORDER if outcome in groups]


def _strength(quantity: Quantity) -> tuple[bool, int, float, float]:
    """Orders quantities: those that untrained networks do not give first, then by outcome, by the share of places beyond chance, and by the
    distance from the null in its widths."""
    row = quantity.mean
    share = len(quantity.beyond) / quantity.tested if quantity.tested else 0.0
    distance = 0.0
    if row.null is not None and row.null.draws and row.value is not None:
        distance = abs(row.value - row.null.median) / ((row.null.high - row.null.low) or 1e-12)
    return quantity.outcome in LEAVING and quantity.as_untrained, ORDER.index(quantity.outcome), -share, -distance


def _statement(quantity: Quantity) -> str:
    """Describes a headline that leaves its null: ``"sharpness: 0.31 on average over 16 heads in 4 layers, above ..."``."""
    row = quantity.mean
    assert row.null is not None
    assert row.value is not None
    average = f" on average over {quantity.places}" if len(quantity.rows) > 1 else ""
    side = "above" if row.value > row.null.median else "below"
    chance = "chance" if quantity.outcome in (BEYOND, OPPOSITE) else f"all {len(row.null.draws)} draws of its null"
    predicted = "as predicted" if quantity.outcome in (BEYOND, BEYOND_RANGE) else "opposite to the prediction"
    p = f", p = {p_text(quantity.p)}" if quantity.outcome == BEYOND else ""
    text = f"{quantity.label}: {plain_number(row.value, row)}{average}, {side} {chance}, {predicted}"
    text += f" ({row.null.kind}: {plain_number(row.null.median, row)}{p})"
    if quantity.untrained is not None and quantity.untrained.null is not None:
        null = quantity.untrained.null
        spread, few = f"{plain_number(null.low, row)} … {plain_number(null.high, row)}", len(null.draws) < RANGE_DRAWS
        text += "; " + (f"{len(null.draws)} " if few else "") + "networks with random weights "
        text += f"have {spread}" if few else f"{'give as much' if quantity.as_untrained else 'do not'} ({spread})"
    if quantity.beyond and len(quantity.rows) > 1:
        kind = "heads" if quantity.beyond[0].head is not None else "layers"
        count = f"{len(quantity.beyond)} of {quantity.tested}"
        text += f"; {count} {kind} are beyond chance by themselves, most of all {_place(quantity.beyond[0])}"
    return text


def _places_statement(quantity: Quantity) -> str:
    """Describes single places that leave their null, of a quantity whose mean does not or is no headline."""
    row, first = quantity.mean, quantity.beyond[0]
    null = f" ({row.null.kind}: {plain_number(row.null.median, row)})" if row.null is not None and row.null.draws else ""
    kind = "heads" if first.head is not None else "layers"
    return (
        f"{quantity.label}: beyond chance{null} in {len(quantity.beyond)} of {quantity.tested} {kind}, "
        f"most of all in {_place(first)}; the mean over all {kind} is {plain_number(row.value or 0.0, row)}"
    )


def _place(row: Measurement) -> str:
    return f"{format.place(row, 'layer', 'head')} ({plain_number(row.value or 0.0, row)})"


# ---- tables


def _headline_table(chosen: Sequence[Quantity], titles: dict[str, str]) -> table_model.Table:
    """Returns one line per theory, in the order of the sentences."""
    ordered = sorted(chosen, key=lambda each: _strength(each) if each.rows else (True, len(ORDER), 0.0, 0.0))
    lines = [Line((Strong(titles.get(each.theory, each.theory).partition(":")[0]), *_cells(each))) for each in ordered]
    columns = (Column("theory", 16), *_COLUMNS)
    return table_model.Table("own-headlines", "The headline of each theory in this network.", columns, (Block("", tuple(lines)),))


_COLUMNS = (
    Column("quantity", 20),
    Column("mean", 10, "n"),
    Column("chance level", 14, "n"),
    Column("outcome", 14),
    Column("heads or layers beyond chance", 22),
)


def of_theory(found: Sequence[Quantity], theory: Theory) -> dict[str, Any]:
    """Returns the table of a theory's quantities, and the reasons of those that were not measured."""
    own = [each for each in found if each.theory == theory.name]
    reasons: dict[str, list[str]] = {}
    for each in own:
        if not each.rows:
            reasons.setdefault(each.reason, []).append(each.label)
    slug = f"own-{format.slug(theory.name)}"
    return {
        "table": _numbers([each for each in own if each.rows], slug, f"{theory.title}: quantities in this network"),
        "reasons": [(", ".join(labels), reason) for reason, labels in reasons.items()],
    }


def _numbers(own: Sequence[Quantity], name: str, caption: str) -> table_model.Table | None:
    if not own:
        return None
    lines = tuple(Line(_cells(each)) for each in own)
    return table_model.Table(name, caption, _COLUMNS, (Block("", lines),))


def _cells(quantity: Quantity) -> tuple[table_model.Cell, ...]:
    if not quantity.rows:
        return (quantity.label, Note(quantity.reason)), "", "", quantity.outcome, ""
    row = quantity.mean
    values = [each.value for each in quantity.rows if each.value is not None]
    spread = f"{plain_number(min(values), row)} … {plain_number(max(values), row)}" if len(values) > 1 else ""
    value = (Strong(plain_number(row.value or 0.0, row)), Note(", ".join(filter(None, (spread, quantity.places)))))
    null: table_model.Cell = "" if row.null is None and all(each.null is None for each in quantity.rows) else "differs by place"
    if row.null is not None and row.null.draws:
        ends = f", {short(row.null.low, row)} … {short(row.null.high, row)}" if len(row.null.draws) > 1 else ""
        null = (plain_number(row.null.median, row), Note(f"{row.null.kind}{ends}"), *_untrained(quantity))
    p = quantity.p
    outcome: table_model.Cell = quantity.outcome if p is None else (quantity.outcome, Note(f"p = {p_text(p)}"))
    if p is not None and quantity.q is None:  # the p-values of other quantities than headlines are not adjusted
        outcome = Plain(f"p = {p_text(p)}")
    return quantity.label, value, null, outcome, _beyond(quantity)


def _untrained(quantity: Quantity) -> tuple[Note, ...]:
    if quantity.untrained is None or quantity.untrained.null is None:
        return ()
    null, row = quantity.untrained.null, quantity.mean
    return (Note(f"random weights {plain_number(null.low, row)} … {plain_number(null.high, row)}"),)


def _beyond(quantity: Quantity) -> table_model.Cell:
    if not quantity.tested or len(quantity.rows) < 2:
        return ""
    places = "; ".join(_place(row) for row in quantity.beyond[:TOP])
    return Plain(f"{len(quantity.beyond)} of {quantity.tested}"), Note(places)


def _places_table(found: Sequence[Quantity], titles: dict[str, str]) -> table_model.Table | None:
    """Returns a table of :func:`standing_out`; None if nothing does."""
    lines = []
    for each in standing_out(found)[:MAX_STANDING_OUT]:
        title = titles.get(each.theory, each.theory).partition(":")[0]
        null = each.mean.null
        chance = plain_number(null.median, each.mean) if null is not None and null.draws else ""
        places = "; ".join(_place(row) for row in each.beyond[:TOP])
        lines.append(Line(((each.label, Note(title)), Plain(f"{len(each.beyond)} of {each.tested}"), Plain(places), chance)))
    if not lines:
        return None
    columns = (Column("quantity", 34), Column("beyond chance", 14, "n"), Column("strongest", 38), Column("chance level", 14, "n"))
    return table_model.Table("own-places", "Heads and layers that stand out.", columns, (Block("", tuple(lines)),))

"""The page about one network: what its heads and layers do beside the chance level of each theory's
quantities.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..core import format
from ..core.measurement import Measurement
from ..core.result import Result
from ..core.statistics import RANGE_DRAWS
from ..core.theory import Theory
from . import table_model
from .aggregate import NETWORK, Aggregate
from .curve_figures import heads_by_layer
from .findings import p_text, plain_number, short
from .html import inline, rendered
from .origins import works
from .own_quantities import (
    AS_UNTRAINED,
    BEYOND,
    BEYOND_RANGE,
    LEAVING,
    OPPOSITE,
    ORDER,
    OUTCOMES,
    Quantity,
    headlines,
    inputs_of,
    quantities,
    shape,
    standing_out,
    subject,
)
from .pictures import attention, image_grid
from .table_model import Block, Column, Line, Note, Plain, Strong

NOTHING = "No headline of a theory lies beyond both its chance level and networks with random weights."
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
        "provenance": [
            ("R1", result.name, format.flatten(result.settings) + format.flatten(result.provenance))
        ],
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
        "nothing": NOTHING,
        "rest": rest(chosen, found, titles),
        "headlines": _headline_table(chosen, titles),
        "outcomes": {
            name: meaning
            for name, meaning in OUTCOMES.items()
            if any(each.outcome == name for each in chosen)
        },
        "tests": sum(each.q is not None for each in chosen),
        "standing_out": _places_table(found, titles),
        "figure_layers": inline(
            lambda: heads_by_layer(shown, titles, subject(result)),
            "own-layers",
            "The headline of each theory in each layer and head",
        ),
        "attention": inline(lambda: attention(result, model), "own-attention", "Attention maps"),
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
    inputs = inputs_of(result)
    name = f"{kind if kind and kind != model else 'The network'}"
    right = settings.get("right")
    correct = (
        f"; its largest output is the label in {right:.1%} of them".replace("%", "\u00a0%")
        if isinstance(right, float)
        else ""
    )
    lead = f"{name}{' has ' if facts else ''}{facts}. It was measured on {inputs}{correct}."
    below = [
        f"{settings['untrained_networks']} networks with random weights beside it"
        if settings.get("untrained_networks")
        else ""
    ]
    below += [
        f"seed {settings['seed']}" if "seed" in settings else "",
        str(result.provenance.get("date", "")).partition("T")[0],
    ]
    return {
        "title": f"{model}: theories of transformers in one network",
        "heading": Markup("What theories of transformers measure in <em>{}</em>").format(model),
        "lead": lead,
        "facts": " · ".join(filter(None, below)),
    }


def glance(result: Result, found: Sequence[Quantity]) -> list[tuple[str, str]]:
    """Returns the facts about the network and the measurement, pairs of a name and a text."""
    settings = result.settings
    missing = [each for each in found if not each.rows]
    causal = {True: "yes: later ids do not change earlier logits", False: "no, or not a language model"}
    labels = settings.get("labels")
    attention = f"attention implementation {settings['attention']}" if settings.get("attention") else ""
    pairs = [
        (
            "class",
            " ".join(
                filter(None, (str(settings.get("class", "")), f"({shape(result)})" if shape(result) else ""))
            ),
        ),
        ("parameters", f"{settings['parameters']:,}" if isinstance(settings.get("parameters"), int) else ""),
        ("weights", ", ".join(filter(None, (str(settings.get("precision", "")), attention)))),
        ("inputs", str(settings.get("inputs", ""))),
        ("tokens", _tokens(settings)),
        (
            "labels",
            f"{labels} classes"
            if labels
            else "none: quantities of classes have no value"
            if labels == 0
            else "",
        ),
        (
            "causal language model",
            causal[settings["causal"]] if isinstance(settings.get("causal"), bool) else "",
        ),
        (
            "quantities",
            f"{len(found) - len(missing)} measured, {len(missing)} not measured, each with its reason below",
        ),
    ]
    return [(name, text) for name, text in pairs if text]


def _tokens(settings: Mapping[str, Any]) -> str:
    """Describes the tokens of a sequence in the first block as the metrics took them; empty if they are not
    known.
    """
    tokens, leading = settings.get("tokens"), settings.get("leading")
    if not isinstance(tokens, int) or not isinstance(leading, int):
        return ""
    side = image_grid(tokens - leading) if str(settings.get("shape", "")).count("×") == 2 else None
    grid = f" of a grid of {side} × {side}" if side else ""
    text = f"{tokens} per {'image' if side else 'sequence'}{grid if not leading else ''}"
    if leading == 0:
        return f"{text}; features are their mean"
    rest = f"; the other {tokens - leading} are those{grid}" if grid else ""
    if leading == 1:
        return (
            f"{text}; the first is the same in all and taken for a class token, at which features are "
            f"read{rest}"
        )
    return (
        f"{text}; the first {leading} are the same in all, class and register tokens{rest}; features are the "
        "mean of all tokens"
    )


# ---- sentences


def statements(
    chosen: Sequence[Quantity], found: Sequence[Quantity], titles: Mapping[str, str]
) -> list[tuple[str, str, str]]:
    """Returns at most :data:`MAX_SENTENCES` triples (title of a theory, what stands out, what the quantity
    is).

    Headlines that leave their null come first, then other quantities of :func:`standing_out`, one per theory.
    A headline that networks with random weights give as well does not stand out, nor do the other quantities
    of its theory.
    """
    leaving = sorted(
        (each for each in chosen if each.outcome in LEAVING and not each.as_untrained), key=_strength
    )
    named = {each.theory for each in chosen if each.outcome in LEAVING}
    others = []
    for each in standing_out(found):
        if each.theory not in named and not each.as_untrained:
            named.add(each.theory)
            others.append(each)
    pairs = [(each, _statement(each)) for each in leaving] + [
        (each, _places_statement(each)) for each in others
    ]
    return [
        (titles.get(each.theory, each.theory), text, each.meaning) for each, text in pairs[:MAX_SENTENCES]
    ]


def rest(
    chosen: Sequence[Quantity], found: Sequence[Quantity], titles: Mapping[str, str]
) -> list[tuple[str, str]]:
    """Returns pairs (outcome, titles of theories) for the headlines that have no sentence, those that leave
    their null first.
    """
    named = {title for title, *_ in statements(chosen, found, titles)}
    groups: dict[tuple[bool, str], list[str]] = {}
    for each in chosen:
        title = titles.get(each.theory, each.theory)
        as_untrained = each.outcome in LEAVING and each.as_untrained
        if each.outcome not in LEAVING or as_untrained or title not in named:
            groups.setdefault((as_untrained, each.outcome), []).append(title.partition(":")[0])

    def label(as_untrained: bool, outcome: str) -> str:
        return (
            f"{outcome}, but {AS_UNTRAINED}"
            if as_untrained
            else f"also {outcome}"
            if outcome in LEAVING
            else outcome
        )

    keys = [(as_untrained, outcome) for outcome in ORDER for as_untrained in (False, True)]
    return [(label(*key), ", ".join(groups[key])) for key in keys if key in groups]


def _strength(quantity: Quantity) -> tuple[bool, int, float, float]:
    """Orders quantities: those that untrained networks do not give first, then by outcome, by the share of
    places beyond chance, and by the distance from the null in its widths.
    """
    row = quantity.mean
    share = len(quantity.beyond) / quantity.tested if quantity.tested else 0.0
    distance = 0.0
    if row.null is not None and row.null.draws and row.value is not None:
        distance = abs(row.value - row.null.median) / ((row.null.high - row.null.low) or 1e-12)
    return (
        quantity.outcome in LEAVING and quantity.as_untrained,
        ORDER.index(quantity.outcome),
        -share,
        -distance,
    )


def _statement(quantity: Quantity) -> str:
    """Describes a headline that leaves its null: ``"sharpness: 0.31 on average over 16 heads in 4 layers,
    above ..."``.
    """
    row = quantity.mean
    assert row.null is not None
    assert row.value is not None
    average = f" on average over {quantity.places}" if len(quantity.rows) > 1 else ""
    side = "above" if row.value > row.null.median else "below"
    chance = (
        "chance" if quantity.outcome in (BEYOND, OPPOSITE) else f"all {len(row.null.draws)} draws of its null"
    )
    predicted = "as predicted" if quantity.outcome in (BEYOND, BEYOND_RANGE) else "opposite to the prediction"
    p = f", p = {p_text(quantity.p)}" if quantity.outcome == BEYOND else ""
    text = f"{quantity.label}: {plain_number(row.value, row)}{average}, {side} {chance}, {predicted}"
    text += f" ({row.null.kind}: {plain_number(row.null.median, row)}{p})"
    if quantity.untrained is not None and quantity.untrained.null is not None:
        null = quantity.untrained.null
        few = f"{len(null.draws)} " if len(null.draws) < RANGE_DRAWS else ""
        text += f"; {few}networks with random weights have {plain_number(null.low, row)} … {plain_number(null.high, row)}"
    if quantity.beyond and len(quantity.rows) > 1:
        kind = "heads" if quantity.beyond[0].head is not None else "layers"
        count = f"{len(quantity.beyond)} of {quantity.tested}"
        text += f"; {count} {kind} are beyond chance by themselves, most of all {_place(quantity.beyond[0])}"
    return text


def _places_statement(quantity: Quantity) -> str:
    """Describes single places that leave their null, of a quantity whose mean does not or is no headline."""
    row, first = quantity.mean, quantity.beyond[0]
    null = f" ({row.null.kind})" if row.null is not None and row.null.draws else ""
    kind = "heads" if first.head is not None else "layers"
    mean = plain_number(row.value or 0.0, row)
    mean += (
        f", chance {plain_number(row.null.median, row)}" if row.null is not None and row.null.draws else ""
    )
    return (
        f"{quantity.label}: beyond chance{null} in {len(quantity.beyond)} of {quantity.tested} {kind}, "
        f"most of all in {_place(first)}; mean over all {kind}: {mean}"
    )


def _place(row: Measurement, *, beside_chance: bool = True) -> str:
    """Names a head or layer with its value and the median of its own null."""
    chance = (
        f", chance {plain_number(row.null.median, row)}"
        if beside_chance and row.null is not None and row.null.draws
        else ""
    )
    return f"{format.place(row, 'layer', 'head')} ({plain_number(row.value or 0.0, row)}{chance})"


# ---- tables


def for_paper(result: Result, theories: Sequence[Theory]) -> table_model.Table:
    """Returns the headlines of a network as a table that stands alone, with the first source of each theory."""
    chosen = headlines(quantities(result, theories), theories)
    titles = {theory.name: theory.title for theory in theories}
    sources = {titles[theory.name].partition(":")[0]: theory.sources[:1] for theory in theories}
    table = _headline_table([each for each in chosen if each.rows], titles)
    lines = [
        replace(line, cells=((Strong(f"{line.cells[0]} "), *sources[str(line.cells[0])]), *line.cells[1:]))
        for line in table.lines
    ]
    if tests := sum(each.q is not None for each in chosen):
        tested = f"The false discovery rate is controlled over {format.several(tests, 'test')}. "
    else:
        tested = ""
    legend = (
        "Mean: over all heads or layers, with the smallest and the largest. Chance level: median and range "
        f"of the null, and the range of networks with random weights. {tested}Heads or layers beyond "
        "chance: on the predicted side of their own null with p ≤ .05, by chance one in twenty."
    )
    caption = Plain(f"Headlines of theories in {subject(result)}.")
    return replace(
        table, name="all", caption=caption, blocks=tuple(Block("", (line,)) for line in lines), legend=legend
    )


def _headline_table(chosen: Sequence[Quantity], titles: dict[str, str]) -> table_model.Table:
    """Returns one line per theory, in the order of the sentences."""
    ordered = sorted(chosen, key=lambda each: _strength(each) if each.rows else (True, len(ORDER), 0.0, 0.0))
    lines = [
        Line((Strong(titles.get(each.theory, each.theory).partition(":")[0]), *_cells(each)))
        for each in ordered
    ]
    columns = (Column("theory", 16), *_COLUMNS)
    return table_model.Table(
        "own-headlines", "The headline of each theory in this network.", columns, (Block("", tuple(lines)),)
    )


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
        "table": _numbers(
            [each for each in own if each.rows], slug, f"{theory.title}: quantities in this network"
        ),
        "reasons": [(", ".join(labels), reason) for reason, labels in reasons.items()],
    }


def _numbers(own: Sequence[Quantity], name: str, caption: str) -> table_model.Table | None:
    if not own:
        return None
    lines = tuple(Line(_cells(each, remarks=True)) for each in own)
    return table_model.Table(name, caption, _COLUMNS, (Block("", lines),))


def _cells(quantity: Quantity, *, remarks: bool = False) -> tuple[table_model.Cell, ...]:
    """Returns the cells of a quantity: its name with what it is, and with the remark that its places share if
    ``remarks``.
    """
    if not quantity.rows:
        return (quantity.label, Note(quantity.reason)), "", "", quantity.outcome, ""
    notes = {each.note for each in quantity.rows}
    texts = (quantity.meaning, notes.pop() if remarks and len(notes) == 1 else "")
    name = (quantity.label, *(Note(text) for text in texts if text))
    row = quantity.mean
    values = [each.value for each in quantity.rows if each.value is not None]
    spread = f"{plain_number(min(values), row)} … {plain_number(max(values), row)}" if len(values) > 1 else ""
    value = (
        Strong(plain_number(row.value or 0.0, row)),
        Note(", ".join(filter(None, (spread, quantity.places)))),
    )
    null: table_model.Cell = (
        "" if row.null is None and all(each.null is None for each in quantity.rows) else "differs by place"
    )
    if row.null is not None and row.null.draws:
        ends = (
            f", {short(row.null.low, row)} … {short(row.null.high, row)}" if len(row.null.draws) > 1 else ""
        )
        null = (plain_number(row.null.median, row), Note(f"{row.null.kind}{ends}"), *_untrained(quantity))
    p = quantity.p
    outcome: table_model.Cell = (
        quantity.outcome if p is None else (quantity.outcome, Note(f"p = {p_text(p)}"))
    )
    # the p-values of other quantities than headlines are not adjusted
    if p is not None and quantity.q is None:
        outcome = Plain(f"p = {p_text(p)}")
    elif quantity.outcome in LEAVING and quantity.as_untrained:
        outcome = (*(outcome if isinstance(outcome, tuple) else (outcome,)), Note(AS_UNTRAINED))
    return name, value, null, outcome, _beyond(quantity)


def _untrained(quantity: Quantity) -> tuple[Note, ...]:
    if quantity.untrained is None or quantity.untrained.null is None:
        return ()
    null, row = quantity.untrained.null, quantity.mean
    return (Note(f"random weights {plain_number(null.low, row)} … {plain_number(null.high, row)}"),)


def _beyond(quantity: Quantity) -> table_model.Cell:
    if not quantity.tested or len(quantity.rows) < 2:
        return ""
    places = "; ".join(_place(row, beside_chance=False) for row in quantity.beyond[:TOP])
    return Plain(f"{len(quantity.beyond)} of {quantity.tested}"), Note(places)


def _places_table(found: Sequence[Quantity], titles: dict[str, str]) -> table_model.Table | None:
    """Returns a table of :func:`standing_out`; None if nothing does."""
    lines = []
    for each in standing_out(found)[:MAX_STANDING_OUT]:
        title = titles.get(each.theory, each.theory).partition(":")[0]
        places = "; ".join(_place(row) for row in each.beyond[:TOP])
        also = (Note(AS_UNTRAINED),) if each.as_untrained else ()
        lines.append(
            Line(
                (
                    (each.label, Note(title), *also),
                    Plain(f"{len(each.beyond)} of {each.tested}"),
                    Plain(places),
                )
            )
        )
    if not lines:
        return None
    columns = (Column("quantity", 36), Column("beyond chance", 14, "n"), Column("farthest from chance", 50))
    return table_model.Table(
        "own-places", "Heads and layers that stand out.", columns, (Block("", tuple(lines)),)
    )

"""The page about one network: what its heads and layers do beside the chance level of each theory's
quantities.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..comparison.judged import Quantity, headlines, notable, quantities
from ..comparison.pooling import NETWORK, Aggregate
from ..core import format
from ..core.judgement import OUTCOMES
from ..core.result import Result
from ..core.theory import Theory
from . import sentences, table_model
from .curve_figures import heads_by_layer
from .html import inline, rendered
from .origins import works
from .pictures import attention, image_grid
from .table_model import Block, Column, Line, Note, Plain, Strong
from .tables import JUDGED, judged_cells

MAX_NOTABLE = 12  # quantities in the table of places that stand out
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
        "statements": sentences.network_statements(chosen, found, titles),
        "nothing": sentences.NOTHING,
        "rest": sentences.other_outcomes(chosen, found, titles),
        "headlines": _headline_table(chosen, titles),
        "outcomes": {
            name: meaning
            for name, meaning in OUTCOMES.items()
            if any(each.judged.outcome == name for each in chosen)
        },
        "tests": sum(each.judged.q is not None for each in chosen),
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
        "general_reasons": [(each.label, each.judged.reason) for each in general if not each.rows],
    }


def shape(result: Result) -> str:
    """Returns layers and heads of a network in words: ``"4 layers of 4 heads"``; empty if nothing was
    measured by layer.
    """
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


def inputs_of(result: Result) -> str:
    """Returns the inputs of a probed network in words, or the number of its forward passes."""
    passes = int(result.settings.get("forward_passes") or 1)
    return str(result.settings.get("inputs") or f"{passes:,} forward pass{'es' * (passes > 1)}")


def subject(result: Result) -> str:
    """Returns what was measured: ``"my ViT (4 layers of 4 heads) on 128 images of shape [1, 8, 8]"``."""
    model = next((row.model for row in result.table if row.model), "the network")
    size = shape(result)
    return f"{model}{f' ({size})' if size else ''} on {inputs_of(result)}"


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


# ---- tables


def for_paper(result: Result, theories: Sequence[Theory]) -> table_model.Table:
    """Returns the headlines of a network as a table that stands alone, with the first source of
    each theory.
    """
    chosen = headlines(quantities(result, theories), theories)
    titles = {theory.name: theory.title for theory in theories}
    sources = {titles[theory.name].partition(":")[0]: theory.sources[:1] for theory in theories}
    table = _headline_table([each for each in chosen if each.rows], titles)
    lines = [
        replace(line, cells=((Strong(f"{line.cells[0]} "), *sources[str(line.cells[0])]), *line.cells[1:]))
        for line in table.lines
    ]
    tests = sum(each.judged.q is not None for each in chosen)
    tested = f"q controls the false discovery rate over {format.several(tests, 'test')}. " if tests else ""
    legend = (
        "Value: the mean over all heads or layers, with the smallest and the largest. Nulls: median, kind "
        "and "
        "range of the quantity's own null, and networks with random weights. Effect: 0 is the median of the "
        f"null, 1 the prediction or bound. {tested}Heads or layers beyond chance: on the predicted side of "
        "their own null with p ≤ .05, by chance one in twenty."
    )
    caption = Plain(f"Headlines of theories in {subject(result)}.")
    return replace(
        table, name="all", caption=caption, blocks=tuple(Block("", (line,)) for line in lines), legend=legend
    )


_PLACES = Column("heads or layers beyond chance", 16)


def _columns(*first: Column) -> tuple[Column, ...]:
    """Returns the columns of judged rows behind the given ones, with the number of places beyond chance."""
    shares = (15, 13, 8, 17, 7, 8, 13)
    judged = tuple(replace(column, share=share) for column, share in zip(JUDGED, shares))
    own = (*first, replace(judged[0], head="quantity", role=""), *judged[1:], _PLACES)
    return (replace(own[0], share=100 - sum(column.share for column in own[1:])), *own[1:])


def _headline_table(chosen: Sequence[Quantity], titles: dict[str, str]) -> table_model.Table:
    """Returns one line per theory, in the order of the sentences."""
    ordered = sorted(chosen, key=sentences.strength)
    lines = [
        Line((Strong(titles.get(each.theory, each.theory).partition(":")[0]), *_cells(each)))
        for each in ordered
    ]
    caption = "The headline of each theory in this network."
    columns = _columns(Column("theory", 0))
    return table_model.Table("own-headlines", caption, columns, (Block("", tuple(lines)),)).without_empty()


def of_theory(found: Sequence[Quantity], theory: Theory) -> dict[str, Any]:
    """Returns the table of a theory's quantities, and the reasons of those that were not measured."""
    own = [each for each in found if each.theory == theory.name]
    reasons: dict[str, list[str]] = {}
    for each in own:
        if not each.rows:
            reasons.setdefault(each.judged.reason, []).append(each.label)
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
    lines = tuple(Line(_cells(each)) for each in own)
    return table_model.Table(name, caption, _columns(), (Block("", lines),)).without_empty()


def _cells(quantity: Quantity) -> tuple[table_model.Cell, ...]:
    """Returns the cells of a quantity: its name with what it is and the remark that its places share, the
    judged mean, and the places beyond chance.
    """
    notes = {each.note for each in quantity.rows}
    texts = (quantity.meaning, notes.pop() if not quantity.headline and len(notes) == 1 else "")
    name = (quantity.label, *(Note(text) for text in texts if text))
    values = [each.value for each in quantity.rows if each.value is not None]
    spread = format.bounds((min(values), max(values)), quantity.mean.unit) if len(values) > 1 else ""
    about = ", ".join(filter(None, (spread, quantity.places)))
    cells = list(judged_cells(name, quantity.judged, about))
    if quantity.mean.null is None and any(each.null is not None for each in quantity.rows):
        cells[3] = "differs by place"
    if quantity.mean.p is not None and quantity.judged.q is None:
        cells[6] = ""  # the p-values of other quantities than headlines are not adjusted
    return (*cells, _beyond(quantity))


def _beyond(quantity: Quantity) -> table_model.Cell:
    if not quantity.tested or len(quantity.rows) < 2:
        return ""
    places = "; ".join(sentences.place(row, beside_chance=False) for row in quantity.beyond[:TOP])
    return Plain(f"{len(quantity.beyond)} of {quantity.tested}"), *([Note(places)] if places else [])


def _places_table(found: Sequence[Quantity], titles: dict[str, str]) -> table_model.Table | None:
    """Returns a table of the :func:`~..comparison.judged.notable` quantities; None if there are none."""
    lines = []
    for each in notable(found)[:MAX_NOTABLE]:
        title = titles.get(each.theory, each.theory).partition(":")[0]
        matched = each.judged.outcome in ("matched by a second null", "nulls conflict")
        lines.append(
            Line(
                (
                    (each.label, Note(title), *([Note(each.judged.words)] if matched else [])),
                    Plain(f"{len(each.beyond)} of {each.tested}"),
                    Plain("; ".join(sentences.place(row) for row in each.beyond[:TOP])),
                )
            )
        )
    if not lines:
        return None
    columns = (Column("quantity", 36), Column("beyond chance", 14, "n"), Column("farthest from chance", 50))
    return table_model.Table(
        "own-places", "Heads and layers that stand out.", columns, (Block("", tuple(lines)),)
    )

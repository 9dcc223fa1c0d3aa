"""The page: one HTML file with the results of a comparison, of a training run, of a probed network, or of
several results together.

It depends only on the stored results; the same results give the same bytes.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from markupsafe import Markup

from ..comparison.interventions import judged_interventions
from ..comparison.judged import (
    Quantity,
    findings,
    headlines,
    is_of_one_network,
    quantities,
    with_headlines,
)
from ..comparison.pooling import (
    COMPARE,
    NETWORK,
    ON_DATA,
    PROBE,
    TRAIN,
    Aggregate,
    Checked,
    Entry,
    aggregate,
    data_name,
    result_label,
)
from ..core import format
from ..core.judgement import OUTCOMES, Judged, in_words
from ..core.parallel import stream
from ..core.result import Result
from ..core.sources import Source
from ..core.table import grouped
from ..core.theory import Theory
from ..metrics.named_tokens import PLACES
from . import (
    changes,
    curve_figures,
    figures,
    interventions,
    judged_figures,
    number_tables,
    reach,
    side_by_side,
    tables,
    training,
)
from .curves import (
    Curves,
    Series,
    correlation_table,
    curves,
    on_timeline,
    series,
    timeline_series,
)
from .html import inline, rendered
from .origins import made_by, works
from .pictures import attention, features, slider
from .sentences import (
    FALSE_DISCOVERIES,
    MAX_LEADS,
    MEANING_OF_P,
    NAMED_PLACES,
    NOTHING,
    inputs_of,
    leads,
    network_statements,
    other_outcomes,
    overview,
    shape,
    statements,
    subject,
    timeline_sentences,
)
from .token_sentences import token_statements

MAX_NUMBERS = 300  # largest number of measurements in one part of the page; the rest are in table.jsonl
# largest number of measurements that are listed without a fold; of more, some are folded into <details>
FIRST_NUMBERS = 12
JPEGS = "JPEG copy"  # suffix of the name of images that were compressed again
COPY = (
    "The images are a copy compressed as JPEGs, not the files of the data set: compare numbers on them "
    "with one another, not with published ones."
)
_ORDER = ("bad", "none", "unsure", "outside", "good")  # CSS classes of verdicts, the most severe first


def page(results: Result | Iterable[Result], *, theories: Iterable[Theory] | None = None) -> str:
    """Returns the page of the results, a complete HTML document.

    Args:
        results: one or several results of ``compare``, ``verify``, ``train``, ``probe`` or experiments, in
            any mixture.
        theories: theories that provide titles, statements and figures; the registry if None.
    Raises:
        ValueError: there is no result.
    """
    combined = aggregate(results, theories=theories)
    only = combined.results[0] if len(combined.results) == 1 else None
    ends = {
        "bibliography": works(combined.results, combined.theories),
        "provenance": [
            (
                result_label(index),
                result.name,
                format.flatten(result.settings) + format.flatten(result.provenance),
            )
            for index, result in enumerate(combined.results)
        ],
    }
    if only is not None and is_of_one_network(only):
        return rendered("own_model.html.j2", {**_one_network(only, combined.theories), **ends})
    # A single comparison or training run has a separate layout. On all other pages, a table of the results
    # comes first.
    single = only if only is not None and only.name in (COMPARE, TRAIN) else None
    run = single if single is not None and single.name == TRAIN else None
    pictures, measured = figures.pictures(combined), [curves(result) for result in combined.results]
    quantities = [] if single is None else measured[0]
    available = [series(each) for each in measured]
    sections = [_section(combined, single, theory, pictures, quantities) for theory in combined.theories]
    panels = [panel for section in sections for part in section["parts"] for panel in part["figures"]]
    # Workers, if there are any, draw these figures while this process draws the figures of the networks.
    drawn = stream(inline, (panel["drawing"] for panel in panels))
    changed = interventions.found_in(combined.results)
    context: dict[str, Any] = {
        **_head(combined, single),
        "alone": single,
        "reach": reach.section(combined),
        "found": _found(combined, changed),
        "interventions": interventions.section(changed, combined.theories),
        "notes": combined.notes,
        "copy": COPY if any(data_name(result).endswith(JPEGS) for result in combined.results) else "",
        "results": [] if single else [_result_line(*numbered) for numbered in enumerate(combined.results)],
        "training": None if run is None else training.section(combined, run, quantities),
        "reached": _reached(combined) if run is None else [],
        "summary": number_tables.summary(combined) if run is None else None,
        "verdicts": format.VERDICTS,
        "board": _board(combined, "" if single is None else data_name(single)),
        "timelines": [
            timeline
            for index, group in enumerate(available)
            if (timeline := _timeline(combined, index, group))
        ],
        "sections": sections,
        "networks": _networks(combined, single, quantities, available),
        **ends,
    }
    for panel, figure in zip(panels, drawn):
        panel["figure"] = figure
    return rendered("page.html.j2", context)


def _found(combined: Aggregate, changed: Sequence[Judged]) -> dict[str, Any] | None:
    """Returns what was found by a comparison, the first section: sentences, figure and numbers; None if
    nothing was compared.
    """
    found = findings(combined)
    if not found:
        return None
    side = side_by_side.of(found, changed)
    said = statements(found, most=len(found.theories)) if side is None else side_by_side.statements(side)
    figure = inline(
        lambda: judged_figures.matrix(found) if side is None else side_by_side.figure(side),
        "findings-matrix",
        "The headline of each theory on the data and in the networks",
    )
    return {
        "side_by_side": None if side is None else side_by_side.table(side),
        "overview": overview(found, combined.theories) if side is None else (),
        "leads": (leads(found) if side is None else ()) or said[:MAX_LEADS],
        "statements": said,
        "figure": figure,
        "caption": "Headlines of the theories (rows) on data and in networks (columns). "
        f"{format.counted(found.tests, 'test')}, {FALSE_DISCOVERIES}.",
        "table": tables.findings(found, changed=changed),
    }


def _head(combined: Aggregate, single: Result | None) -> dict[str, Any]:
    """Returns the head of the page: title, heading, lead and a line of facts (data, networks, seeds,
    time).
    """
    if single is not None and single.name == TRAIN:
        network, data = training.network_name(single), data_name(single)
        lead = (
            "How one network learned, and the quantities of each theory of transformers, measured at every "
            "interval."
        )
        heading = Markup("<em>{}</em> trained on <em>{}</em>").format(network, data)
        return {"title": f"{network} trained on {data}", "heading": heading, "lead": lead, "facts": ""}
    names = list(
        dict.fromkeys(data_name(result) for result in combined.results if result.name in (COMPARE, TRAIN))
    )
    kinds = [{"verify": "claims"}.get(result.name, result.name) for result in combined.results]
    title = (
        f"Theories of transformers on {' and '.join(names)}"
        if names
        else f"Theories of transformers: {' and '.join(dict.fromkeys(kinds))}"
    )
    emphasis = Markup(" and ").join(Markup("<em>{}</em>").format(name) for name in names)
    heading = Markup("Theories of transformers on {}").format(emphasis) if names else title
    if single is None:
        count = len(combined.results)
        lead = (
            f"The measurements of {f'{count} results' if count > 1 else 'one result'} next to the "
            "predictions of the theories."
        )
        if count > 1 and all(is_of_one_network(result) for result in combined.results):
            title = f"Theories of transformers in {count} networks"
            lead = "The headline of each theory in each network, beside copies of the same network."
            heading = title
        return {"title": title, "heading": heading, "lead": lead, "facts": ""}
    settings, models = single.settings, figures.models_of(single)
    lead = (
        "The prediction of each theory next to measurements on the same "
        f"data{' and in the same trained networks' if models else ''}."
    )
    facts = []
    if all(isinstance(settings.get(name), int) for name in ("n", "seq", "dim")):
        facts.append(
            f"{settings['n']:,} sequences of {settings['seq']:,} tokens in {settings['dim']:,} dimensions"
        )
    steps = f", {settings['steps']:,} training steps each" if isinstance(settings.get("steps"), int) else ""
    facts += [f"networks: {', '.join(models)}{steps}"] if models else []
    seeds = settings.get("seeds") or [settings["seed"]] if "seeds" in settings or "seed" in settings else []
    facts += [f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"] if seeds else []
    facts += [f"{single.provenance['seconds']:.0f}\u00a0s"] if "seconds" in single.provenance else []
    facts += [made] if (made := made_by([single])) else []
    return {"title": title, "heading": heading, "lead": lead, "facts": " · ".join(facts)}


def _result_line(index: int, result: Result) -> dict[str, Any]:
    """Returns a row of the table of results."""
    record, settings = result.provenance, result.settings
    seeds = settings.get("seeds", settings.get("seed"))
    claims = format.counted(len(result.verifications), "claim") if result.verifications else ""
    return {
        "label": result_label(index),
        "name": result.name,
        "data": str(settings.get("data", claims)),
        "seeds": ""
        if seeds is None
        else ", ".join(map(str, seeds))
        if isinstance(seeds, list | tuple)
        else str(seeds),
        "date": str(record.get("date", "")).partition("T")[0],
        "commit": f"{str(record.get('commit', ''))[:8]}{' (changed)' if record.get('dirty') else ''}",
        "seconds": record.get("seconds"),
        "command": record.get("command", ""),
    }


def _reached(combined: Aggregate) -> list[dict[str, Any]]:
    """Returns the test accuracies (or other shares) of the networks, which the page prints in large type: one
    per network and data.
    """
    entries = [
        entry
        for entry in combined.select(theory=NETWORK, split="test", unit="share", layer=None)
        if not entry.missing
    ]
    # A dictionary keeps the last value of each key; in reversed order, this is the first entry.
    first = {(entry.row.model, entry.row.data): entry for entry in reversed(entries)}
    return [
        training.large(entry.row, entry.row.model, entry.note) for entry in entries if entry in first.values()
    ]


def _section(
    combined: Aggregate,
    single: Result | None,
    theory: Theory,
    pictures: Sequence[figures.Picture],
    quantities: Sequence[Curves],
) -> dict[str, Any]:
    """Returns the section of one theory: its views of the data, its experiments, its quantities in networks,
    its claims.
    """
    pictures = [
        item
        for item in pictures
        if item.theory == theory.name and combined.results[item.result].name != TRAIN
    ]
    quantities = [item for item in quantities if item.theory == theory.name]
    parts = []
    for (data, model), entries in grouped(
        combined.select(theory=theory.name, kind=ON_DATA), lambda entry: (entry.row.data, entry.row.model)
    ).items():
        panels = [
            picture
            for picture in pictures
            if combined.results[picture.result].name == COMPARE
            and picture.model == model
            and (single is not None or not model)
        ]
        parts.append(
            _part(combined, theory, entries, panels, format.view_name(model), data, features=bool(model))
        )
    parts.sort(key=lambda part: part["features"])
    for name, entries in grouped(
        combined.select(theory=theory.name, kind=("figure", "rung")),
        lambda entry: number_tables.experiment_of(combined, entry),
    ).items():
        panels = [picture for picture in pictures if combined.results[picture.result].name == name]
        parts.append(_part(combined, theory, entries, panels, name, ""))
    in_network = combined.select(theory=theory.name, kind="in network")
    # the table of curves has the quantities with curves, and the summary has the headlines
    if single is not None:
        with_curves = {curve.quantity for curve in quantities}
        in_network = [
            entry
            for entry in in_network
            if entry.row.quantity not in with_curves or entry.row.layer is not None
        ]
    if in_network:
        parts.append(_part(combined, theory, in_network, [], "trained networks", ""))
    draw = single is not None and single.name == TRAIN
    in_training = training.quantities_section(
        quantities, format.slug(theory.name), theory.title, theory, draw=draw
    )
    claims = combined.claims_of(theory)
    return {
        "theory": theory,
        "parts": parts,
        "training": in_training,
        "claims": claims,
        "verdicts": _verdicts(claims),
    }


def _part(
    combined: Aggregate,
    theory: Theory,
    entries: Sequence[Entry],
    plots: Sequence[figures.Picture],
    name: str,
    data: str,
    *,
    features: bool = False,
) -> dict[str, Any]:
    """Returns one view of the data, or one experiment: figures, numbers, assumptions, and the reasons for
    missing measurements.
    """
    several = len({result for entry in combined.entries for result in entry.results}) > 1
    full_name = f"{name} of {data}" if data and several else name
    headline = "" if theory.on_data is None else theory.on_data.headline
    measured = [entry for entry in entries if entry.row.kind != "assumption"]
    numbers = sorted(
        (entry for entry in measured if not entry.missing),
        key=lambda entry: (entry.row.quantity, entry.row.layer) != (headline, None),
    )
    # If the list is too long, fold at least five numbers; folding one or two would save no space.
    first = numbers if len(numbers) <= FIRST_NUMBERS else numbers[: FIRST_NUMBERS - 4]
    rest = numbers[len(first) : MAX_NUMBERS]
    experiment = any(entry.row.kind in ("figure", "rung") for entry in entries)
    title = full_name if experiment else f"{'In' if name == 'trained networks' else 'On'} the {full_name}"
    slug, caption = (
        f"{format.slug(theory.name)}-{format.slug(full_name)}",
        f"{theory.title}: prediction and measurement, {full_name}",
    )
    return {
        "name": full_name,
        "title": title,
        "features": features,
        "figures": [
            _figure(combined, picture, f"{slug}-{result_label(picture.result)}", f"{title}.")
            for picture in plots
        ],
        "headline": numbers[0] if numbers and numbers[0].row.quantity == headline else None,
        "reasons": [entry for entry in measured if entry.missing],
        "first": number_tables.numbers(first, slug, caption),
        "more": number_tables.numbers(rest, f"{slug}-more", f"{caption}, continued"),
        "left_out": len(numbers) - len(first) - len(rest),
        "assumptions": [entry for entry in entries if entry.row.kind == "assumption"],
    }


def _figure(combined: Aggregate, picture: figures.Picture, name: str, view: str) -> dict[str, Any]:
    """Returns the arguments of :func:`inline` for a figure, and its caption: the view, or an experiment with
    its settings.
    """
    result = combined.results[picture.result]
    settings = (
        ", ".join(f"{key.replace('_', ' ')} {text}" for key, text in format.flatten(result.settings))
        if not picture.model
        else ""
    )
    caption = (
        f"{result_label(picture.result)}: {result.name}{f' ({settings})' if settings else ''}"
        if result.name != COMPARE
        else view
    )
    return {"drawing": {"draw": picture.draw, "name": name, "label": picture.title}, "caption": caption}


def _networks(
    combined: Aggregate,
    single: Result | None,
    quantities: Sequence[Curves],
    available: Sequence[Sequence[Series]],
) -> dict[str, Any] | None:
    """Returns the results of the networks, their learning curves, attention maps and features; None if there
    are no networks.
    """
    entries = [entry for entry in combined.select(theory=NETWORK) if single is None or single.name != TRAIN]
    quantities = (
        [curve for curve in quantities if curve.theory == NETWORK]
        if single is not None and single.name == COMPARE
        else []
    )
    # the table of curves has these
    with_curves = {(curve.quantity, curve.model, curve.split) for curve in quantities}
    entries = [
        entry
        for entry in entries
        if (entry.row.quantity, entry.row.model, entry.row.split) not in with_curves or entry.row.setting
    ]
    entries.sort(key=lambda entry: entry.row.unit != "share")
    first, rest = entries[: 2 * FIRST_NUMBERS], entries[2 * FIRST_NUMBERS : MAX_NUMBERS]
    learning, pictures = [], []
    for index, (result, group) in enumerate(zip(combined.results, available)):
        label = "" if single is not None else f"{result_label(index)}: "
        if result.name == COMPARE or (result.name == TRAIN and single is None):
            title = "Loss and accuracy over the training steps"
            figure = inline(partial(curve_figures.learning, group), f"learning-{index}", title)
            learning += [(f"{label}How the networks learn on {data_name(result)}.", figure)] if figure else []
        pictures += [maps] if result.name == COMPARE and (maps := _pictures(result, index, label)) else []
    if not (entries or quantities or learning or pictures):
        return None
    return {
        "learning": learning,
        "training": number_tables.first_and_last(
            quantities, "networks-training", "Mean over layers and heads at the first and at the last step"
        ),
        "first": number_tables.numbers(first, "networks", "Results of the networks", judged=False),
        "more": number_tables.numbers(
            rest, "networks-more", "Results of the networks, continued", judged=False
        ),
        "pictures": pictures,
    }


def _pictures(result: Result, index: int, label: str) -> dict[str, Any] | None:
    """Returns the sliders of a comparison, and figures that replace them in print and where scripts do not
    run.
    """
    models, networks = figures.models_of(result), []
    for model in models:
        name = f"attention-{index}-{format.slug(model)}"
        title = f"Where {model} looks: the attention that each token receives, at some of the training steps"
        still = inline(partial(attention, result, model), name, title)
        networks.append(
            {
                "model": model,
                "slider": slider(result, model),
                "attention": still,
                "id": f"slider-{index}-{format.slug(model)}",
            }
        )
    title = "Features of the trained networks in the plane, by class"
    plane = inline(partial(features, result, models), f"features-{index}", title)
    # The screen does not show the figure of features if every network with features has a slider that moves
    # them.
    with_features = {model for model in models if f"network/{model}/features" in result.arrays}
    moving = {network["model"] for network in networks if network["slider"] and network["slider"].moving}
    if plane is None and not any(network["attention"] or network["slider"] for network in networks):
        return None
    return {
        "label": label,
        "data": data_name(result),
        "networks": networks,
        "features": plane,
        "all_move": with_features <= moving,
    }


def _timeline(combined: Aggregate, index: int, available: Sequence[Series]) -> dict[str, Any] | None:
    """Returns the theories' headlines over the training steps of one result: figure, sentences, rank
    correlations; None if empty.
    """
    group = (
        on_timeline(available, combined.theories)
        if combined.results[index].name in (COMPARE, TRAIN, PROBE)
        else []
    )
    shown = timeline_series(group)
    figure = inline(
        lambda: curve_figures.timeline(shown),
        f"timeline-{index}",
        "The theories' headlines over the training steps",
    )
    if figure is None:
        return None
    models = dict.fromkeys(s.model for s in group)
    matrices = [(model, correlation_table([s for s in group if s.model == model])) for model in models]
    return {
        "label": f"{result_label(index)}: " if len(combined.results) > 1 else "",
        "figure": figure,
        "sentences": timeline_sentences([s for s in group if s.theory != NETWORK]),
        "matrices": [(model, matrix) for model, matrix in matrices if matrix],
    }


def _board(combined: Aggregate, data: str) -> dict[str, Any]:
    """Returns the table of all claims and the options of its filters, each option as (value, label, number of
    claims).
    """
    claims = combined.claims
    by_source = sorted(
        (checked.verification.source for checked in claims if checked.verification.source.known),
        key=lambda source: Source(source.key).label,
    )
    return {
        "claims": [(checked, rank(checked)) for checked in claims],
        "data": data,
        "verdicts": _verdicts(claims),
        "theories": _choices([(checked.theory.name, checked.theory.title) for checked in claims]),
        "sources": _choices([(source.key, Source(source.key).label) for source in by_source]),
    }


def rank(checked: Checked) -> int:
    """Returns the rank of a claim's verdict; the most severe has rank 0."""
    return _ORDER.index(format.verdict_style(checked.verification.outcome)[0])


def _verdicts(claims: Sequence[Checked]) -> list[tuple[str, str, int]]:
    """Returns the verdicts of claims, the most severe first, each as (value, label, number of claims)."""
    return _choices(
        [(checked.verification.outcome, checked.verification.outcome) for checked in sorted(claims, key=rank)]
    )


def _choices(pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str, int]]:
    """Returns the distinct pairs (value, label) in order of appearance, each with its count."""
    counts = Counter(pairs)
    return [(*pair, counts[pair]) for pair in dict.fromkeys(pairs)]


# ---- one network


def _one_network(result: Result, theories: Sequence[Theory]) -> dict[str, Any]:
    """Returns what the page says about a network that was probed: head, facts, sentences, tables and
    figures.
    """
    found = quantities(result, theories)
    chosen = headlines(found, theories)
    changed = judged_interventions(result)
    # a place is a number without an order: the sentences name it
    general = [each for each in found if each.theory == NETWORK and each.name not in PLACES]
    return {
        **head_of_network(result),
        "changes": changes.section(result, theories),
        "interventions": interventions.section(changed, theories),
        "sections": theories,
        "glance": _glance(result, found),
        "statements": network_statements(chosen, found),
        "tokens": token_statements(result, found),
        "nothing": NOTHING,
        "meaning_of_p": MEANING_OF_P,
        "named_places": NAMED_PLACES,
        "rest": other_outcomes(chosen, found),
        "headlines": tables.network_headlines(chosen, changed),
        "outcomes": {
            name: meaning
            for name, meaning in OUTCOMES.items()
            if any(each.judged.outcome == name for each in chosen)
        },
        "tests": sum(each.judged.q is not None for each in chosen),
        "standing_out": tables.standing_out(found),
        "figure_layers": inline(
            lambda: curve_figures.heads_by_layer(chosen, subject(result)),
            "own-layers",
            "The headline of each theory in each layer and head",
        ),
        "attention": inline(
            lambda: attention(result, training.network_name(result)), "own-attention", "Attention maps"
        ),
        "on_images": "network/images" in result.arrays,
        "theories": {
            theory.name: tables.in_network(with_headlines(found, chosen), theory) for theory in theories
        },
        "general": tables.network_quantities(general, "network", "Attention and geometry"),
        "general_reasons": [(each.label, each.judged.reason) for each in general if not each.rows],
    }


def head_of_network(result: Result) -> dict[str, Any]:
    """Returns the head of the page about one network: title, heading, lead and a line of facts."""
    settings = result.settings
    model = next((row.model for row in result.table if row.model), str(settings.get("model", "network")))
    kind, parameters = settings.get("class", ""), settings.get("parameters")
    described = [shape(result), f"{parameters:,} parameters" if isinstance(parameters, int) else ""]
    facts = ", ".join(filter(None, described))
    inputs = inputs_of(result)
    name = f"{kind if kind and kind != model else 'The network'}"
    right = settings.get("right")
    correct = (
        f"; its largest output is the label in {format.percent(right)} of them"
        if isinstance(right, float)
        else ""
    )
    lead = f"{name}{' has ' if facts else ''}{facts}. It was measured on {inputs}{correct}."
    copies = settings.get("copies") or {}
    below = [
        "compared with "
        + ", ".join(f"{number} {in_words(kind)}" for kind, number in copies.items())
        + (
            f", on {format.counted(settings['tested_sequences'], 'sequence')}"
            if "tested_sequences" in settings
            else ""
        )
        if copies
        else "",
    ]
    below += [
        f"beside {settings['against']} on the same inputs" if "against" in settings else "",
        f"seed {settings['seed']}" if "seed" in settings else "",
        str(result.provenance.get("date", "")).partition("T")[0],
    ]
    return {
        "title": f"{model}: theories of transformers in one network",
        "heading": Markup("What theories of transformers measure in <em>{}</em>").format(model),
        "lead": lead,
        "facts": " · ".join(filter(None, below)),
    }


def _glance(result: Result, found: Sequence[Quantity]) -> list[tuple[str, str]]:
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
        ("name in the hub", str(settings.get("hub", ""))),
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
    grid, reading = settings.get("grid"), str(settings.get("reading", ""))
    parts = [f"{tokens} per {'image' if grid else 'sequence'}"]
    if leading:
        parts.append(f"{format.counted(leading, 'token')} without contents, such as a class token, in front")
    if grid:
        parts.append(f"patches on a grid of {grid[0]} × {grid[1]}")
    parts.append(f"features are those of {reading}" if reading else "features are the mean of the tokens")
    return "; ".join(parts)

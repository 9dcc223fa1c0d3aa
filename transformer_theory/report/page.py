"""The page: one HTML file made from stored results alone, of a comparison, a training, or any results together.

The same results give the same bytes.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from markupsafe import Markup

from ..core import sources
from ..core.result import Result
from ..core.sources import Source
from ..core.theory import Theory
from . import figures, format, network_figures, tables, training, training_figures
from .aggregate import COMPARE, NETWORK, ON_DATA, PROBE, TRAIN, Aggregate, Checked, Entry, aggregate, data_name, result_label, unfinished
from .bibtex import keys
from .html import inline, rendered
from .slider import slider
from .timeline import Curves, correlation_table, curves, on_timeline, sentences

MAX_NUMBERS = 300  # numbers that a table shows
FIRST_NUMBERS = 12  # of them, those outside of <details>
JPEGS = "JPEG copy"  # ends the name of such data
COPY = (
    "The images are a copy compressed as JPEGs, not the files of the data set: "
    "compare numbers on them with one another, not with published ones."
)
SAMPLES = ("train_samples", "validation_samples", "test_samples")  # settings of a training
_ORDER = ("bad", "none", "unsure", "outside", "good")  # classes of verdicts, the most severe first


def page(results: Result | Iterable[Result], *, theories: Iterable[Theory] | None = None) -> str:
    """The page of these results, a complete HTML document.

    Args:
        results: one or several, of ``compare``, ``verify``, ``train``, ``probe`` and experiments, in any mixture.
        theories: records that give titles, statements and figures; the registry if None.
    Raises:
        ValueError: there is no result.
    """
    whole = aggregate(results, theories=theories)
    alone = whole.results[0] if len(whole.results) == 1 and whole.results[0].name in (COMPARE, TRAIN) else None
    pictures, measured = figures.pictures(whole), [] if alone is None else curves(alone)
    context: dict[str, Any] = {
        **_head(whole, alone),
        "alone": alone,
        "notes": whole.notes,
        "copy": COPY if any(data_name(result).endswith(JPEGS) for result in whole.results) else "",
        "results": [] if alone else [_result_line(index, result) for index, result in enumerate(whole.results)],
        "training": _training(whole, alone) if alone is not None and alone.name == TRAIN else None,
        "reached": _reached(whole) if alone is None or alone.name != TRAIN else [],
        "summary": tables.summary(whole) if alone is None or alone.name != TRAIN else None,
        "verdicts": format.VERDICTS,
        "board": _board(whole, "" if alone is None else data_name(alone)),
        "timelines": [found for index, result in enumerate(whole.results) if (found := _timeline(whole, index, result))],
        "sections": [
            _section(
                whole,
                alone,
                theory,
                [one for one in pictures if one.theory == theory.name and whole.results[one.result].name != TRAIN],
                [one for one in measured if one.theory == theory.name],
            )
            for theory in whole.theories
        ],
        "networks": _networks(whole, alone),
        "bibliography": _bibliography(whole),
        "provenance": [
            (result_label(index), result.name, format.flatten(result.settings) + format.flatten(result.provenance))
            for index, result in enumerate(whole.results)
        ],
    }
    return rendered("page.html.j2", context)


def _head(whole: Aggregate, alone: Result | None) -> dict[str, Any]:
    """Title, heading, lead and the line of facts."""
    if alone is not None and alone.name == TRAIN:
        network, data = _network(alone), data_name(alone)
        lead = "How one network learned, and what each theory of transformers measured in it at every interval."
        heading = Markup("<em>{}</em> trained on <em>{}</em>").format(network, data)
        return {"title": f"{network} trained on {data}", "heading": heading, "lead": lead, "facts": ""}
    names = list(dict.fromkeys(data_name(result) for result in whole.results if result.name in (COMPARE, TRAIN)))
    kinds = [{"verify": "claims"}.get(result.name, result.name) for result in whole.results]
    title = (
        f"Theories of transformers on {' and '.join(names)}" if names else f"Theories of transformers: {' and '.join(dict.fromkeys(kinds))}"
    )
    emphasis = Markup(" and ").join(Markup("<em>{}</em>").format(name) for name in names)
    heading = Markup("Theories of transformers on {}").format(emphasis) if names else title
    if alone is None:
        count = len(whole.results)
        lead = f"What was measured in {f'{count} results' if count > 1 else 'one result'}, beside what the theories predict."
        return {"title": title, "heading": heading, "lead": lead, "facts": ""}
    settings, models = alone.settings, figures.models_of(alone)
    lead = f"What each theory predicts, what was measured on the same data{' and in the same trained networks' if models else ''}."
    facts = []
    if all(isinstance(settings.get(name), int) for name in ("n", "seq", "dim")):
        facts.append(f"{settings['n']:,} sequences of {settings['seq']:,} tokens in {settings['dim']:,} dimensions")
    steps = f", {settings['steps']:,} training steps each" if isinstance(settings.get("steps"), int) else ""
    facts += [f"networks: {', '.join(models)}{steps}"] if models else []
    seeds = settings.get("seeds") or [settings["seed"]] if "seeds" in settings or "seed" in settings else []
    facts += [f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"] if seeds else []
    facts += [f"{alone.provenance['seconds']:.0f}\u00a0s"] if "seconds" in alone.provenance else []
    return {"title": title, "heading": heading, "lead": lead, "facts": " · ".join(facts)}


def _network(result: Result) -> str:
    """Name of the network of a training."""
    return next((row.model for row in result.table if row.model), "network")


def _result_line(index: int, result: Result) -> dict[str, Any]:
    """A line of the table of results."""
    record, settings = result.provenance, result.settings
    seeds = settings.get("seeds", settings.get("seed"))
    return {
        "label": result_label(index),
        "name": result.name,
        "data": str(settings["data"])
        if "data" in settings
        else format.several(len(result.verifications), "claim")
        if result.verifications
        else "",
        "seeds": "" if seeds is None else ", ".join(map(str, seeds)) if isinstance(seeds, list | tuple) else str(seeds),
        "date": str(record.get("date", "")).partition("T")[0],
        "commit": f"{str(record.get('commit', ''))[:8]}{' (changed)' if record.get('dirty') else ''}",
        "seconds": record.get("seconds"),
        "command": record.get("command", ""),
    }


def _reached(whole: Aggregate) -> list[dict[str, Any]]:
    """What the networks reached on test data, in large type."""
    own = [entry for entry in whole.select(theory=NETWORK, split="test", unit="share", layer=None) if not entry.missing]
    first = {(entry.row.model, entry.row.data): entry for entry in reversed(own)}
    return [_large(entry.row, entry.row.model, entry.note) for entry in own if entry in first.values()]


def _large(row, model: str, note: str = "") -> dict[str, Any]:
    interval = f"95 % interval {format.bounds(row.interval, row.unit)} {row.interval_kind}" if row.interval is not None else ""
    null = f"null, {row.null.kind}: {format.amount(row.null.median, row.unit)}" if row.null is not None and row.null.draws else ""
    label = f"{format.label(row)}{f', {row.n:,} samples' if row.n else ''}"
    return {
        "value": format.amount(row.value, row.unit),
        "model": model,
        "label": label,
        "below": [text for text in (interval, null, note) if text],
    }


def _training(whole: Aggregate, result: Result) -> dict[str, Any]:
    """The head of a training's page: what was reached, which network was kept, the training at a glance, the theories' headlines."""
    own, found = curves(result), training.training_summary(result)
    settings, record = result.settings, result.provenance
    own_settings = settings.get("settings") or settings
    steps = sorted({int(step) for one in own for step in one.steps})
    chosen = [steps[i] for i in network_figures.positions(len(steps), 3)]
    layered = [one for one in own if one.layers != (None,) and not one.empty]
    headlines = [(theory.name, theory.in_networks.headline) for theory in whole.theories if theory.in_networks is not None]
    shown = [one for one in layered if (one.theory, one.quantity) in headlines or one.theory == NETWORK][:9]
    reasons: dict[str, list[str]] = {}
    for entry in whole.select(kind=("in network", "network"), value=None):
        title = next((theory.title for theory in whole.theories if theory.name == entry.row.theory), "No theory measures this network")
        reasons.setdefault(entry.row.reason, []).append(title)
    speed = found.speed
    glance = [
        ("network", "; ".join([_network(result), *(f"{count:,} parameters" for count in [record.get("parameters")] if count)])),
        ("data", data_name(result)),
        ("objective", _short(settings.get("objective"))),
        ("samples", ", ".join(f"{settings[key]:,} {key.partition('_')[0]}" for key in SAMPLES if key in settings)),
        ("recipe", _recipe(own_settings)),
        ("steps", f"{found.steps:,}"),
        ("time", " on ".join(filter(None, ("" if found.seconds is None else format.duration(found.seconds), record.get("device"))))),
        ("speed", "" if speed is None else f"{speed[0]:,.0f} images a second, median ({speed[1]:,.0f} to {speed[2]:,.0f})"),
    ]
    return {
        "found": found,
        "unfinished": unfinished(result),
        "reached": [_large(row, "") for row in found.tests],
        "glance": [(name, text) for name, text in glance if text],
        "headlines": training.headlines_in_training(whole.theories, own, found.kept),
        "reasons": [(reason, ", ".join(dict.fromkeys(titles))) for reason, titles in reasons.items()],
        "learning": inline(lambda: training_figures.learning(own, found), "learning", "Loss and accuracy over the training steps"),
        "own": _in_training([one for one in layered if one.theory == NETWORK], "own", "Attention and geometry", None, drawn=True),
        "layers": inline(lambda: training_figures.by_layer(shown, chosen), "layers", "Quantities from the first layer to the last"),
        "by_layer": training.by_layer(shown, chosen),
    }


def _recipe(settings: dict[str, Any]) -> str:
    """The recipe that the run names, and the settings that differ from it."""
    from ..training.recipes import IMAGE_RECIPES, image_recipe

    name, network = settings.get("recipe"), settings.get("network")
    if name not in IMAGE_RECIPES or network is None:
        return str(name or "")
    usual = dict(format.flatten(dataclasses.asdict(image_recipe(network, name=name))))
    changed = [f"{key} {text} instead of {usual[key]}" for key, text in format.flatten(settings) if key in usual and usual[key] != text]
    return f"{name}{', but ' if changed else ''}{', '.join(changed)}"


def _short(value: Any) -> str:
    """A setting in one line: of a nested one its name and its values."""
    if isinstance(value, dict):
        return ", ".join(filter(None, (value.get("name"), *(f"{name} {text}" for name, text in format.flatten(value) if name != "name"))))
    return "" if value is None else str(value)


def _in_training(own: Sequence[Curves], name: str, title: str, theory: Theory | None, *, drawn: bool) -> dict[str, Any] | None:
    """A table, and figures if ``drawn``, of quantities that were measured during training; None if there are none."""
    table = training.first_and_last(own, f"{name}-training", "Mean over layers and heads at the first and at the last step")
    if table is None or not drawn:
        return None if table is None else {"figure": None, "all": None, "table": table}
    headline, others = figures.split_headline(own, theory)
    lines = inline(lambda: training_figures.theory(headline, others), f"{name}-lines", f"{title}: over the training steps")
    many = training_figures.many_layers(own)
    maps = inline(lambda: training_figures.panels(own), f"{name}-maps", f"{title}: by layer and step") if many else None
    return {"figure": lines or maps, "all": maps if lines else None, "table": table}


def _section(
    whole: Aggregate, alone: Result | None, theory: Theory, pictures: Sequence[figures.Picture], own_curves: Sequence[Curves]
) -> dict[str, Any]:
    """The section of one theory: its views of the data, its experiments, its quantities in networks, its claims."""
    parts = []
    for (data, model), own in tables.grouped(
        whole.select(theory=theory.name, kind=ON_DATA), lambda entry: (entry.row.data, entry.row.model)
    ):
        drawn = [
            picture
            for picture in pictures
            if whole.results[picture.result].name == COMPARE and picture.model == model and (alone is not None or not model)
        ]
        parts.append(_part(whole, theory, own, drawn, format.view_name(model), data, folded=bool(model)))
    parts.sort(key=lambda part: part["folded"])
    for name, own in tables.grouped(
        whole.select(theory=theory.name, kind=("figure", "rung")), lambda entry: tables.experiment_of(whole, entry)
    ):
        drawn = [picture for picture in pictures if whole.results[picture.result].name == name]
        parts.append(_part(whole, theory, own, drawn, name, "", folded=False))
    inside = whole.select(theory=theory.name, kind="in network")
    if alone is not None:  # what has curves is in the table of curves, and headlines are in the summary
        named = {one.quantity for one in own_curves}
        inside = [entry for entry in inside if entry.row.quantity not in named or entry.row.layer is not None]
    if inside:
        parts.append(_part(whole, theory, inside, [], "trained networks", "", folded=False))
    slug, drawn = format.slug(theory.name), alone is not None and alone.name == TRAIN
    during = _in_training(own_curves, slug, theory.title, theory, drawn=drawn)
    return {"theory": theory, "parts": parts, "training": during, "claims": whole.claims_of(theory)}


def _part(
    whole: Aggregate, theory: Theory, own: Sequence[Entry], drawn: Sequence[figures.Picture], name: str, data: str, *, folded: bool
) -> dict[str, Any]:
    """One view of the data, or one experiment: figures, numbers, assumptions, and the reasons where nothing was measured."""
    several = len({result for entry in whole.entries for result in entry.results}) > 1
    named = f"{name} of {data}" if data and several else name
    headline = "" if theory.on_data is None else theory.on_data.headline
    measured = [entry for entry in own if entry.row.kind != "assumption"]
    numbers = sorted(
        (entry for entry in measured if not entry.missing), key=lambda entry: (entry.row.quantity, entry.row.layer) != (headline, None)
    )
    first = numbers if len(numbers) <= FIRST_NUMBERS else numbers[: FIRST_NUMBERS - 4]
    rest = numbers[len(first) : MAX_NUMBERS]
    slug, caption = f"{format.slug(theory.name)}-{format.slug(named)}", f"{theory.title}: prediction and measurement, {named}"
    return {
        "name": named,
        "folded": folded,
        "experiment": any(entry.row.kind in ("figure", "rung") for entry in own),
        "figures": [figure for picture in drawn if (figure := _drawn(whole, picture, f"{slug}-{result_label(picture.result)}"))],
        "headline": numbers[0] if folded and numbers and numbers[0].row.quantity == headline else None,
        "reasons": [entry for entry in measured if entry.missing],
        "first": tables.numbers(first, slug, caption) if first else None,
        "more": tables.numbers(rest, f"{slug}-more", f"{caption}, continued") if rest else None,
        "left_out": len(numbers) - len(first) - len(rest),
        "assumptions": [entry for entry in own if entry.row.kind == "assumption"],
    }


def _drawn(whole: Aggregate, picture: figures.Picture, name: str) -> dict[str, Any] | None:
    figure = inline(picture.draw, name, picture.title)
    result = whole.results[picture.result]
    settings = ", ".join(f"{key.replace('_', ' ')} {text}" for key, text in format.flatten(result.settings)) if not picture.model else ""
    caption = f"{result_label(picture.result)}: {result.name}{f' ({settings})' if settings else ''}" if result.name != COMPARE else ""
    return None if figure is None else {"figure": figure, "caption": caption if len(whole.results) > 1 or result.name != COMPARE else ""}


def _networks(whole: Aggregate, alone: Result | None) -> dict[str, Any] | None:
    """What the networks reached, their learning curves, attention maps and features; None if there are no networks."""
    own = [entry for entry in whole.select(theory=NETWORK) if alone is None or alone.name != TRAIN]
    own_curves = [one for one in curves(alone) if one.theory == NETWORK] if alone is not None and alone.name == COMPARE else []
    named = {(one.quantity, one.model, one.split) for one in own_curves}  # these are in the table of curves
    own = [entry for entry in own if (entry.row.quantity, entry.row.model, entry.row.split) not in named or entry.row.setting]
    own.sort(key=lambda entry: entry.row.unit != "share")
    first, rest = own[: 2 * FIRST_NUMBERS], own[2 * FIRST_NUMBERS : MAX_NUMBERS]
    learning, pictures = [], []
    for index, result in enumerate(whole.results):
        label = "" if alone is not None else f"{result_label(index)}: "
        if result.name == COMPARE or (result.name == TRAIN and alone is None):
            figure = inline(
                lambda result=result: network_figures.learning(result), f"learning-{index}", "Loss and accuracy over the training steps"
            )
            learning += [(f"{label}How the networks learn on {data_name(result)}.", figure)] if figure else []
        pictures += [shown] if result.name == COMPARE and (shown := _pictures(result, index, label)) else []
    if not (own or own_curves or learning or pictures):
        return None
    return {
        "learning": learning,
        "training": training.first_and_last(
            own_curves, "networks-training", "Mean over layers and heads at the first and at the last step"
        ),
        "first": tables.numbers(first, "networks", "What the networks reached", judged=False) if first else None,
        "more": tables.numbers(rest, "networks-more", "What the networks reached, continued", judged=False) if rest else None,
        "pictures": pictures,
    }


def _pictures(result: Result, index: int, label: str) -> dict[str, Any] | None:
    """Sliders, and figures for print and for readers without script."""
    models, shown = figures.models_of(result), []
    for model in models:
        name = f"attention-{index}-{format.slug(model)}"
        title = f"Where {model} looks: the attention that each token receives, at some of the training steps"
        attention = inline(lambda model=model: network_figures.attention(result, model), name, title)
        shown.append(
            {"model": model, "slider": slider(result, model), "attention": attention, "id": f"slider-{index}-{format.slug(model)}"}
        )
    title = "Features of the trained networks in the plane, by class"
    features = inline(lambda: network_figures.features(result, models), f"features-{index}", title)
    with_features = {model for model in models if f"network/{model}/features" in result.arrays}
    moving = {one["model"] for one in shown if one["slider"] and one["slider"].moving}
    if features is None and not any(one["attention"] or one["slider"] for one in shown):
        return None
    return {"label": label, "data": data_name(result), "networks": shown, "features": features, "all_move": with_features <= moving}


def _timeline(whole: Aggregate, index: int, result: Result) -> dict[str, Any] | None:
    """The theories' headlines over the training steps of one result: figure, sentences, rank correlations; None if there is none."""
    group = on_timeline(result, whole.theories) if result.name in (COMPARE, TRAIN, PROBE) else []
    series = figures.timeline_series(result, whole.theories) if group else []
    figure = inline(lambda: network_figures.timeline(series), f"timeline-{index}", "The theories' headlines over the training steps")
    if figure is None:
        return None
    models = dict.fromkeys(one.model for one in group)
    matrices = [(model, correlation_table([one for one in group if one.model == model])) for model in models]
    return {
        "label": f"{result_label(index)}: " if len(whole.results) > 1 else "",
        "figure": figure,
        "sentences": sentences([one for one in group if one.theory != NETWORK]),
        "matrices": [(model, matrix) for model, matrix in matrices if matrix],
    }


def _board(whole: Aggregate, data: str) -> dict[str, Any]:
    """The table of all claims with the choices of its filters as (value, label, number of claims)."""
    claims = whole.claims
    ranked = sorted(claims, key=rank)
    sourced = sorted(
        (one.verification.source for one in claims if one.verification.source.known), key=lambda source: Source(source.key).label
    )
    return {
        "claims": [(one, rank(one)) for one in claims],
        "data": data,
        "verdicts": _choices([(one.verification.outcome, one.verification.outcome) for one in ranked]),
        "theories": _choices([(one.theory.name, one.theory.title) for one in claims]),
        "sources": _choices([(source.key, Source(source.key).label) for source in sourced]),
    }


def rank(checked: Checked) -> int:
    """Rank of a claim's verdict, the most severe first."""
    return _ORDER.index(format.verdict_style(checked.verification.outcome)[0])


def _choices(pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str, int]]:
    counts = Counter(pairs)
    return [(*pair, counts[pair]) for pair in dict.fromkeys(pairs)]


def _bibliography(whole: Aggregate) -> list[dict[str, str]]:
    """The literature behind the results, as the page lists it."""
    found = []
    for key in keys(whole.results, whole.theories):
        entry = {name: sources.field(key, name) for name in ("title", "journal", "booktitle", "url", "author")}
        authors = [" ".join(reversed(name.split(", "))) for name in entry["author"].split(" and ")]
        venue = entry["journal"] or entry["booktitle"]
        found.append({**entry, "key": key, "year": sources.year(key), "author": ", ".join(authors), "venue": venue})
    return found

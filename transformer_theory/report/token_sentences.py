"""Sentences about the tokens that attention goes to in one network: sinks, previous tokens, and tokens with
large norms (:mod:`~..metrics.named_tokens`), with the names of these tokens.

Heads and layers are named if they leave their copies of equal scale in one family of tests, that of all
:data:`TESTED` quantities (:func:`~..comparison.judged.beyond_copies`), and have a share that is worth it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from ..comparison.judged import Quantity, beyond_copies
from ..comparison.pooling import NETWORK
from ..core import format
from ..core.measurement import Measurement
from ..core.result import Result
from ..metrics import named_tokens
from ..metrics.named_tokens import LAST, LEARNT

SHARE = 0.3  # of the attention of a head, from which on it is called after the token that gets it
TOP = 3  # number of heads that are named
OUTLIERS = 0.5  # outlier tokens of a sequence, from which on they are worth a sentence
MAX_SINKS = 2  # number of places that are called sinks
TESTED = (named_tokens.SINK_MASS, named_tokens.PREVIOUS_MASS, named_tokens.OUTLIERS)
Statement = tuple[str, str, str]
TOO_FEW = "too few draws: copies of this network were not tested"


def token_statements(result: Result, found: Sequence[Quantity]) -> list[Statement]:
    """Returns up to three triples (title, text, meaning): sinks, previous-token heads, outlier tokens.

    Args:
        result: the measurement of one network, whose settings name the tokens.
        found: its quantities.
    """
    general = {each.name: each for each in found if each.theory == NETWORK and each.rows}
    tested = [
        replace(general[name], rows=tuple(replace(row, side=">=") for row in general[name].rows))
        for name in TESTED
        if name in general
    ]
    judged = {each.name: each for each in beyond_copies(tested)}
    said = (
        _sinks(judged.get(named_tokens.SINK_MASS), general, result.settings),
        _previous(judged.get(named_tokens.PREVIOUS_MASS)),
        _outliers(judged.get(named_tokens.OUTLIERS), general, result.settings),
    )
    return [each for each in said if each is not None]


def token_name(place: float, settings: Mapping[str, Any]) -> str:
    """Returns the token at a place in words: ``"the first token “[CLS]”"``, ``"the patch in row 2 and column
    3"``.

    Args:
        place: number of the token from the start, :data:`.LAST` or :data:`.LEARNT`.
        settings: settings of the result: "same_tokens", "leading", "grid".
    """
    number, leading, grid = int(place), int(settings.get("leading") or 0), settings.get("grid")
    if number == LEARNT:
        return "a learnt key without a token"
    if grid:
        return _on_grid(number, leading, *grid)
    where = {0: "the first token", LAST: "the last token"}.get(number, f"token {number + 1}")
    known = (settings.get("same_tokens") or {}).get(str(number))
    return f"{where} “{known}”" if known else where


def _on_grid(number: int, leading: int, rows: int, columns: int) -> str:
    """Names a token of an image."""
    if 0 <= number < leading:
        return "the class token" if leading == 1 else f"token {number + 1} of the {leading} without a patch"
    patch = rows * columns - 1 if number == LAST else number - leading
    if patch >= rows * columns:
        return f"token {number + 1}, behind the patches"
    return f"the patch in row {patch // columns + 1} and column {patch % columns + 1}"


def _at(quantity: Quantity | None, row: Measurement) -> Measurement | None:
    """Returns the row of another quantity in the same head or layer."""
    rows = () if quantity is None else quantity.rows
    return next((each for each in rows if (each.layer, each.head) == (row.layer, row.head)), None)


def _value(quantity: Quantity | None, row: Measurement) -> float | None:
    found = _at(quantity, row)
    return None if found is None else found.value


def _percent(values: Sequence[float]) -> str:
    return f"{100 * fmean(values):.0f}\u00a0%"


def _copies(rows: Sequence[Measurement]) -> str:
    """Returns the mean of the medians of the copies in words, with the number of copies."""
    medians = [row.null.median for row in rows if row.null is not None]
    return f"copies of equal scale {100 * fmean(medians):.1f}\u00a0%" if medians else ""


def _sinks(
    mass: Quantity | None, general: Mapping[str, Quantity], settings: Mapping[str, Any]
) -> Statement | None:
    """Describes the places that take the attention of the most heads."""
    if mass is None:
        return None
    places, values = general.get(named_tokens.SINK_PLACE), general.get(named_tokens.SINK_VALUE)
    meaning = "the sink of a head is the place with the largest mean attention over all queries and inputs"
    large = [row for row in (mass.beyond if mass.tested else mass.rows) if (row.value or 0.0) >= SHARE]
    by_place: dict[float, list[Measurement]] = {}
    for row in large:
        if (place := _value(places, row)) is not None:
            by_place.setdefault(place, []).append(row)
    parts = []
    for place, rows in sorted(by_place.items(), key=lambda item: -len(item[1]))[:MAX_SINKS]:
        norms = [norm for row in rows if (norm := _value(values, row)) is not None and math.isfinite(norm)]
        facts = (
            [_copies(rows), f"p\u00a0≤\u00a0{format.p_value(mass.largest_p)}"] if mass.tested else [TOO_FEW]
        )
        text = (
            f"{token_name(place, settings)} is the sink of {len(rows)} of {len(mass.rows)} heads, where it "
        )
        text += f"takes {_percent([row.value or 0.0 for row in rows])} of the attention on average "
        text += f"({', '.join(filter(None, facts))})"
        if norms:
            text += f"; its value has {_percent(norms)} of the mean norm"
        most = max(rows, key=lambda row: row.value or 0.0)
        if mass.tested:
            text += (
                f"; most of all in {format.place(most, 'layer', 'head')} ({_percent([most.value or 0.0])})"
            )
        parts.append(text)
    return ("Sinks", "; ".join(parts), meaning) if parts else None


def _previous(mass: Quantity | None) -> Statement | None:
    """Names the heads that attend to the previous token."""
    if mass is None or not mass.tested:
        return None
    heads = sorted(
        (row for row in mass.beyond if (row.value or 0.0) >= SHARE), key=lambda row: -(row.value or 0.0)
    )
    if not heads:
        return None
    named = ", ".join(
        f"{format.place(row, 'layer', 'head')} ({_percent([row.value or 0.0])})" for row in heads[:TOP]
    )
    rest = f" and {len(heads) - TOP} more" if len(heads) > TOP else ""
    noun = format.counted(len(heads), "head")
    verb = "puts" if len(heads) == 1 else "put"
    text = (
        f"{noun} of {len(mass.rows)} {verb} at least {100 * SHARE:.0f}\u00a0% of the attention on the token "
    )
    text += (
        f"before the query: {named}{rest} ({_copies(heads)}, p\u00a0≤\u00a0{format.p_value(mass.largest_p)})"
    )
    return (
        "Previous-token heads",
        text,
        "queries from the third token on, whose previous token is not the first",
    )


def _outliers(
    count: Quantity | None, general: Mapping[str, Quantity], settings: Mapping[str, Any]
) -> Statement | None:
    """Describes the tokens with large norms."""
    if count is None:
        return None
    # Copies have the embeddings of the network, so that nothing tests the stream that enters the first layer.
    untested = all(row.null is None for row in count.rows)
    layers = sorted(
        (row for row in (count.rows if untested else count.beyond) if (row.value or 0.0) >= OUTLIERS),
        key=lambda row: row.layer or 0,
    )
    if not layers:
        return None
    most = max(layers, key=lambda row: row.value or 0.0)
    ratio, mass = (
        _value(general.get(name), most) for name in (named_tokens.LARGEST_NORM, named_tokens.OUTLIER_MASS)
    )
    place, share = (
        _value(general.get(name), most) for name in (named_tokens.OUTLIER_PLACE, named_tokens.OUTLIER_SHARE)
    )
    where = ", ".join(str(row.layer) for row in layers)
    null = (
        f"copies of equal scale {most.null.median:.1f}, p\u00a0≤\u00a0{format.p_value(count.largest_p)}"
        if most.null is not None
        else TOO_FEW
    )
    text = f"the stream that enters layer{'s' * (len(layers) > 1)} {where} has tokens with outlying norms; "
    text += f"most in layer {most.layer}, {most.value:.1f} a sequence ({null})"
    text += f", where the largest norm is {ratio:.1f} times the median" if ratio is not None else ""
    text += f" and they get {_percent([mass])} of the attention" if mass is not None else ""
    if place is not None and share is not None:
        text += f"; {_percent([share])} of them are {token_name(place, settings)}"
    threshold = (
        f"norm above {named_tokens.TIMES:g} times the median of the sequence and {named_tokens.DEVIATIONS:g} "
        "median absolute deviations above it"
    )
    return "Outlier tokens", text, threshold

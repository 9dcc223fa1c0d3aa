"""Formats numbers, units, verdicts and places in the same way for every output of the report."""

import math
import re
import shlex
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import Any

from .measurement import Measurement, Null, Unit

NOTHING = "—"
NOT_MEASURED = "not measured"
# relative difference up to which threshold and prediction count as one number; it allows for the check's
# tolerance
ROUNDING = 2e-6
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

VERDICTS: Mapping[str, tuple[str, str, str]] = {  # by verdict: CSS class on the page, symbol, meaning
    "consistent": (
        "good",
        "✓",
        "the value lies on the predicted side of the threshold; a finite check never proves a theorem",
    ),
    "violated": ("bad", "✗", "the assumptions hold, and the value lies on the other side of the threshold"),
    "inconclusive": ("unsure", "?", "the value is not finite, or the iteration behind it did not converge"),
    "not covered": (
        "outside",
        "○",
        "the theorem's assumptions do not hold here: the value is shown, the theorem is not judged",
    ),
    NOT_MEASURED: (
        "none",
        "–",
        "the data lack what the theory needs, or the quantity is not defined for them",
    ),
    "holds": ("good", "✓", "the data meet the assumption"),
    "fails": ("unsure", "✗", "the data do not meet the assumption"),
}
_SEVERITY = ("violated", "fails", "consistent", "holds", "inconclusive", "not covered", NOT_MEASURED)


def verdict_style(name: str) -> tuple[str, str]:
    """Returns the CSS class and the symbol of a verdict. An unknown verdict, such as "passes" for a control,
    looks like an alarm.
    """
    style = VERDICTS.get(name)
    return style[:2] if style else ("bad", "!")


def severity(verdict: str | None) -> int:
    """Returns the sort key of a verdict: unknown verdicts come first, then violated ones; a missing verdict
    comes last.
    """
    if not verdict:
        return len(_SEVERITY)
    return _SEVERITY.index(verdict) if verdict in _SEVERITY else -1


def number(value: float | None, digits: int = 3) -> str:
    """Formats a number, by default with three significant digits: ``0.9137 -> "0.914"``, ``1797 -> "1,797"``,
    ``1.2e-13 -> "1.20·10⁻¹³"``.

    None, infinite numbers and NaN become "—".
    """
    if value is None or not math.isfinite(value):
        return NOTHING
    size = abs(value)
    if float(value).is_integer() and size < 1e6:
        text = f"{int(value):,}"
    elif 1e-3 <= size < 1000:
        text = f"{value:#.{digits}g}".rstrip(".")
        text = text if "e" not in text else f"{value:,.0f}"
    elif 1000 <= size < 1e6:
        text = f"{value:,.0f}"
    else:
        mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
        text = f"{mantissa}·10{str(int(exponent)).translate(_SUPERSCRIPT)}"
    return text.replace("-", "−")


def percent(share: float, decimals: int = 2) -> str:
    """Formats a share in per cent, by default with two decimals, the resolution of 10,000 samples: ``0.5685
    -> "56.85 %"``, with a no-break space.
    """
    tiny = 0 < abs(share) < 1e-4 and decimals == 2
    return f"{number(100 * share) if tiny else _fixed(100 * share, decimals)}\u00a0%"


def _fixed(value: float, decimals: int) -> str:
    """Formats a number with this number of decimals; a zero has no sign."""
    text = f"{value:,.{decimals}f}"
    return (text if any(digit in text for digit in "123456789") else text.removeprefix("-")).replace("-", "−")


def plain_percent(share: float) -> str:
    """Returns :func:`percent` with an ordinary space, for output that users may search."""
    return percent(share).replace("\u00a0", " ")


def amount(value: float | None, unit: Unit = "", interval: tuple[float, float] | None = None) -> str:
    """Formats a number without its unit; a share is given in per cent. Every output of the package prints
    measured numbers by this function.

    With an interval the last digit is worth between a hundredth and a tenth of its half-width: ``59.8 %`` for
    [51.6 %, 68.0 %], ``0.4100`` for [0.4085, 0.4115]. A finer digit would be noise, a coarser one would hide
    the width. Shares have at most two decimals in per cent, other numbers at most four. Without an interval,
    or if its half-width is below 1e-6 or above 100, a number has three significant digits (:func:`number`)
    and a share two decimals.

    Args:
        value: the number: the value of a row, an end of its interval, or a draw of its null.
        unit: unit of the number.
        interval: interval of the value of the row.
    """
    if value is None or not math.isfinite(value):
        return NOTHING
    share = unit == "share"
    half = 0.0 if interval is None else (interval[1] - interval[0]) / 2 * (100 if share else 1)
    if not 1e-6 < half < 100:
        return percent(value) if share else number(value)
    decimals = min(2 if share else 4, max(0, 1 - math.floor(math.log10(half))))
    return percent(value, decimals) if share else _fixed(value, decimals)


def of_row(value: float | None, row: Measurement) -> str:
    """Formats a number that belongs to a row (its null, the same on noise) as precisely as the
    row's value.
    """
    return amount(value, row.unit, row.interval)


def with_unit(value: float | None, unit: Unit = "", interval: tuple[float, float] | None = None) -> str:
    """Formats a number with its unit: ``"61.9 nats"``."""
    text = amount(value, unit, interval)
    return text if text == NOTHING or unit in ("", "share") else f"{text}\u00a0{unit}"


def interval_text(row: Measurement) -> str:
    """Formats the interval of a row: ``"[0.88, 0.94]"``; empty without one."""
    return "" if row.interval is None else f"[{', '.join(of_row(end, row) for end in row.interval)}]"


def value_text(row: Measurement) -> str:
    """Formats the value of a row with its interval: ``"0.91 [0.88, 0.94]"``."""
    return " ".join(filter(None, (of_row(row.value, row), interval_text(row))))


def bounds(
    ends: tuple[float, float] | None,
    unit: Unit = "",
    interval: tuple[float, float] | None = None,
) -> str:
    """Formats a range: ``"0.900 … 0.980"``; empty if there is none."""
    return "" if ends is None else " … ".join(amount(end, unit, interval) for end in ends)


def share_of_seeds(interval: tuple[float, float]) -> str:
    """Formats the interval of the share of consistent seeds: ``"[0.57, 1.00]"``."""
    return f"[{interval[0]:.2f}, {interval[1]:.2f}]"


def span(numbers: Collection[int]) -> str:
    """Formats the range of whole numbers: ``"5 to 100"``, or ``"5"`` if all are equal."""
    least, most = min(numbers), max(numbers)
    return f"{least}" if least == most else f"{least} to {most}"


def null_median(row: Measurement) -> str:
    """Formats the median of the first null; empty without draws."""
    return "" if row.null is None or not row.null.draws else of_row(row.null.median, row)


def null_text(row: Measurement, null: "Null | None" = None) -> str:
    """Formats a null: ``"permuted labels 0.12 (0.10 … 0.14)"``, its median and its range; empty without
    draws.

    Args:
        row: the row of the null.
        null: the null; None: the first one of the row.
    """
    null = row.null if null is None else null
    if null is None or not null.draws:
        return ""
    ends = bounds((null.low, null.high), row.unit, row.interval)
    return f"{null.kind} {of_row(null.median, row)}{f' ({ends})' if len(null.draws) > 1 else ''}"


def effect(value: float | None) -> str:
    """Formats an effect or agreement with two digits after the point, from 2 on with one: ``".97"``,
    ``"1.03"``, ``"−.12"``, ``"−3.4"``.
    """
    if value is None or not math.isfinite(value):
        return NOTHING
    text = f"{value:.{2 if abs(value) < 1.995 else 1}f}".replace("-0.00", "0.00").replace("-", "−")
    return text.replace("0.", ".", 1) if abs(value) < 0.995 else text


def p_value(p: float | None) -> str:
    """Formats a p-value: ``".005"``, ``".0006"``, ``".35"``."""
    if p is None:
        return NOTHING
    return (f"{p:.1g}" if p < 0.001 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}").removeprefix("0")


def threshold(op: str | None, value: float | None, unit: Unit = "") -> str:
    """Formats a threshold: ``"≥ 0.990"``; empty if there is no threshold."""
    return "" if op is None or value is None else f"{sign(op)}\u00a0{amount(value, unit)}"


def sign(op: str | None) -> str:
    """Returns the sign of a comparison: ``"≤"`` for "<=", ``"≥"`` for ">=", otherwise ``"="``."""
    return {"<=": "≤", ">=": "≥"}.get(op or "", "=")


def counted(count: int, noun: str) -> str:
    """Formats a count with its noun: ``"1 claim"``, ``"2 claims"``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def clock(seconds: float) -> str:
    """Formats a duration for a narrow column: ``"1:02:03"``, or ``"2:03"`` below an hour."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def duration(seconds: float) -> str:
    """Formats a duration with units: ``"5.7 s"``, ``"12 min 3 s"``, ``"2 h 5 min"``."""
    if seconds < 60:
        return f"{seconds:.1f}\u00a0s"
    minutes, rest = divmod(round(seconds), 60)
    hours, left = divmod(minutes, 60)
    return f"{hours}\u00a0h {left}\u00a0min" if hours else f"{minutes}\u00a0min {rest}\u00a0s"


def prediction(row: Measurement) -> str:
    """Formats the prediction and the threshold: ``"→ 1 (threshold: ≥ 0.990)"``, or ``"≥ 0"`` if the two are
    the same number.

    If both are missing and the theory predicts a side of the null, returns this side: ``"≥ null"``.
    """
    limit = threshold(row.op, row.threshold, row.unit)
    if row.predicted is None:
        return limit or (
            f"{sign(row.side)}\u00a0null" if row.null is not None and row.side in ("<=", ">=") else NOTHING
        )
    if (
        row.op
        and row.threshold is not None
        and abs(row.threshold - row.predicted) <= ROUNDING * (abs(row.predicted) or 1)
    ):
        return threshold(row.op, row.predicted, row.unit)
    text = f"→\u00a0{amount(row.predicted, row.unit)}"
    return f"{text} (threshold:\u00a0{limit})" if limit else text


def relative_to_null(row: Measurement) -> str:
    """Returns where the value lies relative to the median null: ``"above"``, ``"below"``, or ``"at"`` if both
    print as the same number.

    Empty if the value or the null is missing.
    """
    if row.value is None or row.null is None or not row.null.draws:
        return ""
    middle = row.null.median
    return (
        "at"
        if amount(row.value, row.unit) == amount(middle, row.unit)
        else "above"
        if row.value > middle
        else "below"
    )


def unexpected_side(row: Measurement) -> bool:
    """Returns whether the value lies on the side of its null that is opposite to the predicted side."""
    side = row.side or row.op
    return relative_to_null(row) == {">=": "below", "<=": "above"}.get(side or "")


def label(row: Measurement) -> str:
    """Returns the quantity; for a quantity of a whole network, preceded by its split: ``"validation
    accuracy"``.
    """
    return (
        f"{row.split} {row.quantity}"
        if row.split and row.kind == "network" and row.layer is None
        else row.quantity
    )


def view_name(model: str) -> str:
    """Names the tokens that an analysis of data used: ``"" -> "raw tokens"``, ``"ViT" -> "features
    of ViT"``.
    """
    return f"features of {model}" if model else "raw tokens"


def place(row: Measurement, *names: str) -> str:
    """Formats the place of a row: ``"layer 2, head 0, step 1,000"``.

    Empty columns are skipped. A text, such as the setting, is printed without the name of its column.

    Args:
        row: the row.
        names: columns to print; by default setting, layer, head, step and seed.
    """
    values = [(name, getattr(row, name)) for name in names or ("setting", "layer", "head", "step", "seed")]
    parts = (
        value if isinstance(value, str) else f"{name} {value:,}"
        for name, value in values
        if value not in (None, "")
    )
    return ", ".join(parts)


def sentence_case(text: str) -> str:
    """Returns a text with a capital first letter; ``str.capitalize`` would also lower the names in it.

    >>> sentence_case("beyond Gaussian scores")
    'Beyond Gaussian scores'
    """
    return text[:1].upper() + text[1:]


def slug(text: str) -> str:
    """Converts a name to an HTML id or a file name of lower-case letters, digits and hyphens:
    ``"rate_reduction" -> "rate-reduction"``.
    """
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "x"


def unique(names: Iterable[str]) -> list[str]:
    """Makes names distinct by appending numbers: ``["a", "a"] -> ["a", "a-2"]``."""
    distinct: list[str] = []
    for name in names:
        numbered = (f"{name}-{i}" for i in count(2))
        distinct.append(
            name
            if name not in distinct
            else next(candidate for candidate in numbered if candidate not in distinct)
        )
    return distinct


def flatten(record: Mapping[str, object], prefix: str = "") -> list[tuple[str, str]]:
    """Flattens a nested record to pairs (name, text): ``{"crop": {"size": 4}} -> [("crop: size", "4")]``.

    Lists are joined by commas; an empty list becomes "none". All names begin with ``prefix``.
    """
    pairs: list[tuple[str, str]] = []
    for name, value in record.items():
        if isinstance(value, Mapping):
            pairs += flatten(value, f"{prefix}{name}: ")
        else:
            text = ", ".join(map(str, value)) or "none" if isinstance(value, list | tuple) else str(value)
            pairs.append((f"{prefix}{name}", text))
    return pairs


def portable_command(record: Mapping[str, Any]) -> str:
    """Returns the command of a provenance record, as a shell reads it; of absolute paths, which describe a
    machine, only the last parts.
    """
    return _portable(record.get("command", ""))


@lru_cache
def _portable(command: str) -> str:
    """Returns a command without the folders of absolute paths; the macros of one result ask for it often."""
    try:
        words = shlex.split(command)
    except ValueError:  # not a command line, for example an apostrophe in a text
        return command
    return shlex.join(re.sub(r"(?<![^=])/.*", lambda path: Path(path[0]).name, word) for word in words)

"""Formats numbers, units, verdicts and places in the same way for every output of the report."""

import math
import re
from collections.abc import Iterable, Mapping
from itertools import count

from ..core.measurement import Measurement, Unit

NOTHING = "—"
NOT_MEASURED = "not measured"
ROUNDING = 2e-6  # relative difference up to which a threshold is the prediction with the check's tolerance
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

VERDICTS: Mapping[str, tuple[str, str, str]] = {  # class on the page, symbol, meaning
    "consistent": ("good", "✓", "the value lies on the predicted side of the threshold; a finite check never proves a theorem"),
    "violated": ("bad", "✗", "the assumptions hold, and the value lies on the other side of the threshold"),
    "inconclusive": ("unsure", "?", "the value is not finite, or the iteration behind it did not converge"),
    "not covered": ("outside", "○", "the theorem's assumptions do not hold here: the value is shown, the theorem is not judged"),
    NOT_MEASURED: ("none", "–", "the data lack what the theory needs, or the quantity is not defined for them"),
    "holds": ("good", "✓", "the data meet the assumption"),
    "fails": ("unsure", "✗", "the data do not meet the assumption"),
}
_SEVERITY = ("violated", "fails", "consistent", "holds", "inconclusive", "not covered", NOT_MEASURED)


def verdict_style(name: str) -> tuple[str, str]:
    """CSS class and symbol of a verdict; unknown ones, such as that of a control that passes, look like an alarm."""
    found = VERDICTS.get(name)
    return found[:2] if found else ("bad", "!")


def severity(verdict: str | None) -> int:
    """Sort key of a verdict: unknown and violated ones come first, no verdict last."""
    if not verdict:
        return len(_SEVERITY)
    return _SEVERITY.index(verdict) if verdict in _SEVERITY else -1


def number(value: float | None, digits: int = 3) -> str:
    """Three significant digits: ``0.9137 -> "0.914"``, ``1797 -> "1,797"``, ``1.2e-13 -> "1.20·10⁻¹³"``, None -> "—"."""
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


def percent(share: float) -> str:
    """A share in per cent with two decimals, the resolution of 10,000 samples: ``0.5685 -> "56.85 %"``, with a no-break space."""
    text = number(100 * share) if 0 < abs(share) < 1e-4 else f"{100 * share:.2f}".replace("-", "−")
    return f"{text}\u00a0%"


def plain_percent(share: float) -> str:
    """:func:`percent` with an ordinary space, for output that users may search."""
    return percent(share).replace("\u00a0", " ")


def amount(value: float | None, unit: Unit = "") -> str:
    """A number without its unit, except that shares are given in per cent."""
    return percent(value) if value is not None and unit == "share" and math.isfinite(value) else number(value)


def with_unit(value: float | None, unit: Unit = "") -> str:
    """:func:`amount` with the unit's name: ``"61.9 nats"``."""
    text = amount(value, unit)
    return text if text == NOTHING or unit in ("", "share") else f"{text}\u00a0{unit}"


def bounds(interval: tuple[float, float] | None, unit: Unit = "") -> str:
    """``"0.900 … 0.980"``; empty if there is none."""
    return "" if interval is None else f"{amount(interval[0], unit)} … {amount(interval[1], unit)}"


def threshold(op: str | None, value: float | None, unit: Unit = "") -> str:
    """``"≥ 0.990"``; empty if there is none."""
    return "" if op is None or value is None else f"{sign(op)}\u00a0{amount(value, unit)}"


def sign(op: str | None) -> str:
    """``"≤"``, ``"≥"`` or ``"="``."""
    return {"<=": "≤", ">=": "≥"}.get(op or "", "=")


def duration(seconds: float) -> str:
    """A duration in words: ``"5.7 s"``, ``"12 min 3 s"``, ``"2 h 5 min"``."""
    if seconds < 60:
        return f"{seconds:.1f}\u00a0s"
    minutes, rest = divmod(round(seconds), 60)
    hours, left = divmod(minutes, 60)
    return f"{hours}\u00a0h {left}\u00a0min" if hours else f"{minutes}\u00a0min {rest}\u00a0s"


def clock(seconds: float) -> str:
    """A duration in a narrow column: ``"1:02:03"``, or ``"2:03"`` below an hour."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def prediction(row: Measurement) -> str:
    """The prediction and the threshold: ``"→ 1 (threshold: ≥ 0.990)"``, or ``"≥ 0"`` if the two are the same number.

    If there is neither, but the theory expects a side of the null: ``"≥ null"``.
    """
    limit = threshold(row.op, row.threshold, row.unit)
    if row.predicted is None:
        return limit or (f"{sign(row.side)}\u00a0null" if row.null is not None and row.side in ("<=", ">=") else NOTHING)
    if row.op and row.threshold is not None and abs(row.threshold - row.predicted) <= ROUNDING * (abs(row.predicted) or 1):
        return threshold(row.op, row.predicted, row.unit)
    text = f"→\u00a0{amount(row.predicted, row.unit)}"
    return f"{text} (threshold:\u00a0{limit})" if limit else text


def beside_null(row: Measurement) -> str:
    """Where the value lies relative to the median null: ``"above"``, ``"below"``, or ``"at"`` if both print as one number; empty without
    a null."""
    if row.value is None or row.null is None or not row.null.draws:
        return ""
    middle = row.null.median
    return "at" if amount(row.value, row.unit) == amount(middle, row.unit) else "above" if row.value > middle else "below"


def unexpected_side(row: Measurement) -> bool:
    """Whether the value lies on the side of its null opposite to the one that the theory predicts."""
    side = row.side or row.op
    return beside_null(row) == {">=": "below", "<=": "above"}.get(side or "")


def label(row: Measurement) -> str:
    """The quantity; of a whole network with its split: ``"validation accuracy"``."""
    return f"{row.split} {row.quantity}" if row.split and row.kind == "network" and row.layer is None else row.quantity


def view_name(model: str) -> str:
    """Which tokens an analysis of data used: ``"" -> "raw tokens"``, ``"ViT" -> "features of ViT"``."""
    return f"features of {model}" if model else "raw tokens"


def place(row: Measurement, *names: str) -> str:
    """``"layer 2, head 0, step 1,000"``: the named columns that the row states; "setting" stands by itself."""
    values = [(name, getattr(row, name)) for name in names or ("setting", "layer", "head", "step", "seed")]
    parts = (value if isinstance(value, str) else f"{name} {value:,}" for name, value in values if value not in (None, ""))
    return ", ".join(parts)


def several(count: int, noun: str) -> str:
    """``"1 claim"``, ``"2 claims"``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def slug(text: str) -> str:
    """A name as an HTML id or a file name."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "x"


def unique(names: Iterable[str]) -> list[str]:
    """Makes names distinct by appending numbers: ``["a", "a"] -> ["a", "a-2"]``."""
    taken: list[str] = []
    for name in names:
        taken.append(name if name not in taken else next(free for i in count(2) if (free := f"{name}-{i}") not in taken))
    return taken


def flatten(record: Mapping[str, object], above: str = "") -> list[tuple[str, str]]:
    """A nested record as pairs (name, text). Names of the levels above are prefixed; lists are joined, an empty one is "none"."""
    pairs: list[tuple[str, str]] = []
    for name, value in record.items():
        if isinstance(value, Mapping):
            pairs += flatten(value, f"{above}{name}: ")
        else:
            text = ", ".join(map(str, value)) or "none" if isinstance(value, list | tuple) else str(value)
            pairs.append((f"{above}{name}", text))
    return pairs

"""Numbers, predictions and verdicts in the words of the report, one way everywhere."""

import math
import re

from ..rows import Row

_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
NOTHING = "—"

VERDICTS = {
    "consistent": ("good", "✓", "the measurement lies on the predicted side of the line; a finite check never proves a theorem"),
    "violated": ("bad", "✗", "the assumptions hold, and the measurement lies on the other side of the line"),
    "inconclusive": ("unsure", "?", "not finite or not converged, so nothing can be said"),
    "outside assumptions": (
        "outside",
        "○",
        "the theorem's assumptions do not hold here: the measurement is shown, the theorem is not judged",
    ),
    "not applicable": ("none", "–", "the theory cannot speak about these data, or the quantity is not defined for them"),
    "holds": ("good", "✓", "the data meet the assumption"),
    "fails": ("unsure", "✗", "the data do not meet the assumption"),
}


def number(value: float | int | None, digits: int = 3) -> str:
    """Three significant digits for a reader: ``0.9137 -> "0.914"``, ``1797 -> "1,797"``, ``1.2e-13 -> "1.20·10⁻¹³"``, None -> "—"."""
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


def prediction(row: Row) -> str:
    """What the theory says and the line that decides: ``"→ 1 (line: ≥ 0.990)"``, ``"≥ 0"`` if the two are one number.

    Spaces that must not break are no-break spaces.
    """
    predicted, bound = row.get("predicted"), row.get("bound")
    line = f"{'≤' if row.get('op') == '<=' else '≥'}\u00a0{number(bound)}" if bound is not None and row.get("op") else ""
    if predicted is None or not math.isfinite(predicted):
        return line if bound is not None and math.isfinite(bound) and line else NOTHING
    if not line or bound == predicted:
        return line or f"→\u00a0{number(predicted)}"
    return f"→\u00a0{number(predicted)} (line:\u00a0{line})"


def verdict(row: Row) -> tuple[str, str]:
    """A row's verdict as (name, reason): ``"not applicable: needs ids" -> ("not applicable", "needs ids")``; ("", "") without one."""
    name, _, reason = (row.get("verdict") or "").partition(": ")
    return name, reason


def absent(row: Row) -> bool:
    """Whether a row only says why there is nothing to measure."""
    return row["quantity"] == "all" or (row["value"] is None and verdict(row)[0] == "not applicable")


def kind(name: str) -> tuple[str, str]:
    """Class and symbol of a verdict for the page; what is unknown is shown as a warning."""
    found = VERDICTS.get(name)
    return found[:2] if found else ("bad" if "no power" in name or name.startswith("control") else "none", "!")


def drawn(quantity: str) -> str:
    """A quantity for a label in a figure: R^c as a formula."""
    return quantity if "$" in quantity else re.sub(r"\bR\^c", "$R^c$", quantity)


def subject(view: str) -> str:
    """Which data a view names: ``"raw" -> "raw tokens"``, ``"ViT" -> "features of ViT"``."""
    return "raw tokens" if view == "raw" else f"features of {view}"


def slug(text: str) -> str:
    """A name as an HTML id."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "x"

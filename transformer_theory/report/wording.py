"""Numbers, predictions, verdicts and formulas in the words of the report, one way everywhere."""

import math
import re
from collections.abc import Iterable
from itertools import chain, count

from ..core import notes
from ..core.measurement import Row

_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
NOTHING = "—"
TRAINED = " in the trained network"  # ends the quantity of a row that reads a theory's order parameter there
ROUNDING = 2e-6  # a line that differs from the prediction by less differs by the tolerance of the check only

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


def percent(share: float) -> str:
    """A share with the two decimals that ten thousand images tell apart: ``0.5685 -> "56.85 %"``."""
    return notes.percent(share).replace(" ", "\u00a0")


def amount(value: float | int | None, quantity: str) -> str:
    """A value as its quantity is told: an accuracy in per cent, another number with three digits."""
    return percent(value) if value is not None and notes.is_share(quantity) and 0 <= value <= 1 else number(value)


def spaced(note: str) -> str:
    """A note with a no-break space before each per cent sign: ``"64.38% to 66.25%" -> "64.38 % to 66.25 %"``."""
    return re.sub(r"(?<=\d) ?%", "\u00a0%", note)


def with_commas(text: str) -> str:
    """Whole numbers within a text as readers like them: ``"50000 images" -> "50,000 images"``."""
    return re.sub(r"\d{4,}", lambda found: f"{int(found[0]):,}", text)


def clock(seconds: float) -> str:
    """A time with its unit: ``"5.7 s"``, ``"12 min 3 s"``, ``"2 h 5 min"``."""
    if seconds < 60:
        return f"{seconds:.1f}\u00a0s"
    minutes, rest = divmod(round(seconds), 60)
    hours, left = divmod(minutes, 60)
    return f"{hours}\u00a0h {left}\u00a0min" if hours else f"{minutes}\u00a0min {rest}\u00a0s"


def prediction(row: Row) -> str:
    """What the theory says and the line that decides: ``"→ 1 (line: ≥ 0.990)"``, ``"≥ 0"`` if the two are one number.

    A line that is the null of an order parameter in a trained network is called so: ``"≥ null"``. Spaces that must not break are
    no-break spaces.
    """
    predicted, bound, null = (_finite(row.get(name)) for name in ("predicted", "bound", "null"))
    sign = "≤" if row.get("op") == "<=" else "≥"
    if row.get("quantity", "").endswith(TRAINED) and bound is not None and bound == null:
        return f"{sign}\u00a0null"
    line = f"{sign}\u00a0{number(bound)}" if bound is not None and row.get("op") else ""
    if predicted is None:
        return line or NOTHING
    if line and bound is not None and abs(bound - predicted) <= ROUNDING * (abs(predicted) or 1):
        return f"{sign}\u00a0{number(predicted)}"
    return f"→\u00a0{number(predicted)} (line:\u00a0{line})" if line else f"→\u00a0{number(predicted)}"


def beside_null(row: Row) -> str:
    """Where a measurement lies: ``"above its null"``, ``"below its null"``, ``"at its null"`` where both are shown as the same
    number; empty without a null."""
    value, null = _finite(row["value"]), _finite(row.get("null"))
    if value is None or null is None:
        return ""
    return "at its null" if number(value) == number(null) else f"{'above' if value > null else 'below'} its null"


def missed(row: Row) -> bool:
    """Whether an order parameter lies on the other side of its null than the theory expects."""
    return beside_null(row) == ("above" if row.get("op") == "<=" else "below") + " its null"


def _finite(value: float | int | None) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None


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


_UNITS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
_GREEK = {"eps": ("\\varepsilon", "ε"), "eta": ("\\eta", "η"), "gamma": ("\\gamma", "γ"), "lambda": ("\\lambda", "λ")}
_ASCII = re.compile(
    r"(?P<bars>\|\|(?P<inside>[^|$]{1,20})\|\|)"
    r"|\b(?P<greek>eps|eta|gamma|lambda)(?:_(?P<index>[A-Za-z0-9])\b|\^(?P<power>\d)\b|(?P<argument>\([a-z]\)))"
    r"|\bR\^c\b"
    r"|\b(?P<letter>[A-Za-z])(?:_(?P<below>[A-Za-z0-9])(?:\^(?P<above>\d))?|\^(?P<square>\d))\b"
    r"|(?<=\b\w) (?P<minus>-) (?=\w)"
)


def formulas(text: str) -> str:
    r"""Text with the ASCII mathematics of rows as LaTeX between dollars: ``"eps^2" -> r"$\varepsilon^2$"``, ``"R^c" -> "$R^c$"``.

    What stands between dollars already is left alone, and so is whatever is not surely mathematics.
    """
    parts = re.split(r"((?<!\\)\$.+?(?<!\\)\$)", text, flags=re.DOTALL)
    return "".join(part if i % 2 else _ASCII.sub(_as_latex, part) for i, part in enumerate(parts))


def _as_latex(found: re.Match) -> str:
    if found["minus"]:
        return " − "
    if found["bars"]:
        return f"$\\lVert {found['inside'].strip()} \\rVert$"
    if found["greek"]:
        below, above = found["index"], found["power"]
        return f"${_GREEK[found['greek']][0]}{f'_{below}' if below else ''}{f'^{above}' if above else ''}{found['argument'] or ''}$"
    return f"${found[0]}$"


def symbols(text: str) -> str:
    """The same in plain Unicode, for the terminal: ``"eps^2" -> "ε²"``, ``"gamma(t)" -> "γ(t)"``; an index keeps its underscore."""
    return _ASCII.sub(_as_unicode, text)


def _as_unicode(found: re.Match) -> str:
    if found["minus"]:
        return " − "
    if found["bars"]:
        return f"‖{found['inside'].strip()}‖"
    text = found[0] if not found["greek"] else _GREEK[found["greek"]][1] + found[0].removeprefix(found["greek"])
    return re.sub(r"\^(\d)", lambda power: power[1].translate(_UNITS), text)


def drawn(quantity: str) -> str:
    """A quantity for a label in a figure: R^c as a formula."""
    return quantity if "$" in quantity else re.sub(r"\bR\^c", "$R^c$", quantity)


def subject(view: str, trained: bool = False) -> str:
    """Which data a view names: ``"raw" -> "raw tokens"``, ``"ViT" -> "features of ViT"``, or the network itself: ``"trained ViT"``."""
    return "raw tokens" if view == "raw" else f"trained {view}" if trained else f"features of {view}"


def split_subject(text: str, most: int = 80) -> tuple[str, str]:
    """A subject that is longer than ``most`` letters in two parts, at a comma: what it is, and the settings that tell it apart."""
    if len(text) <= most or ", " not in text:
        return text, ""
    cut = text.rfind(", ", 0, most)
    cut = cut if cut > 0 else text.index(", ")
    return text[:cut], text[cut + 2 :]


def slug(text: str) -> str:
    """A name as an HTML id."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "x"


def apart(names: Iterable[str]) -> list[str]:
    """Names with numbers behind those that are there already: ``["a", "a"] -> ["a", "a-2"]``."""
    found: list[str] = []
    for name in names:
        found.append(next(free for free in chain([name], (f"{name}-{number}" for number in count(2))) if free not in found))
    return found

r"""The summary as a LaTeX table (booktabs) with ``\cite`` keys, to be pasted into a paper beside ``references.bib``."""

import re
from collections.abc import Iterable

from ..experiment import Result
from ..theory import Theory
from . import wording
from .views import cite, summary

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "%": r"\%",
    "#": r"\#",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    # what wording and the rooms write in Unicode
    "\u00a0": "~",
    "—": "--",
    "–": "--",
    "−": r"\ensuremath{-}",
    "→": r"\ensuremath{\to}",
    "≥": r"\ensuremath{\ge}",
    "≤": r"\ensuremath{\le}",
    "·": r"\ensuremath{\cdot}",
    "×": r"\ensuremath{\times}",
    "…": r"\ldots{}",
    "Δ": r"\ensuremath{\Delta}",
    "ε": r"\ensuremath{\varepsilon}",
    "λ": r"\ensuremath{\lambda}",
    "κ": r"\ensuremath{\kappa}",
    "β": r"\ensuremath{\beta}",
    "ᵀ": r"\ensuremath{^{\top}}",
    "‖": r"\ensuremath{\Vert}",
    "∞": r"\ensuremath{\infty}",
    "✓": r"\ensuremath{\checkmark}",
    "±": r"\ensuremath{\pm}",
    "²": r"\ensuremath{^2}",
    "ᶜ": r"\ensuremath{^c}",
}
_SUPERSCRIPTS = dict(zip("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789"))
_FORMULA = re.compile(r"(?<!\\)\$(.+?)(?<!\\)\$", re.DOTALL)


def escape(text: str) -> str:
    r"""Plain text for LaTeX: its special characters, and the Unicode symbols of the report, as commands."""
    text = re.sub("10([⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)", lambda m: f"10\0{''.join(_SUPERSCRIPTS[c] for c in m[1])}\1", text)
    text = "".join(_SPECIAL.get(c, c) for c in " ".join(text.split(" ")))
    return re.sub("\0(.*?)\1", r"\\ensuremath{^{\1}}", text).replace("\n", " ")


def prose(text: str) -> str:
    """Text of a theory's record: formulas between dollars stay, the rest is escaped."""
    parts = _FORMULA.split(text)
    return "".join(f"${part}$" if i % 2 else escape(part) for i, part in enumerate(parts))


def latex(result: Result, *, theories: Iterable[Theory] | None = None) -> str:
    r"""The summary table: theory, data, quantity, prediction, measured, null, verdict, ``\cite``. Needs the package booktabs."""
    groups: dict[str, list[str]] = {}
    for line in summary(result, theories):
        row = line.row
        if row is None:
            cells = [wording.subject(line.view), "not measured", *[wording.NOTHING] * 3, "", ""]
            texts = [escape(cell) for cell in cells]
        else:
            name, reason = wording.verdict(row)
            quantity = (reason or row.get("note") or "") if wording.absent(row) else row["quantity"]
            source = cite(row.get("source"))
            texts = [escape(wording.subject(line.view)), prose(quantity)]
            texts += [
                escape(text) for text in (wording.prediction(row), wording.number(row["value"]), wording.number(row.get("null")), name)
            ]
            texts.append(f"\\cite{f'[{escape(source.locator)}]' if source.locator else ''}{{{source.key}}}" if source else "")
        groups.setdefault(line.theory.title, []).append(" & ".join(["", *texts]) + r" \\")
    body = []
    for title, lines in groups.items():
        body += [rf"\multicolumn{{8}}{{l}}{{\textbf{{{prose(title)}}}}} \\", *lines, r"\addlinespace"]
    data, steps = str(result.params.get("data", "the data")), result.params.get("steps")
    caption = f"What each theory predicts on {data}, and what was measured{f' (networks trained for {steps} steps)' if steps else ''}."
    return "\n".join(
        [
            "% needs \\usepackage{booktabs}; references are in references.bib",
            r"\begin{table}",
            r"\centering\small",
            rf"\caption{{{escape(caption)}}}",
            r"\begin{tabular}{@{}lllllrll@{}}",
            r"\toprule",
            r" & data & quantity & prediction & measured & null & verdict & source \\",
            r"\midrule",
            *body[:-1],
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )

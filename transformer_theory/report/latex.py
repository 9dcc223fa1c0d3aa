r"""The summary as a LaTeX table (booktabs) with ``\cite`` keys, to be pasted into a paper beside ``references.bib``."""

import re
from collections.abc import Iterable

from ..experiment import Result
from ..theory import Theory
from . import wording
from .views import RAW, cite, summary

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
    "³": r"\ensuremath{^3}",
    "⁴": r"\ensuremath{^4}",
    "₀": r"\ensuremath{_0}",
    "₁": r"\ensuremath{_1}",
    "₂": r"\ensuremath{_2}",
    "√": r"\ensuremath{\surd}",
    "η": r"\ensuremath{\eta}",
    "γ": r"\ensuremath{\gamma}",
    "’": "'",
    "ᶜ": r"\ensuremath{^c}",
}
_SUPERSCRIPTS = dict(zip("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789"))
_FORMULA = re.compile(r"(?<!\\)\$(.+?)(?<!\\)\$", re.DOTALL)


def escape(text: str) -> str:
    r"""Plain text for LaTeX: its special characters, and the Unicode symbols of the report, as commands."""
    text = re.sub(r"ΔR\b", "\2", text)
    text = re.sub("10([⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)", lambda m: f"10\0{''.join(_SUPERSCRIPTS[c] for c in m[1])}\1", text)
    text = "".join(_SPECIAL.get(c, c) for c in " ".join(text.split(" ")))
    text = text.replace("\2", r"\ensuremath{\Delta R}")
    return re.sub("\0(.*?)\1", r"\\ensuremath{^{\1}}", text).replace("\n", " ")


def prose(text: str) -> str:
    """Text of a record or row: formulas between dollars stay, ASCII mathematics becomes formulas, the rest is escaped."""
    parts = _FORMULA.split(wording.formulas(text))
    return "".join(f"${part}$" if i % 2 else escape(part) for i, part in enumerate(parts))


def latex(result: Result, *, theories: Iterable[Theory] | None = None) -> str:
    r"""The summary table: a block for each theory, in it each quantity with its ``\cite`` and a line for each view of the data: prediction,
    measured, null, verdict. As wide as the text. Needs the packages booktabs and tabularx."""
    blocks: list[list[str]] = []
    theory = quantity = None
    for line in summary(result, theories):
        if line.theory is not theory:
            theory, quantity = line.theory, None
            blocks.append([_across(rf"\textbf{{{prose(theory.title)}}}")])
        row, name = line.row, escape(wording.subject(line.view) if line.view == RAW else line.view)
        if row is None or wording.absent(row):
            verdict, reason = wording.verdict(row) if row else ("", "not measured")
            said = prose(reason or (row or {}).get("note") or "")
            blocks[-1].append(rf"{name} & \multicolumn{{3}}{{{_RAGGED}p{{0.4\linewidth}}}}{{{said}}} & {escape(verdict)} \\")
            continue
        source = cite(row.get("source"))
        if row["quantity"] != quantity:
            quantity = row["quantity"]
            cited = f"~\\cite{f'[{escape(source.locator)}]' if source.locator else ''}{{{source.key}}}" if source else ""
            blocks[-1].append(_across(rf"\emph{{{prose(quantity)}}}{cited}"))
        cells = (wording.prediction(row).replace("line:\u00a0", ""), wording.number(row["value"]), wording.number(row.get("null")))
        blocks[-1].append(" & ".join([name, *map(escape, cells), escape(wording.verdict(row)[0])]) + r" \\")
    data, steps = str(result.params.get("data", "the data")), result.params.get("steps")
    caption = (
        f"What each theory predicts on {data}, and what was measured: on the raw tokens, on the features of networks"
        f"{f' trained for {steps} steps' if steps else ''}, and in these networks themselves where the quantity says so. In brackets the "
        "line, which is the bound that decides the verdict. Null: what the quantity reads where the theory says nothing, on shuffled "
        "labels or along random directions. Outside assumptions: the theorem's assumptions do not hold there, so it is not judged."
    )
    columns = rf"@{{}}{_RAGGED}X{_RAGGED}p{{0.19\linewidth}}rr{_RAGGED}p{{0.23\linewidth}}@{{}}"
    return "\n".join(
        [
            "% needs \\usepackage{booktabs,tabularx}; references are in references.bib",
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{escape(caption)}}}",
            r"\footnotesize\setlength{\tabcolsep}{3pt}",
            rf"\begin{{tabularx}}{{\linewidth}}{{{columns}}}",
            r"\toprule",
            r"data & prediction (line) & measured & null & verdict \\",
            r"\midrule",
            *"\n\\addlinespace\n".join("\n".join(block) for block in blocks).splitlines(),
            r"\bottomrule",
            r"\end{tabularx}",
            r"\end{table}",
            "",
        ]
    )


_RAGGED = r">{\raggedright\arraybackslash}"


def _across(text: str) -> str:
    """A line over all columns."""
    return rf"\multicolumn{{5}}{{@{{}}{_RAGGED}p{{\linewidth}}@{{}}}}{{{text}}} \\"

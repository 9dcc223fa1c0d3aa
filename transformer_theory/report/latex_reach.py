r"""The reach of the theories in LaTeX: the sentences as a list, and the rungs as tables of at most a page,
with one line per rung.
"""

from collections.abc import Sequence

from ..core import format
from ..core.statistics import LEVEL
from .findings import interval_text, p_text, plain_number, short
from .math_text import escape, prose
from .reached import Reached, by_theory, statements, two_digits

MAX_LINES = 52  # lines of \scriptsize type on a page, without the caption
PREFIX = "tt"  # prefix of the names in \label
_HEADS = ("rung", "value", "null", "$A$", "$p$")
_MARKS = {
    "opposite": r"$^\dagger$",
    "undecided": r"$^\ddagger$",
    "explained": r"$^\sim$",
    "nulls disagree": r"$^{\neq}$",
}
_NEEDS = r"% needs \usepackage{booktabs,amsmath}; \input it, or copy it"


def reach(cells: Sequence[Reached], software: str = "") -> str:
    """Returns the sentences about the reach as an ``itemize`` list, followed by :func:`rungs`."""
    items = [rf"\item \textbf{{{prose(title)}}}: {prose(text)}." for title, text in statements(cells)]
    return "\n".join(
        [*([r"\begin{itemize}", *items, r"\end{itemize}", ""] if items else []), rungs(cells, software)]
    )


def rungs(cells: Sequence[Reached], software: str = "") -> str:
    """Returns the rungs of all theories as floats. A float holds whole theories, as many as fit on a page.

    Args:
        cells: the rungs.
        software: last sentence of the caption, which names version and commit (:func:`.origins.sentence`);
            may be empty.
    """
    pages: list[list[list[Reached]]] = [[]]
    for own in by_theory(cells):
        if pages[-1] and sum(len(group) + 2 for group in pages[-1]) + len(own) + 2 > MAX_LINES:
            pages.append([])
        pages[-1].append(own)
    tests = format.several(sum(cell.q is not None for cell in cells), "test")
    seeds = max((cell.seeds for cell in cells), default=0)
    caption = (
        r"How far the theories reach as assumptions are relaxed one after another. Mean over "
        rf"{format.several(seeds, 'seed')} with "
        r"95~\% interval, median of the null, agreement $A$ (0: chance, 1: prediction or, if there is "
        r"none, first rung) and $p$-value. "
        rf"\textbf{{Bold}}: beyond chance on the predicted side (FDR $\le$ {LEVEL:g} in each ladder, "
        rf"{tests}). $^\dagger$: opposite side. "
        r"$^\ddagger$: undecided. $^\sim$: a second null gives as much. $^{\neq}$: a second null puts the "
        r"value on the other side. "
        r"$^\ast$: covered by the theorem."
        f"{f' {prose(software)}' if software else ''}"
    )
    floats = []
    for number, groups in enumerate(pages):
        label = f"tab:{PREFIX}-reach"
        title = (
            rf"\caption{{{caption}}}\label{{{label}}}"
            if not number
            else rf"Table~\ref{{{label}}}, continued\\[4pt]"
        )
        lines = [line for group in groups for line in _block(group)]
        floats.append(
            "\n".join(
                [
                    r"\begin{table*}[tp]",
                    r"\centering\scriptsize\setlength{\tabcolsep}{4pt}\setlength{\belowcaptionskip}{4pt}",
                    title,
                    r"\begin{tabular}{@{}lllll@{}}",
                    r"\toprule",
                    rf"{' & '.join(_HEADS)} \\",
                    *lines,
                    r"\bottomrule",
                    r"\end{tabular}",
                    r"\end{table*}",
                ]
            )
        )
    return "\n".join([_NEEDS, *floats, ""])


def _block(cells: Sequence[Reached]) -> list[str]:
    """Returns the lines of one theory."""
    theory = cells[0].theory
    cited = rf"~\cite{{{theory.sources[0].key}}}" if theory.sources and theory.sources[0].known else ""
    heading = (
        rf"\multicolumn{{5}}{{@{{}}l}}{{\textbf{{{prose(theory.title)}}}{cited}: "
        rf"\emph{{{prose(cells[0].row.quantity)}}}}} \\"
    )
    return [r"\midrule", heading, r"\addlinespace[1pt]", *map(_line, cells)]


def _line(cell: Reached) -> str:
    row, mark = cell.row, r"$^\ast$" if cell.covered else ""
    name = f"{escape(cell.name)}{mark}"
    if row.value is None:
        return rf"{name} & \multicolumn{{4}}{{l@{{}}}}{{{prose(row.reason)}}} \\"
    value = escape(short(row.value, row))
    value = (
        rf"\textbf{{{value}}}" if cell.outcome == "beyond chance" else value + _MARKS.get(cell.outcome, "")
    )
    null = format.NOTHING if row.null is None or not row.null.draws else plain_number(row.null.median, row)
    agreement = format.NOTHING if row.agreement is None else cell.number
    if cell.interval is not None:
        agreement += f" [{two_digits(cell.interval[0])}, {two_digits(cell.interval[1])}]"
    p = format.NOTHING if row.p is None else p_text(row.p)
    return (
        rf"{name} & {value} {escape(interval_text(row))} & {escape(null)} & {escape(agreement)} & "
        rf"{escape(p)} \\"
    )

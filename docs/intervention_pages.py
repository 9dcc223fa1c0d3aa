"""The page of the documentation about interventions.

``python docs/intervention_pages.py DOCS [RESULT ...]`` stores results of ``transformer-theory intervene`` as
DOCS/interventions/NAME, with fewer digits of their draws. From them the script writes interventions.svg in
DOCS/figures and DOCS/intervention_tables.md. A network that is measured again takes the place of its former
result.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from transformer_theory.comparison.interventions import judged_interventions
from transformer_theory.core.files import write_together
from transformer_theory.core.format import of_row, p_value, portable_command, slug
from transformer_theory.core.judgement import Judged
from transformer_theory.core.plotting import svg
from transformer_theory.core.result import Result
from transformer_theory.core.table import Table
from transformer_theory.report import tables
from transformer_theory.report.interventions import picture
from transformer_theory.report.md import table as formatted
from transformer_theory.report.md import text
from transformer_theory.theories import list_theories

FOLDER = "interventions"
DIGITS = 5  # significant digits of the draws that are kept
SUMMARY = (
    "The change of the first measure on the sequences of the draws, in brackets that of the first control "
    "on the same sequences, below it the adjusted p-value. Bold: as predicted; italic: opposite; "
    "a dash: the network has no place for the change, or the intervention needs another kind of network. "
    "Changes of agreement and accuracy are in per cent, those of losses in nats."
)


def pages(results: list[Result]) -> dict[str, str]:
    """Returns the figure and the tables by file name.

    Raises:
        ValueError: no result has an intervention.
    """
    judged = {str(result.settings["model"]): judged_interventions(result) for result in results}
    figure = picture(judged, list_theories())
    if figure is None:
        raise ValueError("expected results of intervene, got none with a measured intervention")
    parts = ["### All networks", "", SUMMARY, "", *summary(judged), ""]
    legend = tables.judged_legend([each for own in judged.values() for each in own], tables.OF_CHANGES)
    parts += [legend, ""]
    for result in results:
        name, settings, origin = str(result.settings["model"]), result.settings, result.provenance
        said = (
            f"{settings['sequences']} sequences, at most {settings['draws']} draws of each control, "
            f"{settings['minutes']:g} minutes; {origin.get('machine', '')}, "
            f"{str(origin.get('date', ''))[:10]}"
        )
        parts += [
            f"### {text(name)}",
            "",
            f"*{text(said)}.*",
            "",
            formatted(
                replace(tables.interventions(judged[name], list_theories()), caption="", legend="")
            ).strip(),
            "",
        ]
    return {
        "figures/interventions.svg": svg(figure) + "\n",
        "intervention_tables.md": "\n".join(parts) + "\n",
    }


def summary(judged: Mapping[str, Sequence[Judged]]) -> list[str]:
    """Returns the lines of a table: one line per intervention, one column per network."""
    lines = [
        "| " + " | ".join(["theory", "change", *map(text, judged)]) + " |",
        "| :-- " * 2 + "| --: " * len(judged) + "|",
    ]
    for theory in list_theories():
        for one in theory.interventions:
            cells = []
            for own in judged.values():
                found = [
                    each for each in own if (each.row.theory, each.row.quantity) == (theory.name, one.name)
                ]
                cells.append(_cell(found[0]) if found else "")
            lines.append("| " + " | ".join([text(theory.short_title), text(one.name), *cells]) + " |")
    return lines


def _cell(judged: Judged) -> str:
    """Returns the effect, that of the first control, and the adjusted p-value; bold as predicted,
    italic if opposite.
    """
    row = judged.row
    if row.value is None:
        return "\N{EM DASH}"
    null = row.nulls[0] if row.nulls else None
    value = of_row(row.value if null is None else null.with_value(row.value).value, row)
    control = "" if null is None else f" ({of_row(null.median, row)})"
    q = judged.other_q if judged.outcome == "opposite" else judged.q
    mark = {"as predicted": "**", "opposite": "*"}.get(judged.outcome, "")
    return f"{mark}{value}{mark}{control}" + ("" if q is None else f"<br>{p_value(q)}")


def stored(docs: Path, folder: str = FOLDER) -> list[Result]:
    """Returns the results that are stored in a folder of the documentation, by name."""
    return [Result.load(path) for path in sorted((docs / folder).iterdir()) if path.is_dir()]


def shortened(result: Result) -> Result:
    """Returns a result with rounded draws. The effects that are compared with them are rounded alike: a draw
    that equals one still does.
    """

    def rounded(x: float) -> float:
        return float(f"{x:.{DIGITS}g}")

    rows = []
    for row in result.table:
        nulls = [null if row.value is None else null.with_value(row.value) for null in row.nulls]
        short = tuple(
            replace(
                null,
                draws=tuple(map(rounded, null.draws)),
                value=None if null.value is None else rounded(null.value),
            )
            for null in nulls
        )
        rows.append(replace(row, nulls=short))
    record = {"command": portable_command(result.provenance)} if "command" in result.provenance else {}
    return replace(result, table=Table(rows), provenance=result.provenance | record)


def main(arguments: list[str]) -> None:
    """Writes the page.

    Raises:
        ValueError: the arguments or the results do not fit.
    """
    if not arguments:
        raise ValueError("expected the folder of the documentation, and folders of results; got nothing")
    docs = Path(arguments[0])
    for folder in arguments[1:]:
        new = shortened(Result.load(folder))
        pages([new])  # before anything is replaced
        new.save(docs / FOLDER / slug(str(new.settings["model"])), overwrite=True)
    write_together({docs / name: text.encode() for name, text in pages(stored(docs)).items()})


if __name__ == "__main__":
    main(sys.argv[1:])

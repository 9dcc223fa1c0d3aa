"""The page of the documentation about trained networks.

``python docs/atlas_pages.py DOCS [NAME=RESULT ...]`` stores the headlines and the interventions of results of
``transformer-theory measure --interventions`` as DOCS/atlas/NAME, with fewer digits of their draws. From them
the script writes atlas.svg and atlas_column.svg in DOCS/figures, atlas_networks.md, atlas_findings.md,
atlas_table.md and atlas_numbers.md in DOCS, and table.jsonl and table.tex in DOCS/atlas.
A network that is measured again takes the place of its former result.
"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import intervention_pages

from transformer_theory.comparison.judged import Findings, findings
from transformer_theory.comparison.pooling import aggregate
from transformer_theory.comparison.pretrained import headline_rows
from transformer_theory.core.files import write_together
from transformer_theory.core.format import counted, slug
from transformer_theory.core.judgement import Judged
from transformer_theory.core.plotting import svg
from transformer_theory.core.result import Result
from transformer_theory.core.statistics import EQUAL_SCALE
from transformer_theory.core.table import Table, grouped
from transformer_theory.report import side_by_side, tables, tex
from transformer_theory.report.interventions import found_in
from transformer_theory.report.md import table as formatted
from transformer_theory.report.md import text
from transformer_theory.report.origins import sentence
from transformer_theory.report.sentences import statements
from transformer_theory.theories import list_theories

FOLDER = "atlas"
ByPlace = Mapping[tuple[str, str], Sequence[Judged]]  # judged interventions by theory and network


def summarised(result: Result, name: str) -> Result:
    """Returns the headlines and the interventions of a measured network, under another name."""
    rows = [*headline_rows(result, list_theories()).values(), *result.select(kind="intervention")]
    return replace(
        intervention_pages.shortened(
            replace(result, table=Table([replace(row, model=name) for row in rows]))
        ),
        settings={**result.settings, "model": name},
        arrays={},
    )


def pages(results: Sequence[Result]) -> dict[str, str]:
    """Returns the figure, the tables and the LaTeX by file name.

    Raises:
        ValueError: there are fewer than two networks.
    """
    combined = aggregate(list(results))
    found, changed = findings(combined), found_in(results)
    side = side_by_side.of(found, changed)
    if side is None:
        raise ValueError(f"expected results of at least two networks, got {len(results)}")
    by_place = grouped(changed, lambda each: (each.row.theory, each.row.model))
    said = [
        f"- **{text(title)}**: {text(words)}." for title, words in statements(found, most=len(found.theories))
    ]
    table, numbers = side_by_side.table(side), tables.findings(found, changed=changed)
    assert numbers is not None  # there are findings
    drawn = {"atlas": side_by_side.figure(side), "atlas_column": side_by_side.figure(side, column=True)}
    return {
        **{f"figures/{name}.svg": f"{svg(figure)}\n" for name, figure in drawn.items()},
        "atlas_networks.md": "\n".join([*_networks(results), ""]),
        "atlas_findings.md": "\n".join([*said, ""]),
        "atlas_table.md": f"{formatted(replace(table, caption='')).strip()}\n",
        "atlas_numbers.md": f"{formatted(replace(numbers, caption='')).strip()}\n",
        f"{FOLDER}/table.jsonl": "".join(json.dumps(cell) + "\n" for cell in cells(found, by_place, results)),
        f"{FOLDER}/table.tex": tex.floats(replace(table, name="atlas"), sentence(combined.results)) + "\n",
    }


def _networks(results: Sequence[Result]) -> Iterator[str]:
    """Yields the lines of a table of the networks, with the command that measured each."""
    yield "| network | parameters | inputs | copies | measured with |"
    yield "| :-- | --: | :-- | --: | :-- |"
    for result in results:
        copies = max(
            (len(null.draws) for row in result.table for null in row.nulls if null.kind == EQUAL_SCALE),
            default=0,
        )
        settings, record = result.settings, result.provenance
        command = f"`{record['command']}`" if "command" in record else ""
        cells = (
            text(str(settings["model"])),
            f"{settings['parameters']:,}" if "parameters" in settings else "",
            text(str(settings.get("inputs", ""))),
            str(copies),
            f"{command} {str(record.get('date', ''))[:10]}, {record.get('machine', '')}",
        )
        yield "| " + " | ".join(cells) + " |"


def cells(found: Findings, by_place: ByPlace, results: Sequence[Result]) -> Iterator[dict[str, Any]]:
    """Yields the cells as JSON objects: theory, network, quantity, value with interval, each null, effect,
    adjusted p-value and outcome, the outcomes of the interventions, and the command.
    """
    commands = {str(each.settings["model"]): each.provenance.get("command", "") for each in results}
    for each in found.all:
        row, judged = each.judged.row, each.judged
        yield {
            "theory": each.theory.name,
            "network": each.model,
            "quantity": row.quantity,
            "unit": row.unit,
            "value": row.value,
            "interval": row.interval,
            "nulls": [
                {
                    "kind": null.kind,
                    "draws": len(null.draws),
                    "median": null.median,
                    "range": [null.low, null.high],
                }
                for null in row.nulls
                if null.draws
            ],
            "effect": judged.effect,
            "q": judged.q,
            "outcome": judged.outcome,
            "reason": judged.reason,
            "interventions": {
                one.row.quantity: one.outcome for one in by_place.get((each.theory.name, each.model), ())
            },
            "command": commands.get(each.model, ""),
        }


def stored(docs: Path) -> list[Result]:
    """Returns the stored networks, from the smallest to the largest."""
    return sorted(intervention_pages.stored(docs, FOLDER), key=lambda each: each.settings["parameters"])


def main(arguments: list[str]) -> None:
    """Writes the page.

    Raises:
        ValueError: the arguments or the results do not fit.
    """
    if not arguments:
        raise ValueError("expected the folder of the documentation and NAME=RESULT of networks; got nothing")
    docs = Path(arguments[0])
    for given in arguments[1:]:
        name, equals, folder = given.partition("=")
        if not equals:
            raise ValueError(f"expected NAME=RESULT, got {given!r}")
        summarised(Result.load(Path(folder)), name).save(docs / FOLDER / slug(name), overwrite=True)
    results = stored(docs)
    write_together({docs / name: text.encode() for name, text in pages(results).items()})
    print(f"{counted(len(results), 'network')}: {docs / 'atlas_table.md'}")


if __name__ == "__main__":
    main(sys.argv[1:])

"""The page of the documentation about trained networks.

``python docs/atlas_pages.py DOCS [NAME=RESULT ...]`` stores the headlines and the interventions of results of
``transformer-theory measure --interventions`` as DOCS/atlas/NAME, with fewer digits of their draws. From them
the script writes atlas.svg and atlas_column.svg in DOCS/figures, atlas_networks.md, atlas_findings.md,
atlas_table.md, atlas_numbers.md and length_sinks.md in DOCS, and table.jsonl and table.tex in DOCS/atlas.
A network that is measured again takes the place of its former result.
"""

import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import intervention_pages

from transformer_theory.comparison.judged import Findings, findings
from transformer_theory.comparison.pooling import NETWORK, aggregate
from transformer_theory.comparison.pretrained import headline_rows
from transformer_theory.core.files import write_together
from transformer_theory.core.format import amount, bounds, counted, of_row, slug
from transformer_theory.core.judgement import Judged
from transformer_theory.core.measurement import Measurement
from transformer_theory.core.plotting import svg
from transformer_theory.core.result import Result
from transformer_theory.core.statistics import EQUAL_SCALE, over_heads
from transformer_theory.core.table import Table, grouped
from transformer_theory.metrics import named_tokens
from transformer_theory.report import side_by_side, tables, tex
from transformer_theory.report.interventions import found_in
from transformer_theory.report.md import table as formatted
from transformer_theory.report.md import text
from transformer_theory.report.origins import bibtex, sentence
from transformer_theory.report.token_sentences import token_name
from transformer_theory.theories import list_theories
from transformer_theory.theories.length.in_networks import NAME

FOLDER = "atlas"
ON_TOKENS = (
    named_tokens.SINK_MASS,
    named_tokens.SINK_VALUE,
    named_tokens.FIRST_MASS,
    named_tokens.PREVIOUS_MASS,
    named_tokens.OUTLIERS,
    named_tokens.LARGEST_NORM,
)
MOST_PLACES = 2  # places of sinks that are named
OF_SINKS = {
    "value set to zero": "value of the sink set to zero",
    "weight moved": "weight of the sink moved to other keys",
}
ByPlace = Mapping[tuple[str, str], Sequence[Judged]]  # judged interventions by theory and network


def summarised(result: Result, name: str) -> Result:
    """Returns the headlines, the interventions and the means over heads of the quantities of
    :data:`ON_TOKENS` of a measured network, under another name.
    """
    rows = [*headline_rows(result, list_theories()).values(), *result.select(kind="intervention")]
    rows += _token_means(result)
    return replace(
        intervention_pages.shortened(
            replace(result, table=Table([replace(row, model=name) for row in rows]))
        ),
        settings={**result.settings, "model": name},
        arrays={},
    )


def _token_means(result: Result) -> Iterator[Measurement]:
    """Yields the means over layers and heads; the places of the sinks stand in the note of their weight."""
    for quantity in ON_TOKENS:
        rows = [row for row in result.select(kind=NETWORK, quantity=quantity) if row.value is not None]
        if not rows:
            continue
        note = ""
        if quantity == named_tokens.SINK_MASS:
            places = Counter(
                row.value for row in result.select(kind=NETWORK, quantity=named_tokens.SINK_PLACE)
            )
            found = places.most_common(MOST_PLACES)
            names = [
                f"{token_name(place, result.settings)} in {count}"
                for place, count in found
                if place is not None
            ]
            note = f"{', '.join(names)} of {counted(len(rows), 'head')}"
        yield replace(over_heads(rows), note=note)


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
    said = [f"- **{text(title)}**: {text(words)}." for title, words in side_by_side.statements(side)]
    table, numbers = side_by_side.table(side), tables.findings(found, changed=changed)
    assert numbers is not None  # there are findings
    drawn = {"atlas": side_by_side.figure(side), "atlas_column": side_by_side.figure(side, column=True)}
    return {
        **{f"figures/{name}.svg": f"{svg(figure)}\n" for name, figure in drawn.items()},
        "atlas_networks.md": "\n".join([*_networks(results), ""]),
        "length_sinks.md": "\n".join([*_sinks(results, by_place), ""]),
        "atlas_findings.md": "\n".join([*said, ""]),
        "atlas_table.md": f"{formatted(replace(table, caption='')).strip()}\n",
        "atlas_numbers.md": f"{formatted(replace(numbers, caption='')).strip()}\n",
        f"{FOLDER}/table.jsonl": "".join(json.dumps(cell) + "\n" for cell in cells(found, by_place, results)),
        f"{FOLDER}/references.bib": bibtex(list(results)),
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
        inputs = str(settings.get("inputs", ""))
        given, used = inputs.partition(" ")[0], settings["sequences"]
        inputs = f"{used} of {inputs}" if given.isdigit() and int(given) > used else inputs
        command = f"`{record['command']}`" if "command" in record else ""
        cells = (
            text(str(settings["model"])),
            f"{settings['parameters']:,}" if "parameters" in settings else "",
            text(inputs),
            str(copies),
            f"{command} {str(record.get('date', ''))[:10]}, {record.get('machine', '')}",
        )
        yield "| " + " | ".join(cells) + " |"


def _sinks(results: Sequence[Result], by_place: ByPlace) -> Iterator[str]:
    """Yields the lines of a table of sinks and of tokens whose norm stands out, with their interventions."""
    heads = [
        "network",
        "weight of the sink",
        "norm of its value",
        "outlier tokens",
        "largest norm",
        *OF_SINKS,
    ]
    yield "| " + " | ".join(heads) + " |"
    yield "| :-- " + "| --: " * (len(heads) - 1) + "|"
    quantities = (
        named_tokens.SINK_MASS,
        named_tokens.SINK_VALUE,
        named_tokens.OUTLIERS,
        named_tokens.LARGEST_NORM,
    )
    for result in results:
        model, cells, where = str(result.settings["model"]), [], ""
        for quantity in quantities:
            row = next(iter(result.select(kind=NETWORK, quantity=quantity)), None)
            if row is None or row.value is None:
                cells.append("\N{EM DASH}")
                continue
            where = row.note or where
            null = next((each for each in row.nulls if each.kind == EQUAL_SCALE and each.draws), None)
            copies = "" if null is None else f"<br>{bounds((null.low, null.high), row.unit)}"
            # on the sequences of the copies: the largest mean weight over few sequences is biased
            value = row.value if null is None or null.value is None else null.value
            cells.append(f"**{amount(value, row.unit)}**{copies}")
        changed = {each.row.quantity: each for each in by_place.get((NAME, model), ())}
        for title in OF_SINKS:
            each = changed.get(OF_SINKS[title])
            cells.append(
                "\N{EM DASH}"
                if each is None or each.row.value is None
                else f"{of_row(each.row.value, each.row)}<br>{each.outcome}"
            )
        yield "| " + " | ".join([f"{text(model)}<br>{text(where)}", *cells]) + " |"


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

"""The pages of the documentation about the reach of the theories.

``python docs/reach_pages.py DOCS [RESULT ...]`` stores results of ``transformer-theory reach`` as DOCS/reach,
with fewer digits of the null draws of the ladders' quantities and without the other draws. From it the script
writes reach.svg, reach_overview.svg and the ladders of some theories (crate_ladder.svg) in DOCS/figures,
DOCS/reach_findings.md and DOCS/reach_rungs.md.
Theories that no RESULT has measured keep the rungs stored there, so one theory can be measured again alone.
"""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import atlas_pages

from transformer_theory.comparison.judged import RungResult, by_theory, rung_results
from transformer_theory.comparison.pooling import aggregate
from transformer_theory.comparison.pretrained import headline_rows
from transformer_theory.comparison.reach import described, pretrained_rung
from transformer_theory.core.files import write_together
from transformer_theory.core.format import portable_command
from transformer_theory.core.ladder import PRETRAINED_COLUMN
from transformer_theory.core.measurement import Measurement
from transformer_theory.core.plotting import svg
from transformer_theory.core.result import Result
from transformer_theory.core.table import Table, grouped
from transformer_theory.report.judged_figures import reach_map, reach_overview
from transformer_theory.report.ladder_figure import ladder
from transformer_theory.report.md import table as formatted
from transformer_theory.report.md import text
from transformer_theory.report.sentences import reach_statements
from transformer_theory.report.tables import reach
from transformer_theory.theories import list_theories

FOLDER = "reach"
OF_LADDERS = "digits)"  # end of the names of networks like those of the ladders
# theories whose page shows their ladder
LADDERS = ("attention_svm", "scan_snap", "joma", "crate", "rate_reduction")
DIGITS = 5  # significant digits of the null draws that are kept


def with_networks(result: Result, networks: Sequence[Result]) -> Result:
    """Returns a reach with rungs of networks that were measured by themselves, in the last column;
    those of the digits, on which the ladders train networks of their own, are left out.
    """
    ladders = {name: dict(ladder) for name, ladder in result.settings["ladders"].items()}
    rows = list(result.table)
    known = {theory.name: theory for theory in list_theories()}
    for network in networks:
        if str(network.settings["model"]).endswith(OF_LADDERS):
            continue
        for name, row in headline_rows(network, list_theories()).items():
            if name not in ladders:
                continue
            rung = pretrained_rung(known[name], row.model)
            ladders[name]["rungs"] = ladders[name]["rungs"] + described(known[name], [rung])["rungs"]
            rows.append(replace(row, kind="rung", rung=rung.name, seed=0, at={}, verdict="not covered"))
    return replace(result, settings={**result.settings, "ladders": ladders}, table=Table(rows))


def pages(result: Result, networks: Sequence[Result] = ()) -> dict[str, str]:
    """Returns the figures and the texts by file name.

    Args:
        result: a result of reach.
        networks: results of trained networks (:mod:`atlas_pages`), whose headlines are further rungs.
    Raises:
        ValueError: the result holds no rungs.
    """
    if "ladders" not in result.settings:
        raise ValueError(f"expected a result of reach, got {result.name} without rungs")
    records = _records(result)
    result = with_networks(result, networks)
    rungs = rung_results(aggregate(result))
    figure, overview, numbers = reach_map(rungs), reach_overview(rungs), reach(rungs)
    if figure is None or overview is None or numbers is None:
        raise ValueError(f"expected a result of reach, got {result.name} without rungs")
    seeds, inputs = len(result.settings["seeds"]), ", ".join(result.settings.get("inputs", {}).values())
    lines = [f"- **{text(title)}**: {text(sentence)}." for title, sentence in reach_statements(rungs)]
    runs = grouped(
        records,
        lambda name: (
            f"{str(records[name].get('date', ''))[:10]}, commit {str(records[name].get('commit', ''))[:8]}"
        ),
    )
    measured = "; ".join(f"{run}: {', '.join(names)}" for run, names in sorted(runs.items()))
    machine = result.provenance.get("machine", "")
    origin = f"*{seeds} seeds, {len(rungs)} rungs; {machine}{f'; {inputs}' if inputs else ''}. {measured}.*"
    return {
        "figures/reach.svg": svg(figure) + "\n",
        "figures/reach_overview.svg": svg(overview) + "\n",
        **_ladders(rungs),
        "reach_findings.md": "\n".join([*lines, "", origin, ""]),
        "reach_rungs.md": formatted(numbers) + "\n",
    }


def _ladders(rungs: Sequence[RungResult]) -> dict[str, str]:
    """Returns the figures of the ladders by file name, without the networks that were trained elsewhere."""
    figures = {
        own[0].theory.name: ladder([rung for rung in own if rung.column != PRETRAINED_COLUMN])
        for own in by_theory(rungs)
        if own[0].theory.name in LADDERS
    }
    return {
        f"figures/{name}_ladder.svg": svg(figure) + "\n"
        for name, figure in figures.items()
        if figure is not None
    }


def _shortened(row: Measurement, quantities: set[str]) -> Measurement:
    """Returns a row with rounded draws if it has a ladder's quantity, and without draws otherwise."""
    if row.quantity not in quantities:
        return replace(row, nulls=())
    return replace(row, nulls=tuple(replace(null, draws=_rounded(null.draws)) for null in row.nulls))


def _rounded(draws: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(float(f"{draw:.{DIGITS}g}") for draw in draws)


def _records(result: Result) -> dict[str, dict]:
    """Returns date and commit of the measurement of each theory."""
    own = {key: result.provenance[key] for key in ("date", "commit") if key in result.provenance}
    return dict.fromkeys(result.settings["ladders"], own) | result.settings.get("measured", {})


def merged(stored: Result, new: Result) -> Result:
    """Returns the stored result with the theories of a new one in place of their former rungs.

    Raises:
        ValueError: the seeds differ.
    """
    if stored.settings["seeds"] != new.settings["seeds"]:
        raise ValueError(
            f"expected the seeds {stored.settings['seeds']}, got {new.settings['seeds']}; measure the same "
            "seeds"
        )
    ladders = stored.settings["ladders"] | new.settings["ladders"]
    order = {theory.name: number for number, theory in enumerate(list_theories())}
    names = sorted((name for name in ladders if name in order), key=order.__getitem__)
    rows = [row for row in stored.table if row.theory not in new.settings["ladders"]] + list(new.table)
    settings = stored.settings | {
        "theories": names,
        "ladders": {name: ladders[name] for name in names},
        "measured": {
            name: record for name, record in (_records(stored) | _records(new)).items() if name in names
        },
    }
    table = Table(sorted((row for row in rows if row.theory in names), key=lambda row: order[row.theory]))
    return replace(
        stored, settings=settings, table=table, sources=tuple(dict.fromkeys(stored.sources + new.sources))
    )


def main(arguments: list[str]) -> None:
    """Writes the pages.

    Raises:
        ValueError: the arguments or the results do not fit.
    """
    if not arguments:
        raise ValueError("expected the folder of the documentation, and folders of results; got nothing")
    docs, stored = Path(arguments[0]), Path(arguments[0]) / FOLDER
    result = Result.load(stored) if stored.exists() else None
    for folder in arguments[1:]:
        new = Result.load(folder)
        pages(new)  # before anything is replaced
        quantities = {ladder["quantity"] for ladder in new.settings["ladders"].values()}
        record, rows = (
            {"command": portable_command(new.provenance)},
            (_shortened(row, quantities) for row in new.table),
        )
        new = replace(new, table=Table(rows), provenance=new.provenance | record)
        result = new if result is None else merged(result, new)
    if result is None:
        raise ValueError(
            f"expected a stored result in {stored}, got none; name the results that the pages are made from"
        )
    if len(arguments) > 1:
        result.save(stored, overwrite=True)
    write_together(
        {
            docs / name: text.encode()
            for name, text in pages(Result.load(stored), atlas_pages.stored(docs)).items()
        }
    )


if __name__ == "__main__":
    main(sys.argv[1:])

"""The page of a room that sets its stored results beside what was published: ``python docs/figure_table.py ROOM``.

Reads ``runs/figures/EXPERIMENT`` (written by ``transformer-theory run EXPERIMENT --out ...``; ``make figures`` runs them all) and writes
``docs/theories/ROOM_figures.md``: a section for each experiment, in it a line for each row whose reference is printed, read off a figure or
recomputed, and one for each limit. What a theory says of exactly the quantity measured is left to the results.
"""

import argparse
import re
import sys
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path

from transformer_theory.core.experiment import Experiment, summary
from transformer_theory.core.result import Result
from transformer_theory.core.files import replacing
from transformer_theory.core.measurement import BASIS_WORDS, Basis, Row
from transformer_theory.theories import theory

ROOT = Path(__file__).parents[1]
PUBLISHED: tuple[Basis, ...] = ("printed", "figure", "recomputed")
ORIGINS = """\
- {printed}: by the paper, or by its released code;
- {figure}: to the thickness of its line;
- {recomputed}: from the published settings by an independent route (a general convex solver, plain automatic differentiation), as no number
  was published;
- {limit}: what the quantity tends to, so a finite run need not have reached it.
""".format(**BASIS_WORDS)


def page(room: str, results: Path) -> str:
    """The whole page in Markdown.

    Args:
        results: the folder that holds a stored result for each experiment, under the experiment's name.
    Raises:
        ValueError: an unknown room, no result of its experiments, or one that cannot be read.
    """
    kinds = theory(room).experiments
    there = {kind: Result.load(results / kind.name) for kind in kinds if (results / kind.name).is_dir()}
    if not there:
        raise ValueError(f"{results} must hold results of {room}, got none; run `make figures ROOM={room}`")
    missing = [kind.name for kind in kinds if kind not in there]
    head = [
        f"# {theory(room).title}: our numbers beside the published ones",
        f"Made from stored results by `python docs/figure_table.py {room}`; `make figures ROOM={room}` runs the experiments first.\n"
        "The difference is ours less the reference; below half of the reference's last digit it says nothing. A reference is",
        ORIGINS.rstrip(),
    ]
    if missing:
        head.append(f"Without a result here: {', '.join(f'`{name}`' for name in missing)}.")
    return "\n\n".join([*head, overview(there), *(section(kind, result) for kind, result in there.items())]).rstrip() + "\n"


def overview(there: dict[type[Experiment], Result]) -> str:
    """One line an experiment: how many references of each origin, and what it cost."""
    lines = []
    for kind, result in there.items():
        counts = {basis: sum(row.get("basis") == basis for row in references(result)) for basis in (*PUBLISHED, "limit")}
        lines.append([f"`{kind.name}`", *(str(n or "") for n in counts.values()), seconds(result), str(processes(result))])
    return table(["experiment", *(BASIS_WORDS[basis] for basis in (*PUBLISHED, "limit")), "seconds", "processes"], lines)


def section(kind: type[Experiment], result: Result) -> str:
    """What the experiment shows, how it was run, and its lines: limits after the rest."""
    made, count = result.provenance, processes(result)
    where = f"{seconds(result)} s in {count} process{'es' * (count > 1)} on {made['machine']}"
    commit = f" · commit {made['commit'][:7]}{', with changes' if made.get('dirty') else ''}" if "commit" in made else ""
    parts = [f"## `{kind.name}`", summary(kind), f"`{made['command']}` · {where} · {made['date'][:10]}{commit}"]
    usual = {field.name: getattr(kind(), field.name) for field in fields(kind)}
    usual = {name: list(value) if isinstance(value, tuple) else value for name, value in usual.items()}
    if changed := [f"{name} = {value} (default: {usual[name]})" for name, value in result.params.items() if value != usual[name]]:
        parts.append(f"Not the default settings: {', '.join(changed)}.")
    rows = sorted(references(result), key=lambda row: row.get("basis") == "limit")
    parts.append(table(["quantity", "reference", "which is", "ours", "difference"], map(line, rows)) if rows else "No reference.")
    return "\n\n".join(parts)


def references(result: Result) -> list[Row]:
    """Rows that stand beside a published number, its recomputation or a limit."""
    return [row for row in result.table if row.get("predicted") is not None and row.get("basis") in (*PUBLISHED, "limit")]


def line(row: Row) -> list[str]:
    """The cells of one row; its step stands behind the quantity."""
    value, reference, basis, step = row["value"], row.get("predicted"), row.get("basis"), row.get("step")
    assert reference is not None, "only rows of references() have lines"
    assert basis is not None, "only rows of references() have lines"
    quantity = row["quantity"] + (f", step {step:,}" if step is not None else "")
    ours, difference = ("none", "") if value is None else (f"{value:.7g}", f"{value - reference:.1e}" if value != reference else "0")
    return [escape(quantity), f"{reference:.15g}", BASIS_WORDS[basis], ours, difference]


def seconds(result: Result) -> str:
    return f"{result.provenance['seconds']:.2g}" if result.provenance["seconds"] < 10 else f"{result.provenance['seconds']:.0f}"


def processes(result: Result) -> int:
    return result.provenance["workers"] or 1


def table(heads: list[str], lines: Iterable[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heads, ["---"] * len(heads), *lines))


def escape(text: str) -> str:
    """Plain text for a cell of a Markdown table."""
    return re.sub(r"([\\`*_\[\]<>|$])", r"\\\1", text)


def main(argv: list[str]) -> int:
    """Writes the page of one room; returns 2 with one line if it cannot."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("room")
    parser.add_argument("--results", type=Path, default=ROOT / "runs" / "figures")
    parser.add_argument("--out", type=Path, help="default: docs/theories/ROOM_figures.md")
    options = parser.parse_args(argv)
    out = options.out or ROOT / "docs" / "theories" / f"{options.room}_figures.md"
    try:
        text = page(options.room, options.results)
        with replacing(out) as draft:
            draft.write_text(text, encoding="utf-8")
    except (ValueError, OSError) as error:
        print(f"figure_table: {error}", file=sys.stderr)
        return 2
    print(out)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

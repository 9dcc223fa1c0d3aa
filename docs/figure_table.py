"""The page of a theory with its stored results beside the published numbers: ``python docs/figure_table.py
THEORY``.

Reads ``runs/figures/EXPERIMENT`` (written by ``transformer-theory run EXPERIMENT --out ...``; ``make
figures`` runs them all) and writes ``docs/theories/THEORY_figures.md``: a section per experiment, with a line
for each row whose reference is printed, read off a figure or recomputed, and one for each limit. The theory's
own values of a quantity are left to the results.
"""

import argparse
import sys
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path

from transformer_theory.core.experiment import Experiment, summary
from transformer_theory.core.files import replacing
from transformer_theory.core.format import label, place
from transformer_theory.core.measurement import Basis, Measurement
from transformer_theory.core.result import Result
from transformer_theory.report.md import text
from transformer_theory.report.number_tables import BASIS_TEXT
from transformer_theory.theories import theory

ROOT = Path(__file__).parents[1]
PUBLISHED: tuple[Basis, ...] = ("printed", "figure", "recomputed")
TEXT = BASIS_TEXT | {"limit": "limit"}
ORIGINS = """\
- {printed}: by the paper, or by its released code;
- {figure}: to the thickness of its line;
- {recomputed}: from the published settings by an independent route (a general convex solver, plain automatic differentiation), as no number
  was published;
- {limit}: the limit of the quantity, which a finite run need not have reached.
""".format(**TEXT)  # noqa: E501


def page(name: str, results: Path) -> str:
    """The whole page in Markdown.

    Args:
        results: the folder that holds a stored result for each experiment, under the experiment's name.
    Raises:
        ValueError: an unknown theory, no result of its experiments, or one that cannot be read.
    """
    kinds = theory(name).experiments
    stored = {kind: Result.load(results / kind.name) for kind in kinds if (results / kind.name).is_dir()}
    if not stored:
        raise ValueError(f"{results} must hold results of {name}, got none; run `make figures THEORY={name}`")
    missing = [kind.name for kind in kinds if kind not in stored]
    head = [
        f"# {theory(name).title}: our numbers beside the published ones",
        f"Made from stored results by `python docs/figure_table.py {name}`; `make figures THEORY={name}` "
        "runs the experiments first.\n"
        "The difference is our value minus the reference; below half of the reference's last digit it means "
        "nothing. A reference is",
        ORIGINS.rstrip(),
    ]
    if missing:
        head.append(f"Without a stored result: {', '.join(f'`{kind}`' for kind in missing)}.")
    return (
        "\n\n".join(
            [*head, overview(stored), *(section(kind, result) for kind, result in stored.items())]
        ).rstrip()
        + "\n"
    )


def overview(stored: dict[type[Experiment], Result]) -> str:
    """One line per experiment: how many references of each origin, and how long it took."""
    lines = []
    for kind, result in stored.items():
        counts = {
            basis: sum(row.basis == basis for row in references(result)) for basis in (*PUBLISHED, "limit")
        }
        lines.append(
            [
                f"`{kind.name}`",
                *(str(n or "") for n in counts.values()),
                seconds(result),
                str(processes(result)),
            ]
        )
    return table(
        ["experiment", *(TEXT[basis] for basis in (*PUBLISHED, "limit")), "seconds", "processes"], lines
    )


def section(kind: type[Experiment], result: Result) -> str:
    """The experiment's description, how it was run, and its references: limits last."""
    made, count = result.provenance, processes(result)
    where = f"{seconds(result)} s in {count} process{'es' * (count > 1)} on {made['machine']}"
    commit = (
        f" · commit {made['commit'][:7]}{', with changes' if made.get('dirty') else ''}"
        if "commit" in made
        else ""
    )
    parts = [
        f"## `{kind.name}`",
        summary(kind),
        f"`{made['command']}` · {where} · {made['date'][:10]}{commit}",
    ]
    usual = {field.name: getattr(kind(), field.name) for field in fields(kind)}
    usual = {name: list(value) if isinstance(value, tuple) else value for name, value in usual.items()}
    if changed := [
        f"{name} = {value} (default: {usual[name]})"
        for name, value in result.settings.items()
        if value != usual[name]
    ]:
        parts.append(f"Not the default settings: {', '.join(changed)}.")
    rows = sorted(references(result), key=lambda row: row.basis == "limit")
    parts.append(
        table(["quantity", "reference", "which is", "ours", "difference"], map(line, rows))
        if rows
        else "No reference."
    )
    return "\n\n".join(parts)


def references(result: Result) -> list[Measurement]:
    """Rows with a published number, its recomputation or a limit."""
    return [row for row in result.table if row.predicted is not None and row.basis in (*PUBLISHED, "limit")]


def line(row: Measurement) -> list[str]:
    """The cells of one row; its setting and its place stand behind the quantity."""
    assert row.predicted is not None, "only rows of references() have lines"
    where = place(row, "model", "setting", "layer", "head", "step")
    quantity = f"{label(row)}, {where}" if where else label(row)
    value, reference = row.value, row.predicted
    ours, difference = (
        ("none", "")
        if value is None
        else (f"{value:.7g}", f"{value - reference:.1e}" if value != reference else "0")
    )
    return [text(quantity), f"{reference:.15g}", TEXT[row.basis], ours, difference]


def seconds(result: Result) -> str:
    return (
        f"{result.provenance['seconds']:.2g}"
        if result.provenance["seconds"] < 10
        else f"{result.provenance['seconds']:.0f}"
    )


def processes(result: Result) -> int:
    return result.provenance["workers"] or 1


def table(heads: list[str], lines: Iterable[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heads, ["---"] * len(heads), *lines))


def main(argv: list[str]) -> int:
    """Writes the page of one theory; returns 2 and prints one line if it cannot."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("theory")
    parser.add_argument("--results", type=Path, default=ROOT / "runs" / "figures")
    parser.add_argument("--out", type=Path, help="default: docs/theories/THEORY_figures.md")
    options = parser.parse_args(argv)
    out = options.out or ROOT / "docs" / "theories" / f"{options.theory}_figures.md"
    try:
        made = page(options.theory, options.results)
        with replacing(out) as draft:
            draft.write_text(made, encoding="utf-8")
    except (ValueError, OSError) as error:
        print(f"figure_table: {error}", file=sys.stderr)
        return 2
    print(out)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

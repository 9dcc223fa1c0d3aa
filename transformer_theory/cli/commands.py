"""What each command does: options in, exit code out."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import nearest
from ..files import replacing
from .terminal import NAME, console, progress_line

if TYPE_CHECKING:
    from rich.table import Table

    from ..rows import Row

SHOWN = 20  # references that a run prints


def list_theories(options: argparse.Namespace) -> int:
    """Theories with their claims and experiments."""
    from rich.table import Table

    from ..theories import THEORIES

    table = Table("theory", "question", box=None, padding=(0, 2, 1, 0))
    for names in ("claims", "experiments"):
        table.add_column(names, no_wrap=True)  # names are there to be copied
    for theory in THEORIES:
        claims = "\n".join(claim.id for claim in theory.claims)
        table.add_row(theory.name, theory.question, claims, "\n".join(kind.name for kind in theory.experiments))
    console().print(table)
    return 0


def compare_theories(options: argparse.Namespace) -> int:
    """Every theory on the same data, stored with its page.

    Raises:
        ValueError: data, theories or networks that cannot be.
        OSError: the folder exists or cannot be written.
    """
    from .. import data, report
    from ..compare import choose, compare
    from ..experiment import Result, atomic_directory

    names = None if options.theories is None else [name.strip() for name in options.theories.split(",") if name.strip()]
    with atomic_directory(options.out, overwrite=options.overwrite) as folder:
        chosen = choose(names)
        given = {} if options.steps is None else {"steps": options.steps}
        if options.networks is not None:
            given["networks"] = _networks(options.networks)
        read = data.load(options.data)
        if read.labels is not None and len(read.labels.unique()) < 2:
            only = f"only class {int(read.labels[0])}"
            hint = "add a class, or leave labels out"
            raise ValueError(f"{options.data}: labels must name at least two classes to tell apart, got {only}; {hint}")
        with progress_line() as progress:
            compare(read, chosen, seed=options.seed, device=options.device, progress=progress, **given).write_into(folder)
            progress("writing the report")
            result = Result.load(folder)  # what is reported is what is stored
            report.write(result, folder)
    console().print(report.table(result))
    print(f"report: {options.out / 'report.html'}")
    return 0


def _networks(text: str) -> tuple[str, ...]:
    """The names between the commas, each once; none for ``"none"``."""
    from ..training.recipes import RECIPES

    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if names == ("none",):
        return ()
    if not names:
        raise ValueError(f"networks must name at least one, got none; there are: {', '.join(RECIPES)}, or 'none' for the raw tokens only")
    for name in names:
        if name == "none":
            raise ValueError(f"networks must be names or 'none', got both in {text!r}; leave 'none' out")
        if name not in RECIPES:
            raise ValueError(f"unknown network {name!r}{nearest(name, [*RECIPES, 'none'])}")
    return names


def verify_claims(options: argparse.Namespace) -> int:
    """Claims with their controls as a table; 1 if a claim is violated or a control does not fail."""
    from rich.table import Table
    from rich.text import Text

    from ..claims import CONTROL_WORDS
    from ..theories import claims

    chosen = claims(options.claim)
    verdicts = []
    with progress_line() as progress:
        for number, claim in enumerate(chosen, 1):
            progress(f"{claim.id} ({number} of {len(chosen)}): {options.seeds} seeds, each with its control")
            verdicts.append(claim.verify(range(options.seeds)))
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("claim", no_wrap=True)  # a name to be copied
    for name in ("verdict", "seeds", "95 % interval", "measured", "line", "control", "source"):
        table.add_column(name, overflow="fold")
    failed = False
    for verdict in verdicts:
        bad = verdict.verdict == "violated" or verdict.control != "fails"
        failed |= bad
        counts = [e.verdict for e in verdict.evidence]
        low, high = verdict.interval
        values = [e.value for e in verdict.evidence]
        worst = max if verdict.evidence[0].op == "<=" else min
        table.add_row(
            verdict.claim.id,
            Text(verdict.verdict, style="red" if verdict.verdict == "violated" else ""),
            f"{counts.count('consistent')}/{len(counts)}",
            f"[{low:.2f}, {high:.2f}]".replace("[", r"\["),
            f"{worst(values):.3g}",
            f"{verdict.evidence[0].op} {verdict.evidence[0].bound:.3g}",
            Text(CONTROL_WORDS[verdict.control], style="" if verdict.control == "fails" else "red"),
            verdict.claim.source.label,
        )
    console().print(table)
    return int(failed)


def run_experiment(options: argparse.Namespace) -> int:
    """One experiment, stored with its figure; what the papers say is printed beside what was measured."""
    from dataclasses import fields, replace

    from ..experiment import Result, atomic_directory
    from ..plotting import svg
    from ..theories import experiment
    from ..workers import listening

    kind = experiment(options.experiment)
    given = {field.name: getattr(options, field.name) for field in fields(kind) if hasattr(options, field.name)}
    chosen = replace(kind.quick() if options.quick else kind(), **given)
    with atomic_directory(options.out, overwrite=options.overwrite) as folder, progress_line() as progress:
        progress(f"{kind.name}: measuring")
        with listening(lambda text: progress(f"{kind.name}: {text}")):
            chosen.run(workers=options.workers).write_into(folder)
        progress(f"{kind.name}: drawing")
        result = Result.load(folder)
        (folder / "figure.svg").write_text(svg(chosen.draw(result)), encoding="utf-8")
    if options.workers != 1 and result.provenance["workers"] is None:
        print(f"{NAME}: {kind.name} sweeps over no settings: it ran in one process, --workers changed nothing", file=sys.stderr)
    console().print(f"{kind.name}: {len(result.table)} rows in {result.provenance['seconds']} s", highlight=False)
    if referred := [row for row in result.table if row.get("predicted") is not None]:
        console().print(_beside_references(referred[:SHOWN]), highlight=False)
    if len(referred) > SHOWN:
        print(f"... and {len(referred) - SHOWN} more references in {options.out / 'table.jsonl'}")
    print(f"figure: {options.out / 'figure.svg'}")
    return 0


def _beside_references(rows: "list[Row]") -> "Table":
    """Each measurement, the number it stands beside, and where that comes from; a row's places (step, layer, ...) follow its quantity."""
    from rich.table import Table
    from rich.text import Text

    from ..rows import BASIS_WORDS

    table = Table("quantity", box=None, padding=(0, 2, 0, 0))
    for name in ("measured", "reference"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("which is", no_wrap=True)
    for row in rows:
        places = ", ".join(f"{name} {row.get(name)}" for name in ("model", "layer", "head", "step", "seed") if row.get(name) is not None)
        numbers = ("none" if value is None else f"{value:.6g}" for value in (row["value"], row.get("predicted")))
        basis = BASIS_WORDS[row["basis"]] if "basis" in row else ""
        table.add_row(Text(f"{row['quantity']} ({places})" if places else row["quantity"]), *numbers, basis)
    return table


def write_report(options: argparse.Namespace) -> int:
    """The page or figure of a stored result again.

    Raises:
        ValueError: no stored result.
        FileExistsError: the file is there and is not to be overwritten.
    """
    from .. import report
    from ..experiment import Result
    from ..plotting import svg
    from ..theories import experiment

    result = Result.load(options.directory)
    if options.out is not None and options.out.exists() and not options.overwrite:
        raise FileExistsError(f"{options.out} exists already; choose another --out, or pass --overwrite to replace it")
    if result.name != "compare":
        kind = experiment(result.name)
        params: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in result.params.items()}
        written = _write(options.out or options.directory / "figure.svg", svg(kind(**params).draw(result)))
    elif options.out is not None:
        written = _write(options.out, report.html(result))
    else:
        written = report.write(result, options.directory)
    print(f"report: {written}")
    return 0


def _write(path: Path, text: str) -> Path:
    """The whole file or none of it."""
    try:
        with replacing(path) as draft:
            draft.write_text(text, encoding="utf-8")
    except OSError as error:
        raise PermissionError(f"cannot write to {path} ({error.strerror}); choose another --out") from error
    return path


def cite_sources(options: argparse.Namespace) -> int:
    """BibTeX of a theory, a claim or a key."""
    from ..theories import cite

    print(cite(options.name), end="")
    return 0

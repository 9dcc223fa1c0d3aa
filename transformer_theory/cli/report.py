"""``report``: from stored results to a page, LaTeX, Markdown, BibTeX and figures; all that one command writes, or nothing."""

import argparse
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.files import check_targets, write_together
from .terminal import NAME, progress_line

if TYPE_CHECKING:
    from ..report.merged import Merged
    from ..report.pictures import Drawn
    from ..report.stored import Stored

OUTPUTS = ("html", "latex", "markdown", "bibtex", "figures")


def write_report(options: argparse.Namespace) -> int:
    """What was asked for, of all results together; of one result and without a further word its page or figure, into its folder.

    Raises:
        ValueError: a folder is no stored result, a result cannot be read, or outputs that cannot be.
        OSError: an output exists and is not to be overwritten, or cannot be written.
    """
    from ..report.merged import merged
    from ..report.pictures import files as draw
    from ..report.pictures import pictures
    from ..report.stored import gathered

    asked = {name: path for name in OUTPUTS if (path := getattr(options, name)) is not None}
    with progress_line() as progress:
        progress("reading the results")
        found = gathered(options.directories)
        if not asked:
            print(f"report: {_into_its_folder(found, options.directories)}")
            return 0
        together = merged(one.result for one in found)
        _check_places(asked)
        _check_files(_places(asked, together), found, options.overwrite)  # before drawing, which takes long
        drawn = draw(pictures(together) if asked.keys() & {"latex", "figures"} else [], progress=progress)
        files: dict[Path, bytes] = {}
        for name, path in asked.items():
            progress(f"making the {name}")
            files |= _made(name, path, found, together, drawn)
        write_together(files)
    for sentence in drawn.failed:
        print(f"{NAME}: {sentence}", file=sys.stderr)
    for note in together.notes:
        print(f"{NAME}: {note}", file=sys.stderr)
    for name, path in asked.items():
        print(f"{name}: {path}")
    return 0


def _into_its_folder(found: "list[Stored]", named: list[Path]) -> Path:
    """The page of a result, or the figure of an experiment, beside its numbers; files made from these before are replaced."""
    from .. import report
    from ..core.plotting import svg
    from ..core.verification import NAME as VERIFY
    from ..report.located import COMPARE, TRAIN
    from ..theories import experiment

    if len(found) != 1 or found[0].folder not in named:
        told = ", ".join(f"--{name}" for name in OUTPUTS)
        if len(found) == 1:
            raise ValueError(f"{found[0].folder} is the only result here; name it itself for its page or figure, or add some of {told}")
        raise ValueError(f"{len(found)} results go together into files of your choice, got no name for any; add some of {told}")
    one = found[0]
    paged = one.result.name in (COMPARE, TRAIN, VERIFY)
    path = one.folder / ("report.html" if paged else "figure.svg")
    check_targets([path])  # before drawing, which takes long
    if paged:
        return report.write(one.result, one.folder)
    write_together({path: svg(experiment(one.result.name).of(one.result).draw(one.result)).encode()})
    return path


def _places(asked: Mapping[str, Path], together: "Merged") -> list[Path]:
    """Every file that the outputs may come to, in the order in which they are asked for."""
    from ..report.latex_folder import names
    from ..report.pictures import names as drawn
    from ..report.pictures import pictures

    inside = {"latex": lambda: names(together), "figures": lambda: drawn(pictures(together))}
    return [one for name, path in asked.items() for one in ([path / i for i in inside[name]()] if name in inside else [path])]


def _made(name: str, path: Path, found: "list[Stored]", together: "Merged", drawn: "Drawn") -> dict[Path, bytes]:
    """The files of one output."""
    from .. import report
    from ..report.bibtex import references
    from ..report.latex_folder import latex_folder
    from ..report.markdown import markdown
    from ..report.tables import provenance

    folders, checksums = [str(one.folder) for one in found], [one.checksums for one in found]
    if name in ("latex", "figures"):
        made = drawn.files
        if name == "latex":
            made, _ = latex_folder(together, folders=folders, checksums=checksums, drawn=drawn)
        return {path / inner: data for inner, data in made.items()}
    if name == "html":
        text = report.page(together.results)
    elif name == "markdown":
        text = markdown(together, provenance(together, folders, checksums))
    else:
        text = references(together.results)
    return {path: text.encode()}


def _check_places(asked: Mapping[str, Path]) -> None:
    """Raises an error for a file that is named as a folder or the other way round, before anything is made."""
    for name, path in asked.items():
        folder = name in ("latex", "figures")
        if folder and path.exists() and not path.is_dir():
            raise FileExistsError(f"--{name} must name a folder, got the file {path}; choose another")
        if not folder and path.is_dir():
            raise FileExistsError(f"--{name} must name a file, got the folder {path}; choose a file in it")


def _check_files(files: Iterable[Path], found: "list[Stored]", overwrite: bool) -> None:
    """Raises an error for a file that cannot be written or must not be replaced."""
    from ..core.result import FILES

    files = list(files)
    check_targets(files)
    stored = {(one.folder / name).resolve() for one in found for name in FILES}
    for path in files:
        if path.resolve() in stored:
            raise FileExistsError(f"{path} holds the measured numbers, which no report replaces; choose another name")
        if os.path.lexists(path) and not overwrite:
            raise FileExistsError(f"{path} exists already; choose another name, or pass --overwrite to replace it")

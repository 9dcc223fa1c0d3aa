"""``report``: a page, LaTeX, Markdown, BibTeX and figures from stored results; a command writes all of its outputs or none."""

import argparse
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.files import check_targets, write_together
from .terminal import NAME, progress_line

if TYPE_CHECKING:
    from ..report.aggregate import Aggregate, Stored
    from ..report.figures import Drawn

OUTPUTS = ("html", "latex", "markdown", "bibtex", "figures")


def write_report(options: argparse.Namespace) -> int:
    """The requested outputs of all results together; of one result and without an output its page or figure, into its folder.

    Raises:
        ValueError: a folder is no stored result, a result cannot be read, or outputs exclude one another.
        OSError: an output exists and is not to be overwritten, or cannot be written.
    """
    from ..report.aggregate import aggregate, stored_results
    from ..report.figures import draw, pictures

    requested = {name: path for name in OUTPUTS if (path := getattr(options, name)) is not None}
    with progress_line() as progress:
        progress("reading the results")
        stored = stored_results(options.directories)
        if not requested:
            print(f"report: {_into_its_folder(stored, options.directories)}")
            return 0
        together = aggregate([one.result for one in stored])
        _check_places(requested)
        _check_files(_places(requested, together), stored, options.overwrite)  # before plotting, which takes long
        drawn = draw(pictures(together) if requested.keys() & {"latex", "figures"} else [], progress=progress)
        files: dict[Path, bytes] = {}
        for name, path in requested.items():
            progress(f"making the {name}")
            files |= _made(name, path, stored, together, drawn)
        write_together(files)
    for sentence in drawn.failed:
        print(f"{NAME}: {sentence}", file=sys.stderr)
    for note in together.notes:
        print(f"{NAME}: {note}", file=sys.stderr)
    for name, path in requested.items():
        print(f"{name}: {path}")
    return 0


def _into_its_folder(stored: "list[Stored]", named: list[Path]) -> Path:
    """The page of a result, or the figure of an experiment, beside its numbers; earlier ones are replaced."""
    from .. import report
    from ..core.plotting import svg
    from ..theories import experiment

    if len(stored) != 1 or stored[0].folder not in named:
        outputs = ", ".join(f"--{name}" for name in OUTPUTS)
        if len(stored) == 1:
            raise ValueError(f"{stored[0].folder} is the only result here; name it itself for its page or figure, or add some of {outputs}")
        raise ValueError(f"{len(stored)} results need files of your choice, got no name for any; add some of {outputs}")
    one = stored[0]
    has_page = one.result.name in ("compare", "reach", "train", "verify")
    path = one.folder / ("report.html" if has_page else "figure.svg")
    check_targets([path])  # before plotting, which takes long
    if has_page:
        return report.write(one.result, one.folder)
    write_together({path: svg(experiment(one.result.name).of(one.result).plot(one.result)).encode()})
    return path


def _places(requested: Mapping[str, Path], together: "Aggregate") -> list[Path]:
    """Every file that the outputs may write, in the order of the outputs."""
    from ..report.figures import file_names, pictures
    from ..report.latex_folder import names

    inside = {"latex": lambda: names(together), "figures": lambda: file_names(pictures(together))}
    return [one for name, path in requested.items() for one in ([path / i for i in inside[name]()] if name in inside else [path])]


def _made(name: str, path: Path, stored: "list[Stored]", together: "Aggregate", drawn: "Drawn") -> dict[Path, bytes]:
    """The files of one output."""
    from .. import report
    from ..report.bibtex import references
    from ..report.tables import provenance

    folders, checksums = [str(one.folder) for one in stored], [one.checksums for one in stored]
    if name in ("latex", "figures"):
        files = drawn.files
        if name == "latex":
            files, _ = report.latex_folder(together, folders=folders, checksums=checksums, drawn=drawn)
        return {path / inner: data for inner, data in files.items()}
    if name == "html":
        text = report.page(together.results)
    elif name == "markdown":
        text = report.markdown(together, provenance(together, folders, checksums))
    else:
        text = references(together.results)
    return {path: text.encode()}


def _check_places(requested: Mapping[str, Path]) -> None:
    """Raises an error for a file that is named as a folder or the other way round, before anything is made."""
    for name, path in requested.items():
        folder = name in ("latex", "figures")
        if folder and path.exists() and not path.is_dir():
            raise FileExistsError(f"--{name} must name a folder, got the file {path}; choose another")
        if not folder and path.is_dir():
            raise FileExistsError(f"--{name} must name a file, got the folder {path}; choose a file in it")


def _check_files(files: Iterable[Path], stored: "list[Stored]", overwrite: bool) -> None:
    """Raises an error for a file that cannot be written or must not be replaced."""
    from ..core.result import FILES

    files = list(files)
    check_targets(files)
    measured = {(one.folder / name).resolve() for one in stored for name in FILES}
    for path in files:
        if path.resolve() in measured:
            raise FileExistsError(f"{path} holds the measured numbers, which a report does not replace; choose another name")
        if os.path.lexists(path) and not overwrite:
            raise FileExistsError(f"{path} exists already; choose another name, or pass --overwrite to replace it")

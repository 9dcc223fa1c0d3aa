"""The command ``report``: writes a page, LaTeX, Markdown, BibTeX and figures from stored results, all
requested outputs or none.
"""

import argparse
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.files import check_targets, write_together
from .terminal import NAME, progress_line

if TYPE_CHECKING:
    from ..comparison.pooling import Aggregate
    from ..report.figures import Drawn
    from ..report.origins import Stored

OUTPUTS = ("html", "latex", "markdown", "bibtex", "figures")


def write_report(options: argparse.Namespace) -> int:
    """Writes the requested outputs for all results together or, without an output option, the page or figure
    of a single result again.

    Raises:
        ValueError: a folder is not a stored result, a result cannot be read, or no output is requested for
            several results.
        OSError: an output cannot be written, or exists and --overwrite was not given.
    """
    from ..comparison.pooling import aggregate
    from ..report.figures import draw, pictures
    from ..report.origins import stored_results
    from ..report.tex import folder_pictures

    requested = {name: path for name in OUTPUTS if (path := getattr(options, name)) is not None}
    if options.appendix and "latex" not in requested:
        raise ValueError("--appendix needs --latex DIR, got none; add it")
    with progress_line() as progress:
        progress("reading the results")
        stored = stored_results(options.directories)
        if not requested:
            print(f"report: {_write_in_place(stored, options.directories)}")
            return 0
        combined = aggregate([item.result for item in stored])
        _check_places(requested)
        # before plotting, which takes long
        _check_files(_places(requested, combined, options.appendix), stored, options.overwrite)
        chosen = {
            "latex": lambda: folder_pictures(combined, appendix=options.appendix),
            "figures": lambda: pictures(combined),
        }
        drawn = {
            name: draw(chosen[name]() if name in chosen else [], progress=progress) for name in requested
        }
        files: dict[Path, bytes] = {}
        for name, path in requested.items():
            progress(f"writing the {name}")
            files |= _contents(name, path, stored, combined, drawn[name], options.appendix)
        write_together(files)
    for failure in dict.fromkeys(failure for one in drawn.values() for failure in one.failed):
        print(f"{NAME}: {failure}", file=sys.stderr)
    for note in combined.notes:
        print(f"{NAME}: {note}", file=sys.stderr)
    for name, path in requested.items():
        print(f"{name}: {path}")
    return 0


def _write_in_place(stored: "list[Stored]", directories: list[Path]) -> Path:
    """Writes the page of a result, or the figure of an experiment, into its folder and returns the path. An
    older file is replaced.

    Raises:
        ValueError: there are several results, or the only one is in a subfolder of the named folder.
    """
    from .. import report
    from ..core.plotting import svg
    from ..theories import experiment

    if len(stored) != 1 or stored[0].folder not in directories or stored[0].folder.is_file():
        outputs = ", ".join(f"--{name}" for name in OUTPUTS)
        if len(stored) == 1 and not stored[0].folder.is_file():
            raise ValueError(
                f"{stored[0].folder} is the only result here; pass this folder to write its page or figure, "
                f"or add one of {outputs}"
            )
        several = (
            "a ledger needs"
            if any(item.folder.is_file() for item in stored)
            else f"{len(stored)} results need"
        )
        raise ValueError(f"{several} the name of an output file, got none; add one of {outputs}")
    item = stored[0]
    has_page = item.result.name in ("compare", "probe", "reach", "train", "verify")
    path = item.folder / ("report.html" if has_page else "figure.svg")
    check_targets([path])  # before plotting, which takes long
    if has_page:
        return report.write(item.result, item.folder)
    write_together({path: svg(experiment(item.result.name).of(item.result).plot(item.result)).encode()})
    return path


def _places(requested: Mapping[str, Path], combined: "Aggregate", appendix: bool) -> list[Path]:
    """Lists every file that the outputs may write, in the order of the outputs."""
    from ..report.figures import file_names, pictures
    from ..report.tex import names

    # The outputs that are folders, each with a function that lists its files.
    files_in = {
        "latex": lambda: names(combined, appendix=appendix),
        "figures": lambda: file_names(pictures(combined)),
    }
    places = []
    for name, path in requested.items():
        places += [path / file for file in files_in[name]()] if name in files_in else [path]
    return places


def _contents(
    name: str,
    path: Path,
    stored: "list[Stored]",
    combined: "Aggregate",
    figures: "Drawn",
    appendix: bool,
) -> dict[Path, bytes]:
    """Returns the files of one output with their contents."""
    from .. import report
    from ..report.number_tables import provenance
    from ..report.origins import references

    folders, checksums = [str(item.folder) for item in stored], [item.checksums for item in stored]
    if name in ("latex", "figures"):
        files = figures.files
        if name == "latex":
            files, _ = report.latex_folder(
                combined, appendix=appendix, folders=folders, checksums=checksums, drawn=figures
            )
        return {path / file: data for file, data in files.items()}
    if name == "html":
        text = report.page(combined.results)
    elif name == "markdown":
        text = report.markdown(combined, provenance(combined, folders, checksums))
    else:
        text = references(combined.results)
    return {path: text.encode()}


def _check_places(requested: Mapping[str, Path]) -> None:
    """Checks that no file is to be written to the path of a folder, and no folder to the path of a file.

    Raises:
        FileExistsError: a path has the wrong kind.
    """
    for name, path in requested.items():
        is_folder = name in ("latex", "figures")
        if is_folder and path.exists() and not path.is_dir():
            raise FileExistsError(f"--{name} must name a folder, got the file {path}; choose another")
        if not is_folder and path.is_dir():
            raise FileExistsError(f"--{name} must name a file, got the folder {path}; choose a file in it")


def _check_files(files: Iterable[Path], stored: "list[Stored]", overwrite: bool) -> None:
    """Checks that every file can be written and may be replaced.

    Raises:
        OSError: a file cannot be written, belongs to a stored result, or exists and ``overwrite`` is false.
    """
    from ..core.result import FILES

    files = list(files)
    check_targets(files)
    protected = {(item.folder / name).resolve() for item in stored for name in FILES} | {
        item.folder.resolve() for item in stored
    }
    for path in files:
        if path.resolve() in protected:
            raise FileExistsError(
                f"{path} holds the measured numbers, which a report never replaces; choose another name"
            )
        if os.path.lexists(path) and not overwrite:  # lexists: a broken symbolic link counts as a file
            raise FileExistsError(
                f"{path} exists already; choose another name, or pass --overwrite to replace it"
            )

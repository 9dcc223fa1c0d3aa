"""``report``: from stored results to a page, LaTeX, Markdown, BibTeX and figures; all that one command writes, or nothing."""

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..files import replacing
from .terminal import NAME, progress_line

if TYPE_CHECKING:
    from ..report.merged import Merged
    from ..report.stored import Stored

OUTPUTS = ("html", "latex", "markdown", "bibtex", "figures")


def write_report(options: argparse.Namespace) -> int:
    """What was asked for, of all results together; of one result and without a further word its page or figure, into its folder.

    Raises:
        ValueError: a folder is no stored result, a result cannot be read, or outputs that cannot be.
        OSError: an output exists and is not to be overwritten, or cannot be written.
    """
    from ..report.merged import merged
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
        files: dict[Path, bytes] = {}
        for name, path in asked.items():
            progress(f"making the {name}")
            _add(files, _made(name, path, found, together, progress))
        _check_files(files, found, options.overwrite)
        _write(files)
    for note in together.notes:
        print(f"{NAME}: {note}", file=sys.stderr)
    for name, path in asked.items():
        print(f"{name}: {path}")
    return 0


def _into_its_folder(found: "list[Stored]", named: list[Path]) -> Path:
    """The page of a result, or the figure of an experiment, beside its numbers; files made from these before are replaced."""
    from .. import report
    from ..plotting import svg
    from ..report.located import COMPARE, TRAIN
    from ..theories import experiment
    from ..verification import NAME as VERIFY

    if len(found) != 1 or found[0].folder not in named:
        told = ", ".join(f"--{name}" for name in OUTPUTS)
        raise ValueError(f"{len(found)} results go together into files of your choice, got no name for any; add some of {told}")
    one = found[0]
    if one.result.name in (COMPARE, TRAIN, VERIFY):
        return report.write(one.result, one.folder)
    kind = experiment(one.result.name)
    params = {name: tuple(value) if isinstance(value, list) else value for name, value in one.result.params.items()}
    path = one.folder / "figure.svg"
    _write({path: svg(kind(**params).draw(one.result)).encode()})
    return path


def _made(name: str, path: Path, found: "list[Stored]", together: "Merged", progress: Callable[[str], None]) -> dict[Path, bytes]:
    """The files of one output; what could not be drawn is told."""
    from .. import report
    from ..report.bibtex import references
    from ..report.latex_folder import latex_folder
    from ..report.markdown import markdown
    from ..report.pictures import files, pictures
    from ..report.tables import provenance

    folders, checksums = [str(one.folder) for one in found], [one.checksums for one in found]
    failed: list[str] = []
    if name == "latex":
        made, failed = latex_folder(together, folders=folders, checksums=checksums, progress=progress)
    elif name == "figures":
        made, _, failed = files(pictures(together), progress=progress)
    for sentence in failed:
        print(f"{NAME}: {sentence}", file=sys.stderr)
    if name in ("latex", "figures"):
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


def _add(files: dict[Path, bytes], more: Mapping[Path, bytes]) -> None:
    known = {os.path.abspath(path) for path in files}
    for path in more:
        if os.path.abspath(path) in known:
            raise ValueError(f"each output must be a file of its own, got {path} twice; choose another name for one of them")
    files.update(more)


def _check_files(files: Iterable[Path], found: "list[Stored]", overwrite: bool) -> None:
    from ..report.stored import FILES

    stored = {(one.folder / name).resolve() for one in found for name in FILES}
    for path in files:
        if path.resolve() in stored:
            raise FileExistsError(f"{path} holds the measured numbers, which no report replaces; choose another name")
        if os.path.lexists(path) and not overwrite:
            raise FileExistsError(f"{path} exists already; choose another name, or pass --overwrite to replace it")


def _write(files: Mapping[Path, bytes]) -> None:
    """All files or none: each is drafted beside its place before the first takes it; folders that are missing are made."""
    made: list[Path] = []
    path = None
    try:
        with contextlib.ExitStack() as stack:
            for path, data in files.items():
                for folder in reversed([folder for folder in path.parents if not folder.exists()]):
                    folder.mkdir()
                    made.append(folder)
                stack.enter_context(replacing(path)).write_bytes(data)
    except BaseException as error:
        for folder in reversed(made):
            with contextlib.suppress(OSError):  # somebody has put something there
                folder.rmdir()
        if isinstance(error, OSError):
            raise PermissionError(f"cannot write to {path} ({error.strerror}); choose another place") from error
        raise

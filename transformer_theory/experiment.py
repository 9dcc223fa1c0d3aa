"""Experiments and their results: parameters in, rows and arrays out, with provenance, stored atomically.

A :class:`Result` is ``result.json`` (name, parameters, sources, provenance, checksums), ``table.jsonl`` (rows) and ``arrays.npz`` in one
directory.
"""

import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from . import checksums
from .citations import Source
from .files import replacing
from .parameters import check_parameters
from .parameters import parameter as parameter  # what an experiment declares its fields with
from .rows import Arrays, Row, check_row, collect, select
from .threads import one_thread
from .workers import at_work
from .workers import sweep as sweep  # what an experiment may call

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMAT = 2  # 1 had no checksums
FILES = ("result.json", "table.jsonl", "arrays.npz")  # of a stored result


@dataclass(frozen=True)
class Result:
    """What a run measured.

    Attributes:
        name: of the experiment.
        params: its parameters, JSON values only.
        table: rows (:class:`~transformer_theory.rows.Row`), tidy.
        arrays: named arrays that the figures are drawn from.
        sources: the literature behind it.
        provenance: versions, seed (None: nothing was drawn by one), threads, device, wall time, commit, command line (see
            :func:`provenance`), workers (None: there was no sweep for them).
    """

    name: str
    params: dict[str, Any] = field(default_factory=dict)
    table: list[Row] = field(default_factory=list)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    sources: tuple[Source, ...] = ()
    provenance: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Result({self.name!r}, rows={len(self.table)}, arrays={len(self.arrays)})"

    def select(self, **equal) -> list[Row]:
        """The rows whose columns have the given values; a tuple lists choices: ``result.select(theory="crate", step=(0, 10))``."""
        return list(select(self.table, **equal))

    def to_pandas(self):
        """The table as a ``pandas.DataFrame`` (needs pandas, which is not a dependency)."""
        import pandas  # pyright: ignore[reportMissingImports]

        return pandas.DataFrame(self.table)

    def write_into(self, folder: Path, *, growing: bool = False) -> None:
        """Writes the three files into an existing folder, each in one stroke.

        Args:
            growing: rows will be added to ``table.jsonl``, so it gets no checksum yet.
        """
        head = {
            "format": FORMAT,
            "name": self.name,
            "params": jsonable(self.params),
            "sources": [str(s) for s in self.sources],
            "provenance": jsonable(self.provenance),
        }
        with replacing(folder / "arrays.npz") as draft, draft.open("wb") as file:  # a path would be given another ending
            np.savez_compressed(file, allow_pickle=False, **self.arrays)
        with replacing(folder / "table.jsonl") as draft:
            draft.write_text("".join(json.dumps(jsonable(row)) + "\n" for row in self.table), encoding="utf-8")
        sealed = checksums.sealed(head, folder, ("arrays.npz",) if growing else ("table.jsonl", "arrays.npz"))
        with replacing(folder / "result.json") as draft:
            draft.write_text(json.dumps(sealed, indent=2) + "\n", encoding="utf-8")

    def save(self, directory: str | Path, *, overwrite: bool = False) -> Path:
        """Stores the result: the directory appears whole or not at all.

        Raises:
            FileExistsError: it exists and ``overwrite`` is False.
            PermissionError: it cannot be written.
        """
        with atomic_directory(directory, overwrite=overwrite) as folder:
            self.write_into(folder)
        return Path(directory)

    @classmethod
    def load(cls, directory: str | Path) -> "Result":
        """Reads a stored result; nothing is unpickled. One of format 1, which had no checksums, is read as it is.

        Raises:
            ValueError: the directory does not hold a result, one of a newer format, or one that was edited after it was stored.
            PermissionError: it may not be read.
        """
        folder = Path(directory)
        try:
            for name in FILES:
                if not (folder / name).is_file():
                    raise ValueError(f"{folder} must hold result.json, table.jsonl and arrays.npz, {name} is missing; run it again")
                (folder / name).open("rb").close()
        except PermissionError as error:
            raise PermissionError(f"{folder} cannot be read (permission denied); ask its owner, or copy it") from error
        try:
            head = json.loads((folder / "result.json").read_text(encoding="utf-8"))
            if head["format"] == FORMAT:
                checksums.check(head, folder)
            elif head["format"] != 1:
                raise ValueError(f"expected format 1 or {FORMAT}, got {head['format']}, which a newer version stored: install that")
            rows = [check_row(json.loads(line)) for line in (folder / "table.jsonl").read_text(encoding="utf-8").splitlines()]
            with np.load(folder / "arrays.npz", allow_pickle=False) as stored:
                arrays = {name: stored[name] for name in stored.files}
            sources = tuple(Source.parse(text) for text in head["sources"])
            return cls(head["name"], head["params"], rows, arrays, sources, head["provenance"])
        except KeyError as error:
            raise ValueError(f"{folder} does not hold a readable result (result.json lacks {error}); run it again") from error
        except (ValueError, TypeError, AttributeError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise ValueError(f"{folder} does not hold a readable result ({error}); run it again") from error


class atomic_directory:  # noqa: N801 - used as a function: ``with atomic_directory(out) as folder``
    """A directory that appears whole or not at all: work in the folder it hands out; leaving with an exception removes it.

    Parents that are missing are made at entry, and removed again if the work fails.

    Raises (at entry, before any work):
        FileExistsError: the target exists and ``overwrite`` is False, or it is something else than a stored result.
        PermissionError: the parent cannot be written.
    """

    def __init__(self, directory: str | Path, *, overwrite: bool = False):
        self.target, self.overwrite = Path(os.path.abspath(directory)), overwrite  # "." needs a name; links stay links
        self.shown = directory
        self.made: list[Path] = []

    def __enter__(self) -> Path:
        try:
            exists = os.path.lexists(self.target)
            if exists and not self.overwrite:
                raise FileExistsError(f"{self.shown} exists already; choose another --out, or pass --overwrite to replace it")
            if exists and not self._is_result_or_empty():
                raise FileExistsError(f"{self.shown} is not a stored result, so it is not overwritten; choose another --out")
            self._make_parents()
            self.folder = Path(tempfile.mkdtemp(prefix=f".{self.target.name}.", dir=self.target.parent))
            self.folder.chmod(0o755)
        except OSError as error:
            self._remove_parents()
            if isinstance(error, FileExistsError) and error.errno is None:
                raise
            raise PermissionError(f"cannot write to {self.shown} ({error.strerror}); choose another --out") from error
        return self.folder

    def _is_result_or_empty(self) -> bool:
        return self.target.is_dir() and ((self.target / "result.json").is_file() or not any(self.target.iterdir()))

    def _make_parents(self) -> None:
        for parent in reversed(self.target.parents):
            if not parent.exists():
                parent.mkdir()
                self.made.append(parent)

    def _remove_parents(self) -> None:
        for parent in reversed(self.made):
            try:
                parent.rmdir()
            except OSError:  # someone else has put something there
                return

    def __exit__(self, kind, *_) -> None:
        if kind is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
            self._remove_parents()
            return
        try:
            if self.overwrite and os.path.lexists(self.target):
                old = Path(tempfile.mkdtemp(prefix=f".{self.target.name}.old.", dir=self.target.parent))
                self.target.rename(old / "replaced")
                self.folder.rename(self.target)
                shutil.rmtree(old, ignore_errors=True)
            else:
                self.folder.rename(self.target)
        except OSError as error:
            raise FileExistsError(f"{self.shown} changed during the work ({error.strerror}); the result lies in {self.folder}") from error


def provenance(*, seed: int | None = None, device: str = "cpu", started: float | None = None) -> dict[str, Any]:
    """Where a number comes from: versions, seed, threads, device, wall time, commit and dirty flag (if in a repository), command line."""
    versions = {"python": platform.python_version()}
    for package in ("transformer-theory", "torch", "numpy", "scipy", "cvxpy", "scikit-learn"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    record: dict[str, Any] = {
        "versions": versions,
        "seed": seed,
        "threads": torch.get_num_threads(),
        "device": device,
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        **_commit(),
    }
    if started is not None:
        record["seconds"] = round(time.perf_counter() - started, 3)
    return record


def _commit() -> dict[str, Any]:
    """Commit of the repository that holds this package, and whether the package was changed since; empty outside one."""
    here = Path(__file__).parent
    git = ["git", "-C", str(here)]
    try:
        tracked = subprocess.run([*git, "ls-files", "--error-unmatch", __file__], capture_output=True, check=False)
        if tracked.returncode:
            return {}
        commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        changed = subprocess.run([*git, "status", "--porcelain", "--", "."], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return {}
    return {"commit": commit, "dirty": bool(changed)}


@dataclass(frozen=True)
class Experiment:
    """A run with parameters: subclass it as a frozen dataclass whose fields are the parameters (the command line is made from them).

    An author writes :meth:`measure` and :meth:`draw`; :meth:`run` does the rest. Class variables: ``name`` ("room.name"), ``sources``.
    Fields made by :func:`~transformer_theory.parameters.parameter` are held to their bounds. What draws random numbers by a seed of the
    user's is a :class:`RandomExperiment`; any other has no seed, so two runs of it are equal.

    Raises:
        ValueError: a parameter is beyond its bounds.
    """

    name: ClassVar[str] = "experiment"
    sources: ClassVar[tuple[Source, ...]] = ()
    seed: ClassVar[int | None] = None

    def __post_init__(self):
        check_parameters(self)

    def measure(self) -> Iterator[Row | Arrays]:
        """Yields rows and arrays."""
        raise NotImplementedError(f"{type(self).__name__} must define measure()")

    def draw(self, result: Result) -> "Figure":
        """The picture, a pure function of the stored result."""
        raise NotImplementedError(f"{type(self).__name__} must define draw()")

    @classmethod
    def quick(cls) -> "Experiment":
        """A setting of seconds, for tests and docs."""
        return cls()

    @classmethod
    def of(cls, result: Result) -> "Experiment":
        """The experiment with the parameters of a stored result, where tuples have become lists.

        Raises:
            TypeError, ValueError: they are not parameters of this experiment, or beyond their bounds.
        """
        return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in result.params.items()})

    def at_defaults(self, *names: str) -> bool:
        """Whether these parameters (none named: all) hold their default values: a published number stands only beside its own settings."""
        usual = type(self)()
        return all(getattr(self, name) == getattr(usual, name) for name in names or [field.name for field in fields(self)])

    def run(self, *, workers: int | str | None = None) -> Result:
        """Measures on one thread with the global random state forked, times it and records provenance.

        Args:
            workers: what :func:`sweep` uses, if the experiment sweeps: processes, or the address of a dask scheduler (see
                :func:`~transformer_theory.workers.at_work`); None leaves the active joblib context as it is. The rows do not depend on it.
        Raises:
            ValueError: no such workers.
            ConnectionError: no scheduler answers, or it has no workers.
        """
        started = time.perf_counter()
        with at_work(workers) as present, torch.random.fork_rng(devices=[]), one_thread():
            torch.manual_seed(self.seed or 0)
            rows, arrays = collect(self.measure())
            record = provenance(seed=self.seed, started=started) | {"workers": present.number if present.asked else None}
        return Result(self.name, jsonable(asdict(self)), rows, arrays, self.sources, record)


@dataclass(frozen=True)
class RandomExperiment(Experiment):
    """An experiment that draws random numbers: from :meth:`generator`, or in a sweep from seeds made of ``seed``, and from nowhere else."""

    seed: int = parameter(0, at_least=0, at_most=2**32 - 1, says="of the random numbers")

    def generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed)


def summary(kind: type) -> str:
    """The first paragraph of an experiment's docstring in Markdown, formulas as LaTeX between dollars."""
    text = " ".join((kind.__doc__ or "").strip().split("\n\n")[0].split())
    return re.sub(r":\w+:`~?([^`]*)`", lambda m: f"${m[1]}$" if m[0].startswith(":math:") else f"`{m[1]}`", text).replace("``", "`")


def jsonable(value: Any) -> Any:
    """JSON values from numbers of torch and numpy, tuples, paths and dataclasses; NaN and infinities become None."""
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, dict):
        return {str(k): jsonable(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(v) for v in value]
    if isinstance(value, torch.Tensor | np.generic | np.ndarray):
        return jsonable(value.tolist())
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value if isinstance(value, str | int | float | bool | None) else str(value)

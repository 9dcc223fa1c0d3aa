"""Results: a table, arrays and verifications with the settings and the provenance of the run, stored
atomically.

A stored :class:`Result` is a folder of ``result.json`` (name, settings, sources, provenance, checksums),
``table.jsonl`` (one measurement per line, with a checksum), ``arrays.npz`` and ``verifications.json``.
"""

import json
import os
import platform
import shlex
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field, is_dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

import numpy as np
import torch

from . import files
from .claims import Verification, sources_of
from .errors import reason
from .presentation import presenting
from .reading import check_file, read_arrays, read_json
from .sources import Source
from .statistics import EQUAL_SCALE
from .table import Table, from_records
from .typed import check_types, typed

if TYPE_CHECKING:
    from os import PathLike

    import pandas
    from matplotlib.figure import Figure

FORMAT = 3
COMMANDS = ("compare", "intervene", "probe", "reach", "train", "verify")  # results with known settings
REQUIRED = {"reach": ("ladders",), "probe": ("model",)}  # settings without which no page is written
# works behind the data, by a part of their name, and behind the statistics
DATA = {
    "digits": "alpaydin1998optical",
    "cifar": "krizhevsky2009learning",
    "wikitext": "merity2017pointer",
}
SHARES, ADJUSTED = "clopper1934use", "benjamini1995controlling"
COPIES_ADJUSTED, STOPPED = "westfall1993resampling", "besag1991sequential"
FILES = ("result.json", "table.jsonl", "arrays.npz", "verifications.json")  # all files of a stored result


class Provenance(TypedDict, total=False):
    """What pages read of the provenance, with the types that a stored result must have."""

    versions: dict[str, str]
    seed: int | None
    threads: int
    device: str
    date: str
    command: str
    commit: str
    dirty: bool
    seconds: float
    parameters: int
    processes: int


class StoredRung(TypedDict):
    """A rung in the settings of a reach."""

    name: str
    relaxes: str
    column: str
    covered: bool
    needs: str
    quantity: NotRequired[str]


class StoredLadder(TypedDict):
    """A ladder in the settings of a reach."""

    quantity: str
    null: str
    rungs: list[StoredRung]


class Settings(TypedDict, total=False):
    """What pages read of the settings of a command, with the types that a stored result must have."""

    data: str
    model: str
    theories: list[str]
    networks: list[str]
    interventions: list[str]
    models: dict[str, Any]
    measured: dict[str, Provenance]
    ladders: dict[str, StoredLadder]
    copies: dict[str, int]
    same_tokens: dict[str, str]
    seeds: list[int]
    seed: int | None
    n: int
    seq: int
    dim: int
    steps: int
    sequences: int
    tested_sequences: int
    tokens: int
    leading: int
    grid: list[int] | None
    labels: int
    parameters: int
    forward_passes: int
    right: float
    causal: bool
    precision: str
    attention: str
    shape: str
    reading: str
    score: str
    settings: dict[str, Any]
    train_samples: int
    validation_samples: int
    test_samples: int


@dataclass(frozen=True)
class Result:
    """The measurements of one run.

    Attributes:
        name: name of the experiment, or "compare", "verify", "reach", "train", "probe".
        settings: settings of the run, as JSON values.
        table: the measurements.
        arrays: named arrays, from which figures are drawn.
        verifications: outcome of each claim on its seeds.
        sources: literature on which the run is based.
        provenance: versions, seed, threads, device, wall time, commit and command line (see
            :func:`provenance`).
    """

    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    table: Table = field(default_factory=Table)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    verifications: tuple[Verification, ...] = ()
    sources: tuple[Source, ...] = ()
    provenance: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self):
        if not isinstance(self.table, Table):
            object.__setattr__(self, "table", Table(self.table))

    def __repr__(self) -> str:
        return (
            f"Result({self.name!r}, rows={len(self.table)}, arrays={len(self.arrays)}, "
            f"verifications={len(self.verifications)})"
        )

    def _repr_html_(self) -> str:
        return presenting().to_html(self)

    @property
    def citations(self) -> tuple[str, ...]:
        """The BibTeX keys of all works that the result, its claims and its rows cite, then of those behind
        its data and its statistics. Keys that the bibliography lacks are left out.
        """
        cited = [*self.sources, *sources_of(self.verifications), *(row.source for row in self.table)]
        places = (
            *(self.settings.get(name) for name in ("data", "inputs", "model")),
            self.provenance.get("command"),
            *{row.data for row in self.table},
            *{row.rung for row in self.table},
        )
        named = " ".join(map(str, places)).lower()
        nulls = [null for row in self.table for null in row.nulls]
        behind = [key for name, key in DATA.items() if name in named]
        behind += [SHARES] if self.verifications else []
        behind += [ADJUSTED] if nulls else []
        behind += [COPIES_ADJUSTED] if any(null.kind == EQUAL_SCALE for null in nulls) else []
        behind += [STOPPED] if any(null.stopped for null in nulls) else []
        known = (source.key for source in cited if source is not None and source.known)
        return tuple(dict.fromkeys([*known, *behind]))

    def select(self, **equal) -> Table:
        """Returns the rows whose columns have the given values; a tuple lists alternatives, as in
        :meth:`.Table.select`.
        """
        return self.table.select(**equal)

    def to_pandas(self) -> "pandas.DataFrame":
        """Converts the table to a ``pandas.DataFrame``, see :meth:`.Table.to_pandas`."""
        return self.table.to_pandas()

    def plot(self, name: str | None = None) -> "Figure":
        """Draws a figure of the result, which a notebook shows: ``result.plot().savefig("figure.pdf")``.

        Args:
            name: one of the names in ``list(tt.figures(result))``. None: the first of them, which sums the
                result up.
        Raises:
            ValueError: the result has no such figure, or none at all.
        """
        return presenting().plot(self, name)

    def report(
        self, directory: "str | PathLike[str] | None" = None, *, overwrite: bool = False
    ) -> "PathLike[str]":
        """Stores the result with its page, ``report.html``, and a bibliography, as the command line does with
        ``--out``.

        Args:
            directory: new folder, or a folder that holds this very result, whose page is then written again.
                None: ``runs/`` and the name of the data or of the probed network, with a number if that
                folder holds something else.
            overwrite: whether to replace another stored result in the folder.
        Returns:
            The path of the page. At the end of a notebook's cell it shows the page.
        Raises:
            FileExistsError: the folder holds something else, and ``overwrite`` is False or it is not a stored
                result.
            PermissionError: the folder is not writable.
        """
        return presenting().write_page(self, directory, overwrite=overwrite)

    def write_into(self, folder: Path, *, growing: bool = False) -> None:
        """Writes the files into an existing folder, each atomically.

        Args:
            folder: existing folder.
            growing: whether the run will append rows to ``table.jsonl`` and replace ``arrays.npz``, which
                then get no checksums; each line of the table has its own.
        """
        head = {
            "format": FORMAT,
            "name": self.name,
            "settings": jsonable(self.settings),
            "sources": [source.to_json() for source in self.sources],
            "provenance": jsonable(self.provenance),
        }
        # numpy appends .npz to a path, but not to an open file.
        with files.replacing(folder / "arrays.npz") as draft, draft.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **self.arrays)
        with files.replacing(folder / "table.jsonl") as draft:
            lines = (files.checked_line(row.to_json()) for row in self.table)
            draft.write_text("".join(lines), encoding="utf-8")
        with files.replacing(folder / "verifications.json") as draft:
            draft.write_text(
                json.dumps([verification.to_json() for verification in self.verifications], indent=1) + "\n",
                encoding="utf-8",
            )
        names = [name for name in FILES[1:] if not (growing and name in ("table.jsonl", "arrays.npz"))]
        # Written last, since it holds the checksums of the other files.
        with files.replacing(folder / "result.json") as draft:
            draft.write_text(json.dumps(files.sealed(head, folder, names), indent=2) + "\n", encoding="utf-8")

    def save(self, directory: str | Path, *, overwrite: bool = False) -> Path:
        """Stores the result; the directory appears complete or not at all.

        Raises:
            FileExistsError: the directory exists, and ``overwrite`` is False, it holds no result, or it holds
                the weights of a training.
            PermissionError: the directory is not writable.
        """
        with files.atomic_directory(directory, overwrite=overwrite) as folder:
            self.write_into(folder)
        return Path(directory)

    @classmethod
    def load(cls, directory: str | Path) -> "Result":
        """Reads a stored result; nothing is unpickled.

        Raises:
            ValueError: the directory does not hold a result, its format is not supported, or a file was
                changed after it was stored.
            PermissionError: a file is not readable.
        """
        folder = Path(directory)
        if not (folder / "result.json").exists():
            raise ValueError(f"{folder} must hold {', '.join(FILES)}, result.json is missing; run it again")
        try:
            head = read_json(folder / "result.json")
            if head["format"] != FORMAT:
                origin = (
                    "a newer version stored: install that"
                    if head["format"] > FORMAT
                    else "an older version stored"
                )
                raise ValueError(f"expected format {FORMAT}, got {head['format']}, which {origin}")
            for name in FILES[1:]:
                if not (folder / name).exists():
                    raise ValueError(f"{name} is missing")
                (folder / name).open("rb").close()
            files.check(head, folder)
            verifications = read_json(folder / "verifications.json")
            result = typed(
                cls(
                    head["name"],
                    head["settings"],
                    read_table(folder / "table.jsonl"),
                    read_arrays(folder / "arrays.npz"),
                    tuple(Verification.from_json(record) for record in verifications),
                    tuple(Source.from_json(record) for record in head["sources"]),
                    head["provenance"],
                )
            )
            check_types(Provenance, result.provenance)
            if result.name in COMMANDS:
                check_types(Settings, result.settings)
                for name in REQUIRED.get(result.name, ()):
                    _ = result.settings[name]
            return result
        except PermissionError as error:
            raise PermissionError(
                f"{folder} cannot be read (permission denied); ask its owner, or copy it"
            ) from error
        except KeyError as error:
            raise ValueError(
                f"{folder} does not hold a readable result (result.json lacks {error}); run it again"
            ) from error
        except (ValueError, TypeError, AttributeError, OSError) as error:
            raise ValueError(
                f"{folder} does not hold a readable result ({reason(error)}); run it again"
            ) from error


def read_table(path: Path, *, checked: bool = False) -> Table:
    """Reads the rows of a ``table.jsonl``.

    Args:
        path: the file.
        checked: whether each line must have its checksum. Otherwise it may have one: results of former
            versions have none, and a sealed table has one of the whole.
    Raises:
        ValueError: a line does not hold a measurement, or is not as it was stored.
    """
    check_file(path)
    lines = path.read_text(encoding="utf-8").splitlines()
    return from_records(files.checked_record(line, required=checked) for line in lines)


def provenance(
    *, seed: int | None = None, device: str = "cpu", started: float | None = None
) -> dict[str, Any]:
    """Returns the provenance of a run: versions, seed, threads, device, machine, date, wall time, commit and
    command line.

    Args:
        seed: seed of the run; None if the run uses no seed, or several.
        device: device of the run.
        started: ``time.perf_counter()`` at the start of the run; None omits the wall time.
    """
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
        "command": shlex.join([_program(Path(sys.argv[0])), *sys.argv[1:]]),
        **_commit(),
    }
    if started is not None:
        record["seconds"] = round(time.perf_counter() - started, 3)
    return record


def _program(path: Path) -> str:
    """Returns the name of the program; for ``python -m transformer_theory`` it is ``transformer-theory``."""
    return "transformer-theory" if path.parts[-2:] == ("transformer_theory", "__main__.py") else path.name


@cache
def _commit() -> dict[str, Any]:
    """Returns the commit of the repository that holds this package, and whether the package differs from it;
    empty outside a repository.
    """
    package = Path(__file__).parents[1]
    try:
        # --porcelain=v2 --branch prints the commit, then one line for each file of this folder that differs
        # from it.
        command = [
            "git",
            "-C",
            str(package),
            "status",
            "--porcelain=v2",
            "--branch",
            "--ignored=no",
            "--",
            ".",
        ]
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
        # An installed package may lie inside an unrelated repository, which does not track it.
        tracked = subprocess.run(
            ["git", "-C", str(package), "ls-files", "--", "__init__.py"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return {}
    commit = next((line.split()[-1] for line in lines if line.startswith("# branch.oid ")), "")
    return (
        {"commit": commit, "dirty": any(not line.startswith("#") for line in lines)}
        if commit and tracked
        else {}
    )


def jsonable(value: Any) -> Any:
    """Converts numbers of torch and numpy, tuples, paths and dataclasses to JSON values; NaN and infinities
    become None.
    """
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

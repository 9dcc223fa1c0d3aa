"""The files of one training: what is written at an interval, and in which order.

The checkpoint is written last: whatever moment a training is killed at, the checkpoint belongs to a network and rows that are on the disk.
"""

import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ..core.measurement import Table
from ..core.result import Result
from ..core.sources import Source
from . import saved
from .checkpoint import LENGTH, Checkpoint, check_same
from .folder import BEST, FILES, LAST, TABLE, GrowingTable, is_draft
from .networks import Builder, Pixels, Sizes
from .objectives import Objective


@dataclass
class Store:
    """The folder of a training.

    Attributes:
        folder: of the files.
        definition: settings, objective, precision, data and theories, as they are stored.
        table: the rows.
        objective: of the training.
        networks: of the caller's own.
        sizes: of the network.
        names: of the classes.
        counts: numbers of images, for the settings of the result.
        sources, provenance: of the result.
        run_id: names the run.
        step: of the last checkpoint; None before the first.
        best: largest score so far; None before the first.
    """

    folder: Path
    definition: dict[str, Any]
    table: GrowingTable
    objective: Objective
    networks: Mapping[str, Builder]
    sizes: Sizes
    names: tuple[str, ...]
    counts: Mapping[str, int]
    sources: Sequence[Source]
    provenance: dict[str, Any]
    run_id: str = field(default_factory=lambda: secrets.token_hex(8))
    step: int | None = None
    best: float | None = None

    def remember(self, checkpoint: Checkpoint, warn: Callable[[str], None]) -> bool:
        """Continues the files from a checkpoint. If the best network cannot be read, it is chosen anew from here, with a warning.

        Returns:
            Whether the best network could be read.
        """
        self.run_id, self.step = checkpoint.run_id, checkpoint.step
        try:
            self.load_best()
            self.best = checkpoint.best
        except (FileNotFoundError, ValueError) as error:
            warn(f"the best network so far is lost, and chosen anew from step {checkpoint.step}: {error}")
        return self.best is not None

    def load_best(self) -> saved.Saved:
        """The best network so far.

        Raises:
            FileNotFoundError: there is none.
            ValueError: its file is damaged.
        """
        return saved.load(self.folder / BEST, objectives={self.objective.name: type(self.objective)}, networks=self.networks)

    def score(self, measured: Table) -> float:
        """The score of an interval's measurements; minus infinity if it was not measured."""
        value = measured.select(quantity=self.objective.score, setting="", layer=None).one().value
        return -math.inf if value is None else value

    def write(self, model: Pixels, score: float, *, step: int, **state: Any) -> None:
        """Writes the network if it is the best so far, the rows, and the checkpoint last.

        Args:
            model: the network that was measured.
            score: see :meth:`score`.
            step: of the training.
            state: the other fields of :class:`.Checkpoint` that only the training knows.
        Raises:
            OSError: a file cannot be written; the message says which state stays.
        """
        try:
            if self.best is None or score >= self.best:  # of equal networks the later one, which has been trained longer
                self.best = score
                self.write_best(model, score, step)
            if self.step is None:
                self.begin()
            self.table.write()
            facts = {"run": self.definition, "run_id": self.run_id, "best": self.best, "rows": len(self.table.rows)}
            Checkpoint(step=step, threads=torch.get_num_threads(), **facts, **state).save(self.folder / LAST)
        except OSError as error:
            kept = "nothing was stored" if self.step is None else f"{self.last_state}, --resume continues from it"
            raise OSError(f"cannot write to {self.folder} ({error.strerror or error}); {kept}") from error
        self.step = step

    def begin(self) -> None:
        """Writes the result without a checksum of its table, which will grow."""
        self.result().write_into(self.folder, growing=True)

    def write_best(self, model: Pixels, score: float, step: int) -> None:
        """Writes a network as the best."""
        seed, name = (self.definition["settings"][key] for key in ("seed", "network"))
        origin = {"data": self.definition["data"], "step": step, "seed": seed, "run_id": self.run_id, self.objective.score: score}
        saved.save(
            self.folder / BEST,
            saved.network_of(model).state_dict(),
            network=name,
            sizes=self.sizes,
            objective=self.objective,
            mean=model.mean,
            std=model.std,
            names=self.names,
            origin=origin,
        )

    @property
    def last_state(self) -> str:
        """The last checkpoint, for messages."""
        return f"{self.folder / LAST} holds the last good state, of step {self.step}"

    def result(self) -> Result:
        """The result so far."""
        settings = self.definition | {"run_id": self.run_id, "score": self.objective.score, **self.counts}
        return Result("train", settings, Table(self.table.rows), {}, (), tuple(self.sources), self.provenance)


def continued(folder: Path, stored: Checkpoint, definition: dict[str, Any], *, extend: bool) -> tuple[GrowingTable, bool]:
    """The rows of a stored training, and whether it is now longer; its history enters the definition.

    Args:
        folder: of the training.
        stored: its checkpoint.
        definition: of the training that continues.
        extend: whether it may be longer.
    Raises:
        ValueError: the stored training is another one, or its rows are lost.
    """
    check_same(folder / LAST, stored.run, definition, extend=extend)
    table = GrowingTable.read(folder / TABLE, stored.rows)
    before = {name: stored.run["settings"].get(name) for name in LENGTH}
    longer = any(definition["settings"][name] != value for name, value in before.items())
    if history := [*stored.run.get("extended", ()), *([{"step": stored.step, **before}] if longer else ())]:
        definition["extended"] = history
    return table, longer


def is_killed_start(folder: Path) -> bool:
    """Whether a folder holds nothing but what a training leaves that is killed before its first checkpoint.

    Its network is the untrained one of step 0. A network that has learnt something is never taken for a remnant.
    """
    entries = list(folder.iterdir()) if folder.is_dir() else []
    if not entries or not all(entry.name in FILES or is_draft(entry) for entry in entries) or (folder / LAST).exists():
        return False
    if not (folder / BEST).exists():  # it is written first
        return all(is_draft(entry) for entry in entries)
    try:
        return saved.stored(folder / BEST)[1]["origin"]["step"] == 0
    except (ValueError, KeyError, TypeError):
        return False

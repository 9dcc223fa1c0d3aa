"""The files of one training: their contents at each interval, and the order in which they are written.

The checkpoint is written last. A training may be killed at any moment: the network and the rows of its
checkpoint are then on the disk.
"""

import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ...core.reading import read_arrays
from ...core.result import Result
from ...core.sources import Source
from ...core.table import Arrays, Table
from ...models.image_networks import Builder, Pixels, Sizes
from ...models.stored import BEST, stored
from ..objectives import Objective
from . import saved
from .checkpoint import LENGTH, Checkpoint, check_same
from .folder import CSV, LAST, TABLE, TENSORBOARD, GrowingTable, holds_only_own, is_draft


@dataclass
class Store:
    """The folder of a training.

    Attributes:
        folder: directory of the files.
        definition: settings, objective, precision, data and theories, in the form in which they are stored.
        table: rows measured so far.
        objective: objective of the training.
        networks: builders of the caller's networks, by name.
        sizes: sizes of the network.
        names: names of the classes.
        counts: numbers of training, validation and test images, for the settings of the result.
        sources, provenance: sources and provenance of the result.
        run_id: identifier of the run.
        step: step of the last checkpoint; None before the first checkpoint.
        best: largest score so far; None before the first measurement.
        arrays: sample images with answers and attention maps, see :mod:`.samples`.
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
    arrays: Arrays = field(default_factory=Arrays)

    def remember(self, checkpoint: Checkpoint, warn: Callable[[str], None]) -> bool:
        """Restores identifier, step and best score from a checkpoint.

        If the best network cannot be read, the search for the best network restarts at this step, with a
        warning.

        Returns:
            Whether the best network could be read.
        """
        self.run_id, self.step = checkpoint.run_id, checkpoint.step
        self.arrays = stored_arrays(self.folder)
        try:
            self.load_best()
            self.best = checkpoint.best
        except (FileNotFoundError, ValueError) as error:
            warn(
                "the best network so far is lost; the search for the best network restarts at step "
                f"{checkpoint.step}: {error}"
            )
        return self.best is not None

    def load_best(self) -> saved.Saved:
        """Loads the best network so far.

        Raises:
            FileNotFoundError: no network has been stored.
            ValueError: the file of the network is damaged.
        """
        return saved.load(
            self.folder / BEST, objectives={self.objective.name: type(self.objective)}, networks=self.networks
        )

    def score(self, measured: Table) -> float:
        """Returns the score among an interval's measurements; minus infinity if it has no value."""
        value = measured.select(quantity=self.objective.score, layer=None).one().value
        return -math.inf if value is None else value

    def write(self, model: Pixels, score: float, *, step: int, **state: Any) -> None:
        """Writes the network if it is the best so far, then the rows, then the checkpoint.

        Args:
            model: the network that was measured.
            score: score of the network, see :meth:`score`.
            step: present step of the training.
            state: fields of :class:`.Checkpoint` that the store does not hold.
        Raises:
            OSError: a file cannot be written; the message names the last stored state.
        """
        try:
            # at equal scores the later network, which was trained longer
            if self.best is None or score >= self.best:
                self.best = score
                self.write_best(model, score, step)
            if self.step is None:
                self.begin()
            self.table.write()
            record = {
                "run": self.definition,
                "run_id": self.run_id,
                "best": self.best,
                "rows": len(self.table.rows),
            }
            Checkpoint(step=step, threads=torch.get_num_threads(), **record, **state).save(self.folder / LAST)
        except OSError as error:
            raise OSError(
                f"cannot write to {self.folder} ({error.strerror or error}); {self.last_state(resumed=True)}"
            ) from error
        self.step = step

    def begin(self) -> None:
        """Writes the result, without a checksum of its table, since the table will grow."""
        self.result().write_into(self.folder, growing=True)

    def write_best(self, model: Pixels, score: float, step: int) -> None:
        """Writes a network to the file of the best network."""
        seed, name = (self.definition["settings"][key] for key in ("seed", "network"))
        origin = {
            "data": self.definition["data"],
            "step": step,
            "seed": seed,
            "run_id": self.run_id,
            self.objective.score: score,
        }
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

    def last_state(self, *, resumed: bool = False) -> str:
        """Describes the last checkpoint for messages; ``resumed`` adds that a training can go on from it."""
        if self.step is None:
            return "nothing was stored"
        if not (self.folder / LAST).exists():
            return f"{self.folder / LAST} was removed"
        hint = ", --resume continues from it" if resumed else ""
        return f"{self.folder / LAST} holds the last good state, of step {self.step}{hint}"

    def result(self) -> Result:
        """Returns the result of the rows so far."""
        settings = self.definition | {"run_id": self.run_id, "score": self.objective.score, **self.counts}
        return Result(
            "train",
            settings,
            Table(self.table.rows),
            Arrays(self.arrays),
            (),
            tuple(self.sources),
            self.provenance,
        )


def stored_arrays(folder: Path) -> Arrays:
    """Returns the arrays of a stored result, such as attention maps before the first step; empty if they
    cannot be read.
    """
    try:
        return Arrays(read_arrays(folder / "arrays.npz"))
    except (OSError, ValueError):
        return Arrays()


def load_for_resume(
    folder: Path, stored: Checkpoint, definition: dict[str, Any], *, extend: bool
) -> tuple[GrowingTable, bool]:
    """Returns the rows of a stored training, and whether its continuation is longer than the stored training.

    The earlier lengths of an extended training are added to ``definition`` under "extended".

    Args:
        folder: folder of the training.
        stored: checkpoint of the training.
        definition: definition of the continuation.
        extend: whether the continuation may be longer.
    Raises:
        ValueError: the checkpoint belongs to a different training, or rows are missing.
    """
    check_same(folder / LAST, stored.run, definition, extend=extend)
    table = GrowingTable.read(folder / TABLE, stored.rows)
    before = {name: stored.run["settings"].get(name) for name in LENGTH}
    longer = any(definition["settings"][name] != value for name, value in before.items())
    if history := [*stored.run.get("extended", ()), *([{"step": stored.step, **before}] if longer else ())]:
        definition["extended"] = history
    return table, longer


def is_incomplete_run(folder: Path) -> bool:
    """Returns whether a folder holds only the files of a training that was killed before its first
    checkpoint.

    The network of such a training is that of step 0. A folder with a trained network never qualifies.
    """
    entries = list(folder.iterdir()) if folder.is_dir() else []
    if not entries or not holds_only_own(folder) or (folder / LAST).exists():
        return False
    # the logs are written first, then the network, so there can only be logs and drafts
    if not (folder / BEST).exists():
        return all(is_draft(entry) or entry.name in (CSV, TENSORBOARD) for entry in entries)
    try:
        return stored(folder / BEST)[1]["origin"]["step"] == 0
    except (ValueError, KeyError, TypeError):
        return False

"""Trainings of a fraction of a second: a network of one layer on images of noise, and the comparison of their
files.
"""

import contextlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import torch

from transformer_theory.core.files import replacing
from transformer_theory.core.result import Result
from transformer_theory.core.table import Arrays
from transformer_theory.data.image_data import Images
from transformer_theory.probes import NoAttention
from transformer_theory.training.augment import Augmentation
from transformer_theory.training.image import loop
from transformer_theory.training.image.loop import ProgressUpdate, train
from transformer_theory.training.image.processes import Hardware
from transformer_theory.training.image.saved import load
from transformer_theory.training.image.settings import Settings
from transformer_theory.training.monitor import Monitor

CPU = Hardware("cpu", "float32")
SMALL = Settings(
    network="crate",
    patch_size=4,
    dim=8,
    depth=1,
    heads=2,
    epochs=2,
    batch_size=16,
    validation_share=0.2,
    augmentation=Augmentation(),
)  # two epochs of three steps


def noise(n: int = 60, *, seed: int = 0, name: str = "noise", channels: int = 1) -> Images:
    pixels = torch.randint(
        0, 256, (n, channels, 8, 8), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8
    )
    return Images(pixels=pixels, labels=torch.arange(n) % 3, names=("a", "b", "c"), name=name, sources=())


def trained(
    folder: Path,
    settings: Settings = SMALL,
    *,
    callback: Callable[[ProgressUpdate], None] = lambda update: None,
    channels: int = 1,
    pictures: bool = False,
    **options,
) -> Result:
    """Trains; without ``metrics``, which may be none, and attention maps (``pictures``), the network is not
    probed at all, which saves time.
    """
    with contextlib.ExitStack() as unprobed:
        if "metrics" not in options:
            unprobed.enter_context(patch.object(Monitor, "_measure", side_effect=NoAttention))
            if not pictures:
                unprobed.enter_context(patch.object(loop, "pictured", lambda *given, **named: Arrays()))
        data = (noise(channels=channels), noise(12, seed=1, channels=channels))
        return train(data, settings, folder, **{"hardware": CPU, "callback": callback, **options})


def with_(**values) -> Settings:
    return replace(SMALL, **values)


def draft_of(path: Path) -> Path:
    """The name of a draft of a file, which a process that is killed while it writes the file leaves."""
    # nothing is written, so there is nothing to rename
    with contextlib.suppress(FileNotFoundError), replacing(path) as draft:
        pass
    return draft


def interrupting(step: int) -> Callable[[ProgressUpdate], None]:
    """Ctrl-C after a step."""

    def callback(update: ProgressUpdate) -> None:
        if update.step == step and update.measured is None:
            raise KeyboardInterrupt

    return callback


def table(folder: Path) -> list[dict]:
    """The stored rows, without times."""
    rows = [json.loads(line) for line in (folder / "table.jsonl").read_text().splitlines()]
    return [row for row in rows if row["quantity"] not in ("seconds", "images per second")]


def assert_same(folder: Path, other: Path, **options) -> None:
    """Two trainings have equal files: every tensor, the table and the best network, to the last bit, except
    for the run ids.

    Args:
        options: of :func:`.saved.load`.
    """
    first, second = (torch.load(one / "last.pt", weights_only=True) for one in (folder, other))
    assert first["threads"] == second["threads"]  # else the last bits differ
    for part in ("network", "optimiser", "average"):
        assert_equal(first[part], second[part])
    parts = ("step", "best", "run", "rows")
    assert [first[part] for part in parts] == [second[part] for part in parts]
    assert table(folder) == table(other)
    best, twin = (load(one / "best.safetensors", **options) for one in (folder, other))
    assert_equal(dict(best.model.state_dict()), dict(twin.model.state_dict()))
    assert best.origin | {"run_id": ""} == twin.origin | {"run_id": ""}


def assert_equal(first, second) -> None:
    assert type(first) is type(second)
    if isinstance(first, dict):
        assert first.keys() == second.keys()
        for key in first:
            assert_equal(first[key], second[key])
    elif isinstance(first, list | tuple):
        for one, two in zip(first, second, strict=True):
            assert_equal(one, two)
    elif isinstance(first, torch.Tensor):
        assert torch.equal(first, second)
    else:
        assert first == second

"""Checkpoints: what a training needs to go on as if it had never stopped, in a file that is read without running code.

The rows of its table are not among it, only how many they are (:mod:`.table`): they grow with the training, and are written once.
Nor are random states: the random numbers of a step depend on the seed and the step alone (:mod:`.batches`).
"""

import errno
import os
import pickle
import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .. import __version__
from ..core.files import replacing
from ..data.image_data import Images

FORMAT = 2
PARTS: dict[str, type | tuple[type, ...]] = {
    "run": dict,
    "step": int,
    "seconds": float,
    "best": (float, type(None)),
    "rows": int,
    "network": dict,
    "optimiser": dict,
    "average": (dict, type(None)),
    "memory": list,
}


@dataclass(frozen=True)
class Checkpoint:
    """A training at one step.

    Attributes:
        run: what makes the training: settings, objective, precision and data, by name; plain values.
        step: steps taken.
        seconds: they took.
        best: largest score so far; None before the first.
        rows: of the table beside it that are its own, the first ones.
        network, optimiser: their states, see :mod:`.states`.
        average: state of the running mean; None if there is none.
        memory: what reducers carry from reading to reading, see :meth:`.Observer.memory`.
    """

    run: dict[str, Any]
    step: int
    seconds: float
    best: float | None
    rows: int
    network: dict[str, Any]
    optimiser: dict[str, Any]
    average: dict[str, Any] | None
    memory: list[dict[Any, Any]]

    def save(self, path: Path) -> None:
        """Writes it in one stroke: the old checkpoint stays until the new one is whole.

        Raises:
            OSError: it cannot be written, the disk is full, say.
        """
        held = {"format": FORMAT, "version": __version__, **{name: getattr(self, name) for name in PARTS}}
        with replacing(path) as draft:
            try:
                torch.save(held, draft)
            except RuntimeError as error:  # torch's writer tells a full disk so
                raise OSError(errno.ENOSPC, str(error).splitlines()[0]) from error
            with draft.open("rb") as file:  # on the disk before the old one goes: the machine may stop too
                os.fsync(file.fileno())


def stored_run(path: Path) -> dict[str, Any]:
    """What makes the training that a checkpoint belongs to; nothing but tensors and plain values is unpickled.

    Raises:
        ValueError: the file is damaged, asks for code, or is of another format.
        FileNotFoundError: there is none.
    """
    return load(path).run


def load(path: Path, *, run: dict[str, Any] | None = None) -> Checkpoint:
    """Reads a checkpoint; nothing but tensors and plain values is unpickled.

    Args:
        path: of the file.
        run: what makes the training that is to go on, as :attr:`Checkpoint.run`; not compared if not given.
    Raises:
        ValueError: the file is damaged or asks for code, is of another format, or belongs to another training.
        FileNotFoundError: there is none.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no checkpoint {path} to go on from; leave --resume out to begin")
    try:
        held = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file may fail anywhere in the reader, in the archive as "invalid argument"
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            raise
        if isinstance(error, pickle.UnpicklingError) and (asked := re.search(r"GLOBAL (\S+)", str(error))):
            what = f"something that asks for {asked[1]}, which could run code"
            raise ValueError(f"{path} must be a checkpoint of tensors and plain values, got {what}; it was not read") from error
        raise ValueError(f"{path} must be a whole checkpoint, got a damaged file; begin again without --resume") from error
    if not isinstance(held, dict) or "format" not in held:
        raise ValueError(f"{path} must be a checkpoint of a training, got {type(held).__name__} without a format; name another folder")
    if held["format"] != FORMAT:
        other = f"format {held['format']} of version {held.get('version')}"
        raise ValueError(f"{path} must be of format {FORMAT} as this version ({__version__}) writes it, got {other}; install that version")
    if wrong := [name for name, kind in PARTS.items() if not isinstance(held.get(name, ...), kind)]:
        what = f"{type(held[wrong[0]]).__name__}" if wrong[0] in held else "nothing"
        raise ValueError(f"{path} must hold {', '.join(PARTS)}, got {what} for {wrong[0]}; begin again without --resume")
    if run is not None:
        _same(path, _flat(held["run"]), _flat(run))
    return Checkpoint(**{name: held[name] for name in PARTS})


def _same(path: Path, stored: dict[str, Any], asked: dict[str, Any]) -> None:
    """Raises ValueError unless the stored training is the one asked for."""
    differ = [name for name in {**asked, **stored} if stored.get(name) != asked.get(name)]
    if differ:
        told = ", ".join(f"{name} {stored.get(name)!r} there and {asked.get(name)!r} here" for name in differ[:3])
        raise ValueError(f"{path} belongs to another training: {told}; give the same options, or another --out")


def _flat(values: dict[str, Any]) -> dict[str, Any]:
    """Settings within settings, by their own names."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= _flat(value) if isinstance(value, dict) and name != "objective" else {name: value}
    return flat


def digest(images: Images) -> str:
    """A checksum of images and labels, by which a training notices other data."""
    pixels, labels = images.pixels.contiguous().numpy(), images.labels.contiguous().numpy()
    return f"{len(images)} images, {zlib.crc32(labels.data, zlib.crc32(pixels.data)):08x}"

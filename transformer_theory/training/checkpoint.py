"""Checkpoints: the state from which a training continues exactly, in a file that is read without running code.

A checkpoint stores the number of rows of the table, not the rows (:mod:`.folder`). It stores no random state: the random numbers of a step
depend on the seed and the step only (:mod:`.batches`).

States are stored whole, whether one process holds a parameter or several hold parts of it (:mod:`torch.distributed.fsdp`): a file of one
strategy is a file of any. Optimisers keep their own format of state, numbered by parameter.
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
from torch import Tensor, nn

from .. import __version__
from ..core.files import replacing
from ..data.image_data import Images

FORMAT = 3
PARTS: dict[str, type | tuple[type, ...]] = {
    "run": dict,
    "run_id": str,
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
        run: the definition of the training: settings, objective, precision, data and theories; plain values.
        run_id: names the run; a resumed training keeps it.
        step: number of steps so far.
        seconds: training time so far.
        best: largest score so far; None before the first.
        rows: number of rows of the table at this step.
        network, optimiser: their states, see :func:`whole`.
        average: state of the moving average; None if there is none.
        memory: of the metrics, see :meth:`.Monitor.memory`.
    """

    run: dict[str, Any]
    run_id: str
    step: int
    seconds: float
    best: float | None
    rows: int
    network: dict[str, Any]
    optimiser: dict[str, Any]
    average: dict[str, Any] | None
    memory: list[dict[Any, Any]]

    def save(self, path: Path) -> None:
        """Writes the checkpoint atomically: the old one stays until the new one is complete.

        Raises:
            OSError: it cannot be written, because the disk is full, say.
        """
        stored = {"format": FORMAT, "version": __version__, **{name: getattr(self, name) for name in PARTS}}
        with replacing(path) as draft:
            try:
                torch.save(stored, draft)
            except RuntimeError as error:  # torch reports a full disk in this way
                raise OSError(errno.ENOSPC, str(error).splitlines()[0]) from error
            with draft.open("rb") as file:  # on the disk before it replaces the old one, in case the machine stops
                os.fsync(file.fileno())


def stored_run(path: Path) -> dict[str, Any]:
    """The definition of the training that a checkpoint belongs to; only tensors and plain values are unpickled.

    Raises:
        ValueError: the file is damaged, refers to code, or has another format.
        FileNotFoundError: there is no such file.
    """
    return load(path).run


def load(path: Path, *, run: dict[str, Any] | None = None) -> Checkpoint:
    """Reads a checkpoint; only tensors and plain values are unpickled.

    Args:
        path: of the file.
        run: the definition of the training that continues, as :attr:`Checkpoint.run`; not compared if None.
    Raises:
        ValueError: the file is damaged, refers to code, has another format, or belongs to another training.
        FileNotFoundError: there is no such file.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no checkpoint {path} to continue from; omit --resume to begin")
    try:
        stored = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file may fail anywhere in the reader, also as "invalid argument"
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            raise
        if isinstance(error, pickle.UnpicklingError) and (match := re.search(r"GLOBAL (\S+)", str(error))):
            what = f"a reference to {match[1]}, which could run code"
            raise ValueError(f"{path} must be a checkpoint of tensors and plain values, got {what}; it was not read") from error
        raise ValueError(f"{path} must be a whole checkpoint, got a damaged file; begin again without --resume") from error
    if not isinstance(stored, dict) or "format" not in stored:
        raise ValueError(f"{path} must be a checkpoint of a training, got {type(stored).__name__} without a format; name another folder")
    if stored["format"] != FORMAT:
        other = f"format {stored['format']} of version {stored.get('version')}"
        raise ValueError(f"{path} must be of format {FORMAT} as this version ({__version__}) writes it, got {other}; install that version")
    if wrong := [name for name, kind in PARTS.items() if not isinstance(stored.get(name, ...), kind)]:
        what = f"{type(stored[wrong[0]]).__name__}" if wrong[0] in stored else "nothing"
        raise ValueError(f"{path} must hold {', '.join(PARTS)}, got {what} for {wrong[0]}; begin again without --resume")
    if run is not None:
        _check_same(path, _flat(stored["run"]), _flat(run))
    return Checkpoint(**{name: stored[name] for name in PARTS})


def _check_same(path: Path, stored: dict[str, Any], expected: dict[str, Any]) -> None:
    """Raises ValueError unless the stored training is the expected one."""
    differ = [name for name in {**expected, **stored} if stored.get(name) != expected.get(name)]
    if differ:
        text = ", ".join(f"{name} {stored.get(name)!r} there and {expected.get(name)!r} here" for name in differ[:3])
        raise ValueError(f"{path} belongs to another training: {text}; give the same options, or another --out")


def _flat(values: dict[str, Any]) -> dict[str, Any]:
    """Settings within settings, by their own names."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= _flat(value) if isinstance(value, dict) and name != "objective" else {name: value}
    return flat


def digest(images: Images) -> str:
    """Number and checksum of images and labels, by which a training detects other data."""
    pixels, labels = images.pixels.contiguous().numpy(), images.labels.contiguous().numpy()
    return f"{len(images)} images, {zlib.crc32(labels.data, zlib.crc32(pixels.data)):08x}"


def whole(state: Any) -> Any:
    """A state with whole tensors on the CPU; all processes must call it, and each gets the whole state.

    Args:
        state: a ``state_dict()``: tensors of any shapes ``[...]`` and plain values, in dictionaries and lists.
    """
    if isinstance(state, dict):
        return {key: whole(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(whole(value) for value in state)
    if not isinstance(state, Tensor):
        return state
    return full(state).detach().cpu()


def full(tensor: Tensor) -> Tensor:
    """A whole tensor ``[...]`` on its device; all processes must call it."""
    return tensor.full_tensor() if _is_cut(tensor) else tensor  # pyright: ignore[reportAttributeAccessIssue]


def load_network(network: nn.Module, state: dict[str, Any]) -> None:
    """Loads a state of :func:`whole` into a network; each process keeps its part.

    Raises:
        ValueError: the state is of another network.
    """
    current = network.state_dict()
    try:
        network.load_state_dict({name: _cut(value, current.get(name)) for name, value in state.items()})
    except (RuntimeError, TypeError, AttributeError) as error:
        raise ValueError(f"the weights belong to another network ({str(error).splitlines()[-1].strip()})") from error


def load_optimiser(optimiser: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Loads a state of :func:`whole` into an optimiser; each process keeps its part.

    Raises:
        ValueError: the state is of another optimiser.
    """
    try:
        parts = getattr(optimiser, "parts", None)  # of optimisers.Together
        if parts is None:
            optimiser.load_state_dict(_cut_optimiser(optimiser, state))
        else:
            cut = [_cut_optimiser(part, piece) for part, piece in zip(parts, state["parts"], strict=True)]
            optimiser.load_state_dict({"parts": cut})
    except (LookupError, RuntimeError, TypeError, AttributeError) as error:
        raise ValueError(f"the optimiser's state belongs to another optimiser ({error})") from error


def _cut_optimiser(optimiser: torch.optim.Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    parts = {number: {name: _cut(value, parameters[number]) for name, value in values.items()} for number, values in state["state"].items()}
    return {**state, "state": parts}


def _cut(value: Any, like: Any) -> Any:
    """This process's part of a tensor if its parameter ``like`` is distributed, otherwise the tensor."""
    if not (isinstance(value, Tensor) and _is_cut(like) and value.shape == like.shape):
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements)


def _is_cut(tensor: Any) -> bool:
    return hasattr(tensor, "full_tensor")  # as DTensor has; its module takes a second to import

"""Checkpoints: the state from which a training continues exactly, in a file that is read without running code.

A checkpoint stores the number of rows of the table, not the rows (:mod:`.folder`). It stores no random state: the random numbers of a step
depend on the seed and the step only (:mod:`.batches`).

States are stored whole and by name, whether one process holds a parameter or several hold parts of it: a file of one strategy is a file
of any (:mod:`torch.distributed.checkpoint.state_dict`).
"""

import copy
import errno
import io
import os
import pickle
import re
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .. import __version__
from ..core.files import replacing
from ..data.image_data import Images

FORMAT = 4
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
    "threads": int,
}
RUN: dict[str, type] = {"settings": dict, "objective": dict, "theories": list}  # of the definition, what a caller reads
LENGTH = ("epochs", "minutes")  # settings in which an extended training may differ


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
        network, optimiser: their states, see :func:`network_state` and :func:`optimiser_state`.
        average: state of the moving average; None if there is none.
        memory: of the metrics, see :meth:`.Monitor.memory`.
        threads: number of threads of a process, on which the order of sums and so the last bits depend.
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
    threads: int

    def save(self, path: Path) -> None:
        """Writes the checkpoint atomically: the old one stays until the new one is complete.

        Raises:
            OSError: it cannot be written, because the disk is full, say.
        """
        stored = {"format": FORMAT, "version": __version__, **{name: getattr(self, name) for name in PARTS}}
        # Through memory: torch's own writer reports a full disk as "unexpected pos 15872", Python's by its cause.
        content = io.BytesIO()
        torch.save(stored, content)
        with replacing(path) as draft, draft.open("wb") as file:
            file.write(content.getbuffer())
            file.flush()
            os.fsync(file.fileno())  # on the disk before it replaces the old one, in case the machine stops


def stored_run(path: Path) -> dict[str, Any]:
    """The definition of the training that a checkpoint belongs to; only tensors and plain values are unpickled.

    Raises:
        ValueError: the file is damaged, refers to code, or has another format.
        FileNotFoundError: there is no such file.
    """
    return load(path).run


def load(path: Path) -> Checkpoint:
    """Reads a checkpoint; only tensors and plain values are unpickled.

    Raises:
        ValueError: the file is damaged, refers to code, or has another format.
        FileNotFoundError: there is no such file.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no checkpoint {path} to continue from; leave out --extend to begin")
    try:
        # torch.load does not compare checksums, so a flipped bit would be trained on.
        with zipfile.ZipFile(path) as archive:
            if damaged := archive.testzip():
                raise ValueError(f"the checksum of {damaged} is wrong")
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
    if wrong := [name for name, kind in RUN.items() if not isinstance(stored["run"].get(name), kind)]:
        raise ValueError(f"{path} must hold a run with {', '.join(RUN)}, got none for {wrong[0]}; begin again without --resume")
    return Checkpoint(**{name: stored[name] for name in PARTS})


def check_same(path: Path, stored: dict[str, Any], expected: dict[str, Any], *, extend: bool = False) -> None:
    """Checks that a stored training is the one that shall continue.

    Args:
        path: of the checkpoint, for the message.
        stored, expected: definitions, as :attr:`Checkpoint.run`.
        extend: whether the stored training may be shorter.
    Raises:
        ValueError: it is another training; the settings that differ are named.
    """
    stored, expected = _flat(stored), _flat(expected)
    differ = [name for name in {**expected, **stored} if stored.get(name) != expected.get(name)]
    if longer := extend and any(name in LENGTH for name in differ):
        _check_longer(path, *((values["epochs"], values["minutes"]) for values in (stored, expected)))
    differ = [name for name in differ if not (longer and name in LENGTH)]
    if differ:
        text = ", ".join(f"{name} {stored.get(name)!r} there and {expected.get(name)!r} here" for name in differ[:3])
        hint = "; --extend trains longer" if set(differ) <= set(LENGTH) else ""
        raise ValueError(f"{path} belongs to another training: {text}; give the same options, or another --out{hint}")


def _check_longer(path: Path, stored: tuple[int, float | None], expected: tuple[int, float | None]) -> None:
    """Raises ValueError unless the expected length, epochs and minutes, exceeds the stored one in the same unit."""
    (epochs, minutes), (more_epochs, more_minutes) = stored, expected
    kind = "epochs" if minutes is None else "minutes"
    if (minutes is None) != (more_minutes is None) or (minutes is not None and epochs != more_epochs):
        raise ValueError(f"{path} belongs to a training by {kind}, which more {kind} extend; pass --{kind}")
    before, now = (epochs, more_epochs) if minutes is None or more_minutes is None else (minutes, more_minutes)
    if now < before:
        raise ValueError(f"{path} belongs to a training of {before:g} {kind}, which is extended by more, got {now:g}")


def _flat(values: dict[str, Any]) -> dict[str, Any]:
    """Settings within settings, by their own names; without the history of the run."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if name != "extended":
            flat |= _flat(value) if isinstance(value, dict) and name not in ("objective", "weights") else {name: value}
    return flat


def digest(images: Images) -> str:
    """Number and checksum of images and labels, by which a training detects other data."""
    pixels, labels = images.pixels.contiguous().numpy(), images.labels.contiguous().numpy()
    return f"{len(images)} images, {zlib.crc32(labels.data, zlib.crc32(pixels.data)):08x}"


def network_state(network: nn.Module) -> dict[str, Tensor]:
    """Weights and buffers, whole and on the CPU, under the names of the network without wrappers; all processes must call it."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    # Not with cpu_offload=True, which would leave the state empty in all processes but the first; each of them measures the network.
    state = get_model_state_dict(network, options=StateDictOptions(full_state_dict=True))
    return {name: value.to("cpu", copy=True) for name, value in state.items() if isinstance(value, Tensor)}


def optimiser_state(network: nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, Any]:
    """The state of an optimiser by names of parameters, whole and on the CPU. All processes must call it; the first one gets the state.

    It is empty before the first step, and in the other processes. Before the first step torch would create the state by a step with zero
    gradients, which counts in the bias correction of Adam; so torch is not asked then.
    """
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict

    if not any(part.state for part in _parts(optimiser)):
        return {}
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    return copy.deepcopy(dict(get_optimizer_state_dict(network, _parts(optimiser), options=options)))


def load_network(network: nn.Module, state: dict[str, Any]) -> None:
    """Loads a :func:`network_state`; each process keeps its part.

    Raises:
        ValueError: the state is of another network.
    """
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

    try:
        set_model_state_dict(network, state, options=StateDictOptions(full_state_dict=True))
    except (RuntimeError, TypeError, AttributeError, KeyError) as error:
        raise ValueError(f"the weights belong to another network ({str(error).splitlines()[-1].strip()})") from error


def load_optimiser(network: nn.Module, optimiser: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Loads an :func:`optimiser_state` of a training that has taken steps; each process keeps its part.

    Raises:
        ValueError: the state is of another optimiser.
    """
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_optimizer_state_dict

    # torch loads what it finds: a parameter without a stored state would silently begin with moments of 0.
    names = {id(weight): name for name, weight in network.named_parameters()}
    expected = {names[id(weight)] for group in optimiser.param_groups for weight in group["params"]}
    stored = {name for group in state.get("param_groups", ()) for name in group.get("params", ())}
    moments = set(state.get("state", ()))
    if stored != expected or not moments or moments - expected:
        differ = min(map(str, (stored ^ expected) | (moments - expected)), default="every parameter")
        raise ValueError(f"the optimiser's state belongs to another optimiser ({differ} is in one of them only)")
    try:
        set_optimizer_state_dict(network, _parts(optimiser), state, options=StateDictOptions(full_state_dict=True))
    except (LookupError, RuntimeError, TypeError, AttributeError, AssertionError) as error:
        raise ValueError(f"the optimiser's state belongs to another optimiser ({error})") from error
    # Loading replaces the groups of each part; the wrappers around the parts must not keep the old ones, whose learning rates no step uses.
    groups = [group for part in _parts(optimiser) for group in part.param_groups]
    for group in groups:
        group.update({name: tuple(value) for name, value in group.items() if isinstance(value, list) and name != "params"})
    for layer in (optimiser, getattr(optimiser, "optimizer", optimiser)):
        layer.param_groups = groups


def _parts(optimiser: torch.optim.Optimizer) -> list[torch.optim.Optimizer]:
    """The optimisers inside a :class:`.optimisers.Together` or a wrapper of Fabric; otherwise the optimiser itself."""
    inside = getattr(optimiser, "optimizer", optimiser)
    return list(getattr(inside, "parts", (inside,)))

"""Checkpoints: the state from which a training continues exactly, in a file that can be read without running
code.

A checkpoint stores the number of rows of the table of measurements, not the rows (:mod:`.folder`). It stores
no random state: the random numbers of a step depend on the seed and the step only (:mod:`.batches`).

States are stored whole and by parameter name, even if several processes hold parts of a parameter. A training
under one strategy can therefore read the file of a training under any other
(:mod:`torch.distributed.checkpoint.state_dict`).
"""

import copy
import errno
import io
import os
import pickle
import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ... import __version__
from ...core.cluster import versions
from ...core.errors import abbreviated_list
from ...core.files import replacing
from ...data.image_data import Images
from ...models.weights import check_archive

FORMAT = 5
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
# required entries of the definition, and their types
RUN: dict[str, type] = {"settings": dict, "objective": dict, "theories": list}
LENGTH = ("epochs", "minutes")  # settings that an extended training may change


@dataclass(frozen=True)
class Checkpoint:
    """A training at one step.

    Attributes:
        run: definition of the training as plain values: settings, objective, precision, data and theories.
        run_id: identifier of the run; a resumed training keeps it.
        step: number of steps so far.
        seconds: training time so far.
        best: largest score so far; None before the first measurement.
        rows: number of rows of the table at this step.
        network, optimiser: states of network and optimiser, see :func:`network_state` and
            :func:`optimiser_state`.
        average: state of the moving average; None if the training has none.
        memory: memory of the metrics, see :meth:`.Monitor.memory`.
        threads: number of threads of a process. It determines the order of sums, and so the last bits of the
            results.
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
            OSError: the file cannot be written, for example because the disk is full.
        """
        stored = {"format": FORMAT, "version": __version__, **{name: getattr(self, name) for name in PARTS}}
        # Serialise in memory and let Python write the file: on a full disk, torch's writer only reports
        # "unexpected pos 15872".
        content = io.BytesIO()
        torch.save(stored, content)
        with replacing(path) as draft, draft.open("wb") as file:
            file.write(content.getbuffer())
            file.flush()
            # the file is on the disk before it replaces the old one, even if the machine stops
            os.fsync(file.fileno())


def stored_run(path: Path) -> dict[str, Any]:
    """Returns the definition of the training that a checkpoint belongs to; only tensors and plain values are
    unpickled.

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
        raise FileNotFoundError(
            f"{path} does not exist, so there is no training to extend; omit --extend to begin one"
        )
    try:
        check_archive(path)
        stored = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file may raise anything in the readers, even OSError with EINVAL
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            raise
        if isinstance(error, pickle.UnpicklingError) and (match := re.search(r"GLOBAL (\S+)", str(error))):
            # torch's message: "... Unsupported global: GLOBAL name ..."
            reference = f"a reference to {match[1]}, which could run code"
            raise ValueError(
                f"{path} must be a checkpoint of tensors and plain values, got {reference}; it was not read"
            ) from error
        raise ValueError(
            f"{path} must be a whole checkpoint, got a damaged file; begin again without --resume"
        ) from error
    if not isinstance(stored, dict) or "format" not in stored:
        raise ValueError(
            f"{path} must be a checkpoint of a training, got {type(stored).__name__} without a format; name "
            "another folder"
        )
    if stored["format"] != FORMAT:
        other = f"format {stored['format']} of version {stored.get('version')}"
        raise ValueError(
            f"{path} must be of format {FORMAT} as this version ({__version__}) writes it, got {other}; "
            "install the version that wrote it"
        )
    # Ellipsis as the default distinguishes a missing entry from None, which some entries may be.
    if invalid := [name for name, kind in PARTS.items() if not isinstance(stored.get(name, ...), kind)]:
        type_name = f"{type(stored[invalid[0]]).__name__}" if invalid[0] in stored else "nothing"
        raise ValueError(
            f"{path} must hold {', '.join(PARTS)}, got {type_name} for {invalid[0]}; begin again without "
            "--resume"
        )
    if invalid := [name for name, kind in RUN.items() if not isinstance(stored["run"].get(name), kind)]:
        raise ValueError(
            f"{path} must hold a run with {', '.join(RUN)}, got none for {invalid[0]}; begin again without "
            "--resume"
        )
    return Checkpoint(**{name: stored[name] for name in PARTS})


def check_same(path: Path, stored: dict[str, Any], expected: dict[str, Any], *, extend: bool = False) -> None:
    """Checks that a stored training is the one that the caller wants to continue.

    Args:
        path: path of the checkpoint, for the message.
        stored, expected: definitions of the two trainings, see :attr:`Checkpoint.run`.
        extend: whether the stored training may be shorter.
    Raises:
        ValueError: the trainings differ; the message names the first settings that differ.
    """
    stored, expected = _flatten(stored), _flatten(expected)
    differing = [name for name in {**expected, **stored} if stored.get(name) != expected.get(name)]
    if longer := extend and any(name in LENGTH for name in differing):
        _check_longer(path, *((values["epochs"], values["minutes"]) for values in (stored, expected)))
    differing = [name for name in differing if not (longer and name in LENGTH)]
    if differing:
        text = ", ".join(
            f"{name} {stored.get(name)!r} there and {expected.get(name)!r} here" for name in differing[:3]
        )
        hint = "; --extend trains longer" if set(differing) <= set(LENGTH) else ""
        same = "install the same versions" if set(differing) <= versions().keys() else "give the same options"
        raise ValueError(f"{path} belongs to another training: {text}; {same}, or another --out{hint}")


def _check_longer(path: Path, stored: tuple[int, float | None], expected: tuple[int, float | None]) -> None:
    """Raises :class:`ValueError` unless the expected length exceeds the stored length in the same unit,
    epochs or minutes.
    """
    (epochs, minutes), (more_epochs, more_minutes) = stored, expected
    kind = "epochs" if minutes is None else "minutes"
    if (minutes is None) != (more_minutes is None) or (minutes is not None and epochs != more_epochs):
        raise ValueError(f"{path} belongs to a training by {kind}; extend it with --{kind}")
    before, now = (
        (epochs, more_epochs) if minutes is None or more_minutes is None else (minutes, more_minutes)
    )
    if now < before:
        raise ValueError(
            f"{path} belongs to a training of {before:g} {kind}; --extend needs a larger number, got {now:g}"
        )


def _flatten(values: dict[str, Any]) -> dict[str, Any]:
    """Flattens nested settings to their innermost names, without the earlier lengths of an extended run and
    the place of its weights.
    """
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if name == "weights":  # of the same weights, by their checksum; their file may have moved
            value = {key: part for key, part in value.items() if key != "file"}
        if name != "extended":
            flat |= (
                _flatten(value)
                if isinstance(value, dict) and name not in ("objective", "weights")
                else {name: value}
            )
    return flat


def identity(train: Images, test: Images) -> dict[str, Any]:
    """Returns what the numbers of a training depend on beside its settings: the images, the names of the
    classes, and the versions of the code.
    """
    names = "\n".join(train.names).encode()
    return {
        "images": digest(train),
        "test_images": digest(test),
        "class_names": f"{abbreviated_list(train.names)}; {zlib.crc32(names):08x}",
        "code": versions(),
    }


def digest(images: Images) -> str:
    """Returns the number and the checksum of images and labels, by which a resumed training detects different
    data.
    """
    pixels, labels = images.pixels.contiguous().numpy(), images.labels.contiguous().numpy()
    return f"{len(images)} images, {zlib.crc32(labels.data, zlib.crc32(pixels.data)):08x}"


def network_state(network: nn.Module) -> dict[str, Tensor]:
    """Returns weights and buffers, whole and on the CPU, under the names of the network without wrappers. All
    processes must call it.
    """
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    # With cpu_offload=True the state would be empty in all processes except the first, but every process
    # measures the network.
    state = get_model_state_dict(network, options=StateDictOptions(full_state_dict=True))
    return {name: value.to("cpu", copy=True) for name, value in state.items() if isinstance(value, Tensor)}


def optimiser_state(network: nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, Any]:
    """Returns the state of an optimiser by parameter names, whole and on the CPU. All processes must call it.

    The state is empty before the first step, and in all processes except the first. Before the first step
    torch would create the state by a step with zero gradients, which would count in the bias correction of
    Adam; this function does not call torch then.
    """
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict

    if not any(part.state for part in _parts(optimiser)):
        return {}
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    return copy.deepcopy(dict(get_optimizer_state_dict(network, _parts(optimiser), options=options)))


def load_network(network: nn.Module, state: dict[str, Any]) -> None:
    """Loads a :func:`network_state`; each process keeps its part.

    Raises:
        ValueError: the state belongs to a different network.
    """
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

    try:
        set_model_state_dict(network, state, options=StateDictOptions(full_state_dict=True))
    except (RuntimeError, TypeError, AttributeError, KeyError) as error:
        raise ValueError(
            f"the weights belong to another network ({str(error).splitlines()[-1].strip()})"
        ) from error


def load_optimiser(network: nn.Module, optimiser: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Loads an :func:`optimiser_state` of a training that has taken at least one step; each process keeps its
    part.

    Raises:
        ValueError: the state belongs to a different optimiser.
    """
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_optimizer_state_dict

    # torch ignores missing entries: a parameter without a stored state would silently begin with moments of
    # 0.
    names = {id(weight): name for name, weight in network.named_parameters()}
    expected = {names[id(weight)] for group in optimiser.param_groups for weight in group["params"]}
    stored = {name for group in state.get("param_groups", ()) for name in group.get("params", ())}
    moments = set(state.get("state", ()))
    if stored != expected or not moments or moments - expected:
        differing = sorted(map(str, (stored ^ expected) | (moments - expected)))
        reason = f"{differing[0]} is in one of them only" if differing else "it holds no moments"
        raise ValueError(f"the optimiser's state belongs to another optimiser ({reason})")
    try:
        set_optimizer_state_dict(
            network, _parts(optimiser), state, options=StateDictOptions(full_state_dict=True)
        )
    except (LookupError, RuntimeError, TypeError, AttributeError, AssertionError) as error:
        raise ValueError(f"the optimiser's state belongs to another optimiser ({error})") from error
    # Loading replaces the parameter groups of each part. The wrappers must refer to the new groups: a
    # schedule that set learning rates in the old groups would have no effect. Loading also turns tuples, such
    # as betas, into lists.
    groups = [group for part in _parts(optimiser) for group in part.param_groups]
    for group in groups:
        group.update(
            {
                name: tuple(value)
                for name, value in group.items()
                if isinstance(value, list) and name != "params"
            }
        )
    for layer in (optimiser, getattr(optimiser, "optimizer", optimiser)):
        layer.param_groups = groups


def _parts(optimiser: torch.optim.Optimizer) -> list[torch.optim.Optimizer]:
    """Returns the optimisers inside a :class:`.optimisers.Together` or a wrapper of Fabric; otherwise the
    optimiser itself.
    """
    inside = getattr(optimiser, "optimizer", optimiser)
    return list(getattr(inside, "parts", (inside,)))

"""The start of a training from the weights of a stored network."""

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from torch import nn

from ..models.weights import fill
from .folder import network_file
from .machine import shapes_of
from .networks import NETWORKS, Sizes
from .saved import CHECKSUM, checksum, stored

Note = Callable[[str], None]


def origin_of(path: str | Path) -> dict[str, Any]:
    """Where weights come from, for the settings of the run that starts from them: file, run id, step, data and checksum.

    Raises:
        ValueError: the file is no trained network, or damaged.
        FileNotFoundError: there is no such file.
    """
    path = network_file(path)
    weights, record = stored(path)
    origin = record.get("origin")
    origin = origin if isinstance(origin, dict) else {}
    return {"file": str(path), **{name: origin.get(name) for name in ("run_id", "step", "data")}, CHECKSUM: checksum(weights, record)}


def start_from(path: str | Path, network: nn.Module, *, name: str, sizes: Sizes, build: Callable[[Sizes], nn.Module], note: Note) -> None:
    """Copies the weights of a stored network into a new one of the same kind and sizes.

    If the numbers of classes differ, the weights that depend on it, the head, keep their initial values.

    Args:
        path: a ``.safetensors`` file that a training wrote, or the folder of its run.
        network: to be filled; without the normalisation, which belongs to the data.
        name, sizes: of the network.
        build: makes such a network of other sizes.
        note: is called with a line if the head starts anew.
    Raises:
        ValueError: the stored network is of another kind, or a size, a name or a shape differs; each is named.
        FileNotFoundError: there is no such file.
    """
    path = network_file(path)
    weights, record = stored(path)
    try:
        before = Sizes(**record["sizes"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} does not describe a network ({error}); choose another") from error
    differ = {field: (there, getattr(sizes, field)) for field, there in asdict(before).items() if field != "num_classes"}
    differ = {"network": (record.get("network"), name)} | differ
    if texts := [f"{field} {there!r} there and {here!r} here" for field, (there, here) in differ.items() if there != here]:
        raise ValueError(f"weights must come from a network of the same kind and sizes, {path} has {', '.join(texts)}")
    initial = network.state_dict()
    head: list[str] = []
    if before.num_classes != sizes.num_classes:
        # The head is what has another shape in a network for the other number of classes; no name says so.
        shapes = shapes_of(lambda: build(replace(sizes, num_classes=before.num_classes)), own=name not in NETWORKS).state_dict()
        head = [
            weight
            for weight, value in initial.items()
            if weight in weights and weight in shapes and weights[weight].shape == shapes[weight].shape != value.shape
        ]
        note(f"{path} has {before.num_classes} classes, the data have {sizes.num_classes}: {', '.join(head)} start anew")
    try:
        fill(network, {**weights, **{weight: initial[weight] for weight in head}})
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error

"""Initialisation of a training with the weights of a stored network."""

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
    """Returns the origin of stored weights: file, run id, step, data and checksum.

    A run that starts from the weights stores it in its settings.

    Raises:
        ValueError: the file is not a trained network, or is damaged.
        FileNotFoundError: there is no such file.
    """
    path = network_file(path)
    weights, record = stored(path)
    origin = record.get("origin")
    origin = origin if isinstance(origin, dict) else {}
    return {"file": str(path), **{name: origin.get(name) for name in ("run_id", "step", "data")}, CHECKSUM: checksum(weights, record)}


def start_from(path: str | Path, network: nn.Module, *, name: str, sizes: Sizes, build: Callable[[Sizes], nn.Module], note: Note) -> None:
    """Copies the weights of a stored network into a new one of the same kind and sizes.

    If the numbers of classes differ, the weights whose shapes depend on that number (the head) keep their initial values.

    Args:
        path: a ``.safetensors`` file that a training wrote, or the folder of its run.
        network: network that receives the weights, without the normalisation, which belongs to the data.
        name, sizes: name and sizes of ``network``.
        build: builds a network of the same kind for given sizes.
        note: called with a message if the head keeps its initial values.
    Raises:
        ValueError: the kind, a size, a name or a shape of the stored network differs; the message lists the differences.
        FileNotFoundError: there is no such file.
    """
    path = network_file(path)
    weights, record = stored(path)
    try:
        stored_sizes = Sizes(**record["sizes"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} does not describe a network ({error}); choose another") from error
    pairs = {field: (there, getattr(sizes, field)) for field, there in asdict(stored_sizes).items() if field != "num_classes"}
    pairs = {"network": (record.get("network"), name)} | pairs
    if differences := [f"{field} {there!r} there and {here!r} here" for field, (there, here) in pairs.items() if there != here]:
        raise ValueError(f"weights must come from a network of the same kind and sizes, {path} has {', '.join(differences)}")
    initial = network.state_dict()
    head: list[str] = []
    if stored_sizes.num_classes != sizes.num_classes:
        # Names do not identify the head. It consists of the weights whose shape depends on the number of classes: the stored shape is that
        # of a network for the stored number of classes, and differs from the shape in the new network.
        shapes = shapes_of(lambda: build(replace(sizes, num_classes=stored_sizes.num_classes)), own=name not in NETWORKS).state_dict()
        head = [
            weight
            for weight, value in initial.items()
            if weight in weights and weight in shapes and weights[weight].shape == shapes[weight].shape != value.shape
        ]
        note(f"{path} has {stored_sizes.num_classes} classes, the data have {sizes.num_classes}: {', '.join(head)} start anew")
    try:
        fill(network, {**weights, **{weight: initial[weight] for weight in head}})
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error

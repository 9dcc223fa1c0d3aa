"""Files of trained networks, as a training writes and reads them, with the objective.

:mod:`~transformer_theory.models.stored` describes the file, and :func:`~transformer_theory.models.load`
returns the network alone.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ... import __version__
from ...core.files import replacing
from ...models.image_networks import Builder, Pixels, Sizes, own_networks
from ...models.stored import CHECKSUM, FORMAT, KEY, checksum, network_file, stored
from ...models.weights import fill
from ..objectives import OBJECTIVES, Objective, Objectives
from .memory import shapes_of


@dataclass(frozen=True)
class Saved:
    """A trained network and its origin.

    Attributes:
        model: the network on images ``[b, c, h, w]`` in [0, 1]; on the CPU and in evaluation mode.
        network: name of the network, see :func:`.image_networks.builder`.
        sizes: sizes of the network.
        objective: objective of the training.
        names: names of the classes.
        origin: data, step, seed, run id and score.
        networks: builders of the caller's networks, by name.
    """

    model: Pixels
    network: str
    sizes: Sizes
    objective: Objective
    names: tuple[str, ...]
    origin: dict[str, Any]
    networks: Mapping[str, Builder] = field(default_factory=dict, repr=False)

    def untrained(self) -> nn.Module:
        """Returns a network of the same kind and sizes with initial weights, without the normalisation."""
        with own_networks(self.networks):
            return self.objective.network(self.network, self.sizes)


def save(
    path: Path,
    weights: Mapping[str, Tensor],
    *,
    network: str,
    sizes: Sizes,
    objective: Objective,
    mean: Tensor,
    std: Tensor,
    names: tuple[str, ...],
    origin: Mapping[str, Any],
) -> None:
    """Writes weights and metadata atomically, and waits until they are on the disk.

    Args:
        path: file to write; ends in ``.safetensors``.
        weights: weights of the network, without the normalisation.
        network, sizes, objective, names, origin: see :class:`Saved`.
        mean, std: constants of the normalisation, ``[c]``.
    Raises:
        OSError: the file cannot be written.
    """
    from safetensors.torch import save as serialised

    record = {
        "format": FORMAT,
        "version": __version__,
        "network": network,
        "sizes": asdict(sizes),
        "objective": {"name": objective.name, **asdict(objective)},  # pyright: ignore[reportArgumentType]
        "mean": mean.flatten().tolist(),
        "std": std.flatten().tolist(),
        "names": list(names),
        "origin": dict(origin),
    }
    tensors = {name: value.detach().to("cpu", copy=True).contiguous() for name, value in weights.items()}
    record[CHECKSUM] = checksum(tensors, record)
    with replacing(path) as draft, draft.open("wb") as file:
        file.write(serialised(tensors, metadata={KEY: json.dumps(record)}))
        file.flush()
        os.fsync(file.fileno())  # the checkpoint, which is written next, relies on this file


def load(
    path: str | Path, *, objectives: Objectives = OBJECTIVES, networks: Mapping[str, Builder] | None = None
) -> Saved:
    """Loads the network from a file that a training wrote.

    Args:
        path: a ``.safetensors`` file, or the folder of a run, whose ``best.safetensors`` is loaded.
        objectives: classes of objectives by name; those of theories must be passed.
        networks: builders of your networks by name, as they were passed to the training.
    Raises:
        ValueError: the file is damaged, was written by another program or a newer version, names an unknown
            network or objective, or has weights that do not fit the sizes.
        FileNotFoundError: there is no such file.
    """
    path = network_file(path)
    weights, record = stored(path)
    try:
        sizes = Sizes(**record["sizes"])
        fields = dict(record["objective"])
        name = fields.pop("name")
        if name not in objectives:
            raise ValueError(f"its objective {name!r} is unknown; pass objectives= with it")
        objective = objectives[name](**fields)
        # otherwise a huge wrong depth would be built layer by layer before shapes are compared
        if sizes.depth > len(weights):
            raise ValueError(f"its depth {sizes.depth} exceeds its number of weights, {len(weights)}")
        with own_networks(networks):
            shapes = shapes_of(
                lambda: objective.network(record["network"], sizes), own=record["network"] in (networks or {})
            )
        mean, std = torch.tensor(record["mean"]), torch.tensor(record["std"])
        Pixels(shapes, mean, std)  # raises if mean or std are invalid
        names, origin = tuple(map(str, record["names"])), dict(record["origin"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path} does not describe a network that this version can build ({error}); train it again"
        ) from error
    try:
        expected = {name: value.shape for name, value in shapes.state_dict().items()}
        if expected != {name: value.shape for name, value in weights.items()}:
            # raises and names the differences, before memory is allocated for the network
            fill(shapes, weights)
        with torch.random.fork_rng(devices=[]), own_networks(networks):
            network = objective.network(record["network"], sizes)
        fill(network, weights)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return Saved(
        Pixels(network, mean, std).eval(), record["network"], sizes, objective, names, origin, networks or {}
    )


def network_of(model: nn.Module) -> nn.Module:
    """Returns the network without the normalisation before it."""
    return model.network if isinstance(model, Pixels) else model

"""Trained networks in files: weights for exchange, with the sizes and names from which the network is built.

A ``.safetensors`` file holds the weights under the network's parameter names (for CRATE those of the released networks) and, as metadata,
sizes, objective, normalisation, class names and origin in JSON. It contains no code.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .. import __version__
from ..core.files import replacing
from ..models.weights import fill, load_weights
from .folder import network_file
from .networks import Pixels, Sizes
from .objectives import OBJECTIVES, Objective, Objectives

FORMAT = 1
KEY = "transformer_theory"


@dataclass(frozen=True)
class Saved:
    """A trained network and its origin.

    Attributes:
        model: its input is images ``[b, c, h, w]`` in [0, 1]; on the CPU, in evaluation mode.
        network: its name among :data:`.networks.NETWORKS`.
        sizes: of the network.
        objective: of the training.
        names: of the classes.
        origin: data, step, seed, run id and score.
    """

    model: Pixels
    network: str
    sizes: Sizes
    objective: Objective
    names: tuple[str, ...]
    origin: dict[str, Any]


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
    """Writes weights and metadata atomically.

    Args:
        path: ends in ``.safetensors``.
        weights: the network's, without the normalisation.
        mean, std: of the normalisation, ``[c]``.
    Raises:
        OSError: it cannot be written.
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
    with replacing(path) as draft:
        draft.write_bytes(serialised(tensors, metadata={KEY: json.dumps(record)}))


def load(path: str | Path, *, objectives: Objectives = OBJECTIVES) -> Saved:
    """Loads the network from a file that a training wrote.

    Args:
        path: a ``.safetensors`` file, or the folder of a run, whose ``best.safetensors`` is loaded.
        objectives: by name; those of theories must be passed.
    Raises:
        ValueError: the file is damaged, comes from another program or a newer version, has an unknown objective, or weights and sizes
            disagree.
        FileNotFoundError: there is no such file.
    """
    path = network_file(path)
    if path.suffix != ".safetensors":
        raise ValueError(f"a trained network must be a .safetensors file or the folder of a run, got {path}")
    weights = load_weights(path)
    record = _metadata(path)
    if record.get("format") != FORMAT:
        newer = f"format {record.get('format')} of version {record.get('version')}"
        raise ValueError(f"{path} must be of format {FORMAT} as this version ({__version__}) writes it, got {newer}; install that version")
    try:
        sizes = Sizes(**record["sizes"])
        fields = dict(record["objective"])
        name = fields.pop("name")
        if name not in objectives:
            raise ValueError(f"its objective {name!r} is unknown; pass objectives= with it")
        objective = objectives[name](**fields)
        with torch.random.fork_rng(devices=[]):
            network = objective.network(record["network"], sizes)
        model = Pixels(network, torch.tensor(record["mean"]), torch.tensor(record["std"]))
        names, origin = tuple(map(str, record["names"])), dict(record["origin"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} does not describe a network that this version can build ({error}); train it again") from error
    try:
        fill(network, weights)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return Saved(model.eval(), record["network"], sizes, objective, names, origin)


def _metadata(path: Path) -> dict[str, Any]:
    from safetensors import safe_open

    with safe_open(path, framework="pt") as opened:
        text = (opened.metadata() or {}).get(KEY)
    if text is None:
        hint = "models.load_weights reads weights alone"
        raise ValueError(f"{path} must be a network that `train` has stored, got weights without their origin; {hint}")
    try:
        record = json.loads(text)
        assert isinstance(record, dict)
    except (json.JSONDecodeError, AssertionError) as error:
        raise ValueError(f"{path} must describe its network in JSON, got something else ({error}); train it again") from error
    return record


def network_of(model: nn.Module) -> nn.Module:
    """The network without the normalisation before it."""
    return model.network if isinstance(model, Pixels) else model

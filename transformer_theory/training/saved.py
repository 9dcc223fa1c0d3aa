"""Trained networks in files: weights for exchange, with what is needed to build the network that they belong to.

A ``.safetensors`` file holds the weights under the network's own names (those of the released networks for CRATE) and, as metadata, sizes,
objective, normalisation, class names and origin in JSON. Nothing in it is code.
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
from .objectives import OBJECTIVES, Objective

FORMAT = 1
KEY = "transformer_theory"


@dataclass(frozen=True)
class Saved:
    """A trained network and where it comes from.

    Attributes:
        model: reads images ``[b, c, h, w]`` in [0, 1]; on the CPU, in evaluation mode.
        network: its name among :data:`.networks.NETWORKS`.
        sizes: of it.
        objective: it was trained on.
        names: of the classes.
        origin: data, step, seed and version, for reports.
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
    """Writes weights and what they belong to in one stroke.

    Args:
        path: ends in ``.safetensors``.
        weights: the network's, without the normalisation.
        mean, std: of the normalisation, ``[c]``.
    Raises:
        OSError: it cannot be written.
    """
    from safetensors.torch import save as serialised

    told = {
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
        draft.write_bytes(serialised(tensors, metadata={KEY: json.dumps(told)}))


def load(path: str | Path) -> Saved:
    """The network of a file that a training wrote.

    Args:
        path: a ``.safetensors`` file, or the folder of a run, of which it is ``best.safetensors``.
    Raises:
        ValueError: the file is damaged, was written by something else or by a newer version, or weights and sizes do not fit.
        FileNotFoundError: there is none.
    """
    path = network_file(path)
    if path.suffix != ".safetensors":
        raise ValueError(f"a trained network must be a .safetensors file or the folder of a run, got {path}")
    weights = load_weights(path)
    told = _metadata(path)
    if told.get("format") != FORMAT:
        newer = f"format {told.get('format')} of version {told.get('version')}"
        raise ValueError(f"{path} must be of format {FORMAT} as this version ({__version__}) writes it, got {newer}; install that version")
    try:
        sizes = Sizes(**told["sizes"])
        given = dict(told["objective"])
        objective = OBJECTIVES[given.pop("name")](**given)
        with torch.random.fork_rng(devices=[]):
            network = objective.network(told["network"], sizes)
        model = Pixels(network, torch.tensor(told["mean"]), torch.tensor(told["std"]))
        names, origin = tuple(map(str, told["names"])), dict(told["origin"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} does not tell a network that this version can build ({error}); train it again") from error
    try:
        fill(network, weights)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return Saved(model.eval(), told["network"], sizes, objective, names, origin)


def _metadata(path: Path) -> dict[str, Any]:
    from safetensors import safe_open

    with safe_open(path, framework="pt") as opened:
        text = (opened.metadata() or {}).get(KEY)
    if text is None:
        hint = "weights alone are read with models.load_weights"
        raise ValueError(f"{path} must be a network that `train` has saved, got weights without their origin; {hint}")
    try:
        told = json.loads(text)
        assert isinstance(told, dict)
    except (json.JSONDecodeError, AssertionError) as error:
        raise ValueError(f"{path} must tell its network in JSON, got something else ({error}); train it again") from error
    return told


def network_of(model: nn.Module) -> nn.Module:
    """The network without the normalisation before it."""
    return model.network if isinstance(model, Pixels) else model

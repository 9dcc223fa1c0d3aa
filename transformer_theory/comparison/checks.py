"""Checks of a user's network before it is measured: its weights, its inputs, whether it is a causal language
model, and a second network.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..core.errors import first_line
from ..core.reading import read_json
from ..models.image_side import interpolate_positions, side_of
from ..models.user_model import UserModel
from ..probes.evaluation import evaluation, logits_of
from ..probes.main_input import MainInput, main_input
from ..probes.modules import check_stored
from ..probes.passes import Inputs, run, selected
from .user_images import NORMALISATION

TOKENIZER = "tokenizer.json"
CAUSAL_RTOL = 1e-2  # largest relative change of earlier logits by the last id; half precision rounds to 4e-3


def check_weights(network: nn.Module, name: str) -> None:
    """Checks that the weights of a network are finite.

    Raises:
        ValueError: a weight is NaN or infinite, or has no value.
    """
    check_stored(network, name)
    for key, weight in network.named_parameters():
        if not weight.is_meta and not bool(weight.isfinite().all()):
            raise ValueError(
                f"{name} must have finite weights, got NaN or infinity in {key}; use another checkpoint"
            )


def first_pass(user: UserModel, data: Inputs, of: str = "inputs") -> Tensor | None:
    """Runs a network on one sequence and returns its output.

    Args:
        user: the network with its name.
        data: inputs, tensors ``[n, ...]``.
        of: the inputs in words.
    Raises:
        ValueError: the network raised.
    """
    one = selected(data, slice(1))
    shape = (
        list(one.shape)
        if isinstance(one, Tensor)
        else ", ".join(f"{key} {list(value.shape)}" for key, value in one.items())
    )
    try:
        with evaluation(user.network), torch.random.fork_rng():
            return logits_of(run(user.network, one))
    except Exception as error:  # a network of a user raises errors of many kinds
        raise ValueError(
            f"{user.name} must run on {of} {shape}, but raised {type(error).__name__}: {first_line(error)}"
        ) from error


def are_ids(data: Inputs) -> bool:
    """Returns whether inputs are sequences of ids: whether no tensor has real numbers."""
    tensors = [data] if isinstance(data, Tensor) else list(data.values())
    return not any(tensor.is_floating_point() for tensor in tensors)


def are_of_classes(outputs: Tensor | None, labels: Tensor) -> bool:
    """Returns whether outputs ``[n, classes]`` of a network can be those of the classes of labels ``[n]``."""
    return outputs is not None and outputs.ndim == 2 and 0 <= int(labels.max()) < outputs.shape[1]


def limits_of_ids(network: nn.Module, data: Inputs, special_ids: Collection[int] | None) -> dict[str, int]:
    """Returns the sizes for tests on ids; none if the network is no causal language model."""
    main = main_input(network, data, special_ids=special_ids)
    if isinstance(main, str) or main.data.ndim != 2 or main.data.is_floating_point():
        return {}
    with evaluation(network), torch.random.fork_rng():
        outputs = logits_of(run(network, main.inputs(main.data[:1])))
    if outputs is None or not is_causal(network, main, outputs):
        return {}
    given = data if isinstance(data, Tensor) else data[main.name]
    return {"vocabulary": max(int(main.data.max()) + 1, outputs.shape[-1]), "length": int(given.shape[1])}


def is_causal(network: nn.Module, main: MainInput, outputs: Tensor | None) -> bool:
    """Returns whether a network of ids returns logits for each of them that do not depend on later ids.

    Args:
        network: network of ids.
        main: sequences of ids, of which the first is read.
        outputs: its logits ``[1, seq, vocabulary]``, or another output.
    """
    sequence = main.data[:1]
    if outputs is None or outputs.ndim != 3 or outputs.shape[:2] != sequence.shape or sequence.shape[1] < 2:
        return False
    if int(sequence.max()) >= outputs.shape[-1]:  # features, not logits over the vocabulary
        return False
    changed = sequence.clone()
    changed[:, -1] = (changed[:, -1] + 1) % (int(sequence.max()) + 1)
    if torch.equal(changed, sequence):
        changed[:, -1] = 1
    with evaluation(network), torch.random.fork_rng():
        other = logits_of(run(network, main.inputs(changed)))
    first, second = (
        outputs[:, :-1].float(),
        other[:, :-1].float() if other is not None else outputs[:, 1:].float(),
    )
    return float((first - second).abs().max()) <= CAUSAL_RTOL * float(first.abs().max())


def checked_other(user: UserModel, against: nn.Module | UserModel, data: Inputs) -> UserModel:
    """Checks a second network that is compared with a network on the same inputs.

    Args:
        user: the network with all of its inputs.
        against: the second network.
        data: the inputs on which both are measured.
    Returns:
        The second network, with a name of its own.
    Raises:
        ValueError: it has other inputs, another vocabulary or another normalisation of images, weights that
            are not finite, or raises on the inputs.
    """
    if not isinstance(against, nn.Module | UserModel):
        raise ValueError(f"against must be a torch.nn.Module, got {type(against).__name__}")
    other = against if isinstance(against, UserModel) else UserModel(against, type(against).__name__)
    if other.name == user.name:
        folder = None if other.folder is None else other.folder.resolve().parent.name
        own = None if user.folder is None else user.folder.resolve().parent.name
        named = f"{folder}/{other.name}" if folder and folder != own else f"the other {other.name}"
        other = replace(other, name=named)
    if other.inputs is not None and not _equal(other.inputs, user.inputs):
        raise ValueError(
            f"{other.name} must be measured on the inputs of {user.name}, but returns other inputs; return "
            "the network alone"
        )
    _check_vocabulary(user, other, data)
    _check_normalisation(user, other)
    check_weights(other.network, other.name)
    if isinstance(data, Tensor) and data.ndim == 4 and side_of(other.network) not in (None, data.shape[-1]):
        interpolate_positions(other.network)
    first_pass(other, data, f"the inputs of {user.name},")
    return other


def _equal(first: Inputs | None, second: Inputs | None) -> bool:
    """Returns whether two inputs are the same."""
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        return first.keys() == second.keys() and all(_equal(first[name], second[name]) for name in first)
    if not isinstance(first, Tensor) or not isinstance(second, Tensor):
        return False
    return first.shape == second.shape and first.dtype == second.dtype and bool((first == second).all())


def _check_vocabulary(user: UserModel, other: UserModel, data: Inputs) -> None:
    """Raises ValueError if ids mean other words in the second network."""
    tensors = [data] if isinstance(data, Tensor) else list(data.values())
    if any(tensor.is_floating_point() for tensor in tensors):
        return
    sizes = [getattr(getattr(each.network, "config", None), "vocab_size", None) for each in (user, other)]
    if None not in sizes and sizes[0] != sizes[1]:
        raise ValueError(
            f"{other.name} must have the vocabulary of {user.name}, {sizes[0]:,} ids, got {sizes[1]:,}; the "
            "same ids are other words there"
        )
    words = [_json(each.folder, TOKENIZER).get("model") for each in (user, other)]
    words = [each.get("vocab") if isinstance(each, dict) else None for each in words]
    if None not in words and words[0] != words[1]:
        raise ValueError(
            f"{other.name} must have the vocabulary of {user.name}, but the words of their {TOKENIZER} "
            "differ; the same ids are other words there"
        )


def _check_normalisation(user: UserModel, other: UserModel) -> None:
    """Raises ValueError if the second network expects images with another mean or standard deviation."""
    stated = [_json(each.folder, NORMALISATION) for each in (user, other)]
    if not all(stated):
        return
    for name in ("image_mean", "image_std"):
        if stated[0].get(name) != stated[1].get(name):
            raise ValueError(
                f"{other.name} must have the {name} of {user.name}, {stated[0].get(name)}, got "
                f"{stated[1].get(name)}; both are measured on the same images"
            )


def _json(folder: Path | None, name: str) -> dict[str, Any]:
    """Reads a file of a folder; empty without a folder, without the file, or if it holds no object."""
    if folder is None or not (folder / name).is_file():
        return {}
    try:
        found = read_json(folder / name)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}

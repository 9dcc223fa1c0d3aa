"""Initialisation of a training with given weights: of a stored network, or in the layout of a released one.

The body is copied. Positions are interpolated if the images have another size. The head starts anew if its
classes differ. Images are normalised as they were for the weights, so that before the first step the body
computes what it computed there.

Source: :cite:t:`dosovitskiy2021image` (interpolated positions, new head).
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...models.crate.alpha import alpha_sizes, alpha_weights
from ...models.crate.network import RENAMES
from ...models.crate.released import AMBIGUOUS, classifier_sizes, usual_heads
from ...models.embedding import resized_positions
from ...models.image_networks import NETWORKS, Sizes
from ...models.stored import (
    CHECKSUM,
    HEADS,
    IMAGENET,
    checksum,
    in_released_names,
    layout_of,
    metadata,
    network_file,
    square_sizes,
    stored,
)
from ...models.weights import fill, in_float32, load_weights, renamed, without_prefix
from .memory import shapes_of
from .settings import SHAPE

Note = Callable[[str], None]
CONSTANTS = ("pooling", "eta", "lam", "kappa")  # fields of Sizes that a fine-tuning may change
POSITIONS = "pos_embedding"
# fields of Sizes of the released networks
RELEASED = {"stem": "patches", "pooling": "cls", "eta": 0.1, "lam": 0.1}


@dataclass(frozen=True)
class Start:
    """Weights to start from.

    Attributes:
        path: their file.
        weights: tensors under the names of this library.
        network: kind of network, a name of :data:`~.image_networks.NETWORKS` or of the caller; None if the
            file does not say it.
        sizes: the sizes that are known, by name: all for a stored network, those that the weights determine
            for a released layout.
        names: names of the classes; None if they are unknown.
        normalisation: mean and standard deviation of each channel with which images were read; None if they
            are unknown.
        origin: run id, step and data of a stored network.
    """

    path: Path
    weights: Mapping[str, Tensor]
    network: str | None = None
    sizes: Mapping[str, Any] = field(default_factory=dict)
    names: tuple[str, ...] | None = None
    normalisation: tuple[list[float], list[float]] | None = None
    origin: Mapping[str, Any] = field(default_factory=dict)

    def described(self) -> dict[str, Any]:
        """Returns the origin as plain values: file, run id, step, data, checksum and normalisation. A run
        stores it in its settings.
        """
        names = ("run_id", "step", "data")
        about = {
            "file": str(self.path),
            **{name: self.origin.get(name) for name in names},
            CHECKSUM: checksum(self.weights, {}),
        }
        return about | ({} if self.normalisation is None else dict(zip(("mean", "std"), self.normalisation)))


def read(path: str | Path, *, weights_set: str | None = None) -> Start:
    """Reads weights to start from; no file is executed.

    Args:
        path: the folder of a run or its ``.safetensors``; or a file of weights, ``.safetensors`` or of
            ``torch.save``, in the layout of a released CRATE or CRATE-alpha classifier, also with the second
            map ``head.*`` of the fine-tuned layout, or with the names of the network that will be trained.
        weights_set: which set of weights, if a file of weights holds several; see :func:`.load_weights`.
    Raises:
        ValueError: the file is damaged, would run code, holds a network that is no classifier, or holds
            several sets of weights or none of the given name.
        FileNotFoundError: there is no such file.
    """
    path = network_file(path)
    if path.suffix == ".safetensors" and metadata(path) is not None:
        if weights_set is not None:
            raise ValueError(f"weights_set must be left out, since {path} holds one network; drop it")
        return _of_training(path)
    weights = in_released_names(load_weights(path, weights=weights_set))
    try:
        layout = layout_of(weights)
    except ValueError:
        return Start(path, weights)  # names are compared with those of the network later
    try:
        if layout == "crate":
            weights = _with_one_head(renamed(weights, RENAMES))
            sizes = classifier_sizes(weights, **square_sizes(weights), heads=1) | {
                "heads": usual_heads(weights)
            }
        elif layout == "crate-alpha-published":
            sizes, weights = alpha_sizes(weights), alpha_weights(weights)
        else:
            raise ValueError(
                f"weights must be those of a classifier, got those of {layout}; models.load reads them"
            )
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    names = ("image_size", "channels", "num_classes", "patch_size", "dim", "depth", "heads")
    known = {name: sizes[name] for name in names if sizes[name] is not None} | RELEASED
    normalisation = (list(IMAGENET[0]), list(IMAGENET[1])) if sizes["channels"] == 3 else None
    return Start(path, in_float32(weights), layout, known, normalisation=normalisation)


def _of_training(path: Path) -> Start:
    """Reads the network of a training. Raises ValueError if its metadata are incomplete."""
    weights, record = stored(path)
    try:
        sizes = asdict(Sizes(**record["sizes"]))
        names, normalisation = tuple(map(str, record["names"])), (list(record["mean"]), list(record["std"]))
        origin = record["origin"] if isinstance(record.get("origin"), dict) else {}
        return Start(path, weights, record["network"], sizes, names, normalisation, origin)
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} does not describe a network ({error}); choose another") from error


def _with_one_head(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Combines the two linear maps of the fine-tuned layout into one: W_2 (W_1 x + b_1) + b_2 = (W_2 W_1) x +
    (W_2 b_1 + b_2).
    """
    first, second = (f"mlp_head.{place}." for place in (1, 2))
    if f"{second}weight" not in weights:
        return weights
    (W1, b1), (W2, b2) = (
        [weights.pop(f"{name}{kind}", None) for kind in ("weight", "bias")] for name in (first, second)
    )
    if any(part is None for part in (W1, b1, W2, b2)) or W2.ndim != 2 or W2.shape[1] != len(W1):  # pyright: ignore
        shapes = ", ".join("none" if part is None else str(list(part.shape)) for part in (W1, b1, W2, b2))
        raise ValueError(
            "mlp_head.1 and head must be two linear maps, one after the other, got weights and biases "
            f"{shapes}"
        )
    W1, b1, W2, b2 = (part.double() for part in (W1, b1, W2, b2))  # pyright: ignore[reportOptionalMemberAccess]
    return weights | {f"{first}weight": (W2 @ W1).float(), f"{first}bias": (W2 @ b1 + b2).float()}


def fitting(start: Start, network: str, *, heads: int | None = None) -> dict[str, Any]:
    """Returns the fields of :class:`.Settings` with which a network fits the weights; empty if the file does
    not say them.

    Args:
        start: the weights.
        network: kind of the network.
        heads: number of heads if the caller gives it.
    Raises:
        ValueError: the weights belong to another kind of network, or to a width of which networks with
            different numbers of heads were released, and ``heads`` is None.
    """
    _check_kind(start, network)
    if start.sizes and "heads" not in start.sizes and heads is None:
        numbers = (
            " or ".join(map(str, AMBIGUOUS.get(start.sizes["dim"], ())))
            or "the number with which it was trained"
        )
        raise ValueError(f"heads must be given, since {start.path} does not determine them; pass {numbers}")
    return {name: start.sizes[name] for name in SHAPE if name in start.sizes}


def start_from(
    start: Start,
    network: nn.Module,
    *,
    name: str,
    sizes: Sizes,
    names: tuple[str, ...],
    build: Callable[[Sizes], nn.Module],
    note: Note,
) -> None:
    """Copies weights into a new network of the same kind and sizes; images may have another size, and classes
    may differ.

    Args:
        start: weights to start from.
        network: network that receives the weights, without the normalisation.
        name, sizes: name and sizes of ``network``.
        names: names of the classes of the data.
        build: builds a network of the same kind for given sizes.
        note: called with one line for each adaptation.
    Raises:
        ValueError: the kind, a size, a name or a shape of the weights differs; the message lists the
            differences and what would fit.
    """
    _check_kind(start, name)
    here = asdict(sizes)
    # released weights do not say heads
    free = ("num_classes", "image_size", *CONSTANTS, *(("heads",) if start.names is None else ()))
    pairs = {
        field.name: (start.sizes[field.name], here[field.name])
        for field in fields(Sizes)
        if field.name in start.sizes
    }
    if differing := {
        field: pair for field, pair in pairs.items() if field not in free and pair[0] != pair[1]
    }:
        text = ", ".join(
            f"{field} {there!r} there and {now!r} here" for field, (there, now) in differing.items()
        )
        fit = ", ".join(f"{field}={there!r}" for field, (there, _) in differing.items())
        raise ValueError(
            f"weights must come from a network of the same kind and sizes, {start.path} has {text}; choose "
            f"{fit}"
        )
    for constant in (*CONSTANTS, "heads"):
        if constant in pairs and pairs[constant][0] != pairs[constant][1]:
            there, now = pairs[constant]
            note(f"{start.path} has {constant} {there!r}, this training has {now!r}; no shape depends on it")
    if name in NETWORKS and (silent := _unsaid(start, sizes)):
        note(f"{start.path} does not say everything: this training has {silent}; no shape depends on it")
    initial = network.state_dict()
    weights = without_prefix(start.weights, initial)
    weights |= _positions(start, weights, initial, sizes, note)
    head = _new_head(start, weights, initial, sizes, names, build, own=name not in NETWORKS)
    if head:
        there = _classes_text(start.sizes.get("num_classes"), start.names)
        note(
            f"{start.path} has {there}, the data have {_classes_text(sizes.num_classes, names)}: "
            f"{', '.join(head)} start anew"
        )
    try:
        fill(network, {**weights, **{weight: initial[weight] for weight in head}})
    except ValueError as error:
        hint = (
            ""
            if start.network
            else f"; weights of a run of {name}, or of a released CRATE or CRATE-alpha, would fit"
        )
        raise ValueError(f"{start.path}: {error}{hint}") from error


def _unsaid(start: Start, sizes: Sizes) -> str:
    """Returns what the weights do not say and their shapes do not show, with the values of the training;
    empty if there is nothing.
    """
    heads = [] if "heads" in start.sizes else [f"{sizes.heads} heads"]
    return " and ".join(
        [*heads, *(["the normalisation of its own images"] if start.normalisation is None else [])]
    )


def _check_kind(start: Start, network: str) -> None:
    """Raises ValueError if the weights belong to another kind of network."""
    if start.network not in (None, network):
        text = f"{start.path} has network {start.network!r} there and {network!r} here; train {start.network}"
        raise ValueError(
            f"weights must come from a network of the same kind and sizes, {text}, or choose other weights"
        )


def _positions(
    start: Start, weights: Mapping[str, Tensor], initial: Mapping[str, Tensor], sizes: Sizes, note: Note
) -> dict[str, Tensor]:
    """Returns the positions for the new images if the number of patches differs, by name;
    otherwise nothing.
    """
    there, here = weights.get(POSITIONS), initial.get(POSITIONS)
    if (
        there is None
        or here is None
        or there.ndim != 3
        or there.shape[::2] != here.shape[::2]
        or there.shape == here.shape
    ):
        return {}
    side = sizes.image_size // sizes.patch_size
    if here.shape[1] != 1 + side * side:
        return {}  # not the positions of a class token and patches: the shapes are reported
    try:
        resized = resized_positions(there.float(), (side, side))
    except ValueError as error:
        raise ValueError(f"{start.path}: {POSITIONS}: {error}") from error
    old = round((there.shape[1] - 1) ** 0.5)
    note(
        f"{start.path} has {old} x {old} patches, the images have {side} x {side}: {POSITIONS} is "
        "interpolated"
    )
    return {POSITIONS: resized}


def _new_head(
    start: Start,
    weights: Mapping[str, Tensor],
    initial: Mapping[str, Tensor],
    sizes: Sizes,
    names: tuple[str, ...],
    build: Callable[[Sizes], nn.Module],
    *,
    own: bool,
) -> list[str]:
    """Returns the weights of the head if it must start anew: its classes are others, or it is missing."""
    # Names do not identify the head. It consists of the weights whose shape depends on the number of classes.
    one, two = (replace(sizes, num_classes=classes) for classes in (1, 2))
    shapes = [shapes_of(partial(build, size), own=own).state_dict() for size in (one, two)]
    head = [
        weight
        for weight in initial
        if weight in shapes[0] and shapes[0][weight].shape != shapes[1][weight].shape
    ]
    # An objective on features has as many outputs for any number of classes.
    head = head or [weight for weight in HEADS if weight in initial]
    same = all(weight in weights and weights[weight].shape == initial[weight].shape for weight in head)
    return [] if same and start.names in (None, names) else head


def _classes_text(count: int | None, names: tuple[str, ...] | None) -> str:
    """Returns the number of classes as text, with the first of their names if they are known."""
    some = "" if not names else f" ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})"
    return "other classes" if count is None else f"{count} classes{some}"


def normalisation_of(origin: Mapping[str, Any] | None) -> tuple[Tensor, Tensor] | None:
    """Returns mean and standard deviation ``[c]`` from what :meth:`Start.described` stored; None if it has
    none.
    """
    if not origin or "mean" not in origin:
        return None
    return torch.tensor(origin["mean"]), torch.tensor(origin["std"])

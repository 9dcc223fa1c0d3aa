"""Images as inputs of a user's network: side, channels and normalisation as the configuration of the network
says.
"""

from dataclasses import replace
from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.nn import functional

from ..core.reading import read_json
from ..core.statistics import fixed_generator
from ..data import Images
from ..data.cifar import is_official_form
from ..data.image_folder import read_unsorted, sample_folder
from ..data.image_sets import NAMES, images
from ..data.labels import read_labels
from ..models.image_side import interpolate_positions, interpolates, number_of, side_of
from ..models.user_model import UserModel, label_numbers

MAX_VALUES = 2**28  # largest number of values in all inputs, 1 GiB in float32
NORMALISATION = "preprocessor_config.json"


def with_images(
    user: UserModel,
    source: str | Path | Images,
    *,
    size: int | None = None,
    max_samples: int,
    labels: str | Path | None = None,
) -> tuple[UserModel, Images, str]:
    """Returns the model with test images as its inputs and their classes as its labels, the images, and the
    inputs in words.

    The images of a folder are scaled and cropped to the side that the configuration of the network names, and
    images in memory are scaled to it. Other images are scaled only if ``size`` asks for it. Grey images are
    repeated in the channels of the network. Pixels lie in [0, 1]; if the folder of the model holds
    ``preprocessor_config.json``, its mean and standard deviation are applied.

    Args:
        user: model without inputs.
        source: name or path of the images, see :func:`.image_sets.images`; or test images in random order, of
            which the first are taken.
        size: side in pixels to which the images are scaled; the network must accept it, whatever its
            configuration names. It interpolates its position embedding if it can.
        max_samples: number of images, drawn from the test images.
        labels: file of labels, see :func:`.read_labels`, of a folder of images without subfolders for
            classes, in the order of the names of the images.
    Raises:
        ValueError: the images cannot be read, do not have the side of the network, or are too large for the
            memory; labels cannot be read, have another number, or the images have classes of their own.
    """
    side, channels = side_of(user.network), number_of(user.network, "num_channels", "in_chans", "channels")
    if size is not None and side is not None and size != side:
        interpolate_positions(user.network)
        _check_side(user, channels or 3, size, side)
    wanted = size or side
    values = max_samples * (channels or 3) * (wanted or 1) ** 2
    if values > MAX_VALUES:
        needed = f"{4 * values / 2**30:,.0f} GiB for {max_samples:,} images of {wanted or 1:,} pixels"
        limit = f"{4 * MAX_VALUES / 2**30:.0f} GiB"
        raise ValueError(
            f"the inputs must fit into {limit}, got {needed}; choose a smaller size or fewer sequences"
        )
    chosen, classes, what = _read(source, labels, user.network, size=wanted, count=max_samples)
    remarks = [f"{len(chosen)} {what} of {chosen.name}"]
    if wanted is not None and chosen.size != wanted:
        if size is None and not isinstance(source, Images):
            shape = f"{chosen.size} × {chosen.size} of {chosen.name}"
            raise ValueError(
                f"{user.name} takes images of {wanted} × {wanted} pixels, got {shape}; size={wanted} scales "
                "them"
            )
        remarks.append(f"scaled from {chosen.size} to {wanted} pixels")
        chosen = replace(chosen, pixels=_scaled(chosen.pixels, wanted))
    if wanted != side and interpolates(user.network):
        remarks.append(f"positions interpolated from those of {side} pixels")
    if channels is not None and chosen.channels != channels:
        remarks.append(f"{chosen.channels} channel{'s' * (chosen.channels > 1)} as {channels}")
        grey = chosen.pixels.float().mean(1, keepdim=True).round().to(torch.uint8)
        chosen = replace(chosen, pixels=grey.expand(-1, channels, -1, -1).contiguous())
    pixels = chosen.pixels.float() / 255
    constants = None if user.folder is None else _constants(user.folder, chosen.channels)
    if constants is not None:
        pixels = (pixels - constants[0]) / constants[1]
        remarks.append("normalised by its preprocessor_config.json")
    else:
        remarks.append("pixels in [0, 1]")
    return replace(user, inputs=pixels, labels=classes), chosen, ", ".join(remarks)


def _read(
    source: str | Path | Images,
    labels: str | Path | None,
    network: nn.Module,
    *,
    size: int | None,
    count: int,
) -> tuple[Images, Int[Tensor, " n"], str]:
    """Returns at most ``count`` images, their classes, and what they are in words; of a folder scaled to the
    size.
    """
    if isinstance(source, Images):
        return source[:count], source.labels[:count], "test images"
    if labels is not None:
        return *_labelled(Path(source), labels, network, size, count), "images"
    if str(source) not in NAMES and Path(source).is_dir() and not is_official_form(Path(source)):
        chosen = sample_folder(Path(source), count, fixed_generator(), size=size)
    else:
        chosen = images(source)[1].mixed(fixed_generator())[:count]
    return chosen, chosen.labels, "test images"


def _check_side(user: UserModel, channels: int, size: int, side: int) -> None:
    """Raises ValueError if the network refuses an image of another side than its configuration names; one
    that interpolates its position embedding accepts it.
    """
    try:
        with torch.no_grad():
            user.network(torch.zeros(1, channels, size, size))
    except Exception as error:  # networks refuse by errors of many kinds
        raise ValueError(
            f"size must be {side}, the side of the images of {user.name}, got {size}, which it "
            "refuses; leave it out"
        ) from error


def _labelled(
    source: Path, labels: str | Path, network: nn.Module, size: int | None, limit: int
) -> tuple[Images, Int[Tensor, " n"]]:
    """Reads at most ``limit`` images of a folder without classes, in random order, and their labels; other
    images are not decoded.
    """
    if not source.is_dir() or any(entry.is_dir() for entry in source.iterdir()):
        raise ValueError(
            f"{labels} must label a folder of images without subfolders, got {source}, whose images have "
            "classes of their own; leave the labels out"
        )
    classes = read_labels(labels, numbers=label_numbers(network))

    def chosen(count: int) -> list[int]:
        if len(classes) != count:
            raise ValueError(
                f"{labels} must hold one label for each of the {count} images of {source}, got {len(classes)}"
            )
        return _order(count, limit).tolist()

    found = read_unsorted(source, size=size, chosen=chosen)
    return found, classes[_order(len(classes), limit)]


def _order(count: int, limit: int) -> Int[Tensor, " n"]:
    """Returns a fixed random choice of places below ``count``."""
    return torch.randperm(count, generator=fixed_generator())[:limit]


def _scaled(pixels: Tensor, side: int) -> Tensor:
    scaled = functional.interpolate(pixels.float(), (side, side), mode="bicubic", antialias=True)
    return scaled.round().clamp(0, 255).to(torch.uint8)


def _constants(folder: Path, channels: int) -> tuple[Tensor, Tensor] | None:
    """Reads mean and standard deviation of the normalisation, ``[channels, 1, 1]``; None if the folder states
    none.

    Raises:
        ValueError: the file is damaged.
    """
    path = folder / NORMALISATION
    if not path.is_file():
        return None
    try:
        stated = read_json(path)
        if not stated.get("do_normalize", True) or "image_mean" not in stated:
            return None
        mean, std = (
            torch.tensor(stated[name], dtype=torch.float32).expand(channels)
            for name in ("image_mean", "image_std")
        )
    except (ValueError, KeyError, TypeError, RuntimeError, AttributeError) as error:
        raise ValueError(
            f"{path} must hold image_mean and image_std for {channels} channels ({error}); remove it or "
            "mend it"
        ) from error
    return mean.view(-1, 1, 1), std.view(-1, 1, 1)

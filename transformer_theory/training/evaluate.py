"""What a trained network makes of images: what its objective measures and, of a classifier, each class by itself."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..data.image_data import Images
from . import saved
from .folder import network_file
from .objectives.reading import outputs
from .settings import Settings

AT_A_TIME = 512


@dataclass(frozen=True)
class OfClass:
    """One class under a classifier.

    Attributes:
        name: of the class.
        images: how many there are.
        right: share of them that are taken for it (recall).
        precision: share of what is taken for it that is.
        confused: the class that most of the others are taken for; None if all are right.
    """

    name: str
    images: int
    right: float
    precision: float
    confused: str | None


def evaluate(network: str | Path, train: Images, test: Images) -> tuple[dict[str, float], list[OfClass]]:
    """Measures a network of a file or a run on test images.

    Args:
        network: see :func:`.saved.load`.
        train: training images; objectives without a classifier fit a simple one to those that the network learned from, see
            :func:`learned_from`.
        test: images of the size and classes of the training.
    Returns:
        What its objective measures ("test accuracy", ...), and the classes; none where the network is no classifier.
    Raises:
        ValueError: the file is no trained network, or the images do not fit it.
        FileNotFoundError: there is none.
    """
    path = network_file(network)
    found = saved.load(path)
    check_fits(found, test, str(network))
    pairs = ((images.pixels, images.labels) for images in (learned_from(path, found, train), test))
    measured = found.objective.measure(found.model, *pairs, batch_size=AT_A_TIME)
    measured = of_test(measured)
    if "test accuracy" not in measured or found.sizes.num_classes != test.classes:
        return measured, []
    return measured, of_classes(outputs(found.model, test.pixels, batch_size=AT_A_TIME).argmax(1), test)


def learned_from(file: Path, found: saved.Saved, train: Images) -> Images:
    """The training images that a network learned from, in the order of its training; all of them where it lies without its run.

    Args:
        file: of the network.
        train: all training images, those held out among them.
    """
    try:
        head = json.loads((file.parent / "result.json").read_text(encoding="utf-8"))
        settings = Settings.from_stored(head["params"]["settings"])
        return settings.split(train)[0] if is_run_of(found, head["name"], head["params"]) else train
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return train


def is_run_of(found: saved.Saved, name: str, params: Mapping[str, Any]) -> bool:
    """Whether the result of this name and these parameters is the training that a network comes from."""
    settings = params.get("settings") or {}
    told = (name, settings.get("network"), settings.get("seed"), params.get("data"))
    return told == ("train", found.network, found.origin.get("seed"), found.origin.get("data"))


def of_test(measured: dict[str, float]) -> dict[str, float]:
    """What an objective measured, named as of test images."""
    return {name.replace("held-out", "test") if "held-out" in name else f"test {name}": value for name, value in measured.items()}


def check_fits(found: saved.Saved, images: Images, where: str) -> None:
    """Raises ValueError unless images have the size, channels and classes that a network was trained on."""
    expected = (found.sizes.channels, found.sizes.image_size, found.sizes.image_size)
    if tuple(images.pixels.shape[1:]) != expected:
        came = f"{list(images.pixels.shape[1:])} of {images.name}"
        hint = f"name its own data; a folder of images takes size={found.sizes.image_size}"
        raise ValueError(f"{where} reads images {list(expected)}, got {came}; {hint}")
    if images.names != found.names:
        raise ValueError(f"{where} tells {', '.join(found.names[:3])}, ..., got {', '.join(images.names[:3])}, ...; name its own data")


def of_classes(taken: torch.Tensor, images: Images) -> list[OfClass]:
    """Each class by itself; ``taken`` is the class that each image is taken for, ``[n]``."""
    counts = torch.zeros(images.classes, images.classes, dtype=torch.int64)
    counts.index_put_((images.labels, taken), torch.ones((), dtype=torch.int64), accumulate=True)
    lines = []
    for number, name in enumerate(images.names):
        row, here = counts[number].clone(), int(counts[number].sum())
        right = int(row[number])
        row[number] = 0
        confused = images.names[int(row.argmax())] if int(row.sum()) else None
        lines.append(OfClass(name, here, right / max(1, here), right / max(1, int(counts[:, number].sum())), confused))
    return lines

"""Decoded images in an ``.npz``: a file of the user, or a cache of images that are slow to decode.

Arrays: ``train_pixels`` and ``test_pixels`` (uint8 [n, channels, size, size]), ``train_labels`` and
``test_labels`` (integers [n]), and optionally ``names`` (class names).
"""

import contextlib
import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from ..core.files import replacing
from ..core.reading import check_file, read_arrays
from ..core.sources import Source
from .download import data_folder
from .image_data import Images

Pair = tuple[Images, Images]
MIN_CACHED = 2000  # smallest number of images to cache; decoding fewer takes less than a second


def read_npz(path: Path) -> Pair:
    """Reads training and test images from an ``.npz``. Object arrays are refused, never unpickled.

    Raises:
        ValueError: the file cannot be read, lacks an array, or holds an invalid one; the message names the
            file.
    """
    check_file(path)
    try:
        return _pair(_read_arrays(path), path.name)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def cached(path: Path, stamp: str, decode: Callable[[], Pair]) -> Pair:
    """Returns the images of a source from the cache in the data folder; decodes and caches them if the cache
    is missing or outdated.

    A cache that cannot be read or written is ignored.

    Args:
        path: path of the source.
        stamp: text that changes whenever the source changes; a cache with another stamp is outdated.
        decode: function that reads the images from the source.
    """
    digest = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]
    file = data_folder() / "decoded" / f"{path.name}-{digest}.npz"
    with contextlib.suppress(ValueError):
        arrays = _read_arrays(file)
        if str(arrays.pop("stamp", "")) == stamp:
            return _pair(arrays, path.name)
    pair = decode()
    if sum(map(len, pair)) >= MIN_CACHED:
        with contextlib.suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            with replacing(file) as draft, draft.open("wb") as stream:
                np.savez(stream, **_arrays(pair), stamp=np.array(stamp))  # pyright: ignore[reportArgumentType]
    return pair


def _read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Reads the arrays of an ``.npz``. Raises ValueError if the file is missing, damaged, or
    holds objects.
    """
    try:
        return read_arrays(path)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"must be an .npz of images, got {error}; write arrays of numbers with numpy.savez"
        ) from error


def _arrays(pair: Pair) -> dict[str, np.ndarray]:
    """Converts training and test images to named arrays, the inverse of :func:`_pair`."""
    train, test = pair
    texts = {
        "names": np.array(train.names),
        "name": np.array(train.name),
        "sources": np.array([str(source) for source in train.sources]),
    }
    parts = {"train": train, "test": test}
    pixels = {f"{part}_pixels": images.pixels.numpy() for part, images in parts.items()}
    return texts | pixels | {f"{part}_labels": images.labels.numpy() for part, images in parts.items()}


def _pair(arrays: dict[str, np.ndarray], name: str) -> Pair:
    """Converts named arrays to training and test images; ``name`` is their name if the arrays hold none."""
    required = [f"{part}_{field}" for part in ("train", "test") for field in ("pixels", "labels")]
    if missing := [key for key in required if key not in arrays]:
        raise ValueError(f"images need the arrays {', '.join(required)}, got no {missing[0]}")
    for part in ("train", "test"):
        _check_arrays(arrays[f"{part}_pixels"], arrays[f"{part}_labels"], part)
    classes = 1 + max(int(arrays[f"{part}_labels"].max()) for part in ("train", "test"))
    names = tuple(map(str, arrays["names"].ravel())) if "names" in arrays else tuple(map(str, range(classes)))
    sources = tuple(_source(str(text)) for text in arrays.get("sources", ()))
    train, test = (
        Images(
            torch.from_numpy(np.ascontiguousarray(arrays[f"{part}_pixels"])),
            torch.from_numpy(arrays[f"{part}_labels"].astype(np.int64)),
            names,
            str(arrays.get("name", name)),
            sources,
        )
        for part in ("train", "test")
    )
    if train.pixels.shape[1:] != test.pixels.shape[1:]:
        raise ValueError(
            f"training and test images must have one shape, got {list(train.pixels.shape)} and "
            f"{list(test.pixels.shape)}"
        )
    return train, test


def _source(text: str) -> Source:
    """Parses ``str(source)``, such as "krizhevsky2009learning, Sec. 3"."""
    key, _, locator = text.partition(", ")
    return Source(key, locator)


def _check_arrays(pixels: np.ndarray, labels: np.ndarray, part: str) -> None:
    """Raises ValueError unless pixels are uint8 [n, channels, size, size] and labels are integers [n]."""
    if pixels.dtype != np.uint8 or pixels.ndim != 4:
        suffix = (
            " with NaN or infinite values"
            if pixels.dtype.kind == "f" and not np.isfinite(pixels).all()
            else ""
        )
        actual = f"{pixels.dtype} {list(pixels.shape)}{suffix}"
        raise ValueError(
            f"{part}_pixels must be uint8 [n, channels, size, size] from 0 to 255, got {actual}; scale, "
            "round, convert them"
        )
    if labels.dtype.kind not in "iu" or labels.shape != (len(pixels),) or not len(labels):
        actual = f"{labels.dtype} {list(labels.shape)}"
        raise ValueError(f"{part}_labels must be integers [{len(pixels)}], one per image, got {actual}")

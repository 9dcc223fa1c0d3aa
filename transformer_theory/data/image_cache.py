"""Decoded images in an ``.npz``: a file of the user, or a cache so that thousands of files are decoded only once.

Arrays: ``train_pixels`` and ``test_pixels`` (uint8 [n, channels, size, size]), ``train_labels`` and ``test_labels`` (integers [n]), and
optionally ``names`` of the classes.
"""

import contextlib
import hashlib
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from ..core.files import replacing
from ..core.sources import Source
from .download import data_folder
from .image_data import Images

Pair = tuple[Images, Images]
MIN_CACHED = 2000  # images; decoding fewer takes less than a second


def read_npz(path: Path) -> Pair:
    """Training and test images from an ``.npz``; object arrays are refused, never unpickled.

    Raises:
        ValueError: the file cannot be read, lacks an array, or one is of the wrong kind; the message names the file.
    """
    try:
        return _pair(_arrays_of(path), path.stem)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def cached(path: Path, stamp: str, decode: Callable[[], Pair]) -> Pair:
    """The images of ``path``, from the cache in the data folder if its ``stamp`` is the same; otherwise they are decoded and cached.

    A cache that cannot be read or written is ignored.

    Args:
        path: of the source.
        stamp: changes whenever the source does.
        decode: reads the images from the source.
    """
    place = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]
    file = data_folder() / "decoded" / f"{path.name}-{place}.npz"
    with contextlib.suppress(ValueError):
        arrays = _arrays_of(file)
        if str(arrays.pop("stamp", "")) == stamp:
            return _pair(arrays, path.name)
    pair = decode()
    if sum(map(len, pair)) >= MIN_CACHED:
        with contextlib.suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            with replacing(file) as draft, draft.open("wb") as stream:
                np.savez(stream, **_arrays(pair), stamp=np.array(stamp))  # pyright: ignore[reportArgumentType]
    return pair


def _arrays_of(path: Path) -> dict[str, np.ndarray]:
    faults = (OSError, EOFError, NotImplementedError, MemoryError, RuntimeError, ValueError, zipfile.BadZipFile, zlib.error)
    try:
        if not zipfile.is_zipfile(path):
            raise ValueError("no zip of arrays, or cut short")
        with np.load(path, allow_pickle=False) as stored:
            return {name: np.asarray(stored[name]) for name in stored.files}
    except faults as error:
        raise ValueError(f"must be an .npz of images, got {error}; write arrays of numbers with numpy.savez") from error


def _arrays(pair: Pair) -> dict[str, np.ndarray]:
    train, test = pair
    texts = {"names": np.array(train.names), "name": np.array(train.name), "sources": np.array([str(source) for source in train.sources])}
    parts = {"train": train, "test": test}
    pixels = {f"{part}_pixels": images.pixels.numpy() for part, images in parts.items()}
    return texts | pixels | {f"{part}_labels": images.labels.numpy() for part, images in parts.items()}


def _pair(arrays: dict[str, np.ndarray], name: str) -> Pair:
    wanted = [f"{part}_{what}" for part in ("train", "test") for what in ("pixels", "labels")]
    if missing := [key for key in wanted if key not in arrays]:
        raise ValueError(f"images need the arrays {', '.join(wanted)}, got no {missing[0]}")
    for part in ("train", "test"):
        _expect(arrays[f"{part}_pixels"], arrays[f"{part}_labels"], part)
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
        raise ValueError(f"training and test images must have one shape, got {list(train.pixels.shape)} and {list(test.pixels.shape)}")
    return train, test


def _source(text: str) -> Source:
    """The inverse of ``str(source)``."""
    key, _, locator = text.partition(", ")
    return Source(key, locator)


def _expect(pixels: np.ndarray, labels: np.ndarray, part: str) -> None:
    if pixels.dtype != np.uint8 or pixels.ndim != 4:
        holes = " with NaN or infinite values" if pixels.dtype.kind == "f" and not np.isfinite(pixels).all() else ""
        came = f"{pixels.dtype} {list(pixels.shape)}{holes}"
        raise ValueError(f"{part}_pixels must be uint8 [n, channels, size, size] from 0 to 255, got {came}; scale, round and convert them")
    if labels.dtype.kind not in "iu" or labels.shape != (len(pixels),) or not len(labels):
        came = f"{labels.dtype} {list(labels.shape)}"
        raise ValueError(f"{part}_labels must be integers [{len(pixels)}], one per image, got {came}")

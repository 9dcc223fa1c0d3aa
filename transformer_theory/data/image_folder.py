"""Images from a folder with one subfolder per class, with or without a split into training and test images.

* Colour: grey files (including one-bit files) stay grey if all files are grey; otherwise all are read as RGB.
  Transparent pixels are blended with white, also those that a PNG marks by one transparent colour. Palettes
  and CMYK become RGB by Pillow's rules, without colour profiles. Files of more than 8 bits per channel are
  refused.
* One image per file: files of several pages or frames are refused, except photographs of cameras that hold
  a preview beside the picture (MPO).
* Orientation: images are rotated as their EXIF data require.
* Size: by default, all images must be square and of the same size. If the caller passes a size, the largest
  central square of each image is scaled to it (bicubic; smaller images are enlarged).

All files are read before training starts; a sample (:func:`sample_folder`) reads its own files alone. A
file that cannot be read as described raises an error that names it.
"""

import contextlib
import hashlib
import os
import stat
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..core.errors import abbreviated_list
from ..core.memory import gib
from ..core.memory import memory as machine_memory
from ..core.reading import check_name
from .image_data import Images
from .tokens import stratified

LOSSY = (".jpg", ".jpeg")
SUFFIXES = (*LOSSY, ".png", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff")
TRAIN, TEST = ("train", "training"), ("test", "val", "valid", "validation")
SHARE = 0.8  # share of training images if the folder has no split
GREY, RGB = "L", "RGB"
CONVERTED = {  # Pillow's modes that are converted to grey or RGB, with their names in messages
    "1": "one bit",
    "LA": "grey with transparency",
    "P": "palette",
    "PA": "palette with transparency",
    "RGBA": "RGBA",
    "CMYK": "CMYK",
    "YCbCr": "YCbCr",
    "L key": "grey with one transparent value",
    "1 key": "one bit with one transparent value",
    "RGB key": "RGB with one transparent colour",
}
KEYED = (GREY, "1", RGB)  # modes in which a PNG may mark one value as transparent
STORED_GREY = (GREY, "1", "LA", "L key", "1 key")
MAY_BE_TRANSPARENT = {"LA", "P", "PA", "RGBA", *(f"{mode} key" for mode in KEYED)}
# Pillow names other formats by their content, whatever the suffix; it reads some of them with 8 of their bits
FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "PPM", "TIFF", "GIF")
# Pillow scales grey values of 2 and 4 bits to 0 ... 255, but not the transparent value
GREY_STEPS = {"L;2": 85, "L;4": 17}
BITS_PER_SAMPLE, SAMPLE_FORMAT = 258, 339  # tags of a TIFF
MAX_TEXT = 2**26  # bytes of one text in a PNG, after unpacking; Pillow's own limit for all texts of a file
_LIMIT = threading.Lock()  # held while Pillow's limit is another
# files of Windows, in lower case; similar files of other systems are hidden
IGNORED = ("thumbs.db", "ehthumbs.db", "desktop.ini")


@dataclass(frozen=True)
class Part:
    """The files of a split.

    Attributes:
        files: paths.
        labels: class of each file.
        stamp: hash of names, sizes and modification times; a cached copy with the same stamp is up to date.
    """

    files: list[str]
    labels: list[int]
    stamp: str


@dataclass(frozen=True)
class Folder:
    """The contents of a folder of images.

    Attributes:
        path: path of the folder.
        names: names of the classes.
        train, test: training and test files; ``test`` is None if the folder has no split.
    """

    path: Path
    names: tuple[str, ...]
    train: Part
    test: Part | None

    @property
    def lossy(self) -> bool:
        """Whether the suffix of at least one file is that of a JPEG."""
        return any(
            file.lower().endswith(LOSSY) for part in (self.train, self.test) if part for file in part.files
        )


def find_images(path: Path) -> Folder:
    """Finds the classes and files of ``path``: ``train/<class>/*`` with ``test/<class>/*`` (or ``val``,
    ``valid``), or ``<class>/*`` alone.

    Hidden files and those of file managers (:data:`IGNORED`) are ignored. If there is a ``test`` folder, a
    ``val`` folder beside it is not read.

    Raises:
        ValueError: the path is not a folder, there are fewer than two classes, a class has no images, a test
            class has no training images, or a file is not an image.
    """
    train = _split(path, TRAIN)
    test = _split(path, TEST) if train else None
    classes = _classes(train or path)
    for folder in (path.absolute(), *classes):
        check_name(folder)
    if len(classes) < 2:
        present = f"only {classes[0].name!r}" if classes else "none"
        raise ValueError(
            f"{train or path} must hold a folder of images for each of at least two classes, got {present}"
        )
    names = tuple(folder.name for folder in classes)
    if test is None:
        return Folder(path, names, _part(classes, names), None)
    test_classes = _classes(test)
    if unknown := [folder for folder in test_classes if folder.name not in names]:
        raise ValueError(
            f"{unknown[0]} has no training images, the classes are "
            f"{abbreviated_list(names)}; rename or remove it"
        )
    if not test_classes:
        raise ValueError(f"{test} must hold a folder of images for each class, got none; fill or remove it")
    return Folder(path, names, _part(classes, names), _part(test_classes, names))


def read_folder(
    folder: Folder, *, size: int | None = None, progress: Callable[[str], None] = lambda line: None
) -> tuple[Images, Images]:
    """Reads training and test images.

    If the folder has no split, the images are split 80/20, stratified by class and always in the same way;
    their name states it. A class of one image has it for training.

    Args:
        folder: contents of the folder (:func:`find_images`).
        size: side in pixels to which images are cropped and scaled; None requires square images of one size.
        progress: function called with a line of text if files were converted: their number, their kind and
            the result.
    Raises:
        ValueError: a file is not an image, is damaged, has more than 8 bits per channel, or differs in size
            from the others; or the images do not fit into memory at this size, before any is read.
    """
    pixels = _pixels(folder, size, progress)
    name = folder.path.resolve().name + " (JPEG copy)" * folder.lossy
    if folder.test is None:
        images = Images(pixels, torch.tensor(folder.train.labels), folder.names, name=f"{name} (split 80/20)")
        return images.split(SHARE, torch.Generator().manual_seed(0))
    n = len(folder.train.files)
    train, test = (
        Images(values, torch.tensor(part.labels), folder.names, name=name)
        for values, part in zip((pixels[:n], pixels[n:]), (folder.train, folder.test))
    )
    return train, test


def read_unsorted(
    path: Path,
    *,
    size: int | None = None,
    chosen: Callable[[int], Sequence[int]] | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> Images:
    """Reads images of a folder without subfolders, as one class.

    Args:
        path: the folder.
        chosen: returns the places of the images to read, in the order of the names of all files, whose number
            it receives; only these are decoded. None: all.
        size, progress: see :func:`read_folder`.
    Raises:
        ValueError: the folder holds subfolders, no images, or other files; otherwise see :func:`read_folder`.
    """
    names = (path.resolve().name,)
    part = _part([path.resolve()], names)
    name = names[0] + " (JPEG copy)" * Folder(path, names, part, None).lossy
    if chosen is not None:
        places = chosen(len(part.files))
        part = Part([part.files[place] for place in places], [0] * len(places), part.stamp)
    pixels = _pixels(Folder(path, names, part, None), size, progress)
    return Images(pixels, torch.tensor(part.labels), names, name=name)


def sample_folder(path: Path, count: int, generator: torch.Generator, *, size: int | None = None) -> Images:
    """Reads a random sample of the test images: the files are drawn by name, and only those are decoded.

    The images, their order and the name are those of ``read_folder(...)[1].mixed(generator)[:count]``, except
    that the sample is grey if all of its own files are grey.

    Args:
        path: folder as in :func:`find_images`.
        count: number of images; all test images if there are fewer.
        generator: draws the files.
        size: see :func:`read_folder`.
    Raises:
        ValueError: see :func:`find_images` and :func:`read_folder`, for the files of the sample.
    """
    folder = find_images(path)
    part = folder.test or folder.train
    labels, name = torch.tensor(part.labels), path.resolve().name + " (JPEG copy)" * folder.lossy
    positions = torch.arange(len(labels))
    if folder.test is None:
        name = f"{name} (split 80/20)"
        split = torch.Generator().manual_seed(0)
        positions = positions[stratified(len(labels), labels, SHARE, split, what="images")[1]]
    drawn = positions[torch.randperm(len(positions), generator=generator)[:count]]
    chosen = Part([part.files[index] for index in drawn.tolist()], labels[drawn].tolist(), part.stamp)
    pixels = _pixels(Folder(path, folder.names, chosen, None), size, lambda line: None)
    return Images(pixels, labels[drawn], folder.names, name=name)


def _pixels(folder: Folder, size: int | None, progress: Callable[[str], None]) -> torch.Tensor:
    """Decodes all files of a folder, uint8 [n, 1 or 3, size, size]."""
    parts = [part for part in (folder.train, folder.test) if part]
    count = sum(len(part.files) for part in parts)
    if size is not None and (needed := 3 * count * size**2) > (available := machine_memory()):
        text = f"{size}, which needs {gib(needed)} of {gib(available)}"
        raise ValueError(f"size must let {count:,} images fit into memory, got {text}; choose a smaller one")
    reader = _Reader(size)
    pixels = reader.read([file for part in parts for file in part.files])
    if conversions := reader.conversions():
        progress(f"{folder.path}: {conversions}")
    return pixels


class _Reader:
    """Decodes files and checks that all have the size of the first file. The pixels are grey if all files are
    grey, otherwise RGB.
    """

    def __init__(self, size: int | None):
        self.size = size
        self.first: tuple[str, tuple[int, int]] | None = None
        self.modes: Counter[str] = Counter()

    def read(self, files: list[str]) -> torch.Tensor:
        """Decodes the files into uint8 [n, 1 or 3, size, size]."""
        pixels: np.ndarray = np.zeros((0, 0, 0, 0), np.uint8)
        for index, file in enumerate(files):
            image = self.decode(file)
            try:
                if index == 0:
                    pixels = np.empty((len(files), *image.shape), np.uint8)
                elif len(image) > pixels.shape[1]:
                    # the first colour image: earlier grey images get three equal channels
                    pixels = np.repeat(pixels, len(image), axis=1)
            except MemoryError as error:
                total = f"{len(files)} of {' x '.join(map(str, image.shape))}"
                raise ValueError(
                    f"images must fit into memory, got {total} bytes; pass a smaller size= to scale and "
                    "crop them"
                ) from error
            pixels[index] = image
        return torch.from_numpy(pixels)

    def conversions(self) -> str:
        """Describes the conversions; empty if no file was converted."""
        colour = any(mode not in STORED_GREY for mode in self.modes)
        # grey files are converted only if the result is RGB
        kinds = CONVERTED | ({GREY: "grey"} if colour else {})
        counts = [f"{n} {kinds[mode]}" for mode, n in sorted(self.modes.items()) if mode in kinds]
        if not counts:
            return ""
        white = ", transparent pixels on white" if MAY_BE_TRANSPARENT & set(self.modes) else ""
        return (
            f"{', '.join(counts)} of {self.modes.total()} images are read as "
            f"{RGB if colour else 'grey'}{white}"
        )

    def decode(self, file: str) -> np.ndarray:
        """Decodes a file into uint8 [1 or 3, height, width]."""
        from PIL import ExifTags, Image, ImageOps

        with contextlib.ExitStack() as opened:
            with _named(file):
                image = opened.enter_context(Image.open(file, formats=FORMATS))
                bits, frames = _bits(image), getattr(image, "n_frames", 1)
                _scale_key(image)
                # reads the whole file: a PNG may state its orientation, or a text, after the pixels
                rotated = image.getexif().get(ExifTags.Base.Orientation, 1) != 1
            self.check_kind(file, image, bits, frames)
            with _named(file):
                upright = ImageOps.exif_transpose(image) if rotated else image
            self.check_size(file, upright.size)
            with _named(file):
                plain = _plain(upright)
                scaled = (
                    plain
                    if self.size is None
                    else ImageOps.fit(plain, (self.size, self.size), Image.Resampling.BICUBIC)
                )
                # Pillow's arrays are [height, width] for grey images and [height, width, 3] for RGB.
                return np.atleast_3d(np.asarray(scaled)).transpose(2, 0, 1)

    def check_kind(self, file: str, image: Any, bits: int, frames: int) -> None:
        """Counts Pillow's mode of a file. Raises ValueError if the file has more than 8 bits per channel or
        several images, or if the mode is unknown.
        """
        known = image.mode in (GREY, RGB, *CONVERTED)
        if bits > 8 or not known:
            actual = f"{bits} bits per channel" if known else f"Pillow's mode {image.mode}"
            raise ValueError(
                f"{file} must be grey or colour of 8 bits per channel, got {actual}; scale it to 0 ... 255 "
                "and store it again"
            )
        if frames > 1 and image.format != "MPO":
            raise ValueError(
                f"{file} must hold one image, got {frames} pages or frames; store each that you need as a "
                "file of its own"
            )
        keyed = image.mode in KEYED and "transparency" in image.info
        self.modes[f"{image.mode} key" if keyed else image.mode] += 1

    def check_size(self, file: str, size: tuple[int, int]) -> None:
        """Raises ValueError if a file that is not scaled differs in size from the first file, or is not
        square.
        """
        if self.size is not None:
            return
        if self.first is None:
            self.first = (file, size)
        first_file, first_size = self.first
        if size != first_size:
            sizes = f"{first_file} has {first_size[0]} x {first_size[1]} and {file} {size[0]} x {size[1]}"
            raise ValueError(f"images must be of one size, {sizes} pixels; pass size= to scale and crop them")
        if size[0] != size[1]:
            raise ValueError(
                f"images must be square, {file} has {size[0]} x {size[1]} pixels; pass size= to scale and "
                "crop them"
            )


@contextlib.contextmanager
def _named(file: str) -> Iterator[None]:
    """Turns whatever Pillow raises into a ValueError that names the file. Meanwhile, Pillow's limit for one
    text of a PNG is :data:`MAX_TEXT`: programs store descriptions of several MiB.
    """
    from PIL import PngImagePlugin

    with _LIMIT:
        limit, PngImagePlugin.MAX_TEXT_CHUNK = PngImagePlugin.MAX_TEXT_CHUNK, MAX_TEXT
        try:
            yield
        except PermissionError as error:
            raise ValueError(f"{file} cannot be read ({error.strerror}); check its permissions") from error
        except Exception as error:  # Pillow raises many kinds, among them SyntaxError for a broken PNG
            raise ValueError(
                f"{file} is not a readable image ({_reason(error, file)}); replace or remove it"
            ) from error
        finally:
            PngImagePlugin.MAX_TEXT_CHUNK = limit


def _bits(image: Any) -> int:
    """Returns the bits per channel in the file, which Pillow may reduce to 8 while it reads."""
    kind, raw = image.format, image.tile[0][3] if image.tile else ""
    if kind == "TIFF":
        signed = set(image.tag_v2.get(SAMPLE_FORMAT, ())) - {1}  # values below zero, or floating point
        return max(*image.tag_v2.get(BITS_PER_SAMPLE, (1,)), 16 if signed else 1)
    if kind == "PNG":
        return 16 if "16" in str(raw) else 8
    if kind == "PPM":
        largest = raw[1] if isinstance(raw, tuple) else raw
        return largest.bit_length() if isinstance(largest, int) else 8
    return 8


def _scale_key(image: Any) -> None:
    """Scales the transparent value of a PNG as Pillow scales its grey values. Before the pixels are read."""
    raw = str(image.tile[0][3]) if image.tile else ""
    if raw in GREY_STEPS and isinstance(key := image.info.get("transparency"), int):
        image.info["transparency"] = key * GREY_STEPS[raw]


def _plain(image: Any) -> Any:
    """Converts the image to grey or RGB; transparent pixels are blended with white."""
    from PIL import Image

    mode = GREY if image.mode in STORED_GREY else RGB
    if "A" in image.mode or (image.mode in ("P", *KEYED) and "transparency" in image.info):
        foreground = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", foreground.size, "white"), foreground)
    return image if image.mode == mode else image.convert(mode)


def _split(path: Path, words: Iterable[str]) -> Path | None:
    """Returns the first folder with one of these names that contains folders. Without subfolders, "train" may
    be the name of a class.
    """
    return next((path / word for word in words if (path / word).is_dir() and _classes(path / word)), None)


def _classes(path: Path) -> list[Path]:
    """Returns the subfolders, one per class, in alphabetical order."""
    return sorted(Path(entry.path) for entry in _entries(path) if entry.is_dir())


def _part(classes: list[Path], names: tuple[str, ...]) -> Part:
    """Lists the files of these class folders; labels are positions in ``names``."""
    files, labels, stamp = [], [], hashlib.sha256()
    for folder in classes:
        entries = sorted(_files(folder))
        if not entries:
            raise ValueError(f"{folder} must hold images of its class, got none; fill or remove it")
        files += [file for file, *_ in entries]
        labels += [names.index(folder.name)] * len(entries)
        stamp.update(repr(entries).encode())
    return Part(files, labels, stamp.hexdigest())


def _files(folder: Path) -> Iterator[tuple[str, int, int]]:
    """Yields path, size in bytes and modification time in nanoseconds of each image of a class."""
    for entry in _entries(folder):
        if entry.is_dir() or not entry.name.lower().endswith(SUFFIXES):
            kind = "the folder" if entry.is_dir() else "the file"
            raise ValueError(
                f"{folder} must hold images only ({', '.join(SUFFIXES)}), got {kind} {entry.name!r}; move "
                "it away"
            )
        try:
            state = entry.stat()
        except OSError as error:  # a broken link
            raise ValueError(
                f"{entry.path} cannot be read ({error.strerror}); replace or remove it"
            ) from error
        if not stat.S_ISREG(state.st_mode):  # opening a pipe would wait for its writer
            raise ValueError(f"{entry.path} must be a file, got a pipe, a socket or a device; move it away")
        yield entry.path, state.st_size, state.st_mtime_ns


def _entries(path: Path) -> list[os.DirEntry]:
    """Returns the entries of a folder except hidden files and :data:`IGNORED`."""
    try:
        with os.scandir(path) as entries:
            return [
                entry
                for entry in entries
                if not entry.name.startswith(".") and entry.name.lower() not in IGNORED
            ]
    except OSError as error:
        raise ValueError(
            f"{path} cannot be read ({error.strerror}); check the path and its permissions"
        ) from error


def _reason(error: Exception, file: str) -> str:
    """Returns the first line of Pillow's message, or a shorter text if that line only repeats the path."""
    message = str(error).splitlines()[0] if str(error) else type(error).__name__
    return (
        "its content is not an image" if file in message or message.startswith("cannot identify") else message
    )

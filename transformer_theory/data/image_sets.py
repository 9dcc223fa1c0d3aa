"""Training and test images, loaded by name or from files."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from ..core.errors import abbreviated_list, nearest
from ..core.validation import integers
from .cifar import FORMS, is_official_form, read_cifar
from .digits import digits_split
from .download import ARCHIVES, data_folder, fetch
from .image_cache import cached, read_npz
from .image_data import MAX_SAMPLES, Images
from .image_folder import find_images, read_folder
from .shapes import shapes_split
from .tokens import TokenData

READING = 2  # changes whenever the same files are read otherwise: copies in the cache are then outdated
COARSE = "-coarse"  # end of the name that selects the coarse classes of CIFAR-100
PATCHES_PER_SIDE = 4
MAX_VALUES = 2**26  # largest number of values in all tokens, 512 MiB in float64
GENERATED: dict[str, Callable[[], tuple[Images, Images]]] = {"digits": digits_split, "shapes": shapes_split}
NAMES = (*GENERATED, *ARCHIVES, f"cifar100{COARSE}")


def images(
    name_or_path: str | Path, *, size: int | None = None, progress: Callable[[str], None] | None = None
) -> tuple[Images, Images]:
    """Loads training and test images by name or from a path.

    * ``"digits"``, ``"shapes"``: see :func:`.digits_split`, :func:`.shapes_split`;
    * ``"cifar10"``, ``"cifar100"`` (fine classes), ``"cifar100-coarse"``: read from the data folder
      (``$TRANSFORMER_THEORY_DATA``, or the user's cache folder), which may hold the official archive, its
      unpacked folder, or a folder of images with that name; if it holds none of them, the official archive is
      downloaded;
    * a path: an official archive or its unpacked folder, a folder of images with ``train/<class>/*`` and
      ``test/<class>/*`` or only ``<class>/*``, or an ``.npz`` (see :func:`.read_npz`).

    The ``name`` of the images states if files are not official, are JPEGs, or were split here. Archives and
    folders are decoded once; the decoded images are cached in the data folder.

    Args:
        name_or_path: name or path, see above.
        size: side in pixels to which the images of a folder are scaled and cropped; see :mod:`.image_folder`.
        progress: function called with messages about downloads, converted files, and classes without
            training or test images. Defaults to printing them
            to the standard error.
    Raises:
        ValueError: the name is unknown (the message suggests the nearest one), files cannot be read as
            images, a download failed, or ``size`` differs from the size of images that are not in a folder.
    """
    if size is not None:
        integers(size=size)
    say = progress or _to_standard_error
    train, test = _train_and_test(name_or_path, size, say)
    for line in _incomplete(train, test):
        say(f"{name_or_path}: {line}")
    if size not in (None, train.size):
        actual = f"{size} for {train.name}, whose side is {train.size} pixels"
        raise ValueError(
            f"size must be the side of the images unless they come from a folder, got {actual}; leave it out"
        )
    return train, test


def _incomplete(train: Images, test: Images) -> Iterator[str]:
    """Yields a line on classes that have images in one part alone."""
    trained, tested = (set(part.labels.unique().tolist()) for part in (train, test))
    for missing, text in (
        (trained - tested, "no test image, so no accuracy"),
        (tested - trained, "no training image, so no network can learn them"),
    ):
        if missing:
            names = abbreviated_list([train.names[label] for label in sorted(missing)])
            yield f"{len(missing)} of {len(trained | tested)} classes have {text}: {names}"


def _train_and_test(
    name_or_path: str | Path, size: int | None, progress: Callable[[str], None]
) -> tuple[Images, Images]:
    name = str(name_or_path)
    if isinstance(name_or_path, str) and name in GENERATED:
        return GENERATED[name]()
    if isinstance(name_or_path, str) and name in NAMES:
        return _published(name, size, progress)
    path = Path(name_or_path)
    if not name or not path.exists():
        if path.suffix or len(path.parts) > 1:
            raise ValueError(f"no such file or folder: {path}")
        raise ValueError(f"unknown images {name!r}, neither a name nor a path{nearest(name, NAMES)}")
    if not (path.is_file() or path.is_dir()):  # opening a pipe would wait for its writer
        raise ValueError(f"{path} must be a file or a folder, got a pipe, a socket or a device")
    return _read(path, size, progress)


def image_tokens(name_or_path: str | Path, *, size: int | None = None) -> TokenData:
    """Loads at most 2,000 training images as tokens: 4 patches per side, or the next larger number for which
    patches fill the image.

    Args:
        name_or_path, size: source and size of the images, see :func:`images`.
    Raises:
        ValueError: see :func:`images`.
    """
    return tokens_of(images(name_or_path, size=size)[0], torch.Generator().manual_seed(0))


def tokens_of(data: Images, generator: torch.Generator) -> TokenData:
    """Converts images to tokens, see :func:`image_tokens`. The generator draws the sample of images and the
    codebook.
    """
    patch = next(
        size for size in range(max(data.size // PATCHES_PER_SIDE, 1), 0, -1) if data.size % size == 0
    )
    max_samples = min(MAX_SAMPLES, max(MAX_VALUES // data.pixels[0].numel(), 1))
    return data.tokens(patch, max_samples=max_samples, generator=generator)


def _published(name: str, size: int | None, progress: Callable[[str], None]) -> tuple[Images, Images]:
    """Reads a published data set from the data folder; downloads it first if the folder lacks it."""
    base, folder = name.removesuffix(COARSE), data_folder()
    official = [
        folder / entry for form in FORMS if form.name == base for entry in (form.folder, form.archive)
    ]
    local = next((path for path in (*official, folder / name) if path.exists()), None)
    return _read(local or fetch(ARCHIVES[base], folder, progress), size, progress, coarse=name != base)


def _read(
    path: Path, size: int | None, progress: Callable[[str], None], *, coarse: bool = False
) -> tuple[Images, Images]:
    if path.suffix.lower() == ".npz":
        return read_npz(path)
    if is_official_form(path):
        if path.is_dir():  # reading a cache would not be faster
            return read_cifar(path, coarse=coarse)
        state = path.stat()
        return cached(
            path, f"{state.st_size} {state.st_mtime_ns} {coarse}", lambda: read_cifar(path, coarse=coarse)
        )
    if not path.is_dir():
        raise ValueError(
            f"{path} must be a folder of images, a .tar.gz of CIFAR or an .npz of images, got "
            f"{path.suffix or 'no ending'!r}"
        )
    folder = find_images(path)
    stamp = f"{READING} {size} {folder.train.stamp} {folder.test and folder.test.stamp}"
    return cached(path, stamp, lambda: read_folder(folder, size=size, progress=progress))


def _to_standard_error(line: str) -> None:
    print(line, file=sys.stderr, flush=True)

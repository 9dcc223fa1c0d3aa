"""Images for training and test, by name or from the user's own files."""

import sys
from collections.abc import Callable
from pathlib import Path

import torch

from ..core.errors import nearest
from ..core.sources import Source
from .cifar import FORMS, is_official_form, read_cifar
from .download import ARCHIVES, data_folder, fetch
from .image_cache import cached, read_npz
from .image_data import MOST, Images
from .image_folder import find_images, read_folder
from .shapes import shapes
from .tokens import TokenData

DIGITS_SHARE = 0.7  # of training images; scikit-learn's copy has no split of its own
SHAPES = (5000, 1000)  # training and test images
COARSE = "-coarse"
ACROSS = 4  # patches along a side, of the tokens that theories read
VALUES = 2**26  # of pixels that theories read, 512 MiB in float64


def images(name_or_path: str | Path, *, size: int | None = None, say: Callable[[str], None] | None = None) -> tuple[Images, Images]:
    """Training and test images by name or from a path.

    * ``"digits"``, ``"shapes"``: see :func:`digits_split`, :func:`shapes_split`;
    * ``"cifar10"``, ``"cifar100"`` (fine classes), ``"cifar100-coarse"``: from the data folder (``$TRANSFORMER_THEORY_DATA``, else the
      user's cache folder), as an official archive, as the folder it unpacks to or as a folder of images ``cifar10``; if there is none, the
      official archive is downloaded;
    * a path: one of the official archives or folders, a folder ``train/<class>/*`` with ``test/<class>/*`` or ``<class>/*`` alone, or an
      ``.npz`` (see :func:`.read_npz`).

    The name of what comes back says if the files are not the official ones, are JPEGs, or were split here. Archives and folders are decoded
    once; decoded images stay in the data folder.

    Args:
        size: side to which the images of a folder are scaled and cropped, pixels; see :mod:`.image_folder`.
        say: gets a line at a time of what a download does and of what is converted; by default it goes to the standard error.
    Raises:
        ValueError: an unknown name (the nearest one is suggested), files that cannot be read as images, a download that failed, or a size
            for images that come in another one and are in no folder.
    """
    if size is not None and size < 1:
        raise ValueError(f"size must be at least 1 pixel, got {size}")
    found = _found(name_or_path, size, say or _to_standard_error)
    if size not in (None, found[0].size):
        came = f"{size} for {found[0].name}, {found[0].size} pixels"
        raise ValueError(f"size must be that of the images where they are in no folder, got {came}; leave it out")
    return found


def _found(name_or_path: str | Path, size: int | None, say: Callable[[str], None]) -> tuple[Images, Images]:
    name = str(name_or_path)
    if isinstance(name_or_path, str) and name in GENERATED:
        return GENERATED[name]()
    if isinstance(name_or_path, str) and name in NAMES:
        return _published(name, size, say)
    path = Path(name_or_path)
    if not name or not path.exists():
        if path.suffix or len(path.parts) > 1:
            raise ValueError(f"no such file or folder: {path}")
        raise ValueError(f"unknown images {name!r}, neither a name nor a path{nearest(name, NAMES)}")
    return _read(path, size, say)


def image_tokens(name_or_path: str | Path, *, size: int | None = None) -> TokenData:
    """The training images as every theory reads them: 4 patches along a side (or the next number that divides it), at most 2,000 images.

    64 visual words explain 75 % of the variance of the patches of CIFAR-10 (2,000 images of a JPEG copy, patches of 8 x 8).

    Args:
        size: see :func:`images`.
    Raises:
        ValueError: as of :func:`images`.
    """
    return tokens_of(images(name_or_path, size=size)[0], torch.Generator().manual_seed(0))


def tokens_of(found: Images, generator: torch.Generator) -> TokenData:
    """Images as every theory reads them, see :func:`image_tokens`."""
    patch = next(size for size in range(max(found.size // ACROSS, 1), 0, -1) if found.size % size == 0)
    most = min(MOST, max(VALUES // found.pixels[0].numel(), 1))
    return found.tokens(patch, most=most, generator=generator)


def digits_split() -> tuple[Images, Images]:
    """1,257 and 540 grey 8 x 8 digits of scikit-learn, a fixed stratified split; a pixel is its ink, 0 ... 16, times 255 / 16, rounded."""
    from sklearn.datasets import load_digits

    pixels, classes = load_digits(return_X_y=True)
    grey = (torch.from_numpy(pixels) * 255 / 16).round().to(torch.uint8).reshape(-1, 1, 8, 8)
    whole = Images(grey, torch.from_numpy(classes).long(), tuple("0123456789"), "digits", (Source("alpaydin1998optical"),))
    return whole.split(DIGITS_SHARE, torch.Generator().manual_seed(0))


def shapes_split() -> tuple[Images, Images]:
    """5,000 and 1,000 generated images, always the same; see :func:`.shapes`."""
    generator = torch.Generator().manual_seed(0)
    train, test = (shapes(n, generator=generator) for n in SHAPES)
    return train, test


GENERATED: dict[str, Callable[[], tuple[Images, Images]]] = {"digits": digits_split, "shapes": shapes_split}
NAMES = (*GENERATED, *ARCHIVES, f"cifar100{COARSE}")


def _published(name: str, size: int | None, say: Callable[[str], None]) -> tuple[Images, Images]:
    base, folder = name.removesuffix(COARSE), data_folder()
    places = [folder / place for form in FORMS if form.name == base for place in (form.folder, form.archive)]
    found = next((place for place in (*places, folder / name) if place.exists()), None)
    return _read(found or fetch(ARCHIVES[base], folder, say), size, say, coarse=name != base)


def _read(path: Path, size: int | None, say: Callable[[str], None], *, coarse: bool = False) -> tuple[Images, Images]:
    if path.suffix.lower() == ".npz":
        return read_npz(path)
    if is_official_form(path):
        if path.is_dir():  # as fast as the cache would be
            return read_cifar(path, coarse=coarse)
        state = path.stat()
        return cached(path, f"{state.st_size} {state.st_mtime_ns} {coarse}", lambda: read_cifar(path, coarse=coarse))
    if not path.is_dir():
        raise ValueError(f"{path} must be a folder of images, a .tar.gz of CIFAR or an .npz of images, got {path.suffix or 'no ending'!r}")
    folder = find_images(path)
    stamp = f"{size} {folder.train.stamp} {folder.test and folder.test.stamp}"
    return cached(path, stamp, lambda: read_folder(folder, size=size, say=say))


def _to_standard_error(line: str) -> None:
    print(line, file=sys.stderr, flush=True)

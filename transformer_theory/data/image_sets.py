"""Images for training and test, by name or from the user's own folder."""

from collections.abc import Callable
from pathlib import Path

import torch

from ..citations import Source
from ..errors import nearest
from .image_folder import find_images, read_folder
from .images import Images
from .shapes import shapes

DIGITS_SHARE = 0.7  # of training images; scikit-learn's copy has no split of its own
SHAPES = (5000, 1000)  # training and test images


def images(name_or_path: str | Path, *, size: int | None = None) -> tuple[Images, Images]:
    """Training and test images by name (``"digits"``, ``"shapes"``), or from a folder.

    Args:
        size: side to which the images of a folder are scaled and cropped, pixels.
    Raises:
        ValueError: an unknown name (the nearest one is suggested), or files that cannot be read as images.
    """
    name = str(name_or_path)
    if isinstance(name_or_path, str) and name in NAMED:
        return NAMED[name]()
    path = Path(name_or_path)
    if not path.exists():
        raise ValueError(f"unknown images {name!r}, neither a name nor a path{nearest(name, NAMED)}")
    return read_folder(find_images(path), size=size)


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


NAMED: dict[str, Callable[[], tuple[Images, Images]]] = {"digits": digits_split, "shapes": shapes_split}

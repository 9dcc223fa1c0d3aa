"""Data sets by name, from files or from samplers: :class:`TokenData` for theories, :class:`Images` for the training of networks."""

from pathlib import Path

from ..core.errors import nearest
from . import synthetic
from .bridges import codebook, one_hot, patches
from .digits import digits
from .image_data import Images
from .image_sets import NAMES as IMAGES
from .image_sets import image_tokens, images
from .shapes import shapes
from .text import Text, harbour
from .tokens import TokenData

__all__ = [
    "Images",
    "Text",
    "TokenData",
    "codebook",
    "digits",
    "harbour",
    "images",
    "load",
    "one_hot",
    "patches",
    "shapes",
    "synthetic",
]

NAMED = {"digits": digits, "text": harbour}


def load(name_or_path: str | Path) -> TokenData:
    """Data by name or from a path: ``load("digits")``, ``load("tokens.npz")``.

    Args:
        name_or_path: ``"digits"``, ``"text"`` or a name of :func:`images`; or the path of an ``.npz`` of tokens
            (:meth:`TokenData.from_npz`), a ``.txt`` of plain text (:meth:`.Text.sequences`), a folder of images or an archive of CIFAR
            (:func:`images`). Of images, at most 2,000 training images are cut into patches. A string with a path separator or a suffix is
            a path; any other string is a name.

    Raises:
        ValueError: an unknown name (the nearest one is suggested), or a file that cannot be read.
    """
    name = str(name_or_path)
    if isinstance(name_or_path, str) and name in NAMED:
        return NAMED[name]()
    if isinstance(name_or_path, str) and name in IMAGES:
        return image_tokens(name)
    path = Path(name_or_path)
    if isinstance(name_or_path, Path) or path.suffix or len(path.parts) > 1 or (name and path.exists()):
        if path.is_dir() or path.name.lower().endswith((".tar.gz", ".tgz")):
            return image_tokens(path)
        if path.suffix.lower() == ".txt":
            return Text.read(path).sequences()
        if path.suffix.lower() == ".npz":
            return TokenData.from_npz(path)
        hint = "write arrays with numpy.savez, or rename a text"
        expected = "an .npz of tokens, a .txt of plain text, a folder of images or an archive of CIFAR"
        raise ValueError(f"{path} must be {expected}, got {path.suffix or 'no ending'!r}; {hint}")
    raise ValueError(
        f"unknown data {name!r}, neither a name nor a path to an .npz, a .txt or images{nearest(name, dict.fromkeys([*NAMED, *IMAGES]))}"
    )

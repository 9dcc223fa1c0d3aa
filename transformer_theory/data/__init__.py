"""Data sets loaded by name or from files, or sampled: :class:`TokenData` for theories, :class:`Images` for
training networks.
"""

from pathlib import Path

from ..core.errors import nearest
from . import synthetic
from .bridges import codebook, one_hot, patches
from .digits import digits
from .graphs import KINDS as GRAPHS
from .graphs import Graphs, holds_graphs
from .image_data import Images
from .image_sets import NAMES as IMAGES
from .image_sets import image_tokens, images
from .shapes import shapes
from .text import Text, harbour
from .tokens import TokenData

__all__ = [
    "Graphs",
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

# data sets of tokens; the data sets in IMAGES are cut into patches
NAMED = {"digits": digits, "text": harbour}


def load(name_or_path: str | Path) -> TokenData | Graphs:
    """Loads data by name or from a path: ``load("digits")``, ``load("tokens.npz")``, ``load("a.graphml")``.

    Args:
        name_or_path: ``"digits"``, ``"text"`` or a name that :func:`images` knows; or the path of an ``.npz``
            file of tokens (:meth:`TokenData.from_npz`), a plain-text ``.txt`` file (:meth:`.Text.sequences`),
            a folder of images or a CIFAR archive (:func:`images`). Images are cut into patches; a stratified
            sample of at most 2,000 training images is used. A file of a graph, or a folder that holds one, is
            read as :class:`Graphs` (:meth:`Graphs.load`). A string is read as a path if it has a separator
            or a suffix, or if such a file exists and no data set has this name.

    Returns:
        Tokens, or graphs if the path holds graphs.
    Raises:
        ValueError: the name is unknown (the message suggests the nearest one), or the file cannot be read.
        FileNotFoundError: the path has the suffix of a graph, and there is no such file.
    """
    name = str(name_or_path)
    if isinstance(name_or_path, str) and name in NAMED:
        return NAMED[name]()
    if isinstance(name_or_path, str) and name in IMAGES:
        return image_tokens(name)
    # Any other string is a path if it looks like one or if the file exists.
    path = Path(name_or_path)
    if isinstance(name_or_path, Path) or path.suffix or len(path.parts) > 1 or (name and path.exists()):
        if holds_graphs(path):
            return Graphs.load(path)
        if path.is_dir() or path.name.lower().endswith((".tar.gz", ".tgz")):
            return image_tokens(path)
        if path.suffix.lower() == ".txt":
            return Text.read(path).sequences()
        if path.suffix.lower() == ".npz":
            return TokenData.from_npz(path)
        hint = "store arrays with numpy.savez, or rename a text file to .txt"
        expected = (
            "an .npz of tokens, a .txt of plain text, a folder of images, an archive of CIFAR or graphs as "
            f"{GRAPHS}"
        )
        raise ValueError(f"{path} must be {expected}, got {path.suffix or 'no suffix'!r}; {hint}")
    raise ValueError(
        f"unknown data {name!r}, neither a name nor a path to an .npz, a .txt or "
        f"images{nearest(name, dict.fromkeys([*NAMED, *IMAGES]))}"
    )

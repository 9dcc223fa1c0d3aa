"""Data that every theory reads: :class:`TokenData`, real data by name, the user's own files, synthetic samplers and bridges."""

from pathlib import Path

from ..errors import nearest
from . import synthetic
from .bridges import codebook, features, one_hot, patches
from .digits import digits
from .tokens import TokenData

__all__ = ["TokenData", "codebook", "digits", "features", "load", "one_hot", "patches", "synthetic"]

NAMED = {"digits": digits}
PLANNED = ("cifar10", "text")


def load(name_or_path: str | Path) -> TokenData:
    """Real data by name (``"digits"``), or the user's own from the path of an ``.npz`` (see :meth:`TokenData.from_npz`).

    Anything with a path separator or a suffix is a path; everything else is a name.

    Raises:
        ValueError: an unknown name (the nearest one is suggested), a name of a later version, or a file that cannot be read.
    """
    name = str(name_or_path)
    if isinstance(name_or_path, str) and name in NAMED:
        return NAMED[name]()
    if isinstance(name_or_path, str) and name in PLANNED:
        raise ValueError(f"{name!r} comes with a later version; use 'digits' or the path of an .npz with your own tokens")
    path = Path(name_or_path)
    if isinstance(name_or_path, Path) or path.suffix or len(path.parts) > 1 or path.is_file():
        return TokenData.from_npz(path)
    raise ValueError(f"unknown data {name!r}, neither a name nor the path of an .npz{nearest(name, NAMED)}")

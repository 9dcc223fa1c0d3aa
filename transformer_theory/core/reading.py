"""Reading files that may hold anything.

Every reader of this library begins here. A pipe or a device is refused, since reading it might never end; so
is a file that claims more than the free memory, before anything is unpacked, and JSON that is nested deeper
than Python reads. Nothing is unpickled.
"""

import json
import math
import os
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np

from .errors import reason
from .memory import free_memory, gib

# an archive of more bytes than this that is smaller than its contents by more than this factor
PACKED_BYTES, PACKED = 2**30, 100
COPIES = 3  # copies of its contents that a reader has in memory at a time
# what numpy's reader raises for a damaged file
DAMAGED = (
    OSError,
    EOFError,
    NotImplementedError,
    MemoryError,
    RuntimeError,
    SyntaxError,
    ValueError,
    zipfile.BadZipFile,
    zlib.error,
)


def check_file(path: Path) -> None:
    """Checks that a path leads to a file that fits into the memory.

    Raises:
        FileNotFoundError: there is nothing.
        ValueError: it is a folder, a pipe, a socket or a device, or the file is too large.
        PermissionError: it must not be read.
    """
    try:
        found = path.stat()
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} does not exist; check the path") from None
    except PermissionError:
        raise PermissionError(
            f"{path} cannot be read (permission denied); change its permissions, or copy it"
        ) from None
    except (OSError, ValueError) as error:  # a name that is too long, a loop of links, a NUL in the name
        reason = error.strerror if isinstance(error, OSError) else error
        raise ValueError(f"{path} cannot be read ({reason}); check the path") from error
    if not path.is_file():
        raise ValueError(f"{path} must be a file, got {kind_of(path)}; copy its contents to a file")
    check_size(path, found.st_size)


def kind_of(path: Path) -> str:
    """Returns what lies at a path: "a folder", "a pipe", "a socket", "a device", "a file", "no such file"."""
    kinds = {"a folder": "is_dir", "a pipe": "is_fifo", "a socket": "is_socket", "a file": "is_file"}
    found = [kind for kind, test in kinds.items() if getattr(path, test)()]
    return (*found, "a device" if path.exists() else "no such file")[0]


def check_name(path: Path) -> None:
    """Checks that the name of a file or folder is text, since it names data in results and on pages.

    Raises:
        ValueError: the name is not in UTF-8.
    """
    try:
        path.name.encode()
    except UnicodeEncodeError:
        raise ValueError(
            f"{path.parent} must hold names in UTF-8, got {os.fsencode(path.name)!r}; rename it"
        ) from None


def check_size(path: Path, size: float) -> None:
    """Checks that contents of ``size`` bytes fit into the free memory.

    Raises:
        ValueError: they do not.
    """
    if COPIES * size > (free := free_memory()):
        raise ValueError(
            f"{path} holds {gib(size)}, and reading it takes {COPIES} times as much, got {gib(free)} of free "
            "memory; choose a smaller file, or a larger machine"
        )


def parse_json(text: str | bytes) -> Any:
    """Parses JSON.

    Raises:
        ValueError: the text is not JSON, or nested too deeply.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("JSON nested too deeply") from None


def read_json(path: Path) -> Any:
    """Reads a file of JSON in UTF-8.

    Raises:
        FileNotFoundError, PermissionError, ValueError: see :func:`check_file`; or the file is not JSON.
    """
    check_file(path)
    return parse_json(path.read_text(encoding="utf-8"))


def read_array(path: Path) -> np.ndarray:
    """Reads a ``.npy`` file.

    Raises:
        FileNotFoundError, PermissionError: see :func:`check_file`.
        ValueError: it is damaged, holds objects, or claims more than it holds. The message says what was got.
    """
    check_file(path)
    try:
        with path.open("rb") as file:
            _check_claim(file, path.stat().st_size)
        return np.load(path, allow_pickle=False)
    except PermissionError:
        raise
    except DAMAGED as error:
        raise ValueError(reason(error)) from error


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Reads the arrays of an ``.npz`` file by name.

    Raises:
        FileNotFoundError, PermissionError: see :func:`check_file`.
        ValueError: it is damaged, no ``.npz``, holds objects, unpacks to more than the free memory, or to
            more than a hundred times its size and a GiB. The message says what was got ("tokens as an array
            of Python objects, ...").
    """
    check_file(path)
    path.open("rb").close()  # raises PermissionError, which is_zipfile would hide
    if not zipfile.is_zipfile(path):
        raise ValueError("a file that is cut short or not a zip of arrays")
    arrays = {}
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
            check_size(path, size)
            if size > PACKED_BYTES and size > PACKED * path.stat().st_size:
                raise ValueError(
                    f"{gib(size)} packed into a file of {gib(path.stat().st_size)}, which is hardly data; if "
                    "it is, store it without compression"
                )
            for entry in archive.infolist():
                name = entry.filename.removesuffix(".npy")
                with archive.open(entry) as file:
                    if not entry.filename.endswith(".npy"):
                        raise ValueError(f"{name} as a file of another kind")
                    _check_claim(file, entry.file_size, name)
                with archive.open(entry) as file:
                    arrays[name] = np.lib.format.read_array(file, allow_pickle=False)
                    if file.read(1):
                        raise ValueError(f"{name} with more than its array")
    except PermissionError:
        raise
    except DAMAGED as error:
        raise ValueError(reason(error)) from error
    return arrays


def _check_claim(file: IO[bytes], size: int, name: str = "") -> None:
    """Checks that the header of an array claims as many bytes as the file holds: numpy would reserve them.

    Raises:
        ValueError: it claims others, its header is damaged, or the array holds objects.
    """
    version = np.lib.format.read_magic(file)  # pyright: ignore[reportArgumentType]
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
        return  # version (3, 0) has names of fields; arrays of numbers have none
    subject = f"{name} as an array" if name else "an array"
    try:
        shape, _, dtype = readers[version](file)  # pyright: ignore[reportArgumentType]
    except (OSError, ValueError):
        raise
    except Exception:  # numpy parses a literal of Python, and looks for one of Python 2
        raise ValueError(f"{subject} whose header is damaged") from None
    if dtype.hasobject:
        raise ValueError(f"{subject} of Python objects, which are never unpickled")
    claimed = math.prod(shape) * dtype.itemsize
    if claimed != size - file.tell():
        raise ValueError(f"{subject} that claims {claimed:,} bytes and holds {size - file.tell():,}")

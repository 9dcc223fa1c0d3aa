"""CIFAR-10 and CIFAR-100, read from the official archives or from the folders to which they unpack.

The Python form consists of pickles with ``data`` [n, 3072] (red, green, blue, each row by row) and lists of
labels. The binary form has one record per image: its label (CIFAR-100: coarse label, then fine label) and the
same 3,072 bytes. Archives are read as streams; nothing is unpacked to disk.

Loading a pickle can run arbitrary code. :func:`read_plain_pickle` accepts only numbers, text and uint8
arrays. It knows the names that NumPy imports to restore an array of bytes, and replaces each by a function
that does only what these files need. It refuses every other name.

The checksums of the image files come from torchvision (Python form) and from other libraries (binary form).
The file of class names has no checksum; after a download the checksum of the archive covers it.
Source: :cite:t:`krizhevsky2009learning`; https://www.cs.toronto.edu/~kriz/cifar.html.
"""

import gzip
import hashlib
import io
import pickle
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch

from ..core.sources import Source
from .image_data import Images

SIZE, CHANNELS = 32, 3
RECORD = CHANNELS * SIZE * SIZE  # bytes per image
MAX_BYTES = 400 * 2**20  # largest unpacked size of an archive; official archives unpack to less than 180 MiB
MAX_MEMBERS = 1000  # largest number of members of an archive


@dataclass(frozen=True)
class Form:
    """A published form of a data set.

    Attributes:
        name: name of the data set.
        folder, archive: names of the unpacked folder and of the archive.
        parts: number of images in each file, relative to the test file.
        checksums: MD5 checksum of each image file.
        meta: files with the class names: one for all, or one for coarse and one for fine classes.
        classes: numbers of fine classes and of coarse classes (0 if there are none).
    """

    name: str
    folder: str
    archive: str
    parts: dict[str, int]
    checksums: dict[str, str]
    meta: tuple[str, ...]
    classes: tuple[int, int]

    @property
    def test(self) -> str:
        """Name of the file of test images, which is the last file."""
        return list(self.parts)[-1]

    @property
    def binary(self) -> bool:
        """Whether the files contain records instead of pickles."""
        return self.test.endswith(".bin")


def _form(
    name: str, folder: str, archive: str, checksums: dict[str, str], meta: tuple[str, ...], *, coarse: int = 0
) -> Form:
    # Six files: five training batches as large as the test file. Two files: one training file, five times as
    # large.
    parts: dict[str, int] = dict(zip(checksums, (1,) * 6 if len(checksums) == 6 else (5, 1)))
    return Form(name, folder, archive, parts, checksums, meta, (100 if coarse else 10, coarse))


FORMS = (
    _form(
        "cifar10",
        "cifar-10-batches-py",
        "cifar-10-python.tar.gz",
        {
            "data_batch_1": "c99cafc152244af753f735de768cd75f",
            "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
            "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
            "data_batch_4": "634d18415352ddfa80567beed471001a",
            "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
            "test_batch": "40351d587109b95175f43aff81a1287e",
        },
        ("batches.meta",),
    ),
    _form(
        "cifar10",
        "cifar-10-batches-bin",
        "cifar-10-binary.tar.gz",
        {
            "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
            "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
            "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
            "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
            "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
            "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
        },
        ("batches.meta.txt",),
    ),
    _form(
        "cifar100",
        "cifar-100-python",
        "cifar-100-python.tar.gz",
        {"train": "16019d7e3df5f24257cddd939b257f8d", "test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
        ("meta",),
        coarse=20,
    ),
    _form(
        "cifar100",
        "cifar-100-binary",
        "cifar-100-binary.tar.gz",
        {"train.bin": "6172c7755cfe09b2fe270c85cebc1b15", "test.bin": "4499cfba6c016c1be1438163640a0898"},
        ("coarse_label_names.txt", "fine_label_names.txt"),
        coarse=20,
    ),
)


def is_official_form(path: Path) -> bool:
    """Returns whether a path is an archive, or a folder that holds an image file with its official name."""
    return path.name.lower().endswith((".tar.gz", ".tgz")) or any(
        (path / file).is_file() for form in FORMS for file in form.parts
    )


def read_cifar(path: Path, *, coarse: bool = False) -> tuple[Images, Images]:
    """Reads training and test images from an archive or an unpacked folder. Their name states if a checksum
    is not official.

    Args:
        path: archive or folder.
        coarse: whether to use the 20 coarse classes of CIFAR-100 instead of the 100 fine classes.
    Raises:
        ValueError: a file is missing, damaged, cut short or too large, or not a file of CIFAR; the message
            names it.
    """
    reader = _Reader(path, coarse)
    for file, blob in _from_folder(path) if path.is_dir() else _from_archive(path):
        try:
            reader.take(file, blob)
        except ValueError as error:
            raise ValueError(f"{path}: {file} must be a file of CIFAR, got {error}; get it again") from error
    return reader.images()


class _Reader:
    """Decodes the files of one form, in any order, and collects their images."""

    def __init__(self, path: Path, coarse: bool):
        self.path, self.coarse = path, coarse
        self.form: Form | None = None
        self.files: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        self.metas: dict[str, list[str]] = {}
        self.official = True

    def take(self, file: str, blob: bytes) -> None:
        """Decodes one file. The messages of its errors complete "must be a file of CIFAR, got ..."."""
        form = next(form for form in FORMS if file in (*form.parts, *form.meta))
        if self.form and form is not self.form:
            raise ValueError(f"a file of {form.folder} among those of {self.form.folder}")
        if file in self.files or file in self.metas:
            raise ValueError("two of that name")
        if self.coarse and not form.classes[1]:
            raise ValueError(f"one of {form.name}, which has no coarse classes")
        self.form = form
        if file in form.meta:
            self.metas[file] = _names(blob, form, self.coarse)
            return
        pixels, labels = (_records if form.binary else _pickled)(blob, form, self.coarse)
        classes = form.classes[self.coarse]  # index 0: fine classes, 1: coarse classes
        if labels and not 0 <= min(labels) <= max(labels) < classes:
            raise ValueError(
                f"labels from {min(labels)} to {max(labels)} where classes are 0 to {classes - 1}"
            )
        self.official &= hashlib.md5(blob, usedforsecurity=False).hexdigest() == form.checksums[file]
        self.files[file] = (pixels, np.array(labels, np.int64))

    def images(self) -> tuple[Images, Images]:
        """Returns training and test images. Raises ValueError if a file is missing or incomplete."""
        form = self.form
        if form is None:
            known = ", ".join(form.archive for form in FORMS)
            raise ValueError(
                f"{self.path} must hold the files of CIFAR, got none of them; take one of {known}"
            )
        if missing := [file for file in (*form.parts, *form.meta) if file not in (*self.files, *self.metas)]:
            raise ValueError(f"{self.path} lacks {missing[0]}; unpack {form.archive} again")
        # Files may be smaller than the official ones, but only in proportion.
        units = {file: len(self.files[file][1]) / part for file, part in form.parts.items()}
        if len(set(units.values())) > 1 or not all(units.values()):
            smallest = min(units, key=lambda file: units[file])
            expected = max(units.values()) * form.parts[smallest]
            counts = (
                f"{len(self.files[smallest][1])} images in {smallest}, but {expected:g} would fit the others"
            )
            raise ValueError(f"{self.path} must hold whole files, got {counts}; get it again")
        meta = form.meta[-1] if len(form.meta) == 1 or not self.coarse else form.meta[0]
        names, classes = tuple(self.metas[meta]), form.classes[self.coarse]
        if len(names) != classes:
            raise ValueError(
                f"{self.path}: {meta} must name {classes} classes, got {len(names)}; get it again"
            )
        name = form.name + "-coarse" * self.coarse + " (not the official files)" * (not self.official)
        train, test = (
            self._joined([file for file in form.parts if (file == form.test) is is_test])
            for is_test in (False, True)
        )
        sources = (Source("krizhevsky2009learning"),)
        return Images(*train, names, name, sources), Images(*test, names, name, sources)

    def _joined(self, files: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
        """Concatenates pixels and labels of some files, and removes the files from memory."""
        parts = [self.files.pop(file) for file in files]
        pixels, labels = (np.concatenate(arrays) for arrays in zip(*parts))
        return torch.from_numpy(pixels).view(-1, CHANNELS, SIZE, SIZE), torch.from_numpy(labels)


def _names(blob: bytes, form: Form, coarse: bool) -> list[str]:
    """Reads the class names from a file of either form."""
    if form.binary:
        return blob.decode("utf-8").split()
    entry = read_plain_pickle(blob)
    key = "label_names" if not form.classes[1] else "coarse_label_names" if coarse else "fine_label_names"
    names = entry.get(key) if isinstance(entry, dict) else None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"no list of names under {key!r}")
    return names


def _records(blob: bytes, form: Form, coarse: bool) -> tuple[np.ndarray, list[int]]:
    """Reads pixels [n, 3072] and labels from a file of the binary form."""
    label_bytes = 2 if form.classes[1] else 1
    if not blob or len(blob) % (label_bytes + RECORD):
        raise ValueError(f"{len(blob)} bytes, not a multiple of a record of {label_bytes + RECORD}")
    # A record of CIFAR-100 begins with the coarse label, followed by the fine label.
    records = np.frombuffer(blob, np.uint8).reshape(-1, label_bytes + RECORD)
    return records[:, label_bytes:], records[:, 0 if coarse else label_bytes - 1].tolist()


def _pickled(blob: bytes, form: Form, coarse: bool) -> tuple[np.ndarray, list[int]]:
    """Reads pixels [n, 3072] and labels from a file of the Python form."""
    entry = read_plain_pickle(blob)
    key = "labels" if not form.classes[1] else "coarse_labels" if coarse else "fine_labels"
    if not isinstance(entry, dict) or "data" not in entry or key not in entry:
        raise ValueError(f"a pickle without 'data' and {key!r}")
    pixels, labels = entry["data"], entry[key]
    if not isinstance(pixels, np.ndarray) or pixels.ndim != 2 or pixels.shape[1] != RECORD:
        raise ValueError(f"'data' other than an array of bytes [n, {RECORD}]")
    if (
        not isinstance(labels, list)
        or len(labels) != len(pixels)
        or not all(type(label) is int for label in labels)
    ):
        raise ValueError(f"{key!r} other than a list of {len(pixels)} integers")
    return pixels, labels


def _from_folder(path: Path) -> Iterator[tuple[str, bytes]]:
    for form in FORMS:
        for file in (*form.parts, *form.meta):
            if (path / file).is_file():
                try:
                    yield file, (path / file).read_bytes()
                except OSError as error:
                    raise ValueError(
                        f"{path / file} cannot be read ({error.strerror}); check its permissions"
                    ) from error


def _from_archive(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yields the files of CIFAR in an archive, recognised by their base names. Reads the archive once, up to
    MAX_BYTES.
    """
    try:
        with gzip.open(path) as stream:
            bounded = _Bounded(stream)
            yield from _members(path, bounded)
            while bounded.read(tarfile.RECORDSIZE):  # gzip verifies its checksum at the end of the stream
                pass
    except _TooLarge as error:
        raise ValueError(
            f"{path} unpacks to more than {MAX_BYTES >> 20} MiB; take the official archive"
        ) from error
    except (EOFError, gzip.BadGzipFile, zlib.error, tarfile.TarError) as error:
        raise ValueError(
            f"{path} is not a .tar.gz, is damaged or incomplete ({error}); get it again"
        ) from error
    except OSError as error:
        raise ValueError(
            f"{path} cannot be read ({error.strerror}); check the path and its permissions"
        ) from error


def _members(path: Path, stream: "_Bounded") -> Iterator[tuple[str, bytes]]:
    names = {file for form in FORMS for file in (*form.parts, *form.meta)}
    with tarfile.open(fileobj=stream, mode="r|") as archive:  # pyright: ignore[reportArgumentType, reportCallIssue]  # only read is called
        for count, member in enumerate(archive):
            location = PurePosixPath(member.name)
            if location.is_absolute() or ".." in location.parts:
                raise ValueError(
                    f"{path} has a member outside its folder, {member.name!r}; take the official archive"
                )
            if count >= MAX_MEMBERS:
                raise ValueError(f"{path} has more than {MAX_MEMBERS} members; take the official archive")
            if member.isreg() and not member.issparse() and location.name in names:
                content = archive.extractfile(member)
                assert content is not None
                yield location.name, content.read()


class _TooLarge(Exception):
    """An archive unpacks to more than MAX_BYTES bytes."""


class _Bounded:
    """A stream that raises an error after MAX_BYTES bytes, whatever size the archive declares."""

    def __init__(self, stream: gzip.GzipFile):
        self.stream, self.remaining = stream, MAX_BYTES

    def read(self, size: int = -1) -> bytes:
        """Reads up to ``size`` bytes.

        Raises:
            _TooLarge: the stream has more than MAX_BYTES bytes.
        """
        block = self.stream.read(size)
        self.remaining -= len(block)
        if self.remaining < 0:
            raise _TooLarge
        return block


# Errors that damaged pickles raise. The pickle module documents some of them; tests with random bytes showed
# the others.
PICKLE_ERRORS = (
    pickle.UnpicklingError,
    ArithmeticError,
    AttributeError,
    EOFError,
    ImportError,
    LookupError,
    MemoryError,
    TypeError,
    ValueError,
)


def read_plain_pickle(blob: bytes) -> Any:
    """Reads numbers, text, lists, dicts and uint8 arrays from a pickle. Text written by Python 2 is decoded
    as Latin-1.

    Raises:
        ValueError: the pickle refers to anything else (the message names it), or is damaged or incomplete.
    """
    try:
        return _Plain(io.BytesIO(blob), encoding="latin1").load()
    except _Refused:
        raise
    except PICKLE_ERRORS as error:
        raise ValueError("a damaged or incomplete pickle") from error


class _Refused(ValueError):
    """A pickle refers to something other than numbers, text and uint8 arrays."""


# Use the unpickler written in Python: the C version allocates as much memory for its memo as a pickle
# requests.
class _Plain(pickle._Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        known = {
            ("numpy", "ndarray"): _ARRAY,
            ("numpy", "dtype"): _bytes_dtype,
            ("numpy.core.multiarray", "_reconstruct"): _empty_array,
            ("numpy._core.multiarray", "_reconstruct"): _empty_array,
            ("_codecs", "encode"): _latin1,  # Python 3 uses it to write bytes for Python 2
        }
        if (module, name) not in known:
            raise _Refused(f"a pickle that refers to {module}.{name}, which is never run")
        return known[module, name]


_ARRAY = object()  # replaces numpy.ndarray, so that a pickle cannot allocate an array of any size


def _empty_array(*size: object) -> np.ndarray:
    """Returns an empty array, whatever size the pickle requests. The contents follow as array state, whose
    length NumPy checks.
    """
    return np.empty(0, np.uint8)


def _bytes_dtype(code: object, *flags: object) -> np.dtype:
    """Returns the dtype of bytes; replaces ``numpy.dtype`` and refuses every other dtype."""
    if code != "u1":
        raise _Refused(f"a pickle with an array of type {code!r} instead of uint8")
    return np.dtype(np.uint8)


def _latin1(text: str, encoding: str) -> bytes:
    """Encodes text as Latin-1, which is the only encoding in these pickles; replaces ``codecs.encode``."""
    return text.encode("latin1")

"""Labels of texts and images from a file: one integer or word per line."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from jaxtyping import Int
from torch import Tensor

from ..core.reading import check_file
from ..core.validation import as_labels
from .ids import integer_tensor, read_integers


def read_text(path: str | Path, expected: str) -> str:
    """Reads a text in UTF-8, with or without a byte-order mark; line ends become ``\\n``.

    Args:
        path: the file.
        expected: what it should hold, for the error message.
    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: it is no file, or no text in UTF-8.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; expected {expected}")
    check_file(path)
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} must be a text in UTF-8, got {error.reason} at byte {error.start}"
        ) from error


def read_labels(path: str | Path, *, numbers: Mapping[str, int] | None = None) -> Int[Tensor, " n"]:
    """Reads labels: one integer or word per line, or a .npy file of integers ``[n]``.

    Args:
        path: the file. Empty lines at its end are ignored.
        numbers: see :func:`classes_of`.
    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: it holds no labels, an empty line between them, or integers as well as words.
    """
    path = Path(path)
    if path.suffix == ".npy" and path.is_file():
        return as_labels(str(path), integer_tensor(read_integers(path), str(path), shape="[n]"))
    lines = read_text(path, "one label per line").rstrip().split("\n")
    return classes_of([line.strip() for line in lines], str(path), numbers=numbers)


def classes_of(
    labels: Sequence[str], where: str, *, numbers: Mapping[str, int] | None = None
) -> Int[Tensor, " n"]:
    """Returns the classes of labels in words.

    Integers stay as they are; negative ones mean that there is no label (:func:`.as_labels`). Words are
    numbered as the network does it, if it names all of them, and otherwise in alphabetical order.

    Args:
        labels: one label per line.
        where: the file, for error messages.
        numbers: classes of the words that the network names.
    Raises:
        ValueError: a label is empty, or a number that is no integer, or some are integers and others words.
    """
    if "" in labels:
        raise ValueError(f"{where} must hold one label per line, got an empty line {labels.index('') + 1}")
    integral = [_is_integer(label) for label in labels]
    if all(integral):
        return as_labels(where, [int(label) for label in labels])
    if any(integral) or all(map(_is_number, labels)):
        other = integral.index(False)
        hint = "; remove the heading" if other == 0 and not _is_number(labels[0]) else ""
        raise ValueError(
            f"{where} must hold one integer or one word per line, got {labels[other]!r} in line {other + 1}"
            f"{hint}"
        )
    known = dict(numbers or {})
    return as_labels(where, labels, words=known if known.keys() >= set(labels) else None)


def _is_integer(label: str) -> bool:
    return label.removeprefix("-").isdecimal()


def _is_number(label: str) -> bool:
    try:
        float(label)
    except ValueError:
        return False
    return True

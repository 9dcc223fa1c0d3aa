"""Sequences of a text as a network of ids reads them: whole sentences between the special tokens of its own
tokenizer.

A text is cut at the ends of lines and sentences. Neighbouring sentences form a window while they fit into the
given length with the special tokens; a sentence that is longer alone is cut between words. Windows are padded
to the longest, and the attention mask tells padding from tokens.
"""

import inspect
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from ..core.statistics import evenly_spaced, fixed_generator
from ..data.labels import classes_of, read_labels, read_text
from .transformers_folder import LanguageModel, quiet, read_ids
from .user_model import label_numbers

# after a line, after a full stop with quotes and white space, and after the full stop of Chinese or Japanese
END = re.compile(r"""\s*\n\s*|[.!?…]["'”’)\]]*\s+(?![a-z])|[。！？]+[”’」』]*""")
ROWS, IDS = ".tsv", ".npy"
# number of ids of a sequence unless the caller names another; some nulls cost several seconds per sequence of
# a model of 124 million parameters
LENGTH = 64


@dataclass(frozen=True)
class TextSequences:
    """Sequences of a text.

    Attributes:
        inputs: ids and masks by the name of the argument, or ids alone, ``[n, longest]``.
        special_ids: special ids of the tokenizer with their tokens; None if ids were given.
        labels: class of each sequence, ``[n]``; None if there are none.
        described: the sequences in words.
    """

    inputs: Int[Tensor, "n longest"] | dict[str, Int[Tensor, "n longest"]]
    special_ids: dict[int, str] | None
    labels: Int[Tensor, " n"] | None
    described: str


def read_sequences(
    path: str | Path,
    model: LanguageModel,
    *,
    length: int | None = None,
    sequences: int,
    labels: str | Path | None = None,
) -> TextSequences:
    """Reads sequences of a text, or of ids in a .npy file, for a network.

    Without labels, the sequences are windows, evenly spaced over the text. With labels, each line that is not
    empty is a sequence, of which the first ids are read; there is one label for each, in a file of labels or,
    if the name of the text ends in ``.tsv``, before the first tab of the line.

    Args:
        path: text in UTF-8, or ids, see :func:`.read_ids`.
        model: network with the folder of its tokenizer.
        length: largest number of ids of a sequence, special ones included. None: :data:`LENGTH`, or the
            longest sequence of the model or of its tokenizer if that is shorter.
        sequences: largest number of sequences; of more with labels a fixed random choice is read.
        labels: file of labels, see :func:`.read_labels`.
    Raises:
        FileNotFoundError: a file does not exist.
        ValueError: the folder holds no tokenizer, the files are no text or no labels, do not fit together, or
            the length is too small or too large.
    """
    path, numbers = Path(path), label_numbers(model.network)
    if path.suffix == IDS:
        length = length or min(LENGTH, model.length or LENGTH)
        ids = read_ids(path, length=length, sequences=None if labels else sequences)
        classes = None
        if labels is not None:
            classes = _matching(labels, numbers, len(ids), f"sequences of {path}")
            chosen = _chosen(len(ids), sequences)
            ids, classes = ids[chosen], classes[chosen]
        return TextSequences(ids, None, classes, f"ids of {path.name}")
    text = read_text(path, "a text, or ids in a .npy file")
    tokenizer = model.tokenizer()
    longest = min(model.length or tokenizer.model_max_length, tokenizer.model_max_length)
    length = int(length or min(LENGTH, longest))
    size = length - tokenizer.num_special_tokens_to_add()
    if size < 1 or length > longest:
        limit = f"{length - size + 1} to {longest}, special ids included, as {model.name} takes"
        raise ValueError(f"length must be {limit}, got {length}")
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    if not lines:
        raise ValueError(f"{path} must hold text, got none")
    described = f"ids of {path.name}"
    with quiet():
        if path.suffix == ROWS or labels is not None:
            texts, classes = _labelled(path, lines, labels, numbers)
            chosen = _chosen(len(texts), sequences)
            texts, classes = [texts[row] for row in chosen], classes[chosen]
            cut = sum(len(ids) > length for ids in tokenizer(texts)["input_ids"])
            described += f", one line each, {cut} of them cut" if cut else ", one line each"
        else:
            texts, classes = windows_of(text, tokenizer, size=size, sequences=sequences), None
        inputs = _encoded(texts, tokenizer, length)
    names = inspect.signature(type(model.network).forward).parameters
    taken = {name: x for name, x in inputs.items() if name == "input_ids" or name in names}
    special = {
        int(number): str(tokenizer.convert_ids_to_tokens(int(number))) for number in tokenizer.all_special_ids
    }
    return TextSequences(taken, dict(sorted(special.items())), classes, described)


def _chosen(count: int, limit: int) -> Int[Tensor, " chosen"]:
    """Returns a fixed random choice of at most ``limit`` numbers below ``count``, in order."""
    return torch.randperm(count, generator=fixed_generator())[:limit].sort().values


def _labelled(
    path: Path, lines: list[str], labels: str | Path | None, numbers: dict[str, int]
) -> tuple[list[str], Int[Tensor, " n"]]:
    """Returns texts with their labels.

    Raises:
        ValueError: see :func:`read_sequences`.
    """
    if path.suffix == ROWS:
        if labels is not None:
            raise ValueError(f"{path} has labels in its lines, got {labels} as well; leave one of them out")
        rows = [line.partition("\t") for line in lines]
        for number, (label, tab, text) in enumerate(rows, 1):
            if not tab or not label.strip() or not text.strip():
                raise ValueError(
                    f"{path} must hold lines of a label, a tab and a text, got {lines[number - 1][:40]!r} in "
                    f"line {number}"
                )
        classes = classes_of([label.strip() for label, *_ in rows], str(path), numbers=numbers)
        return [text.strip() for *_, text in rows], classes
    assert labels is not None
    return lines, _matching(labels, numbers, len(lines), f"lines of {path}")


def _matching(labels: str | Path, numbers: dict[str, int], count: int, what: str) -> Int[Tensor, " count"]:
    """Reads labels.

    Raises:
        ValueError: their number is another one; see :func:`.read_labels`.
    """
    classes = read_labels(labels, numbers=numbers)
    if len(classes) != count:
        raise ValueError(f"{labels} must hold one label for each of the {count} {what}, got {len(classes)}")
    return classes


def windows_of(text: str, tokenizer: Any, *, size: int, sequences: int) -> list[str]:
    """Returns windows of whole sentences, evenly spaced over a text.

    Windows of less than half the size are left out if two or more are longer.

    Args:
        text: the text.
        tokenizer: tokenizer of ``transformers``.
        size: largest number of ids of a window, without special ones.
        sequences: largest number of windows.
    """
    pieces = list(_fitting(_pieces(text), tokenizer, size))
    windows: list[str] = []
    counts: list[int] = []
    for piece, count in pieces:
        if counts and counts[-1] + count <= size:
            windows[-1] += piece
            counts[-1] += count
        else:
            windows.append(piece)
            counts.append(count)
    full = [window for window, count in zip(windows, counts) if 2 * count >= size]
    windows = full if len(full) > 1 else windows
    return [windows[index].strip() for index in evenly_spaced(len(windows), sequences).tolist()]


def _pieces(text: str) -> list[str]:
    """Cuts a text behind its lines and sentences."""
    ends = [0, *(found.end() for found in END.finditer(text)), len(text)]
    pieces = (text[start:end] for start, end in pairwise(ends))
    return [piece for piece in pieces if piece.strip()]


def _fitting(pieces: list[str], tokenizer: Any, size: int) -> Iterator[tuple[str, int]]:
    """Yields pieces with their numbers of ids; those that do not fit are halved between words."""
    counts = [len(ids) for ids in tokenizer(pieces, add_special_tokens=False)["input_ids"]]
    for piece, count in zip(pieces, counts):
        if count <= size or len(piece) < 2:
            yield piece, count
            continue
        middle = len(piece) // 2
        spaces = [found.end() for found in re.finditer(r"\s+", piece) if 0 < found.end() < len(piece)]
        at = min(spaces, key=lambda place: abs(place - middle), default=middle)
        halves = (half for half in (piece[:at], piece[at:]) if half.strip())
        yield from _fitting(list(halves), tokenizer, size)


def _encoded(texts: Sequence[str], tokenizer: Any, length: int) -> dict[str, Int[Tensor, "n longest"]]:
    """Returns ids, masks and further arguments of texts, padded behind their ids."""
    rows = dict(tokenizer(list(texts), truncation=True, max_length=length))
    ends = (tokenizer.pad_token_id, tokenizer.eos_token_id, 0)
    padding = {"input_ids": next(number for number in ends if number is not None)}
    rows["attention_mask"] = [[1] * len(ids) for ids in rows["input_ids"]]
    longest = max(len(ids) for ids in rows["input_ids"])
    return {
        name: torch.tensor([row + [padding.get(name, 0)] * (longest - len(row)) for row in values])
        for name, values in rows.items()
    }

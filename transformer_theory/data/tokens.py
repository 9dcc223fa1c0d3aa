"""The data set that all theories use: sequences of tokens, with optional labels, ids and images."""

import hashlib
import math
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..core.errors import nearest
from ..core.format import counted
from ..core.reading import check_file, read_arrays
from ..core.sources import Source
from ..core.validation import as_float64, as_int64, as_labels

# Networks compute in float32, whose largest number is 3e38. The square of 1e15 is 1e30, so sums of a hundred
# million squares are finite.
MAX_MAGNITUDE = 1e15
REAL, DISCRETE = ("tokens", "query", "images"), ("ids", "next_id")  # names of fields


def stratified(
    n: int,
    labels: Int[Tensor, " n"] | None,
    share: float,
    generator: torch.Generator,
    *,
    what: str,
    every_class: bool = True,
) -> tuple[Int[Tensor, " first"], Int[Tensor, " second"]]:
    """Draws a random split in two parts and returns their indices in ascending order. Each class is split in
    the same proportion, and a class too small for that has one sample in the first part.

    Args:
        n: number of samples.
        labels: class of each sample, ``[n]``. None: no classes.
        share: share of the samples in the first part.
        generator: source of the random split.
        what: plural noun for the samples, for the error message.
        every_class: whether each class has a sample in the first part, which makes this part larger than
            ``share`` if there are rare classes. False for a sample of limited size.
    Raises:
        ValueError: one part would be empty.
    """
    order = torch.randperm(n, generator=generator)
    if labels is not None:
        order = order[torch.argsort(labels[order], stable=True)]
    # ``order`` is sorted by class and random within a class. Position i goes to the first part if floor(i *
    # share) increases there, so every run of positions, and therefore every class, contributes its share to
    # within one sample. The 1e-9 absorbs rounding: 100 * 0.29 is 28.999... in floating point, but means 29
    # samples.
    totals = torch.floor(torch.arange(n + 1, dtype=torch.float64) * share + 1e-9)
    in_first = totals[1:] > totals[:-1]
    if labels is not None and every_class and bool(in_first.any()):
        ordered = labels[order]
        starts = torch.cat([torch.ones(1, dtype=torch.bool), ordered[1:] != ordered[:-1]])
        rare = starts & ~torch.isin(ordered, ordered[in_first])
        in_first |= rare
        if rare.any() and in_first.all():  # a class with two samples gives one back
            in_first[(~starts).nonzero()[-1:]] = False
    first, second = order[in_first], order[~in_first]
    if not len(first) or not len(second):
        raise ValueError(
            f"share must leave {what} on both sides, got {share} of {n}; choose a share inside (0, 1)"
        )
    return first.sort().values, second.sort().values


def patch_grid(patches: int, height: int, width: int) -> tuple[int, int] | None:
    """Returns rows and columns of square patches that cover an image; None if there are not so many."""
    side = math.isqrt(height * width // max(patches, 1))
    if not side or height % side or width % side or patches * side**2 != height * width:
        return None
    return height // side, width // side


@dataclass(frozen=True, eq=False, repr=False)
class TokenData:
    """n sequences of ``seq`` tokens in ``dim`` dimensions. Every field except ``tokens`` may be None, which
    means unknown.

    Fields may be tensors, numpy arrays or nested lists. Real fields are converted to float64 and discrete
    fields to int64, if the conversion is lossless.

    Attributes:
        tokens: real vectors, ``[n, seq, dim]``.
        labels: class of each sequence, ``0 <= label < classes``, ``[n]``: integers, booleans or words (see
            :func:`.as_labels`); every sequence must have one. One class is allowed here; training a network
            needs two.
        query: query vector (z in the papers), ``[n, dim]``. Defaults to the last token.
        ids: discrete tokens, ``0 <= id < vocab_size``, ``[n, seq]``.
        next_id: next token after each sequence, in the same vocabulary, ``[n]``.
        images: images from which the tokens were cut, ``[n, channels, height, width]``.
        vocab_size: number of discrete tokens. Defaults to ``1 + max`` of ids and next_id.
        words: word of each id, for printing, at least ``vocab_size`` of them.
        name: name of the data in headings.
        sources: publications from which the data come.

    Raises:
        ValueError: a field has the wrong rank or length, is not finite, or lies out of range.
        TypeError: a field holds no numbers, or a discrete field holds numbers that are not integers.
    """

    tokens: Float[Tensor, "n seq dim"]
    labels: Int[Tensor, " n"] | None = None
    query: Float[Tensor, "n dim"] | None = None
    ids: Int[Tensor, "n seq"] | None = None
    next_id: Int[Tensor, " n"] | None = None
    images: Float[Tensor, "n c h w"] | None = None
    vocab_size: int | None = None
    words: tuple[str, ...] | None = None
    name: str = "data"
    sources: tuple[Source, ...] = ()

    def __post_init__(self):
        for names, convert in ((REAL, as_float64), (DISCRETE, as_int64), (("labels",), as_labels)):
            for name in names:
                if (value := getattr(self, name)) is not None or name == "tokens":
                    object.__setattr__(self, name, convert(name, value))
        if self.tokens.ndim != 3 or not self.tokens.numel():
            shape = list(self.tokens.shape)
            raise ValueError(
                "tokens must have shape [n, seq, dim] with at least one sequence, token and dimension, got "
                f"{shape}; reshape"
            )
        n, seq, dim = self.tokens.shape
        if self.query is None:
            object.__setattr__(self, "query", self.tokens[:, -1])
        shapes = {
            "tokens": (n, seq, dim),
            "labels": (n,),
            "query": (n, dim),
            "ids": (n, seq),
            "next_id": (n,),
        }
        shapes["images"] = (n, None, None, None)
        for name, shape in shapes.items():
            if (value := getattr(self, name)) is not None:
                self._check_field(name, value, shape)
        if self.labels is not None and int(self.labels.min()) < 0:
            raise ValueError(
                f"labels must be 0, 1, ..., got {int(self.labels.min())}; relabel from zero, drop sequences "
                "without label, or leave labels out"
            )
        discrete = {name: value for name in ("ids", "next_id") if (value := getattr(self, name)) is not None}
        if self.vocab_size is None and discrete:
            object.__setattr__(self, "vocab_size", 1 + max(int(value.max()) for value in discrete.values()))
        for name, value in discrete.items():
            low, high = int(value.min()), int(value.max())
            if low < 0 or high >= (self.vocab_size or 0):
                invalid = low if low < 0 else high
                raise ValueError(
                    f"{name} must lie in [0, {self.vocab_size}), got {invalid}; pass "
                    f"vocab_size={invalid + 1} or recode"
                )
        if self.words is not None:
            object.__setattr__(self, "words", tuple(self.words))
            if len(self.words) < (self.vocab_size or 0):
                raise ValueError(
                    f"words must hold a word for each of the {self.vocab_size} ids, got {len(self.words)}; "
                    "pass them all"
                )

    def _check_field(self, name: str, value: Tensor, shape: tuple[int | None, ...]) -> None:
        if value.ndim != len(shape) or any(
            size not in (None, length) for size, length in zip(shape, value.shape)
        ):
            expected = "[" + ", ".join("·" if size is None else str(size) for size in shape) + "]"
            shapes = f"tokens {list(self.tokens.shape)}, got {list(value.shape)}"
            raise ValueError(f"{name} must have shape {expected} to fit {shapes}; reshape it")
        if value.requires_grad:
            raise ValueError(f"{name} must be data, got a tensor that requires gradients; use .detach()")
        if name in REAL and not bool(torch.isfinite(value).all()):
            invalid = ~torch.isfinite(value)
            first = int(invalid.nonzero()[0, 0])
            actual = (
                f"{int(invalid.sum())} NaN or infinite values of {value.numel()}, the first in sequence "
                f"{first} (counted from 0)"
            )
            raise ValueError(f"{name} must be finite, got {actual}; drop or impute those sequences")

    def __len__(self) -> int:
        return len(self.tokens)

    def __repr__(self) -> str:
        """Returns a text with the shapes: ``TokenData('digits', tokens [1797, 16, 4], labels [1797] of 10
        classes, ...)``.
        """
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        shapes = {
            name: f"{name} {list(value.shape)}" for name, value in values.items() if isinstance(value, Tensor)
        }
        if self.labels is not None:
            shapes["labels"] += f" of {self.classes} {'class' if self.classes == 1 else 'classes'}"
        if self.ids is not None:
            shapes["ids"] += f" of {self.vocab_size}"
        return f"TokenData({', '.join([repr(self.name), *shapes.values()])})"

    def __getitem__(self, index) -> "TokenData":
        """Selects sequences by an index, a slice or a tensor of indices; the vocabulary does not change."""
        if isinstance(index, int | np.integer):
            # an end of 0, for index -1, would select nothing
            index = slice(int(index), int(index) + 1 or None)
        rows = {f.name: getattr(self, f.name) for f in fields(self)}
        return replace(self, **{k: v[index] for k, v in rows.items() if isinstance(v, Tensor)})

    @property
    def classes(self) -> int:
        """Number of classes: 1 + the largest label.

        Raises:
            ValueError: there are no labels.
        """
        if self.labels is None:
            raise ValueError(f"classes need labels, got none in {self.name}; pass labels=")
        return int(self.labels.max()) + 1

    @property
    def grid(self) -> tuple[int, int] | None:
        """Rows and columns of the square patches of the images that are the tokens; None if they are not."""
        if self.images is None:
            return None
        (_, seq, dim), (_, channels, height, width) = self.tokens.shape, self.images.shape
        grid = patch_grid(seq, height, width)
        return grid if grid is not None and channels * height * width == seq * dim else None

    @property
    def query_position(self) -> int | None:
        """Last position where the token equals the query in every sequence (0 for a leading class token);
        None if there is none.
        """
        assert self.query is not None
        positions = (self.tokens == self.query[:, None]).all(-1).all(0).nonzero()[:, 0].tolist()
        return positions[-1] if positions else None

    def context_and_query(self) -> tuple[Int[Tensor, "n context"], Int[Tensor, " n"]]:
        """Returns the ids of the context, ``[n, seq - 1]``, and the ids of the query, ``[n]``.

        If no position holds the query, the last position is used as the query position.

        Raises:
            ValueError: there are no ids.
        """
        if self.ids is None:
            raise ValueError(f"contexts need ids, got none in {self.name}; pass ids=")
        position = self.ids.shape[1] - 1 if self.query_position is None else self.query_position
        return torch.cat([self.ids[:, :position], self.ids[:, position + 1 :]], dim=1), self.ids[:, position]

    def checksum(self) -> str:
        """Returns the first 16 digits of the SHA-256 of tokens, query, labels, ids and next tokens; equal
        data have equal checksums.
        """
        digest = hashlib.sha256()
        for name in ("tokens", "query", "labels", "ids", "next_id"):
            value = getattr(self, name)
            digest.update(f"{name}{None if value is None else list(value.shape)}".encode())
            if value is not None:
                digest.update(value.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()[:16]

    def split(self, share: float, generator: torch.Generator) -> tuple["TokenData", "TokenData"]:
        """Splits the sequences at random in two parts, the first with ``share`` of them; stratified by label
        if there are labels.

        Raises:
            ValueError: one part would be empty.
        """
        first, second = stratified(len(self), self.labels, share, generator, what="sequences")
        return self[first], self[second]

    @classmethod
    def from_npz(cls, path: str | Path) -> "TokenData":
        """Reads data from an ``.npz`` with ``tokens`` and any of the other fields. Object arrays are refused,
        never unpickled.

        Real fields are converted to float64 and integers to int64; ``vocab_size`` is one integer. Tokens and
        queries must stay below 1e15 in magnitude, so that networks can compute with them in float32.

        Raises:
            ValueError: the file cannot be read, lacks ``tokens``, holds an unknown array or an object array,
                or a field does not fit; the message names the file.
        """
        path = Path(path)
        known = [f.name for f in fields(cls) if f.name not in ("words", "name", "sources")]
        arrays = _read(path)
        if "tokens" not in arrays:
            raise ValueError(
                f"{path} must hold an array 'tokens' [n, seq, dim], got {', '.join(arrays) or 'no array'}; "
                "rename the array of tokens"
            )
        if unknown := [name for name in arrays if name not in known]:
            raise ValueError(
                f"{path}: rename or leave out the unknown array {unknown[0]!r}{nearest(unknown[0], known)}"
            )
        try:
            return cls._from_arrays(arrays, path.name)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    @classmethod
    def _from_arrays(cls, arrays: dict[str, np.ndarray], name: str) -> "TokenData":
        size = arrays.pop("vocab_size", None)
        if size is not None and (size.size != 1 or size.dtype.kind not in "iu"):
            raise ValueError(
                f"vocab_size must be one integer, got {size.dtype} of shape {list(size.shape)}; save "
                "int(vocab_size)"
            )
        tensors = {
            key: array if key == "labels" and array.dtype.kind in "bU" else _as_tensor(array, key)
            for key, array in arrays.items()
        }
        data = cls(**tensors, vocab_size=None if size is None else int(size.item()), name=name)  # pyright: ignore[reportArgumentType]
        _check_magnitude(data.tokens, "tokens")
        assert data.query is not None
        _check_magnitude(data.query, "query")
        if data.labels is not None and data.classes > max(len(data), 2):
            label = f"label {data.classes - 1} with only {counted(len(data), 'sequence')}"
            raise ValueError(
                f"labels must be 0..k-1 for k classes, got {label}; relabel with numpy.unique(labels, "
                "return_inverse=True)[1]"
            )
        return data


def _read(path: Path) -> dict[str, np.ndarray]:
    """Reads the arrays of an ``.npz``. Raises ValueError if the file is missing or damaged, and
    PermissionError if it is not readable.
    """
    if not path.exists():
        raise ValueError(
            f"no such file: {path}; --data takes a name (digits, text, cifar10) or the path of an .npz, a "
            ".txt or images"
        )
    check_file(path)
    try:
        return read_arrays(path)
    except ValueError as error:
        raise ValueError(
            f"{path} must be an .npz (a zip of arrays), got {error}; write it with numpy.savez"
        ) from error


def _as_tensor(array: np.ndarray, name: str) -> Tensor:
    """Converts real fields, stored as any number type or booleans, to float64 and discrete fields to int64,
    from any byte order.
    """
    if array.dtype.kind not in "fiub":
        raise ValueError(f"{name} must be an array of numbers, got dtype {array.dtype}; save real numbers")
    if name in REAL:
        return torch.from_numpy(array.astype(np.float64, order="C"))
    if array.dtype.kind == "f":
        raise ValueError(f"{name} must be integers, got dtype {array.dtype}; convert with .astype(int)")
    return torch.from_numpy(array.astype(np.int64, order="C"))


def _check_magnitude(value: Tensor, name: str) -> None:
    """Raises ValueError if an entry exceeds MAX_MAGNITUDE; the message names the sequence."""
    sizes = value.abs().flatten(1).amax(1)  # largest magnitude per sequence, [n]
    if float(largest := sizes.max()) > MAX_MAGNITUDE:
        actual = f"largest {float(largest):.3g} in sequence {int(sizes.argmax())} (counted from 0)"
        raise ValueError(
            f"{name} must stay within {MAX_MAGNITUDE:.0e} in magnitude for networks in float32, got "
            f"{actual}; rescale them"
        )

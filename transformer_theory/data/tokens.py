"""The data set that all theories share: sequences of tokens, with labels, ids and images where they are known."""

import zipfile
import zlib
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..core.errors import nearest
from ..core.sources import Source
from ..core.validation import as_float64, as_int64

# Networks compute in float32, whose largest number is 3e38: squares of 1e15 are 1e30, and a sum of a hundred million of them is finite.
MAX_MAGNITUDE = 1e15
REAL, DISCRETE = ("tokens", "query", "images"), ("labels", "ids", "next_id")  # fields


def stratified(
    n: int, labels: Int[Tensor, " n"] | None, share: float, generator: torch.Generator, *, what: str
) -> tuple[Int[Tensor, " first"], Int[Tensor, " second"]]:
    """Positions of a random split in two parts, to which every class contributes its share; each part is in ascending order.

    Args:
        n: number of samples.
        labels: class of each sample, ``[n]``, if there are classes.
        share: of the samples that go to the first part.
        generator: draws the split.
        what: name of the samples for the error.
    Raises:
        ValueError: the share leaves one part empty.
    """
    order = torch.randperm(n, generator=generator)
    if labels is not None:
        order = order[torch.argsort(labels[order], stable=True)]
    # The samples are sorted by class, at random within a class, and dealt out evenly: sample i goes to the first part where
    # floor(i * share) increases, so that every run of samples, and with it every class, contributes its share up to one sample.
    # 1e-9: 100 * 0.29 = 28.999... is 29 samples.
    dealt = torch.floor(torch.arange(n + 1, dtype=torch.float64) * share + 1e-9)
    deal = dealt[1:] > dealt[:-1]
    first, second = order[deal], order[~deal]
    if not len(first) or not len(second):
        raise ValueError(f"share must leave {what} on both sides, got {share} of {n}; choose a share inside (0, 1)")
    return first.sort().values, second.sort().values


@dataclass(frozen=True, eq=False, repr=False)
class TokenData:
    """n sequences of ``seq`` tokens in ``dim`` dimensions. Every field except ``tokens`` may be None: unknown.

    Fields may be tensors, numpy arrays or nested lists. Real fields become float64 and discrete fields int64, where that is lossless.

    Attributes:
        tokens: real vectors, ``[n, seq, dim]``.
        labels: class of each sequence, ``0 <= label < classes``, ``[n]``. One class is allowed here; training a network needs two.
        query: the query vector (z in the papers), ``[n, dim]``; the last token if omitted.
        ids: discrete tokens, ``0 <= id < vocab_size``, ``[n, seq]``.
        next_id: the token that follows each sequence, in the same vocabulary, ``[n]``.
        images: the images that the tokens were cut from, ``[n, channels, height, width]``.
        vocab_size: number of discrete tokens; ``1 + max`` of ids and next_id if omitted.
        name: for headings.
        sources: where the data come from.

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
    name: str = "data"
    sources: tuple[Source, ...] = ()

    def __post_init__(self):
        for names, convert in ((REAL, as_float64), (DISCRETE, as_int64)):
            for name in names:
                if (value := getattr(self, name)) is not None or name == "tokens":
                    object.__setattr__(self, name, convert(name, value))
        if self.tokens.ndim != 3 or not self.tokens.numel():
            shape = list(self.tokens.shape)
            raise ValueError(f"tokens must have shape [n, seq, dim] with at least one sequence, token and dimension, got {shape}; reshape")
        n, seq, dim = self.tokens.shape
        if self.query is None:
            object.__setattr__(self, "query", self.tokens[:, -1])
        shapes = {"tokens": (n, seq, dim), "labels": (n,), "query": (n, dim), "ids": (n, seq), "next_id": (n,)}
        shapes["images"] = (n, None, None, None)
        for name, shape in shapes.items():
            if (value := getattr(self, name)) is not None:
                self._check_field(name, value, shape)
        if self.labels is not None and int(self.labels.min()) < 0:
            raise ValueError(f"labels must be 0, 1, ..., got {int(self.labels.min())}; relabel from zero, or leave labels out")
        discrete = {name: value for name in ("ids", "next_id") if (value := getattr(self, name)) is not None}
        if self.vocab_size is None and discrete:
            object.__setattr__(self, "vocab_size", 1 + max(int(value.max()) for value in discrete.values()))
        for name, value in discrete.items():
            low, high = int(value.min()), int(value.max())
            if low < 0 or high >= (self.vocab_size or 0):
                wrong = low if low < 0 else high
                raise ValueError(f"{name} must lie in [0, {self.vocab_size}), got {wrong}; pass vocab_size={wrong + 1} or recode")

    def _check_field(self, name: str, value: Tensor, shape: tuple[int | None, ...]) -> None:
        if value.ndim != len(shape) or any(size not in (None, length) for size, length in zip(shape, value.shape)):
            words = "[" + ", ".join("·" if size is None else str(size) for size in shape) + "]"
            shapes = f"tokens {list(self.tokens.shape)}, got {list(value.shape)}"
            raise ValueError(f"{name} must have shape {words} to fit {shapes}; cut them alike")
        if value.requires_grad:
            raise ValueError(f"{name} must be data, got a tensor that requires gradients; use .detach()")
        if name in REAL and not bool(torch.isfinite(value).all()):
            wrong = ~torch.isfinite(value)
            first = int(wrong.nonzero()[0, 0])
            came = f"{int(wrong.sum())} NaN or infinite values of {value.numel()}, the first in sequence {first} (counted from 0)"
            raise ValueError(f"{name} must be finite, got {came}; drop or impute those sequences")

    def __len__(self) -> int:
        return len(self.tokens)

    def __repr__(self) -> str:
        """The shapes: ``TokenData('digits', tokens [1797, 16, 4], labels [1797] of 10 classes, ...)``."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        shapes = {name: f"{name} {list(value.shape)}" for name, value in values.items() if isinstance(value, Tensor)}
        if self.labels is not None:
            shapes["labels"] += f" of {self.classes} {'class' if self.classes == 1 else 'classes'}"
        if self.ids is not None:
            shapes["ids"] += f" of {self.vocab_size}"
        return f"TokenData({', '.join([repr(self.name), *shapes.values()])})"

    def __getitem__(self, index) -> "TokenData":
        """The sequences at ``index`` (a slice or a tensor of positions); the vocabulary stays whole."""
        if isinstance(index, int | np.integer):
            index = slice(int(index), int(index) + 1 or None)  # for -1 the end is None, since 0 would leave nothing
        rows = {f.name: getattr(self, f.name) for f in fields(self)}
        return replace(self, **{k: v[index] for k, v in rows.items() if isinstance(v, Tensor)})

    @property
    def classes(self) -> int:
        """Number of classes: 1 + the largest label.

        Raises:
            ValueError: there are no labels.
        """
        if self.labels is None:
            raise ValueError(f"classes need labels, {self.name} has none; pass labels=")
        return int(self.labels.max()) + 1

    @property
    def query_position(self) -> int | None:
        """The last position whose token is the query in every sequence; 0 for a class token in front; None if there is none."""
        assert self.query is not None
        places = (self.tokens == self.query[:, None]).all(-1).all(0).nonzero()[:, 0].tolist()
        return places[-1] if places else None

    def context_and_query(self) -> tuple[Int[Tensor, "n context"], Int[Tensor, " n"]]:
        """The ids at all positions except the query's, ``[n, seq - 1]``, and those at the query's position, ``[n]``.

        The last position is the query's if no position holds the query.

        Raises:
            ValueError: there are no ids.
        """
        if self.ids is None:
            raise ValueError(f"contexts need ids, {self.name} has none; pass ids=")
        place = self.ids.shape[1] - 1 if self.query_position is None else self.query_position
        return torch.cat([self.ids[:, :place], self.ids[:, place + 1 :]], dim=1), self.ids[:, place]

    def split(self, share: float, generator: torch.Generator) -> tuple["TokenData", "TokenData"]:
        """A random split in two with ``share`` of the sequences in the first part, stratified by label if there are labels.

        Raises:
            ValueError: the share leaves one part empty.
        """
        first, second = stratified(len(self), self.labels, share, generator, what="sequences")
        return self[first], self[second]

    @classmethod
    def from_npz(cls, path: str | Path) -> "TokenData":
        """Data from an ``.npz`` with ``tokens`` and any of the other fields. Object arrays are refused, never unpickled.

        Real fields become float64 and integers int64; ``vocab_size`` is one integer. Tokens and queries must stay below 1e15 in magnitude,
        so that networks can compute with them in float32.

        Raises:
            ValueError: the file cannot be read, has no ``tokens``, an unknown array or an object array, or a field does not fit; the
                message names the file.
        """
        path = Path(path)
        known = [f.name for f in fields(cls) if f.name not in ("name", "sources")]
        arrays = _read(path)
        if "tokens" not in arrays:
            raise ValueError(f"{path} must hold an array 'tokens' [n, seq, dim], got {', '.join(arrays) or 'no array'}; name it so")
        if unknown := [name for name in arrays if name not in known]:
            raise ValueError(f"{path}: rename or leave out the unknown array {unknown[0]!r}{nearest(unknown[0], known)}")
        try:
            return cls._from_arrays(arrays, path.stem)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    @classmethod
    def _from_arrays(cls, arrays: dict[str, np.ndarray], name: str) -> "TokenData":
        size = arrays.pop("vocab_size", None)
        if size is not None and (size.size != 1 or size.dtype.kind not in "iu"):
            raise ValueError(f"vocab_size must be one integer, got {size.dtype} of shape {list(size.shape)}; save int(vocab_size)")
        tensors = {key: _as_tensor(array, key, floating=key in ("tokens", "query", "images")) for key, array in arrays.items()}
        data = cls(**tensors, vocab_size=None if size is None else int(size.item()), name=name)  # pyright: ignore[reportArgumentType]
        _check_magnitude(data.tokens, "tokens")
        assert data.query is not None
        _check_magnitude(data.query, "query")
        if data.labels is not None and data.classes > max(len(data), 2):
            came = f"label {data.classes - 1} with only {len(data)} sequence{'s'[: len(data) > 1]}"
            raise ValueError(f"labels must be 0..k-1 for k classes, got {came}; relabel with numpy.unique(labels, return_inverse=True)[1]")
        return data


def _read(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an ``.npz``; every fault of the file becomes a ValueError."""
    if not path.exists():
        raise ValueError(f"no such file: {path}; --data takes a name (digits, text, cifar10) or the path of an .npz, a .txt or images")
    if path.is_file():
        path.open("rb").close()  # raises PermissionError, which is not the error of a damaged file
    if not zipfile.is_zipfile(path):
        raise ValueError(f"{path} must be an .npz (a zip of arrays), it is something else or cut short; write it with numpy.savez")
    try:
        with np.load(path, allow_pickle=False) as stored:
            return {name: _plain(stored, name, path) for name in stored.files}
    except (OSError, EOFError, NotImplementedError, MemoryError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{path} is not a readable .npz ({error}); write it with numpy.savez") from error


def _plain(stored: np.lib.npyio.NpzFile, name: str, path: Path) -> np.ndarray:
    try:
        array = stored[name]
    except ValueError as error:
        # numpy's message about object arrays names the argument allow_pickle
        reason = "an object array, which is never unpickled" if "allow_pickle" in str(error) else f"a damaged one ({error})"
        raise ValueError(f"{path}: {name} must be an array of numbers, got {reason}; save numbers with numpy.savez") from error
    if not isinstance(array, np.ndarray):
        raise ValueError(f"{path}: {name} must be an array of numbers, got a file of another kind; write it with numpy.savez")
    return array


def _as_tensor(array: np.ndarray, name: str, *, floating: bool) -> Tensor:
    """float64 for real fields, which may be stored as integers or booleans; int64 for discrete ones. Any byte order is read."""
    if array.dtype.kind not in "fiub":
        cure = "number them with numpy.unique(labels, return_inverse=True)[1]" if name == "labels" else "save real numbers"
        raise ValueError(f"{name} must be an array of numbers, got dtype {array.dtype}; {cure}")
    if floating:
        return torch.from_numpy(array.astype(np.float64, order="C"))
    if array.dtype.kind == "f":
        raise ValueError(f"{name} must be integers, got dtype {array.dtype}; convert with .astype(int)")
    return torch.from_numpy(array.astype(np.int64, order="C"))


def _check_magnitude(value: Tensor, name: str) -> None:
    sizes = value.abs().flatten(1).amax(1)
    if float(largest := sizes.max()) > MAX_MAGNITUDE:
        came = f"largest {float(largest):.3g} in sequence {int(sizes.argmax())} (counted from 0)"
        raise ValueError(f"{name} must stay within {MAX_MAGNITUDE:.0e} in magnitude for networks in float32, got {came}; rescale them")

"""The one data set that every theory reads: sequences of tokens with whatever is known about them."""

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
from .splitting import stratified

# Networks compute in float32, which ends at 3e38: squares of 1e15 are 1e30, and a sum of a hundred million of them is still finite.
LARGEST = 1e15


@dataclass(frozen=True, eq=False, repr=False)
class TokenData:
    """n sequences of ``seq`` tokens in ``dim`` dimensions; everything but ``tokens`` may be unknown (None).

    Attributes:
        tokens: real vectors, float64, ``[n, seq, dim]``.
        labels: class of each sequence, int64, ``0 <= label < classes``, ``[n]``. One class is legal here; training a network needs two.
        query: the vector that asks (z in the papers), float64, ``[n, dim]``; the last token if not given.
        ids: discrete tokens, int64, ``0 <= id < vocab_size``, ``[n, seq]``.
        next_id: the token that follows each sequence, int64, in the same vocabulary, ``[n]``.
        images: the pictures the tokens were cut from, ``[n, channels, height, width]``.
        vocab_size: number of discrete tokens; ``1 + max`` of ids and next_id if not given.
        name: for headings.
        sources: where the data come from.

    Raises:
        ValueError: a field has the wrong rank, length or type, is not finite, or lies out of range.
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
        _expect(self.tokens, "tokens", "[n, seq, dim]", 3, floating=True)
        n, seq, dim = self.tokens.shape
        if min(n, seq, dim) == 0:
            raise ValueError(f"tokens must hold at least one sequence, token and dimension, got shape {[n, seq, dim]}")
        if self.query is None:
            object.__setattr__(self, "query", self.tokens[:, -1])
        for name, shape, floating in (
            ("labels", (n,), False),
            ("query", (n, dim), True),
            ("ids", (n, seq), False),
            ("next_id", (n,), False),
            ("images", (n, None, None, None), True),
        ):
            value = getattr(self, name)
            if value is None:
                continue
            words = "[" + ", ".join("·" if s is None else str(s) for s in shape) + "]"
            _expect(value, name, words, len(shape), floating=floating)
            if any(s is not None and s != got for s, got in zip(shape, value.shape)):
                raise ValueError(f"{name} must have shape {words} to fit tokens {[n, seq, dim]}, got {list(value.shape)}; cut them alike")
        if self.labels is not None and int(self.labels.min()) < 0:
            raise ValueError(f"labels must be 0, 1, ..., got {int(self.labels.min())}; relabel from zero, or leave labels out")
        discrete = [v for v in (self.ids, self.next_id) if v is not None]
        if self.vocab_size is None and discrete:
            object.__setattr__(self, "vocab_size", 1 + max(int(v.max()) for v in discrete))
        for name in ("ids", "next_id"):
            value = getattr(self, name)
            if value is not None and (int(value.min()) < 0 or int(value.max()) >= (self.vocab_size or 0)):
                wrong = int(value.min()) if int(value.min()) < 0 else int(value.max())
                raise ValueError(f"{name} must lie in [0, {self.vocab_size}), got {wrong}; pass vocab_size={wrong + 1} or recode")

    def __len__(self) -> int:
        return len(self.tokens)

    def __repr__(self) -> str:
        """Shapes, not numbers: ``TokenData('digits', tokens [1797, 16, 4], labels [1797] of 10 classes, ...)``."""
        held = {f.name: getattr(self, f.name) for f in fields(self)}
        shapes = {name: f"{name} {list(value.shape)}" for name, value in held.items() if isinstance(value, Tensor)}
        if self.labels is not None:
            shapes["labels"] += f" of {self.classes} {'class' if self.classes == 1 else 'classes'}"
        if self.ids is not None:
            shapes["ids"] += f" of {self.vocab_size}"
        return f"TokenData({', '.join([repr(self.name), *shapes.values()])})"

    def __getitem__(self, index) -> "TokenData":
        """The sequences at ``index`` (a slice or a tensor of positions); the vocabulary stays whole."""
        if isinstance(index, int | np.integer):
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
            raise ValueError(f"classes need labels, {self.name} has none; pass labels=")
        return int(self.labels.max()) + 1

    @property
    def query_position(self) -> int | None:
        """The position whose token is the query in every sequence (the last such one): 0 for a class token in front; None if none."""
        assert self.query is not None
        places = (self.tokens == self.query[:, None]).all(-1).all(0).nonzero()[:, 0].tolist()
        return places[-1] if places else None

    def context_and_query(self) -> tuple[Int[Tensor, "n context"], Int[Tensor, " n"]]:
        """The ids at all positions but the query's, and those there (at the last position, if none holds the query); needs ``ids``."""
        assert self.ids is not None
        place = self.ids.shape[1] - 1 if self.query_position is None else self.query_position
        return torch.cat([self.ids[:, :place], self.ids[:, place + 1 :]], dim=1), self.ids[:, place]

    def split(self, share: float, generator: torch.Generator) -> tuple["TokenData", "TokenData"]:
        """A random split in (train, test) with ``share`` of the sequences in the first part, stratified by label where there are labels.

        Raises:
            ValueError: the share leaves one part empty.
        """
        first, second = stratified(len(self), self.labels, share, generator, what="sequences")
        return self[first], self[second]

    @classmethod
    def from_npz(cls, path: str | Path) -> "TokenData":
        """The user's own data: an ``.npz`` with ``tokens`` and any of the other fields. Object arrays are refused, never unpickled.

        Real fields become float64 and whole numbers int64; ``vocab_size`` is one whole number. Tokens and queries stay below 1e15 in
        magnitude, so that networks can compute with them in float32.

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
            raise ValueError(f"vocab_size must be one whole number, got {size.dtype} of shape {list(size.shape)}; save int(vocab_size)")
        tensors = {key: _as_tensor(array, key, floating=key in ("tokens", "query", "images")) for key, array in arrays.items()}
        data = cls(**tensors, vocab_size=None if size is None else int(size.item()), name=name)  # pyright: ignore[reportArgumentType]
        _expect_size(data.tokens, "tokens")
        assert data.query is not None
        _expect_size(data.query, "query")
        if data.labels is not None and data.classes > max(len(data), 2):
            came = f"label {data.classes - 1} with only {len(data)} sequence{'s'[: len(data) > 1]}"
            raise ValueError(f"labels must be 0..k-1 for k classes, got {came}; relabel with numpy.unique(labels, return_inverse=True)[1]")
        return data


def _read(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an ``.npz``; whatever is wrong with the file becomes one ValueError."""
    if not path.exists():
        raise ValueError(f"no such file: {path}; --data takes a name (digits, text, cifar10) or the path of an .npz, a .txt or images")
    if path.is_file():
        path.open("rb").close()  # what may not be read is no damaged file
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
        reason = "an object array, which is never unpickled" if "allow_pickle" in str(error) else f"a damaged one ({error})"
        raise ValueError(f"{path}: {name} must be an array of numbers, got {reason}; save numbers with numpy.savez") from error
    if not isinstance(array, np.ndarray):
        raise ValueError(f"{path}: {name} must be an array of numbers, got a file of another kind; write it with numpy.savez")
    return array


def _as_tensor(array: np.ndarray, name: str, *, floating: bool) -> Tensor:
    """float64 for vectors, int64 for labels and ids; whole numbers are accepted as vectors, anything else is refused."""
    if array.dtype.kind not in "fiub":
        cure = "number them with numpy.unique(labels, return_inverse=True)[1]" if name == "labels" else "save real numbers"
        raise ValueError(f"{name} must be an array of numbers, got dtype {array.dtype}; {cure}")
    if floating:
        return torch.from_numpy(array.astype(np.float64, order="C"))
    if array.dtype.kind == "f":
        raise ValueError(f"{name} must be integers, got dtype {array.dtype}; convert with .astype(int)")
    return torch.from_numpy(array.astype(np.int64, order="C"))


def _expect(value, name: str, shape: str, rank: int, *, floating: bool) -> None:
    if not isinstance(value, Tensor):
        raise ValueError(f"{name} must be a torch tensor {shape}, got {type(value).__name__}; use torch.as_tensor")
    if value.ndim != rank:
        raise ValueError(f"{name} must have shape {shape}, got {list(value.shape)}; reshape it")
    wanted = torch.float64 if floating else torch.int64
    if value.dtype != wanted:
        raise ValueError(f"{name} must be {wanted}, got {value.dtype}; convert it with .{'double' if floating else 'long'}()")
    if value.requires_grad:
        raise ValueError(f"{name} must be data, got a tensor that requires gradients; use .detach()")
    if floating and not bool(torch.isfinite(value).all()):
        bad = int((~torch.isfinite(value)).sum())
        first = int((~torch.isfinite(value)).nonzero()[0, 0])
        came = f"{bad} NaN or infinite values of {value.numel()}, the first in sequence {first} (counted from 0)"
        raise ValueError(f"{name} must be finite, got {came}; drop or impute those sequences")


def _expect_size(value: Tensor, name: str) -> None:
    sizes = value.abs().flatten(1).amax(1)
    if float(largest := sizes.max()) > LARGEST:
        came = f"largest {float(largest):.3g} in sequence {int(sizes.argmax())} (counted from 0)"
        raise ValueError(f"{name} must stay within {LARGEST:.0e} in magnitude for networks in float32, got {came}; rescale them")

r"""Text as the theories and the language models read it: words, a vocabulary of the most frequent ones, streams and windows.

*Words* are those of the ``basic_english`` rules: lower case; ``'  .  ,  (  )  !  ?`` become words of their own, ``"`` vanishes; ``;``,
``:`` and ``<br />`` become spaces; what stands between white space is a word. The *vocabulary* keeps the most frequent words, equal ones
in alphabetical order; all others become ``<unk>``, number 0. A language model reads text in *streams*: the text is cut into ``batch``
equal pieces, and the k-th batch is the k-th ``length`` words of each, with the word after each as the target.

Source: :cite:t:`paszke2019pytorch` (the rules and the streams are those of its text library and word-language-model tutorial).
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .tokens import TokenData

UNKNOWN = "<unk>"
SIZE, CONTEXT, BATCH = 3000, 35, 20
SEQUENCES, CLASSES, DIM = 2000, 10, 32
SHIPPED = Path(__file__).with_name("harbour.txt")
_RULES = str.maketrans({mark: f" {mark} " for mark in "'.,()!?"} | {'"': "", ";": " ", ":": " "})


def basic_english(text: str) -> list[str]:
    """The words of a text by the ``basic_english`` rules, see the module's docstring.

    >>> basic_english('The ship\\'s mate (a "poet") sang: no; never.')
    ['the', 'ship', "'", 's', 'mate', '(', 'a', 'poet', ')', 'sang', 'no', 'never', '.']
    """
    return text.lower().replace("<br />", " ").translate(_RULES).split()


def read_words(path: str | Path) -> list[str]:
    """The words of a plain-text file in UTF-8, by :func:`basic_english`.

    Raises:
        ValueError: no such file, no file, bytes that are no UTF-8 or NUL, or fewer than two words; the message names the file.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"{path} must be a file of plain text, there is {'a folder' if path.is_dir() else 'no such file'}; check the path")
    try:
        words = basic_english(path.read_bytes().decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} must be text in UTF-8, got byte {error.object[error.start]:#04x} at {error.start}; convert it") from error
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}); check its rights") from error
    if any("\0" in word for word in words):
        raise ValueError(f"{path} must be plain text, got a NUL byte; convert it")
    if len(words) < 2:
        raise ValueError(f"{path} must hold at least two words, one to predict from, got {len(words)}; choose a longer text")
    return words


@dataclass(frozen=True)
class Vocabulary:
    """Words by their numbers; number 0 is ``<unk>``, which stands for every word that has none.

    Attributes:
        words: all different.
    Raises:
        ValueError: no ``<unk>`` in front, or a word twice.
    """

    words: tuple[str, ...]

    def __post_init__(self):
        if self.words[:1] != (UNKNOWN,) or len(set(self.words)) < len(self.words):
            raise ValueError(f"words must start with {UNKNOWN!r} and be all different, got {self.words[:3]}; use Vocabulary.of")

    @classmethod
    def of(cls, words: Sequence[str], *, size: int = SIZE) -> "Vocabulary":
        """The ``size`` - 1 most frequent words behind ``<unk>``; equally frequent ones in alphabetical order.

        Raises:
            ValueError: size is less than 2.
        """
        if size < 2:
            raise ValueError(f"size must be at least 2, {UNKNOWN!r} and a word, got {size}")
        counts = Counter(words)
        counts.pop(UNKNOWN, None)
        return cls((UNKNOWN, *sorted(counts, key=lambda word: (-counts[word], word))[: size - 1]))

    def __len__(self) -> int:
        return len(self.words)

    def numbers(self, words: Sequence[str]) -> Int[Tensor, " n"]:
        """The number of each word, [n]; 0 for those that are not in the vocabulary."""
        known = {word: number for number, word in enumerate(self.words)}
        return torch.tensor([known.get(word, 0) for word in words], dtype=torch.int64)


@dataclass(frozen=True, eq=False)
class Text:
    """A text as numbers of a vocabulary, in the order in which it is read.

    Attributes:
        ids: number of each word, int64, ``[n]``.
        vocabulary: what they stand for.
        name: for headings.
    """

    ids: Int[Tensor, " n"]
    vocabulary: Vocabulary
    name: str = "text"

    @classmethod
    def read(cls, path: str | Path, *, size: int = SIZE) -> "Text":
        """A file with a vocabulary of its own, of at most ``size`` words.

        Raises:
            ValueError: the file cannot be read as text (see :func:`read_words`), or size is less than 2.
        """
        words = read_words(path)
        vocabulary = Vocabulary.of(words, size=size)
        return cls(vocabulary.numbers(words), vocabulary, Path(path).stem)

    def like(self, path: str | Path) -> "Text":
        """Another file in this text's vocabulary: what a model that learnt this text is measured on.

        Raises:
            ValueError: the file cannot be read as text (see :func:`read_words`).
        """
        return Text(self.vocabulary.numbers(read_words(path)), self.vocabulary, Path(path).stem)

    def __len__(self) -> int:
        return len(self.ids)

    def split(self, share: float) -> tuple["Text", "Text"]:
        """The first ``share`` of the words, and the rest, in one vocabulary.

        Raises:
            ValueError: a part would hold fewer than two words.
        """
        cut = round(share * len(self)) if 0 < share < 1 else 0  # NaN is neither
        if not 2 <= cut <= len(self) - 2:
            raise ValueError(
                f"share must leave two words on both sides, got {share} of the {len(self)} words of {self.name}; "
                "choose a longer text, or a share inside (0, 1)"
            )
        return Text(self.ids[:cut], self.vocabulary, self.name), Text(self.ids[cut:], self.vocabulary, f"end of {self.name}")

    def batches(self, *, batch: int = BATCH, length: int = CONTEXT) -> Iterator[Int[Tensor, "batch longer"]]:
        """Streams without end: ``[batch, length + 1]`` words, of which the last ``length`` are targets; each epoch ends with a shorter one.

        Raises:
            ValueError: batch or length is less than 1, or the text is too short for streams of two words.
        """
        if min(batch, length) < 1:
            raise ValueError(f"batch and length must be at least 1, got {batch} and {length}")
        each = len(self) // batch
        if each < 2:
            raise ValueError(f"{batch} streams of at least two words need {2 * batch} words, {self.name} has {len(self)}; lower batch")
        streams = self.ids[: batch * each].view(batch, each)
        while True:
            for start in range(0, each - 1, length):
                yield streams[:, start : start + length + 1]

    def windows(self, count: int, *, length: int = CONTEXT) -> Int[Tensor, "count longer"]:
        """Up to ``count`` pieces of ``length`` + 1 words at even distances, ``[count, length + 1]``; they overlap if the text is short.

        Raises:
            ValueError: count or length is less than 1, or the text is shorter than a piece.
        """
        if min(count, length) < 1:
            raise ValueError(f"count and length must be at least 1, got {count} and {length}")
        last = len(self) - length - 1
        if last < 0:
            raise ValueError(f"{self.name}: a text must hold at least {length + 1} words, got {len(self)}; choose a longer one")
        starts = torch.linspace(0, last, min(count, last + 1), dtype=torch.float64).round().long()
        return self.ids.unfold(0, length + 1, 1)[starts]

    def sequences(self, *, count: int = SEQUENCES, context: int = CONTEXT, dim: int = DIM, seed: int = 0) -> TokenData:
        """The text as every theory reads it: windows of ``context`` words, the last of which is the query, and the word that follows.

        * ids [n, context], next_id [n], in the text's vocabulary;
        * labels: rank of the next word among the ten most frequent next words, 10 for all others;
        * tokens [n, context, dim]: a unit vector for each word, drawn at random: nearly orthogonal, as the theories' one-hot words are.

        Args:
            count: windows, at even distances; fewer if the text is short.
            dim: of the vectors.
            seed: of the vectors.
        Raises:
            ValueError: the text is shorter than a window, one word follows every window, or a number is less than 1.
        """
        seen = self.windows(count, length=context)
        ids, following = seen[:, :-1], seen[:, -1]
        if len(following.unique()) < 2:
            only = self.vocabulary.words[int(following[0])]
            raise ValueError(f"{self.name}: two different words must follow its {len(seen)} windows, got only {only!r}; choose more text")
        frequent = torch.bincount(following, minlength=len(self.vocabulary)).argsort(descending=True, stable=True)[:CLASSES]
        rank = torch.full((len(self.vocabulary),), len(frequent))
        rank[frequent] = torch.arange(len(frequent))
        vectors = unit_vectors(len(self.vocabulary), dim, generator=torch.Generator().manual_seed(seed))
        return TokenData(
            tokens=vectors[ids],
            labels=rank[following],
            ids=ids.contiguous(),
            next_id=following.contiguous(),
            vocab_size=len(self.vocabulary),
            name=self.name,
        )


def unit_vectors(count: int, dim: int, *, generator: torch.Generator) -> Float[Tensor, "count dim"]:
    """Random directions, float64 [count, dim] with norm one; inner products are of order 1 / sqrt(dim).

    Raises:
        ValueError: count or dim is less than 1.
    """
    if min(count, dim) < 1:
        raise ValueError(f"count and dim must be at least 1, got {count} and {dim}")
    return torch.nn.functional.normalize(torch.randn(count, dim, generator=generator, dtype=torch.float64), dim=1)


def harbour() -> TokenData:
    """The text that comes with the library, a few pages on a harbour, as every theory reads it; see :meth:`Text.sequences`."""
    return Text.read(SHIPPED).sequences()

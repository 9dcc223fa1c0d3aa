r"""Text: words, a vocabulary of the most frequent ones, streams and windows.

*Words* follow the ``basic_english`` rules: the text is in lower case; ``'  .  ,  (  )  !  ?`` become words of their own, ``"`` is removed;
``;``, ``:`` and ``<br />`` become spaces; words are separated by white space. The *vocabulary* holds the most frequent words, equally
frequent ones in alphabetical order; all others become ``<unk>``, number 0. A language model is trained on *streams*: the text is cut into
``batch`` equal pieces, and the k-th batch is the k-th ``length`` words of each piece, with the word after each word as its target.

Source: :cite:t:`paszke2019pytorch` (the rules and the streams are those of its text library and word-language-model tutorial).
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..core.validation import integers
from .tokens import TokenData

UNKNOWN = "<unk>"
SIZE, CONTEXT, BATCH = 3000, 35, 20
SEQUENCES, CLASSES, DIM = 2000, 10, 32
SHIPPED = Path(__file__).with_name("harbour.txt")
_RULES = str.maketrans({mark: f" {mark} " for mark in "'.,()!?"} | {'"': "", ";": " ", ":": " "})


def basic_english(text: str) -> list[str]:
    """The words of a text by the ``basic_english`` rules (see the module's docstring).

    >>> basic_english('The ship\\'s mate (a "poet") sang: no; never.')
    ['the', 'ship', "'", 's', 'mate', '(', 'a', 'poet', ')', 'sang', 'no', 'never', '.']
    """
    return text.lower().replace("<br />", " ").translate(_RULES).split()


def read_words(path: str | Path) -> list[str]:
    """The words of a plain-text file in UTF-8, by :func:`basic_english`.

    Raises:
        ValueError: no such file, bytes that are not UTF-8, a NUL, or fewer than two words; the message names the file.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"{path} must be a file of plain text, got {'a folder' if path.is_dir() else 'no such file'}; check the path")
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
    """Words by number; number 0 is ``<unk>``, which replaces every word that has no number.

    Attributes:
        words: all different.
    Raises:
        ValueError: the first word is not ``<unk>``, or a word occurs twice.
    """

    words: tuple[str, ...]

    def __post_init__(self):
        if self.words[:1] != (UNKNOWN,) or len(set(self.words)) < len(self.words):
            raise ValueError(f"words must start with {UNKNOWN!r} and be all different, got {self.words[:3]}; use Vocabulary.of")

    @classmethod
    def of(cls, words: Sequence[str], *, size: int = SIZE) -> "Vocabulary":
        """``<unk>`` and the ``size`` - 1 most frequent words; equally frequent ones in alphabetical order.

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
    """A text as numbers of a vocabulary, in reading order.

    Attributes:
        ids: number of each word, int64, ``[n]``.
        vocabulary: the words of the numbers.
        name: for headings.
    """

    ids: Int[Tensor, " n"]
    vocabulary: Vocabulary
    name: str = "text"

    @classmethod
    def read(cls, path: str | Path, *, size: int = SIZE) -> "Text":
        """The text of a file, with a vocabulary of its own of at most ``size`` words.

        Raises:
            ValueError: the file cannot be read as text (see :func:`read_words`), or size is less than 2.
        """
        words = read_words(path)
        vocabulary = Vocabulary.of(words, size=size)
        return cls(vocabulary.numbers(words), vocabulary, Path(path).stem)

    def like(self, path: str | Path) -> "Text":
        """Another file in this text's vocabulary, to evaluate a model that was trained on this text.

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
        cut = round(share * len(self)) if 0 < share < 1 else 0  # the comparison is false for NaN
        if not 2 <= cut <= len(self) - 2:
            raise ValueError(
                f"share must leave two words on both sides, got {share} of the {len(self)} words of {self.name}; "
                "choose a longer text, or a share inside (0, 1)"
            )
        return Text(self.ids[:cut], self.vocabulary, self.name), Text(self.ids[cut:], self.vocabulary, f"end of {self.name}")

    def batches(self, *, batch: int = BATCH, length: int = CONTEXT) -> Iterator[Int[Tensor, "batch longer"]]:
        """Batches without end: ``[batch, length + 1]`` words, the last ``length`` of which are targets; the last batch of an epoch is
        shorter.

        Raises:
            ValueError: batch or length is less than 1, or the text is too short for streams of two words.
        """
        integers(batch=batch, length=length)
        each = len(self) // batch
        if each < 2:
            raise ValueError(f"{batch} streams of at least two words need {2 * batch} words, {self.name} has {len(self)}; lower batch")
        streams = self.ids[: batch * each].view(batch, each)
        while True:
            for start in range(0, each - 1, length):
                yield streams[:, start : start + length + 1]

    def windows(self, count: int, *, length: int = CONTEXT) -> Int[Tensor, "count longer"]:
        """Up to ``count`` windows of ``length`` + 1 words at equal distances, ``[count, length + 1]``; they overlap if the text is short.

        Raises:
            ValueError: count or length is less than 1, or the text is shorter than a window.
        """
        integers(count=count, length=length)
        last = len(self) - length - 1
        if last < 0:
            raise ValueError(f"{self.name}: a text must hold at least {length + 1} words, got {len(self)}; choose a longer one")
        starts = torch.linspace(0, last, min(count, last + 1), dtype=torch.float64).round().long()
        return self.ids.unfold(0, length + 1, 1)[starts]

    def sequences(self, *, count: int = SEQUENCES, context: int = CONTEXT, dim: int = DIM, seed: int = 0) -> TokenData:
        """The text as tokens: windows of ``context`` words, the last of which is the query, and the word that follows.

        * ids [n, context], next_id [n], in the text's vocabulary;
        * labels: rank of the next word among the ten most frequent next words; 10 for all others;
        * tokens [n, context, dim]: a random unit vector for each word; the vectors are nearly orthogonal, as one-hot words are.

        Args:
            count: number of windows, at equal distances; fewer if the text is short.
            context: words in a window.
            dim: of the vectors.
            seed: of the vectors.
        Raises:
            ValueError: the text is shorter than a window, one word follows every window, or a number is less than 1.
        """
        windows = self.windows(count, length=context)
        ids, following = windows[:, :-1], windows[:, -1]
        if len(following.unique()) < 2:
            only = self.vocabulary.words[int(following[0])]
            raise ValueError(
                f"{self.name}: two different words must follow its {len(windows)} windows, got only {only!r}; choose more text"
            )
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
    """Random unit vectors, float64 ``[count, dim]``; their inner products are of order 1 / sqrt(dim).

    Raises:
        ValueError: count or dim is less than 1.
    """
    integers(count=count, dim=dim)
    return torch.nn.functional.normalize(torch.randn(count, dim, generator=generator, dtype=torch.float64), dim=1)


def harbour() -> TokenData:
    """The text that is shipped with the library, a few pages on a harbour, as tokens; see :meth:`Text.sequences`."""
    return Text.read(SHIPPED).sequences()

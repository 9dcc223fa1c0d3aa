r"""Text: words, a vocabulary of the most frequent words, streams and windows.

*Words* follow the ``basic_english`` rules: the text is converted to lower case; each of ``' . , ( ) ! ?``
becomes a separate word; ``"`` is removed; ``;``, ``:`` and ``<br />`` become spaces; words are separated by
white space. The *vocabulary* holds the most frequent words, with ties in alphabetical order; all others
become ``<unk>``, number 0. A language model is trained on *streams*: the text is cut into ``batch`` equal
pieces, and the k-th batch is the k-th ``length`` words of each piece, with the word after each word as its
target.

Source: :cite:t:`paszke2019pytorch` (its text library for the rules, its word-language-model tutorial for the
streams).
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..core.reading import check_size, kind_of
from ..core.validation import integers
from .tokens import TokenData

UNKNOWN = "<unk>"
SIZE, CONTEXT, BATCH = 3000, 35, 20  # numbers of words in the vocabulary, words in a window, and streams
# numbers of windows and of words with their own label, and dimension of the tokens
SEQUENCES, CLASSES, DIM = 2000, 10, 32
SHIPPED = Path(__file__).with_name("harbour.txt")
_RULES = str.maketrans({mark: f" {mark} " for mark in "'.,()!?"} | {'"': "", ";": " ", ":": " "})


def basic_english(text: str) -> list[str]:
    """Splits a text into words by the ``basic_english`` rules (see the module's docstring).

    >>> basic_english('The ship\\'s mate (a "poet") sang: no; never.')
    ['the', 'ship', "'", 's', 'mate', '(', 'a', 'poet', ')', 'sang', 'no', 'never', '.']
    """
    return text.lower().replace("<br />", " ").translate(_RULES).split()


def read_words(path: str | Path) -> list[str]:
    """Reads the words of a plain-text file in UTF-8, see :func:`basic_english`.

    Raises:
        ValueError: the file does not exist, is not in UTF-8, contains a NUL, or has fewer than two words; the
            message names the file.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"{path} must be a file of plain text, got {kind_of(path)}; check the path")
    check_size(path, path.stat().st_size)
    try:
        words = basic_english(path.read_bytes().decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} must be text in UTF-8, got byte {error.object[error.start]:#04x} at {error.start}; "
            "convert it"
        ) from error
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}); check its permissions") from error
    if any("\0" in word for word in words):
        raise ValueError(f"{path} must be plain text, got a NUL byte; convert it")
    if len(words) < 2:
        raise ValueError(
            f"{path} must hold at least two words, one to predict from, got {len(words)}; choose a longer "
            "text"
        )
    return words


@dataclass(frozen=True)
class Vocabulary:
    """Numbered words. Number 0 is ``<unk>``, which replaces every word that is not in the vocabulary.

    Attributes:
        words: distinct words, ordered by number.
    Raises:
        ValueError: the first word is not ``<unk>``, or a word occurs twice.
    """

    words: tuple[str, ...]

    def __post_init__(self):
        if self.words[:1] != (UNKNOWN,) or len(set(self.words)) < len(self.words):
            raise ValueError(
                f"words must start with {UNKNOWN!r} and be all different, got {self.words[:3]}; use "
                "Vocabulary.of"
            )

    @classmethod
    def of(cls, words: Sequence[str], *, size: int = SIZE) -> "Vocabulary":
        """Builds a vocabulary of ``<unk>`` and the ``size`` - 1 most frequent words, with ties in
        alphabetical order.

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
        """Returns the number of each word, [n]; 0 for words that are not in the vocabulary."""
        known = {word: number for number, word in enumerate(self.words)}
        return torch.tensor([known.get(word, 0) for word in words], dtype=torch.int64)


@dataclass(frozen=True, eq=False)
class Text:
    """A text as word numbers, in reading order.

    Attributes:
        ids: number of each word, int64, ``[n]``.
        vocabulary: vocabulary that maps words to numbers.
        name: name of the text in headings.
    """

    ids: Int[Tensor, " n"]
    vocabulary: Vocabulary
    name: str = "text"

    @classmethod
    def read(cls, path: str | Path, *, size: int = SIZE) -> "Text":
        """Reads a file, and builds a vocabulary of at most ``size`` words from it.

        Raises:
            ValueError: the file cannot be read as text (see :func:`read_words`), or size is less than 2.
        """
        words = read_words(path)
        vocabulary = Vocabulary.of(words, size=size)
        return cls(vocabulary.numbers(words), vocabulary, Path(path).name)

    def like(self, path: str | Path) -> "Text":
        """Reads another file with the vocabulary of this text, to evaluate a model that was trained on this
        text.

        Raises:
            ValueError: the file cannot be read as text (see :func:`read_words`).
        """
        return Text(self.vocabulary.numbers(read_words(path)), self.vocabulary, Path(path).name)

    def __len__(self) -> int:
        return len(self.ids)

    def split(self, share: float) -> tuple["Text", "Text"]:
        """Splits the text into the first ``share`` of the words and the rest, which have the same vocabulary.

        Raises:
            ValueError: a part would hold fewer than two words.
        """
        cut = round(share * len(self)) if 0 < share < 1 else 0  # the comparison is false for NaN
        if not 2 <= cut <= len(self) - 2:
            raise ValueError(
                f"share must leave two words on both sides, got {share} of the {len(self)} words of "
                f"{self.name}; choose a longer text, or a share inside (0, 1)"
            )
        return Text(self.ids[:cut], self.vocabulary, self.name), Text(
            self.ids[cut:], self.vocabulary, f"end of {self.name}"
        )

    def batches(self, *, batch: int = BATCH, length: int = CONTEXT) -> Iterator[Int[Tensor, "batch longer"]]:
        """Yields batches of word numbers ``[batch, length + 1]`` indefinitely; the last ``length`` words of
        each row are targets.

        The last batch of an epoch is shorter.

        Raises:
            ValueError: batch or length is less than 1, or the text is too short for streams of two words.
        """
        integers(batch=batch, length=length)
        stream_length = len(self) // batch
        if stream_length < 2:
            raise ValueError(
                f"{batch} streams of at least two words need {2 * batch} words, {self.name} has "
                f"{len(self)}; lower batch"
            )
        streams = self.ids[: batch * stream_length].view(batch, stream_length)
        while True:
            for start in range(0, stream_length - 1, length):
                yield streams[:, start : start + length + 1]

    def windows(self, count: int, *, length: int = CONTEXT) -> Int[Tensor, "count longer"]:
        """Returns up to ``count`` equally spaced windows of ``length`` + 1 words, ``[count, length + 1]``.
        Windows of a short text overlap.

        Raises:
            ValueError: count or length is less than 1, or the text is shorter than a window.
        """
        integers(count=count, length=length)
        last = len(self) - length - 1
        if last < 0:
            raise ValueError(
                f"{self.name}: a text must hold at least {length + 1} words, got {len(self)}; choose a "
                "longer one"
            )
        starts = torch.linspace(0, last, min(count, last + 1), dtype=torch.float64).round().long()
        return self.ids.unfold(0, length + 1, 1)[starts]

    def sequences(
        self, *, count: int = SEQUENCES, context: int = CONTEXT, dim: int = DIM, seed: int = 0
    ) -> TokenData:
        """Converts the text to tokens: windows of ``context`` words, the last of which is the query, and the
        next word.

        * ids [n, context], next_id [n], in the text's vocabulary, and its words;
        * labels [n]: rank of the next word among the ten most frequent next words; 10 for all others;
        * tokens [n, context, dim]: a random unit vector per word; these vectors are nearly orthogonal,
          similar to one-hot vectors.

        Args:
            count: number of equally spaced windows; a short text has fewer.
            context: number of words in a window.
            dim: dimension of the vectors.
            seed: seed of the vectors.
        Raises:
            ValueError: the text is shorter than a window, the same word follows every window, or a number is
                less than 1.
        """
        windows = self.windows(count, length=context)
        ids, next_words = windows[:, :-1], windows[:, -1]
        if len(next_words.unique()) < 2:
            word = self.vocabulary.words[int(next_words[0])]
            raise ValueError(
                f"{self.name}: two different words must follow its {len(windows)} windows, got only "
                f"{word!r}; choose a longer text"
            )
        # The label of each word of the vocabulary: its rank among the most frequent next words, and their
        # number for all other words.
        frequent_words = torch.bincount(next_words, minlength=len(self.vocabulary)).argsort(
            descending=True, stable=True
        )[:CLASSES]
        rank = torch.full((len(self.vocabulary),), len(frequent_words))
        rank[frequent_words] = torch.arange(len(frequent_words))
        vectors = unit_vectors(len(self.vocabulary), dim, generator=torch.Generator().manual_seed(seed))
        return TokenData(
            tokens=vectors[ids],
            labels=rank[next_words],
            ids=ids.contiguous(),
            next_id=next_words.contiguous(),
            vocab_size=len(self.vocabulary),
            words=self.vocabulary.words,
            name=self.name,
        )


def unit_vectors(count: int, dim: int, *, generator: torch.Generator) -> Float[Tensor, "count dim"]:
    """Draws random unit vectors, float64 ``[count, dim]``. Their inner products are of order 1 / sqrt(dim).

    Raises:
        ValueError: count or dim is less than 1.
    """
    integers(count=count, dim=dim)
    return torch.nn.functional.normalize(
        torch.randn(count, dim, generator=generator, dtype=torch.float64), dim=1
    )


def harbour() -> TokenData:
    """Returns the tokens of the text that is shipped with the library, a few pages about a harbour; see
    :meth:`Text.sequences`.
    """
    return replace(Text.read(SHIPPED), name=SHIPPED.stem).sequences()

"""The last rung: a causal decoder that is trained on a text by next-word prediction."""

from collections.abc import Iterator

import torch
from jaxtyping import Int
from torch import Generator, Tensor

from ....core.measurement import Measurement
from ....core.statistics import LADDER_DRAWS, permutations
from ....data.queries import most_frequent
from ....data.text import CONTEXT, Text, Vocabulary
from ....models.decoder import Decoder
from ....models.embedding import build
from ..language_training import adam, train_decoder
from .agreement import LADDER, SplitSequences, agreement_rows, predict
from .networks import word_logits

WORDS = 3000  # largest vocabulary; rarer words become <unk>
# of ten stretches of 1000 words seven are learnt: both parts then have the same topics
STRETCH, LEARNT_OF_TEN = 1000, 7
CLASSES, KEPT = 10, 200  # next words of the query that are classes, and context words that are counted
PROBED = 2000  # largest number of windows on which the logits are measured
STEPS, RATE, DIM, HEADS, DEPTH = 400, 1e-3, 96, 4, 2


def query_windows(
    ids: Int[Tensor, " words"], query: int
) -> tuple[Int[Tensor, "n context"], Int[Tensor, " n"]]:
    """Returns the windows of 35 words that end in the query, ``[n, 35]``, and the word that follows each,
    ``[n]``.
    """
    starts = (ids[CONTEXT - 1 : -1] == query).nonzero()[:, 0]
    windows = ids.unfold(0, CONTEXT + 1, 1)[starts]
    return windows[:, :-1], windows[:, -1]


def text_sequences(
    text: Text,
) -> tuple[Text, SplitSequences, Int[Tensor, "n context"], Int[Tensor, " kept"]] | str:
    """Divides a text, and counts the words before its most frequent word in both parts. Returns the reason if
    there are too few.

    Returns:
        The part to learn, the sequences, windows of the learnt part, evenly spaced, and the ids of the
        counted words.
    """
    words = text.vocabulary.words[:WORDS]
    text = Text(torch.where(text.ids < len(words), text.ids, 0), Vocabulary(words), text.name)
    stretches = list(enumerate(text.ids.split(STRETCH)))
    parts = [
        [ids for i, ids in stretches if (i % 10 < LEARNT_OF_TEN) == is_learnt] for is_learnt in (True, False)
    ]
    if not parts[1]:
        return f"the text has {len(text)} words, at least {LEARNT_OF_TEN * STRETCH + 1} are needed"
    learnt, held = (Text(torch.cat(part), text.vocabulary, text.name) for part in parts)
    query = int(most_frequent(learnt.ids[learnt.ids > 0], 1))  # 0 is <unk>, which is no word
    (windows, following), (held_windows, held_following) = (
        query_windows(part.ids, query) for part in (learnt, held)
    )
    if min(len(windows), len(held_windows)) < 2:
        return f"the text has fewer than two windows that end in {words[query]!r} in one of its parts"
    both = following[torch.isin(following, held_following) & (following > 0)]
    next_words = most_frequent(both, CLASSES)
    if len(next_words) < 2:
        return f"fewer than two words follow {words[query]!r} in both parts of the text"
    kept = most_frequent(windows[:, :-1].flatten(), KEPT).sort().values

    def counted(windows: Tensor, following: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the counts of the kept words and the classes, for the windows whose next word is
        a class.
        """
        match = following[:, None] == next_words
        rows = match.any(1)
        context = windows[rows, :-1]
        # of the pair (window, word)
        number = (torch.arange(len(context))[:, None] * len(words) + context).flatten()
        counts = torch.bincount(number, minlength=len(context) * len(words)).view(len(context), -1)
        return counts[:, kept].double(), match[rows].long().argmax(1)

    counts, target = counted(windows, following)
    held_counts, held_target = counted(held_windows, held_following)
    permuted = held_target[permutations(len(held_target), LADDER_DRAWS)]
    # All seeds hold out the same windows and share the permutations: draw i of each seed belongs to the same
    # prediction.
    sequences = SplitSequences(
        counts, target, held_counts, held_target, len(next_words), len(words), permuted
    )
    return (
        learnt,
        sequences,
        windows[torch.linspace(0, len(windows) - 1, min(len(windows), PROBED)).long()],
        kept,
    )


def text_rung(generator: Generator, text: Text) -> Iterator[Measurement]:
    """Measures a decoder trained on the text: the change of the first layer's logits of the words before the
    most frequent word.

    Args:
        generator: draws initial weights and dropout.
        text: the text; both parts of it are used.
    """
    found = text_sequences(text)
    if isinstance(found, str):
        yield LADDER.row(None, reason=found)
        return
    learnt, sequences, windows, kept = found

    def change() -> Tensor:
        vocabulary = len(learnt.vocabulary)
        model = build(
            lambda: Decoder(vocabulary=vocabulary, dim=DIM, hidden=DIM, depth=DEPTH, heads=HEADS), generator
        ).eval()
        assert isinstance(model, Decoder)
        before = word_logits(model, windows, windows[:, :-1], count=vocabulary)
        train_decoder(model, learnt, optimiser=adam(RATE), steps=STEPS, generator=generator)
        return (word_logits(model.eval(), windows, windows[:, :-1], count=vocabulary) - before)[kept]

    query = learnt.vocabulary.words[int(windows[0, -1])]
    yield from agreement_rows(predict(sequences), change, f"query {query!r}, {STEPS} steps of Adam")

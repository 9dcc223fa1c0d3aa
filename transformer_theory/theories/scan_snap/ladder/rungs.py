"""The settings of the ladder: the theory's own classes, the visual words of the digits, and networks
on them.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache, partial
from itertools import repeat

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor, nn
from torch.nn import functional

from ....core.measurement import Measurement, Null
from ....core.statistics import LADDER_DRAWS, RANGE_DRAWS, permutations
from ....data import digits
from ....data.bridges import one_hot
from ....data.queries import most_frequent
from ....data.tokens import TokenData, stratified
from ....models.embedding import build
from ....training.fitting import fit
from ....training.recipes import RECIPES
from ....training.supervised import train_classifier
from ....training.tasks import Classification, StreamTask
from ..closed_form import scanning_time
from ..dynamics import Batch, Weights, gradient_descent
from ..orders import rank_correlation
from ..problem import SequenceClasses, estimate_conditional, single_common
from .agreement import (
    FAST_DECODER,
    HORIZON,
    LADDER,
    Prediction,
    SplitSequences,
    agreement_rows,
    permuted_next_tokens,
    predict,
)
from .networks import SoftmaxAttention, WordNetwork, word_logits

# contextual tokens: sequences that are long for the theory, and as short as those of the digits
LONG, SHORT = 20_000, 15
LEARNT, HELD_OUT = 762, 320  # numbers of sequences, those of the commonest query of the digits
LEARNT_SHARE = 0.7
# Lengths of the trainings. They pass the plateau at which attention has gone to the blank word and nothing is
# learnt.
SOFTMAX_STEPS, SOFTMAX_RATE = 2000, 8.0
SGD_STEPS, SGD_RATE = 300, 0.5
STEPS, BLOCK_STEPS, RATE, BATCH = 800, 400, 3e-3, 64  # AdamW; networks with an MLP learn faster
RETRAINED = "models trained on permuted next tokens"
Trainer = Callable[[SplitSequences, Generator], Float[Tensor, " S"]]


# ---- the theory's own classes


def _weights(*shape: int, generator: Generator) -> Tensor:
    """Draws relative probabilities between 0.1 and 1, the range of the paper's synthetic data."""
    return 0.1 + 0.9 * torch.rand(*shape, generator=generator, dtype=torch.float64)


def two_classes(generator: Generator) -> SequenceClasses:
    """Draws two weakly overlapping classes with one common token (probability 0.2) and ten distinct tokens
    each, M = 1000.
    """
    return single_common(_weights(2, 10, generator=generator), 0.2, vocab_size=1000)


def ten_classes(generator: Generator) -> SequenceClasses:
    """Draws ten strongly overlapping classes with ten common tokens and five distinct ones each, M = 1000."""
    K, common, distinct = 10, 10, 5
    blocks = torch.block_diag(*_weights(K, distinct, generator=generator).split(1))
    weights = torch.cat([_weights(K, common, generator=generator), blocks], dim=1)
    return SequenceClasses(weights / weights.sum(1, keepdim=True), torch.zeros(K, dtype=torch.long), 1000)


def redrawn_words(generator: Generator) -> SequenceClasses:
    """Returns the classes of the visual words: P(l | n) and the class shares, counted on all digits with the
    commonest query.

    Sequences drawn from them have the frequencies of the visual words, but their words are independent.
    Nothing is random here.
    """
    chosen, context = commonest_query()
    counts, labels, classes, vocab_size = _counted(chosen, context)
    share = torch.bincount(labels, minlength=classes).double()
    conditional = estimate_conditional(counts, labels, classes)
    return SequenceClasses(
        conditional, torch.zeros(classes, dtype=torch.long), vocab_size, share / share.sum()
    )


def drawn(classes: SequenceClasses, *, context: int, generator: Generator) -> SplitSequences:
    """Draws sequences of given classes, with independent permutations of the held-out next tokens.

    Args:
        classes: classes with one query.
        context: contextual tokens per sequence.
        generator: source of sequences and permutations.
    """
    counts, target = classes.sample_counts(LEARNT, context=context, generator=generator)
    held_counts, held = classes.sample_counts(HELD_OUT, context=context, generator=generator)
    permuted = held[permutations(HELD_OUT, LADDER_DRAWS, generator)]
    return SplitSequences(counts, target, held_counts, held, classes.classes, classes.vocab_size, permuted)


def own_rung(
    generator: Generator, *, draw: Callable[[Generator], SequenceClasses], context: int
) -> Iterator[Measurement]:
    """Measures the theory's model on sequences of classes that are drawn."""
    sequences = drawn(draw(generator), context=context, generator=generator)
    change = partial(minimal_model, sequences, attention_rate=FAST_DECODER)
    yield from agreement_rows(predict(sequences), change, f"sequences of {context} words")


def minimal_model(sequences: SplitSequences, *, attention_rate: float) -> Float[Tensor, " S"]:
    """Trains the theory's one-layer model on all learnt sequences for 4 t0' steps at eta_Y = 1; returns the
    change of the logits.

    Raises:
        NotConverged: the loss is not finite.
    """
    counts, K, M = sequences.counts, sequences.classes, sequences.vocab_size
    batch = Batch(counts, torch.zeros_like(sequences.target), sequences.target, log_counts=counts.log())
    steps = round(HORIZON * scanning_time(classes=K, vocab_size=M, eta_y=1.0))
    path = gradient_descent(
        Weights.zeros(counts.shape[1], 1, K, M), lambda _: batch, steps=steps, eta_y=1.0, eta_z=attention_rate
    )
    return path.final.attention[0]


# ---- visual words


def commonest_query() -> tuple[TokenData, Int[Tensor, "n context"]]:
    """Returns the digits that end in the commonest visual word, their query, and the words before it."""
    data = digits()
    context, query = data.context_and_query()
    chosen = (query == most_frequent(query, 1)).nonzero()[:, 0]
    return data[chosen], context[chosen]


@lru_cache(maxsize=2)
def visual_words(seed: int) -> tuple[SplitSequences, Prediction]:
    """Returns the digits that end in the commonest visual word, split at random, and the prediction
    for them.
    """
    return _split(*commonest_query(), seed)


@lru_cache(maxsize=2)
def whole_images(seed: int) -> tuple[SplitSequences, Prediction]:
    """Returns all digits, whose query is a class token and whose context are all 16 words, split at random,
    and the prediction.
    """
    data = digits()
    assert data.ids is not None
    return _split(data, data.ids, seed)


def _counted(
    data: TokenData, context: Int[Tensor, "n context"]
) -> tuple[Float[Tensor, "n S"], Int[Tensor, " n"], int, int]:
    """Returns counts of the words of the context, classes of the sequences, K, and M."""
    assert data.labels is not None
    assert data.vocab_size is not None
    words = data.vocab_size - data.classes  # S; the other ids are the next tokens
    return one_hot(context, words).sum(1), data.labels, data.classes, data.vocab_size


def _split(
    data: TokenData, context: Int[Tensor, "n context"], seed: int
) -> tuple[SplitSequences, Prediction]:
    assert data.ids is not None
    counts, labels, K, M = _counted(data, context)
    words = TokenData(one_hot(data.ids, counts.shape[1]), labels=labels, ids=data.ids, name="visual words")
    learnt, held = stratified(
        len(data), labels, LEARNT_SHARE, Generator().manual_seed(seed), what="sequences", every_class=False
    )
    permuted, others = (permuted_next_tokens(labels, part) for part in (held, learnt))
    sequences = SplitSequences(
        counts[learnt], labels[learnt], counts[held], labels[held], K, M, permuted, others, words[learnt]
    )
    return sequences, predict(sequences)


def words_rung(generator: Generator, *, train: Trainer, note: str) -> Iterator[Measurement]:
    """Measures a model on the visual words after one query."""
    sequences, prediction = visual_words(generator.initial_seed())
    yield from agreement_rows(prediction, lambda: train(sequences, generator), note)


def retrained_rung(generator: Generator, *, train: Trainer, note: str) -> Iterator[Measurement]:
    """Measures a model as :func:`words_rung` does, with a second null: models that are trained on permuted
    next tokens.

    The first null keeps the training. It is too narrow where training on any next tokens orders the words:
    next tokens that one seed holds out are learnt by other seeds.
    """
    rows = list(words_rung(generator, train=train, note=note))
    sequences, prediction = visual_words(generator.initial_seed())
    assert sequences.permuted_learnt is not None
    draws = []
    for target, predicted in zip(sequences.permuted_learnt[:RANGE_DRAWS], prediction.held_out[1:]):
        assert sequences.data is not None
        permuted = replace(sequences, target=target, data=replace(sequences.data, labels=target))
        draws.append(
            float(rank_correlation(train(permuted, generator).double()[prediction.tokens], predicted))
        )
    for row in rows:
        second = (Null(RETRAINED, tuple(draws)),) if row.quantity == LADDER.quantity else ()
        yield replace(row, nulls=(*row.nulls, *second))


def reparametrised(
    attention_rate: float, sequences: SplitSequences, generator: Generator
) -> Float[Tensor, " S"]:
    """Trains the theory's model."""
    return minimal_model(sequences, attention_rate=attention_rate)


def softmax_attention(sequences: SplitSequences, generator: Generator) -> Float[Tensor, " S"]:
    """Trains attention logits and a decoder by descent at one rate, without the normalisation of the attended
    tokens.
    """
    counts, target = sequences.counts.float(), sequences.target
    model = SoftmaxAttention(counts.shape[1], sequences.vocab_size)

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        return functional.cross_entropy(model(batch), target)

    optimiser = torch.optim.SGD(model.parameters(), lr=SOFTMAX_RATE)
    fit(
        model,
        StreamTask(loss, lambda _: repeat(counts)),
        optimiser=optimiser,
        steps=SOFTMAX_STEPS,
        generator=generator,
    )
    return model.logits.detach()


def network(
    positions: bool, blocks: int, adam: bool, sequences: SplitSequences, generator: Generator
) -> Float[Tensor, " S"]:
    """Trains a :class:`WordNetwork`, by descent on all sequences or by AdamW in mini-batches; returns the
    change of the words' logits.
    """
    data = sequences.data
    assert data is not None
    assert data.ids is not None
    seq, S = data.tokens.shape[1:]
    model = build(
        lambda: WordNetwork(S, seq, sequences.vocab_size, positions=positions, blocks=blocks), generator
    )
    inputs, words = data.tokens.float(), data.ids[:, :-1]
    before = word_logits(model, inputs, words, count=S)
    if adam:
        train_classifier(
            model,
            data,
            data,
            steps=BLOCK_STEPS if blocks else STEPS,
            learning_rate=RATE,
            batch_size=BATCH,
            generator=generator,
        )
    else:
        optimiser = torch.optim.SGD(model.parameters(), lr=SGD_RATE)
        fit(
            model,
            Classification(data, data, len(data)),
            optimiser=optimiser,
            steps=SGD_STEPS,
            generator=generator,
        )
    return word_logits(model.eval(), inputs, words, count=S) - before


def vit_rung(generator: Generator) -> Iterator[Measurement]:
    """Measures the vision transformer of the recipes, which reads the visual words of whole images and whose
    query is the class token.
    """
    sequences, prediction = whole_images(generator.initial_seed())
    recipe, data = RECIPES["ViT"], sequences.data
    assert data is not None
    assert data.ids is not None
    words, inputs, S = data.ids, data.tokens.float(), data.tokens.shape[2]

    def change() -> Tensor:
        model = build(lambda: recipe.build(data), generator)
        before = word_logits(model, inputs, words, count=S, query=0)
        settings = {"learning_rate": recipe.learning_rate, "batch_size": recipe.batch_size}
        train_classifier(model, data, data, steps=BLOCK_STEPS, generator=generator, **settings)
        return word_logits(model.eval(), inputs, words, count=S, query=0) - before

    yield from agreement_rows(prediction, change, f"class token as query, {BLOCK_STEPS} steps of AdamW")

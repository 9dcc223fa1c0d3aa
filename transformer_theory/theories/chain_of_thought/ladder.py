r"""The ladder: what the chain brings, as length, precision, hard-max and written weights are given up, and
with the depth.

The quantity is the accuracy of the answer with the chain minus that without, on the same questions. The
theory predicts that the chain answers all of them, so the prediction is 1 minus the accuracy without.

* *Written weights*: longest increasing subsequence. "Without" is the most frequent answer; no weights without
  a chain are known. A second row has the share of questions without any wrong symbol.
* *Learnt*: two decoders of equal depth learn expressions modulo 5, with and without the chain, at equal
  numbers of steps.

**The null** exchanges, for each question at random, the outcomes with and without the chain (McNemar's test
by permutation). It is chance over questions, for these two networks: how much two trainings differ it does
not tell. Source: :cite:t:`feng2023towards`.
"""

import math
from collections.abc import Iterator
from functools import lru_cache

import torch
from jaxtyping import Bool
from torch import Generator, Tensor

from ...core.ladder import Ladder
from ...core.measurement import Measurement, Null
from ...core.sources import Source
from ...core.statistics import LADDER_DRAWS
from .arithmetic import Arithmetic
from .dynamic import LIS
from .learning import Mode, Recipe, Trained, correct, train
from .tasks import Split, split
from .written import WrittenDecoder, whole

GAP, WITH, WITHOUT, MAJORITY, WHOLE = (
    "accuracy with the chain minus without",
    "accuracy with the chain",
    "accuracy without the chain",
    "share of the most frequent answer",
    "share of questions without a wrong symbol",
)
NULL_KIND = "outcomes exchanged at random for each question: chance over questions, for these two networks"
LADDER = Ladder(
    theory="chain_of_thought",
    quantity=GAP,
    unit="share",
    bounds=(-1.0, 1.0),
    side=">=",
    null=NULL_KIND,
    source=Source("feng2023towards", status="second-hand"),
)
QUESTIONS, TEST = 60, 300  # of a written decoder, and of a trained one
STEPS = {2: 350, 3: 700}  # by number of operations
TRAIN = {2: 1800, 3: 20_000}


def exchanged(
    with_chain: Bool[Tensor, " n"],
    without: Bool[Tensor, " n"],
    generator: Generator,
    *,
    draws: int = LADDER_DRAWS,
) -> Null:
    """Draws the null: the mean difference with random signs."""
    difference = with_chain.double() - without.double()
    signs = 2.0 * torch.randint(2, (draws, len(difference)), generator=generator, dtype=torch.float64) - 1
    return Null(NULL_KIND, tuple((signs * difference).mean(1).tolist()))


def gap_rows(
    with_chain: Bool[Tensor, " n"],
    without: Bool[Tensor, " n"],
    common: Bool[Tensor, " n"],
    generator: Generator,
) -> Iterator[Measurement]:
    """Yields the gap with its null, both accuracies, and that of the most frequent answer, from the outcome
    of each question.
    """
    n, accuracies = len(with_chain), [float(each.double().mean()) for each in (with_chain, without, common)]
    null = exchanged(with_chain, without, generator)
    yield LADDER.row(accuracies[0] - accuracies[1], predicted=1 - accuracies[1], nulls=(null,), n=n)
    for quantity, value in zip((WITH, WITHOUT, MAJORITY), accuracies):
        yield LADDER.other_row(quantity, value, unit="share", n=n)


@LADDER.rung("n = 30, hard-max", column="exact construction", covered=True, n=30)
@LADDER.rung("n = 100", relaxes="100 numbers instead of 30", column="exact construction")
@LADDER.rung("float32", relaxes="float32 instead of float64", column="floating point", dtype=torch.float32)
@LADDER.rung("bfloat16", relaxes="bfloat16 instead of float32", column="floating point", dtype=torch.bfloat16)
@LADDER.rung(
    "softmax, b = 5", relaxes="hard-max attention", column="softmax", dtype=torch.bfloat16, scale=5.0
)
@LADDER.rung(
    "softmax, b = 2", relaxes="a scale of 2 instead of 5", column="softmax", dtype=torch.bfloat16, scale=2.0
)
def written(
    generator: Generator, *, n: int = 100, dtype: torch.dtype = torch.float64, scale: float = math.inf
) -> Iterator[Measurement]:
    """Measures the written decoder on random questions."""
    task = LIS(n, n)
    samples = tuple(task.sample(generator) for _ in range(2 * QUESTIONS))
    parts, model = (
        Split(task, samples[:QUESTIONS], samples[QUESTIONS:]),
        WrittenDecoder(task, scale=scale, dtype=dtype),
    )
    every = whole(model, task, parts.test)
    right = every.clone()  # a row without a wrong symbol has the right answer; the other rows are generated
    if not every.all():
        right[~every] = correct(
            model, task, [sample for sample, each in zip(parts.test, every) if not each], "chain"
        )
    yield from gap_rows(right, parts.guessed, parts.guessed, generator)
    yield LADDER.other_row(WHOLE, float(every.double().mean()), unit="share", n=QUESTIONS)


@lru_cache(maxsize=1)
def parts_of(seed: int, operations: int) -> Split:
    """Returns the questions of a seed."""
    return split(
        Arithmetic(operations, 5),
        train=TRAIN[operations],
        test=TEST,
        generator=torch.Generator().manual_seed(seed),
    )


@lru_cache(maxsize=2)
def network(seed: int, operations: int, depth: int, mode: Mode) -> Trained:
    """Trains a decoder; kept for the next rung, which measures it in another precision."""
    draws, recipe = torch.Generator().manual_seed(seed), Recipe(depth=depth)
    return train(parts_of(seed, operations), mode, steps=STEPS[operations], recipe=recipe, generator=draws)


@LADDER.rung(
    "learnt, depth 1",
    relaxes="weights written by hand, for another task (2 operations modulo 5)",
    column="learnt",
    depth=1,
)
@LADDER.rung("learnt, depth 2", relaxes="depth 2 instead of 1", column="learnt", depth=2)
@LADDER.rung("learnt, depth 3", relaxes="depth 3 instead of 2", column="learnt", depth=3)
@LADDER.rung("learnt, depth 5", relaxes="depth 5 instead of 3", column="learnt", depth=5)
@LADDER.rung(
    "depth 5, bfloat16",
    relaxes="bfloat16 instead of float32, in generation",
    column="learnt",
    depth=5,
    dtype=torch.bfloat16,
)
@LADDER.rung(
    "3 operations, depth 2",
    relaxes="3 operations instead of 2; the depth is 2 again, in float32",
    column="learnt",
    depth=2,
    operations=3,
)
def learnt(
    generator: Generator, *, depth: int, operations: int = 2, dtype: torch.dtype | None = None
) -> Iterator[Measurement]:
    """Trains two decoders, or takes them from the rung before, and measures them on new questions."""
    seed = generator.initial_seed()
    parts = parts_of(seed, operations)
    modes: tuple[Mode, Mode] = ("chain", "direct")
    outcomes = [
        correct(network(seed, operations, depth, mode).model, parts.task, parts.test, mode, dtype=dtype)
        for mode in modes
    ]
    yield from gap_rows(outcomes[0], outcomes[1], parts.guessed, generator)

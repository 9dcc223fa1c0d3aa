"""Claims about trained decoders: the gap at equal compute, and that the network reads its chain.

Source: :cite:t:`feng2023towards`.
"""

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Generator

from ....core.claims import NEAR, Measured, but, claim
from ....core.sources import Source
from ..arithmetic import Arithmetic
from ..dynamic import LIS
from ..learning import Mode, Recipe, Trained, equal_compute_steps, given, train
from ..tasks import ChainTask, Split, encode, split
from .drawing import OWN

TRAIN = 20_000
SETTING = (
    "a decoder of two layers, width 64, 4 heads, pre-norm; AdamW, rate 0.003, batches of 64",
    "expressions with 3 operations modulo 5: 20,000 for training, 500 others for the test; free-running "
    "generation",
)


class Setting(NamedTuple):
    """A task and its training."""

    task: ChainTask
    steps: int
    test: int
    recipe: Recipe


EXPRESSIONS = Setting(Arithmetic(3, 5), 1000, 500, Recipe())


@lru_cache(maxsize=2)
def parts_of(setting: Setting, seed: int) -> Split:
    """Returns the questions of a seed."""
    return split(setting.task, train=TRAIN, test=setting.test, generator=torch.Generator().manual_seed(seed))


@lru_cache(maxsize=4)
def run(setting: Setting, seed: int, mode: Mode) -> Trained:
    """Trains a network, without chain until it has read as many symbols as with it; kept, since several
    claims use the same.
    """
    parts, generator = parts_of(setting, seed), torch.Generator().manual_seed(seed)
    steps = (
        equal_compute_steps(parts, mode, setting.steps, setting.recipe) if mode == "direct" else setting.steps
    )
    measured = (setting.steps, steps)
    return train(
        parts,
        mode,
        steps=steps,
        generator=generator,
        recipe=setting.recipe,
        measured=measured,
        questions=setting.test,
    )


def _gap(generator: Generator, *, setting: Setting, mode: Mode) -> Measured:
    """Measures the accuracy with a chain, or with filler, minus the better of those without at equal steps
    and at equal compute.
    """
    seed = generator.initial_seed()
    with_symbols, direct = run(setting, seed, mode), run(setting, seed, "direct")
    detail = {
        mode: with_symbols.accuracies[setting.steps],
        "direct, equal steps": direct.accuracies[setting.steps],
        "direct, equal compute": direct.accuracies[max(direct.accuracies)],
        "majority": float(parts_of(setting, seed).guessed.double().mean()),
        "seconds of the pair": with_symbols.seconds + direct.seconds,
    }
    return Measured(detail[mode] - max(direct.accuracies.values()), detail)


@claim(
    "chain_of_thought/gap",
    measures="accuracy with the chain after 1,000 steps minus accuracy without, at equal steps or equal "
    "compute, the better",
    at_least=0.5,
    margin=NEAR,
    source=Source("feng2023towards", "Theorems 3.1 and 3.3", "second-hand"),
    assumptions=SETTING,
    control=but(
        "empty symbols in place of the chain: equal steps, equal length, no intermediate results",
        mode="filler",
    ),
    cost="training",
)
def gap(generator: Generator, *, mode: Mode = "chain") -> Measured:
    r"""If $\mathrm{TC}^0 \ne \mathrm{NC}^1$, no decoder of bounded depth, polynomial width and logarithmic
    precision answers all expressions modulo a prime p directly, but one of constant depth and width, with
    parameters polynomial in the length, does with a chain. Exhibited here: a small decoder learns the task
    with the chain and not without, at equal steps and at equal compute. A small task cannot show the theorem.
    The threshold is ours.
    """
    return _gap(generator, setting=EXPRESSIONS, mode=mode)


SEQUENCES = Setting(LIS(30, 12), 2000, 300, Recipe(dim=32))


@claim(
    "chain_of_thought/gap-subsequences",
    measures="accuracy with the chain after 2,000 steps minus accuracy without, at equal steps or equal "
    "compute, the better",
    at_least=0.1,
    margin=NEAR,
    source=Source("feng2023towards", "Theorem 4.7", "second-hand"),
    assumptions=(
        "a decoder of two layers, width 32, 4 heads, pre-norm; AdamW, rate 0.003, batches of 64",
        "30 numbers below 12: 20,000 sequences for training, 300 others for the test; free-running "
        "generation",
    ),
    control=but(
        "empty symbols in place of the chain: equal steps, equal length, no intermediate results",
        mode="filler",
    ),
    cost="training",
)
def gap_subsequences(generator: Generator, *, mode: Mode = "chain") -> Measured:
    """A decoder of constant depth and width answers the length of the longest increasing subsequence with a
    chain; no theorem says that none does without. Exhibited here for $n = 30$ numbers: a small decoder
    answers more questions with the chain than without, at equal steps and at equal compute. The threshold is
    ours.
    """
    return _gap(generator, setting=SEQUENCES, mode=mode)


@claim(
    "chain_of_thought/reads-its-chain",
    measures="accuracy of the answer if the right chain is given",
    at_least=0.95,
    margin=NEAR,
    source=OWN,
    assumptions=SETTING,
    control=but("the chain of another question is given", shift=1),
    cost="training",
)
def reads_its_chain(generator: Generator, *, shift: int = 0) -> Measured:
    """The trained decoder takes the answer $a$ from the chain before it. The threshold is ours."""
    seed = generator.initial_seed()
    samples, task = list(parts_of(EXPRESSIONS, seed).test[:200]), EXPRESSIONS.task
    chains = [sample.chain for sample in samples[shift:] + samples[:shift]]
    found = given(run(EXPRESSIONS, seed, "chain").model, task, samples, chains)
    expected = [tuple(encode(task, sample.answer)) for sample in samples]
    value = sum(a == b for a, b in zip(found, expected)) / len(samples)
    of_chain = sum(a == tuple(encode(task, chain[-1:])) for a, chain in zip(found, chains)) / len(samples)
    return Measured(value, {"answer at the end of the given chain": of_chain})


CLAIMS = (gap, gap_subsequences, reads_its_chain)

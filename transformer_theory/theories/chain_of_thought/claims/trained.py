"""Claims about trained decoders: the gap at equal compute, and that the network reads its chain.

Source: :cite:t:`feng2023towards`.
"""

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Generator

from ....core.claims import Claim, Evidence
from ..arithmetic import Arithmetic
from ..learning import Mode, Trained, correct, equal_compute_steps, given, train
from ..tasks import Split, encode, majority, split
from .drawing import OWN, THEOREM

TASK, TRAIN, TEST, STEPS = Arithmetic(3, 5), 20_000, 500, 1000


class Run(NamedTuple):
    """A trained network with its accuracy on the test questions."""

    network: Trained
    accuracy: float


@lru_cache(maxsize=2)
def parts_of(seed: int) -> Split:
    """Returns the questions of a seed."""
    return split(TASK, train=TRAIN, test=TEST, generator=torch.Generator().manual_seed(seed))


@lru_cache(maxsize=4)
def run(seed: int, mode: Mode, steps: int, measured: tuple[int, ...] = ()) -> Run:
    """Trains a network; kept, since several claims use the same."""
    parts = parts_of(seed)
    network = train(parts, mode, steps=steps, generator=torch.Generator().manual_seed(seed), measured=measured, questions=TEST)
    return Run(network, float(correct(network.model, TASK, parts.test, mode).double().mean()))


def _gap(generator: Generator, *, mode: Mode) -> Evidence:
    """Measures the accuracy with a chain, or with filler, minus the accuracy without at equal compute."""
    seed = generator.initial_seed()
    parts = parts_of(seed)
    with_symbols = run(seed, mode, STEPS)
    more = equal_compute_steps(with_symbols.network, STEPS, run_size(seed))
    direct = run(seed, "direct", more, (STEPS,))
    common = majority(parts.train)
    detail = {
        mode: with_symbols.accuracy,
        "direct, equal steps": direct.network.accuracies[STEPS],
        "direct, equal compute": direct.accuracy,
        "majority": sum(sample.answer == common for sample in parts.test) / len(parts.test),
        "seconds of the pair": with_symbols.network.seconds + direct.network.seconds,
    }
    best = max(direct.accuracy, direct.network.accuracies[STEPS])
    return Evidence(with_symbols.accuracy - best, 0.5, ">=", detail=detail)


@lru_cache(maxsize=4)
def run_size(seed: int) -> int:
    """Returns the symbols that a network without chain reads in one step."""
    return train(parts_of(seed), "direct", steps=1, generator=torch.Generator().manual_seed(seed)).symbols_per_step


def _reads_the_chain(generator: Generator, *, shift: int) -> Evidence:
    """Measures the accuracy if the chain is written for the network, its own or that of the question ``shift`` places further."""
    seed = generator.initial_seed()
    samples = list(parts_of(seed).test[:200])
    chains = [sample.chain for sample in samples[shift:] + samples[:shift]]
    found = given(run(seed, "chain", STEPS).network.model, TASK, samples, chains)
    expected = [tuple(encode(TASK, sample.answer)) for sample in samples]
    value = sum(a == b for a, b in zip(found, expected)) / len(samples)
    of_chain = sum(a == tuple(encode(TASK, chain[-1:])) for a, chain in zip(found, chains)) / len(samples)
    return Evidence(value, 0.95, ">=", detail={"answer at the end of the given chain": of_chain})


SETTING = (
    "a decoder of two layers, width 64, 4 heads, pre-norm; AdamW, rate 0.003, batches of 64",
    "expressions with 3 operations modulo 5: 20,000 for training, 500 others for the test; free-running generation",
)
TRAINED = (
    Claim(
        id="chain_of_thought/gap",
        statement=r"If $\mathrm{TC}^0 \ne \mathrm{NC}^1$, no decoder of bounded depth and polynomial size answers all expressions modulo p "
        "directly, but one of constant size does with a chain. Exhibited: a small decoder learns the task with the chain and not without, "
        "at equal steps and at equal compute. A small task cannot show the theorem. The threshold is ours.",
        measures="accuracy with the chain after 1,000 steps minus accuracy without, at equal steps or equal compute, the better",
        source=THEOREM,
        assumptions=SETTING,
        check=lambda generator: _gap(generator, mode="chain"),
        control=lambda generator: _gap(generator, mode="filler"),
        control_description="empty symbols in place of the chain: equal steps, equal length, no intermediate results",
        cost="training",
    ),
    Claim(
        id="chain_of_thought/reads-its-chain",
        statement=r"The trained decoder takes the answer $a$ from the chain before it. The threshold is ours.",
        measures="accuracy of the answer if the right chain is given",
        source=OWN,
        assumptions=SETTING,
        check=lambda generator: _reads_the_chain(generator, shift=0),
        control=lambda generator: _reads_the_chain(generator, shift=1),
        control_description="the chain of another question is given",
        cost="training",
    ),
)

r"""Small networks that learn from their context: repeated patterns, and Markov chains.

*Repeated patterns.* A pattern of P different ids is repeated to the length T; P is drawn anew for each batch.
With a fixed P one layer would learn the distance instead of the content. The loss counts the positions whose
next id can be known, from the second pattern on. *Markov chains* are those of :mod:`.chains`; the loss counts
all positions.
Both are trained by Adam. Sources: :cite:t:`olsson2022incontext`, :cite:t:`edelman2024evolution`.
"""

import math
from collections.abc import Iterator
from functools import lru_cache, partial
from itertools import count
from typing import Any

import torch
from jaxtyping import Int
from torch import Generator, Tensor, nn
from torch.nn import functional

from ...models.embedding import build
from ...probes.respond import repeated_blocks
from ...training.fitting import State, at_steps, fit
from ...training.tasks import StreamTask
from .chains import divergence, expected_loss, sample_chains, strategies
from .network import Network
from .scores import PREFIX, PREVIOUS, SCORES, draw_blocks, sequence_scores

VOCABULARY, LENGTH, PERIODS = 32, 32, (6, 16)  # ids, tokens, and smallest and largest period of the patterns
RATE, BATCH = 4e-3, 32
STATES, CHAIN, CHAIN_DIM, CHAIN_RATE, CHAIN_BATCH, CHAIN_STEPS = 3, 64, 32, 1e-2, 64, 600
WARM_UP = 100
ACCURACY, LOSS = "share of the second block that is predicted", "loss of the second block"


def repeated_patterns(generator: Generator) -> Iterator[tuple[Int[Tensor, "batch n"], int]]:
    """Yields batches of repeated patterns ``[batch, length]`` with their period."""
    while True:
        period = int(torch.randint(PERIODS[0], PERIODS[1] + 1, (), generator=generator))
        ids = repeated_blocks(
            vocabulary=VOCABULARY, length=period, n=BATCH, generator=generator, repeats=-(-LENGTH // period)
        )
        yield ids[:, :LENGTH], period


def repeated_loss(model: nn.Module, batch: tuple[Int[Tensor, "batch n"], int]) -> Tensor:
    """Returns the mean cross-entropy of the ids after the first pattern's end, nats, ``[]``."""
    ids, period = batch
    return functional.cross_entropy(model(ids)[:, period:-1].flatten(0, 1), ids[:, period + 1 :].flatten())


def copy_accuracy(model: nn.Module, ids: Int[Tensor, "n twice"]) -> float:
    """Returns the share of ids of the second block, but its first, that the model predicts in blocks that
    occur twice.
    """
    half = ids.shape[1] // 2
    with torch.no_grad():
        predicted = model(ids)[:, half:-1].argmax(-1)
    return float((predicted == ids[:, half + 1 :]).double().mean())


def warm_cosine(state: State) -> float:
    """Returns the factor of the learning rate, which rises over :data:`WARM_UP` steps and then falls to 0
    along a cosine.
    """
    return min(1.0, (state.step + 1) / WARM_UP) * 0.5 * (1 + math.cos(math.pi * state.done))


def constant_then_fall(state: State) -> float:
    """Returns the factor of the learning rate: 1, and in the last fifth of the training a fall to 0 along a
    line.
    """
    return min(1.0, 5 * (1 - state.done))


def train_induction(
    layers: int, *, steps: int, generator: Generator, norm: bool = False, mlp: bool = False, **measuring: Any
) -> Network:
    """Trains a network of width 64 with two heads per layer on repeated patterns.

    Args:
        layers, norm, mlp: see :class:`~transformer_theory.theories.induction.network.Network`.
        steps: number of batches.
        generator: draws weights and patterns.
        measuring: ``measure(step, model)``, which is called at the steps ``measured`` in evaluation mode and
            without gradients.
    """
    sizes = {"vocabulary": VOCABULARY, "length": LENGTH, "layers": layers, "norm": norm, "mlp": mlp}
    options = {"steps": steps, "generator": generator, "schedule": constant_then_fall, "clip": 1.0}
    return _train(sizes, StreamTask(repeated_loss, repeated_patterns), RATE, **options, **measuring)


def chain_loss(model: nn.Module, ids: Int[Tensor, "n length"]) -> Tensor:
    """Returns the mean cross-entropy of the next states, nats, ``[]``."""
    return functional.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def train_chains(layers: int, *, steps: int, generator: Generator, **measuring: Any) -> Network:
    """Trains an attention-only network of width 32 with one head per layer on Markov chains; see
    :func:`train_induction`.
    """
    draw = partial(sample_chains, CHAIN_BATCH, states=STATES, length=CHAIN)
    task = StreamTask(chain_loss, lambda draws: (draw(generator=draws)[0] for _ in count()))
    sizes = {"vocabulary": STATES, "length": CHAIN, "layers": layers, "heads": 1, "dim": CHAIN_DIM}
    return _train(
        sizes, task, CHAIN_RATE, steps=steps, generator=generator, schedule=warm_cosine, **measuring
    )


def _train(
    sizes: dict[str, Any],
    task: StreamTask,
    rate: float,
    *,
    measured: Any = (),
    measure: Any = None,
    **options: Any,
) -> Network:
    """Trains a network of the given sizes by Adam; ``options`` are those of :func:`.fit`."""
    network = build(lambda: Network(**sizes), options["generator"])
    assert isinstance(network, Network)
    callbacks = [at_steps(measured, measure, limit=options["steps"])]
    fit(
        network,
        task,
        optimiser=torch.optim.Adam(network.parameters(), lr=rate),
        callbacks=callbacks,
        **options,
    )
    return network


def formation(
    layers: int, generator: Generator, *, steps: int, every: int, blocks: int = 128
) -> dict[int, dict[str, float]]:
    """Trains a network with LayerNorm on repeated patterns and measures it on blocks of 16 ids that occur
    twice.

    Args:
        layers, steps, generator: see :func:`train_induction`.
        every: steps between measurements.
        blocks: number of blocks.
    Returns:
        By step: :data:`ACCURACY`, :data:`LOSS` (nats), and the largest prefix matching and attention to the
        previous token of any head.
    """
    ids, _ = draw_blocks(blocks, length=LENGTH // 2, vocabulary=VOCABULARY, generator=generator)
    curves: dict[int, dict[str, float]] = {}

    def measure(step: int, model: nn.Module) -> None:
        best = dict(zip(SCORES, sequence_scores(model, ids).mean(1).amax(-1).tolist()))
        loss = float(repeated_loss(model, (ids, LENGTH // 2)))
        curves[step] = {
            ACCURACY: copy_accuracy(model, ids),
            LOSS: loss,
            PREFIX: best[PREFIX],
            PREVIOUS: best[PREVIOUS],
        }

    measured = {*range(0, steps + 1, every), steps}
    train_induction(layers, steps=steps, generator=generator, norm=True, measured=measured, measure=measure)
    return curves


@lru_cache(maxsize=64)
def chain_curves(layers: int, seed: int, steps: int = CHAIN_STEPS, test: int = 300) -> dict[str, Any]:
    """Trains on chains and measures the network on new ones.

    Args:
        layers, steps: see :func:`train_chains`.
        seed: seed of weights and chains.
        test: number of chains on which the network is measured.
    Returns:
        "steps"; "loss", the expected loss of the network at each of them; "strategies", the loss of each
        strategy on the same chains; and "divergence", by strategy, that of the network at each step. Nats.
    """
    generator = torch.Generator().manual_seed(seed)
    ids, P = sample_chains(test, states=STATES, length=CHAIN, generator=generator)
    rules = strategies(ids, states=STATES)
    every = sorted({*range(0, min(100, steps), 4), *range(0, steps + 1, 20), steps})
    curves: dict[str, Any] = {"steps": every, "loss": [], "divergence": {name: [] for name in rules}}

    def measure(step: int, model: nn.Module) -> None:
        prediction = model(ids).double().softmax(-1)
        curves["loss"].append(float(expected_loss(prediction, ids, P).mean()))
        for name, rule in rules.items():
            curves["divergence"][name].append(float(divergence(rule, prediction)))

    train_chains(layers, steps=steps, generator=generator, measured=every, measure=measure)
    return {
        **curves,
        "strategies": {name: float(expected_loss(rule, ids, P).mean()) for name, rule in rules.items()},
    }


def passed(divergences: dict[str, list[float]]) -> list[str]:
    """Returns the strategies in the order in which they are first nearest to the network, by Kullback-Leibler
    divergence.

    Near the crossing of two divergences the nearest strategy may change several times; only the first time
    counts.
    """
    steps = range(len(next(iter(divergences.values()))))
    return list(dict.fromkeys(min(divergences, key=lambda name, i=i: divergences[name][i]) for i in steps))

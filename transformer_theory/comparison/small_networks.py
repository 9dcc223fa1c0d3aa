"""Small networks, trained on the tokens and measured with every theory's metrics, and their chance levels:
copies of each of them with permuted weights, networks trained on permuted labels, and untrained ones.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from ..core import listeners
from ..core.measurement import Measurement
from ..core.statistics import (
    EQUAL_SCALE,
    EQUAL_STEPS,
    PERMUTED_LABELS,
    RANGE_DRAWS,
    UNTRAINED,
    permutations,
)
from ..core.table import Arrays
from ..core.theory import Theory
from ..data import Images, TokenData
from ..models import build
from ..models.copies import Copies
from ..probes.features import features_with_words
from ..probes.measure import Networks, headline_mean, mean_over_heads, metrics_of, run_synthetic_tests
from ..training.monitor import Monitor, monitored_training
from ..training.objectives import LOSS
from ..training.recipes import Recipe
from ..training.supervised import train_classifier
from ..training.tasks import Classification
from .on_data import View, on_view

CODEBOOK_SIZE = 32  # number of visual words in the codebook of a network's features
FEATURE_SEQUENCES = 512  # validation sequences whose features the theories receive
RESPONSE_SEQUENCES = 128  # validation sequences from which the theories make synthetic inputs
# seeds of the untrained networks begin here, so that no trained network starts from one of them
UNTRAINED_SEED = 10_000
COPIES_DRAWN = 39  # of each trained network: the smallest p-value of a family is 1/40
PERMUTED_DRAWN = 6  # networks trained on permuted labels, a range: each costs as much as a trained network
PERMUTED_SEED = 20_000  # their seeds begin here
EQUAL_LOSS = 1.1  # largest loss of permuted labels over that of the labels, at which both are fitted equally


@dataclass(frozen=True)
class Training:
    """A small network of one seed.

    Attributes:
        rows: measurements over training, without the null distribution of untrained networks.
        others: responses to synthetic inputs, and the arrays of the first seed.
        on_features: the theories' minimal models on the network's features.
        copies: rows of copies of the trained network with permuted weights.
        loss: its cross-entropy on the training part.
    """

    rows: list[Measurement]
    others: View
    on_features: View
    copies: list[list[Measurement]]
    loss: float


@dataclass(frozen=True)
class Permuted:
    """A network trained on permuted labels.

    Attributes:
        rows: its measurements at the last step.
        loss: its cross-entropy on the permuted labels of the training part.
    """

    rows: list[Measurement]
    loss: float


def small_network(
    recipe: Recipe,
    *,
    split: tuple[TokenData, TokenData],
    theories: tuple[Theory, ...],
    steps: int,
    seed: int,
    device: str,
    first: bool,
) -> Training:
    """Trains and measures a small network of one seed, and runs the theories on its features. ``first``: with
    arrays and noise.
    """
    train, validation = split
    trained = monitored_training(
        recipe,
        train,
        validation,
        metrics=partial(metrics_of, theories),
        steps=steps,
        seed=seed,
        featured=FEATURE_SEQUENCES,
        device=device,
        progress=lambda text: listeners.progress(f"{text} (seed {seed})"),
    )
    generator = torch.Generator().manual_seed(seed)
    tokens = features_with_words(
        trained.model, validation[:FEATURE_SEQUENCES], words=CODEBOOK_SIZE, generator=generator
    )
    others: View = [
        replace(row, seed=seed)
        for row in synthetic_tests(theories, trained.model, validation.tokens, recipe.name, seed)
    ]
    if first:
        others += [trained.arrays, projections(recipe.name, tokens, trained.queries)]
    rows = [replace(row, seed=seed) for row in trained.rows]
    return Training(
        rows,
        others,
        on_view(theories, tokens, recipe.name, seed=seed, arrays=first, noise=first),
        copies_of(trained.model, validation, theories, steps, recipe.name),
        _loss(trained.model, train),
    )


def copies_of(
    network: nn.Module,
    samples: TokenData | Images,
    theories: tuple[Theory, ...],
    step: int,
    name: str,
    number: int | None = None,
) -> list[list[Measurement]]:
    """Measures copies of a trained network whose entries are permuted within each matrix
    (:class:`.Copies`). All seeds of a recipe have copies of the same numbers.

    Args:
        network: the network.
        samples: samples on which the network itself was measured.
        theories: theories to compare.
        step: column ``step`` of the rows.
        name: column ``model`` of the rows.
        number: number of copies. None: :data:`COPIES_DRAWN`.
    """
    copies, measured = Copies(network), []
    for index in range(COPIES_DRAWN if number is None else number):
        listeners.progress(f"{name}: copy {index + 1} of {number or COPIES_DRAWN} with permuted weights")
        # new metrics, so that no copy is compared with an earlier one
        monitor = Monitor(samples, partial(metrics_of, theories), name=name, untrained=None)
        measured.append(monitor.measure(copies.draw(EQUAL_SCALE, index), step, draws=0))
    return measured


def permuted_network(
    recipe: Recipe,
    *,
    split: tuple[TokenData, TokenData],
    theories: tuple[Theory, ...],
    steps: int,
    number: int,
    device: str,
) -> Permuted:
    """Trains a small network on labels in random order and measures it; number i is the same in all
    comparisons of the data.
    """
    train, validation = split
    assert train.labels is not None
    listeners.progress(f"{recipe.name}: training on permuted labels {number + 1} of {PERMUTED_DRAWN}")
    order = permutations(len(train.labels), number + 1)[number]
    shuffled = replace(train, labels=train.labels[order])
    generator = torch.Generator().manual_seed(PERMUTED_SEED + number)
    trained = train_classifier(
        build(lambda: recipe.build(train), generator),
        shuffled,
        validation[:1],
        steps=steps,
        learning_rate=recipe.learning_rate,
        batch_size=recipe.batch_size,
        generator=generator,
        device=device,
    )
    monitor = Monitor(validation, partial(metrics_of, theories), name=recipe.name, untrained=None)
    return Permuted(monitor.measure(trained.model, steps, draws=0), _loss(trained.model, shuffled))


def _loss(network: nn.Module, data: TokenData) -> float:
    """Returns the cross-entropy of a network on the labels of data."""
    (row,) = (row for row in Classification(data, data).evaluate(network) if row.quantity == LOSS)
    assert row.value is not None
    return row.value


def other_networks(
    training: Training, permuted: Sequence[Permuted], untrained: Sequence[Sequence[Measurement]]
) -> Networks:
    """Returns the networks that a trained network is compared with, by kind. Those trained on permuted labels
    test a statement about the task if each fits its labels as well as the trained network.
    """
    fitted = all(each.loss <= EQUAL_LOSS * training.loss for each in permuted)
    kind = PERMUTED_LABELS if fitted else EQUAL_STEPS
    return {EQUAL_SCALE: training.copies, kind: [each.rows for each in permuted], UNTRAINED: untrained}


def untrained_networks(
    recipe: Recipe, *, split: tuple[TokenData, TokenData], theories: tuple[Theory, ...], device: str
) -> list[list[Measurement]]:
    """Measures :data:`~..core.statistics.RANGE_DRAWS` networks of a recipe with random weights; returns the
    rows of each.

    They are shared by all theories and all seeds.
    """
    train, validation = split
    measured = []
    for number in range(RANGE_DRAWS):
        listeners.progress(f"{recipe.name}: untrained network {number + 1} of {RANGE_DRAWS}")
        monitor = Monitor(validation, partial(metrics_of, theories), name=recipe.name, untrained=None)
        network = build(lambda: recipe.build(train), torch.Generator().manual_seed(UNTRAINED_SEED + number))
        measured.append(monitor.measure(network.to(device).eval(), 0, draws=0))
    return measured


def synthetic_tests(
    theories: Iterable[Theory], model: nn.Module, inputs: Tensor, name: str, seed: int
) -> Iterator[Measurement]:
    """Runs the theories' tests on synthetic inputs, made from inputs [n, ...] that the network accepts.

    The networks take tokens or images, so tests that read ids are left out.
    """
    inputs = inputs[:RESPONSE_SEQUENCES]
    for theory in theories:
        if theory.in_networks is not None:
            tests = [test for test in theory.in_networks.responses if test.reads != "ids"]
            limits, generator = {"sequences": len(inputs)}, torch.Generator().manual_seed(seed)
            yield from run_synthetic_tests(
                model, theory.name, tests, inputs, limits=limits, generator=generator, name=name
            )


def headlines(
    theories: Iterable[Theory],
    model: str,
    rows: Sequence[Measurement],
    networks: Networks,
    answers: Sequence[Measurement] = (),
    beside: Sequence[Measurement] = (),
) -> Iterator[Measurement]:
    """Yields the headline of each theory at the last step, averaged over layers and heads, with its nulls
    (:func:`.headline_mean`): copies of equal scale first, then the null of the metric or of the theory's
    tests, then other networks.

    Args:
        theories: theories with or without :attr:`.Theory.in_networks`.
        model: name of the network.
        rows: measurements of the network of one seed.
        networks, beside: see :func:`.headline_mean`.
        answers: rows of :func:`synthetic_tests` in the trained network.
    """
    for theory in theories:
        if (in_networks := theory.in_networks) is None or not in_networks.metrics():
            continue  # a theory with responses alone measures nothing in these networks, which take no ids
        mean = headline_mean(
            theory.name, in_networks, rows, networks=networks, beside=beside, answers=answers
        )
        yield mean or Measurement(
            theory.name,
            "in network",
            in_networks.headline,
            None,
            side=in_networks.side,
            source=theory.sources[0],
            reason=f"measured in no layer of {model}",
            model=model,
            seed=rows[0].seed if rows else None,
        )


def by_layer(theories: Iterable[Theory], rows: Sequence[Measurement]) -> Iterator[Measurement]:
    """Yields the headline of each theory in each layer, averaged over heads, without step."""
    for theory in theories:
        if theory.in_networks is not None:
            headline = [
                row
                for row in rows
                if row.theory == theory.name and row.quantity == theory.in_networks.headline
            ]
            yield from (replace(row, step=None) for row in mean_over_heads(headline))


def projections(name: str, tokens: TokenData, before: Sequence[Tensor] = ()) -> Arrays:
    """Projects query tokens (in these networks the class tokens) onto the plane of their first two principal
    components, [n, 2].

    Args:
        name: name of the network.
        tokens: features of the trained network.
        before: query tokens at the steps of the attention maps, each [n, dim]. They are projected onto the
            plane of the trained network, so that the points move over training and the axes do not:
            ``network/<name>/features over training``, [steps, n, 2].
    """
    assert tokens.query is not None
    mean = tokens.query.mean(0)
    _, _, directions = torch.linalg.svd(tokens.query - mean, full_matrices=False)
    arrays = Arrays({f"network/{name}/features": ((tokens.query - mean) @ directions[:2].T).numpy()})
    if before:
        projected = (torch.stack(list(before)) - mean) @ directions[:2].T
        arrays[f"network/{name}/features over training"] = projected.to(torch.float32).numpy()
    return arrays

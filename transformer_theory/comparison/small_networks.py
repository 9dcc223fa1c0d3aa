"""Small networks, trained on the tokens and measured with every theory's metrics, and the networks they are
compared with: copies of equal scale, networks trained on permuted labels, and untrained networks.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from ..core import listeners
from ..core.format import counted, number
from ..core.measurement import Measurement
from ..core.statistics import (
    EQUAL_SCALE,
    PERMUTED_EQUAL_STEPS,
    PERMUTED_LABELS,
    RANGE_DRAWS,
    permutations,
)
from ..core.table import Arrays
from ..core.theory import Theory
from ..data import TokenData
from ..models import build
from ..models.copies import Copies
from ..probes.features import features_with_words
from ..probes.measure import (
    Networks,
    headline_mean,
    headline_metrics,
    mean_over_heads,
    metrics_of,
    run_synthetic_tests,
)
from ..training.monitor import Monitor, monitored_training
from ..training.objectives import LOSS
from ..training.recipes import Recipe
from ..training.tasks import Classification
from .interventions import interventions_in
from .on_data import View, on_view

CODEBOOK_SIZE = 32  # number of visual words in the codebook of a network's features
FEATURE_SEQUENCES = 512  # validation sequences whose features the theories receive
RESPONSE_SEQUENCES = 128  # validation sequences from which the theories make synthetic inputs
# seeds of the untrained networks begin here, so that no trained network starts from one of them
UNTRAINED_SEED = 10_000
PERMUTED_SEED = 20_000  # the same for networks trained on permuted labels
COPIES_DRAWN = 39  # copies of equal scale of each network
COPY_SEQUENCES = 64  # validation sequences on which copies, and beside them their network, are measured
# validation sequences on which interventions are measured, and their controls
CHANGED_SEQUENCES, CONTROL_SEQUENCES = 256, 32
PERMUTED_NETWORKS = 6  # networks of each recipe that are trained on permuted labels
EQUAL_LOSS = 0.05  # nats by which the training loss of these networks may exceed that of the trained ones


@dataclass(frozen=True)
class Training:
    """A small network of one seed.

    Attributes:
        rows: measurements over training, without nulls from other networks.
        copies: headlines of each copy of equal scale, on the first :data:`COPY_SEQUENCES` validation
            sequences.
        beside: rows of the trained network on the same sequences.
        loss: loss on the training data, in nats.
        others: responses to synthetic inputs, and the arrays of the first seed.
        on_features: the theories' minimal models on the network's features.
    """

    rows: list[Measurement]
    copies: list[list[Measurement]]
    beside: list[Measurement]
    loss: float
    others: View
    on_features: View


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
    arrays, noise and interventions.
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
        others += interventions_of(
            trained.model, recipe.name, samples=validation, theories=theories, seed=seed
        )
    rows = [replace(row, seed=seed) for row in trained.rows]
    beside, copies = copies_of(
        trained.model, recipe.name, samples=validation[:COPY_SEQUENCES], theories=theories, seed=seed
    )
    return Training(
        rows=rows,
        copies=copies,
        beside=beside,
        loss=_training_loss(trained.model, train),
        others=others,
        on_features=on_view(theories, tokens, recipe.name, seed=seed, arrays=first, noise=first),
    )


def interventions_of(
    model: nn.Module, name: str, *, samples: TokenData, theories: tuple[Theory, ...], seed: int
) -> list[Measurement]:
    """Measures the interventions of theories in a trained network, on validation samples; those that make
    ids as inputs are left out.
    """
    of_networks = [theory for theory in theories if theory.in_networks is not None]
    chosen = [(theory, one) for theory in of_networks for one in theory.interventions if one.inputs is None]
    samples = samples[:CHANGED_SEQUENCES]
    listeners.progress(f"{name}: {counted(len(chosen), 'intervention')} (seed {seed})")
    rows, _ = interventions_in(
        model,
        samples.tokens,
        samples.labels,
        chosen,
        limits={},
        name=name,
        fewer=CONTROL_SEQUENCES,
        seed=seed,
    )
    return [replace(row, seed=seed) for row in rows]


def copies_of(
    model: nn.Module, name: str, *, samples: TokenData, theories: tuple[Theory, ...], seed: int
) -> tuple[list[Measurement], list[list[Measurement]]]:
    """Measures the headlines of a trained network and of :data:`COPIES_DRAWN` copies of equal scale on the
    same samples; returns the rows of the network and those of each copy.
    """
    listeners.progress(f"{name}: {COPIES_DRAWN} copies of equal scale (seed {seed})")
    drawn, first = Copies(model), COPIES_DRAWN * seed
    measured = [
        _measured(drawn.draw(EQUAL_SCALE, first + index), samples, theories, name)
        for index in range(COPIES_DRAWN)
    ]
    return _measured(model, samples, theories, name), measured


@dataclass(frozen=True)
class Permuted:
    """Networks of a recipe that are trained on permuted labels.

    Attributes:
        rows: rows of the headlines of each network after training.
        losses: loss of each on its training data, in nats.
    """

    rows: list[list[Measurement]]
    losses: list[float]

    def kind(self, loss: float) -> str:
        """Returns the kind of null that these networks are for a network with the given training loss: they
        test the task only if each of them reaches this loss up to :data:`EQUAL_LOSS`.
        """
        return PERMUTED_LABELS if max(self.losses) <= loss + EQUAL_LOSS else PERMUTED_EQUAL_STEPS

    def note(self, loss: float) -> str:
        """Returns what qualifies the comparison with a network of this training loss; empty at equal loss."""
        if self.kind(loss) == PERMUTED_LABELS:
            return ""
        mean = sum(self.losses) / len(self.losses)
        return f"permuted labels: equal steps, not equal loss: {number(mean)} against {number(loss)} nats"


def permuted_networks(
    recipe: Recipe,
    *,
    split: tuple[TokenData, TokenData],
    theories: tuple[Theory, ...],
    steps: int,
    device: str,
) -> Permuted:
    """Trains :data:`PERMUTED_NETWORKS` networks of a recipe on permuted labels of the training data, for as
    many steps as the others, and measures each at the end. All seeds share them.
    """
    train, validation = split
    assert train.labels is not None
    rows, losses = [], []
    for index, order in enumerate(permutations(len(train), PERMUTED_NETWORKS)):
        listeners.progress(f"{recipe.name}: permuted labels, network {index + 1} of {PERMUTED_NETWORKS}")
        permuted = replace(train, labels=train.labels[order])
        generator = torch.Generator().manual_seed(PERMUTED_SEED + index)
        model = build(partial(recipe.build, train), generator)
        trained = recipe.train(
            model, permuted, validation[:1], steps=steps, generator=generator, device=device
        )
        rows.append(_measured(trained.model, validation, theories, recipe.name))
        losses.append(_training_loss(trained.model, permuted))
    return Permuted(rows, losses)


def _measured(
    model: nn.Module, samples: TokenData, theories: tuple[Theory, ...], name: str, *, whole: bool = False
) -> list[Measurement]:
    """Measures the headlines of a network once, or ``whole``: all metrics, without nulls. The metrics are
    new, so that none compares the network with another one.
    """
    metrics = partial(metrics_of if whole else headline_metrics, theories)
    monitor = Monitor(samples, metrics, name=name, untrained=None, general=whole)
    return monitor.measure(model.eval(), 0, draws=0)


def _training_loss(model: nn.Module, train: TokenData) -> float:
    """Returns the mean cross-entropy on the training data, in nats."""
    losses = [row.value for row in Classification(train, train).evaluate(model) if row.quantity == LOSS]
    assert losses[0] is not None
    return losses[0]


def untrained_networks(
    recipe: Recipe, *, split: tuple[TokenData, TokenData], theories: tuple[Theory, ...], device: str
) -> list[list[Measurement]]:
    """Measures :data:`~..core.statistics.RANGE_DRAWS` networks of a recipe with random weights; returns the
    rows of each.

    They are shared by all theories and all seeds.
    """
    train, validation = split
    measured = []
    for index in range(RANGE_DRAWS):
        listeners.progress(f"{recipe.name}: untrained network {index + 1} of {RANGE_DRAWS}")
        network = build(lambda: recipe.build(train), torch.Generator().manual_seed(UNTRAINED_SEED + index))
        measured.append(_measured(network.to(device), validation, theories, recipe.name, whole=True))
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
    *,
    beside: Sequence[Measurement] = (),
    answers: Sequence[Measurement] = (),
    note: str = "",
) -> Iterator[Measurement]:
    """Yields the headline of each theory at the last step, averaged over layers and heads, with its nulls
    (:func:`.headline_mean`): copies of equal scale first, then that of the metric or of the theory's tests,
    then the other networks.

    Args:
        theories: theories with or without :attr:`.Theory.in_networks`.
        model: name of the network.
        rows: measurements of the network of one seed.
        networks: measurements of other networks by kind of null.
        beside: measurements of the network on the inputs of its copies.
        answers: rows of :func:`synthetic_tests` in the trained network.
        note: what qualifies a null, added to the note of each headline.
    """
    for theory in theories:
        if (in_networks := theory.in_networks) is None or not in_networks.metrics():
            continue  # a theory with responses alone measures nothing in these networks, which take no ids
        mean = headline_mean(
            theory.name, in_networks, rows, networks=networks, beside=beside, answers=answers
        )
        if mean is not None:
            yield replace(mean, note="; ".join(filter(None, (mean.note, note))))
            continue
        yield Measurement(
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

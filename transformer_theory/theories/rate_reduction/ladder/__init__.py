"""The ladder: rate reduction as a share of its optimum, from free features to networks that are trained without it.

The first rung is the setting of the theorem: features of norm 1 that ascend ΔR themselves. The next ones train a network on ΔR and evaluate
held-out samples, first of a mixture of subspaces, then of the digits. From the fourth rung on, no loss contains ΔR: the labels are learned
by cross-entropy. All rungs have n = 256 samples with the same class sizes, d = 64 and ε² = 1/2, because share and null depend on them. Only
CRATE has d = 96, and images of the caller have other class sizes.

Wrong labels are the last relaxation of the column "depth", so that no earlier rung carries them. The networks of the column "trained
network" are given recipes with right labels, and their headline is a mean over layers; the share in their last layer has a row of its own.

Source: :cite:t:`yu2020learning` (the optimum).
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch

from ....core.errors import NotConverged
from ....core.ladder import COLUMNS, Rung
from ....core.measurement import Measurement
from ....core.statistics import HEADLINE_DRAWS, permutations
from ....data import Images
from ....training.trained_rungs import STEPS, headline_in, trained_network, trained_network_rungs
from ..in_networks import IN_NETWORKS
from ..problem import NAME, OPTIMUM_THEOREM
from . import trainings
from .quantities import HEADLINE, Evaluated, angle_row, last_layer_row, rows

OWN, TOKENS, TRAINED, ADAMW, BLOCK, DEPTH, _ = COLUMNS


def _measure(train: Callable[[torch.Generator], Evaluated], generator: torch.Generator) -> Iterator[Measurement]:
    """Trains, and yields the rows of the features; a row with the reason if the training diverges."""
    try:
        evaluated = train(generator)
    except NotConverged as error:
        yield HEADLINE.row(NAME, None, reason=str(error), source=OPTIMUM_THEOREM)
        return
    yield from rows(evaluated)


def _in_trained_network(recipe: str, generator: torch.Generator, images: tuple[Images, Images] | None = None) -> Iterator[Measurement]:
    """Yields the headline of a trained network, a mean over layers, then its share in the last layer and its angle there."""
    model, validation = trained_network(recipe, generator.initial_seed(), images)
    yield headline_in(model, validation, NAME, IN_NETWORKS, name=recipe, steps=STEPS)
    held_out = validation[: trainings.HELD_OUT]
    assert held_out.labels is not None
    labels = held_out.labels.unique(return_inverse=True)[1]
    evaluated = Evaluated(trainings.class_tokens(model, held_out), labels, permutations(len(labels), HEADLINE_DRAWS))
    columns = {"n": len(labels), "split": "validation", "data": held_out.name, "model": recipe, "note": "class token after the last block"}
    yield last_layer_row(evaluated, **columns)
    yield angle_row(evaluated, **columns)


def _rung(name: str, relaxes: str, train: Callable[[torch.Generator], Evaluated], column: str, *, covered: bool = False) -> Rung:
    return Rung(name, relaxes, partial(_measure, train), column=column, covered=covered)


LADDER = replace(
    HEADLINE,
    rungs=(
        _rung("free features", "", trainings.free_features, OWN, covered=True),
        _rung("network, held-out", "the features are free and are those that ascend", trainings.on_mixture, OWN),
        _rung("digits", "each class lies in a subspace", trainings.on_digits, TOKENS),
        _rung("cross-entropy, norm 1", "the loss is the rate reduction", trainings.normalised, TRAINED),
        _rung("plain cross-entropy", "training scales the features to norm 1", trainings.plain, TRAINED),
        _rung("mini-batches", "all samples enter each step", trainings.mini_batches, ADAMW),
        _rung("AdamW", "gradient descent", trainings.adamw, ADAMW),
        _rung("transformer block", "the network is a perceptron", trainings.one_block, BLOCK),
        _rung("three blocks", "there is one block", trainings.several_blocks, DEPTH),
        _rung("wrong labels", "the training labels are right", trainings.wrong_labels, DEPTH),
        *trained_network_rungs(_in_trained_network),
    ),
)

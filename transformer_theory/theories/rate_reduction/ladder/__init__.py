"""The ladder: rate reduction as a share of its optimum, from free features to networks that are trained
without it.

The first rung is the setting of the theorem: features of norm 1 that ascend ΔR themselves. The next ones
train a network on ΔR and measure the training samples, then held-out samples of a mixture of subspaces, then
held-out digits. From the fifth rung on, no loss contains ΔR: the labels are learned by cross-entropy. All
rungs have n = 256 samples with the same class sizes, d = 64 and ε² = 1/2, because share and nulls depend on
them. Only CRATE has d = 96, and images of the caller have other class sizes.

Each rung has two nulls: permuted labels, and inputs without training (:mod:`.inputs`). The second asks
whether training added anything.

Rungs are cumulative up to the end of the column "depth", whose last rung has wrong labels, so that no other
rung carries them. The networks of the column "trained network" have recipes of their own, with right labels,
and their headline is a mean over layers; the share in their last layer has a row of its own.

Source: :cite:t:`yu2020learning` (the optimum).
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache

import torch

from ....core.errors import NotConverged
from ....core.ladder import COLUMNS
from ....core.measurement import Measurement
from ....core.statistics import LADDER_DRAWS, fixed_generator, permutations
from ....data import Images, TokenData, image_sets
from ....training.trained_rungs import STEPS, digit_parts, headline_in, trained_network, trained_networks
from ..in_networks import IN_NETWORKS
from . import trainings
from .quantities import LADDER, Evaluated, angle_row, inputs_null, inputs_row, last_layer_row, rows

OWN, TOKENS, TRAINED, ADAMW, BLOCK, DEPTH, _ = COLUMNS
# What changes in the networks of the last column. They are not cumulative.
RECIPES = {
    "ViT on digits": "one recipe (now two blocks, 600 steps, right labels, and the mean over layers)",
    "CRATE on digits": "the blocks are a transformer's (now those of CRATE, with d = 96)",
    "ViT on images": "the data are the digits (the network is a ViT again)",
}


def trained(
    generator: torch.Generator, *, train: Callable[[torch.Generator], Evaluated]
) -> Iterator[Measurement]:
    """Trains, and yields the rows of the features; a row with the reason if the training diverges."""
    try:
        evaluated = train(generator)
    except NotConverged as error:
        yield LADDER.row(None, reason=str(error))
        return
    yield from rows(evaluated)


def in_trained_network(
    generator: torch.Generator, images: tuple[Images, Images] | None = None, *, recipe: str
) -> Iterator[Measurement]:
    """Yields the headline of a trained network, a mean over layers, with both nulls, then the share of the
    inputs, and the share and the angle of the last layer.
    """
    model, validation = trained_network(recipe, generator.initial_seed(), images)
    headline = headline_in(model, validation, LADDER.theory, IN_NETWORKS, name=recipe, steps=STEPS)
    held_out = validation[: trainings.HELD_OUT]
    assert held_out.labels is not None
    labels = held_out.labels.unique(return_inverse=True)[1]
    inputs = trainings.centred(held_out, _training_tokens(images))
    evaluated = Evaluated(
        trainings.class_tokens(model, held_out), labels, permutations(len(labels), LADDER_DRAWS), inputs
    )
    columns = {"n": len(labels), "split": "validation", "data": held_out.name, "model": recipe}
    if headline.value is None:
        yield headline
    else:
        # All layers have the same dimension, so the null of one layer is that of their mean.
        yield replace(headline, nulls=(*headline.nulls, inputs_null(evaluated)))
        yield inputs_row(evaluated, **columns)
    columns["note"] = "class token after the last block"
    yield last_layer_row(evaluated, **columns)
    yield angle_row(evaluated, **columns)


@lru_cache(maxsize=1)
def _training_tokens(images: tuple[Images, Images] | None) -> TokenData:
    """Returns the training tokens of :func:`~transformer_theory.training.trained_rungs.trained_network`."""
    return (
        digit_parts()[0]
        if images is None
        else image_sets.tokens_of(images[0].mixed(fixed_generator()), fixed_generator())
    )


for name, relaxes, train, column in (
    ("free features", "", trainings.free_features, OWN),
    ("network, training set", "the features are free", trainings.on_training_samples, OWN),
    ("network, held-out", "the measured samples are those that ascend", trainings.on_mixture, OWN),
    ("digits", "each class lies in a subspace", trainings.on_digits, TOKENS),
    ("cross-entropy, norm 1", "the loss is the rate reduction", trainings.normalised, TRAINED),
    ("plain cross-entropy", "training scales the features to norm 1", trainings.plain, TRAINED),
    ("mini-batches", "all samples enter each step", trainings.mini_batches, ADAMW),
    ("AdamW", "gradient descent", trainings.adamw, ADAMW),
    (
        "transformer block",
        "the network is a perceptron, trained in 150 steps (now 400)",
        trainings.one_block,
        BLOCK,
    ),
    ("three blocks", "three blocks instead of one", trainings.several_blocks, DEPTH),
    ("wrong labels", "the training labels are right (on this rung only)", trainings.wrong_labels, DEPTH),
):
    LADDER.rung(name, relaxes=relaxes, column=column, covered=not relaxes, train=train)(trained)
trained_networks(LADDER, RECIPES)(in_trained_network)

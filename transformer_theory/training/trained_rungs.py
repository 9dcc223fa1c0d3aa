"""Rungs of a ladder in trained networks, and a theory's headline in them.

The networks are those of :data:`.recipes.RECIPES`, trained as in a comparison: on the digits, or on images
that the caller provides.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache

import torch
from torch import nn

from ..core.ladder import Ladder, Measure
from ..core.measurement import Measurement
from ..core.statistics import LADDER_DRAWS, fixed_generator
from ..core.table import Table
from ..core.theory import InNetworks
from ..data import Images, TokenData, digits, image_sets
from ..models import ViT, build
from ..probes.measure import headline_mean
from .fitting import fit
from .monitor import Monitor
from .recipes import RECIPES
from .tasks import Classification

STEPS = 600  # optimiser steps, as in a comparison
TRAIN_SHARE = 0.7
NETWORKS = {"ViT": "ViT", "CRATE": "CRATE (released form)"}  # recipe of each network
RELAXES = {
    "ViT on digits": "a network trained on its task alone",
    "CRATE on digits": "CRATE instead of a ViT",
    "ViT on images": "images instead of the digits; a ViT again",
}
RATE = 3e-3  # of :func:`fit_classifier`


def trained_networks(ladder: Ladder, relaxes: Mapping[str, str] = RELAXES) -> Callable[[Measure], Measure]:
    """Adds the rungs of the column "trained network": two networks on the digits, and a ViT on images of the
    caller. The result is a decorator of the function that measures the :func:`trained_network` of a recipe
    and the generator's seed, ``(generator, images=None, *, recipe) -> rows``.

    Args:
        ladder: the ladder.
        relaxes: the names of the rungs, "NETWORK on DATA", and what each of them relaxes.
    """

    def measured_by(function: Measure) -> Measure:
        for name, relaxed in relaxes.items():
            network, _, data = name.partition(" on ")
            ladder.rung(
                name,
                column="trained network",
                relaxes=relaxed,
                needs="images" if data == "images" else "",
                recipe=NETWORKS[network],
            )(function)
        return function

    return measured_by


def vit_for(
    data: TokenData, generator: torch.Generator, *, depth: int, width: int = 32, heads: int = 2
) -> nn.Module:
    """Builds a vision transformer for the tokens and classes of the data."""
    _, seq, dim = data.tokens.shape
    return build(
        lambda: ViT.for_tokens(seq, dim, data.classes, dim=width, depth=depth, heads=heads), generator
    )


def fit_classifier(
    model: nn.Module,
    train: TokenData,
    validation: TokenData,
    generator: torch.Generator,
    *,
    steps: int,
    weight_decay: float = 0.01,
) -> float:
    """Trains a small network on labelled tokens by AdamW at a constant rate; returns its validation accuracy.

    Unlike :func:`.train_classifier` it has no schedule. Parameters that require no gradient stay as they are.
    """
    task = Classification(train, validation)
    if steps:
        parameters = [each for each in model.parameters() if each.requires_grad]
        optimiser = torch.optim.AdamW(parameters, lr=RATE, weight_decay=weight_decay)
        fit(model, task, optimiser=optimiser, steps=steps, clip=1.0, generator=generator)
    return float(task.evaluate(model.eval())[0].value or 0.0)


@lru_cache(maxsize=1)
def digit_parts() -> tuple[TokenData, TokenData]:
    """Returns the training and validation digits, the same split for all seeds."""
    return digits().split(TRAIN_SHARE, fixed_generator())


def headline_in(
    model: nn.Module,
    samples: TokenData | Images,
    theory: str,
    in_networks: InNetworks,
    *,
    name: str,
    steps: int,
) -> Measurement:
    """Measures a theory's headline in a trained network on samples; a row of kind "rung", the mean over
    layers and heads.
    """
    monitor = Monitor(samples, in_networks.metrics, name=name, untrained=None)
    rows = monitor.measure(model, steps, draws=LADDER_DRAWS)
    mean = headline_mean(theory, in_networks, rows)
    if mean is None:
        measured = Table(rows).select(theory=theory, quantity=in_networks.headline)
        reason = measured[0].reason if measured else f"measured in no layer of {name}"
        mean = Measurement(theory, "rung", in_networks.headline, None, reason=reason, model=name)
    return replace(mean, kind="rung", data=samples.name)


@lru_cache(maxsize=2)
def trained_network(
    recipe: str, seed: int, images: tuple[Images, Images] | None = None
) -> tuple[nn.Module, TokenData]:
    """Trains a small network; returns it with the validation tokens. The last two are kept, since several
    theories measure them.

    Args:
        recipe: name in :data:`.recipes.RECIPES`.
        seed: seed of initial weights and batches; the split is the same for all seeds.
        images: training and test images; None: the digits.
    """
    if images is None:
        train, validation = digit_parts()
    else:
        train, validation = (
            image_sets.tokens_of(part.mixed(fixed_generator()), fixed_generator()) for part in images
        )
    chosen, generator = RECIPES[recipe], torch.Generator().manual_seed(seed)
    model = build(lambda: chosen.build(train), generator)
    trained = chosen.train(model, train, validation, steps=STEPS, generator=generator)
    return trained.model.eval(), validation

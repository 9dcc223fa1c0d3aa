"""Rungs of a ladder in trained networks, and a theory's headline in them.

The networks are those of :data:`.recipes.RECIPES`, trained as in a comparison: on the digits, or on images
that the caller provides.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache, partial

import torch
from torch import nn

from ..core.ladder import Rung
from ..core.measurement import Measurement, Table
from ..core.statistics import LADDER_DRAWS, fixed_generator
from ..core.theory import InNetworks
from ..data import Images, TokenData, digits, image_sets
from ..models import build
from ..probes.measure import headline_mean
from .monitor import Monitor
from .recipes import RECIPES
from .supervised import train_classifier

STEPS = 600  # optimiser steps, as in a comparison
TRAIN_SHARE = 0.7
NETWORKS = {"ViT": "ViT", "CRATE": "CRATE (released form)"}  # recipe of each network


def trained_network_rungs(measure: Callable[..., Iterable[Measurement]]) -> tuple[Rung, ...]:
    """Returns the rungs of the column "trained network": two networks on the digits, and a ViT on images of
    the caller.

    Args:
        measure: ``(recipe, generator, images=None) -> rows``: measures the :func:`trained_network` of the
            recipe and the generator's seed.
    """
    rungs = [
        Rung(
            f"{name} on digits",
            "a network trained on its task alone" if number == 0 else "another network",
            partial(measure, recipe),
            column="trained network",
        )
        for number, (name, recipe) in enumerate(NETWORKS.items())
    ]
    images = Rung(
        "ViT on images",
        "the digits",
        partial(measure, NETWORKS["ViT"]),
        column="trained network",
        needs="images",
    )
    return (*rungs, images)


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
    rate, size = chosen.learning_rate, chosen.batch_size
    trained = train_classifier(
        model, train, validation, steps=STEPS, learning_rate=rate, batch_size=size, generator=generator
    )
    return trained.model.eval(), validation

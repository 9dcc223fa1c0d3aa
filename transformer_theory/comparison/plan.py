"""The work of one comparison, divided into jobs that may run in different processes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from ..core import parallel
from ..core.statistics import fixed_generator
from ..core.theory import Theory
from ..data import Graphs, Images, TokenData, image_sets
from ..training.evaluate import StoredNetwork
from ..training.recipes import Recipe
from .on_data import View, raw_tokens
from .small_networks import Training, small_network, untrained_networks

TRAIN_SHARE = 0.7


@dataclass(frozen=True)
class Plan:
    """One comparison.

    Attributes:
        raw: the tokens, or graphs, that the theories receive.
        images: training and test images; None if the data are tokens.
        parts: training and validation tokens of the small networks; None if no small network is trained.
        theories: theories to compare.
        recipes: recipes of the small networks to train.
        networks: stored networks to measure.
        steps: optimiser steps of each small network.
        seeds: seeds of the networks and of the theories' models.
        device: device on which networks run.
    """

    raw: TokenData | Graphs
    images: tuple[Images, Images] | None
    parts: tuple[TokenData, TokenData] | None
    theories: tuple[Theory, ...]
    recipes: tuple[Recipe, ...]
    networks: tuple[StoredNetwork, ...]
    steps: int
    seeds: tuple[int, ...]
    device: str

    @property
    def trained(self) -> tuple[Recipe, ...]:
        """The recipes of the small networks that are trained; none if the data have no labels."""
        return self.recipes if self.parts is not None else ()

    def jobs(self) -> list[Callable[[], Training | View | list]]:
        """Returns the jobs, the longest first: a training per seed and recipe, the raw tokens per seed,
        untrained networks per recipe.

        The first seed has the arrays of the figures and the control on noise.
        """
        first, shared = self.seeds[0], {"parts": self.parts, "theories": self.theories, "device": self.device}
        trainings = [
            partial(small_network, recipe, steps=self.steps, seed=seed, first=seed == first, **shared)
            for seed in self.seeds
            for recipe in self.trained
        ]
        raw = [
            partial(raw_tokens, self.raw, self.theories, seed=seed, first=seed == first)
            for seed in self.seeds
        ]
        untrained = [partial(untrained_networks, recipe, **shared) for recipe in self.trained]
        return [*trainings, *raw, *untrained]


def inputs(
    source: TokenData | Graphs | tuple[Images, Images], recipes: Sequence[Recipe]
) -> tuple[TokenData | Graphs, tuple[Images, Images] | None, tuple[TokenData, TokenData] | None]:
    """Returns the first three fields of a plan. Images are shuffled, and the theories receive the tokens of
    the test images.

    Order, split and visual words do not depend on the seeds (see :mod:`~..core.statistics`).
    """
    if isinstance(source, Graphs):
        return source, None, None
    if isinstance(source, TokenData):
        raw, images = source, None
    else:
        parallel.progress(f"{len(source[1])} test images: conversion to tokens")
        train, test = (part.mixed(fixed_generator()) for part in source)
        raw, images = image_sets.tokens_of(test, fixed_generator()), (train, test)
    parts = None
    if recipes and raw.labels is not None and len(raw.labels.unique()) > 1:
        parts = (
            raw.split(TRAIN_SHARE, fixed_generator())
            if images is None
            else (image_sets.tokens_of(images[0], fixed_generator()), raw)
        )
    return raw, images, parts

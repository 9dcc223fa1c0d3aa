"""The work of one comparison, divided into jobs that may run in different processes. Each job has a key, and
its result is found by this key.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

from ..core import listeners, parallel
from ..core.claims import Claim
from ..core.format import counted
from ..core.statistics import fixed_generator
from ..core.theory import Theory
from ..data import Graphs, Images, TokenData, image_sets
from ..training.image.evaluate import StoredNetwork
from ..training.recipes import Recipe
from .on_data import on_raw_data
from .small_networks import permuted_networks, small_network, untrained_networks

TRAIN_SHARE = 0.7


class Key(NamedTuple):
    """The key of a job and of its result.

    Attributes:
        kind: "network", a small network that is trained and measured; "untrained", the networks of a recipe
            with random weights; "permuted", those trained on permuted labels; "data", the theories on the
            data; "claim", one seed of a claim.
        name: name of the recipe, or id of the claim; empty for the data.
        seed: seed; None if all seeds share the result.
    """

    kind: Literal["network", "untrained", "permuted", "data", "claim"]
    name: str = ""
    seed: int | None = None


@dataclass(frozen=True)
class Plan:
    """One comparison.

    Attributes:
        data: the tokens, or graphs, that the theories receive.
        images: training and test images; None if the data are tokens.
        split: training and validation tokens of the small networks; None if no small network is trained.
        theories: theories to compare.
        recipes: recipes of the small networks to train.
        networks: stored networks to measure.
        claims: claims to verify.
        steps: optimiser steps of each small network.
        seeds: seeds of the networks and of the theories' models.
        claim_seeds: seeds of each claim.
        device: device on which networks run.
    """

    data: TokenData | Graphs
    images: tuple[Images, Images] | None
    split: tuple[TokenData, TokenData] | None
    theories: tuple[Theory, ...]
    recipes: tuple[Recipe, ...]
    networks: tuple[StoredNetwork, ...]
    claims: tuple[Claim, ...]
    steps: int
    seeds: tuple[int, ...]
    claim_seeds: tuple[int, ...]
    device: str

    @property
    def trained(self) -> tuple[Recipe, ...]:
        """The recipes of the small networks that are trained; none if the data have no labels."""
        return self.recipes if self.split is not None else ()

    def jobs(self) -> dict[Key, Callable[[], Any]]:
        """Returns the jobs by key, the longest first, which keeps all workers busy until the end.

        The first seed has the arrays of the figures and the control on noise.
        """
        first, shared = self.seeds[0], {"split": self.split, "theories": self.theories, "device": self.device}
        networks = {
            Key("network", recipe.name, seed): partial(
                small_network, recipe, steps=self.steps, seed=seed, first=seed == first, **shared
            )
            for seed in self.seeds
            for recipe in self.trained
        }
        data = {
            Key("data", seed=seed): partial(
                on_raw_data, self.data, self.theories, seed=seed, first=seed == first
            )
            for seed in self.seeds
        }
        untrained = {
            Key("untrained", recipe.name): partial(untrained_networks, recipe, **shared)
            for recipe in self.trained
        }
        permuted = {
            Key("permuted", recipe.name): partial(permuted_networks, recipe, steps=self.steps, **shared)
            for recipe in self.trained
        }
        claims = {
            Key("claim", claim.id, seed): partial(claim.run, seed)
            for claim in self.claims
            for seed in self.claim_seeds
        }
        return {**networks, **permuted, **data, **untrained, **claims}


def completed(jobs: Mapping[Key, Callable[[], Any]]) -> Iterator[tuple[Key, Any]]:
    """Returns an iterator over the keys and the results of the jobs, each as soon as it is done.

    With several processes, all jobs are submitted by this call.
    """
    keys = list(jobs)
    results = parallel.as_completed(_run, [{"job": job} for job in jobs.values()])
    return ((keys[number], result) for number, result in results)


def collected(results: Iterable[tuple[Key, Any]], plan: Plan) -> dict[Key, Any]:
    """Returns the results by key, and reports progress as they arrive."""
    found: dict[Key, Any] = {}
    claims = Counter(claim.theory for claim in plan.claims)
    missing = Counter({theory: count * len(plan.claim_seeds) for theory, count in claims.items()})
    for key, result in results:
        found[key] = result
        if key.kind == "network":
            listeners.progress(f"{key.name}, seed {key.seed}: trained and measured")
        elif key.kind == "claim":
            theory = key.name.partition("/")[0]
            missing[theory] -= 1
            if not missing[theory]:
                listeners.progress(f"{theory}: {counted(claims[theory], 'claim')} with controls")
    return found


def _run(*, job: Callable[[], Any]) -> Any:
    return job()


def prepared(
    data: TokenData | Graphs | tuple[Images, Images], recipes: Sequence[Recipe]
) -> tuple[TokenData | Graphs, tuple[Images, Images] | None, tuple[TokenData, TokenData] | None]:
    """Returns the first three fields of a plan. Images are shuffled, and the theories receive the tokens of
    the test images.

    Order, split and visual words do not depend on the seeds (see :mod:`~..core.statistics`).
    """
    if isinstance(data, Graphs):
        return data, None, None
    if isinstance(data, TokenData):
        tokens, images = data, None
    else:
        listeners.progress(f"{len(data[1])} test images: conversion to tokens")
        train, test = (part.mixed(fixed_generator()) for part in data)
        tokens, images = image_sets.tokens_of(test, fixed_generator()), (train, test)
    split = None
    if recipes and tokens.labels is not None and len(tokens.labels.unique()) > 1:
        split = (
            tokens.split(TRAIN_SHARE, fixed_generator())
            if images is None
            else (image_sets.tokens_of(images[0], fixed_generator()), tokens)
        )
    return tokens, images, split

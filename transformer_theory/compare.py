"""Comparison of all theories on the same data and in the same trained networks.

:func:`compare` does three things: it trains small networks on one part of the data and computes every theory's metrics on the other part;
it runs each theory's minimal model on the raw tokens and on the networks' features; and it verifies each theory's claims with their
controls. Stored networks (from ``transformer-theory train``) can replace the small ones. The :class:`~.core.result.Result` holds

* rows of kind "on data" and "assumption": the theory's minimal model on the raw tokens (``model`` is empty) or on a network's features;
* rows of kind "in network" and "network" with a ``step``: the theories' metrics and the general quantities over training;
* rows of kind "in network" without step and layer: the theory's headline in the trained network, averaged over layers and heads;
* rows of kind "network" without step: the test accuracy of stored networks, and a comparison of their runs;
* rows of kind "claim", one per seed, and the verifications;
* arrays of the first seed: ``"<theory>/..."`` on the raw tokens, ``"<network>::<theory>/..."`` on features, ``"network/<network>/..."``.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from . import data as data_module
from .core import parallel
from .core.claims import Verification
from .core.display import several
from .core.errors import nearest
from .core.measurement import Arrays, Measurement, Table, collect
from .core.metric import Metric
from .core.result import Result, provenance
from .core.statistics import over_heads
from .core.theory import Theory, Unsupported
from .core.validation import integers, seed_numbers, usable_device
from .data import Images, TokenData, image_sets
from .probes.features import features_with_words
from .probes.respond import responses
from .theories import choose, objectives
from .training.evaluate import StoredNetwork, maps, measure_metrics, measure_objective, stored_networks, timeline
from .training.monitor import PICTURED, mean_over_heads, monitored_training
from .training.objectives import ACCURACY
from .training.objectives.protocol import scaled
from .training.recipes import RECIPES, Recipe
from .training.saved import Saved
from .training.side_by_side import runs_of, side_by_side

TRAIN_SHARE = 0.7
CODEBOOK_SIZE = 32  # number of visual words in the codebook of a network's features
FEATURE_SEQUENCES = 512  # validation sequences whose features the theories receive
RESPONSE_SEQUENCES = 128  # validation sequences from which the theories make synthetic inputs

Data = TokenData | tuple[Images, Images] | str | Path
Stream = Iterator[Measurement | Arrays]
View = tuple[list[Measurement | Arrays], list[Measurement | Arrays]]
"""Results for one view of the data (raw tokens, or features of a network): measurements in the network, and on the data."""


@dataclass(frozen=True)
class Plan:
    """One comparison with one seed.

    Attributes:
        raw: the tokens that the theories receive.
        images: training and test images; None if the data are tokens.
        parts: training and validation tokens of the small networks; None if no small network is trained.
        theories: theories to compare.
        recipes: recipes of the small networks to train.
        networks: stored networks to measure.
        steps: optimiser steps of each small network.
        seed: seed of the split, the networks and the theories.
        device: device on which networks run.
    """

    raw: TokenData
    images: tuple[Images, Images] | None
    parts: tuple[TokenData, TokenData] | None
    theories: tuple[Theory, ...]
    recipes: tuple[Recipe, ...]
    networks: tuple[StoredNetwork, ...]
    steps: int
    seed: int
    device: str

    def jobs(self) -> list[Callable[[], View]]:
        """Returns one job per small network, then one for the raw tokens. Jobs are independent, so each may run in another process."""
        inputs = (self.parts, self.theories, self.steps, self.seed, self.device)
        trainings = [partial(_small_network, recipe, *inputs) for recipe in self.recipes] if self.parts else []
        return [*trainings, partial(_raw_tokens, self.raw, self.theories, self.seed)]


def compare(
    data: Data,
    theories: Iterable[str | Theory] | None = None,
    *,
    seeds: int | Iterable[int] = 1,
    steps: int = 600,
    networks: Sequence[str] | None = None,
    models: Sequence[str | Path | Saved] = (),
    claim_seeds: int | Iterable[int] = 3,
    device: str = "cpu",
    workers: int | str | None = None,
    progress: Callable[[str], None] | None = None,
) -> Result:
    """Compares theories on the same data and in the same networks. Runs on one thread, since its matrices are small.

    Args:
        data: tokens (:class:`TokenData`), a name or path for :func:`data.load`, or training and test images as returned by
            :func:`data.images`. With ``models``, a name or path refers to images.
        theories: names or records; None selects all.
        seeds: seeds of the split, the networks and the theories: a list, or a number n for the seeds 0 to n - 1.
        steps: optimiser steps of each small network.
        networks: names in ``training.RECIPES`` of the small networks to train; None selects all, or none if there are ``models``. Networks
            learn the labels of the data; without labels of at least two classes, none is trained, and a row says so. If the data are
            images, networks train on the training images.
        models: stored networks: files or folders written by ``train``, or results of ``training.saved.load``.
        claim_seeds: seeds of each claim, a list or a number; 0 omits the claims. Claims draw their own instances, independent of the data.
        device: device on which the networks are trained and measured.
        workers: number of processes that share the work on networks, theories and claims, or the address of a dask scheduler (see
            :func:`~.core.parallel.workers`); None keeps the active joblib context. The measurements do not depend on it.
        progress: function called with one line of text at each stage.
    Returns:
        One result with all rows and arrays (see the module's docstring).
    Raises:
        ValueError: a theory, network or device is unknown, ``steps`` is less than 1, there is no seed, ``workers`` is invalid, the data
            cannot be used, a file is not a model, a model does not fit the images, or there are models but no images.
        FileNotFoundError: a model does not exist.
        ConnectionError: the scheduler does not answer, or it has no workers.
    """
    started = time.perf_counter()
    theories = choose(theories)
    recipes = _recipes((() if models else tuple(RECIPES)) if networks is None else networks)
    seeds, claim_seeds = seed_numbers("seeds", seeds), seed_numbers("claim_seeds", claim_seeds, minimum=0)
    integers(steps=steps)
    usable_device(device)
    source, stored = _read(data, models, device)
    rows: list[Measurement] = []
    arrays: dict[str, np.ndarray] = {}
    with (
        torch.random.fork_rng(devices=[]),
        parallel.workers(workers),
        parallel.one_thread(),
        parallel.progress_listener(progress or (lambda text: None)),
    ):
        plans = [Plan(*_inputs(source, recipes, seed), theories, recipes, tuple(stored), steps, seed, device) for seed in seeds]
        claims = [claim for theory in theories for claim in theory.claims] if claim_seeds else []
        parallel.progress(f"{plans[0].raw.name}: {len(theories)} theories, {len(recipes)} small networks, {len(claims)} claims")
        # A single stream of jobs, the longest first, keeps all workers busy until the end; it returns results in the order of the jobs.
        jobs = [job for plan in plans for job in plan.jobs()] + [partial(claim.run, seed) for claim in claims for seed in claim_seeds]
        results = parallel.stream(_run, ({"job": job} for job in jobs))
        for plan in plans:
            table, seed_arrays = collect(_measurements(plan, results))
            rows += table.replace(data=plan.raw.name, seed=plan.seed)
            arrays = arrays or seed_arrays  # figures show the first seed
        verifications = tuple(_verifications(theories, claim_seeds, results)) if claims else ()
        record = provenance(seed=seeds[0] if len(seeds) == 1 else None, device=device, started=started)
    raw = plans[0].raw
    rows += [row for verification in verifications for row in verification.measurements()]
    settings = {
        "data": raw.name,
        "n": len(raw),
        "seq": raw.tokens.shape[1],
        "dim": raw.tokens.shape[2],
        "theories": [theory.name for theory in theories],
        "networks": [recipe.name for recipe in recipes],
        **({"models": {network.name: str(network.file or "in memory") for network in stored}} if stored else {}),
        **({"steps": steps} if recipes else {}),
        "seeds": list(seeds),
    }
    sources = tuple(dict.fromkeys([*raw.sources, *(source for theory in theories for source in theory.sources)]))
    return Result("compare", settings, Table(rows), arrays, verifications, sources, record)


def _read(data: Data, models: Sequence[str | Path | Saved], device: str) -> tuple[TokenData | tuple[Images, Images], list[StoredNetwork]]:
    """Reads the data and the models. With models, a name or path is read as images, otherwise as tokens; images stay images."""
    if isinstance(data, TokenData):
        if models:
            raise ValueError(f"models need images, got tokens ({data.name}); name the images, or pass data.images(...)")
        return data, []
    if not models and not isinstance(data, tuple):
        return data_module.load(data), []
    images = data if isinstance(data, tuple) else image_sets.images(data)
    return images, stored_networks(models, images[1], objectives=objectives(), device=device) if models else []


def _inputs(
    source: TokenData | tuple[Images, Images], recipes: Sequence[Recipe], seed: int
) -> tuple[TokenData, tuple[Images, Images] | None, tuple[TokenData, TokenData] | None]:
    """Returns the first three fields of a plan. Images are shuffled, and the theories receive the tokens of the test images."""
    if isinstance(source, TokenData):
        raw, images = source, None
    else:
        parallel.progress(f"{len(source[1])} test images: conversion to tokens")
        train, test = (part.mixed(_generator(seed)) for part in source)
        raw, images = image_sets.tokens_of(test, _generator(seed)), (train, test)
    parts = None
    if recipes and raw.labels is not None and len(raw.labels.unique()) > 1:
        parts = raw.split(TRAIN_SHARE, _generator(seed)) if images is None else (image_sets.tokens_of(images[0], _generator(seed)), raw)
    return raw, images, parts


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _run(*, job: Callable[[], Any]) -> Any:
    return job()


def _measurements(plan: Plan, results: Iterator[View]) -> Stream:
    """Yields all measurements of one seed except the claims: networks first, then the theories on each view of the data."""
    on_data: list[Measurement | Arrays] = []
    if plan.parts is not None:
        if not plan.networks:
            yield _images_and_labels(plan.parts[1], plan.parts[1].images)
        for recipe in plan.recipes:
            in_network, on_features = next(results)
            parallel.progress(f"{recipe.name}: trained and measured")
            yield from in_network
            on_data += on_features
    elif plan.recipes or not plan.networks:
        reason = "training needs labels of at least two classes" if plan.recipes else "no network was asked for"
        yield Measurement("network", "network", ACCURACY, None, unit="share", reason=reason)
    _, on_raw = next(results)
    stored_features: dict[str, TokenData] = {}
    if plan.networks:
        yield from _stored_networks(plan, stored_features)
    yield from (*on_raw, *on_data)
    for name, tokens in stored_features.items():
        yield from _on_data(plan.theories, tokens, name, plan.seed)


def _small_network(
    recipe: Recipe, parts: tuple[TokenData, TokenData], theories: tuple[Theory, ...], steps: int, seed: int, device: str
) -> View:
    """Trains and measures a small network, and runs the theories on its features."""
    train, validation = parts
    trained = monitored_training(
        recipe,
        train,
        validation,
        metrics=partial(_metrics, theories),
        steps=steps,
        seed=seed,
        featured=FEATURE_SEQUENCES,
        device=device,
        progress=parallel.progress,
    )
    tokens = features_with_words(trained.model, validation[:FEATURE_SEQUENCES], words=CODEBOOK_SIZE, generator=_generator(seed))
    headlines, projections = _headlines(theories, recipe.name, trained.rows), _projections(recipe.name, tokens, trained.queries)
    tested = _responses(theories, trained.model, validation.tokens[:RESPONSE_SEQUENCES], recipe.name, seed)
    return [*trained.rows, trained.arrays, *headlines, *tested, projections], [*_on_data(theories, tokens, recipe.name, seed)]


def _responses(theories: Iterable[Theory], model: nn.Module, inputs: Tensor, name: str, seed: int) -> Iterator[Measurement]:
    """Runs the theories' tests on synthetic inputs, made from inputs [n, ...] that the network accepts."""
    limits = {"sequences": len(inputs)} | ({"length": inputs.shape[1]} if inputs.ndim == 3 else {})
    for theory in theories:
        yield from responses(model, theory, inputs, limits=limits, generator=_generator(seed), name=name)


def _raw_tokens(tokens: TokenData, theories: tuple[Theory, ...], seed: int) -> View:
    return [], [*_on_data(theories, tokens, "", seed)]


def _metrics(theories: Iterable[Theory]) -> list[Metric]:
    return [metric for theory in theories if theory.in_networks for metric in theory.in_networks.metrics()]


def _stored_networks(plan: Plan, stored_features: dict[str, TokenData]) -> Stream:
    """Measures the stored networks on test images, and adds their features to ``stored_features``, by name of the network."""
    assert plan.images is not None
    train, test = plan.images
    yield _images_and_labels(plan.raw, test.pixels[:PICTURED].double() / 255)
    rows: list[Measurement] = []
    for network in plan.networks:
        parallel.progress(f"{network.name}: {len(test)} test images")
        rows += measure_objective(network, train, test)
    rows += side_by_side(runs_of(plan.networks))
    shares = {row.quantity: row.unit == "share" for row in rows}
    for quantity in sorted(shares, key=lambda name: not shares[name]):  # grouped by quantity, with shares (accuracies) first
        yield from Table(rows).select(quantity=quantity)
    for network in plan.networks:
        parallel.progress(f"{network.name}: metrics of all theories, here and in untrained networks")
        measured = measure_metrics(network, test, metrics=partial(_metrics, plan.theories), seed=plan.seed)
        yield from _timeline(network, plan.theories, measured)
        yield from _headlines(plan.theories, network.name, measured)
        yield from _by_layer(plan.theories, measured)
        images = scaled(test.pixels[:RESPONSE_SEQUENCES], next(network.measured.parameters()))
        yield from _responses(plan.theories, network.measured, images, network.name, plan.seed)
        yield maps(network, test)
        few, words = plan.raw[:FEATURE_SEQUENCES], {"words": CODEBOOK_SIZE, "generator": _generator(plan.seed)}
        tokens = features_with_words(network.measured, few, layer=network.last_block, inputs="images", **words)
        stored_features[network.name] = tokens
        yield _projections(network.name, tokens)


def _timeline(network: StoredNetwork, theories: Iterable[Theory], measured: Sequence[Measurement]) -> Iterator[Measurement]:
    """Yields the measurements over a network's training, and those on test images for theories that its run did not measure.

    A network without a run, or whose run is reported with another network, has only the measurements on test images.
    """
    names = {"network", *(theory.name for theory in theories)}
    training = timeline(network).where(lambda row: row.theory in names)
    recorded = set(training.column("theory"))
    yield from training
    yield from (row for row in measured if row.theory not in recorded)


def _on_data(theories: Iterable[Theory], tokens: TokenData, model: str, seed: int) -> Stream:
    """Measures the theories on raw tokens or on the features of a network; unsupported data give one row with the reason."""
    for theory in theories:
        if theory.on_data is None:
            continue
        parallel.progress(f"{f'features of {model}' if model else 'raw tokens'}: {theory.title}")
        problem = theory.on_data.read(tokens)
        if isinstance(problem, Unsupported):
            yield Measurement(theory.name, "on data", theory.on_data.headline, None, reason=problem.reason, model=model)
            continue
        for item in theory.on_data.measure(problem, _generator(seed)):
            if isinstance(item, Arrays):
                yield item if not model else Arrays({f"{model}::{name}": array for name, array in item.items()})
            else:
                yield replace(item, model=model)


def _headlines(theories: Iterable[Theory], model: str, rows: Sequence[Measurement]) -> Iterator[Measurement]:
    """Yields the headline of each theory at the last step, averaged over layers and heads, with its null.

    No theorem covers a network of several layers trained by AdamW, so there is no verdict.
    """
    for theory in theories:
        if (in_networks := theory.in_networks) is None:
            continue
        measured = Table(rows).select(theory=theory.name, quantity=in_networks.headline).where(lambda row: row.value is not None)
        empty = Measurement(theory.name, "in network", in_networks.headline, None, reason=f"measured in no layer of {model}", model=model)
        empty = replace(empty, side=in_networks.side, scope="training", source=theory.sources[0])
        if not measured:
            yield empty
            continue
        last = max(row.step or 0 for row in measured)
        final = [row for row in measured if (row.step or 0) == last]
        mean, note = over_heads(final), f"mean over layers and heads after {last:,} steps"
        yield replace(empty, value=mean.value, unit=mean.unit, null=mean.null, n=mean.n, split=mean.split, reason="", note=note)


def _by_layer(theories: Iterable[Theory], rows: Sequence[Measurement]) -> Iterator[Measurement]:
    """Yields the headline of each theory in each layer, averaged over heads, without step."""
    for theory in theories:
        if theory.in_networks is not None:
            headlines = [row for row in rows if row.theory == theory.name and row.quantity == theory.in_networks.headline]
            yield from (replace(row, step=None) for row in mean_over_heads(headlines))


def _verifications(theories: Iterable[Theory], seeds: Sequence[int], results: Iterator[Any]) -> Iterator[Verification]:
    for theory in theories:
        parallel.progress(f"{theory.title}: {several(len(theory.claims), 'claim')} with controls")
        for claim in theory.claims:
            yield Verification.of(claim, seeds, islice(results, len(seeds)))


def _projections(name: str, tokens: TokenData, before: Sequence[Tensor] = ()) -> Arrays:
    """Projects query tokens (in these networks the class tokens) onto the plane of their first two principal components, [n, 2].

    Args:
        name: name of the network.
        tokens: features of the trained network.
        before: query tokens at the steps of the attention maps, each [n, dim]. They are projected onto the plane of the trained network,
            so that the points move over training and the axes do not: ``network/<name>/features over training``, [steps, n, 2].
    """
    assert tokens.query is not None
    mean = tokens.query.mean(0)
    _, _, directions = torch.linalg.svd(tokens.query - mean, full_matrices=False)
    arrays = Arrays({f"network/{name}/features": ((tokens.query - mean) @ directions[:2].T).numpy()})
    if before:
        projected = (torch.stack(list(before)) - mean) @ directions[:2].T
        arrays[f"network/{name}/features over training"] = projected.to(torch.float32).numpy()
    return arrays


def _images_and_labels(data: TokenData, images: Tensor | None) -> Arrays:
    """Returns the images of the attention maps, in [0, 1], and the labels of the features."""
    arrays = Arrays()
    if data.labels is not None:
        arrays["network/labels"] = data.labels[:FEATURE_SEQUENCES].numpy()
    if images is not None:
        arrays["network/images"] = images[:PICTURED].numpy()
    return arrays


def _recipes(names: Sequence[str]) -> tuple[Recipe, ...]:
    for name in names:
        if name not in RECIPES:
            raise ValueError(f"unknown network {name!r}{nearest(name, RECIPES)}")
    return tuple(RECIPES[name] for name in names)

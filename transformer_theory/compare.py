"""Every theory on the same data and in the same trained networks.

:func:`compare` trains small networks on one part of the data while every theory's metrics are computed on the other part, runs each
theory's own minimal model on the raw tokens and on the networks' features, and verifies each theory's claims with their controls. Stored
networks (of ``transformer-theory train``) can take the place of the small ones. All of it becomes one :class:`~.core.result.Result`:

* rows of kind "on data" and "assumption": the theory's own model on the raw tokens (``model`` is empty) or on a network's features;
* rows of kind "in network" and "network" with a ``step``: the theories' metrics and the network's own quantities over training;
* rows of kind "in network" without step and layer: the theory's headline in the trained network, averaged over layers and heads;
* rows of kind "network" without step: test accuracy of stored networks, and their runs side by side;
* rows of kind "claim", one per seed, and the verifications whole;
* arrays of the first seed: ``"<theory>/..."`` on the raw tokens, ``"<network>::<theory>/..."`` on features, ``"network/<network>/..."``.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from . import data as data_module
from .core import parallel
from .core.claims import Verification, verify_claims
from .core.errors import nearest
from .core.measurement import Arrays, Measurement, Table, collect
from .core.metric import Metric
from .core.result import Result, provenance
from .core.statistics import over_heads
from .core.theory import Theory, Unsupported
from .core.validation import integers
from .data import Images, TokenData, image_sets
from .probes.features import features
from .theories import choose, objectives
from .training.evaluate import StoredNetwork, maps, measure_metrics, measure_objective, stored_networks, timeline
from .training.monitor import PICTURED, mean_over_heads, monitored_training
from .training.objectives import ACCURACY
from .training.recipes import RECIPES, Recipe
from .training.saved import Saved
from .training.side_by_side import runs_of, side_by_side

TRAIN_SHARE = 0.7
CODEBOOK_SIZE = 32  # visual words of a network's features
FEATURE_SEQUENCES = 512  # validation sequences whose features the theories are given

Data = TokenData | tuple[Images, Images] | str | Path
Stream = Iterator[Measurement | Arrays]


@dataclass(frozen=True)
class Plan:
    """What one comparison does, for one seed.

    Attributes:
        raw: the tokens that the theories are given.
        images: training and test images, if stored networks are measured on them.
        theories: their records.
        recipes: of the small networks.
        networks: stored networks.
        steps: optimiser steps of each small network.
        seed: of the split, the networks and the theories.
        device: where networks run.
        progress: is called with one line per stage.
    """

    raw: TokenData
    images: tuple[Images, Images] | None
    theories: tuple[Theory, ...]
    recipes: tuple[Recipe, ...]
    networks: tuple[StoredNetwork, ...]
    steps: int
    seed: int
    device: str
    progress: Callable[[str], None]

    def metrics(self) -> list[Metric]:
        """Fresh metrics of all theories that measure something in networks."""
        return [metric for theory in self.theories if theory.in_networks for metric in theory.in_networks.metrics()]

    def generator(self) -> torch.Generator:
        """A fresh generator with the plan's seed."""
        return torch.Generator().manual_seed(self.seed)


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
    """The predictions of each theory on these data beside what was measured. Runs on one thread, since its matrices are small.

    Args:
        data: tokens [n, seq, dim] with whatever else is known (:class:`TokenData`), a name for :func:`data.load`, or the path of an
            ``.npz``; or training and test images, as :func:`data.images` gives them. With ``models`` a name or path is of images.
        theories: names or records; all if None.
        seeds: of the split, the networks and the theories: a list, or a number n for the seeds 0 to n - 1. Claims have seeds of their own.
        steps: optimiser steps of each small network.
        networks: small networks to train, names in ``training.RECIPES``; if None, all, or none beside ``models``. They learn the labels;
            without labels of two classes none is trained (a row says so). Of images they learn the training part.
        models: stored networks: files or folders that ``train`` has written, or results of ``training.saved.load``.
        claim_seeds: seeds of each claim, a list or a number. Claims draw their own instances, whatever the data are; 0 leaves them out.
        device: where the networks are trained and measured.
        workers: processes that check claims in parallel, or the address of a dask scheduler (see :func:`~.core.parallel.workers`); None
            leaves the active joblib context as it is. The measurements do not depend on them.
        progress: is called with one line at each stage.
    Returns:
        One result with all rows and arrays (see the module's docstring).
    Raises:
        ValueError: an unknown theory, network or device, fewer than 1 step or seed, no such workers, data that cannot be used, a model
            that is none or that does not fit the images, or models without images.
        FileNotFoundError: there is no such model.
        ConnectionError: no scheduler answers, or it has no workers.
    """
    started = time.perf_counter()
    chosen = choose(theories)
    recipes = _recipes((() if models else tuple(RECIPES)) if networks is None else networks)
    numbers, claim_numbers = _seeds("seeds", seeds, minimum=1), _seeds("claim_seeds", claim_seeds, minimum=0)
    integers(steps=steps)
    _check_device(device)
    report = progress or (lambda text: None)
    source, stored = _read(data, models, device)
    rows: list[Measurement] = []
    arrays: dict[str, np.ndarray] = {}
    with torch.random.fork_rng(devices=[]), parallel.workers(workers), parallel.one_thread():
        # other processes, if there are any, check the claims while the networks are trained in this one
        claims = [claim for theory in chosen for claim in theory.claims] if claim_numbers else []
        outcomes = verify_claims(claims, claim_numbers) if claims else iter(())
        for seed in numbers:
            plan = Plan(*_inputs(source, seed, report), chosen, recipes, tuple(stored), steps, seed, device, report)
            table, own_arrays = collect(_stream(plan))
            rows += table.replace(data=plan.raw.name, seed=seed)
            arrays = arrays or own_arrays
        verified = tuple(_verified(chosen, outcomes, report)) if claims else ()
        origin = provenance(seed=numbers[0] if len(numbers) == 1 else None, device=device, started=started)
    rows += [row for one in verified for row in one.measurements()]
    settings = {
        "data": plan.raw.name,
        "n": len(plan.raw),
        "seq": plan.raw.tokens.shape[1],
        "dim": plan.raw.tokens.shape[2],
        "theories": [theory.name for theory in chosen],
        "networks": [recipe.name for recipe in recipes],
        **({"models": {one.name: str(one.file or "in memory") for one in stored}} if stored else {}),
        **({"steps": steps} if recipes else {}),
        "seeds": list(numbers),
    }
    sources = tuple(dict.fromkeys([*plan.raw.sources, *(source for theory in chosen for source in theory.sources)]))
    return Result("compare", settings, Table(rows), arrays, verified, sources, origin)


def _read(data: Data, models: Sequence[str | Path | Saved], device: str) -> tuple[TokenData | tuple[Images, Images], list[StoredNetwork]]:
    """Tokens, or images where they were given or models need them; and the models."""
    if isinstance(data, TokenData):
        if models:
            raise ValueError(f"models need images, got tokens ({data.name}); name the images, or pass data.images(...)")
        return data, []
    if not models and not isinstance(data, tuple):
        return data_module.load(data), []
    images = data if isinstance(data, tuple) else image_sets.images(data)
    return images, stored_networks(models, images[1], objectives=objectives(), device=device) if models else []


def _inputs(
    source: TokenData | tuple[Images, Images], seed: int, progress: Callable[[str], None]
) -> tuple[TokenData, tuple[Images, Images] | None]:
    """The tokens of one seed and, of images, the training and test images in random order; the tokens are those of the test images."""
    if isinstance(source, TokenData):
        return source, None
    progress(f"{len(source[1])} test images: cutting tokens")
    train, test = (part.mixed(torch.Generator().manual_seed(seed)) for part in source)
    return _tokens(test, seed), (train, test)


def _tokens(images: Images, seed: int) -> TokenData:
    """The images as tokens, cut as :func:`data.load` cuts them."""
    return image_sets.tokens_of(images, torch.Generator().manual_seed(seed))


def _stream(plan: Plan) -> Stream:
    """All measurements of one seed but the claims."""
    views = {"": plan.raw}
    if plan.recipes or not plan.networks:
        yield from _trained_networks(plan, views)
    if plan.networks:
        yield from _stored_networks(plan, views)
    for model, tokens in views.items():
        for theory in plan.theories:
            if theory.on_data is not None:
                plan.progress(f"{f'features of {model}' if model else 'raw tokens'}: {theory.title}")
                yield from _on_data(theory, tokens, model, plan)


def _trained_networks(plan: Plan, views: dict[str, TokenData]) -> Stream:
    """Trains the small networks; their features become views of the data."""
    if plan.raw.labels is None or len(plan.raw.labels.unique()) < 2:
        reason = "training needs labels of at least two classes"
        yield Measurement("network", "network", ACCURACY, None, unit="share", reason=reason)
        return
    if plan.images is None:
        train, validation = plan.raw.split(TRAIN_SHARE, plan.generator())
    else:
        train, validation = _tokens(plan.images[0], plan.seed), plan.raw
    if not plan.networks:
        yield _pictured(validation, validation.images)
    for recipe in plan.recipes:
        trained = monitored_training(
            recipe,
            train,
            validation,
            metrics=plan.metrics,
            steps=plan.steps,
            seed=plan.seed,
            featured=FEATURE_SEQUENCES,
            device=plan.device,
            progress=plan.progress,
        )
        yield from trained.rows
        yield trained.arrays
        yield from _headlines(plan.theories, recipe.name, trained.rows)
        views[recipe.name] = tokens = _features(trained.model, validation[:FEATURE_SEQUENCES], seed=plan.seed)
        yield _projections(recipe.name, tokens, trained.queries)


def _stored_networks(plan: Plan, views: dict[str, TokenData]) -> Stream:
    """Measures the stored networks on test images; their features become views of the data."""
    assert plan.images is not None
    train, test = plan.images
    yield _pictured(plan.raw, test.pixels[:PICTURED].double() / 255)
    rows: list[Measurement] = []
    for network in plan.networks:
        plan.progress(f"{network.name}: {len(test)} test images")
        rows += measure_objective(network, train, test)
    rows += side_by_side(runs_of(plan.networks))
    shares = {row.quantity: row.unit == "share" for row in rows}
    for quantity in sorted(shares, key=lambda name: not shares[name]):  # one quantity at a time, accuracies first
        yield from Table(rows).select(quantity=quantity)
    for network in plan.networks:
        plan.progress(f"{network.name}: metrics of all theories, beside untrained networks")
        measured = measure_metrics(network, test, metrics=plan.metrics, seed=plan.seed)
        yield from _timeline(network, plan.theories, measured)
        yield from _headlines(plan.theories, network.name, measured)
        yield from _by_layer(plan.theories, measured)
        yield maps(network, test)
        tokens = _features(network.measured, plan.raw[:FEATURE_SEQUENCES], seed=plan.seed, layer=network.last_block, inputs="images")
        views[network.name] = tokens
        yield _projections(network.name, tokens)


def _timeline(network: StoredNetwork, theories: Iterable[Theory], measured: Sequence[Measurement]) -> Iterator[Measurement]:
    """The measurements of a network's training. What its run did not measure has one step: the measurement on test images.

    Without its run, or if the run is shown with another network, that holds for everything.
    """
    chosen = {"network", *(theory.name for theory in theories)}
    training = timeline(network).where(lambda row: row.theory in chosen)
    known = set(training.column("theory"))
    yield from training
    yield from (row for row in measured if row.theory not in known)


def _on_data(theory: Theory, tokens: TokenData, model: str, plan: Plan) -> Stream:
    """A theory on raw tokens or on the features of a network; unsupported data give one row with the reason."""
    assert theory.on_data is not None
    problem = theory.on_data.read(tokens)
    if isinstance(problem, Unsupported):
        yield Measurement(theory.name, "on data", theory.on_data.headline, None, reason=problem.reason, model=model)
        return
    for item in theory.on_data.measure(problem, plan.generator()):
        if isinstance(item, Arrays):
            yield item if not model else Arrays({f"{model}::{name}": array for name, array in item.items()})
        else:
            yield replace(item, model=model)


def _headlines(theories: Iterable[Theory], model: str, rows: Sequence[Measurement]) -> Iterator[Measurement]:
    """The headline of each theory at the last step, averaged over layers and heads, beside its null.

    No theorem covers a network of several layers trained by AdamW, so there is no verdict.
    """
    for theory in theories:
        if theory.in_networks is None:
            continue
        inside = theory.in_networks
        measured = Table(rows).select(theory=theory.name, quantity=inside.headline).where(lambda row: row.value is not None)
        absent = Measurement(theory.name, "in network", inside.headline, None, reason=f"no layer of {model} has it", model=model)
        absent = replace(absent, side=inside.side, scope="training", source=theory.sources[0])
        if not measured:
            yield absent
            continue
        last = max(row.step or 0 for row in measured)
        ends = [row for row in measured if (row.step or 0) == last]
        mean, note = over_heads(ends), f"mean over layers and heads after {last:,} steps"
        yield replace(absent, value=mean.value, unit=mean.unit, null=mean.null, n=mean.n, split=mean.split, reason="", note=note)


def _by_layer(theories: Iterable[Theory], rows: Sequence[Measurement]) -> Iterator[Measurement]:
    """The headlines layer by layer, without step: means over heads."""
    for theory in theories:
        if theory.in_networks is not None:
            own = [row for row in rows if row.theory == theory.name and row.quantity == theory.in_networks.headline]
            yield from (replace(row, step=None) for row in mean_over_heads(own))


def _verified(theories: Iterable[Theory], outcomes: Iterator[Verification], progress: Callable[[str], None]) -> Iterator[Verification]:
    for theory in theories:
        progress(f"{theory.title}: {len(theory.claims)} claim{'s' if len(theory.claims) != 1 else ''} with controls")
        for _ in theory.claims:
            yield next(outcomes)


def _features(model: nn.Module, data: TokenData, *, seed: int, layer: int | str = -1, inputs: str = "tokens") -> TokenData:
    """The tokens after the trained network's last block, with visual words of their own.

    The words are a codebook of these tokens. A class token is the same query in every sequence, so it is a word of its own.
    """
    tokens = features(model, data, layer=layer, inputs=inputs)
    if data.ids is None or data.labels is None:
        return tokens
    position = tokens.query_position
    patches = torch.ones(tokens.tokens.shape[1], dtype=torch.bool)
    if position is not None and tokens.tokens.shape[1] > data.tokens.shape[1]:
        patches[position] = False
    k = min(CODEBOOK_SIZE, len(tokens.tokens[:, patches].flatten(0, 1).unique(dim=0)))
    ids = torch.full(tokens.tokens.shape[:2], k)
    ids[:, patches], _ = data_module.codebook(tokens.tokens[:, patches], k, generator=torch.Generator().manual_seed(seed))
    return replace(tokens, ids=ids, next_id=k + 1 + data.labels, vocab_size=k + 1 + data.classes)


def _projections(name: str, tokens: TokenData, before: Sequence[Tensor] = ()) -> Arrays:
    """The query tokens (in these networks the class tokens) in the plane of their two largest principal components, [n, 2].

    Args:
        before: the same tokens at the steps of the attention maps, each [n, dim]. They are projected into the same plane, so that over the
            steps the points move and the plane does not: ``network/<name>/features over training``, [steps, n, 2].
    """
    assert tokens.query is not None
    middle = tokens.query.mean(0)
    _, _, directions = torch.linalg.svd(tokens.query - middle, full_matrices=False)
    arrays = Arrays({f"network/{name}/features": ((tokens.query - middle) @ directions[:2].T).numpy()})
    if before:
        projected = (torch.stack(list(before)) - middle) @ directions[:2].T
        arrays[f"network/{name}/features over training"] = projected.to(torch.float32).numpy()
    return arrays


def _pictured(data: TokenData, images: Tensor | None) -> Arrays:
    """The images behind the attention maps, in [0, 1], and the labels behind the features."""
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


def _seeds(name: str, seeds: int | Iterable[int], *, minimum: int) -> tuple[int, ...]:
    if isinstance(seeds, int):
        integers(minimum=minimum, **{name: seeds})
        return tuple(range(seeds))
    numbers = tuple(dict.fromkeys(int(seed) for seed in seeds))
    if len(numbers) < minimum or any(not 0 <= seed < 2**32 for seed in numbers):
        raise ValueError(f"{name} must be a number or a list of numbers in [0, 2**32), got {list(numbers)}; pass e.g. {name}=3")
    return numbers


def _check_device(device: str) -> None:
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        first = str(error).splitlines()[0]
        raise ValueError(f"device must be one that torch can use here, got {device!r} ({first}); use 'cpu'") from error

"""Every theory on the same real data and the same trained networks: the main job of this library.

What :func:`compare` does, in order: it splits the data, trains small networks on one part and reads every theory's order parameters in
them while they train (on held-out sequences, beside their nulls), runs each theory's own minimal model on the raw tokens and on the
networks' features, and verifies each theory's claims with their controls. Networks that ``train`` has left can take the place of the small
ones: they are read on test images, of which the raw tokens are cut. All of it becomes one
:class:`~transformer_theory.core.experiment.Result`:

* rows without ``step``: what a theory predicts and what was measured; ``model`` names the view of the data ("raw" or a network);
* rows with ``step``: the timeline of a network in training;
* rows of theory "network": test accuracy of given networks, and their runs side by side (:mod:`.training.side_by_side`);
* rows "claim: ..." (one a seed) and "claim verdict: ..." (one a claim);
* arrays: ``"<room>/..."`` on the raw tokens, ``"<network>::<room>/..."`` on features, ``"network/<network>/..."`` of the networks.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor, nn

from . import data as data_module
from .core.claims import Evidence
from .core.errors import nearest
from .core.measurement import Arrays, Row, collect, finding, not_applicable, select
from .core.notes import common, is_share, joined
from .core.parallel import one_thread, workers
from .core.result import Result, provenance
from .core.theory import Theory
from .core.verification import rows as claim_rows
from .core.verification import verdicts
from .data import Images, TokenData, image_sets
from .theories import THEORIES
from .theories import theory as theory_named
from .training.compared import Compared, by_layer, compared
from .training.recipes import RECIPES, Recipe
from .training.saved import Saved
from .training.side_by_side import runs_of, side_by_side
from .training.watch import PICTURED, watched_training

TRAIN_SHARE = 0.7
WORDS = 32  # of the codebook of a network's features
FEATURE_SEQUENCES = 512  # held-out sequences whose features the rooms read
CLAIM_SEEDS = 3  # the quick setting; `transformer-theory verify` takes more


def compare(
    data: TokenData | tuple[Images, Images] | str | Path,
    theories: Iterable[str | Theory] | None = None,
    *,
    seed: int = 0,
    steps: int = 600,
    networks: Sequence[str] | None = None,
    models: Sequence[str | Path | Saved] = (),
    claim_seeds: int = CLAIM_SEEDS,
    device: str = "cpu",
    workers: int | str | None = None,
    progress: Callable[[str], None] | None = None,
) -> Result:
    """What each theory predicts on these data, what was measured, and where the two agree. Runs on one thread (its matrices are small).

    Args:
        data: tokens [n, seq, dim] with whatever else is known (:class:`TokenData`), a name for :func:`data.load`, or the path of an
            ``.npz``; or training and test images, as :func:`data.images` gives them. With ``models`` a name or path is of images.
        theories: names or records; all if None.
        seed: of the split, the networks and the rooms. The claims use seeds of their own.
        steps: optimiser steps of each small network.
        networks: small networks to train, names in ``training.RECIPES``; if None, all, or none beside ``models``. They learn the labels;
            without labels of two classes none is trained (a row says so). Of images they learn the training part.
        models: trained networks: files or folders that ``train`` has left, or what ``training.saved.load`` gave.
        claim_seeds: seeds that each claim is checked on. The claims draw instances of their own and depend on no data: 0 leaves them out.
        device: where the networks train and are read.
        workers: processes that share the claims and their seeds, or the address of a dask scheduler (see :func:`~.workers.at_work`); None
            leaves the active joblib context as it is. The rows do not depend on them.
        progress: called with one line at each stage.
    Returns:
        One result with all rows and arrays (see the module's docstring).
    Raises:
        ValueError: an unknown theory, network or device, fewer than 1 step or 0 seeds, no such workers, data that cannot be read, a
            model that is none or that does not fit the images, or models without images.
        FileNotFoundError: there is no such model.
        ConnectionError: no scheduler answers, or it has no workers.
    """
    started = time.perf_counter()
    chosen = choose(theories)
    recipes = _recipes((() if models else tuple(RECIPES)) if networks is None else networks)
    _check(steps, claim_seeds, device)
    say = progress or (lambda text: None)
    read, found = _read(data, models, device)
    with torch.random.fork_rng(devices=[]), workers(workers), one_thread():
        if isinstance(read, TokenData):
            raw, images = read, None
        else:
            say(f"{len(read[1])} test images: cutting tokens")
            train, test = (part.mixed(torch.Generator().manual_seed(seed)) for part in read)
            images = train, test
            raw = _tokens(images[1], seed)

        def parts() -> tuple[TokenData, TokenData]:
            return raw.split(TRAIN_SHARE, torch.Generator().manual_seed(seed)) if images is None else (_tokens(images[0], seed), raw)

        rows, arrays = collect(_stream(raw, parts, images, chosen, recipes, found, steps, seed, claim_seeds, device, say))
        origin = provenance(seed=seed, device=device, started=started)
    params = {
        "data": raw.name,
        "n": len(raw),
        "seq": raw.tokens.shape[1],
        "dim": raw.tokens.shape[2],
        "theories": [theory.name for theory in chosen],
        "networks": [recipe.name for recipe in recipes],
        **({"models": {one.name: str(one.file or "in memory") for one in found}} if found else {}),
        **({} if found and not recipes else {"steps of the small networks" if found else "steps": steps}),
        "seed": seed,
    }
    sources = tuple(dict.fromkeys([*raw.sources, *(source for theory in chosen for source in theory.sources)]))
    return Result("compare", params, rows, arrays, sources, origin)


def _read(
    data: TokenData | tuple[Images, Images] | str | Path, models: Sequence[str | Path | Saved], device: str
) -> tuple[TokenData | tuple[Images, Images], list[Compared]]:
    """Tokens, or images where they were given or models read them; and the models."""
    if isinstance(data, TokenData):
        if models:
            raise ValueError(f"models read images, got tokens ({data.name}); name the images, or pass data.images(...)")
        return data, []
    if not models and not isinstance(data, tuple):
        return data_module.load(data), []
    images = data if isinstance(data, tuple) else image_sets.images(data)
    return images, compared(models, images[1], device=device)


def _tokens(images: Images, seed: int) -> TokenData:
    """The images as the rooms read them, cut as those of :func:`data.load` are."""
    return image_sets.tokens_of(images, torch.Generator().manual_seed(seed))


def _stream(
    raw: TokenData,
    parts: Callable[[], tuple[TokenData, TokenData]],
    images: tuple[Images, Images] | None,
    theories: tuple[Theory, ...],
    recipes: Sequence[Recipe],
    found: Sequence[Compared],
    steps: int,
    seed: int,
    claim_seeds: int,
    device: str,
    progress: Callable[[str], None],
) -> Iterator[Row | Arrays]:
    claims = [claim for theory in theories for claim in theory.claims] if claim_seeds else []
    checked = verdicts(claims, range(claim_seeds))  # by other processes, if there are any, while the networks train here
    views = {"raw": raw}
    if found:
        assert images is not None
        yield _pictured(raw, images[1].pixels[:PICTURED].double() / 255)
    if recipes or not found:
        if raw.labels is None or len(raw.labels.unique()) < 2:
            yield not_applicable("network", "training needs labels of at least two classes")
        else:
            train, held_out = parts()
            if not found:
                yield _pictured(held_out, held_out.images)
            for recipe in recipes:
                trained = watched_training(
                    recipe,
                    train,
                    held_out,
                    reducers=lambda: [reducer for theory in theories for reducer in theory.reducers()],
                    steps=steps,
                    seed=seed,
                    featured=FEATURE_SEQUENCES,
                    device=device,
                    progress=progress,
                )
                yield from trained.rows
                yield trained.arrays
                for theory in theories:
                    yield from _order_parameter(theory, recipe.name, trained.rows)
                views[recipe.name] = seen = _features(trained.model, held_out[:FEATURE_SEQUENCES], seed=seed)
                yield _pictures(recipe.name, seen, trained.queries)
    if images is not None:
        yield from _side_by_side(found, *images, progress)
    for one in found:
        assert images is not None
        yield from _given(one, images[1], theories, seed, progress)
        seen = _features(one.reader, raw[:FEATURE_SEQUENCES], seed=seed, layer=one.last_block, inputs="images")
        views[one.name] = seen
        yield _pictures(one.name, seen)
    for view, tokens in views.items():
        for theory in theories:
            progress(f"{'raw tokens' if view == 'raw' else f'features of {view}'}: {theory.title}")
            yield from _as_view(theory.measure(tokens, torch.Generator().manual_seed(seed)), view)
    for theory in theories if claim_seeds else ():
        progress(f"{theory.title}: {len(theory.claims)} claim{'s' if len(theory.claims) != 1 else ''} with controls")
        for verdict in islice(checked, len(theory.claims)):
            yield from claim_rows(verdict)


def _side_by_side(found: Sequence[Compared], train: Images, test: Images, progress: Callable[[str], None]) -> Iterator[Row]:
    """What the given networks make of all test images, then their runs side by side; a quantity at a time, accuracies first."""
    rows: list[Row] = []
    for one in found:
        progress(f"{one.name}: {len(test)} test images")
        rows += one.tested(train, test)
    rows += side_by_side(runs_of(found))
    quantities = dict.fromkeys(row["quantity"] for row in rows)
    for quantity in sorted(quantities, key=lambda name: not is_share(name)):
        yield from select(rows, quantity=quantity)


def _given(one: Compared, test: Images, theories: tuple[Theory, ...], seed: int, progress: Callable[[str], None]) -> Iterator[Row | Arrays]:
    """A given network by itself: what the theories read in it on test images, and the timeline of its run.

    A network whose run is not there, or is shown under another of its networks already, has that one reading as its timeline.
    """
    progress(f"{one.name}: every theory's reading, beside untrained networks")
    readings = one.observed(test, theories, seed=seed)
    yield from one.timeline() or readings
    for theory in theories:
        yield from _order_parameter(theory, one.name, readings)
    for row in by_layer(theories, readings):
        yield Row(**{**row, "model": one.name})
    yield one.maps(test)


def _as_view(stream: Iterable[Row | Arrays], view: str) -> Iterator[Row | Arrays]:
    """The rows and arrays of a room, marked with the data they were measured on."""
    for item in stream:
        if isinstance(item, Arrays):
            yield item if view == "raw" else Arrays({f"{view}::{name}": array for name, array in item.items()})
        else:
            yield Row(**{**item, "model": view})


def _features(model: nn.Module, data: TokenData, *, seed: int, layer: int | str = -1, inputs: str = "tokens") -> TokenData:
    """The tokens as the trained network's last block hands them on, with visual words of their own.

    The words are a codebook of these tokens. A class token asks the same question in every sequence, so it is a word of its own.
    """
    seen = data_module.features(model, data, layer=layer, inputs=inputs)
    if data.ids is None or data.labels is None:
        return seen
    place = seen.query_position
    patches = torch.ones(seen.tokens.shape[1], dtype=torch.bool)
    if place is not None and seen.tokens.shape[1] > data.tokens.shape[1]:
        patches[place] = False
    k = min(WORDS, len(seen.tokens[:, patches].flatten(0, 1).unique(dim=0)))
    ids = torch.full(seen.tokens.shape[:2], k)
    ids[:, patches], _ = data_module.codebook(seen.tokens[:, patches], k, generator=torch.Generator().manual_seed(seed))
    return replace(seen, ids=ids, next_id=k + 1 + data.labels, vocab_size=k + 1 + data.classes)


def _pictures(name: str, seen: TokenData, before: Sequence[Tensor] = ()) -> Arrays:
    """The query tokens (of these networks: the class tokens) in the plane of their two largest principal components, [n, 2].

    Args:
        before: the same tokens at the steps of the attention maps, each [n, dim]. They are put into that same plane, so that over the steps
            the points move and the plane does not: ``network/<name>/features over training``, [steps, n, 2].
    """
    assert seen.query is not None
    middle = seen.query.mean(0)
    _, _, directions = torch.linalg.svd(seen.query - middle, full_matrices=False)
    arrays = Arrays({f"network/{name}/features": ((seen.query - middle) @ directions[:2].T).numpy()})
    if before:
        placed = (torch.stack(list(before)) - middle) @ directions[:2].T
        arrays[f"network/{name}/features over training"] = placed.to(torch.float32).numpy()
    return arrays


def _pictured(held_out: TokenData, images: Tensor | None) -> Arrays:
    """The images behind the attention maps, in [0, 1], and the labels behind the features."""
    assert held_out.labels is not None
    arrays = Arrays({"network/labels": held_out.labels[:FEATURE_SEQUENCES].numpy()})
    if images is not None:
        arrays["network/images"] = images[:PICTURED].numpy()
    return arrays


def _order_parameter(theory: Theory, model: str, timeline: list[Row]) -> Iterator[Row]:
    """One row: the theory's order parameter in the trained network, averaged over layers and heads, against its null.

    A network of several layers trained by AdamW meets no theorem's assumptions, so this is a reading, never a verdict on the theory.
    """
    rows = [row for row in select(timeline, theory=theory.name, quantity=theory.order_parameter) if row["value"] is not None]
    if not rows:
        yield Row(**{**not_applicable(theory.name, f"no layer of {model} shows its {theory.order_parameter}"), "model": model})
        return
    last = max(row.get("step", 0) for row in rows)
    rows = [row for row in rows if row.get("step") == last]
    values = [float(row["value"] or 0.0) for row in rows]
    nulls = [null for row in rows if (null := row.get("null")) is not None]
    value = sum(values) / len(values)
    null = sum(nulls) / len(nulls) if nulls else float("nan")
    yield finding(
        theory.name,
        f"{theory.order_parameter} in the trained network",
        Evidence(value, null, theory.order_relation, covered=False),
        source=theory.sources[0],
        null=null,
        model=model,
        note=joined(f"mean over layers and heads after {last:,} steps", common(rows)),
    )


def _recipes(names: Sequence[str]) -> list[Recipe]:
    for name in names:
        if name not in RECIPES:
            raise ValueError(f"unknown network {name!r}{nearest(name, RECIPES)}")
    return [RECIPES[name] for name in names]


def _check(steps: int, claim_seeds: int, device: str) -> None:
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    if claim_seeds < 0:
        raise ValueError(f"claim_seeds must be at least 0, which leaves the claims out, got {claim_seeds}")
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        first = str(error).splitlines()[0]
        raise ValueError(f"device must be one that torch can use here, got {device!r} ({first}); use 'cpu'") from error


def choose(theories: Iterable[str | Theory] | None) -> tuple[Theory, ...]:
    """The records of the named theories, in the given order; all if None.

    Raises:
        ValueError: an unknown name (the nearest one is suggested), or none.
    """
    if theories is None:
        return THEORIES
    chosen = tuple(dict.fromkeys(given if isinstance(given, Theory) else theory_named(given) for given in theories))
    if not chosen:
        raise ValueError(f"theories must name at least one, got none; there are: {', '.join(theory.name for theory in THEORIES)}")
    return chosen

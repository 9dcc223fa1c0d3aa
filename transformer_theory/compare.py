"""Every theory on the same real data and the same trained networks: the main job of this library.

What :func:`compare` does, in order: it splits the data, trains small networks on one part and reads every theory's order parameters in
them while they train (on held-out sequences, beside their nulls), runs each theory's own minimal model on the raw tokens and on the
networks' features, and verifies each theory's claims with their controls. All of it becomes one
:class:`~transformer_theory.experiment.Result`:

* rows without ``step``: what a theory predicts and what was measured; ``model`` names the view of the data ("raw" or a network);
* rows with ``step``: the timeline of a network in training;
* rows "claim: ..." (one a seed) and "claim verdict: ..." (one a claim);
* arrays: ``"<room>/..."`` on the raw tokens, ``"<network>::<room>/..."`` on features, ``"network/<network>/..."`` of the networks.
"""

import functools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from . import data as data_module
from .claims import CONTROL_WORDS, Claim, Evidence, Verdict
from .data import TokenData
from .errors import nearest
from .experiment import Result, provenance
from .rows import Arrays, Row, collect, finding, not_applicable, select
from .theories import THEORIES
from .theories import theory as theory_named
from .theory import Theory
from .threads import one_thread
from .training.recipes import RECIPES, Recipe
from .training.watch import PICTURED, watched_training

TRAIN_SHARE = 0.7
WORDS = 32  # of the codebook of a network's features
FEATURE_SEQUENCES = 512  # held-out sequences whose features the rooms read
CLAIM_SEEDS = range(3)  # the quick setting; `transformer-theory verify` takes more


def compare(
    data: TokenData | str | Path,
    theories: Iterable[str | Theory] | None = None,
    *,
    seed: int = 0,
    steps: int = 600,
    networks: Sequence[str] = tuple(RECIPES),
    device: str = "cpu",
    progress: Callable[[str], None] | None = None,
) -> Result:
    """What each theory predicts on these data, what was measured, and where the two agree. Runs on one thread (its matrices are small).

    Args:
        data: tokens [n, seq, dim] with whatever else is known (:class:`TokenData`), a name for :func:`data.load`, or the path of an
            ``.npz``.
        theories: names or records; all if None.
        seed: of the split, the networks and the rooms. The claims use seeds of their own.
        steps: optimiser steps of each network.
        networks: names in ``training.RECIPES``. They learn the labels; without labels of two classes none is trained (a row says so).
        device: where the networks train.
        progress: called with one line at each stage.
    Returns:
        One result with all rows and arrays (see the module's docstring).
    Raises:
        ValueError: an unknown theory, network or device, fewer than 1 step, or data that cannot be read.
    """
    started = time.perf_counter()
    chosen = choose(theories)
    recipes = _recipes(networks)
    _check(steps, device)
    data = data if isinstance(data, TokenData) else data_module.load(data)
    with torch.random.fork_rng(devices=[]), one_thread():
        rows, arrays = collect(_stream(data, chosen, recipes, steps, seed, device, progress or (lambda text: None)))
        origin = provenance(seed=seed, device=device, started=started)
    params = {
        "data": data.name,
        "n": len(data),
        "seq": data.tokens.shape[1],
        "dim": data.tokens.shape[2],
        "theories": [theory.name for theory in chosen],
        "networks": [recipe.name for recipe in recipes],
        "steps": steps,
        "seed": seed,
    }
    sources = tuple(dict.fromkeys([*data.sources, *(source for theory in chosen for source in theory.sources)]))
    return Result("compare", params, rows, arrays, sources, origin)


def _stream(
    data: TokenData,
    theories: tuple[Theory, ...],
    recipes: Sequence[Recipe],
    steps: int,
    seed: int,
    device: str,
    progress: Callable[[str], None],
) -> Iterator[Row | Arrays]:
    views = {"raw": data}
    if data.labels is None or len(data.labels.unique()) < 2:
        yield not_applicable("network", "training needs labels of at least two classes")
    else:
        train, held_out = data.split(TRAIN_SHARE, torch.Generator().manual_seed(seed))
        yield _pictured(held_out)
        for recipe in recipes:
            trained = watched_training(
                recipe,
                train,
                held_out,
                reducers=lambda: [reducer for theory in theories for reducer in theory.reducers()],
                steps=steps,
                seed=seed,
                device=device,
                progress=progress,
            )
            yield from trained.rows
            yield trained.arrays
            for theory in theories:
                yield from _order_parameter(theory, recipe.name, trained.rows)
            views[recipe.name] = seen = _features(trained.model, held_out[:FEATURE_SEQUENCES], seed=seed)
            yield _pictures(recipe.name, seen)
    for view, tokens in views.items():
        for theory in theories:
            progress(f"{theory.title}: its own model on {'the raw tokens' if view == 'raw' else f'the features of {view}'}")
            yield from _as_view(theory.measure(tokens, torch.Generator().manual_seed(seed)), view)
    for theory in theories:
        progress(f"{theory.title}: {len(theory.claims)} claims, each with its control")
        yield from _claims(theory)


def _as_view(stream: Iterable[Row | Arrays], view: str) -> Iterator[Row | Arrays]:
    """The rows and arrays of a room, marked with the data they were measured on."""
    for item in stream:
        if isinstance(item, Arrays):
            yield item if view == "raw" else Arrays({f"{view}::{name}": array for name, array in item.items()})
        else:
            yield Row(**{**item, "model": view})


def _features(model: nn.Module, data: TokenData, *, seed: int) -> TokenData:
    """The tokens as the trained network's last block hands them on, with visual words of their own.

    The words are a codebook of these tokens. A class token asks the same question in every sequence, so it is a word of its own.
    """
    seen = data_module.features(model, data, layer=-1)
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


def _pictures(name: str, seen: TokenData) -> Arrays:
    """The query tokens (of these networks: the class tokens) in the plane of their two largest principal components, [n, 2]."""
    assert seen.query is not None
    centred = seen.query - seen.query.mean(0)
    _, _, directions = torch.linalg.svd(centred, full_matrices=False)
    return Arrays({f"network/{name}/features": (centred @ directions[:2].T).numpy()})


def _pictured(held_out: TokenData) -> Arrays:
    """The images behind the attention maps, and the labels behind the features."""
    assert held_out.labels is not None
    arrays = Arrays({"network/labels": held_out.labels[:FEATURE_SEQUENCES].numpy()})
    if held_out.images is not None:
        arrays["network/images"] = held_out.images[:PICTURED].numpy()
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
    values = [float(row["value"] or 0.0) for row in rows if row.get("step") == last]
    nulls = [null for row in rows if row.get("step") == last and (null := row.get("null")) is not None]
    value = sum(values) / len(values)
    null = sum(nulls) / len(nulls) if nulls else float("nan")
    yield finding(
        theory.name,
        f"{theory.order_parameter} in the trained network",
        Evidence(value, null, theory.order_relation, in_assumptions=False),
        source=theory.sources[0],
        null=null,
        model=model,
        note=f"mean over layers and heads after {last} steps",
    )


@functools.cache
def _verdict(claim: Claim) -> Verdict:
    """It depends on neither data nor networks, so several comparisons in one process check each claim once."""
    return claim.verify(CLAIM_SEEDS)


def _claims(theory: Theory) -> Iterator[Row]:
    for claim in theory.claims:
        verdict = _verdict(claim)
        for row in verdict.rows():
            yield Row(**row)
        yield Row(
            theory=theory.name,
            quantity=f"claim verdict: {claim.id}",
            value=verdict.share,
            verdict=verdict.verdict if verdict.control == "fails" else f"control {CONTROL_WORDS[verdict.control]}",
            control=verdict.control,
            source=str(claim.source),
            note=str(verdict),
        )


def _recipes(names: Sequence[str]) -> list[Recipe]:
    for name in names:
        if name not in RECIPES:
            raise ValueError(f"unknown network {name!r}{nearest(name, RECIPES)}")
    return [RECIPES[name] for name in names]


def _check(steps: int, device: str) -> None:
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
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

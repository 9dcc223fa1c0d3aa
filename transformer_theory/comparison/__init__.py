"""Comparison of all theories on the same data and in the same trained networks.

:func:`compare` does four things. It trains small networks of several seeds on one part of the data and
computes every theory's metrics on the other part. It measures copies of equal scale of each, networks trained
on permuted labels, and untrained networks of the same sizes. It runs each theory's minimal model on the raw
tokens, on the networks' features, and on noise of the same shapes. It verifies each theory's quick claims
with their controls. Stored networks (from ``transformer-theory train``) can replace the small ones. The
:class:`~..core.result.Result` holds one row per seed:

* rows of kind "on data" and "assumption": the theory's minimal model on the raw tokens (``model`` is empty)
  or on a network's features; ``on_noise`` is the same quantity on noise of the same shape
  (:func:`~..data.synthetic.noise_like`);
* rows of kind "in network" and "network" with a ``step``: the theories' metrics and the general quantities
  over training;
* rows of kind "in network" without step and layer: the theory's headline in the trained network, averaged
  over layers and heads. Its first null are copies of equal scale, which decide; then follow the null of the
  metric, if that has one of its own, networks trained on permuted labels, and untrained networks
  (:func:`~..probes.measure.headline_mean`);
* rows of kind "network" without step: the test accuracy of stored networks, and a comparison of their runs;
* rows of kind "claim", one per seed, and the verifications;
* arrays of the first seed: ``"<theory>/..."`` on the raw tokens, ``"<network>::<theory>/..."`` on features,
  ``"network/<network>/..."``.

All seeds share the split of the data, so that they can share the permutations of the null distributions
(:mod:`~..core.statistics`). :meth:`.Table.summary` computes means over seeds, their intervals and p-values.
Stored results are pooled by :mod:`.pooling`; their headlines, rungs and networks are judged by
:mod:`.judged`.
"""

import importlib
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from .. import data as data_module
from ..core import listeners, parallel, threads
from ..core.errors import nearest
from ..core.progress import Progress, shown
from ..core.result import Result, provenance
from ..core.table import Table, collect
from ..core.theory import Theory
from ..core.validation import integers, seed_numbers, usable_device
from ..data import Graphs, Images, TokenData, image_sets
from ..theories import choose, objectives
from ..training.image.evaluate import StoredNetwork, load_stored_networks
from ..training.image.saved import Saved
from ..training.monitor import PICTURED
from ..training.recipes import RECIPES, Recipe
from .assembly import measurements, verifications
from .on_data import View, reads
from .plan import Plan, collected, completed, prepared
from .pretrained import Model, Pretrained, check, compared, divided, text_for
from .small_networks import COPIES_DRAWN
from .stored import images_and_labels, measure_stored_networks

NEED_IMAGES = "models need images, got {} ({}); name the images, or pass data.images(...)"

__all__ = ["Data", "compare"]

Data = TokenData | Graphs | tuple[Images, Images] | str | Path


def compare(
    data: Data,
    theories: Iterable[str | Theory] | None = None,
    *,
    seeds: int | Iterable[int] = 3,
    steps: int = 600,
    networks: Sequence[str] | None = None,
    models: Sequence[Model] = (),
    minutes: float | None = None,
    claim_seeds: int | Iterable[int] = 3,
    device: str = "cpu",
    workers: int | str | None = None,
    progress: Progress = None,
) -> Result:
    """Compares theories on the same data and in the same networks. Each process runs on one thread, since its
    matrices are small.

    Args:
        data: tokens (:class:`TokenData`), a name or path for :func:`data.load`, or training and test images
            as returned by :func:`data.images`. With ``models``, a name or path refers to images. Graphs
            (:class:`~.data.Graphs`), or the path of a file or folder of graphs: the theories that read graphs
            are compared, without networks.
        theories: names or records; None selects all.
        seeds: seeds of the networks and of the theories' models: a list, or a number n for the seeds 0 to n -
            1. Intervals and p-values of networks need at least two.
        steps: optimiser steps of each small network.
        networks: names in ``training.RECIPES`` of the small networks to train; None selects all, or none if
            there are ``models``. Networks learn the labels of the data; without labels of at least two
            classes, none is trained, and a row says so. If the data are images, networks train on the
            training images.
        models: stored networks: files or folders written by ``train``, or results of
            ``training.image.saved.load``; and networks of others as for :func:`.read_user_model`: a folder of
            ``transformers``, a name in the local cache of the hub, or ``FILE.py:FUNCTION``. The latter are
            measured as by ``measure``: on test images at their own side, or on the text of the data.
        minutes: time for each network of others, see ``measure``.
        claim_seeds: seeds of each quick claim, a list or a number; 0 omits the claims. Claims draw their own
            instances, independent of the data. Claims that train networks are not run; ``verify`` checks
            them.
        device: device on which the networks are trained and measured.
        workers: number of processes that share the work on networks, theories and claims, or the address of a
            dask scheduler (see :func:`~.core.parallel.workers`); None keeps the active joblib context. The
            measurements do not depend on it.
        progress: function called with one line of text at each stage; True or False shows the lines or hides
            them. None shows them in a notebook and in an interactive interpreter.
    Returns:
        One result with all rows and arrays (see the module's docstring).
    Raises:
        ValueError: a theory, network or device is unknown, ``steps`` is less than 1, there is no seed,
            ``workers`` is invalid, the data cannot be used, a file is not a model, a model does not fit the
            images, or there are models but no images.
        FileNotFoundError: a model does not exist.
        ConnectionError: the scheduler does not answer, or it has no workers.
    """
    started = time.perf_counter()
    theories = choose(theories)
    recipes = _recipes((() if models else tuple(RECIPES)) if networks is None else networks)
    seeds, claim_seeds = seed_numbers("seeds", seeds), seed_numbers("claim_seeds", claim_seeds, minimum=0)
    integers(steps=steps)
    usable_device(device)
    if models and isinstance(data, Graphs):
        raise ValueError(NEED_IMAGES.format("graphs", data.name))
    saved, others = divided(models)
    text = text_for(data, others)
    data, stored = read(data, saved, device, others)
    for network in others:
        check(network, images=data[1] if isinstance(data, tuple) else None, text=text)
    if isinstance(data, Graphs):
        theories, recipes = _of_graphs(theories, data), ()
    claims = [claim for theory in theories for claim in theory.claims if claim.cost == "quick"]
    with (
        torch.random.fork_rng(devices=[]),
        parallel.workers(workers, "forked" if torch.device(device).type == "cpu" else "fresh") as active,
        threads.one_thread(),
        shown(progress, "compare"),
    ):
        plan = Plan(
            *prepared(data, recipes),
            theories=theories,
            recipes=recipes,
            networks=tuple(stored),
            claims=tuple(claims if claim_seeds else ()),
            steps=steps,
            seeds=seeds,
            claim_seeds=claim_seeds,
            device=device,
        )
        listeners.progress(
            f"{plan.data.name}: {len(theories)} theories, {len(recipes)} small networks, {len(plan.claims)} "
            "claims"
        )
        if plan.trained and active.place == "forked":  # they have what was imported; optimisers import this
            importlib.import_module("torch._dynamo")
        running = completed(plan.jobs())
        on_stored: View = []
        if stored:  # they are measured in this process while others work on the jobs
            assert plan.images is not None
            assert isinstance(plan.data, TokenData)
            on_stored = [*measure_stored_networks(stored, plan.data, plan.images, theories, seeds[0])]
        if others:
            names = {network.name for network in stored} | {recipe.name for recipe in plan.trained}
            others = [
                replace(network, name=f"{network.name}, pretrained") if network.name in names else network
                for network in others
            ]
            test = None if plan.images is None else plan.images[1]
            if test is not None and not stored and not plan.trained:
                assert isinstance(plan.data, TokenData)
                on_stored += [images_and_labels(plan.data, test.pixels[:PICTURED].double() / 255)]
            on_stored += compared(
                others,
                theories,
                images=test,
                text=text,
                copies=COPIES_DRAWN,
                minutes=minutes,
                device=device,
                seed=seeds[0],
                progress=listeners.progress,
            )
        results = collected(running, plan)
        table, arrays = collect(measurements(plan, results, on_stored))
        rows = [
            replace(row, data=plan.data.name, seed=seeds[0] if row.seed is None else row.seed)
            for row in table
        ]
        verified = tuple(verifications(plan, results))
        record = provenance(seed=seeds[0] if len(seeds) == 1 else None, device=device, started=started)
    rows += [row for verification in verified for row in verification.measurements()]
    settings = {
        "data": plan.data.name,
        "n": len(plan.data),
        **(dict(zip(("seq", "dim"), plan.data.tokens.shape[1:])) if isinstance(plan.data, TokenData) else {}),
        "checksum": plan.data.checksum(),
        "theories": [theory.name for theory in theories],
        "networks": [recipe.name for recipe in recipes],
        **(
            {
                "models": {
                    **{network.name: str(network.file or "in memory") for network in stored},
                    **{network.name: network.described for network in others},
                }
            }
            if models
            else {}
        ),
        **({"steps": steps} if recipes else {}),
        "seeds": list(seeds),
    }
    sources = tuple(
        dict.fromkeys([*plan.data.sources, *(source for theory in theories for source in theory.sources)])
    )
    return Result("compare", settings, Table(rows), arrays, verified, sources, record)


def read(
    data: Data,
    models: Sequence[str | Path | Saved] = (),
    device: str = "cpu",
    others: Sequence[Pretrained] = (),
) -> tuple[TokenData | Graphs | tuple[Images, Images], list[StoredNetwork]]:
    """Reads the data and the stored networks. With these, or with other networks of images, a name or path is
    read as images, otherwise as tokens or graphs; images stay images.

    Raises:
        TypeError: the data are of another type, such as a networkx graph.
    """
    if not isinstance(data, TokenData | Graphs | tuple | str | Path):
        raise TypeError(
            f"data must be TokenData, Graphs, images, a name or a path, got {type(data).__name__}; graphs: "
            "Graphs([...])"
        )
    of_images = [network for network in others if not network.takes_ids]
    if isinstance(data, str | Path):
        reader = image_sets.images if models or of_images else data_module.load
        data = reader(data)
    if isinstance(data, TokenData | Graphs):
        if models or of_images:
            kind = "graphs" if isinstance(data, Graphs) else "tokens"
            raise ValueError(NEED_IMAGES.format(kind, data.name))
        return data, []
    return data, load_stored_networks(
        models, data[1], objectives=objectives(), device=device
    ) if models else []


def _of_graphs(theories: tuple[Theory, ...], graphs: Graphs) -> tuple[Theory, ...]:
    """Returns the theories that read graphs.

    Raises:
        ValueError: there is none.
    """
    chosen = tuple(theory for theory in theories if reads(theory, graphs))
    if not chosen:
        raise ValueError(
            f"no theory among {', '.join(theory.name for theory in theories)} reads graphs ({graphs.name}); "
            "pass tokens"
        )
    return chosen


def _recipes(names: Sequence[str]) -> tuple[Recipe, ...]:
    for name in names:
        if name not in RECIPES:
            raise ValueError(f"unknown network {name!r}{nearest(name, RECIPES)}")
    return tuple(RECIPES[name] for name in names)

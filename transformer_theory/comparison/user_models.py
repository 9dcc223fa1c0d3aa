"""The theories' quantities in one network of a user, on the user's inputs.

Metrics measure every attention and every block in passes over the inputs, the tests of the theories
(:attr:`.InNetworks.responses`) make inputs of their own. Rows without a null of their own are compared with
networks of the same kind and random weights. A quantity that cannot be measured has one row with the reason.
"""

import contextlib
import hashlib
import time
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..core.cluster import versions
from ..core.forked import processes_for
from ..core.journal import Pieces
from ..core.measurement import Measurement
from ..core.result import Result, provenance
from ..core.statistics import EQUAL_SCALE, HEADLINE_DRAWS, RANGE_DRAWS, evenly_spaced
from ..core.table import Table
from ..core.theory import Theory
from ..core.validation import integers
from ..data import Images
from ..metrics.named_tokens import LAST
from ..metrics.token_layout import TokenLayout
from ..models.copies import Copies
from ..models.hub import origin
from ..models.user_model import UserModel, checked
from ..probes.attention_maps import attention_maps, first_samples
from ..probes.cost import COPIES_OF_EQUAL_SCALE, MINUTES, OTHER_COPIES, MeasurementPlan, estimate, plan
from ..probes.evaluation import device_of, evaluation, logits_of, on_device
from ..probes.in_use import reserving
from ..probes.linear_probe import linear_probe_rows
from ..probes.main_input import MainInput, main_input
from ..probes.measure import measure_network, metrics_of, tested_metrics, with_general
from ..probes.memory import available_memory
from ..probes.paired import differences
from ..probes.passes import Inputs, batches, count, run, selected
from ..probes.token_masks import special_numbers
from ..theories import choose
from .checks import are_ids, are_of_classes, check_weights, checked_other, first_pass, limits_of_ids
from .interventions import Names, chosen_interventions, interventions_in, scored

# sequences of ids, whose nulls cost most; images and tokens, fewer for a network above SMALL
SEQUENCES, IMAGES, FEW_IMAGES = 8, 128, 64
MAX_SAME = 16  # places from the start at which ids are compared
SMALL = 5_000_000  # parameters of a small network
INTERVENED = 0.25  # of the time, for interventions
MEMORY_SHARE = 0.5  # of the memory that is available, if the user names none
SYNTHETIC_PASSES = 25.0  # forward passes of all theories' tests for each synthetic sequence
# sequences whose attention maps are stored, and the largest number of entries, 4 MiB
PICTURED, MAP_NUMBERS = 4, 2**20


@reserving
def measure(
    model: nn.Module | UserModel,
    inputs: Any = None,
    labels: Any = None,
    *,
    name: str | None = None,
    theories: Sequence[str | Theory] | None = None,
    networks: int = COPIES_OF_EQUAL_SCALE,
    memory: float | None = None,
    minutes: float | None = None,
    device: str | torch.device | None = None,
    against: nn.Module | UserModel | None = None,
    max_samples: int | None = None,
    seed: int = 0,
    special_ids: Collection[int] | None = None,
    grid: tuple[int, int] | None = None,
    described: str = "",
    images: Images | None = None,
    journal: str | Path | None = None,
    interventions: Names = (),
    progress: Callable[[str], None] = lambda text: None,
) -> Result:
    """Measures a network with the metrics and the tests of all theories; ``report.write`` makes a page of the
    result.

    Args:
        model: network; an :class:`.UserModel` brings its inputs and labels.
        inputs: ids ``[n, seq]``, images ``[n, c, h, w]`` or tokens ``[n, seq, dim]``; or several of them by
            the name of the argument.
        labels: class of each sequence, ``[n]``, for quantities of classes: integers, booleans or words.
            Sequences with negative labels have none, see :func:`.as_labels`.
        name: name of the network. None: the name of its type.
        theories: theories or their names. None: all.
        networks: number of copies of equal scale, the chance level that is tested (:mod:`.randomised`); 0: no
            copies, and no test.
        memory: largest memory for activations and metrics, GiB. None: half of what is available.
        minutes: time of the measurement with its page; sizes are chosen so that it suffices, and no further
            copy is begun when what follows needs the rest. None: :data:`.cost.MINUTES`.
        device: device on which the network, its copies and the metrics run; the network returns to its own.
            None: where the network is.
        against: a second network, which takes the same inputs and is measured on the same ones: the result
            then holds the differences of all quantities, paired over the inputs (:mod:`.paired`).
        max_samples: largest number of sequences, evenly spaced. None: :func:`default_samples`.
        seed: seed of synthetic inputs and copies.
        special_ids, grid: see :func:`.probe`; special ids may be a mapping to their tokens, which are then
            named on the page.
        described: the inputs in words. Empty: their number and shape.
        images, progress: images before normalisation, for the pictures; receives a line per step.
        journal: file of the finished parts, from which an interrupted measurement goes on; remove it when the
            result is stored. None: no file.
        interventions: interventions that are measured as well, see :func:`.intervene`, on the same inputs in
            the time that is left, a quarter at least. None: all of the theories.
    Returns:
        Rows of kind "in network" and "network" by layer and head, each with its nulls, and attention maps;
        rows of kind "intervention".
    Raises:
        ValueError: weights are not finite, inputs or labels do not fit (:func:`.checked`), the network raises
            on them, it has neither attention nor a list of blocks, memory or minutes do not suffice, the
            second network does not fit (:func:`.checked_other`), or the journal belongs to another
            measurement.
    """
    if not isinstance(model, nn.Module | UserModel):
        raise ValueError(
            f"model must be a torch.nn.Module, got {type(model).__name__}; build or load the network first"
        )
    integers(networks=networks, minimum=0)
    user = (
        model
        if isinstance(model, UserModel)
        else checked(model, inputs, labels, name=name or type(model).__name__)
    )
    if user.inputs is None:
        raise ValueError(f"{user.name} must have inputs to be measured on, got none; pass a tensor [n, ...]")
    check_weights(user.network, user.name)
    limit = max_samples or default_samples(user.network, ids=are_ids(user.inputs))
    data, classes = (
        _spaced(user.inputs, limit),
        None if user.labels is None else user.labels[evenly_spaced(len(user.labels), limit)],
    )
    outputs = first_pass(user, data)
    limits = limits_of_ids(user.network, data, special_ids)
    given = count(user.inputs)
    words = described or f"{'' if count(data) == given else f'{count(data):,} of '}{_described(user.inputs)}"
    settings = {"inputs": words, **label_settings(user.network, data, classes, outputs)}
    return measure_user_model(
        user,
        data,
        classes,
        limits=limits,
        theories=theories,
        networks=networks,
        memory=memory,
        minutes=minutes,
        device=device,
        against=against,
        seed=seed,
        settings=settings,
        pictured=images,
        journal=journal,
        interventions=interventions,
        progress=progress,
        special_ids=special_ids,
        grid=grid,
    )


probe_model = measure  # the former name, for one release


def measure_user_model(
    user: UserModel,
    data: Inputs,
    labels: Tensor | None,
    *,
    limits: Mapping[str, int],
    theories: Sequence[str | Theory] | None,
    networks: int = COPIES_OF_EQUAL_SCALE,
    memory: float | None = None,
    minutes: float | None = None,
    device: str | torch.device | None = None,
    against: nn.Module | UserModel | None = None,
    seed: int,
    settings: Mapping[str, Any],
    pictured: Images | None = None,
    journal: str | Path | None = None,
    interventions: Names = (),
    progress: Callable[[str], None] = lambda text: None,
    special_ids: Collection[int] | None = None,
    grid: tuple[int, int] | None = None,
) -> Result:
    """Measures a network on inputs that were checked.

    Args:
        user: the network with its name.
        data: inputs, tensors ``[n, ...]``.
        labels: class of each sequence, ``[n]``, or None.
        limits: "vocabulary" and "length" of a causal language model; empty for other networks, in which tests
            on ids do not run.
        theories, networks, memory, minutes, device, against, seed, journal, interventions, progress: see
            :func:`measure`.
        settings: settings of the result that the caller knows.
        special_ids, grid: see :func:`.probe`.
        pictured: images of the inputs.
    """
    chosen = [theory for theory in choose(theories) if theory.in_networks]
    minutes = MINUTES if minutes is None else minutes
    own = [theory for theory in choose(theories) if theory.interventions]
    changes = chosen_interventions(own if interventions is None else interventions)
    inputs, targets = scored(user, data, labels, limits, special_ids) if changes else (data, None)
    end_of_rows = minutes * (1 - INTERVENED * bool(changes))
    started, network = time.monotonic(), user.network
    known: dict[str, Any] = {"special_ids": special_ids, "grid": grid}
    number = _weights(network)
    parameter = next(network.parameters(), None)
    other = None if against is None else checked_other(user, against, data)
    # copies are the null that is tested, and that of a metric bears it out: 19 draws reach p = .05
    draws = RANGE_DRAWS if networks else HEADLINE_DRAWS
    identity = {
        "versions": versions(),
        "network": checksum_of(network.state_dict()),
        "structure": zlib.crc32(f"{network!r} {getattr(network, 'config', '')}".encode()),
        "inputs": checksum_of({"": data} if isinstance(data, Tensor) else data),
        "labels": "" if labels is None else checksum_of({"": labels}),
        "theories": [theory.name for theory in chosen],
        "number of copies": networks,
        "seed": seed,
        "special ids": None if special_ids is None else sorted(special_ids),
        "grid": None if grid is None else list(grid),
        "against": "" if other is None else f"{other.name} {checksum_of(other.network.state_dict())}",
        "interventions": [f"{theory.name}/{one.name}" for theory, one in changes],
    }
    pieces = Pieces(None if journal is None else Path(journal), identity)
    second = user if other is None else other
    with on_device(network, device), on_device(second.network, device or device_of(network)):
        tests = [each for theory in chosen if theory.in_networks for each in theory.in_networks.responses]

        def planned() -> dict[str, Any]:
            progress("memory and time of a few sequences")
            free = MEMORY_SHARE * available_memory(device_of(network)) if memory is None else memory * 2**30
            cost = estimate(
                network,
                data,
                lambda: with_general(metrics_of(chosen)),
                tested=lambda: tested_metrics(chosen),
                labels=labels,
                draws=draws,
                copy=partial(_one_copy, network) if networks else None,
                memory=free,
                **known,
            )
            return asdict(
                plan(
                    cost,
                    sequences=count(data),
                    copies=networks,
                    memory=free,
                    minutes=end_of_rows,
                    other_copies={kind: min(number, networks) for kind, number in OTHER_COPIES.items()},
                    synthetic=SYNTHETIC_PASSES * bool(tests),
                    paired=0.0 if other is None else _weights(other.network) / max(1, number),
                    processes=processes_for(device_of(network)),
                )
            )

        sizes = MeasurementPlan(**pieces.values("plan", planned))
        progress(str(sizes))
        data = _spaced(data, sizes.sequences)
        labels = None if labels is None else labels[evenly_spaced(len(labels), sizes.sequences)]
        shown = None if pictured is None else pictured[evenly_spaced(len(pictured), sizes.sequences)]
        table, copies = measure_network(
            network,
            data,
            chosen,
            name=user.name,
            plan=sizes,
            labels=labels,
            limits=dict(limits),
            seed=seed,
            draws=draws,
            deadline=started + 60 * end_of_rows - sizes.later,
            stored=pieces,
            progress=progress,
            **known,
        )
        if other is not None:
            paired = differences(
                network,
                other.network,
                data,
                labels,
                chosen,
                name=user.name,
                against=other.name,
                batch_size=sizes.batch,
                rounds=sizes.rounds,
                stored=pieces,
                progress=progress,
                **known,
            )
            table = Table([*table, *paired])
        if not limits:  # a causal language model has an output at every token
            options = {"name": user.name, "batch_size": sizes.batch, "special_ids": special_ids}
            probed = pieces(("linear probe",), lambda: [*linear_probe_rows(network, data, labels, **options)])
            table = Table([*table, *probed])
        if changes:
            latest = time.monotonic() + 60 * (minutes - end_of_rows)

            def changed() -> list[Measurement]:
                rows, _ = interventions_in(
                    network,
                    inputs,
                    targets,
                    changes,
                    limits=dict(limits),
                    name=user.name,
                    deadline=max(latest, started + 60 * minutes - sizes.later),
                    seed=seed,
                    processes=processes_for(device_of(network)),
                    progress=progress,
                )
                return rows

            table = Table([*table, *pieces(("interventions",), changed)])
        main = main_input(network, data, special_ids=special_ids)
        maps, layout = ({}, {}) if isinstance(main, str) else _maps(user, main, shown, sizes.batch)
    shape = {} if isinstance(data, Mapping) else {"shape": " × ".join(map(str, data.shape[1:]))}
    config = getattr(network, "config", None)
    named = None if user.folder is None else origin(user.folder)
    record = {
        "model": user.name,
        **({} if named is None else {"hub": f"{named[0]}@{named[1]}"}),
        "class": type(network).__name__,
        "parameters": number,
        "sequences": count(data),
        **shape,
        **layout,
        "same_tokens": {} if isinstance(main, str) else _same_tokens(network, main.data, special_ids),
        "causal": bool(limits),
        "precision": "" if parameter is None else str(parameter.dtype).removeprefix("torch."),
        "attention": str(getattr(config, "_attn_implementation", None) or ""),
        "copies": copies,
        "tested_sequences": sizes.tested,
        "minutes": minutes,
        "theories": [theory.name for theory in chosen],
        **({"interventions": [f"{theory.name}/{one.name}" for theory, one in changes]} if changes else {}),
        **({} if other is None else {"against": other.name}),
        **settings,
        "seed": seed,
    }
    sources = tuple(dict.fromkeys(source for theory in chosen for source in theory.sources))
    return Result("probe", record, table, maps, sources=sources, provenance=provenance())


def _same_tokens(network: nn.Module, data: Tensor, special_ids: Collection[int] | None) -> dict[str, str]:
    """Returns the ids that stand at one place in all sequences, by the place: ``{"0": "[CLS]"}``.

    Args:
        network: the network.
        data: sequences of :func:`.main_input`, the last tokens of which are those of the whole sequences only
            if they are special.
        special_ids: special ids, with their tokens if these are known.
    """
    if data.ndim != 2 or data.is_floating_point() or len(data) < 2:
        return {}
    same = (data == data[:1]).all(0).tolist()
    found = {place: int(data[0, place]) for place, known in enumerate(same[:-1][:MAX_SAME]) if known}
    if same[-1] and (last := int(data[0, -1])) in special_numbers(network, special_ids):
        found[LAST] = last
    names = special_ids if isinstance(special_ids, Mapping) else {}
    return {str(place): names.get(number, f"id {number}") for place, number in found.items()}


def _weights(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def _one_copy(network: nn.Module) -> None:
    """Makes one copy of a network, if it has any."""
    with contextlib.suppress(ValueError):
        Copies(network).draw(EQUAL_SCALE, 0)


def checksum_of(tensors: Mapping[str, Tensor]) -> str:
    """Returns the checksum of tensors by name."""
    total = hashlib.blake2b(digest_size=16)
    for name, tensor in tensors.items():
        total.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        total.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return total.hexdigest()


def label_settings(
    network: nn.Module, data: Inputs, labels: Tensor | None, outputs: Tensor | None
) -> dict[str, Any]:
    """Returns the settings "labels", the number of classes, and "right", the share of sequences whose largest
    output is their label, if the outputs can be those of classes.

    Args:
        network: the network.
        data: its inputs.
        labels: class of each sequence, ``[n]``, or None.
        outputs: outputs of the network for some sequences, or None.
    """
    settings: dict[str, Any] = {"labels": 0 if labels is None else len(labels[labels >= 0].unique())}
    if labels is not None and are_of_classes(outputs, labels):
        settings["right"] = _right(network, data, labels)
    return settings


def default_samples(network: nn.Module, *, ids: bool) -> int:
    """Returns the largest number of inputs on which a network is measured if the user names none."""
    small = _weights(network) <= SMALL
    return SEQUENCES if ids else IMAGES if small else FEW_IMAGES


def _spaced(data: Inputs, limit: int) -> Inputs:
    """Returns at most ``limit`` sequences, evenly spaced."""
    return selected(data, evenly_spaced(count(data), limit))


def _described(data: Inputs) -> str:
    if isinstance(data, Mapping):
        return f"{count(data)} sequences of {', '.join(data)}"
    kind = (
        {2: "ids", 3: "tokens"}.get(data.ndim, "images")
        if not data.is_floating_point() or data.ndim != 2
        else "rows"
    )
    return (
        f"{len(data)} sequences of {data.shape[1]} ids"
        if kind == "ids"
        else f"{len(data)} {kind} of shape {list(data.shape[1:])}"
    )


def _maps(
    user: UserModel, main: MainInput, images: Images | None, batch_size: int
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Returns attention maps ``[1, layers, heads or 1, n, queries, keys]`` of the first sequences, without
    padding, with their images in [0, 1], and what is known about the tokens of the first block.
    """
    data, layout = main.data, TokenLayout()
    first = main.inputs(data[: min(PICTURED, batch_size)])
    with torch.random.fork_rng():
        maps = attention_maps(user.network, first, keep=PICTURED, others=[layout])
    if maps is None:
        return {}, {}
    numbers = {"tokens": layout.tokens, "leading": layout.leading, "reading": layout.where}
    numbers = {**numbers, "grid": layout.grid} if layout.tokens else {}
    # too large for two sequences: figures show the mean over heads
    if maps.size and 2 * maps[:, :, 0].size > MAP_NUMBERS:
        maps = maps.mean(1, keepdims=True)
    maps = first_samples(maps, MAP_NUMBERS)
    if not maps.size:
        return {}, numbers
    arrays = {
        f"network/{user.name}/attention": maps[None],
        f"network/{user.name}/steps": np.zeros(1, dtype=int),
    }
    if images is not None:
        arrays["network/images"] = images.pixels[:PICTURED].double().numpy() / 255
    elif data.ndim == 4 and data.shape[1] in (1, 3):
        # each image fills [0, 1], since its normalisation is not known
        pixels = data[:PICTURED].double()
        low, high = (
            bound.view(-1, 1, 1, 1) for bound in (pixels.flatten(1).amin(1), pixels.flatten(1).amax(1))
        )
        arrays["network/images"] = ((pixels - low) / (high - low).clamp(min=1e-12)).cpu().numpy()
    return arrays, numbers


def _right(network: nn.Module, data: Inputs, labels: Tensor) -> float:
    """Returns the share of the sequences with a label whose largest output is their label."""
    with evaluation(network), torch.random.fork_rng():
        found = [logits_of(run(network, batch.inputs)) for batch in batches(data, None, 1)]
    largest = torch.cat([each.argmax(1).cpu() for each in found if each is not None])
    return float((largest == labels.cpu())[labels.cpu() >= 0].double().mean())

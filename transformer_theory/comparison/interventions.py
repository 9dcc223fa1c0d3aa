"""The interventions of theories in one network of a user, on the user's inputs.

Attention is changed in the forward pass as a theory names it, and beside it in matched random ways
(:mod:`~..core.intervention`). The rows say what the task's own measure loses (:mod:`~..probes.intervene`).
"""

import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ..core.errors import first_line, nearest
from ..core.forked import processes_for
from ..core.intervention import CONTROL_DRAWS, Intervention, NotChanged
from ..core.judgement import HEADLINES, Judged, judge
from ..core.measurement import Measurement
from ..core.result import Result, provenance
from ..core.statistics import evenly_spaced, over_seeds
from ..core.table import Table, grouped
from ..core.theory import Theory
from ..core.validation import integers, positive
from ..models.user_model import UserModel, checked
from ..probes.evaluation import device_of, on_device
from ..probes.in_use import reserving
from ..probes.intervene import (
    MINUTES,
    Applied,
    apply_intervention,
    draw_controls,
    rows_of,
)
from ..probes.main_input import main_input
from ..probes.passes import Inputs, count, selected
from ..probes.sample import Sample
from ..probes.subject import Subject, affordable, batch_size, halves_of
from ..theories import choose, list_theories
from .checks import are_ids, are_of_classes, check_weights, first_pass, limits_of_ids

SAMPLES, SEQUENCES = 512, 64  # largest number of images and of sequences of ids, if the user names none
NO_OUTPUTS = "{} must return a tensor of outputs to be measured, got none"
Names = str | Theory | Iterable[str | Theory] | None


@reserving
def intervene(
    model: nn.Module | UserModel,
    inputs: Any = None,
    interventions: Names = None,
    *,
    labels: Any = None,
    name: str | None = None,
    draws: int = CONTROL_DRAWS,
    minutes: float | None = None,
    device: str | torch.device | None = None,
    max_samples: int | None = None,
    seed: int = 0,
    special_ids: Collection[int] | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Result:
    """Changes the attention of a network as theories say, and measures what its outputs lose.

        tt.intervene(network, images, "scan_snap", labels=labels).table

    Args:
        model: network; an :class:`.UserModel` brings its inputs and labels.
        inputs: ids ``[n, seq]``, images ``[n, c, h, w]`` or tokens ``[n, seq, dim]``; or several of them by
            the name of the argument.
        interventions: ``"theory/name"``, a theory or its name, or several of them. None: all.
        labels: class of each sequence, ``[n]``; the measures are then accuracy and loss. Without them it is
            the next-token loss of a causal language model, or the agreement of the outputs with those of the
            unchanged network.
        name: name of the network. None: the name of its type.
        draws: largest number of draws of each control. It has 99 at most, and 9 if every sequence has draws
            of its own (:class:`~..core.intervention.Control`).
        minutes: time of all interventions. Controls are drawn on fewer sequences, or fewer of them, if it
            does not suffice. None: :data:`~..probes.intervene.MINUTES`.
        device: device on which the network runs; it returns to its own. None: where the network is.
        max_samples: largest number of sequences, evenly spaced. None: :data:`SAMPLES`, or fewer for ids.
        seed: seed of inputs, structures and draws.
        special_ids: see :func:`.probe`.
        progress: receives a line per step.
    Returns:
        Rows of kind "intervention". For each intervention and each measure (coordinate "measure") there is
        the paired difference, changed less unchanged, with its interval over samples and the draws of each
        control as nulls; and the measure without and with the change (coordinate "attention"). An
        intervention that the network has no place for has one row with the reason.
    Raises:
        NotChanged: one intervention was chosen, and it changed no attention, bit for bit; among several,
            its row has the reason.
        ValueError: an intervention is unknown, weights are not finite, inputs or labels do not fit
            (:func:`.checked`), or the network raises on them or returns no tensor.
    """
    if not isinstance(model, nn.Module | UserModel):
        raise ValueError(
            f"model must be a torch.nn.Module, got {type(model).__name__}; build or load the network first"
        )
    integers(draws=draws)
    minutes = MINUTES if minutes is None else minutes
    positive(minutes=minutes)
    chosen = chosen_interventions(interventions)
    deadline = time.monotonic() + 60 * minutes
    user = (
        model
        if isinstance(model, UserModel)
        else checked(model, inputs, labels, name=name or type(model).__name__)
    )
    if user.inputs is None:
        raise ValueError(f"{user.name} must have inputs to be measured on, got none; pass a tensor [n, ...]")
    network = user.network
    check_weights(network, user.name)
    data, classes = _with_labels(user.inputs, user.labels)
    which = evenly_spaced(count(data), max_samples or (SEQUENCES if are_ids(data) else SAMPLES))
    data, classes = selected(data, which), None if classes is None else classes[which]
    with on_device(network, device):
        first_pass(user, data)  # says what is wrong if the network does not run
        limits = limits_of_ids(network, data, special_ids)
        data, targets = scored(user, data, classes, limits, special_ids)
        rows, errors = interventions_in(
            network,
            data,
            targets,
            chosen,
            limits=limits,
            name=user.name,
            draws=draws,
            deadline=deadline,
            seed=seed,
            processes=processes_for(device_of(network)),
            progress=progress,
        )
    if len(chosen) == 1 and errors and isinstance(errors[0], NotChanged):
        raise errors[0]
    settings = {
        "model": user.name,
        "class": type(network).__name__,
        "sequences": count(data),
        "labels": 0 if classes is None else len(classes.unique()),
        "causal": bool(limits),
        "interventions": [f"{theory.name}/{intervention.name}" for theory, intervention in chosen],
        "draws": draws,
        "minutes": minutes,
        "seed": seed,
    }
    sources = tuple(dict.fromkeys(intervention.source for _, intervention in chosen))
    return Result("intervene", settings, Table(rows), sources=sources, provenance=provenance(seed=seed))


def interventions_in(
    network: nn.Module,
    data: Inputs,
    targets: Tensor | None,
    chosen: Sequence[tuple[Theory, Intervention]],
    *,
    limits: Mapping[str, int],
    name: str,
    draws: int = CONTROL_DRAWS,
    fewer: int | None = None,
    deadline: float = math.inf,
    seed: int = 0,
    processes: int = 1,
    progress: Callable[[str], None] = lambda text: None,
) -> tuple[list[Measurement], list[Exception]]:
    """Measures interventions in a network, on inputs and outputs that were checked. Returns the rows, and the
    errors of interventions that were not possible, whose rows have the reason.

    Args:
        network: the network.
        data: inputs, tensors ``[n, ...]``.
        targets: class of each sequence, ``[n]``, or next id of each token, ``[n, seq]``; see
            :class:`~..probes.intervene.Sample`.
        chosen: the interventions with their theories.
        limits: "vocabulary" and "length" of a causal language model; otherwise empty.
        name: column ``model`` of the rows.
        draws, fewer, deadline, seed, processes, progress: see :func:`~..probes.intervene.draw_controls`.
    """
    no_attention: Exception | None = None
    applied: list[Applied] = []
    try:
        sample = Sample(data, targets, batch_size(network, data))
    except (ValueError, RuntimeError) as error:
        sample, no_attention = Sample(data, targets, 1), error
    if no_attention is None and deadline < math.inf:
        possible = [one for _, one in chosen if one.inputs is None or limits]
        sample = affordable(network, sample, len(possible), deadline - time.monotonic())
    whole, halves = Subject(network, sample), halves_of(network, sample)
    rows: dict[tuple[str, str], list[Measurement]] = {}
    errors: list[Exception] = []

    def missing(theory: str, intervention: Intervention, error: Exception) -> list[Measurement]:
        errors.append(error)
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        reason = kind + first_line(error)
        return [Measurement(theory, "intervention", intervention.name, None, reason=reason, model=name)]

    for theory, intervention in chosen:
        if no_attention is not None:
            rows[theory.name, intervention.name] = missing(theory.name, intervention, no_attention)
            continue
        progress(f"{theory.name}: {intervention.name}")
        try:
            applied.append(
                apply_intervention(whole, halves, theory.name, intervention, limits=limits, seed=seed)
            )
        except (ValueError, RuntimeError) as error:
            rows[theory.name, intervention.name] = missing(theory.name, intervention, error)
    drawn = draw_controls(
        applied,
        draws=draws,
        fewer=fewer,
        deadline=deadline,
        seed=seed,
        processes=processes,
        progress=progress,
    )
    for one, drawings in zip(applied, drawn):
        try:
            found = rows_of(one, drawings, name)
        except (ValueError, RuntimeError) as error:
            found = missing(one.theory, one.intervention, error)
        rows[one.theory, one.intervention.name] = found
    return [row for theory, one in chosen for row in rows[theory.name, one.name]], errors


def judged_interventions(result: Result) -> list[Judged]:
    """Judges the interventions of a result, of each the effect on its first measure. Those of one network are
    one family of tests.

    The reason of an effect without a predicted side, that of a network at chance, is that of its row.
    """
    effects = result.table.select(kind="intervention", at={"attention": ""})
    chosen: list[list[Measurement]] = []
    for rows in grouped(effects, lambda row: (row.model, row.theory, row.quantity)).values():
        known = [row for row in rows if row.value is not None] or rows[:1]
        chosen.append(_of_equal_draws([row for row in known if row.at == known[0].at]))
    found: list[Judged] = []
    for family in grouped(chosen, lambda rows: rows[0].model).values():
        found += judge([(over_seeds(rows), rows) for rows in family], HEADLINES)
    notes = [each.rows[0].note if each.row.side is None else "" for each in found]
    return [replace(each, reason=note or each.reason) for each, note in zip(found, notes)]


def _of_equal_draws(rows: list[Measurement]) -> list[Measurement]:
    """Returns rows of several seeds whose nulls have as many draws as the one with fewest: draws i of the
    seeds are averaged.
    """
    counts: dict[str, int] = {}
    for null in (null for row in rows for null in row.nulls):
        counts[null.kind] = min(len(null.draws), counts.get(null.kind, len(null.draws)))
    return [
        replace(row, nulls=tuple(replace(null, draws=null.draws[: counts[null.kind]]) for null in row.nulls))
        for row in rows
    ]


def chosen_interventions(names: Names) -> tuple[tuple[Theory, Intervention], ...]:
    """Returns interventions with their theories, in the order of the argument.

    Args:
        names: ``"theory/name"``, a theory or its name, or several of them. None: all.
    Raises:
        ValueError: a theory or an intervention is unknown, or a theory has none.
    """
    if names is None:
        return tuple((theory, one) for theory in list_theories() for one in theory.interventions)
    known = {
        f"{theory.name}/{one.name}": (theory, one)
        for theory in list_theories()
        for one in theory.interventions
    }
    found: dict[str, tuple[Theory, Intervention]] = {}
    for name in [names] if isinstance(names, str | Theory) else names:
        if isinstance(name, str) and "/" in name:
            if name not in known:
                raise ValueError(f"unknown intervention {name!r}{nearest(name, known)}")
            found[name] = known[name]
            continue
        (theory,) = choose([name])
        if not theory.interventions:
            having = ", ".join(each.name for each in list_theories() if each.interventions)
            raise ValueError(f"{theory.name} has no interventions; theories with interventions: {having}")
        found |= {f"{theory.name}/{one.name}": (theory, one) for one in theory.interventions}
    return tuple(found.values())


def _with_labels(data: Inputs, labels: Tensor | None) -> tuple[Inputs, Tensor | None]:
    """Returns the sequences that have a label, if any has one."""
    if labels is None or not bool((labels >= 0).any()):
        return data, None
    which = (labels >= 0).nonzero().squeeze(1)
    return selected(data, which), labels[which]


def scored(
    user: UserModel,
    data: Inputs,
    labels: Tensor | None,
    limits: Mapping[str, int],
    special_ids: Collection[int] | None,
) -> tuple[Inputs, Tensor | None]:
    """Returns the inputs with what their outputs are compared with: classes, next ids, or nothing.

    Args:
        user: the network with its name.
        data: inputs, tensors ``[n, ...]``.
        labels: class of each sequence, ``[n]``; negative for sequences without, which are left out. None:
            there are none.
        limits: "vocabulary" and "length" of a causal language model; otherwise empty.
        special_ids: see :func:`.probe`.
    Raises:
        ValueError: the network raises on the inputs, or returns no tensor of outputs.
    """
    data, labels = _with_labels(data, labels)
    outputs = first_pass(user, data)
    if outputs is None or not outputs.ndim:
        raise ValueError(NO_OUTPUTS.format(user.name))
    if labels is not None and are_of_classes(outputs, labels):
        return data, labels.cpu()
    main = main_input(user.network, data, special_ids=special_ids) if limits else ""
    if isinstance(main, str):
        return data, None
    ids = main.data.cpu()
    following = torch.cat([ids[:, 1:], torch.full_like(ids[:, :1], -1)], 1)
    return main.inputs(main.data), following

"""The measurement of a network with the theories' metrics and tests.

:func:`measure_network` runs the metrics in passes over the inputs and the theories' tests on synthetic inputs
(:attr:`.InNetworks.responses`), averages headlines over heads and layers, and compares all of them with
randomised copies of the network. Trainings take the parts: :func:`.passes.measure_metrics` at
each checkpoint, :func:`run_synthetic_tests` at the end, :func:`headline_mean` when the untrained networks are
known.
"""

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..core.errors import first_line
from ..core.journal import Pieces
from ..core.measurement import Measurement, Null
from ..core.metric import Metric
from ..core.statistics import (
    COPIES,
    EQUAL_SCALE,
    HEADLINE_DRAWS,
    NETWORKS,
    evenly_spaced,
    in_order,
    nulls_of,
    over_heads,
    place_of,
)
from ..core.table import Table, grouped
from ..core.theory import InNetworks, Response, Theory
from ..metrics.class_features import NeuralCollapse
from ..metrics.named_tokens import AttendedTokens, OutlierTokens
from ..metrics.networks import AttentionStatistics, Geometry
from .cost import MeasurementPlan
from .forward_pass import NoAttention
from .jackknife import with_intervals, without_each_group
from .main_input import main_input
from .passes import Inputs, batches, count, measure_metrics, selected
from .randomised import measure_randomised
from .respond import BATCH_SIZE, response

Networks = Mapping[str, Sequence[Sequence[Measurement]]]
"""Measurements of other networks: for each kind of null (:data:`~.statistics.NETWORKS`) the rows of each."""
BLOCKS = "of an image, a block of pixels stands for a token"
NEEDS_CAUSAL = "the test needs a causal language model, which returns logits for every id"


def metrics_of(theories: Iterable[Theory]) -> list[Metric]:
    """Returns new metrics of all theories."""
    return [metric for theory in theories if theory.in_networks for metric in theory.in_networks.metrics()]


def headline_metrics(theories: Iterable[Theory]) -> list[Metric]:
    """Returns new metrics that measure the headlines of theories. A metric without the attribute ``quantity``
    may measure the headline, and is one of them.
    """
    found: list[Metric] = []
    for theory in theories:
        if theory.in_networks is not None:
            headline = theory.in_networks.headline
            metrics = theory.in_networks.metrics()
            found += [metric for metric in metrics if getattr(metric, "quantity", headline) == headline]
    return found


def tested_metrics(theories: Iterable[Theory]) -> list[Metric]:
    """Returns new metrics of what is tested against copies: the headlines with a side, sinks and outlier
    tokens.
    """
    with_side = [each for each in theories if each.in_networks and each.in_networks.side is not None]
    return [AttendedTokens(), OutlierTokens(), *headline_metrics(with_side)]


def with_general(metrics: Sequence[Metric]) -> list[Metric]:
    """Returns the metrics and the general ones, which belong to no theory: attention statistics, geometry of
    features, neural collapse, sinks and outlier tokens.
    """
    general = AttentionStatistics(), AttendedTokens(), OutlierTokens(), Geometry(), NeuralCollapse()
    return [*metrics, *general]


def measure_network(
    model: nn.Module,
    inputs: Inputs,
    theories: Sequence[Theory],
    *,
    name: str,
    plan: MeasurementPlan,
    labels: Tensor | None = None,
    limits: dict[str, int],
    seed: int,
    draws: int = HEADLINE_DRAWS,
    deadline: float = math.inf,
    special_ids: Collection[int] | None = None,
    grid: tuple[int, int] | None = None,
    stored: Pieces | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> tuple[Table, dict[str, int]]:
    """Measures a network with the metrics and the tests of theories, and with the general metrics.

    The network is measured on all inputs. Its randomised copies (:mod:`.randomised`) are measured on some of
    them, and the network beside them on the same ones. The other inputs, which the copies have not seen, give
    the intervals (:mod:`.jackknife`).

    Args:
        model: the network.
        inputs: inputs that the network accepts, tensors ``[n, ...]``.
        theories: theories with :attr:`.Theory.in_networks`.
        name: column ``model`` of the rows.
        plan: sizes of the measurement, see :func:`.cost.plan`.
        labels: class of each sequence, ``[n]``.
        limits: sizes that the inputs of the tests must not exceed, see :func:`.responses`; "vocabulary" only
            if the network is a causal language model.
        seed: seed of the synthetic inputs and of the copies.
        draws: number of null draws of the metrics' own nulls.
        deadline: time of ``time.monotonic()`` after which no further copy is measured.
        special_ids, grid: see :func:`.probe`.
        stored: rows of pieces of the work that are known already; it receives the others.
        progress: receives a line per step.
    Returns:
        Rows by layer and head, each with its nulls (:func:`~.statistics.in_order`); the headlines, averaged
        over heads and layers (:func:`headline_mean`); and the rows of the tests. What cannot be measured has
        one row with the reason. Beside them the number of copies of each kind.
    Raises:
        ValueError: the network has neither attention nor a list of similar blocks.
    """
    known: dict[str, Any] = {"special_ids": special_ids, "grid": grid}
    stored = Pieces() if stored is None else stored

    def rows_of(
        network: nn.Module, which: Tensor | None = None, whole: bool = True, draws: int = 0, said: str = ""
    ) -> list[Measurement]:
        return _metric_rows(
            network,
            inputs if which is None else selected(inputs, which),
            labels if labels is None or which is None else labels[which],
            theories,
            with_general(metrics_of(theories)) if whole else tested_metrics(theories),
            name=name,
            draws=draws,
            size=plan.batch,
            progress=(lambda done: progress(f"{said}, {done}")) if said else lambda done: None,
            **known,
        )

    n = count(inputs)
    tested = evenly_spaced(n, plan.tested if plan.copies else 0)
    held_out = torch.ones(n, dtype=torch.bool)
    held_out[tested] = False
    others = held_out.nonzero().squeeze(1) if plan.copies else torch.arange(n)
    title = f"metrics of {len(theories)} theories"
    rows = stored(("metrics",), lambda: rows_of(model, draws=draws, said=title))
    beside: list[Measurement] = []
    if 0 < len(tested) < n:
        progress("the inputs of the copies")
        beside = stored(("beside",), lambda: rows_of(model, tested))
    drawn = measure_randomised(
        model,
        lambda network, whole: rows_of(network, tested, whole),
        beside or rows,
        planned={EQUAL_SCALE: plan.copies, **plan.other_copies},
        deadline=deadline,
        families=partial(_tested_values, theories),
        seed=seed,
        stored=stored,
        progress=progress,
        processes=plan.processes,
    )
    rows = [*_without_zeros(with_nulls(rows, drawn.networks, beside))]
    if len(others) > 1:
        progress("the inputs that the copies have not seen")
        intervals = partial(
            without_each_group,
            model,
            selected(inputs, others),
            None if labels is None else labels[others],
            lambda: with_general(metrics_of(theories)),
            batch_size=plan.batch,
            rounds=plan.rounds,
            **known,
        )
        whole, without = stored_groups(stored, intervals)
        rows = with_intervals(rows, whole, without)
    answers: list[Measurement] = []
    for theory in theories:
        tests = () if theory.in_networks is None else theory.in_networks.responses
        if tests:
            progress(f"responses to synthetic inputs: {theory.title}")
            responses = partial(
                run_synthetic_tests,
                model,
                theory.name,
                tests,
                inputs,
                limits={"sequences": plan.response_sequences, **limits},
                generator=torch.Generator().manual_seed(seed),
                name=name,
                batch_size=plan.batch,
                **known,
            )
            answers += stored(("responses", theory.name), lambda responses=responses: [*responses()])
    means = [
        headline_mean(
            theory.name, theory.in_networks, rows, networks=drawn.networks, beside=beside, answers=answers
        )
        for theory in theories
        if theory.in_networks is not None
    ]
    found = [mean for mean in means if mean is not None and mean.nulls]
    if len(others) > 1:
        # The interval lies around the value on all inputs, which a reader reads beside it. Of a quantity that
        # depends on their number, the value on fewer inputs may lie far from it.
        found = with_intervals(found, found, headline_means(theories, [], without)[1])
    missing = [
        Measurement("network", "network", kind, None, reason=reason, model=name)
        for kind, reason in drawn.reasons.items()
    ]
    copies = {kind: len(networks) for kind, networks in drawn.networks.items()}
    return Table([*rows, *missing, *found, *answers]), copies


def _tested_values(
    theories: Sequence[Theory], rows: Sequence[Measurement]
) -> tuple[dict[tuple, float], dict[tuple, float]]:
    """Returns the values of the two families of tests in a network: the headlines with a side, and these in
    each layer and head.
    """
    means: dict[tuple, float] = {}
    places: dict[tuple, float] = {}
    for theory in theories:
        if theory.in_networks is not None and theory.in_networks.side is not None:
            measured = _at_last_step(rows, theory.name, theory.in_networks.headline)
            places |= {place_of(row): row.value for row in measured if row.value is not None}
            if measured and (mean := over_heads(measured).value) is not None:
                means[theory.name, theory.in_networks.headline] = mean
    return means, places


def stored_groups(
    stored: Pieces,
    measured: Callable[[], tuple[list[Measurement], list[list[Measurement]]]],
    piece: tuple[str, ...] = ("groups",),
) -> tuple[list[Measurement], list[list[Measurement]]]:
    """Returns the rows on all inputs and without each group of them, which are stored with the number of the
    group as their seed.
    """

    def work() -> list[Measurement]:
        whole, without = measured()
        return [
            replace(row, seed=number, nulls=())
            for number, rows in enumerate([whole, *without])
            for row in rows
        ]

    groups = grouped(stored(piece, work), lambda row: row.seed)
    whole, *without = groups.values() if groups else [[]]
    return [replace(row, seed=None) for row in whole], without


def headline_means(
    theories: Sequence[Theory], whole: list[Measurement], without: Sequence[list[Measurement]]
) -> tuple[list[Measurement], list[list[Measurement]]]:
    """Returns the headlines of rows, averaged over heads and layers."""

    def means(rows: list[Measurement]) -> list[Measurement]:
        found = (
            headline_mean(theory.name, theory.in_networks, rows)
            for theory in theories
            if theory.in_networks is not None
        )
        return [mean for mean in found if mean is not None]

    return means(whole), [means(rows) for rows in without]


def _metric_rows(
    model: nn.Module,
    inputs: Inputs,
    labels: Tensor | None,
    theories: Sequence[Theory],
    metrics: Sequence[Metric],
    *,
    name: str,
    draws: int,
    size: int,
    progress: Callable[[str], None],
    **known: Any,
) -> list[Measurement]:
    """Measures metrics of the theories and general ones; those of attention are left out if the network has
    none.

    Raises:
        ValueError: the network has neither attention nor a list of similar blocks.
    """
    number = count(inputs)

    def passes() -> Iterator:
        for index, batch in enumerate(batches(inputs, labels, size)):
            progress(f"sequence {index * size + 1} of {number}")
            yield batch

    missing: list[Measurement] = []
    for attempt in (metrics, [metric for metric in metrics if "attention" not in metric.kinds]):
        try:
            with torch.random.fork_rng():
                rows, unmeasured = measure_metrics(
                    model, passes(), attempt, name=name, draws=draws, n=number, **known
                )
        except NoAttention as error:
            missing = [Measurement("network", "network", "attention", None, reason=str(error), model=name)]
            continue
        return [*missing, *rows, *_label_unmeasured(unmeasured, rows, theories)]
    raise ValueError(f"{name} must have attention or a list of similar blocks to be measured, got neither")


def _label_unmeasured(
    unmeasured: Iterable[Measurement], rows: Sequence[Measurement], theories: Sequence[Theory]
) -> Iterator[Measurement]:
    """Yields the rows of metrics that measured nothing, with their theory: its headline if that is missing,
    or the metric in words.
    """
    owners = {type(metric).__name__: theory for theory in theories for metric in metrics_of([theory])}
    kinds = {*owners, *(type(metric).__name__ for metric in with_general([]))}
    words = {kind: re.sub(r"(?<=[a-z])(?=[A-Z])", " ", kind).lower() for kind in kinds}
    measured = {(row.theory, row.quantity) for row in rows}
    for row in unmeasured:
        name, theory = words.get(row.quantity, row.quantity), owners.get(row.quantity)
        if theory is None or theory.in_networks is None:
            yield replace(row, quantity=name)
            continue
        headline = (theory.name, theory.in_networks.headline)
        if headline not in measured:
            measured.add(headline)
            name = headline[1]
        yield replace(row, theory=theory.name, kind="in network", quantity=name)


def with_nulls(
    rows: Sequence[Measurement], networks: Networks, beside: Sequence[Measurement] = ()
) -> list[Measurement]:
    """Returns the rows with the nulls that other networks give them, see :func:`headline_mean`.

    A row with a null of its own gets copies of the network only: of networks that are shown without a
    decision there are too many rows.
    """
    drawn = {kind: nulls_of(measured, kind) for kind, measured in networks.items()}
    values = {place_of(row): row.value for row in beside}

    def nulls(row: Measurement) -> Iterator[Null]:
        place = place_of(row)
        for kind, found in drawn.items():
            if place in found and (kind in COPIES or row.null is None):
                null = found[place]
                yield null.with_value(values[place]) if kind in COPIES and place in values else null

    return [replace(row, nulls=in_order([*row.nulls, *nulls(row)])) for row in rows]


def _without_zeros(rows: Sequence[Measurement]) -> Iterator[Measurement]:
    """Yields the rows, and one with the reason for a quantity of a theory that is 0 at every place, here and
    in other networks.

    Such are changes since an earlier measurement of the same network.
    """
    groups: dict[tuple, list[Measurement]] = {}
    for row in rows:
        groups.setdefault((row.theory, row.quantity, row.at), []).append(row)
    for group in groups.values():
        nulls = [
            row.null.draws if row.null is not None and row.null.kind in NETWORKS else () for row in group
        ]
        of_theory = group[0].theory != "network"
        if of_theory and all(row.value == 0 and draws and not any(draws) for row, draws in zip(group, nulls)):
            reason = (
                "0 at every place, and also with other weights: one measurement of one network does not "
                "change it"
            )
            yield replace(group[0], value=None, nulls=(), layer=None, head=None, reason=reason)
        else:
            yield from group


def mean_over_heads(rows: Iterable[Measurement]) -> list[Measurement]:
    """Averages over heads: one row per model, quantity, layer and step, with the null distribution of the
    mean.
    """
    groups: dict[tuple, list[Measurement]] = {}
    for row in rows:
        if row.value is not None:
            place = (row.model, row.theory, row.quantity, row.at, row.layer, row.step)
            groups.setdefault(place, []).append(row)
    return [over_heads(heads) for heads in groups.values()]


def headline_mean(
    theory: str,
    in_networks: InNetworks,
    rows: Sequence[Measurement],
    *,
    networks: Networks | None = None,
    beside: Sequence[Measurement] = (),
    answers: Sequence[Measurement] = (),
) -> Measurement | None:
    """Returns the headline of a theory in a network at the last step, averaged over heads and layers.

    Its nulls are the means in other networks and the null of the metric itself, in the order of
    :func:`~.statistics.in_order`. If tests on synthetic inputs measured the headline with a null, which a
    passive metric cannot draw, that null takes the place of the metric's, with the value on these inputs. A
    null whose kind is known, but which the mean lacks since a head lacks draws, has none: the comparison with
    it needs more draws. No theorem covers a network of several layers trained by AdamW, so there is no
    verdict.

    Args:
        theory: name of the theory.
        in_networks: its quantities in networks.
        rows: measurements of the network.
        networks: measurements of other networks, by the kind of null that they are.
        beside: measurements of the network on the inputs of its copies (:data:`~.statistics.COPIES`), if
            these are fewer.
        answers: rows of the theory's tests in the network (:func:`run_synthetic_tests`).
    Returns:
        The mean; None if the headline was measured in no layer.
    """
    networks = networks or {}
    measured = _at_last_step(rows, theory, in_networks.headline)
    if not measured:
        return None
    step = measured[0].step or 0
    mean = replace(
        over_heads(measured),
        layer=None,
        step=None,
        side=in_networks.side,
        note="mean over layers and heads" + (f" after {step:,} steps" if step else ""),
    )
    tested = Table(answers).select(theory=theory, quantity=in_networks.headline)
    tested = tested.where(lambda row: row.value is not None and row.null is not None)
    own = _own_nulls(tested or measured)
    if tested and (value := over_heads(tested).value) != mean.value:  # the tests have other inputs
        own = [null.with_value(value) for null in own]
    drawn = [_mean_null(kind, each, theory, in_networks.headline) for kind, each in networks.items()]
    if beside and (fewer := _at_last_step(beside, theory, in_networks.headline)):
        value = over_heads(fewer).value
        drawn = [null.with_value(value) if null.kind in COPIES else null for null in drawn]
    drawn = [null for null in drawn if null.draws]
    own = own if drawn else [null for null in own if null.draws]
    return replace(mean, nulls=in_order([*own, *drawn]), scope="training" if drawn else mean.scope)


def _mean_null(kind: str, networks: Sequence[Sequence[Measurement]], theory: str, quantity: str) -> Null:
    """Returns the null whose draw i is the mean of a quantity over the heads and layers of network i."""
    found = [_at_last_step(network, theory, quantity) for network in networks]
    draws = [over_heads(rows).value for rows in found if rows]
    return Null(kind, tuple(draw for draw in draws if draw is not None))


def _at_last_step(rows: Sequence[Measurement], theory: str, quantity: str) -> Table:
    """Returns the rows with a value of a quantity at its last step."""
    measured = Table(rows).select(theory=theory, quantity=quantity).where(lambda row: row.value is not None)
    last = max((row.step or 0 for row in measured), default=0)
    return measured.where(lambda row: (row.step or 0) == last)


def _own_nulls(rows: Sequence[Measurement]) -> list[Null]:
    """Returns the nulls of the mean of the rows that the metrics drew themselves; one without draws if a row
    lacks it.
    """
    own = [null for null in Null.means_of(rows) if null.kind not in NETWORKS]
    kinds = sorted({null.kind for row in rows for null in row.nulls} - {*NETWORKS})
    return own if own or not kinds else [Null(" and ".join(kinds), ())]


def run_synthetic_tests(
    model: nn.Module,
    theory: str,
    tests: Iterable[Response],
    inputs: Inputs,
    *,
    limits: dict[str, int],
    generator: torch.Generator,
    name: str,
    batch_size: int = BATCH_SIZE,
    special_ids: Collection[int] | None = None,
    grid: tuple[int, int] | None = None,
) -> Iterator[Measurement]:
    """Yields the rows of a theory's tests on synthetic inputs. A test that does not fit the network has one
    row with the reason.

    Args:
        model: the network.
        theory: name of the theory.
        tests: its tests.
        inputs: inputs that the network accepts, tensors ``[n, ...]``. Of several by name, the tests change
            one, without padding (:mod:`.main_input`).
        limits: sizes that the synthetic inputs must not exceed, see :func:`.responses`; the length of
            sequences of tokens is added. Without "vocabulary" the network is no causal language model, and
            tests that read ids do not run.
        generator: random generator of the synthetic inputs.
        name: column ``model`` of the rows.
        special_ids, grid: see :func:`.probe`.
    """
    main = main_input(model, inputs, special_ids=special_ids)
    for test in tests:
        reason = ""
        if isinstance(main, str):
            reason = main
        elif test.reads == "ids" and "vocabulary" not in limits:
            reason = NEEDS_CAUSAL
        else:
            sizes = {"length": main.data.shape[1]} if main.data.ndim == 3 else {}
            try:
                rows = response(
                    model,
                    theory,
                    test,
                    main,
                    limits={**sizes, **limits},
                    generator=generator,
                    name=name,
                    batch_size=batch_size,
                    special_ids=special_ids,
                    grid=grid,
                )
                images = main.data.ndim > 3
                yield from (replace(row, note=row.note or BLOCKS) if images else row for row in rows)
            except Exception as error:
                # the test needs longer sequences, more ids, or inputs that the network refuses
                first = first_line(error)
                reason = (
                    first
                    if isinstance(error, ValueError)
                    else f"the network raised {type(error).__name__}: {first}"
                )
        if reason:
            yield Measurement(theory, "in network", test.name, None, reason=reason, model=name)

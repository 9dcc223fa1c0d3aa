r"""Two networks compared on the same inputs: the difference of every quantity, paired over the inputs.

Both networks are measured on the same G groups of the inputs (:mod:`.jackknife`), in the same batches. With
the difference D on all inputs, :math:`D_g` without group g and their mean :math:`\bar D` the pseudo-values
are :math:`D + (G - 1)(\bar D - D_g)`. Their standard error is that of the delete-a-group jackknife and gives
the interval of D; what both networks share on an input cancels. If the two networks are exchanged in some
groups, the pseudo-values of these groups change their sign: the means under all patterns of signs are the
null of D (:func:`~.statistics.exchanged_networks`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor, nn

from ..core.format import counted
from ..core.journal import Pieces
from ..core.measurement import Measurement
from ..core.statistics import ROUNDING, exchanged_networks, jackknife_half_width, place_of, pseudo_values
from ..core.theory import Theory
from .jackknife import Rows, without_each_group
from .measure import headline_means, metrics_of, stored_groups, with_general
from .passes import Inputs

AGAINST = "against"
"""Coordinate of a difference: the name of the network whose value was subtracted."""
SUBTRACTED = "subtracted"
"""Coordinate of the value that was subtracted: the name of its network."""
PAIRED = frozenset((AGAINST, SUBTRACTED))  # coordinates of the rows of two networks
OVER_PAIRED_INPUTS = "over inputs, paired"
Groups = tuple[Rows, list[Rows]]
"""The rows of a network on all inputs, and those without each group of them."""


def differences(
    network: nn.Module,
    other: nn.Module,
    inputs: Inputs,
    labels: Tensor | None,
    theories: Sequence[Theory],
    *,
    name: str,
    against: str,
    batch_size: int,
    stored: Pieces | None = None,
    progress: Callable[[str], None] = lambda text: None,
    **known: Any,
) -> Rows:
    """Measures two networks on the same inputs and subtracts every quantity of the second one.

    Args:
        network: the network.
        other: the network whose values are subtracted.
        inputs: inputs of both, tensors ``[n, ...]``.
        labels: class of each sequence, ``[n]``.
        theories: theories with :attr:`.Theory.in_networks`.
        name, against: names of the two networks.
        batch_size: number of sequences per forward pass.
        stored, progress: see :func:`.measure.measure_network`.
        known: further arguments of :func:`.probe`.
    Returns:
        For each headline, averaged over heads and layers, and for each quantity in each layer and head the
        difference, with the coordinate :data:`AGAINST`, and the value that was subtracted, with the
        coordinate :data:`SUBTRACTED`. Headlines and their places have a null. If the networks have other
        layers or heads, these are left out, and a row has the reason.
    """

    def groups(each: nn.Module, title: str, number: str) -> Groups:
        progress(f"groups of inputs: {title}")
        return stored_groups(
            Pieces() if stored is None else stored,
            partial(_groups, each, inputs, labels, theories, batch_size=batch_size, **known),
            piece=("paired", number),
        )

    first, second = groups(network, name, "1"), groups(other, against, "2")
    headlines = {
        theory.name: theory.in_networks.headline for theory in theories if theory.in_networks is not None
    }
    means = headline_means(theories, *first), headline_means(theories, *second)
    found = compared(*means, name=name, against=against, tested=headlines)
    met = {row.theory for row in found}
    columns: dict[str, Any] = {"model": name, "at": {AGAINST: against}}
    reason = (
        f"not measured in both networks, or not without each of {counted(len(first[1]), 'group')} of inputs"
    )
    reason = reason if first[1] else "a difference that is paired over inputs needs at least two sequences"
    found += [
        Measurement(theory, "in network", headline, None, reason=reason, **columns)
        for theory, headline in headlines.items()
        if theory not in met
    ]
    reason = other_places(first[0], second[0], name, against)
    if reason:
        found.append(Measurement("network", "network", "places", None, reason=reason, **columns))
    known_places = {place_of(row) for row in means[0][0]}

    def rest(rows: Rows) -> Rows:
        return [
            row
            for row in rows
            if place_of(row) not in known_places and not (reason and row.layer is not None)
        ]

    places = compared(
        (rest(first[0]), first[1]), (second[0], second[1]), name=name, against=against, tested=headlines
    )
    return [*found, *places]


def _groups(
    network: nn.Module,
    inputs: Inputs,
    labels: Tensor | None,
    theories: Sequence[Theory],
    **options: Any,
) -> Groups:
    """Measures one network; without the metrics of attention if it has none."""
    whole: Rows = []
    without: list[Rows] = []
    for attention in (True, False):

        def metrics(attention: bool = attention):
            chosen = with_general(metrics_of(theories))
            return [metric for metric in chosen if attention or "attention" not in metric.kinds]

        whole, without = without_each_group(network, inputs, labels, metrics, **options)
        if whole:
            break
    return whole, without


def other_places(first: Rows, second: Rows, name: str, against: str) -> str:
    """Returns why layers and heads of two networks are not compared with each other; empty if both have the
    same ones.
    """
    shapes = [_shape(rows) for rows in (first, second)]
    if shapes[0] == shapes[1]:
        return ""
    return (
        f"{name} has {_in_words(shapes[0])}, {against} has {_in_words(shapes[1])}: layers and heads are "
        "left out, only quantities of the whole networks are compared"
    )


def _shape(rows: Rows) -> dict[int, int]:
    """Returns the number of heads of each layer, 0 without heads."""
    heads: dict[int, int] = {}
    for row in rows:
        if row.layer is not None:
            heads[row.layer] = max(heads.get(row.layer, 0), 0 if row.head is None else row.head + 1)
    return dict(sorted(heads.items()))


def _in_words(heads: Mapping[int, int]) -> str:
    numbers = sorted({*heads.values()} - {0})
    of = f" of {' or '.join(map(str, numbers))} head{'s' * (numbers != [1])}" if numbers else ""
    return f"{counted(len(heads), 'layer')}{of}"


def compared(first: Groups, second: Groups, *, name: str, against: str, tested: Mapping[str, str]) -> Rows:
    """Returns the differences of two networks, and the values that were subtracted.

    Args:
        first, second: rows of the networks on the same inputs, and without each group of them.
        name, against: names of the networks.
        tested: headline of each theory, whose differences have a null.
    """
    own, others = _with_groups(first), _with_groups(second)
    found: Rows = []
    for place, (row, values) in own.items():
        if place not in others or len(others[place][1]) != len(values):
            continue
        other, subtracted = others[place]
        found += _difference(row, values, other, subtracted, name, against, tested)
    return found


def _with_groups(groups: Groups) -> dict[tuple, tuple[Measurement, list[float]]]:
    """Returns the rows with their values without each group, as far as all of these are known."""
    whole, without = groups
    values: dict[tuple, list[float]] = {}
    for rows in without:
        for row in rows:
            if row.value is not None:
                values.setdefault(place_of(row), []).append(row.value)
    return {
        place_of(row): (row, values[place_of(row)])
        for row in whole
        if row.value is not None and 2 <= len(without) == len(values.get(place_of(row), ()))
    }


def _difference(
    row: Measurement,
    values: Sequence[float],
    other: Measurement,
    subtracted: Sequence[float],
    name: str,
    against: str,
    tested: Mapping[str, str],
) -> Rows:
    """Returns the difference of one quantity and the value that was subtracted."""
    assert row.value is not None
    assert other.value is not None
    difference = row.value - other.value
    without = [one - two for one, two in zip(values, subtracted)]
    largest = max(abs(value) for value in (row.value, other.value, *values, *subtracted))
    if max(abs(value) for value in (difference, *without)) <= ROUNDING * largest:
        difference, interval, nulls = 0.0, (0.0, 0.0), ()  # single precision does not tell them apart
    else:
        half = jackknife_half_width(without)
        interval = difference - half, difference + half
        null = exchanged_networks(pseudo_values(difference, without))
        nulls = (null,) if tested.get(row.theory) == row.quantity and not row.at else ()
    low, high = row.bounds or (None, None)
    columns: dict[str, Any] = {"model": name, "nulls": (), "side": None, "p": None, "agreement": None}
    columns |= {"interval": None, "interval_kind": "", "note": "", "scope": None, "predicted": None}
    bare = replace(row, **columns)
    return [
        replace(
            bare,
            value=difference,
            interval=interval,
            interval_kind=OVER_PAIRED_INPUTS,
            nulls=nulls,
            bounds=None if low is None or high is None else (low - high, high - low),
            at={**row.at, AGAINST: against},
        ),
        replace(bare, value=other.value, at={**row.at, SUBTRACTED: against}),
    ]

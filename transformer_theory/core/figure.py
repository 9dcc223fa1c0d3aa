"""Figures as functions of their coordinates.

:func:`figure` turns a function into an :class:`~.experiment.Experiment`: its keyword arguments are the
settings, what it returns or yields becomes rows, and a view (:mod:`.views`) draws the rows of the stored
result.

    @figure(
        "attention_svm.global_convergence",
        source=Source("tarzanagh2023transformers"),
        over={"n": Axis(5, 10, 15, ge=1, help="inputs"), "d": Axis(2, 5, 10, ge=1, setting="dims")},
        view=curves("d", panels=(Panel(lines="n"),), ylabel="share of problems"),
        quick={"n": (3, 5), "trials": 10},
    )
    def global_convergence(n: int, d: int, *, trials: int = setting(100, ge=1, help="problems per size")):
        return share("share of problems that select every best token", selects_best(n, d, trials))

With axes, the function is called once for each point of their grid, in parallel where the user asks for it.
Without axes, it is called once, and yields readings with coordinates of their own, ``at={"step": 5}``.
"""

import importlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, make_dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from .experiment import Experiment, RandomExperiment, check_settings, setting, sweep
from .measurement import Basis, Measurement, Op, judge
from .result import Result
from .sources import Source
from .statistics import clopper_pearson, student_interval
from .table import Arrays
from .views import (
    DASHED,
    MARKERS,
    RANGE,
    Panel,
    bands,
    curves,
    distinct,
    draw_curves,
    matrix,
    published,
    scatter,
    size_map,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


__all__ = [
    "DASHED",
    "RANGE",
    "Axis",
    "Panel",
    "Reading",
    "bands",
    "curves",
    "distinct",
    "draw_curves",
    "figure",
    "matrix",
    "mean",
    "published",
    "reading",
    "scatter",
    "share",
    "size_map",
    "with_range",
]


# Columns of a mean or median that the ends of its band do not share.
JUDGED = ("predicted", "op", "threshold", "verdict", "side", "p", "agreement", "interval", "basis", "nulls",
          "interval_kind", "note")  # fmt: skip


@dataclass(frozen=True, init=False)
class Axis:
    """One coordinate of a sweep.

    Attributes:
        values: default values; all are integers, real numbers or texts.
        setting: name of the setting, and of the option of the command line; by default that of the
            coordinate.
        limits: range and help of the setting, as in :func:`~.experiment.setting`.
    """

    values: tuple[Any, ...]
    setting: str
    limits: Mapping[str, Any]

    def __init__(self, *values: Any, setting: str = "", **limits: Any):
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "setting", setting)
        object.__setattr__(self, "limits", limits)


@dataclass(frozen=True)
class Reading:
    """A measured quantity that is not yet placed in a table.

    Attributes:
        quantity: name of the quantity.
        value: the number; None if it is missing, with a reason among the columns.
        reference: published number and its basis.
        needs: settings that must have their defaults for a published reference; None: all except the axes.
        columns: further columns of the row.
    """

    quantity: str
    value: float | None
    reference: tuple[float, Basis] | None = None
    needs: tuple[str, ...] | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)


def reading(
    quantity: str,
    value: float | None,
    *,
    reference: tuple[float, Basis] | None = None,
    needs: tuple[str, ...] | None = None,
    at_most: float | None = None,
    at_least: float | None = None,
    covered: bool = True,
    **columns: Any,
) -> Reading:
    """Returns a reading; the columns are those of :class:`~.measurement.Measurement`.

    Args:
        quantity, value, reference, needs: as in :class:`Reading`.
        at_most, at_least: bound that decides the verdict.
        covered: whether the assumptions of the theorem that states the bound hold.
        columns: further columns of the row.
    """
    bounds: dict[Op, float | None] = {"<=": at_most, ">=": at_least}
    for op, bound in bounds.items():
        if bound is not None:
            verdict = judge(value, op, bound, covered=covered)
            columns |= {"op": op, "threshold": bound, "verdict": verdict}
    return Reading(quantity, value, reference, needs, columns)


def share(quantity: str, successes: Any, n: int | None = None, **columns: Any) -> Reading:
    """Returns the share of successes with its 95 % interval (Clopper-Pearson).

    Args:
        quantity: name of the quantity.
        successes: truth values, or their number.
        n: number of trials, if ``successes`` is a number.
        columns: further columns of the row; the ``reason`` is used if there is no trial.
    """
    if n is None:
        successes = np.asarray(successes)
        successes, n = int(successes.sum()), successes.size
    reason = "" if n else columns.get("reason", "no trial")
    low, high = clopper_pearson(successes, n)
    columns |= {"interval": (float(low), float(high)), "interval_kind": "over samples", "reason": reason}
    return reading(quantity, successes / n if n else None, n=n, unit="share", **columns)


def mean(quantity: str, values: Iterable[float], over: str = "trials", **columns: Any) -> Reading:
    """Returns the mean of the values with its 95 % interval (Student), which a single value lacks.

    Args:
        quantity: name of the quantity.
        values: one value per trial, seed or network.
        over: what the interval is over: "trials", "seeds", "heads".
        columns: further columns of the row; n is the number of values unless it is given.
    """
    values = [float(value) for value in values]
    if (ends := student_interval(values)) is not None:
        columns |= {"interval": ends, "interval_kind": f"over {over}"}
    return reading(quantity, sum(values) / len(values), **{"n": len(values), **columns})


def with_range(one: Reading, values: Iterable[float]) -> list[Reading]:
    """Returns a mean or median with the smallest and the largest of its values, which are the ends of its
    band (``spread=RANGE`` of :func:`~.views.bands`).
    """
    values = [float(value) for value in values]
    place = {name: column for name, column in one.columns.items() if name not in JUDGED}
    ends = zip(RANGE, (min(values), max(values)))
    return [one, *(reading(f"{name} of {one.quantity}", end, **place) for name, end in ends)]


def readings(found: Any, quantity: str) -> Iterator[Reading | Measurement | Arrays]:
    """Yields the readings of what a figure's function returns or yields: a number or an object with a
    ``value``, which have the given name; a dictionary of quantities; readings, rows and arrays; or several.
    """
    if isinstance(found, Reading | Measurement | Arrays):
        yield found
    elif isinstance(found, Mapping):
        yield from (reading(name, value) for name, value in found.items())
    elif isinstance(found, Iterable):
        for one in found:
            yield from readings(one, quantity)
    else:
        yield reading(quantity, float(getattr(found, "value", found)))


@dataclass(frozen=True)
class Sweep:
    """What :func:`figure` knows of an experiment beside its settings."""

    function: Callable[..., Any]
    axes: Mapping[str, Axis]
    where: Callable[..., bool] | None
    reference: Callable[..., float | None] | None
    basis: Basis
    quantity: str
    one_seed: bool  # whether all calls get the same seed
    check: Callable[..., None] | None

    def points(self, values: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
        """Returns the coordinates of all calls, those of the last axis varying fastest."""
        grid = product(*map(dict.fromkeys, values.values()))  # a repeated value is measured once
        points = [dict(zip(values, point)) for point in grid]
        return [point for point in points if self.where is None or _passing(self.where, point)]


def _passing(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """Calls a function with those of the arguments that it takes."""
    return function(**{name: arguments[name] for name in inspect.signature(function).parameters})


def figure(
    name: str,
    *,
    source: Source | tuple[Source, ...],
    view: "Callable[[Result], Figure]",
    over: Mapping[str, Axis] | None = None,
    where: Callable[..., bool] | None = None,
    reference: Callable[..., float | None] | None = None,
    basis: Basis = "theory",
    quantity: str = "",
    quick: Mapping[str, Any] | None = None,
    check: Callable[..., None] | None = None,
) -> Callable[[Callable[..., Any]], type[Experiment]]:
    """Turns a function into an experiment, which calls it at every point of a grid, or once.

    The function takes the coordinates of the grid by name and the other settings as keyword arguments, whose
    defaults are declared by :func:`~.experiment.setting`. It returns or yields what :func:`readings` accepts.
    If it takes ``seed``, the experiment has a seed, and call k of K gets ``seed * K + k``, or the seed itself
    if its default is declared by ``setting``. Calls of a grid may run in other processes, which import the
    function by its name.

    Args:
        name: ``"theory.figure"``.
        source: papers whose figure the experiment reproduces; rows cite the first.
        view: draws the stored result: one of the five views, or a function.
        over: axes of the grid by coordinate; None for one call.
        where: condition on some of the coordinates; points that fail it are skipped.
        reference: number for the value at some of the coordinates, or None. A number that is not the theory's
            holds at the default settings only.
        basis: origin of the reference.
        quantity: name of the quantity, if the function returns a number.
        quick: settings of a run of about a second.
        check: takes some of the settings and raises ValueError if they do not fit together; it is called when
            an experiment is constructed.
    """
    sources = source if isinstance(source, tuple) else (source,)

    def decorate(function: Callable[..., Any]) -> type[Experiment]:
        original = inspect.unwrap(function)
        axes = over or {}
        settings = {name: axis.setting or name for name, axis in axes.items()}
        defaults = original.__kwdefaults__ or {}
        keywords = {name: default for name, default in defaults.items() if isinstance(default, Field)}
        random = "seed" in defaults
        # A direct call uses the defaults themselves instead of their declarations.
        original.__kwdefaults__ = defaults | {name: default.default for name, default in keywords.items()}
        hints = inspect.get_annotations(original)
        declared = [
            (settings[name], tuple[type(axis.values[0]), ...], setting(axis.values, **axis.limits))
            for name, axis in axes.items()
        ]
        declared += [(name, hints[name], default) for name, default in keywords.items()]
        namespace = {
            "__doc__": original.__doc__,
            "__module__": original.__module__,
            "__qualname__": original.__qualname__,
            "name": name,
            "sources": sources,
            "view": staticmethod(view),
            "sweep": Sweep(function, axes, where, reference, basis, quantity, "seed" in keywords, check),
            "__post_init__": _check,
            "measure": _measure,
            "quick": classmethod(lambda kind: kind(**(quick or {}))),
        }
        base = RandomExperiment if random else Experiment
        return make_dataclass(original.__name__, declared, bases=(base,), namespace=namespace, frozen=True)

    return decorate


def _check(experiment: Any) -> None:
    """Checks the range of each setting, and whether the settings fit together."""
    check_settings(experiment)
    if check := experiment.sweep.check:
        _passing(check, vars(experiment))


def _measure(experiment: Any) -> Iterator[Measurement | Arrays]:
    """Yields the rows of all points; :meth:`Experiment.measure` of an experiment that :func:`figure` made."""
    made: Sweep = experiment.sweep
    names = {name: axis.setting or name for name, axis in made.axes.items()}
    points = made.points({name: getattr(experiment, setting) for name, setting in names.items()})
    if not points:
        raise ValueError(
            f"{', '.join(names.values())} must have a combination that {experiment.name} measures, got none; "
            f"the defaults of its axes have some"
        )
    keywords = [one.name for one in fields(experiment) if one.name not in {*names.values(), "seed"}]
    shared = {name: getattr(experiment, name) for name in keywords}
    calls = [point | shared for point in points]
    if experiment.seed is not None:
        first, stride = (experiment.seed, 0) if made.one_seed else (experiment.seed * len(calls), 1)
        calls = [call | {"seed": first + stride * k} for k, call in enumerate(calls)]
    if made.axes:
        kind = {"figure": f"{type(experiment).__module__}:{type(experiment).__qualname__}"}
        results = sweep(_at_point, [kind | call for call in calls])
    else:
        # The function may call sweep itself.
        results = [readings(made.function(**calls[0]), made.quantity)]
    for point, found in zip(points, results):
        for one in found:
            if not isinstance(one, Reading):
                yield one
                continue
            reference = one.reference
            if made.reference and (number := _passing(made.reference, point)) is not None:
                reference = (number, made.basis)
            needs = keywords if one.needs is None else one.needs
            if reference and reference[1] in MARKERS and needs and not experiment.at_defaults(*needs):
                reference = None
            place = {"at": point | one.columns.get("at", {})}
            yield experiment.row(one.quantity, one.value, reference=reference, **{**one.columns, **place})


def _at_point(figure: str, **arguments: Any) -> list[Reading | Measurement | Arrays]:
    """Calls the function of an experiment, which is named ``module:name``."""
    module, _, name = figure.partition(":")
    made: Sweep = getattr(importlib.import_module(module), name).sweep
    return list(readings(made.function(**arguments), made.quantity))

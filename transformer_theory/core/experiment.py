"""Experiments: figures of papers, redone. One file holds the settings, the measurement and the plot of the stored result.

An experiment is a frozen dataclass whose fields are its settings, each declared with its range and its help text by :func:`setting`. Values
are checked when an experiment is constructed, and the options of the command line are made from the fields.
"""

import dataclasses
import importlib
import math
import numbers
import operator
import pkgutil
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from . import parallel
from .measurement import Arrays, Measurement, collect
from .parallel import one_thread
from .parallel import sweep as sweep  # re-exported for experiments
from .result import Result, jsonable, provenance
from .sources import Source

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RANGES = {
    "ge": ("at least", operator.ge),
    "gt": ("above", operator.gt),
    "le": ("at most", operator.le),
    "lt": ("below", operator.lt),
    "multiple_of": ("a multiple of", lambda value, unit: value % unit == 0),
}


def setting(
    default: Any,
    *,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
    multiple_of: int | None = None,
    help: str = "",
) -> Any:
    """A dataclass field for a finite number in a range, or for a non-empty tuple of such numbers; integers if the default is one.

    Args:
        ge, gt, le, lt: greater or equal, greater, less or equal, less.
        multiple_of: for integers.
        help: text for ``--help``.
    """
    bounds = {"ge": ge, "gt": gt, "le": le, "lt": lt, "multiple_of": multiple_of}
    limits = {name: bound for name, bound in bounds.items() if bound is not None}
    return dataclasses.field(default=default, metadata={"limits": limits, "help": help})


def settings_of(kind: Any) -> Iterator[dataclasses.Field]:
    """The fields of a dataclass (or of an instance) that were declared by :func:`setting`."""
    return (field for field in fields(kind) if "limits" in field.metadata)


def range_text(field: dataclasses.Field) -> str:
    """The range as text, such as "above 0 and at most 1"; empty if there is none."""
    return " and ".join(f"{RANGES[name][0]} {limit:.15g}" for name, limit in field.metadata.get("limits", {}).items())


def check_settings(holder: Any) -> None:
    """Checks the fields of a dataclass instance against their ranges.

    Raises:
        ValueError: a value is out of range, not finite, not a number, not an integer although the default is one, or an empty tuple.
    """
    for field in settings_of(holder):
        value, default = getattr(holder, field.name), field.default
        defaults = default if isinstance(default, tuple) else (default,)
        entries = value if isinstance(value, tuple) else (value,)
        integer = all(isinstance(entry, int) for entry in defaults)
        same_kind = isinstance(value, tuple) == isinstance(default, tuple)
        if same_kind and entries and all(_in_range(entry, integer, field.metadata["limits"]) for entry in entries):
            continue
        what = "integer" if integer else "finite number"
        expected = f"a tuple of {what}s" if isinstance(default, tuple) else f"{'an' if integer else 'a'} {what}"
        shown = " ".join(map(str, defaults))
        text = f"{expected} {range_text(field)}".strip()
        raise ValueError(f"{field.name} must be {text}, got {value!r}; give such a value, or leave it out (default: {shown})")


def _in_range(value: Any, integer: bool, limits: dict[str, float]) -> bool:
    is_number = not isinstance(value, bool) and isinstance(value, numbers.Integral if integer else numbers.Real)
    # Values must lie strictly between the infinities, which excludes NaN too: every comparison with NaN is false.
    return is_number and all(RANGES[name][1](value, limit) for name, limit in ({"gt": -math.inf, "lt": math.inf} | limits).items())


@dataclass(frozen=True)
class Experiment:
    """A run with settings; subclass it as a frozen dataclass.

    A subclass defines :meth:`measure` and :meth:`plot`; :meth:`run` does the rest. An experiment with random numbers is a
    :class:`RandomExperiment`, whose seed is a setting; any other has no seed, and two runs of it are equal.

    Attributes:
        name: ``"theory.figure"``.
        sources: the literature whose figure it redoes.

    Raises:
        ValueError: a setting is out of range.
    """

    name: ClassVar[str] = "experiment"
    sources: ClassVar[tuple[Source, ...]] = ()
    seed: ClassVar[int | None] = None

    def __post_init__(self):
        check_settings(self)

    @classmethod
    def theory(cls) -> str:
        """Name of the theory."""
        return cls.name.partition(".")[0]

    def measure(self) -> Iterable[Measurement | Arrays]:
        """Yields measurements of kind "figure" and arrays."""
        raise NotImplementedError(f"{type(self).__name__} must define measure()")

    def plot(self, result: Result) -> "Figure":
        """The figure, a pure function of the stored result."""
        raise NotImplementedError(f"{type(self).__name__} must define plot()")

    @classmethod
    def quick(cls) -> "Experiment":
        """Settings that take seconds, for tests and docs."""
        return cls()

    @classmethod
    def of(cls, result: Result) -> "Experiment":
        """The experiment with the settings of a stored result; lists become tuples again.

        Raises:
            TypeError, ValueError: the settings are not those of this experiment, or out of range.
        """
        return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in result.settings.items()})

    def at_defaults(self, *names: str) -> bool:
        """Whether these settings (all if none is named) have their default values. A published number is shown at its own settings only."""
        default = type(self)()
        return all(getattr(self, name) == getattr(default, name) for name in names or [field.name for field in fields(self)])

    def run(self, *, workers: int | str | None = None) -> Result:
        """Measures on one thread with the global random state forked, and records provenance.

        Args:
            workers: processes for :func:`sweep`, or the address of a dask scheduler (see :func:`~.parallel.workers`); None leaves the
                active joblib context as it is. The measurements do not depend on it.
        Raises:
            ValueError: no such workers.
            ConnectionError: no scheduler answers, or it has no workers.
        """
        started = time.perf_counter()
        with parallel.workers(workers) as active, torch.random.fork_rng(devices=[]), one_thread():
            torch.manual_seed(self.seed or 0)
            table, arrays = collect(self.measure())
            record = provenance(seed=self.seed, started=started) | {"workers": active.count if active.used else None}
        return Result(self.name, jsonable(asdict(self)), table, arrays, (), self.sources, record)


@dataclass(frozen=True)
class RandomExperiment(Experiment):
    """An experiment that draws random numbers: from :meth:`generator` or, in a sweep, from seeds derived from ``seed``."""

    seed: int = setting(0, ge=0, le=2**32 - 1, help="of the random numbers")

    def generator(self) -> torch.Generator:
        """A generator seeded with ``seed``."""
        return torch.Generator().manual_seed(self.seed)


def experiments_in(package: str, path: Iterable[str]) -> tuple[type[Experiment], ...]:
    """The experiments that the modules of a package define, in alphabetical order of modules: ``experiments_in(__name__, __path__)``."""
    kinds: list[type[Experiment]] = []
    for info in sorted(pkgutil.iter_modules(path), key=lambda info: info.name):
        module = importlib.import_module(f"{package}.{info.name}")
        kinds += [
            kind
            for kind in vars(module).values()
            if isinstance(kind, type) and issubclass(kind, Experiment) and kind.__module__ == module.__name__ and "name" in vars(kind)
        ]
    return tuple(kinds)


def summary(kind: type) -> str:
    """The first paragraph of an experiment's docstring in Markdown, formulas as LaTeX between dollars."""
    text = " ".join((kind.__doc__ or "").strip().split("\n\n")[0].split())
    return re.sub(r":\w+:`~?([^`]*)`", lambda m: f"${m[1]}$" if m[0].startswith(":math:") else f"`{m[1]}`", text).replace("``", "`")

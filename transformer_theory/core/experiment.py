"""Experiments: reproductions of papers' figures. One file holds the settings, the measurement and the plot of
the stored result.

An experiment is a frozen dataclass whose fields are its settings, each declared with its range and its help
text by :func:`setting`. Values are checked when an experiment is constructed. The command line derives its
options from the fields.
"""

import dataclasses
import importlib
import math
import numbers
import operator
import pkgutil
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from . import parallel
from .measurement import Basis, Measurement
from .parallel import sweep as sweep
from .progress import Progress, shown
from .result import Result, jsonable, provenance
from .sources import Source
from .table import Arrays, collect
from .threads import one_thread

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Name of a bound: its text in messages, and the comparison of a value with it.
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
    """Declares a dataclass field whose value is a finite number in a range, a non-empty tuple of such
    numbers, or a text.

    Args:
        default: default value. It determines the type of every value: integers or real numbers, one number or
            a tuple, or a text.
        ge, gt, le, lt: bounds of the value: at least, above, at most, below.
        multiple_of: divisor of an integer value.
        help: text for ``--help``.
    """
    bounds = {"ge": ge, "gt": gt, "le": le, "lt": lt, "multiple_of": multiple_of}
    limits = {name: bound for name, bound in bounds.items() if bound is not None}
    return dataclasses.field(default=default, metadata={"limits": limits, "help": help})


def settings_of(kind: Any) -> Iterator[dataclasses.Field]:
    """Yields the fields of a dataclass (or of an instance) that :func:`setting` declared."""
    return (field for field in fields(kind) if "limits" in field.metadata)


def range_text(field: dataclasses.Field) -> str:
    """Returns the range as text, such as "above 0 and at most 1"; empty if the field has no bounds."""
    return " and ".join(
        f"{RANGES[name][0]} {limit:.15g}" for name, limit in field.metadata.get("limits", {}).items()
    )


def check_settings(holder: Any) -> None:
    """Checks the fields of a dataclass instance against their ranges.

    Raises:
        ValueError: a value is out of range, not finite, not a number, not an integer although the default is
            one, an empty tuple, or not a text although the default is one.
    """
    for field in settings_of(holder):
        value, default = getattr(holder, field.name), field.default
        if isinstance(default, str):
            if not isinstance(value, str):
                raise ValueError(
                    f"{field.name} must be a text, got {value!r}; give a text, or leave it out (default: "
                    f"{default!r})"
                )
            continue
        defaults = default if isinstance(default, tuple) else (default,)
        entries = value if isinstance(value, tuple) else (value,)
        integer = all(isinstance(entry, int) for entry in defaults)
        same_kind = isinstance(value, tuple) == isinstance(default, tuple)
        if (
            same_kind
            and entries
            and all(_in_range(entry, integer, field.metadata["limits"]) for entry in entries)
        ):
            continue
        noun = "integer" if integer else "finite number"
        expected = (
            f"a tuple of {noun}s" if isinstance(default, tuple) else f"{'an' if integer else 'a'} {noun}"
        )
        default_text = " ".join(map(str, defaults))
        text = f"{expected} {range_text(field)}".strip()
        raise ValueError(
            f"{field.name} must be {text}, got {value!r}; give such a value, or leave it out (default: "
            f"{default_text})"
        )


def _in_range(value: Any, integer: bool, limits: dict[str, float]) -> bool:
    is_number = not isinstance(value, bool) and isinstance(
        value, numbers.Integral if integer else numbers.Real
    )
    # Values must lie strictly between the infinities, which excludes NaN too: every comparison with NaN is
    # false.
    return is_number and all(
        RANGES[name][1](value, limit) for name, limit in ({"gt": -math.inf, "lt": math.inf} | limits).items()
    )


@dataclass(frozen=True)
class Experiment:
    """Base class of experiments. A subclass is a frozen dataclass whose fields are the settings.

    A subclass defines :meth:`measure`, and a ``view`` or :meth:`plot`; :meth:`run` does the rest. An
    experiment that draws random numbers derives from :class:`RandomExperiment`, whose seed is a setting. All
    other experiments are deterministic and have no seed.

    Attributes:
        name: ``"theory.figure"``.
        sources: papers whose figure the experiment reproduces.
        view: draws the rows of a stored result, see :mod:`.figure`; None if :meth:`plot` is defined.

    Raises:
        ValueError: a setting is out of range.
    """

    name: ClassVar[str] = "experiment"
    sources: ClassVar[tuple[Source, ...]] = ()
    view: ClassVar[Callable[[Result], Any] | None] = None  # returns a matplotlib figure
    seed: ClassVar[int | None] = None

    def __post_init__(self):
        check_settings(self)

    @classmethod
    def theory(cls) -> str:
        """Returns the name of the theory."""
        return cls.name.partition(".")[0]

    def measure(self) -> Iterable[Measurement | Arrays]:
        """Yields measurements of kind "figure" and arrays."""
        raise NotImplementedError(f"{type(self).__name__} must define measure()")

    def plot(self, result: Result) -> "Figure":
        """Draws the figure from the stored result alone."""
        view = type(self).view  # not bound to the experiment: it is a function of the result
        if view is None:
            raise NotImplementedError(f"{type(self).__name__} must define a view or plot()")
        return view(result)

    def row(
        self,
        quantity: str,
        value: float | None,
        *,
        reference: tuple[float, Basis] | None = None,
        **columns: Any,
    ) -> Measurement:
        """Returns a row of the figure.

        Args:
            quantity: name of the quantity.
            value: the number; None if it is missing, with a ``reason``.
            reference: prediction and its basis.
            columns: further columns of :class:`~.measurement.Measurement`; the source is the first of the
                experiment's unless it is given.
        """
        if reference is not None:
            columns = {"predicted": reference[0], "basis": reference[1], **columns}
        columns = {"source": self.sources[0] if self.sources else None, **columns}
        return Measurement(self.theory(), "figure", quantity, value, **columns)

    @classmethod
    def quick(cls) -> "Experiment":
        """Returns the experiment with settings that take at most a minute, for a first look."""
        return cls()

    @classmethod
    def of(cls, result: Result) -> "Experiment":
        """Creates the experiment with the settings of a stored result. Tuples, which JSON stores as lists,
        are restored.

        Raises:
            TypeError, ValueError: the result stores settings of another experiment, or one is out of range.
        """
        return cls(
            **{
                name: tuple(value) if isinstance(value, list) else value
                for name, value in result.settings.items()
            }
        )

    def at_defaults(self, *names: str) -> bool:
        """Returns whether the named settings have their default values; without names, whether all settings
        have.

        Experiments use it to show a published number only at the settings for which it was published.
        """
        default = type(self)()
        return all(
            getattr(self, name) == getattr(default, name)
            for name in names or [field.name for field in fields(self)]
        )

    def run(self, *, workers: int | str | None = None, progress: Progress = None) -> Result:
        """Runs :meth:`measure` on one thread and records provenance. The global random state is restored
        afterwards.

        Args:
            workers: number of processes for :func:`sweep`, or the address of a dask scheduler (see
                :func:`~.parallel.workers`); None keeps the active joblib context. The measurements do not
                depend on it.
            progress: function called with one line of text at a time; True or False shows the lines or hides
                them. None shows them in a notebook and in an interactive interpreter.
        Raises:
            ValueError: ``workers`` is less than 1 or not an address, or dask is not installed.
            ConnectionError: the scheduler does not answer, or it has no workers.
        """
        started = time.perf_counter()
        with (
            parallel.workers(workers) as active,
            torch.random.fork_rng(devices=[]),
            one_thread(),
            shown(progress, self.name),
        ):
            torch.manual_seed(self.seed or 0)
            table, arrays = collect(self.measure())
            record = provenance(seed=self.seed, started=started) | {
                "workers": active.count if active.used else None
            }
        return Result(self.name, jsonable(asdict(self)), table, arrays, (), self.sources, record)


@dataclass(frozen=True)
class RandomExperiment(Experiment):
    """An experiment that draws random numbers, from :meth:`generator` or, in a sweep, from generators whose
    seeds depend on ``seed``.
    """

    seed: int = setting(0, ge=0, le=2**32 - 1, help="seed of the random numbers")

    def generator(self) -> torch.Generator:
        """Returns a generator seeded with ``seed``."""
        return torch.Generator().manual_seed(self.seed)


def experiments_in(package: str, path: Iterable[str]) -> tuple[type[Experiment], ...]:
    """Returns the experiments defined in the modules of a package, in alphabetical order of the modules.

    A package calls ``experiments_in(__name__, __path__)``.
    """
    kinds: list[type[Experiment]] = []
    for info in sorted(pkgutil.iter_modules(path), key=lambda info: info.name):
        module = importlib.import_module(f"{package}.{info.name}")
        # Skip imported classes, and base classes, which define no name.
        kinds += [
            kind
            for kind in vars(module).values()
            if isinstance(kind, type)
            and issubclass(kind, Experiment)
            and kind.__module__ == module.__name__
            and "name" in vars(kind)
        ]
    return tuple(kinds)


def summary(kind: type) -> str:
    """Returns the first paragraph of an experiment's docstring as Markdown, with formulas as LaTeX between
    dollars.
    """
    text = " ".join((kind.__doc__ or "").strip().split("\n\n")[0].split())
    # :math:`x` becomes $x$; other roles, such as :func:`~.sweep`, and ``literals`` become `code`.
    return re.sub(
        r":\w+:`~?([^`]*)`", lambda m: f"${m[1]}$" if m[0].startswith(":math:") else f"`{m[1]}`", text
    ).replace("``", "`")

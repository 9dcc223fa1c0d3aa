"""What a training was and came to: how far it went, which network was kept and why, how long it took, which settings were its own."""

import math
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

import numpy as np

from ..core.notes import is_share
from ..core.result import Result
from ..core.statistics import share_interval
from .readings import Readings

TEST = "test "


@dataclass(frozen=True)
class Measured:
    """A number that was measured on images.

    Attributes:
        quantity, value: as the row has them.
        n: images; None if that is not told.
        interval: of Clopper and Pearson (95 %); None if it is no share of n images.
        nulls: what the objective measured beside it, each with what it changed: ``("labels shuffled", 1.5)``.
    """

    quantity: str
    value: float
    n: int | None
    interval: tuple[float, float] | None
    nulls: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class Facts:
    """A training at a glance.

    Attributes:
        score: the quantity by which the kept network was chosen; None if none was measured.
        kept: that network's step; None if there is none.
        kept_score: what it scored on held-out images.
        tests: what the kept network was measured to do on the test images, shares first; empty if the training did not come to its end.
        steps: taken.
        readings: number of them.
        seconds: to the last reading.
        speed: images a second between readings: median, least and most; None before the first step.
        reading_share: of the seconds, not spent on training steps; None if it cannot be told.
        recipe: the name of the recipe that the settings are nearest to; None if there is none.
        changed: settings that differ from it, with both values.
    """

    score: str | None
    kept: int | None
    kept_score: Measured | None
    tests: tuple[Measured, ...]
    steps: int
    readings: int
    seconds: float | None
    speed: tuple[float, float, float] | None
    reading_share: float | None
    recipe: str | None
    changed: tuple[tuple[str, str, str], ...]


def facts(result: Result, read: Sequence[Readings]) -> Facts:
    """The facts of a stored training; ``read`` are its readings."""
    own = {r.quantity: r for r in read if r.theory == "network" and r.layers == (None,)}
    curves = {name: r for name, r in own.items() if not name.startswith(TEST)}
    score = _score(result, curves)
    kept, value = _best(curves[score]) if score else (None, None)
    held, tested = (result.provenance.get(name) for name in ("held_out_images", "test_images"))
    found = {name: number for name, r in own.items() if name.startswith(TEST) and (number := _last(r)) is not None}
    bases = {name: base(name, found) for name in found}
    tests = [
        replace(
            measured(name, number, tested),
            nulls=tuple((other.removeprefix(f"{name}, "), found[other]) for other in found if bases[other] == name != other),
        )
        for name, number in found.items()
        if bases[name] == name
    ]
    seconds = _last(curves["seconds"]) if "seconds" in curves else None
    speeds = curves.get("images per second")
    told = speeds.values[np.isfinite(speeds.values)] if speeds is not None else np.array([])
    steps = sorted({int(step) for r in read for step in r.steps})
    recipe, changed = _beside_recipe(result.params.get("settings") or {})
    return Facts(
        score=score,
        kept=kept,
        kept_score=None if value is None or score is None else measured(score, value, held),
        tests=tuple(sorted(tests, key=lambda test: not is_share(test.quantity))),
        steps=steps[-1] if steps else 0,
        readings=len(steps),
        seconds=seconds,
        speed=(median(told.tolist()), float(told.min()), float(told.max())) if told.size else None,
        reading_share=_reading_share(result, steps, speeds, seconds),
        recipe=recipe,
        changed=changed,
    )


def measured(quantity: str, value: float, n: int | None) -> Measured:
    """A number with its interval, if it is a share of n images."""
    return Measured(quantity, value, n, share_interval(value, n) if n is not None and is_share(quantity) else None)


def base(quantity: str, names: Container[str]) -> str:
    """What a quantity is the null of: ``"held-out loss, untrained"`` stands beside ``"held-out loss"``; else itself."""
    stem = quantity.rpartition(", ")[0]
    return stem if stem in names else quantity


def _score(result: Result, curves: Mapping[str, Readings]) -> str | None:
    """The objective's own score; of an objective that this version does not know, the first accuracy."""
    from ..training.objectives import OBJECTIVES

    objective = OBJECTIVES.get((result.params.get("objective") or {}).get("name", ""))
    names = [objective.score] if objective else [name for name in curves if is_share(name)]
    return next((name for name in names if name in curves and not curves[name].empty), None)


def _best(curve: Readings) -> tuple[int, float]:
    """Step and value of the last of the largest, which is the one that is kept."""
    values = curve.values[:, 0]
    at = int(np.flatnonzero(values == np.nanmax(values))[-1])
    return int(curve.steps[at]), float(curve.values[at, 0])


def _last(curve: Readings) -> float | None:
    finite = curve.values[np.isfinite(curve.values)]
    return float(finite[-1]) if finite.size else None


def _reading_share(result: Result, steps: Sequence[int], speeds: Readings | None, seconds: float | None) -> float | None:
    """Seconds that are not accounted for by images and speed."""
    batch = (result.params.get("settings") or {}).get("batch_size")
    if speeds is None or not batch or not seconds:
        return None
    before = dict(zip(steps[1:], steps))
    pairs = [(int(step), float(speed)) for step, speed in zip(speeds.steps, speeds.values[:, 0]) if step in before]
    if not pairs or not all(math.isfinite(speed) and speed > 0 for _, speed in pairs):
        return None
    share = 1 - sum((step - before[step]) * batch / speed for step, speed in pairs) / seconds
    return share if 0 <= share <= 1 else None


def _beside_recipe(settings: Mapping[str, Any]) -> tuple[str | None, tuple[tuple[str, str, str], ...]]:
    """The recipe that differs in the fewest settings, and these, each with its own value and the recipe's."""
    from ..training.image_recipes import RECIPES, recipe

    own, found = dict(_flat(settings)), []
    for name in RECIPES:
        try:
            usual = dict(_flat(asdict(recipe(settings["network"], name=name))))
        except (KeyError, ValueError):  # a network of another version
            return None, ()
        changed = tuple((key, str(own[key]), str(usual[key])) for key in own if key in usual and own[key] != usual[key])
        found.append((name, changed))
    return min(found, key=lambda pair: len(pair[1]))


def _flat(record: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in record.items():
        if isinstance(value, Mapping):
            yield from _flat(value)
        else:
            yield name, value

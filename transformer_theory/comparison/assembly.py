"""The rows and arrays of a comparison, assembled from the results of its jobs."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from ..core import parallel
from ..core.claims import Claim, Verification
from ..core.format import several
from ..core.measurement import Arrays, Measurement
from ..core.statistics import UNTRAINED, nulls_of
from ..data import TokenData
from ..training.monitor import with_nulls
from ..training.objectives import ACCURACY
from .on_data import Stream
from .plan import Plan
from .small_networks import Training, headlines
from .stored import images_and_labels, measure_stored_networks


def measurements(plan: Plan, results: Iterator[Any]) -> Stream:
    """Yields all measurements except the claims: networks first, then the theories on each view of the data.

    Args:
        plan: the comparison.
        results: results of :meth:`.Plan.jobs`, in their order.
    """
    trainings: list[tuple[str, Training]] = []
    for seed in plan.seeds:
        for recipe in plan.trained:
            trainings.append((recipe.name, next(results)))
            parallel.progress(f"{recipe.name}, seed {seed}: trained and measured")
    raw = [next(results) for _ in plan.seeds]
    untrained = {recipe.name: next(results) for recipe in plan.trained}
    if plan.trained:
        assert plan.parts is not None
        if not plan.networks:
            yield images_and_labels(plan.parts[1], plan.parts[1].images)
        for name, training in trainings:
            yield from with_nulls(training.rows, nulls_of(untrained[name], UNTRAINED))
            answers = [item for item in training.others if isinstance(item, Measurement)]
            yield from headlines(plan.theories, name, training.rows, untrained[name], answers)
            yield from training.others
    elif isinstance(plan.raw, TokenData) and (plan.recipes or not plan.networks):
        reason = (
            "training needs labels of at least two classes" if plan.recipes else "no network was asked for"
        )
        yield Measurement("network", "network", ACCURACY, None, unit="share", reason=reason)
    on_stored = []
    if plan.networks:
        assert plan.images is not None
        assert isinstance(plan.raw, TokenData)
        on_stored = [
            *measure_stored_networks(plan.networks, plan.raw, plan.images, plan.theories, plan.seeds[0])
        ]
    yield from (item for item in on_stored if not _on_data(item))
    for view in (*raw, *(training.on_features for _, training in trainings)):
        yield from view
    yield from filter(_on_data, on_stored)


def _on_data(item: Measurement | Arrays) -> bool:
    """Returns whether an item belongs to a theory's minimal model on data."""
    if isinstance(item, Arrays):
        return any("::" in name for name in item)
    return item.kind in ("on data", "assumption")


def verifications_of(
    claims: Sequence[Claim], seeds: Sequence[int], results: Iterator[Any]
) -> Iterator[Verification]:
    """Yields the verification of each claim; ``results`` holds the evidence of all seeds of the first claim,
    then of the second, ...
    """
    theory = ""
    for claim in claims:
        if claim.theory != theory:
            theory = claim.theory
            count = sum(other.theory == theory for other in claims)
            parallel.progress(f"{theory}: {several(count, 'claim')} with controls")
        yield Verification.of(claim, seeds, islice(results, len(seeds)))

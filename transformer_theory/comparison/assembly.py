"""The rows and arrays of a comparison, assembled from the results of its jobs."""

from collections.abc import Iterator, Mapping
from typing import Any

from ..core.claims import Verification
from ..core.measurement import Measurement
from ..core.statistics import EQUAL_SCALE, UNTRAINED
from ..core.table import Arrays
from ..data import TokenData
from ..probes.measure import with_nulls
from ..training.objectives import ACCURACY
from .on_data import Stream, View
from .plan import Key, Plan
from .small_networks import Training, headlines
from .stored import images_and_labels


def measurements(plan: Plan, results: Mapping[Key, Any], on_stored: View) -> Stream:
    """Yields all measurements except the claims: networks first, then the theories on each view of the data.

    Args:
        plan: the comparison.
        results: results of :meth:`.Plan.jobs`.
        on_stored: measurements of the stored networks.
    """
    trainings: list[tuple[str, Training]] = [
        (recipe.name, results[Key("network", recipe.name, seed)])
        for seed in plan.seeds
        for recipe in plan.trained
    ]
    if plan.trained:
        assert plan.split is not None
        if not plan.networks:
            yield images_and_labels(plan.split[1], plan.split[1].images)
        for name, training in trainings:
            untrained, permuted = results[Key("untrained", name)], results[Key("permuted", name)]
            yield from with_nulls(training.rows, {UNTRAINED: untrained})
            answers = [item for item in training.others if isinstance(item, Measurement)]
            networks = {
                EQUAL_SCALE: training.copies,
                permuted.kind(training.loss): permuted.rows,
                UNTRAINED: untrained,
            }
            yield from headlines(
                plan.theories,
                name,
                training.rows,
                networks,
                beside=training.beside,
                answers=answers,
                note=permuted.note(training.loss),
            )
            yield from training.others
    elif isinstance(plan.data, TokenData) and (plan.recipes or not on_stored):
        reason = (
            "training needs labels of at least two classes" if plan.recipes else "no network was asked for"
        )
        yield Measurement("network", "network", ACCURACY, None, unit="share", reason=reason)
    yield from (item for item in on_stored if not _on_data(item))
    for seed in plan.seeds:
        yield from results[Key("data", seed=seed)]
    for _, training in trainings:
        yield from training.on_features
    yield from filter(_on_data, on_stored)


def _on_data(item: Measurement | Arrays) -> bool:
    """Returns whether an item belongs to a theory's minimal model on data."""
    if isinstance(item, Arrays):
        return any("::" in name for name in item)
    return item.kind in ("on data", "assumption")


def verifications(plan: Plan, results: Mapping[Key, Any]) -> Iterator[Verification]:
    """Yields the verification of each claim of a plan."""
    for claim in plan.claims:
        evidence = [results[Key("claim", claim.id, seed)] for seed in plan.claim_seeds]
        yield Verification.of(claim, plan.claim_seeds, evidence)

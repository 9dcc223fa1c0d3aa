"""Rate reduction in trained networks: the separation of the classes by the features of each block, in nats.

Features, rates and the null distribution with permuted labels come from
:class:`~transformer_theory.metrics.class_features.FeatureRates`; the theory adds the rate reduction as a
share of its optimum. The optimum has orthogonal classes. Two centred classes at neural collapse are opposite
and not orthogonal: they have the share 0 with any labels, which the test cannot tell apart
(:func:`.exact_reduction`).

Source: :cite:t:`yu2020learning`.
"""

from collections.abc import Sequence
from typing import Any

import torch

from ...core.measurement import Measurement, present
from ...core.theory import InNetworks
from ...metrics.class_features import (
    CLASS_CODING_RATE,
    CODING_RATE,
    RATE_REDUCTION,
    FeatureRates,
    permuted_labels,
)
from .optimum import exact_reduction, optimum
from .problem import MCR2, NAME, OPTIMUM_THEOREM

SHARE = "rate reduction as a share of the optimum"


class RateReductionMetric(FeatureRates):
    """R, R^c and ΔR of the class token (or the mean token) after each block, with permuted labels as the
    null.

    Four rows per layer: ΔR, ΔR as a share of the optimum for this dimension and these class sizes, R and R^c.
    Forward passes without labels are ignored.

    Args:
        eps: distortion for features of norm 1; squared inside.
        seed: seed of the keys that sort the samples.
    """

    def compute(self, *, draws: int = 0, generator: torch.Generator | None = None) -> Sequence[Measurement]:
        """Returns four rows per layer; none without labels. The share has no value if there are more classes
        than dimensions.
        """
        rows: list[Measurement] = []
        for layer in sorted(self.samples):
            rate, within, sizes, dim = self.rates(layer)
            drawn = self.null_draws(layer, sizes, draws=draws, generator=generator)
            reduction, *reductions = (exact_reduction(each, rate) for each in (rate - within, *drawn))
            common: dict[str, Any] = {"layer": layer, "n": sum(sizes), "source": MCR2, "note": self.note}
            nats: dict[str, Any] = {"unit": "nats", "scope": "these data", **common}
            training: dict[str, Any] = {**nats, "scope": "training"}
            optimal: dict[str, Any] = {**common, "source": OPTIMUM_THEOREM}
            null, null_within = (
                permuted_labels(reductions),
                permuted_labels([rate - reduction for reduction in reductions]),
            )
            rows += [
                Measurement(
                    NAME, "in network", RATE_REDUCTION, reduction, nulls=present(null), side=">=", **nats
                ),
                _share(reduction, reductions, sizes, dim, self.eps, **optimal),
                Measurement(NAME, "in network", CODING_RATE, rate, **training),
                Measurement(
                    NAME,
                    "in network",
                    CLASS_CODING_RATE,
                    within,
                    nulls=present(null_within),
                    side="<=",
                    **nats,
                ),
            ]
        return rows


def _share(
    reduction: float, draws: Sequence[float], sizes: Sequence[int], dim: int, eps: float, **columns: Any
) -> Measurement:
    """Returns the row of ΔR as a share of its optimum for these class sizes and this dimension, with the
    draws of ΔR as its null.
    """
    sizes = [size for size in sizes if size]
    columns |= {"unit": "share", "side": ">=", "scope": "these data"}
    if len(sizes) < 2:
        return Measurement(
            NAME, "in network", SHARE, None, reason="with one class, ΔR and its optimum are 0", **columns
        )
    if len(sizes) > dim:
        reason = f"{len(sizes)} classes do not fit into orthogonal subspaces of {dim} dimensions"
        return Measurement(NAME, "in network", SHARE, None, reason=reason, **columns)
    optimal = optimum(sizes, dim, eps=eps)
    if not (best := exact_reduction(optimal.value, optimal.rate)):
        reason = f"at the distortion {eps:g} the optimum is 0 to rounding"
        return Measurement(NAME, "in network", SHARE, None, reason=reason, **columns)
    null = permuted_labels([draw / best for draw in draws])
    return Measurement(
        NAME, "in network", SHARE, reduction / best, predicted=1.0, nulls=present(null), **columns
    )


IN_NETWORKS = InNetworks(
    metrics=lambda: (RateReductionMetric(),),
    headline=SHARE,
    side=">=",
    of_labels=True,
    meaning="coding rate of the features less that within classes, over its largest value; 1: the classes "
    "fill orthogonal subspaces",
)

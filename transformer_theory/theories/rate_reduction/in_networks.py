"""Rate reduction in trained networks: the separation of the classes by the features of each block, in nats.

Features, rates and the null distribution with permuted labels come from
:class:`~transformer_theory.metrics.class_features.FeatureRates`; the theory adds the rate reduction as a share of its optimum.

Source: :cite:t:`yu2020learning`.
"""

from collections.abc import Sequence
from typing import Any

import torch

from ...core.measurement import Measurement, Null
from ...core.theory import InNetworks
from ...metrics.class_features import CLASS_CODING_RATE, CODING_RATE, NULL_KIND, RATE_REDUCTION, FeatureRates
from .optimum import optimum
from .problem import MCR2, NAME, OPTIMUM_THEOREM

SHARE = "rate reduction as a share of the optimum"


class RateReductionMetric(FeatureRates):
    """R, R^c and ΔR of the class token (or the mean token) after each block, with permuted labels as the null.

    Four rows per layer: ΔR, ΔR as a share of the optimum for this dimension and these class sizes, R and R^c. Forward passes without labels
    are ignored.

    Args:
        eps: distortion for features of norm 1; squared inside.
        seed: seed of the permutations, and of the keys that sort the samples.
    """

    def compute(self, *, draws: int = 0, generator: torch.Generator | None = None) -> Sequence[Measurement]:
        """Returns the rows of each layer; none without labels, and no share of the optimum if there are more classes than dimensions."""
        rows: list[Measurement] = []
        for layer in sorted(self.samples):
            rate, within, sizes, dim = self.rates(layer)
            reductions = self.null_draws(layer, sizes, draws=draws, generator=generator)
            best = optimum(sizes, dim, eps=self.eps).value if sum(size > 0 for size in sizes) <= dim else 0.0
            columns: dict[str, Any] = {"layer": layer, "n": sum(sizes), "source": MCR2, "note": self.note}

            def row(quantity: str, value: float, columns: dict[str, Any] = columns, **other_columns: Any) -> Measurement:
                return Measurement(NAME, "in network", quantity, value, **{"unit": "nats", **columns, **other_columns})

            rows.append(row(RATE_REDUCTION, rate - within, null=Null(NULL_KIND, reductions), side=">="))
            if best > 0:
                null = Null(NULL_KIND, tuple(reduction / best for reduction in reductions))
                rows.append(row(SHARE, (rate - within) / best, unit="share", null=null, side=">=", source=OPTIMUM_THEOREM))
            rows.append(row(CODING_RATE, rate))
            null = Null(NULL_KIND, tuple(rate - reduction for reduction in reductions))
            rows.append(row(CLASS_CODING_RATE, within, null=null, side="<="))
        return rows


IN_NETWORKS = InNetworks(metrics=lambda: (RateReductionMetric(),), headline=RATE_REDUCTION, side=">=")

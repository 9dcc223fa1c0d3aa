"""The order parameter of rate reduction in a trained network: how far each block's features separate the classes, in nats.

The features, and the null with shuffled labels, are those of :class:`~transformer_theory.probes.class_features.FeatureRates`; the theory
adds what the rate reduction could be at best.
"""

from collections.abc import Sequence

from ...core.measurement import Row
from ...core.sources import Source
from ...probes.class_features import FeatureRates
from .optimum import optimum

SOURCE = Source("yu2020learning")


class RateReduction(FeatureRates):
    """Streams R, R^c, ΔR of the class token (or the mean token) after each block, by class, beside four shuffles of the labels.

    Rows a layer: "rate reduction" (ΔR, nats), "rate reduction as a share of the optimum" (for this dimension and these class sizes),
    "coding rate" (R) and "class coding rate" (R^c); their note says which token was read. Passes without labels are not counted.

    Args:
        eps: distortion for features of norm 1; squared inside.
        seed: of the keys and the shuffles.
    Source: :cite:t:`yu2020learning`.
    """

    def compute(self) -> Sequence[Row]:
        """Four rows a layer; none if no labelled features were seen."""
        rows: list[Row] = []
        for layer in sorted(self.kept):
            rate, within, sizes, dim = self._rates(layer)
            null = self._null(layer, sizes)
            best = optimum(sizes, dim, eps=self.eps).value if sum(size > 0 for size in sizes) <= dim else 0.0

            def row(quantity: str, value: float, layer: int = layer, **more) -> Row:
                return Row(theory="rate_reduction", quantity=quantity, value=value, layer=layer, source=str(SOURCE), note=self.note, **more)

            rows.append(row("rate reduction", rate - within, null=null))
            if best > 0:
                rows.append(row("rate reduction as a share of the optimum", (rate - within) / best, null=null / best))
            rows.append(row("coding rate", rate))
            rows.append(row("class coding rate", within, null=rate - null))
        return rows


def reducers() -> tuple[RateReduction, ...]:
    """The order parameters of this room."""
    return (RateReduction(),)

"""Coding rates and lengths of features, their gradients in closed form, and the streaming state from which
rates are computed.

* :mod:`.rates`: R, R^c and ΔR in nats per sample; coding lengths in bits.
* :mod:`.gradients`: the operators E and C_j, and the gradients.
* :mod:`.memberships`: classes as labels or as soft memberships.
* :mod:`.resolvents`: the log-determinants and inverses that these modules need.
* :mod:`.streaming`: second moments, summed over batches and processes.
"""

from .gradients import (
    class_coding_rate_gradient,
    coding_rate_gradient,
    compression_operators,
    expansion_operator,
    rate_reduction_gradient,
)
from .rates import (
    centred_coding_length,
    class_coding_rate,
    class_coding_rates,
    coding_length,
    coding_rate,
    mean_coding_length,
    rate_reduction,
    segmented_coding_length,
    subspace_coding_rate,
    unit_norm,
)
from .streaming import SecondMoments

__all__ = [
    "SecondMoments",
    "centred_coding_length",
    "class_coding_rate",
    "class_coding_rate_gradient",
    "class_coding_rates",
    "coding_length",
    "coding_rate",
    "coding_rate_gradient",
    "compression_operators",
    "expansion_operator",
    "mean_coding_length",
    "rate_reduction",
    "rate_reduction_gradient",
    "segmented_coding_length",
    "subspace_coding_rate",
    "unit_norm",
]

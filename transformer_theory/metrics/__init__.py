"""What is measured: attention weights (entropy, sharpness, sinks), coding rates, and the geometry of features and matrices."""

from .attention import (
    effective_support,
    entropy,
    entropy_lower_bound,
    hard_max_gap,
    sharpness,
    sink_mass,
    top1_mass,
)
from .coding import (
    SecondMoments,
    class_coding_rate,
    class_coding_rates,
    coding_rate,
    rate_reduction,
    subspace_coding_rate,
    unit_norm,
)
from .geometry import (
    NeuralCollapse,
    alignment,
    effective_rank,
    neural_collapse,
    numerical_rank,
    principal_angles,
    rank_collapse_residual,
    stable_rank,
)

__all__ = [
    "NeuralCollapse",
    "SecondMoments",
    "alignment",
    "class_coding_rate",
    "class_coding_rates",
    "coding_rate",
    "effective_rank",
    "effective_support",
    "entropy",
    "entropy_lower_bound",
    "hard_max_gap",
    "neural_collapse",
    "numerical_rank",
    "principal_angles",
    "rank_collapse_residual",
    "rate_reduction",
    "sharpness",
    "sink_mass",
    "stable_rank",
    "subspace_coding_rate",
    "top1_mass",
    "unit_norm",
]

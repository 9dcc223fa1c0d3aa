"""Rate reduction: representations that are compact within classes and spread out between them, measured in
nats.

- Problems: :mod:`.problem` draws instances, :mod:`.optimum` has the maximum in closed form, and
  :mod:`.landscape` and :mod:`.spheres` classify critical points.
- Networks: :mod:`.redunet` is the network that ascends the rate reduction; :mod:`.loss` and
  :mod:`.mcr2_training` train other networks.
- Estimators with the interface of scikit-learn: :mod:`.estimators` and :mod:`.clustering`.
- Claims: :mod:`.claims`. Measurements of data and trained networks: :mod:`.on_data` and :mod:`.in_networks`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from ...core.theory import Theory
from .claims import CLAIMS
from .evaluation import nearest_subspace
from .figures import EXPERIMENTS
from .in_networks import IN_NETWORKS, RateReductionMetric
from .interventions import INTERVENTIONS
from .ladder import LADDER
from .loss import LossParts, MaximalCodingRateReduction, union_of_ranks
from .on_data import ON_DATA
from .optimum import Optimum, flat_reduction, largest_rank, maximise, optimum
from .problem import LANDSCAPE, MCR2, REDUNET, equal_moments, gaussian_toy, orthogonal_classes
from .redunet import (
    Layer,
    ReduNet,
    ShiftInvariantReduNet,
    TrainableReduNet,
    construct,
    construct_shift_invariant,
    guaranteed_step,
    layer,
    lift,
    polar,
    random_filters,
)
from .tasks import RateReduction

if TYPE_CHECKING:
    from .clustering import CodingLengthClustering
    from .estimators import NearestSubspaceClassifier, RateReductionClassifier, ReduNetClassifier

THEORY = Theory(
    name="rate_reduction",
    title="Maximal coding rate reduction",
    colour="#009E73",
    question="Do features put classes into orthogonal subspaces, each filled evenly?",
    statement=r"A good representation needs many bits for all features together, $R = \frac12\log\det(I + "
    r"\alpha X^\top X)$, and few for the features of one class: it maximises the rate reduction $\Delta R = "
    r"R - \sum_j \frac{n_j}{n} R_j \ge 0$. At the maximum classes lie in orthogonal subspaces and fill them "
    r"evenly. ReduNet is a network of gradient steps on $\Delta R$, built from data without "
    "back-propagation.",
    sources=(MCR2, REDUNET, LANDSCAPE),
    assumptions=(
        "features have norm 1, or each class has a fixed scale",
        "the classes' ranks add up to at most d",
        "the distortion is small: ε⁴ < (n_j/n) d²/r_j² for each class",
    ),
    claims=CLAIMS,
    ladder=LADDER,
    experiments=EXPERIMENTS,
    on_data=ON_DATA,
    in_networks=IN_NETWORKS,
    interventions=INTERVENTIONS,
    objectives=(RateReduction,),
)

__all__ = [
    "THEORY",
    "CodingLengthClustering",
    "Layer",
    "LossParts",
    "MaximalCodingRateReduction",
    "NearestSubspaceClassifier",
    "Optimum",
    "RateReductionClassifier",
    "RateReductionMetric",
    "ReduNet",
    "ReduNetClassifier",
    "ShiftInvariantReduNet",
    "TrainableReduNet",
    "construct",
    "construct_shift_invariant",
    "equal_moments",
    "flat_reduction",
    "gaussian_toy",
    "guaranteed_step",
    "largest_rank",
    "layer",
    "lift",
    "maximise",
    "nearest_subspace",
    "optimum",
    "orthogonal_classes",
    "polar",
    "random_filters",
    "union_of_ranks",
]

_ESTIMATORS = {
    "CodingLengthClustering": "clustering",
    "NearestSubspaceClassifier": "estimators",
    "RateReductionClassifier": "estimators",
    "ReduNetClassifier": "estimators",
}


def __getattr__(name: str):
    """Imports the estimators on first access, because they import scikit-learn."""
    if name not in _ESTIMATORS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_ESTIMATORS[name]}", __name__), name)

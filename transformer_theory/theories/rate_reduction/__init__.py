"""Rate reduction: representations that are compact within classes and spread out between them, measured in nats.

:mod:`.problem` the MCR² problem and its optimum, :mod:`.redunet` the network that ascends it, :mod:`.estimators` and
:mod:`.clustering` both for scikit-learn, :mod:`.claims` checkable statements,
:mod:`.analysis` and :mod:`.reducers` what it says about data and about trained networks.
"""

from importlib import import_module

from ...core.sources import Source
from ...core.theory import Theory
from .analysis import ANSWER, MCR2, REDUNET, predict_and_measure
from .claims import CLAIMS
from .experiments import EXPERIMENTS, LabelCorruption, Landscape, ReduNetDigits, ReduNetGaussians, ReduNetIris, Shifts
from .figures import draw
from .loss import LossParts, MaximalCodingRateReduction, union_of_ranks
from .optimum import Optimum, flat_reduction, largest_rank, maximise, optimum
from .problem import equal_moments, gaussian_toy, orthogonal_classes
from .reducers import RateReduction, reducers
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
    nearest_subspace,
    polar,
    random_filters,
)

THEORY = Theory(
    name="rate_reduction",
    title="Maximal coding rate reduction",
    question="Do features put classes into orthogonal subspaces, each filled evenly?",
    statement=r"A good representation needs many bits for all features together, $R = \frac12\log\det(I + \alpha X^\top X)$, and few for "
    r"those of one class: it maximises the rate reduction $\Delta R = R - \sum_j \frac{n_j}{n} R_j \ge 0$. At the maximum classes lie in "
    r"orthogonal subspaces and fill them evenly. ReduNet is the network whose layers are gradient steps on $\Delta R$, built from data "
    r"without back-propagation.",
    sources=(MCR2, REDUNET, Source("wang2024global")),
    assumptions=(
        "features have norm 1, or each class has a fixed scale",
        "the classes' ranks add up to at most d",
        "the distortion is small: ε⁴ < (n_j/n) d²/r_j² for each class",
    ),
    claims=CLAIMS,
    experiments=EXPERIMENTS,
    needs=("labels",),
    predict_and_measure=predict_and_measure,
    reducers=reducers,
    draw=draw,
    order_parameter="rate reduction",
    answer=ANSWER,
)

__all__ = [
    "THEORY",
    "LabelCorruption",
    "Landscape",
    "Layer",
    "LossParts",
    "MaximalCodingRateReduction",
    "Optimum",
    "RateReduction",
    "ReduNet",
    "ReduNetDigits",
    "ReduNetGaussians",
    "ReduNetIris",
    "ShiftInvariantReduNet",
    "Shifts",
    "TrainableReduNet",
    "construct",
    "construct_shift_invariant",
    "draw",
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
    "predict_and_measure",
    "random_filters",
    "reducers",
    "union_of_ranks",
]

_ESTIMATORS = {
    "CodingLengthClustering": "clustering",
    "NearestSubspaceClassifier": "estimators",
    "RateReductionClassifier": "estimators",
    "ReduNetClassifier": "estimators",
}


def __getattr__(name: str):
    """The estimators, which bring scikit-learn, are imported when they are asked for."""
    if name not in _ESTIMATORS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_ESTIMATORS[name]}", __name__), name)

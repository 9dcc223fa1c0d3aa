"""ReduNet, the network that ascends the rate reduction: on vectors, on cyclic grids with shifts as symmetry, and trained afterwards.

Source: :cite:t:`chan2022redunet`.
"""

from .evaluation import nearest_subspace
from .lifting import lift, polar, random_filters
from .shift_invariant import ShiftInvariantReduNet, SpectralLayer, Spectrum, construct_shift_invariant
from .step import guaranteed_step
from .trainable import TrainableReduNet
from .vector import Layer, ReduNet, construct, layer

__all__ = [
    "Layer",
    "ReduNet",
    "ShiftInvariantReduNet",
    "SpectralLayer",
    "Spectrum",
    "TrainableReduNet",
    "construct",
    "construct_shift_invariant",
    "guaranteed_step",
    "layer",
    "lift",
    "nearest_subspace",
    "polar",
    "random_filters",
]

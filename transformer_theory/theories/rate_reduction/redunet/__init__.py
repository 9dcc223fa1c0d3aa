"""ReduNet, the network that ascends the rate reduction: on vectors, and on cyclic grids with shifts as symmetry.

Source: :cite:t:`chan2022redunet`.
"""

from .construction import guaranteed_step
from .shift_invariant import ShiftInvariantReduNet, construct_shift_invariant, lift, polar, random_filters
from .vector import Layer, ReduNet, TrainableReduNet, construct, layer

__all__ = [
    "Layer",
    "ReduNet",
    "ShiftInvariantReduNet",
    "TrainableReduNet",
    "construct",
    "construct_shift_invariant",
    "guaranteed_step",
    "layer",
    "lift",
    "polar",
    "random_filters",
]

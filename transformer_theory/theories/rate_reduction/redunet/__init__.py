"""ReduNet, the network whose layers ascend the rate reduction, for vectors and for cyclic grids whose classes are invariant to shifts.

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

"""ReduNet, a network of gradient steps on the rate reduction: for vectors, and for samples on cyclic grids
with shift-invariant classes.

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

"""Gradient descent on attention weights: state in, state out.

:mod:`.states` where a run stands · :mod:`.losses` · :mod:`.heads` what follows attention · :mod:`.gradient` exact at any norm ·
:mod:`.descent` normalised and plain descent, on W and on :mod:`.factored` weights

Source: :cite:t:`tarzanagh2023transformers`, :cite:t:`tarzanagh2023maxmargin`.
"""

from .descent import descent_direction, normalised_descent, plain_descent, trajectory
from .heads import Head, HeadInstance, differentiable, relu_head
from .losses import EXPONENTIAL, LINEAR, LOGISTIC, Loss
from .states import Factors, State, load, random_factors, random_start, save, start

__all__ = [
    "EXPONENTIAL",
    "LINEAR",
    "LOGISTIC",
    "Factors",
    "Head",
    "HeadInstance",
    "Loss",
    "State",
    "descent_direction",
    "differentiable",
    "load",
    "normalised_descent",
    "plain_descent",
    "random_factors",
    "random_start",
    "relu_head",
    "save",
    "start",
    "trajectory",
]

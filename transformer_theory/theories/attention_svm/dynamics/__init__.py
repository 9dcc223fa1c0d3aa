"""Gradient descent on attention weights: state in, state out.

:mod:`.states` where a run stands · :mod:`.losses` · :mod:`.heads` what follows attention · :mod:`.gradient` exact at any norm ·
:mod:`.descent` normalised and plain descent, on W and on :mod:`.factored` weights · :mod:`.joint` prompt and head at once · :mod:`.mirror`
descent in another norm · :mod:`.polyak` step · :mod:`.path` least loss within a growing ball

Source: :cite:t:`tarzanagh2023transformers`, :cite:t:`tarzanagh2023maxmargin`.
"""

from .descent import descent_direction, is_stationary, normalised_descent, plain_descent, trajectory
from .heads import Head, HeadInstance, differentiable, relu_head
from .joint import JointInstance, JointState, JointTargets, joint_descent, joint_targets
from .losses import EXPONENTIAL, LINEAR, LOGISTIC, Loss
from .mirror import bregman_divergence, mirror_descent
from .path import RegularisationPath, factored_path, regularisation_path
from .polyak import log_excess_loss, polyak_descent
from .states import Factors, State, load, random_factors, random_start, save, start

__all__ = [
    "EXPONENTIAL",
    "LINEAR",
    "LOGISTIC",
    "Factors",
    "Head",
    "HeadInstance",
    "JointInstance",
    "JointState",
    "JointTargets",
    "Loss",
    "RegularisationPath",
    "State",
    "bregman_divergence",
    "descent_direction",
    "differentiable",
    "factored_path",
    "is_stationary",
    "joint_descent",
    "joint_targets",
    "load",
    "log_excess_loss",
    "mirror_descent",
    "normalised_descent",
    "plain_descent",
    "polyak_descent",
    "random_factors",
    "random_start",
    "regularisation_path",
    "relu_head",
    "save",
    "start",
    "trajectory",
]

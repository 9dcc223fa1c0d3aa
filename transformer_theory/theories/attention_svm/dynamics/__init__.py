"""Gradient descent on attention weights: a function takes a state and returns a state.

:mod:`.states` the state of a run · :mod:`.losses` · :mod:`.heads` the prediction from the attended mixture · :mod:`.gradient` exact at any
norm · :mod:`.spaces` W, images, logits or factors · :mod:`.descent` normalised and plain descent · :mod:`.joint` prompt and head at once ·
:mod:`.mirror` descent in another norm · :mod:`.polyak` steps · :mod:`.path` least loss within a growing ball
"""

from .descent import descent_direction, is_stationary, normalised_descent, plain_descent, trajectory
from .gradient import merge_equal_tokens
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
    "merge_equal_tokens",
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

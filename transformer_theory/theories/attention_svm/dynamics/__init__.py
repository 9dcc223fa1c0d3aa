"""Gradient descent on attention weights: each kind of descent is a function from a state to a state.

- :mod:`.states`: the state of a run
- :mod:`.losses`: losses of a prediction
- :mod:`~transformer_theory.theories.attention_svm.dynamics.heads`: functions that predict from the
  attention-weighted mixture of tokens
- :mod:`.gradient`: the gradient, exact for any norm of the weights
- :mod:`.spaces`: the variables of a step: weights, images, logits or factors
- :mod:`.descent`: normalised and plain descent
- :mod:`.joint`: joint descent on prompt and head
- :mod:`.mirror`: mirror descent in an entrywise norm
- :mod:`.polyak`: descent with Polyak steps
- :mod:`.path`: regularisation paths, the weights of least loss within a growing ball
- :mod:`.cone_path`: the same within a cone around the max-margin solution of a selection
"""

from .cone_path import LocalPath, local_path
from .descent import descent_direction, is_stationary, normalised_descent, plain_descent, trajectory
from .gradient import merge_equal_tokens
from .heads import Head, HeadInstance, concave_head, differentiable, relu_head
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
    "LocalPath",
    "Loss",
    "RegularisationPath",
    "State",
    "bregman_divergence",
    "concave_head",
    "descent_direction",
    "differentiable",
    "factored_path",
    "is_stationary",
    "joint_descent",
    "joint_targets",
    "load",
    "local_path",
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

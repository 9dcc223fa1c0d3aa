"""Training of networks, with metrics that are computed while they learn.

There is one loop, :func:`fit`; a task defines batches and loss (:mod:`transformer_theory.training.tasks`).
:func:`train` trains on images with an objective, an optimiser, checkpoints and a run folder (:mod:`.loop`,
:mod:`.settings`). :func:`train_seeds` repeats such a training on several seeds in parallel.
:func:`train_classifier` trains on tokens, and :func:`monitored_training` also measures the network at
checkpoints. :mod:`.recipes` holds tested settings; :mod:`.evaluate` and :mod:`.side_by_side` measure and
compare stored networks. This package imports no theory: callers pass metrics and objectives.
"""

from .fitting import Fit, State, Task, fit
from .loop import Moment, train
from .monitor import Monitor, Monitored, monitored_training
from .seeds import train_seeds
from .supervised import Trained, accuracy, train_classifier

__all__ = [
    "Fit",
    "Moment",
    "Monitor",
    "Monitored",
    "State",
    "Task",
    "Trained",
    "accuracy",
    "fit",
    "monitored_training",
    "train",
    "train_classifier",
    "train_seeds",
]

"""Training of networks, with metrics that are computed while they learn.

There is one loop, :func:`fit`; a task defines batches and loss (:mod:`transformer_theory.training.tasks`).
:func:`train_classifier` trains on tokens, and :func:`monitored_training` also measures the network at
checkpoints. :mod:`.recipes` holds small networks with tested settings. Trainings on images, with a run
folder, are a product of their own, :mod:`.image`. This package imports no theory: callers pass metrics and
objectives.
"""

from .fitting import Fit, State, Task, fit
from .monitor import Monitor, Monitored, monitored_training
from .supervised import Trained, accuracy, train_classifier

__all__ = [
    "Fit",
    "Monitor",
    "Monitored",
    "State",
    "Task",
    "Trained",
    "accuracy",
    "fit",
    "monitored_training",
    "train_classifier",
]

"""Training of the small networks that the theories are read in."""

from .loop import Trained, accuracy, train

__all__ = ["Trained", "accuracy", "train"]

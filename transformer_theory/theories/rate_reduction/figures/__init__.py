"""The figures of the papers redone, and some of our own; one experiment a file."""

from ....core.experiment import experiments_in

EXPERIMENTS = experiments_in(__name__, __path__)

__all__ = ["EXPERIMENTS"]

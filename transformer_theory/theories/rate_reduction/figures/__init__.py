"""Reproductions of the papers' figures, and further experiments; one per file."""

from ....core.experiment import experiments_in

EXPERIMENTS = experiments_in(__name__, __path__)

__all__ = ["EXPERIMENTS"]

"""Reproductions of the paper's figures, and further experiments; one per file."""

from ....core.experiment import experiments_in

EXPERIMENTS = experiments_in(__name__, __path__)

"""The figures of the papers, recomputed; one experiment per file."""

from ....core.experiment import experiments_in

EXPERIMENTS = experiments_in(__name__, __path__)

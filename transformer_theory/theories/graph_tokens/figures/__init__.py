"""The figures of the theory of graph tokens, one experiment per file."""

from ....core.experiment import experiments_in

EXPERIMENTS = experiments_in(__name__, __path__)

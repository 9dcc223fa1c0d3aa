"""The figures of the particle theory, one experiment a file."""

from ....core.experiment import experiments_in

EXPERIMENTS = experiments_in(__name__, __path__)

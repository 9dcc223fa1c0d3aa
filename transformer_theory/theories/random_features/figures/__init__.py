"""The figures of random-feature attention, one experiment a file."""

from ....core.experiment import experiments_in

EXPERIMENTS = experiments_in(__name__, __path__)

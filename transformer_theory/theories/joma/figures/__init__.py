"""The figures of the paper redone, and some that go further; one experiment per file."""

from ....core.experiment import experiments_in

EXPERIMENTS = experiments_in(__name__, __path__)

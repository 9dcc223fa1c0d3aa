"""The figures of the theory redone: layers unrolled on tokens of known subspaces, and networks that are trained; one file each."""

from ....core.experiment import experiments_in

EXPERIMENTS = experiments_in(__name__, __path__)

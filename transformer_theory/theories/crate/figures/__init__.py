"""The figures of the theory, recomputed: layers unrolled on tokens of known subspaces, and trained networks;
one file each.
"""

from ....core.experiment import experiments_in

EXPERIMENTS = experiments_in(__name__, __path__)

"""Checkable statements of JoMA, each with a control that must fail; one file a subject.

Source: :cite:t:`tian2024joma`, :cite:t:`zhai2023stabilizing`.
"""

from . import invariants, lower_layer, mixture, orbit, recovery, tree, two_phases

CLAIMS = (*invariants.CLAIMS, *orbit.CLAIMS, *two_phases.CLAIMS, *lower_layer.CLAIMS, *tree.CLAIMS, *mixture.CLAIMS, *recovery.CLAIMS)

__all__ = ["CLAIMS"]

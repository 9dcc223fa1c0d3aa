"""Runs that repeat the published figures, and some that no one has run; one file a figure.

Source: :cite:t:`tarzanagh2023transformers`, :cite:t:`tarzanagh2023maxmargin`.
"""

from .global_convergence import GlobalConvergence
from .local_convergence import LocalConvergence

EXPERIMENTS = (
    LocalConvergence,
    GlobalConvergence,
)

__all__ = ["EXPERIMENTS", "GlobalConvergence", "LocalConvergence"]

"""Runs that repeat the published figures, and some that no one has run; one file a figure.

Source: :cite:t:`tarzanagh2023transformers`, :cite:t:`tarzanagh2023maxmargin`.
"""

from .global_convergence import GlobalConvergence
from .graph import Graph
from .joint import Joint
from .local_convergence import LocalConvergence
from .long_run import LongRun
from .loss_comparison import LossComparison
from .mirror import Mirror
from .multi_input import MultiInput
from .multi_token import MultiToken
from .probability_map import ProbabilityMap
from .rank import Rank
from .rank_map import RankMap
from .sequences import Sequences
from .single_input import SingleInput
from .trajectories import Trajectories

EXPERIMENTS = (
    LocalConvergence,
    GlobalConvergence,
    Sequences,
    Trajectories,
    ProbabilityMap,
    SingleInput,
    MultiInput,
    MultiToken,
    Joint,
    LossComparison,
    Mirror,
    Graph,
    Rank,
    RankMap,
    LongRun,
)

__all__ = [
    "EXPERIMENTS",
    "GlobalConvergence",
    "Graph",
    "Joint",
    "LocalConvergence",
    "LongRun",
    "LossComparison",
    "Mirror",
    "MultiInput",
    "MultiToken",
    "ProbabilityMap",
    "Rank",
    "RankMap",
    "Sequences",
    "SingleInput",
    "Trajectories",
]

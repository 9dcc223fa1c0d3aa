"""The figures of the room, pure functions of a stored result; one file a figure."""

from .data import draw
from .global_convergence import global_convergence
from .graph import graph
from .joint import joint
from .local_convergence import local_convergence
from .long_run import long_run
from .loss_comparison import loss_comparison
from .mirror import mirror
from .multi_input import multi_input
from .multi_token import multi_token
from .probability_map import probability_map
from .rank import rank
from .rank_map import rank_map
from .sequences import sequences
from .single_input import single_input
from .trajectories import trajectories

__all__ = [
    "draw",
    "global_convergence",
    "graph",
    "joint",
    "local_convergence",
    "long_run",
    "loss_comparison",
    "mirror",
    "multi_input",
    "multi_token",
    "probability_map",
    "rank",
    "rank_map",
    "sequences",
    "single_input",
    "trajectories",
]

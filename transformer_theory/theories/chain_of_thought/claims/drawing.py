"""What several claims share: sources, and the five tasks in two sizes."""

from torch import Generator

from ....core.sources import Source
from ..arithmetic import Arithmetic, Equations
from ..dynamic import LIS, EditDistance, Membership
from ..tasks import ChainTask, Sample

PAPER = "feng2023towards"
OWN = Source(PAPER, status="own")
FIVE = "five tasks: arithmetic, equations, longest increasing subsequence, edit distance, membership"
SMALL: tuple[ChainTask, ...] = (
    Arithmetic(3, 7),
    Equations(2, 5),
    LIS(10, 10),
    EditDistance(4, 3),
    Membership(6),
)
LARGE: tuple[ChainTask, ...] = (
    Arithmetic(6, 7),
    Equations(4, 5),
    LIS(20, 20),
    EditDistance(8, 3),
    Membership(12),
)


def draw_samples(task: ChainTask, n: int, generator: Generator) -> list[Sample]:
    """Draws n questions with their chains."""
    return [task.sample(generator) for _ in range(n)]

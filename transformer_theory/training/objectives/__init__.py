"""What a network on images is trained for: each objective tells its network, its loss and what is measured of it.

:mod:`.cross_entropy` of labels. ``OBJECTIVES`` names them; a training loop asks no more of one than :class:`Objective` says.
"""

from .cross_entropy import CrossEntropy
from .protocol import Gather, Labelled, Objective, alone

OBJECTIVES: dict[str, type[Objective]] = {kind.name: kind for kind in (CrossEntropy,)}

__all__ = ["OBJECTIVES", "CrossEntropy", "Gather", "Labelled", "Objective", "alone"]

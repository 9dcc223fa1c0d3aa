r"""Predictions of rank collapse for a network: without skip connections its tokens become one.

A block maps Z to Z + F(Z). With half of each skip connection the output is

.. math:: \tfrac12 Z + F(Z).

The control moves each token as far, by half of its length, in a random direction. Source:
:cite:t:`dong2021attention`.
"""

from ...core.intervention import BlockPass, Control, Intervention, moved_at_random
from ...core.sources import Source

SCALE = 0.5  # of every skip connection


def scaled_skip(block: BlockPass) -> BlockPass:
    """Scales what the skip connections carry."""
    return block.with_output(block.output - (1 - SCALE) * block.tokens)


def random_direction(block: BlockPass) -> BlockPass:
    """Moves each token as far, in a random direction."""
    steps = (1 - SCALE) * block.tokens
    return block.with_output(moved_at_random(block.output, steps, block.generator))


INTERVENTIONS = (
    Intervention(
        name="skip connections halved",
        change=scaled_skip,
        predicts="broken",
        controls=(Control("tokens moved as far in random directions", random_direction),),
        source=Source("dong2021attention", status="own"),
        site="block",
    ),
)

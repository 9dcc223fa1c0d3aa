r"""What the flow of tokens says of a network: a block is one step of a flow, and a second step goes on.

Every block runs twice, so that each token moves on by :math:`\Delta = \text{block}(Z') - Z'` from the output
:math:`Z'`. The control moves each token as far in a random direction. If blocks are steps of one flow to
clusters, a further step keeps more of the outputs than a random one. Source:
:cite:t:`geshkovski2025mathematical`.
"""

import torch

from ...core.intervention import BlockPass, Control, Intervention, random_steps
from ...core.sources import Source


def twice(block: BlockPass) -> BlockPass:
    """Runs the block again on its output."""
    return block.with_output(block.again(block.output))


def random_step(block: BlockPass) -> BlockPass:
    """Moves each token as far as the second step of the block, in a random direction."""
    output = block.output
    lengths = torch.linalg.vector_norm(block.again(output) - output, dim=-1, keepdim=True)
    return block.with_output(output + random_steps(lengths, output.shape[-1], block.generator))


INTERVENTIONS = (
    Intervention(
        name="every block twice",
        change=twice,
        predicts="kept",
        controls=(Control("tokens moved as far in random directions", random_step),),
        source=Source("geshkovski2025mathematical", status="own"),
        site="block",
    ),
)

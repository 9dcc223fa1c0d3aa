r"""Predictions of the flow of tokens for a network: a block is one step of a flow, and its values are the
tokens.

Every block runs twice, so that each token moves on by :math:`\Delta = \text{block}(Z') - Z'` from the output
:math:`Z'`. The control moves each token as far in a random direction. If blocks are steps of one flow to
clusters, a further step keeps more of the outputs than a random one.

In the model of interacting particles the value matrix is the identity. Here the attention of each block adds

.. math:: \Delta_i \propto \sum_h \sum_j A^h_{ij} z_j

in place of :math:`\sum_h \sum_j A^h_{ij} W^h_O W^h_V z_j`, with the tokens z that go into it. Each token
moves as far as it does without the change. The control moves it as far along :math:`R \Delta_i`, with a
random orthogonal matrix R of each attention, the same in all batches. Source:
:cite:t:`geshkovski2025mathematical`.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from ...core.intervention import BlockPass, Control, Intervention, Projected, moved_at_random, own_generator
from ...core.sources import Source


def twice(block: BlockPass) -> BlockPass:
    """Runs the block again on its output."""
    return block.with_output(block.again(block.output))


def random_step(block: BlockPass) -> BlockPass:
    """Moves each token as far as the second step of the block, in a random direction."""
    output = block.output
    return block.with_output(moved_at_random(output, block.again(output) - output, block.generator))


def tokens_as_values(attention: Projected) -> Projected:
    """Moves each token towards the tokens that it attends to, as far as the attention moves it."""
    return _moved(attention, _attended_tokens(attention))


def rotated_values(attention: Projected) -> Projected:
    """Moves each token as far, along a random orthogonal map of what it attends to. An attention has one map
    in all batches of a draw.
    """
    sums = _attended_tokens(attention)
    size = (sums.shape[-1],) * 2
    normal = torch.randn(size, generator=own_generator(attention), device=sums.device, dtype=sums.dtype)
    return _moved(attention, sums @ torch.linalg.qr(normal).Q)


def _attended_tokens(attention: Projected) -> Float[Tensor, "windows q dim"]:
    """Returns the tokens that each query attends to, summed over keys and heads.

    Raises:
        ValueError: the tokens that go into the attention are not known, or have another width than the
            stream.
    """
    tokens = attention.tokens
    if tokens is None or tokens.shape[-1] != attention.added.shape[-1]:
        raise ValueError(
            "tokens as values need a module that attends among the tokens of the stream that go into it, got "
            f"another one: {attention.attention or attention.name}"
        )
    return attention.weights.sum(1) @ tokens.to(attention.weights.dtype)


def _moved(attention: Projected, directions: Float[Tensor, "windows q dim"]) -> Projected:
    """Adds these directions with the length of what the attention adds to each token."""
    lengths, own = (
        torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        for x in (attention.added.to(directions.dtype), directions)
    )
    # directions of the right length stay to the last bit: their factor is one
    return attention.with_added(directions * (lengths / own.clamp_min(1e-30)))


INTERVENTIONS = (
    Intervention(
        name="every block twice",
        change=twice,
        predicts="kept",
        controls=(Control("tokens moved as far in random directions", random_step),),
        source=Source("geshkovski2025mathematical", status="own"),
        site="block",
    ),
    Intervention(
        name="tokens as the values of attention",
        change=tokens_as_values,
        predicts="kept",
        controls=(Control("values through random orthogonal maps", rotated_values, is_common=True),),
        source=Source("geshkovski2025mathematical", status="own"),
        site="output",
    ),
)

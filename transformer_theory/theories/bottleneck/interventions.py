r"""Predictions of the information bottleneck for a network: few words keep what the output needs.

On one half of the sequences, the tokens of the last block are divided at each position into at most
:data:`WORDS` words by k-means, without labels (:func:`.words`). On the other half every token becomes the
mean of the nearest word: its rate is at most log 32 nats. The control has as many codes at each position,
drawn from the tokens of the first half. Source: :cite:t:`tishby2015deep`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from ...core.intervention import BlockPass, Control, Intervention, of_last_block
from ...core.sources import Source
from .information import words

WORDS = 32


@dataclass(frozen=True, eq=False)
class Codes:
    """Codes of the tokens of the last block.

    Attributes:
        layer: number of the last block.
        codes: ``[seq, codes, dim]``.
        tokens: tokens of the half that chose the codes, ``[seq, n, dim]``.
    """

    layer: int
    codes: Float[Tensor, "seq codes dim"]
    tokens: Float[Tensor, "seq n dim"]


def choose_codes(read: Callable[[Callable[[BlockPass], None]], None]) -> Codes:
    """Finds the words of the last block at each position.

    Raises:
        ValueError: there are fewer than two sequences per word, or their lengths differ.
    """
    passes = of_last_block(read)
    if len({block.output.shape[1] for block in passes}) > 1:
        raise ValueError("words at each position need sequences of one length, got several")
    if any(block.real is not None for block in passes):
        raise ValueError("words at each position need sequences of one length, got padding")
    tokens = torch.cat([block.output.cpu() for block in passes]).transpose(0, 1)
    if tokens.shape[1] < 2 * WORDS:
        raise ValueError(
            f"{WORDS} words need at least {4 * WORDS} sequences, half of which choose them, got "
            f"{tokens.shape[1]} in that half"
        )
    codes = [
        torch.stack([points[ids == word].mean(0) for word in range(WORDS) if bool((ids == word).any())])
        for points in tokens
        for ids in [words(points, WORDS)]
    ]
    # positions with fewer words repeat their first one
    padded = [torch.cat([found, found[:1].expand(WORDS - len(found), -1)]) for found in codes]
    return Codes(passes[0].layer, torch.stack(padded), tokens)


def quantised(block: BlockPass) -> BlockPass:
    """Replaces the tokens of the last block by the nearest codes of their positions.

    Raises:
        ValueError: the sequences are longer than those that chose the codes.
    """
    chosen: Codes = block.structure
    if block.layer != chosen.layer:
        return block
    output = block.output.transpose(0, 1)
    if len(output) > len(chosen.codes):
        raise ValueError(
            f"words at each position need sequences of one length, got {len(chosen.codes)} and {len(output)}"
        )
    codes = chosen.codes[: len(output)].to(output)
    nearest = torch.cdist(output, codes).argmin(-1, keepdim=True)
    return block.with_output(codes.gather(1, nearest.expand(-1, -1, codes.shape[-1])).transpose(0, 1))


def random_codes(chosen: Codes, generator: Generator) -> Codes:
    """Draws as many tokens of each position as codes."""
    positions, n, dim = chosen.tokens.shape
    drawn = torch.rand(positions, n, generator=generator).argsort(1)[:, : chosen.codes.shape[1], None]
    return replace(chosen, codes=chosen.tokens.gather(1, drawn.expand(-1, -1, dim)))


INTERVENTIONS = (
    Intervention(
        name="last tokens replaced by the nearest of 32 words",
        change=quantised,
        predicts="kept",
        controls=(Control("as many codes drawn from the tokens", structure=random_codes),),
        source=Source("tishby2015deep", status="own"),
        choose=choose_codes,
        site="block",
    ),
)

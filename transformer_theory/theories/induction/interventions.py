"""What induction says of a trained network: without its induction heads it cannot continue a repeated block.

The network reads blocks of random ids that occur twice (:mod:`.scores`). On one half of them the heads are
chosen whose prefix matching is largest, a tenth of all heads, one at least. On the other half their weights
are set to zero, and the loss is that of the second block, where the first one can be continued. The control
removes as many other heads of the same layers. Source: :cite:t:`olsson2022incontext`.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator

from ...core.intervention import Attended, Control, Inputs, Intervention
from ...core.sources import Source
from .scores import PREFIX, SCORES, block_length, draw_blocks, score_weights

SEQUENCES = 64  # blocks; half of them choose the heads
SHARE = 10  # one of so many heads is removed


@dataclass(frozen=True)
class ChosenHeads:
    """Some heads of a network.

    Attributes:
        heads: pairs of layer and head.
        others: all other heads.
    """

    heads: frozenset[tuple[int, int]]
    others: frozenset[tuple[int, int]]


def choose_heads(read: Callable[[Callable[[Attended], None]], None]) -> ChosenHeads:
    """Chooses the heads with the largest prefix matching on blocks that occur twice.

    Raises:
        ValueError: no attention has the weights of as many queries as keys.
    """
    sums: dict[tuple[int, int], float] = {}

    def add(attended: Attended) -> None:
        q, n = attended.weights.shape[-2:]
        if q != n or q % 2:
            return
        scores = score_weights(attended.weights)[SCORES.index(PREFIX)].double().sum(0)
        for head, score in enumerate(scores.tolist()):
            place = attended.layer, attended.first_head + head
            sums[place] = sums.get(place, 0.0) + score

    read(add)
    if not sums:
        raise ValueError("induction heads need attention among the tokens of a sequence, got none")
    ranked = sorted(sums, key=lambda place: (-sums[place], place))
    number = max(1, len(ranked) // SHARE)
    return ChosenHeads(frozenset(ranked[:number]), frozenset(ranked[number:]))


def other_heads(chosen: ChosenHeads, generator: Generator) -> ChosenHeads | None:
    """Draws as many other heads of each layer; None if a layer has too few."""
    drawn: list[tuple[int, int]] = []
    for layer, number in sorted(Counter(layer for layer, _ in chosen.heads).items()):
        candidates = sorted(place for place in chosen.others if place[0] == layer)
        if len(candidates) < number:
            return None
        order = torch.randperm(len(candidates), generator=generator)[:number].tolist()
        drawn += [candidates[index] for index in order]
    heads = frozenset(drawn)
    return ChosenHeads(heads, (chosen.heads | chosen.others) - heads)


def removed(attended: Attended) -> Attended:
    """Sets the weights of the chosen heads to zero, so that they add nothing to the stream."""
    chosen: ChosenHeads = attended.structure
    heads = attended.weights.shape[1]
    own = [head - attended.first_head for layer, head in chosen.heads if layer == attended.layer]
    own = [head for head in own if 0 <= head < heads]
    if not own:
        return attended
    weights = attended.weights.clone()
    weights[:, own] = 0.0
    return attended.with_weights(weights)


def repeated(limits: dict[str, int], generator: Generator) -> Inputs:
    """Returns blocks of random ids that occur twice; the next ids inside the second block are scored.

    Raises:
        ValueError: the limits leave blocks of too few ids.
    """
    length = block_length(limits)
    ids, _ = draw_blocks(SEQUENCES, length=length, vocabulary=limits["vocabulary"], generator=generator)
    targets = torch.full_like(ids, -1)
    targets[:, length:-1] = ids[:, length + 1 :]
    return Inputs(ids, targets)


INTERVENTIONS = (
    Intervention(
        name="induction heads removed",
        change=removed,
        predicts="broken",
        controls=(Control("as many other heads of the same layers", structure=other_heads),),
        source=Source("olsson2022incontext"),
        choose=choose_heads,
        inputs=repeated,
    ),
)

r"""Predictions of induction for a trained network: without induction heads it cannot continue a repeated
block.

The network reads blocks of random ids that occur twice (:mod:`.scores`). On one half of them the heads are
chosen whose prefix matching is at least half of the largest one, at most half of all heads: induction heads
replace each other, so that the removal of a single one costs little. On the other half their weights are set
to zero, and the loss is that of the second block, where the first one can be continued.

The same heads are removed on the text of the caller as well, where they lower the loss of ids late in a
sequence: the in-context score is the loss of its last quarter less that of the first one.

The first control adds vectors as long as those of the chosen heads in random directions to their outputs. The
second one removes as much of as many other heads of the same layers; where a layer has too few, heads of
other layers take their place. There are seldom 99 such choices, so that their range decides. A head h in
place of g keeps

.. math:: \Bigl(1 - \frac{r_g}{r_h}\Bigr) A_h V_h, \qquad r_h = \sqrt{\operatorname{mean} |A_h V_h|^2},

with the mean over the queries of the second block: the stream loses vectors as long as those of the chosen
head, before the output projection, and a quiet head is turned around. Heads that add nothing are not drawn.
Source: :cite:t:`olsson2022incontext`.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from ...core.intervention import Attended, Control, Inputs, Intervention, moved_at_random
from ...core.sources import Source
from .scores import PREFIX, SCORES, block_length, draw_blocks, score_weights

SEQUENCES = 64  # blocks; half of them choose the heads
SHARE = 0.5  # of the largest prefix matching, from which on a head is chosen
Head = tuple[int, int]
"""Layer and head."""


@dataclass(frozen=True)
class ChosenHeads:
    """Some heads of a network.

    Attributes:
        removed: for each of them the share of its output that it loses.
        lengths: for every head the root of the mean square of its output, over queries of the second block.
    """

    removed: Mapping[Head, float]
    lengths: Mapping[Head, float]


def choose_heads(read: Callable[[Callable[[Attended], None]], None]) -> ChosenHeads:
    """Chooses the heads with the largest prefix matching on blocks that occur twice.

    Raises:
        ValueError: no attention has the weights of as many queries as keys.
    """
    matching: dict[Head, float] = {}
    squares: dict[Head, float] = {}
    queries: dict[Head, int] = {}

    def add(attended: Attended) -> None:
        q, n = attended.weights.shape[-2:]
        if q != n or q % 2:
            return
        scores = score_weights(attended.weights)[SCORES.index(PREFIX)].double().sum(0)
        norms = attended.output[:, :, q // 2 :].double().square().sum((0, 2, 3))
        for head, (score, norm) in enumerate(zip(scores.tolist(), norms.tolist())):
            place = attended.layer, attended.first_head + head
            matching[place] = matching.get(place, 0.0) + score
            squares[place] = squares.get(place, 0.0) + norm
            queries[place] = queries.get(place, 0) + q // 2 * len(attended.weights)

    read(add)
    if not matching:
        raise ValueError("induction heads need attention among the tokens of a sequence, got none")
    ranked = sorted(matching, key=lambda place: (-matching[place], place))[: max(1, len(matching) // 2)]
    chosen = {place: 1.0 for place in ranked if matching[place] >= SHARE * matching[ranked[0]]}
    return ChosenHeads(chosen, {place: (squares[place] / queries[place]) ** 0.5 for place in squares})


def other_heads(chosen: ChosenHeads, generator: Generator) -> ChosenHeads | None:
    """Draws as many other heads, of the same layers where there are enough, which lose as much; None if too
    few heads add anything.
    """
    lengths = chosen.lengths
    others = sorted(place for place in lengths if lengths[place] > 0 and place not in chosen.removed)
    if len(others) < len(chosen.removed):
        return None
    order = [others[index] for index in torch.randperm(len(others), generator=generator).tolist()]

    def by_length(heads: Collection[Head]) -> list[Head]:
        return sorted(heads, key=lambda place: (lengths[place], place))

    # in each layer long outputs stand for long ones, so that the shares are close to one
    instead: dict[Head, Head] = {}
    missing: list[Head] = []
    for layer in sorted({layer for layer, _ in chosen.removed}):
        own = by_length([place for place in chosen.removed if place[0] == layer])
        drawn = [place for place in order if place[0] == layer][: len(own)]
        instead |= zip(by_length(drawn), own)
        missing += own[len(drawn) :]
    rest = [place for place in order if place not in instead][: len(missing)]
    instead |= zip(by_length(rest), by_length(missing))
    removed = {other: lengths[own] / lengths[other] for other, own in instead.items()}
    return ChosenHeads(removed, lengths)


def removed(attended: Attended) -> Attended:
    """Takes the shares of the chosen heads from their weights, all of them for the heads of the theory."""
    shares = _shares(attended)
    return attended if shares is None else attended.with_weights(attended.weights * (1 - shares))


def random_direction(attended: Attended) -> Attended:
    """Adds vectors as long as the outputs of the chosen heads to them, in random directions."""
    shares = _shares(attended)
    if shares is None:
        return attended
    output = attended.output
    return attended.with_output(moved_at_random(output, shares * output, attended.generator))


def _shares(attended: Attended) -> Float[Tensor, "heads 1 1"] | None:
    """Returns the share that each head of an attention loses; None if no head loses any."""
    chosen: ChosenHeads = attended.structure
    heads = range(attended.first_head, attended.first_head + attended.weights.shape[1])
    shares = [chosen.removed.get((attended.layer, head), 0.0) for head in heads]
    if not any(shares):
        return None
    return torch.tensor(shares, dtype=attended.weights.dtype, device=attended.weights.device)[:, None, None]


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


CONTROLS = (
    Control("the same heads changed as much in random directions", random_direction),
    Control("as much of as many other heads, of the same layers if possible", structure=other_heads),
)
INTERVENTIONS = (
    Intervention(
        name="induction heads removed",
        change=removed,
        predicts="broken",
        controls=CONTROLS,
        source=Source("olsson2022incontext"),
        choose=choose_heads,
        inputs=repeated,
    ),
    Intervention(
        name="induction heads removed on the text",
        change=removed,
        predicts="broken",
        controls=CONTROLS,
        source=Source("olsson2022incontext"),
        choose=choose_heads,
        inputs=repeated,
        on_own=True,
    ),
)

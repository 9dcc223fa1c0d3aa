"""Transformers without positions: what they cannot accept, and what they can. Source:
:cite:t:`perez2021attention`.
"""

import torch
from torch import Generator, Tensor

from ....core.claims import Measured, but, claim
from ....core.sources import Source
from ..invariance import (
    Pool,
    hard_weights,
    majority_network,
    random_network,
    same_proportions,
    softmax_weights,
    sum_weights,
)
from .instances import SECOND_HAND, integer

RTOL = 1e-9
BOS = 3  # number of the symbol that is put before the word
POOLS: dict[str, Pool] = {"softmax": softmax_weights, "hard-max": hard_weights}


def change(left: Tensor, right: Tensor) -> float:
    """Relative distance of two outputs ``[d]``."""
    return float((left - right).norm() / right.norm())


def causal_mask(ids: Tensor) -> Tensor:
    """Returns the mask by which a token attends to itself and to those before it, ``[n, n]``."""
    return torch.ones(len(ids), len(ids)).tril().bool()


def control_invariance(generator: Generator) -> Measured:
    """The smallest of the changes that a token at the start, a causal mask and a sum over the keys cause."""
    network, found = (
        random_network(generator),
        {"token at the start": 0.0, "causal mask": 0.0, "sum over the keys": 0.0},
    )
    for _ in range(5):
        u, w = same_proportions(generator)
        started = [network.output(torch.cat([torch.tensor([BOS]), x]), pool=softmax_weights) for x in (u, w)]
        causal = [network.output(x, pool=softmax_weights, mask=causal_mask(x)) for x in (u, w)]
        summed = [network.output(x, pool=sum_weights) for x in (u, w)]
        for name, (left, right) in zip(found, (started, causal, summed)):
            found[name] = max(found[name], change(left, right))
    return Measured(min(found.values()), found)


@claim(
    "turing/proportions",
    measures="largest relative change of the output between words of equal proportions",
    at_most=RTOL,
    source=SECOND_HAND,
    assumptions=(
        "attention averages over the keys (softmax, or hard-max with ties within 1e-9), without mask",
        "no positions and no further token in the sequence",
        "random weights, three layers of encoder, two of decoder, three symbols, two or three times as "
        "many of each",
    ),
    control=but(
        "a token at the start, a causal mask, or a sum over the keys (the smallest of the three changes)",
        control_invariance,
    ),
    corrects=(
        r"$\mathrm{PropInv}(w)$ can be read as the permutations of w. It holds words of every length with "
        r"the same proportions, and only those of another length refute parity; the statement is about "
        r"encoders without mask and without a further token."
    ),
    corrected=Source("wong2023understanding", "Proposition C.3", "confirmed"),
)
def proportions(generator: Generator) -> Measured:
    r"""Without positions the output depends on proportions only: $T(u) = T(w)$ for $u \in
    \mathrm{PropInv}(w)$.
    """
    network, changes = random_network(generator), {}
    for name, pool in POOLS.items():
        pairs = [same_proportions(generator) for _ in range(5)]
        changes[name] = max(
            change(network.output(u, pool=pool), network.output(w, pool=pool)) for u, w in pairs
        )
    return Measured(max(changes.values()), changes)


def opposite_pairs(generator: Generator) -> list[tuple[Tensor, Tensor]]:
    """Draws pairs of words with the same proportions, of which the first has an odd number of the symbol 0
    and the second an even one.
    """
    pairs = []
    for _ in range(5):
        odd, others = 2 * integer(0, 2, generator) + 1, integer(1, 4, generator)
        words = [torch.tensor([0] * (k * odd) + [1] * (k * others)) for k in (1, 2)]
        u, w = (word[torch.randperm(len(word), generator=generator)] for word in words)
        pairs.append((u, w))
    return pairs


@claim(
    "turing/parity",
    measures="largest share of right answers of ten random networks, on pairs of equal proportions and "
    "opposite parity",
    at_most=0.5,
    source=SECOND_HAND,
    assumptions=(
        "attention averages over the keys, without mask",
        "no positions and no further token",
        "the statement on all transformers follows from turing/proportions; the check draws ten with softmax",
    ),
    control=but("the same networks with a causal mask", causal=True),
)
def parity(generator: Generator, *, causal: bool = False) -> Measured:
    """Without positions no transformer accepts the words with an even number of a: pairs such as $ab$ and
    $aabb$ have equal proportions, so their outputs are equal, and half of the answers on such pairs are
    wrong.
    """
    pairs, best = opposite_pairs(generator), 0.0
    for _ in range(10):
        network = random_network(generator)
        right = torch.zeros_like(network.seed)
        for ids, even in ((ids, even) for pair in pairs for ids, even in zip(pair, (False, True))):
            output = network.output(ids, pool=softmax_weights, mask=causal_mask(ids) if causal else None)
            right += (output > 0) == even
        share = right / (2 * len(pairs))
        # positive entries accept, or negative ones
        best = max(best, float(torch.maximum(share, 1 - share).max()))
    return Measured(best, {"words": 2.0 * len(pairs)})


@claim(
    "turing/majority",
    measures="share of the words whose output lies on the right side of these bounds",
    at_least=1.0,
    source=SECOND_HAND,
    assumptions=("random words of 1 to 301 symbols", "float64: both bounds with a tolerance of 1e-9/n"),
    control=but("attention that prefers a", preference=1.0),
)
def majority(generator: Generator, *, preference: float = 0.0) -> Measured:
    """Without positions a transformer accepts the words with more a than b: uniform attention over the values
    1 and $-1$ gives the difference of the shares, at least $1/n$ for accepted words and at most 0 for all
    others.
    """
    network, right, count, margins = majority_network(preference), 0, 200, []
    for _ in range(count):
        ids = torch.randint(2, (integer(1, 301, generator),), generator=generator)
        margin = float(network.output(ids, pool=softmax_weights, steps=1)[0]) * len(ids)
        more = 2 * int((ids == 0).sum()) > len(ids)
        right += margin >= 1 - RTOL if more else margin <= RTOL
        margins += [margin] * more
    return Measured(right / count, {"smallest accepted output times length": min(margins)})


CLAIMS = (proportions, parity, majority)

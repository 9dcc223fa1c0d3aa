"""Transformers without positions: what they cannot accept, and what they can. Source: :cite:t:`perez2021attention`."""

import torch
from torch import Generator, Tensor

from ....core.claims import Claim, Evidence
from ..construction import compile_machine
from ..invariance import EncoderDecoder, Pool, hard_weights, majority_output, random_network, same_proportions, softmax_weights, sum_weights
from ..machines import parity
from .instances import SECOND_HAND, integer

RTOL = 1e-9
BOS = 3  # number of the symbol that is put before the word
POOLS: dict[str, Pool] = {"softmax": softmax_weights, "hard-max": hard_weights}


def change(left: Tensor, right: Tensor) -> float:
    """Relative distance of two outputs ``[d]``."""
    return float((left - right).norm() / right.norm())


def check_invariance(generator: Generator) -> Evidence:
    """Words of equal proportions, with softmax and hard-max."""
    network, changes = random_network(generator), {}
    for name, pool in POOLS.items():
        pairs = [same_proportions(generator) for _ in range(5)]
        changes[name] = max(change(network.output(u, pool=pool), network.output(w, pool=pool)) for u, w in pairs)
    return Evidence(max(changes.values()), RTOL, "<=", detail=changes)


def control_invariance(generator: Generator) -> Evidence:
    """The smallest of the changes that a token at the start, a causal mask and a sum over the keys cause."""
    network, found = random_network(generator), {"token at the start": 0.0, "causal mask": 0.0, "sum over the keys": 0.0}
    for _ in range(5):
        u, w = same_proportions(generator)
        started = [network.output(torch.cat([torch.tensor([BOS]), x]), pool=softmax_weights) for x in (u, w)]
        causal = [network.output(x, pool=softmax_weights, mask=torch.ones(len(x), len(x)).tril().bool()) for x in (u, w)]
        summed = [network.output(x, pool=sum_weights) for x in (u, w)]
        for name, (left, right) in zip(found, (started, causal, summed)):
            found[name] = max(found[name], change(left, right))
    return Evidence(min(found.values()), RTOL, "<=", detail=found)


def opposite_pairs(generator: Generator) -> list[tuple[Tensor, Tensor]]:
    """Draws pairs of words with the same proportions, of which the first has an odd number of the symbol 0 and the second an even one."""
    pairs = []
    for _ in range(5):
        odd, others = 2 * integer(0, 2, generator) + 1, integer(1, 4, generator)
        words = [torch.tensor([0] * (k * odd) + [1] * (k * others)) for k in (1, 2)]
        u, w = (word[torch.randperm(len(word), generator=generator)] for word in words)
        pairs.append((u, w))
    return pairs


def check_parity(generator: Generator) -> Evidence:
    """Ten networks without positions, as judges of parity."""
    pairs, best = opposite_pairs(generator), 0.0
    networks = [random_network(generator) for _ in range(10)]
    for network in networks:
        # Both answers to "is the number even?" are tried: accept positive outputs, or negative ones.
        even = sum(answer(network, w) for _, w in pairs) + sum(1 - answer(network, u) for u, _ in pairs)
        best = max(best, even / (2 * len(pairs)), 1 - even / (2 * len(pairs)))
    return Evidence(best, 0.5, "<=", detail={"networks": float(len(networks)), "words": 2.0 * len(pairs)})


def answer(network: EncoderDecoder, ids: Tensor) -> int:
    """Whether a network accepts a word ``[n]``: the first entry of its last output is positive."""
    return int(network.output(ids, pool=softmax_weights)[0] > 0)


def control_parity(generator: Generator) -> Evidence:
    """The compiled machine for parity on the same kind of pairs."""
    transformer, right = compile_machine(parity()), 0
    pairs = opposite_pairs(generator)
    for pair in pairs:
        for ids, accepted in zip(pair, (False, True)):
            word = "".join("ab"[k] for k in ids.tolist())
            last = transformer.run(word, 4 * len(word) + 8, arithmetic="float64").states[-1]
            right += (last in transformer.machine.accept) == accepted
    return Evidence(right / (2 * len(pairs)), 0.5, "<=")


def majority(generator: Generator, *, letters_attended: float) -> Evidence:
    """The share of right answers to "more 0 than 1?", and the smallest output of accepted words, times their length."""
    right, margins, count = 0, [], 200
    for _ in range(count):
        ids = torch.randint(2, (integer(1, 301, generator),), generator=generator)
        output = float(majority_output(ids, scores=letters_attended * (ids == 0).double()))
        more = int((ids == 0).sum()) > int((ids == 1).sum())
        right += (output > 0) == more
        if more:
            margins.append(output * len(ids))
    return Evidence(right / count, 1.0, ">=", detail={"smallest output times length": min(margins)})


CLAIMS = (
    Claim(
        id="turing/proportions",
        statement=r"Without positions the output depends on proportions only: $T(u) = T(w)$ for $u \in \mathrm{PropInv}(w)$.",
        measures="largest relative change of the output between words of equal proportions",
        source=SECOND_HAND,
        assumptions=(
            "attention averages over the keys (softmax, or hard-max with ties within 1e-9), without mask",
            "no positions and no further token in the sequence",
            "random weights, three layers of encoder, two of decoder, three symbols, two or three times as many of each",
        ),
        check=check_invariance,
        control=control_invariance,
        control_description="a token at the start, a causal mask, or a sum over the keys (the smallest of the three changes)",
        corrects=r"In the survey $\mathrm{PropInv}(w)$ can be read as the permutations of w. It holds words of every length with the same "
        r"proportions, and only those of another length refute parity; the statement is about encoders without mask and without a further "
        r"token.",
    ),
    Claim(
        id="turing/parity",
        statement=r"Without positions no transformer accepts the words with an even number of a: on pairs such as $ab$ and $aabb$ "
        "half of its answers are wrong.",
        measures="largest share of right answers of ten random networks, on pairs of equal proportions and opposite parity",
        source=SECOND_HAND,
        assumptions=("attention averages over the keys, without mask", "no positions and no further token"),
        check=check_parity,
        control=control_parity,
        control_description="the transformer compiled from the machine for parity, which has positions",
    ),
    Claim(
        id="turing/majority",
        statement=r"Without positions a transformer accepts the words with more a than b: uniform attention over the "
        r"values 1 and $-1$ gives the difference of the shares, at least $1/n$ for accepted words.",
        measures="share of right answers on random words of 1 to 301 symbols",
        source=SECOND_HAND,
        assumptions=("float64; the margin 1/n needs a precision that grows with the length",),
        check=lambda generator: majority(generator, letters_attended=0.0),
        control=lambda generator: majority(generator, letters_attended=1.0),
        control_description="attention that prefers a",
    ),
)

"""Claims about Markov chains in context: the posterior, and the losses of the strategies against all
sequences.
"""

from collections.abc import Iterator
from itertools import pairwise, product
from math import lgamma

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor

from ....core.claims import BY_CHANCE, NEAR, Measured, but, claim
from ....core.sources import Source
from ..chains import expected_loss, sample_chains, strategies

SOURCE = Source("edelman2024evolution", status="second-hand")
OWN = Source("edelman2024evolution", status="own")
STATES, SHORT = 3, 7
PRIOR = "each row of the transition matrix is uniform on the simplex, the first state on the states"


def marginal(ids: Int[Tensor, "n length"], states: int) -> Float[Tensor, " n"]:
    """Returns the probability of each sequence with its transition matrix integrated out, ``[n]``.

    A row with counts c under Dirichlet(1) has probability (k - 1)! prod(c_y!) / (sum c + k - 1)!.
    """
    values = []
    for sequence in ids.tolist():
        counts = torch.zeros(states, states)
        for x, y in pairwise(sequence):
            counts[x, y] += 1
        terms = (
            lgamma(states) + sum(lgamma(c + 1) for c in row) - lgamma(sum(row) + states)
            for row in counts.tolist()
        )
        values.append(sum(terms))
    return torch.tensor(values, dtype=torch.float64).exp() / states


@claim(
    "induction/bigram-is-bayes",
    measures="largest difference from the ratio of marginal probabilities",
    at_most=1e-12,
    source=SOURCE,
    assumptions=(PRIOR, "3 states, sequences of 12"),
    control=but("the unigram rule", name="unigram"),
)
def bigram_is_bayes(generator: Generator, *, name: str = "bigram") -> float:
    """For chains with Dirichlet(1) rows the rule $(c_{xy} + 1)/(c_x + k)$ is the posterior predictive
    distribution, so no predictor has a smaller expected loss.
    """
    ids, _ = sample_chains(6, states=STATES, length=12, generator=generator)
    prediction = strategies(ids, states=STATES)[name][:, -1]
    longer = torch.cat([ids.repeat_interleave(STATES, 0), torch.arange(STATES).repeat(len(ids))[:, None]], 1)
    exact = (marginal(longer, STATES) / marginal(ids, STATES).repeat_interleave(STATES)).view(-1, STATES)
    return float((prediction - exact).abs().max())


def all_sequences(length: int) -> Int[Tensor, "n length"]:
    """Returns all sequences of states, ``[states^length, length]``."""
    return torch.tensor(list(product(range(STATES), repeat=length)))


def enumerated(length: int) -> Iterator[tuple[str, float]]:
    """Yields the exact expected loss of each strategy for the last of ``length`` states, from
    all sequences.
    """
    ids = all_sequences(length)
    weight, next_state = marginal(ids, STATES), ids[:, -1:]
    for name, prediction in strategies(ids[:, :-1], states=STATES).items():
        yield name, float((weight * -prediction[:, -1].gather(1, next_state)[:, 0].log()).sum())


@claim(
    "induction/chain-losses",
    measures="largest distance of a sampled mean from the exact one, in standard errors",
    at_most=4.5,
    margin=BY_CHANCE,
    source=OWN,
    assumptions=(PRIOR, "3 states, the last of 7; 20,000 chains"),
    control=but("earlier states in random order", shuffled=True),
)
def chain_losses(generator: Generator, *, shuffled: bool = False) -> Measured:
    r"""The losses $-\sum_y P_{xy} \ln q_y$ of the three strategies have the expectations that a sum over all
    sequences gives: means over sampled chains agree with them within standard errors.
    """
    ids, P = sample_chains(20_000, states=STATES, length=SHORT, generator=generator)
    if shuffled:
        order = torch.rand(len(ids), SHORT - 1, generator=generator).argsort(1)
        ids = torch.cat([ids[:, :-1].gather(1, order), ids[:, -1:]], 1)
    rules, scores = strategies(ids, states=STATES), {}
    for name, exact in enumerated(SHORT):
        losses = expected_loss(rules[name], ids, P, skip=SHORT - 2)
        scores[name] = abs(float(losses.mean()) - exact) / max(float(losses.std()) / len(losses) ** 0.5, 1e-9)
    return Measured(max(scores.values()), scores)


@claim(
    "induction/strategy-losses",
    measures="smaller of the two differences of losses, nats",
    at_least=0.05,
    margin=NEAR,
    source=OWN,
    assumptions=(PRIOR, "3 states, 64 positions of which the first 10 are left out, 1,000 chains"),
    control=but("independent states: all rows of the matrix are equal", markov=False),
)
def strategy_losses(generator: Generator, *, markov: bool = True) -> Measured:
    r"""Unigram statistics are worth more than .05 nats over $\ln k$, and bigram statistics more than .05 nats
    over them.
    """
    ids, P = sample_chains(1000, states=STATES, generator=generator)
    if not markov:
        P = P[:, :1].expand(-1, STATES, -1).contiguous()  # all rows equal: states are independent
        ids = torch.multinomial(P[:, 0], ids.shape[1], replacement=True, generator=generator)
    losses = {
        name: float(expected_loss(rule, ids, P).mean())
        for name, rule in strategies(ids, states=STATES).items()
    }
    gaps = losses["uniform"] - losses["unigram"], losses["unigram"] - losses["bigram"]
    return Measured(min(gaps), losses)


CLAIMS = (bigram_is_bayes, chain_losses, strategy_losses)

r"""Markov chains in context: sequences whose transition matrix is drawn anew, and three strategies of
increasing memory.

Each row of the transition matrix P is uniform on the simplex (Dirichlet with parameter 1), and the first
state is uniform on the k states. After t states, of which the last is x, with counts :math:`c_y` of states
and :math:`c_{xy}` of transitions,

.. math:: \text{uniform: } \tfrac1k, \qquad \text{unigram: } \frac{c_y + 1}{t + k}, \qquad
    \text{bigram: } \frac{c_{xy} + 1}{\sum_z c_{xz} + k} .

The bigram strategy is the posterior predictive distribution, so no predictor has a smaller expected loss. One
layer of attention without an MLP sees which states have occurred, two layers with an induction head also what
followed them. Losses are conditional expectations, :math:`-\sum_y P_{xy} \ln q_y`: they have the same mean as
the loss on the drawn state, and less variance. Source: :cite:t:`edelman2024evolution`.
"""

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor

from ...core.validation import integers
from ...models.embedding import check_ids

STRATEGIES = ("uniform", "unigram", "bigram")
SKIPPED = 10  # positions at the start that losses leave out


def sample_chains(
    n: int, *, states: int = 3, length: int = 64, generator: Generator
) -> tuple[Int[Tensor, "n length"], Float[Tensor, "n states states"]]:
    """Draws chains, each with its own transition matrix.

    Args:
        n: number of chains.
        states: number k of states, at least 2.
        length: number of states of each chain.
        generator: draws everything.
    Returns:
        The states ``[n, length]``, and the transition matrices ``[n, k, k]`` (float64), rows from.
    """
    integers(n=n, length=length)
    integers(minimum=2, states=states)
    # A Dirichlet(1) row consists of exponential variables divided by their sum.
    exponential = (
        -torch.rand(n, states, states, generator=generator, dtype=torch.float64).clamp_min(1e-300).log()
    )
    P = exponential / exponential.sum(-1, keepdim=True)
    uniform, rows = torch.rand(n, length, generator=generator, dtype=torch.float64), torch.arange(n)
    cumulative, chain = P.cumsum(-1), torch.empty(n, length, dtype=torch.long)
    chain[:, 0] = (uniform[:, 0] * states).long()
    for t in range(1, length):
        # The number of cumulative probabilities below u is the next state; rounding may leave the last one
        # below 1.
        chain[:, t] = (cumulative[rows, chain[:, t - 1]] < uniform[:, t, None]).sum(-1).clamp(max=states - 1)
    return chain, P


def strategies(ids: Int[Tensor, "n length"], *, states: int) -> dict[str, Float[Tensor, "n length states"]]:
    """Returns the prediction of each strategy for the next state after each position, ``[n, length, states]``
    float64.

    Raises:
        ValueError: the ids are no integers ``[n, length]`` in ``[0, states)``, or there are fewer than 2
            states.
    """
    integers(minimum=2, states=states)
    check_ids(ids, vocabulary=states)
    one_hot = torch.nn.functional.one_hot(ids, states).double()
    t = torch.arange(1, ids.shape[1] + 1, dtype=torch.float64)
    unigram = (one_hot.cumsum(1) + 1) / (t[:, None] + states)
    # Transitions into position s count from s on: [n, length, from, to], then the row of the present state.
    steps = torch.einsum("nsx,nsy->nsxy", one_hot[:, :-1], one_hot[:, 1:])
    counts = torch.nn.functional.pad(steps.cumsum(1), (0, 0, 0, 0, 1, 0))
    row = torch.einsum("ntx,ntxy->nty", one_hot, counts)
    bigram = (row + 1) / (row.sum(-1, keepdim=True) + states)
    return {"uniform": torch.full_like(unigram, 1 / states), "unigram": unigram, "bigram": bigram}


def expected_loss(
    prediction: Float[Tensor, "n length states"],
    ids: Int[Tensor, "n length"],
    P: Float[Tensor, "n states states"],
    *,
    skip: int = SKIPPED,
) -> Float[Tensor, " n"]:
    """Returns the mean loss of predictions given the chains' matrices, in nats, over the positions after the
    first ``skip``, ``[n]``.

    Raises:
        ValueError: there are no such positions with a next state.
    """
    row = P[torch.arange(len(ids))[:, None], ids]
    return _counted(-(row * prediction.log()).sum(-1), skip).mean(1)


def divergence(
    strategy: Float[Tensor, "n length states"],
    prediction: Float[Tensor, "n length states"],
    *,
    skip: int = SKIPPED,
) -> Float[Tensor, ""]:
    """Returns the mean Kullback-Leibler divergence of predictions from a strategy, in nats, after the first
    ``skip`` positions.

    Raises:
        ValueError: there are no such positions with a next state.
    """
    return _counted((strategy * (strategy.log() - prediction.log())).sum(-1), skip).mean()


def _counted(values: Float[Tensor, "n length"], skip: int) -> Float[Tensor, "n counted"]:
    """Returns the values after the first ``skip`` positions, without the last one."""
    if values.shape[1] < skip + 2:
        raise ValueError(
            f"chains must have at least {skip + 2} positions, of which {skip} are left out, got "
            f"{values.shape[1]}; draw longer ones"
        )
    return values[:, skip:-1]

r"""Weights as associative memories: recall of a sum of outer products, and the order in which a two-layer
network stores its memories.

A matrix :math:`W = \sum_{i \le N} u_{f(i)} e_i^\top` of random unit vectors in d dimensions *recalls* i if
:math:`u_{f(i)}^\top W e_i` is the largest of all :math:`u_j^\top W e_i`. With Gaussian cross terms the right
score is :math:`r = 1 + \sqrt N z / d`, and the vector :math:`w = W e_i` has the squared norm :math:`r^2 +
(N/d^2) \chi^2_{d-1}`. Every other score is :math:`\|w\| s + s'` with two coordinates s, s' of random unit
vectors: :math:`u_j` along w, and the pair's own :math:`e_{f^{-1}(j)}^\top e_i`. For independent scores

.. math:: \text{recall} = E_{z, \chi^2} \, P(\|w\| s + s' < r)^{N-1}, \qquad \text{capacity } N \approx
    \frac{d^2}{2 \ln N} .

:class:`MemoryNetwork` is the two-layer network with frozen random embeddings in which the induction head is
three memories: the first layer's keys (position t - 1 for position t), the second layer's keys (the token
that stands before, for the token) and the second layer's output. Sources: :cite:t:`bietti2023birth`; the
recall formula is our own.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import count

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor, nn
from torch.nn import functional

from ...core.validation import integers
from ...models.attention import causal_mask, softmax
from ...models.embedding import check_ids
from ...training.fitting import at_steps, fit
from ...training.tasks import StreamTask

MEMORIES = ("output 2", "keys 2", "keys 1")  # from the top layer down
NODES = 32  # of each quadrature
CHUNK = 512  # pairs whose scores are computed at once


def unit_vectors(n: int, d: int, generator: Generator) -> Float[Tensor, "n d"]:
    """Draws n random unit vectors of d dimensions, ``[n, d]`` float64."""
    return functional.normalize(torch.randn(n, d, generator=generator, dtype=torch.float64), dim=1)


def measured_recall(N: int, d: int, generator: Generator) -> float:
    """Returns the share of N pairs of random unit vectors in d dimensions that the sum of their outer
    products recalls.
    """
    inputs, outputs = unit_vectors(N, d, generator), unit_vectors(N, d, generator)
    W = outputs.mT @ inputs
    # The scores of all pairs, [N, N], would take hundreds of megabytes at the capacity of 192 dimensions.
    chosen = [(part @ outputs.mT).argmax(1) for part in (inputs @ W.mT).split(CHUNK)]
    return float((torch.cat(chosen) == torch.arange(N)).double().mean())


def predicted_recall(N: int, d: int) -> float:
    """Computes the recall of N pairs in d dimensions by the formula above, with quadrature.

    Raises:
        ValueError: there is no pair, or fewer than 2 dimensions.
    """
    import numpy as np
    from scipy.special import betainc, gammaincinv

    integers(N=N)
    integers(minimum=2, d=d)
    z, of_z = np.polynomial.hermite_e.hermegauss(NODES)
    s, of_s = np.polynomial.legendre.leggauss(NODES)
    s *= min(1.0, 8 / math.sqrt(d))  # eight standard deviations
    of_s *= (1 - s**2) ** ((d - 3) / 2)  # density of a coordinate of a random unit vector
    chi_squared = 2 * gammaincinv((d - 1) / 2, (np.arange(NODES) + 0.5) / NODES)  # quantiles, of equal weight
    right = 1 + math.sqrt(N) / d * z[:, None, None]
    norm = np.sqrt(right**2 + N / d**2 * chi_squared[:, None])
    # [z, chi squared, s]
    below = betainc((d - 1) / 2, (d - 1) / 2, (1 + np.clip((right - s) / norm, -1, 1)) / 2)
    others = (below @ of_s / of_s.sum()).clip(0, 1) ** (N - 1)
    return float(others.mean(1) @ of_z / of_z.sum())


def capacity(d: int) -> float:
    """Returns the capacity N in d dimensions, the fixed point of N = d^2 / (2 ln N).

    Raises:
        ValueError: d is below 4, where there is no fixed point above e.
    """
    integers(minimum=4, d=d)
    N = float(d**2)
    for _ in range(100):
        N = d**2 / (2 * math.log(N))
    return N


class MemoryNetwork(nn.Module):
    """Two attention layers with frozen embeddings; only the three matrices of the induction head are trained.
    Starts at zero.

    Args:
        vocabulary, length, dim: number of ids, length of sequences, width.
        generator: draws the frozen vectors.
    Raises:
        ValueError: a number is below 1, the length below 2.

    Attributes:
        embedding, unembedding: unit vectors of the ids, ``[vocabulary, dim]``. The second layer writes to the
            logits only.
        positions: unit vectors, ``[length, dim]``.
        previous: frozen values of the first layer, which write an id to another subspace, ``[vocabulary,
            dim]``.
        keys1, keys2, output2: trained matrices, ``[dim, dim]``.
    """

    embedding: Tensor
    unembedding: Tensor
    previous: Tensor
    positions: Tensor

    def __init__(self, *, vocabulary: int, length: int, dim: int, generator: Generator):
        super().__init__()
        integers(vocabulary=vocabulary, dim=dim)
        integers(minimum=2, length=length)
        for name, n in (
            ("embedding", vocabulary),
            ("unembedding", vocabulary),
            ("previous", vocabulary),
            ("positions", length),
        ):
            self.register_buffer(name, unit_vectors(n, dim, generator).float())
        self.keys1, self.keys2, self.output2 = (nn.Parameter(torch.zeros(dim, dim)) for _ in range(3))

    def forward(self, ids: Int[Tensor, "batch n"]) -> Float[Tensor, "batch n vocabulary"]:
        check_ids(ids, vocabulary=len(self.embedding), context=len(self.positions))
        n = ids.shape[1]
        e, p, mask = self.embedding[ids], self.positions[:n], causal_mask(n, n)
        # the id that the first layer attends to, in its own subspace
        before = softmax(p @ self.keys1 @ p.mT, mask) @ self.previous[ids]
        attention = softmax((e @ self.keys2) @ before.mT, mask)
        return attention @ (e @ self.output2.mT @ self.unembedding.mT)

    def masses(self) -> dict[str, float]:
        """Returns the mean softmax mass that each memory gives to the right answer, in the order of
        :data:`MEMORIES`.
        """
        e, p = self.embedding, self.positions
        logits = e @ self.output2.detach().mT @ self.unembedding.mT
        keys2 = e @ self.keys2.detach() @ self.previous.mT
        keys1 = softmax(p @ self.keys1.detach() @ p.mT, causal_mask(len(p), len(p)))
        return {
            "output 2": float(logits.softmax(1).diagonal().mean()),
            "keys 2": float(keys2.softmax(1).diagonal().mean()),
            "keys 1": float(keys1.diagonal(-1).mean()),
        }


def triggered_sequences(
    n: int, *, vocabulary: int, length: int, triggers: int, generator: Generator
) -> tuple[Int[Tensor, "n length"], Int[Tensor, "n length"]]:
    """Draws sequences in which some ids, the triggers, are always followed by one id, drawn anew for each
    sequence.

    Args:
        n: number of sequences.
        vocabulary, length: number of ids, and of tokens.
        triggers: number of triggers per sequence.
        generator: draws everything.
    Returns:
        The ids, and the next id after every trigger that has occurred before, -1 elsewhere; ``[n, length]``
        each.
    Raises:
        ValueError: a number is below 1, or there are more triggers than ids.
    """
    integers(n=n, vocabulary=vocabulary, length=length, triggers=triggers)
    if triggers > vocabulary:
        raise ValueError(
            f"triggers must be at most the vocabulary, {vocabulary} ids, got {triggers}; lower triggers"
        )
    rows = torch.arange(n)
    chosen = torch.rand(n, vocabulary, generator=generator).argsort(1)[:, :triggers]
    # successor[i, v]: the id after v in sequence i, -1 if v is no trigger.
    successor = torch.full((n, vocabulary), -1)
    successor.scatter_(1, chosen, torch.randint(vocabulary, (n, triggers), generator=generator))
    free = torch.randint(vocabulary, (n, length + 1), generator=generator)
    # Half of the free tokens are triggers, so that they repeat often.
    picked = chosen.gather(1, torch.randint(triggers, (n, length + 1), generator=generator))
    free = torch.where(torch.rand(n, length + 1, generator=generator) < 0.5, picked, free)
    ids, after_trigger = free.clone(), torch.zeros(n, dtype=torch.bool)
    for t in range(1, length + 1):
        follows = successor[rows, ids[:, t - 1]]
        # A successor that is a trigger itself is followed by a free id, or chains of triggers would fill the
        # sequence.
        used = (follows >= 0) & ~after_trigger
        ids[:, t] = torch.where(used, follows, free[:, t])
        after_trigger = used
    targets = torch.full((n, length), -1)
    seen = torch.zeros(n, vocabulary, dtype=torch.bool)
    for t in range(length):
        now = ids[:, t]
        follows = successor[rows, now]
        hit = (follows >= 0) & (ids[:, t + 1] == follows)
        targets[:, t] = torch.where(hit & seen[rows, now], follows, -1)
        seen[rows, now] |= hit
    return ids[:, :length], targets


def train_memories(
    optimiser: Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer],
    *,
    steps: int,
    measured: Iterable[int] = (),
    triggers: int = 3,
    generator: Generator,
) -> tuple[MemoryNetwork, dict[int, dict[str, float]]]:
    """Trains the memories on batches of 64 triggered sequences of 32 tokens and 16 ids, at width 64.

    Args:
        optimiser: function of the parameters.
        steps: number of steps.
        measured: steps at which the masses are measured.
        triggers: see :func:`triggered_sequences`.
        generator: draws weights and sequences.
    Returns:
        The network, and the softmax masses of its memories by step.
    """
    sizes = {"vocabulary": 16, "length": 32}
    model = MemoryNetwork(**sizes, dim=64, generator=generator)
    masses: dict[int, dict[str, float]] = {}
    draw = partial(triggered_sequences, 64, **sizes, triggers=triggers)

    def loss(network: nn.Module, pair: tuple[Tensor, Tensor]) -> Tensor:
        return functional.cross_entropy(network(pair[0]).flatten(0, 1), pair[1].flatten(), ignore_index=-1)

    record = at_steps(measured, lambda step, network: masses.update({step: model.masses()}), limit=steps)
    fit(
        model,
        StreamTask(loss, lambda draws: (draw(generator=draws) for _ in count())),
        optimiser=optimiser(model.parameters()),
        steps=steps,
        callbacks=[record],
        generator=generator,
    )
    return model, masses


def first_steps(masses: dict[int, dict[str, float]], *, level: float = 0.5) -> dict[str, float]:
    """Returns the first measured step at which each memory's mass reaches the level; infinity if
    none does.
    """
    return {
        name: min((step for step, values in masses.items() if values[name] >= level), default=math.inf)
        for name in MEMORIES
    }

r"""Weights as associative memories: recall of a sum of outer products, and the order in which a two-layer network stores its memories.

A matrix :math:`W = \sum_{i \le N} u_{f(i)} e_i^\top` of random unit vectors in d dimensions *recalls* i if :math:`u_{f(i)}^\top W e_i` is
the largest of all :math:`u_j^\top W e_i`. The right score is :math:`1 + \sqrt N z / d`, every other has variance :math:`N/d^2 + 2/d` (the
sum over the N - 2 other pairs; and :math:`u_j^\top u_{f(i)}`, :math:`e_{f^{-1}(j)}^\top e_i`, each of variance 1/d). For independent
scores

.. math:: \text{recall} = E_z \, \Phi\!\left(\frac{1 + \sqrt N z / d}{\sqrt{N/d^2 + 2/d}}\right)^{N-1},
    \qquad \text{capacity } N \approx \frac{d^2}{2 \ln N} .

:class:`MemoryNetwork` is the two-layer network with frozen random embeddings in which the induction head is three memories: the first
layer's keys (position t - 1 for position t), the second layer's keys (the token that stands before, for the token) and the second layer's
output. Sources: :cite:t:`bietti2023birth`; the recall formula is our own.
"""

import math
from collections.abc import Callable, Iterator

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor, nn
from torch.nn import functional

from ...core.validation import integers
from ...models.attention import causal_mask, softmax
from ...training.fitting import at_steps, fit
from ...training.tasks import StreamTask

MEMORIES = ("output 2", "keys 2", "keys 1")  # from the top layer down
NODES = 64  # of the quadrature over z


def unit_vectors(n: int, d: int, generator: Generator) -> Float[Tensor, "n d"]:
    """Draws n random unit vectors of d dimensions, ``[n, d]`` float64."""
    return functional.normalize(torch.randn(n, d, generator=generator, dtype=torch.float64), dim=1)


def memory(inputs: Float[Tensor, "n d_in"], outputs: Float[Tensor, "n d_out"]) -> Float[Tensor, "d_out d_in"]:
    """Returns the memory that maps row i of the inputs to row i of the outputs, the sum of their outer products."""
    return outputs.mT @ inputs


def recall(
    W: Float[Tensor, "d_out d_in"], inputs: Float[Tensor, "n d_in"], candidates: Float[Tensor, "m d_out"], targets: Int[Tensor, " n"]
) -> float:
    """Returns the share of inputs whose output has its largest inner product with the right candidate."""
    return float(((inputs @ W.mT @ candidates.mT).argmax(1) == targets).double().mean())


def predicted_recall(N: int, d: int) -> float:
    """Computes the recall of N pairs in d dimensions by the formula above, with Gauss-Hermite quadrature.

    Raises:
        ValueError: a number is below 1.
    """
    import numpy as np
    from scipy.special import log_ndtr

    integers(N=N, d=d)
    z, weights = np.polynomial.hermite_e.hermegauss(NODES)
    scale = math.sqrt(N / d**2 + 2 / d)
    values = np.exp((N - 1) * log_ndtr((1 + math.sqrt(N) / d * z) / scale))
    return float(values @ weights / weights.sum())


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
    """Two attention layers with frozen embeddings; only the three matrices of the induction head are trained. Starts at zero.

    Args:
        vocabulary, length, dim: number of ids, length of sequences, width.
        generator: draws the frozen vectors.

    Attributes:
        embedding, unembedding: unit vectors of the ids, ``[vocabulary, dim]``. The second layer writes to the logits only.
        positions: unit vectors, ``[length, dim]``.
        previous: frozen values of the first layer, which write an id to another subspace, ``[vocabulary, dim]``.
        keys1, keys2, output2: trained matrices, ``[dim, dim]``.
    """

    embedding: Tensor
    unembedding: Tensor
    previous: Tensor
    positions: Tensor

    def __init__(self, *, vocabulary: int, length: int, dim: int, generator: Generator):
        super().__init__()
        integers(vocabulary=vocabulary, length=length, dim=dim)
        for name, n in (("embedding", vocabulary), ("unembedding", vocabulary), ("previous", vocabulary), ("positions", length)):
            self.register_buffer(name, unit_vectors(n, dim, generator).float())
        self.keys1, self.keys2, self.output2 = (nn.Parameter(torch.zeros(dim, dim)) for _ in range(3))

    def forward(self, ids: Int[Tensor, "batch n"]) -> Float[Tensor, "batch n vocabulary"]:
        n = ids.shape[1]
        e, p, mask = self.embedding[ids], self.positions[:n], causal_mask(n, n)
        before = softmax(p @ self.keys1 @ p.mT, mask) @ self.previous[ids]  # the id that the first layer attends to, in its own subspace
        attention = softmax((e @ self.keys2) @ before.mT, mask)
        return attention @ (e @ self.output2.mT @ self.unembedding.mT)

    def masses(self) -> dict[str, float]:
        """Returns the mean softmax mass that each memory gives to the right answer, in the order of :data:`MEMORIES`."""
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
    """Draws sequences in which some ids, the triggers, are always followed by one id, drawn anew for each sequence.

    Args:
        n: number of sequences.
        vocabulary, length: number of ids, and of tokens.
        triggers: number of triggers per sequence.
        generator: draws everything.
    Returns:
        The ids, and the next id after every trigger that has occurred before, -1 elsewhere; ``[n, length]`` each.
    Raises:
        ValueError: there are more triggers than ids.
    """
    if triggers > vocabulary:
        raise ValueError(f"triggers must be at most the vocabulary, {vocabulary} ids, got {triggers}; lower triggers")
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
        # A successor that is a trigger itself is followed by a free id, or chains of triggers would fill the sequence.
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
    measured: tuple[int, ...] = (),
    vocabulary: int = 16,
    length: int = 32,
    dim: int = 64,
    triggers: int = 3,
    batch: int = 64,
    generator: Generator,
) -> tuple[MemoryNetwork, dict[int, dict[str, float]]]:
    """Trains the memories on triggered sequences.

    Args:
        optimiser: function of the parameters.
        steps: number of steps.
        measured: steps at which the recalls are measured.
        vocabulary, length, dim, triggers: see :class:`MemoryNetwork` and :func:`triggered_sequences`.
        batch: sequences per step.
        generator: draws weights and sequences.
    Returns:
        The network, and the recalls by step.
    """
    model = MemoryNetwork(vocabulary=vocabulary, length=length, dim=dim, generator=generator)
    masses: dict[int, dict[str, float]] = {}

    def stream(draws: Generator) -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            yield triggered_sequences(batch, vocabulary=vocabulary, length=length, triggers=triggers, generator=draws)

    def loss(network: nn.Module, pair: tuple[Tensor, Tensor]) -> Tensor:
        return functional.cross_entropy(network(pair[0]).flatten(0, 1), pair[1].flatten(), ignore_index=-1)

    record = at_steps(measured, lambda step, network: masses.update({step: model.masses()}), limit=steps)
    fit(model, StreamTask(loss, stream), optimiser=optimiser(model.parameters()), steps=steps, callbacks=[record], generator=generator)
    return model, masses


def first_steps(recalls: dict[int, dict[str, float]], *, level: float = 0.5) -> dict[str, float]:
    """Returns the first measured step at which each memory's recall reaches the level; infinity if none does."""
    return {name: min((step for step, values in recalls.items() if values[name] >= level), default=math.inf) for name in MEMORIES}

r"""Training of the one-layer model by gradient descent, in count form: the exact dynamics, finite samples included.

The model of :cite:t:`tian2023scan`: softmax attention of the query over the contextual tokens (the query itself is no key), attended
tokens normalised to Euclidean norm one, a linear decoder Y, cross-entropy. No positions and one-hot tokens, so a sequence is its vector of
counts x, and with the attention logits z of its query

    c = x e^z / sum(x e^z),    f = c / ||c||_2,    alpha = softmax(Y^T f),    g = Y (e_n - alpha)
    dY/dt = eta_Y f (e_n - alpha)^T,    dz/dt = eta_Z f o (g - f (f.g))            (Lemma 1, simplified)

which costs nothing per token of the sequence. The M - K columns of Y whose token never follows start equal and stay equal, so one
column stands for all of them ("rest"). Everything takes leading axes of independent runs (seeds, learning rates, shuffled labels).

Put the conditional :math:`P(\cdot | n)` in place of counts and the class shares as weights, and a step is an Euler step of unit length
of the exact population flow.
"""

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...errors import NotConverged
from .problem import CountedSequences, SequenceClasses


@dataclass(frozen=True, eq=False)
class Weights:
    """The two trained matrices.

    Attributes:
        decoder: Y; a column for each class, then one for each of the equal others if there are any, ``[*runs, S, K or K + 1]``.
        attention: Z, a row of logits for each query token, ``[*runs, Q, S]``.
        rest: M - K, how many equal columns the last one stands for (0: there is none).
    """

    decoder: Float[Tensor, "*runs S C"]
    attention: Float[Tensor, "*runs Q S"]
    rest: int

    @classmethod
    def zeros(cls, tokens: int, queries: int, classes: int, vocab_size: int, *, runs: tuple[int, ...] = ()) -> "Weights":
        """The start of the theory: Y = 0, Z = 0."""
        rest = vocab_size - classes
        decoder = torch.zeros(*runs, tokens, classes + (rest > 0), dtype=torch.float64)
        return cls(decoder, torch.zeros(*runs, queries, tokens, dtype=torch.float64), rest)


@dataclass(frozen=True, eq=False)
class Batch:
    """Sequences as counts.

    Attributes:
        counts: of the contextual tokens; any non-negative numbers, each row with a positive sum, ``[*runs, batch, S]``.
        query: number of the query, ``[*runs, batch]``.
        target: number of the class, ``[*runs, batch]``.
        weight: of each sequence in the loss; 1/batch if None, ``[batch]``.
    """

    counts: Float[Tensor, "*runs batch S"]
    query: Int[Tensor, "*runs batch"]
    target: Int[Tensor, "*runs batch"]
    weight: Float[Tensor, " batch"] | None = None


@dataclass(frozen=True, eq=False)
class Pass:
    """What the model does with a batch, and the closed-form descent directions (minus the gradients of the mean loss)."""

    attended: Float[Tensor, "*runs batch S"]
    loss: Float[Tensor, "*runs"]
    correct: Float[Tensor, "*runs"]
    decoder: Float[Tensor, "*runs S C"]
    attention: Float[Tensor, "*runs Q S"]


def attend(weights: Weights, batch: Batch) -> Float[Tensor, "*runs batch S"]:
    """c: the attention that each contextual token type gets in each sequence, rows sum to one. Tokens that do not occur get zero."""
    rows = weights.attention.gather(-2, batch.query[..., None].expand(*batch.query.shape, weights.attention.shape[-1]))
    return torch.softmax(rows + batch.counts.log(), dim=-1)


def forward(weights: Weights, batch: Batch) -> Pass:
    """One pass and its closed-form gradients (Lemma 1), exact for any counts.

    Returns:
        attention, mean loss (nats), share of correct predictions among the classes, and descent directions of Y and Z.
    """
    K = weights.decoder.shape[-1] - (weights.rest > 0)
    c = attend(weights, batch)
    f = c / torch.linalg.vector_norm(c, dim=-1, keepdim=True)
    logits = f @ weights.decoder
    pooled = torch.cat([logits[..., :K], logits[..., K:] + math.log(max(weights.rest, 1))], dim=-1)
    log_alpha = torch.log_softmax(pooled, dim=-1)
    alpha = log_alpha.exp()
    here = torch.nn.functional.one_hot(batch.target, alpha.shape[-1]).bool()
    others = torch.where(here, torch.zeros_like(alpha), alpha)
    residual = torch.where(here, others.sum(-1, keepdim=True), -others)  # 1 - alpha_n as the sum of the others: no cancellation
    g = residual @ weights.decoder.mT
    dz = f * (g - f * (f * g).sum(-1, keepdim=True))
    share = torch.full(batch.target.shape[-1:], 1 / batch.target.shape[-1], dtype=f.dtype) if batch.weight is None else batch.weight
    dY = f.mT @ (share[:, None] * residual)
    if weights.rest:
        dY = torch.cat([dY[..., :K], dY[..., K:] / weights.rest], dim=-1)
    asked = torch.nn.functional.one_hot(batch.query, weights.attention.shape[-2]).to(f.dtype)
    dZ = asked.mT @ (share[:, None] * dz)
    loss = -(share * log_alpha.gather(-1, batch.target[..., None])[..., 0]).sum(-1)
    correct = (share * (logits[..., :K].argmax(-1) == batch.target)).sum(-1)
    return Pass(c, loss, correct, dY, dZ)


@dataclass(frozen=True, eq=False)
class Trajectory:
    """What a training run leaves. The dynamics are exact gradient descent, no approximation of the theory.

    Attributes:
        steps: at which the weights were kept, increasing, ``[kept]``.
        attention: Z at these steps, ``[kept, *runs, Q, S]``.
        loss: of the batch before each step, nats, ``[steps, *runs]``.
        final: the weights at the end.
    """

    steps: Int[Tensor, " kept"]
    attention: Float[Tensor, "kept *runs Q S"]
    loss: Float[Tensor, "steps *runs"]
    final: Weights


def gradient_descent(
    start: Weights,
    batches: Iterator[Batch] | Callable[[], Batch],
    *,
    steps: int,
    eta_y: float,
    eta_z: float,
    momentum: float = 0.0,
    keep: Collection[int] = (),
) -> Trajectory:
    """Gradient descent on both matrices with their own learning rates, one batch a step.

    Args:
        start: usually :meth:`Weights.zeros`.
        batches: an iterator, or a function that draws the next batch.
        steps: number of steps.
        eta_y, eta_z: learning rates of decoder and attention.
        momentum: heavy ball; the theory has none, the paper's experiments use 0.9.
        keep: steps at which Z is kept besides 0 and the last (k: after k steps).
    Raises:
        ValueError: steps below 1, a rate that is not positive, or momentum outside [0, 1).
        NotConverged: the weights became infinite or NaN; carries the step and the weights before it.
    """
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    for name, rate in (("eta_y", eta_y), ("eta_z", eta_z)):
        if not 0 < rate < math.inf:
            raise ValueError(f"{name} must be a positive learning rate, got {rate}")
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum must lie in [0, 1), got {momentum}")
    draw = batches if callable(batches) else lambda: next(batches)
    wanted = sorted({0, steps} | {k for k in keep if 0 <= k <= steps})
    Y, Z = start.decoder, start.attention
    speed_y, speed_z = torch.zeros_like(Y), torch.zeros_like(Z)
    kept, losses = [Z], []
    for step in range(1, steps + 1):
        now = forward(Weights(Y, Z, start.rest), draw())
        if not bool(torch.isfinite(now.loss).all()):
            raise NotConverged(f"the loss is not finite at step {step}; lower eta_y or eta_z", Weights(Y, Z, start.rest), step)
        losses.append(now.loss)
        speed_y, speed_z = momentum * speed_y + now.decoder, momentum * speed_z + now.attention
        Y, Z = Y + eta_y * speed_y, Z + eta_z * speed_z
        if step in wanted:
            kept.append(Z)
    return Trajectory(torch.tensor(wanted), torch.stack(kept), torch.stack(losses), Weights(Y, Z, start.rest))


def sampled(classes: SequenceClasses, batch: int, *, context: int, generator: torch.Generator) -> Callable[[], Batch]:
    """Fresh random sequences at each step, as in the paper: a function that draws a batch (see ``SequenceClasses.sample_counts``)."""

    def draw() -> Batch:
        counts, n = classes.sample_counts(batch, context=context, generator=generator)
        return Batch(counts, classes.query[n], n)

    return draw


def population(classes: SequenceClasses) -> Callable[[], Batch]:
    """Infinitely long sequences of all classes at once: a step is an Euler step of the exact population flow."""
    whole = Batch(classes.conditional, classes.query, torch.arange(classes.classes), classes.weights)
    return lambda: whole


def minibatches(data: CountedSequences, batch: int, *, generator: torch.Generator, targets: Int[Tensor, "*runs n"] | None = None):
    """The sequences of the data in random order, epoch after epoch: a function that draws a batch of up to ``batch`` sequences.

    Args:
        targets: other next tokens to learn, one vector a run (e.g. shuffled ones); the data's own if None.
    """
    labels = data.target if targets is None else targets
    size, n = min(batch, len(data.target)), len(data.target)
    order = torch.empty(0, dtype=torch.long)

    def draw() -> Batch:
        nonlocal order
        if len(order) < size:
            order = torch.randperm(n, generator=generator)
        index, order = order[:size], order[size:]
        runs = labels.shape[:-1]
        return Batch(
            data.counts[index].expand(*runs, size, data.counts.shape[1]), data.query[index].expand(*runs, size), labels[..., index]
        )

    return draw

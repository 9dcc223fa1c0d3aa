"""Claims about training in count form: the gradient, conserved sums, and the approach of finite sequences to
the population limit.
"""

import math

import torch
from torch import Generator, Tensor

from ....core.claims import Measured, but, claim
from ....core.sources import Source
from ....data.bridges import one_hot
from ..dynamics import (
    Adam,
    Batch,
    HeavyBall,
    Optimiser,
    SparseBatch,
    Weights,
    attend,
    forward,
    gradient_descent,
    sampled,
)
from ..problem import SequenceClasses, synthetic

PAPER = "tian2023scan"
DELTA = 0.05  # delta of Hoeffding's bound
REPEATS = 16  # copies of each drawn token in the control
MOMENTUM = HeavyBall(0.9)


def _explicit_gradients(
    ids: Tensor, query: Tensor, target: Tensor, Y: Tensor, Z: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the gradients of the mean loss by Y and Z, by automatic differentiation of the explicit model,
    and the features.

    Args:
        ids: contextual tokens, ``[batch, context]``.
        query, target: ``[batch]``.
        Y, Z: all columns of the decoder, ``[S, M]``, and the logits, ``[Q, S]``.
    """
    X = one_hot(ids, len(Y))
    Y, Z = Y.clone().requires_grad_(), Z.clone().requires_grad_()
    weights = torch.softmax(torch.einsum("btl,bl->bt", X, Z[query]), dim=1)
    attended = torch.einsum("bt,btl->bl", weights, X)
    f = attended / attended.norm(dim=1, keepdim=True)
    dY, dZ = torch.autograd.grad(torch.nn.functional.cross_entropy(f @ Y, target), (Y, Z))
    return dY, dZ, f.detach()


def _unprojected(f: Tensor, target: Tensor, query: Tensor, Y: Tensor, queries: int) -> Tensor:
    """Returns the descent direction of the attention logits without its projection, ``[Q, S]``."""
    g = (one_hot(target, Y.shape[1]) - torch.softmax(f @ Y, dim=1)) @ Y.T
    return one_hot(query, queries).T @ (f * g) / len(f)


def _relative(value: Tensor, expected: Tensor) -> float:
    return float((value - expected).abs().max() / expected.abs().max())


@claim(
    "scan_snap/gradient",
    measures="largest relative difference to automatic differentiation",
    at_most=1e-12,
    source=Source(PAPER, "Lemma 1, Eqs. (3) and (4)", "confirmed"),
    assumptions=("no positions", "the query is not a key", "attended tokens have Euclidean norm one"),
    control=but(
        "omits the projection that follows from the normalisation of the attended tokens", projection=False
    ),
)
def gradient(generator: Generator, *, projection: bool = True) -> Measured:
    r"""The descent directions are $\dot Y = f (e_n - \alpha)^\top$ for the decoder and $\dot z = f \circ (g -
    f (f^\top g))$, $g = Y (e_n - \alpha)$, for the attention logits, functions of the tokens' counts alone.
    Here: the largest relative difference to automatic differentiation of the explicit model.
    """
    S, Q, K, M, context, batch = 6, 2, 3, 11, 9, 5
    ids = torch.randint(S, (batch, context), generator=generator)
    query, target = (
        torch.randint(Q, (batch,), generator=generator),
        torch.randint(K, (batch,), generator=generator),
    )
    Y = torch.randn(S, M, generator=generator, dtype=torch.float64)
    # the columns of tokens that never follow are equal, so the closed form can pool them
    Y[:, K:] = Y[:, K : K + 1]
    Z = torch.randn(Q, S, generator=generator, dtype=torch.float64)
    dY, dZ, f = _explicit_gradients(ids, query, target, Y, Z)
    closed = forward(Weights(Y[:, : K + 1], Z, M - K), Batch(one_hot(ids, S).sum(1), query, target))
    attention = closed.attention if projection else _unprojected(f, target, query, Y, Q)
    errors = {"decoder": _relative(closed.decoder, -dY[:, : K + 1]), "attention": _relative(attention, -dZ)}
    return Measured(max(errors.values()), errors)


@claim(
    "scan_snap/grouped-gradient",
    measures="largest relative difference to automatic differentiation",
    at_most=1e-12,
    source=Source(PAPER, status="own"),
    assumptions=(
        "no positions",
        "the query is not a key",
        "attended tokens have Euclidean norm one",
        "sequences drawn from the classes",
    ),
    control=but(
        "omits the projection that follows from the normalisation of the attended tokens", projection=False
    ),
)
def grouped_gradient(generator: Generator, *, projection: bool = True) -> Measured:
    r"""Sorting the sequences by class, or storing only the tokens that occur in them, leaves $\dot Y$ and
    $\dot Z$ of gradient descent unchanged, in several runs at once. Here: the largest relative difference to
    automatic differentiation of the explicit model.
    """
    errors = []
    for K in (
        2 * int(torch.randint(1, 3, (), generator=generator)),
        2 * int(torch.randint(3, 6, (), generator=generator)),
    ):
        classes = synthetic(K, per_query=2, common=3, distinct=4)
        S, Q, M = classes.tokens, classes.queries, classes.vocab_size
        seeds = torch.randint(2**31, (2,), generator=generator).tolist()
        Y = torch.randn(2, S, M, generator=generator, dtype=torch.float64)
        Y[..., K:] = Y[..., K : K + 1]
        Z = torch.randn(2, Q, S, generator=generator, dtype=torch.float64)
        batch = sampled(classes, 16, context=12, seeds=seeds)(0)
        dense, weights = batch.dense(), Weights(Y[..., : K + 1], Z, M - K)
        # a sequence of 12 tokens contains at most 12 different ones
        top, tokens = dense.topk(min(12, S), dim=-1)
        lists = SparseBatch(
            torch.where(top > 0, tokens, 0), top.log(), classes.query[batch.target], batch.target
        )
        closed = (batch.descent(weights), lists.descent(weights))
        for run, (counts, target) in enumerate(zip(dense, batch.target)):
            # Turn counts [16, S] into sequences [16, 12]: each token as often as it was counted.
            ids = (
                torch.arange(S)
                .expand(16, -1)
                .flatten()
                .repeat_interleave(counts.long().flatten())
                .view(16, 12)
            )
            query = classes.query[target]
            dY, dZ, f = _explicit_gradients(ids, query, target, Y[run], Z[run])
            for descent in closed:
                attention = (
                    descent.attention[run] if projection else _unprojected(f, target, query, Y[run], Q)
                )
                errors += [_relative(descent.decoder[run], -dY[:, : K + 1]), _relative(attention, -dZ)]
    return Measured(max(errors), {"comparisons": len(errors)})


def _share(sum_changes: Tensor, entry_changes: Tensor) -> float:
    return float(sum_changes.abs().max() / entry_changes.abs().max())


@claim(
    "scan_snap/row-sums",
    measures="largest change of a row sum, as a share of the largest change of an entry",
    at_most=1e-12,
    source=Source(PAPER, "Section 3.1, after Lemma 1", "confirmed"),
    assumptions=(
        "the update is a linear function of past gradients",
        "attended tokens have Euclidean norm one",
    ),
    control=but("uses Adam, which scales every entry separately", optimiser=Adam()),
)
def row_sums(generator: Generator, *, optimiser: Optimiser = MOMENTUM) -> Measured:
    """Descent conserves the sum of every row of $Y$ and of $Z$, with momentum too. The paper states it
    without momentum. Here: the largest change of a row sum over 60 steps with momentum, as a share of the
    largest change of an entry.
    """
    K = 2 * int(torch.randint(2, 5, (), generator=generator))
    classes = synthetic(K, per_query=2, common=3, distinct=4)
    seed = int(torch.randint(2**31, (), generator=generator))
    start = Weights.random(classes, seeds=[seed])
    path = gradient_descent(
        start,
        sampled(classes, 32, context=30, seeds=[seed]),
        steps=60,
        eta_y=1.0,
        eta_z=1.0,
        optimiser=optimiser,
    )
    drift = {
        "decoder": _share(
            path.final.decoder_row_sums() - start.decoder_row_sums(), path.final.decoder - start.decoder
        ),
        "attention": _share(
            path.final.attention.sum(-1) - start.attention.sum(-1), path.final.attention - start.attention
        ),
    }
    return Measured(max(drift.values()), drift)


@claim(
    "scan_snap/long-sequences",
    measures="|slope + 1/2| on logarithmic axes",
    at_most=0.05,
    source=Source(PAPER, "Eq. (5), Lemma 2, Eq. (6); the rate: Lemma 18, Eq. (136)", "confirmed"),
    assumptions=("contextual tokens are drawn independently, given the class",),
    control=but("fills every sequence with copies of 64 drawn tokens", independent=64),
)
def long_sequences(generator: Generator, *, independent: int | None = None) -> Measured:
    r"""The attention that a sequence of $T - 1$ contextual tokens pays to each kind of token approaches $c_n
    \propto P(l | n) e^{z_l}$ as $1/\sqrt{T}$. Here: $|\text{slope} + 1/2|$ of their distance against $T - 1$,
    logarithmically.
    """
    # independent: independent tokens per sequence, repeated to fill it. None: all tokens are independent.
    classes = synthetic(2, common=4, distinct=4)
    z = torch.randn(2, classes.tokens, generator=generator, dtype=torch.float64)
    weights = Weights.zeros(classes.tokens, 2, 2, classes.vocab_size)
    weights = Weights(weights.decoder, z, weights.rest)
    lengths = 64 * 4 ** torch.arange(6)
    distance = []
    for context in lengths.tolist():
        counts, n = classes.sample_counts(400, context=independent or context, generator=generator)
        gap = attend(weights, Batch(counts, classes.query[n], n)) - classes.attended(z)[n]
        distance.append(gap.square().sum(-1).mean().sqrt())
    x, y = lengths.double().log(), torch.stack(distance).log()
    x = x - x.mean()
    slope = float((x * y).sum() / (x * x).sum())
    return Measured(abs(slope + 0.5), {"slope": slope})


def _two_tokens(generator: Generator) -> SequenceClasses:
    p = 0.3 + 0.4 * torch.rand((), generator=generator, dtype=torch.float64)
    return SequenceClasses(torch.stack([p, 1 - p])[None], torch.zeros(1, dtype=torch.long), 3)


@claim(
    "scan_snap/concentration",
    measures="share of sequences beyond the bound",
    at_most=DELTA,
    source=Source(PAPER, "Lemma 18, Eq. (136), App. H", "confirmed"),
    assumptions=("contextual tokens are drawn independently, given the class",),
    control=but("repeats every drawn token sixteen times", repeats=REPEATS),
)
def concentration(generator: Generator, *, repeats: int = 1) -> Measured:
    r"""A token's share $q_l$ of the contextual tokens has $|q_l - P(l | n)| \le \sqrt{\ln(2/\delta) / (2
    (T-1))}$ with probability at least $1 - \delta$ (Hoeffding). Here: the share of sequences beyond it, for
    $\delta = 0.05$.
    """
    classes = _two_tokens(generator)
    context = REPEATS * int(torch.randint(4, 65, (), generator=generator))
    counts, _ = classes.sample_counts(2000, context=context // repeats, generator=generator)
    distance = (counts[:, 0] * repeats / context - classes.conditional[0, 0]).abs()
    bound = math.sqrt(math.log(2 / DELTA) / (2 * context))
    return Measured(float((distance > bound).double().mean()), {"T - 1": context, "bound": bound})


CLAIMS = (gradient, grouped_gradient, row_sums, long_sequences, concentration)

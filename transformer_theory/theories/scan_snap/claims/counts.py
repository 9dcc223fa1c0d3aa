r"""What descent conserves, and how fast finite sequences approach the population: what makes counts and long sequences a fair model."""

import math

import torch
from torch import Generator, Tensor

from ....core.claims import Claim, Evidence
from ....core.sources import Source
from ..dynamics import Adam, Batch, HeavyBall, Weights, attend, gradient_descent, sampled
from ..dynamics.optimisers import Optimiser
from ..problem import SequenceClasses, synthetic

PAPER = "tian2023scan"
CERTAINTY = 0.05  # delta of the bound
REPEATS = 16  # copies of each drawn token in the control


def _drift(generator: Generator, optimiser: Optimiser) -> Evidence:
    """Largest change of a row sum of Y or Z, as a share of the matrix's largest change of an entry."""
    K = 2 * int(torch.randint(2, 5, (), generator=generator))
    classes = synthetic(K, per_query=2, common=3, distinct=4)
    seed = int(torch.randint(2**31, (), generator=generator))
    start = Weights.random(classes, seeds=[seed])
    path = gradient_descent(start, sampled(classes, 32, context=30, seeds=[seed]), steps=60, eta_y=1.0, eta_z=1.0, optimiser=optimiser)
    found = {
        "decoder": _share(path.final.decoder_row_sums() - start.decoder_row_sums(), path.final.decoder - start.decoder),
        "attention": _share(path.final.attention.sum(-1) - start.attention.sum(-1), path.final.attention - start.attention),
    }
    return Evidence(max(found.values()), 1e-12, "<=", detail=found)


def _share(of_sums: Tensor, of_entries: Tensor) -> float:
    return float(of_sums.abs().max() / of_entries.abs().max())


def _two_tokens(generator: Generator) -> SequenceClasses:
    p = 0.3 + 0.4 * torch.rand((), generator=generator, dtype=torch.float64)
    return SequenceClasses(torch.stack([p, 1 - p])[None], torch.zeros(1, dtype=torch.long), 3)


def _beyond(generator: Generator, repeats: int) -> Evidence:
    """Share of 2000 sequences whose share of a token is further from P(l | n) than the bound for delta allows."""
    classes = _two_tokens(generator)
    context = REPEATS * int(torch.randint(4, 65, (), generator=generator))
    counts, _ = classes.sample_counts(2000, context=context // repeats, generator=generator)
    distance = (counts[:, 0] * repeats / context - classes.conditional[0, 0]).abs()
    bound = math.sqrt(math.log(2 / CERTAINTY) / (2 * context))
    return Evidence(float((distance > bound).double().mean()), CERTAINTY, "<=", detail={"T - 1": context, "bound": bound})


def _slope(generator: Generator, *, independent: int | None) -> Evidence:
    r"""|slope + 1/2| of the distance between a sequence's attention and c_n against its length, on logarithmic axes.

    Args:
        independent: tokens drawn for a sequence, each repeated to fill it; all of them if None.
    """
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
    return Evidence(abs(slope + 0.5), 0.05, "<=", detail={"slope": slope})


CLAIMS = (
    Claim(
        id="scan_snap/row-sums",
        statement=r"Descent conserves the sum of every row of $Y$ and of $Z$, with momentum too. "
        r"Here: the largest change of a row sum over 60 steps with momentum, as a share of the largest change of an entry.",
        source=Source(PAPER),
        assumptions=("the update is a linear function of past gradients", "attended tokens have Euclidean norm one"),
        check=lambda generator: _drift(generator, HeavyBall(0.9)),
        control=lambda generator: _drift(generator, Adam()),
        control_description="takes Adam's steps, which scale every entry by itself",
    ),
    Claim(
        id="scan_snap/long-sequences",
        statement=r"The attention that a sequence of $T - 1$ contextual tokens pays to each kind of token approaches "
        r"$c_n \propto P(l | n) e^{z_l}$ as $1/\sqrt{T}$. Here: $|\text{slope} + 1/2|$ of their distance against $T - 1$, logarithmically.",
        source=Source(PAPER, "Lemma 2"),
        assumptions=("contextual tokens are drawn independently, given the class",),
        check=lambda generator: _slope(generator, independent=None),
        control=lambda generator: _slope(generator, independent=64),
        control_description="fills every sequence with copies of 64 drawn tokens",
    ),
    Claim(
        id="scan_snap/concentration",
        statement=r"A token's share $q_l$ of the contextual tokens has $|q_l - P(l | n)| \le \sqrt{\ln(2/\delta) / (2 (T-1))}$ with "
        r"probability $1 - \delta$ (Hoeffding). Here: the share of sequences beyond it, for $\delta = 0.05$.",
        source=Source(PAPER),
        assumptions=("contextual tokens are drawn independently, given the class",),
        check=lambda generator: _beyond(generator, 1),
        control=lambda generator: _beyond(generator, REPEATS),
        control_description="repeats every drawn token sixteen times",
    ),
)

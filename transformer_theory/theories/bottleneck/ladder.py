r"""The ladder: the information that an encoder keeps about the label, as a share of what the curve allows at
its compression.

The quantity is :math:`I(Z;Y) / I^*(I(X;Z))` with the curve :math:`I^*` of the same joint law (its tangents,
so that the share is at most 1). The theory predicts 1. The null permutes the labels: in the first rung among
the values of x, which are equally likely, then among the images.

First the solver on random laws, then on the visual words of one half of the digits, measured on the other
half; then encoders learnt by gradient descent, on the law and on batches of words; last the features of
trained networks, whose labels are functions of the input (:mod:`.in_networks`). Source:
:cite:t:`tishby1999information`.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache, partial

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor, nn

from ...core.ladder import Ladder
from ...core.measurement import Measurement, Null
from ...core.sources import Source
from ...core.statistics import LADDER_DRAWS, fixed_generator, permutations
from ...data import Images, digits
from ...training.fitting import fit
from ...training.tasks import StreamTask
from ...training.trained_rungs import STEPS as NETWORK_STEPS
from ...training.trained_rungs import headline_in, trained_network, trained_networks
from .curve import Curve, information_bottleneck, random_joint
from .first_beta import onset
from .in_networks import IN_NETWORKS, NULL_KIND, SHARE
from .information import information, table

LADDER = Ladder(
    theory="bottleneck",
    quantity=SHARE,
    unit="share",
    side=">=",
    null=NULL_KIND,
    source=Source("tishby1999information", status="own"),
)
# beta over the onset; code words, steps and batch of learnt encoders
FACTOR, CODES, STEPS, BATCH = 4.0, 16, 400, 256
# trade-offs of a curve, over the onset
AROUND = (1.1, 1.3, 1.6, 2.0, 2.5, 3.2, 4.0, 5.0, 7.0, 10.0, 20.0, 50.0)


class TableEncoder(nn.Module):
    """A stochastic encoder of words with a free table of logits, a decoder and a law r(z)."""

    def __init__(self, words: int, codes: int, classes: int, generator: Generator):
        super().__init__()
        self.encoder = nn.Parameter(torch.randn(words, codes, generator=generator, dtype=torch.float64))
        self.decoder = nn.Parameter(
            0.1 * torch.randn(codes, classes, generator=generator, dtype=torch.float64)
        )
        self.prior = nn.Parameter(torch.zeros(codes, dtype=torch.float64))

    def bound(self, joint: Float[Tensor, "x y"], beta: float) -> Float[Tensor, ""]:
        """Returns rate + beta cross-entropy, an upper bound on the Lagrangian up to a constant."""
        log_code = self.encoder.log_softmax(1)
        marginal, code = joint.sum(1), log_code.exp()
        rate = (marginal[:, None] * code * (log_code - self.prior.log_softmax(0))).sum()
        return rate - beta * ((code.T @ joint) * self.decoder.log_softmax(1)).sum()


def learn(
    draw: Callable[[Generator], Tensor],
    shape: tuple[int, int],
    beta: float,
    *,
    decay: bool,
    generator: Generator,
) -> Tensor:
    """Trains a table encoder on laws that ``draw`` returns, and returns q(z|x), ``[x, z]``."""
    model = TableEncoder(shape[0], CODES, shape[1], generator)
    kind = torch.optim.AdamW if decay else torch.optim.Adam
    task = StreamTask(
        lambda _, joint: model.bound(joint, beta), lambda generator: iter(lambda: draw(generator), None)
    )
    fit(model, task, optimiser=kind(model.parameters(), lr=0.05), steps=STEPS, generator=generator)
    return model.encoder.detach().softmax(1)


def share_of(
    joint: Float[Tensor, "... x y"], encoder: Float[Tensor, "x z"], curve: Curve
) -> Float[Tensor, "..."]:
    """Returns I(Z;Y) of an encoder on each joint law, over what the curve allows at its I(X;Z); all laws have
    one p(x).
    """
    compression = float(information(encoder * joint.sum(-1).reshape(-1, len(encoder))[0][:, None]))
    return information(encoder.mT @ joint) / max(curve.at(compression), 1e-12)


@LADDER.rung("random laws, solver", column="own setting", covered=True)
def own_setting(generator: Generator) -> Iterator[Measurement]:
    """Measures the solver between two trade-offs of the curve, on a random law with a uniform x."""
    joint = random_joint(16, 4, generator)
    joint = joint / joint.sum(1, keepdim=True) / len(joint)
    first = onset(joint).beta
    curve = information_bottleneck(joint, [first * factor for factor in AROUND])
    encoder = information_bottleneck(joint, 1.05 * FACTOR * first).points[0].encoder
    nulls = share_of(joint[permutations(len(joint), LADDER_DRAWS, generator)], encoder, curve)
    value = float(share_of(joint, encoder, curve))
    yield LADDER.row(value, predicted=1.0, nulls=(Null(NULL_KIND, tuple(nulls.tolist())),), n=16)


@lru_cache(maxsize=1)
def digit_words() -> tuple[Int[Tensor, "n seq"], Int[Tensor, " n"], Tensor, float, Curve, Tensor]:
    """Returns words and labels of one half of the digits, the law of the other, beta, the curve of the first
    one, permutations.
    """
    data = digits()
    train, test = data.split(0.5, fixed_generator())
    laws = []
    for part in (train, test):
        assert part.ids is not None
        assert part.labels is not None
        laws.append(
            table(part.ids.flatten(), part.labels.repeat_interleave(part.ids.shape[1]), (32, 10))
            / part.ids.numel()
        )
    first = onset(laws[1]).beta
    curve = information_bottleneck(laws[1], [first * factor for factor in AROUND])
    assert test.ids is not None
    assert test.labels is not None
    return test.ids, test.labels, laws[0], FACTOR * first, curve, permutations(len(test), LADDER_DRAWS)


@LADDER.rung("digits' words", relaxes="the law is known", column="real tokens", how="solver")
@LADDER.rung(
    "encoder learnt", relaxes="gradient descent instead of the solver", column="everything trained", how="law"
)
@LADDER.rung(
    "batches, AdamW",
    relaxes="the whole law in each step",
    column="AdamW and mini-batches",
    how="batches",
)
def on_digits(generator: Generator, *, how: str) -> Iterator[Measurement]:
    """Measures an encoder of the words of one half of the digits on the other half."""
    ids, labels, law, beta, curve, orders = digit_words()
    if how == "solver":
        encoder = information_bottleneck(law, beta).points[0].encoder
    elif how == "law":
        encoder = learn(lambda _: law, (32, 10), beta, decay=False, generator=generator)
    else:
        encoder = learn(partial(batch_law, law), (32, 10), beta, decay=True, generator=generator)
    shuffled = torch.cat([labels[None], labels[orders]]).repeat_interleave(ids.shape[1], dim=1)
    values = share_of(table(ids.flatten(), shuffled, (32, 10)) / ids.numel(), encoder, curve).tolist()
    note = f"{ids.numel()} words of {len(labels)} held-out images, beta = {beta:.1f}"
    yield LADDER.row(
        values[0],
        predicted=1.0,
        nulls=(Null(NULL_KIND, tuple(values[1:])),),
        n=len(labels),
        note=note,
    )


def batch_law(law: Float[Tensor, "x y"], generator: Generator) -> Float[Tensor, "x y"]:
    """Draws the empirical law of a batch of pairs."""
    drawn = torch.multinomial(law.flatten(), BATCH, replacement=True, generator=generator)
    return torch.bincount(drawn, minlength=law.numel()).double().view_as(law) / BATCH


@trained_networks(LADDER)
def in_network(
    generator: Generator, images: tuple[Images, Images] | None = None, *, recipe: str
) -> Iterator[Measurement]:
    """Measures the words of the blocks of a trained network, on validation images."""
    model, validation = trained_network(recipe, generator.initial_seed(), images)
    row = headline_in(model, validation, LADDER.theory, IN_NETWORKS, name=recipe, steps=NETWORK_STEPS)
    yield replace(row, predicted=1.0, source=LADDER.source)

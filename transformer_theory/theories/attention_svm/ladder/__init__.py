r"""The ladder of this theory: the cosine of W to the max-margin direction of the tokens that W selects, from
one head to trained networks.

Each rung keeps what the earlier ones relax. On real tokens all rungs train on the same 16 images and measure
*all* constraints of this training: on a sample of them, even the exact max-margin solution of all would have
a cosine far below one. The rungs up to "head trained" run normalised descent, exact for any norm of W, and
the theory names the limit of the cosine. The later ones train by AdamW, whose limit the theory does not name.
A finite run need not reach its limit, so each rung also measures how far training has gone
(:mod:`.quantities`).
"""

from collections.abc import Callable, Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from ....core.measurement import Measurement
from ....core.statistics import LADDER_DRAWS
from ....data import Images
from ....probes import probe
from ....probes.evaluation import evaluation
from ....training.trained_rungs import trained_network, trained_networks
from ..analysis import RATE, STEPS
from ..balance import common_norm_descent
from ..dynamics import Factors, normalised_descent, random_factors, start
from ..in_networks import BILINEAR, AlignmentMetric
from ..problem import Instance, equal_distractors, token_scores
from ..selection import first_step_condition
from .quantities import LADDER, Head, mean_rows, rows, untested_rows
from .trainings import BATCH, POSITION, Layers, OneHead, Pair, Positions, descend_with_head, trained

# images; with more, descent within the budget is too short for the limit, and few directions fit the
# selection (see docs)
INPUTS = 16
# null draws in 32 dimensions, where all flips differ and a nuclear solution takes .02 s: enough for the 11
# rungs, of which one may be the only finding
WIDE_DRAWS = 219
MAX_DRAWS = 200  # instances that are drawn to find one that meets the assumptions
DESCENT = STEPS[-1]  # steps of descent, and of AdamW on one head
BLOCK_STEPS = 1_000  # steps of AdamW on whole blocks, which cost four times as much
WIDTH, HEADS = 32, 2
SAMPLE = 16  # validation images whose constraints are solved in the networks of a comparison
NO_SCORES = "tokens have no scores: the head is not linear in them"


@LADDER.rung("own instances", column="own setting", covered=True)
def own_instances(generator: torch.Generator) -> Iterator[Measurement]:
    """Yields the quantities of descent on W on a random instance that meets the assumptions of the global
    theorem.

    Six inputs of eight tokens in ten dimensions, the size of the paper's experiments: in general position
    every selection is feasible. One token of each input is best and the others score the same. Instances are
    drawn until the first step from W = 0 raises all best tokens.
    """
    for _ in range(MAX_DRAWS):
        instance = equal_distractors(inputs=6, tokens=8, dim=10, generator=generator)
        if first_step_condition(instance) > 0:
            break
    else:
        yield LADDER.row(
            None, reason=f"none of {MAX_DRAWS} instances has a first step that raises the best tokens"
        )
        return
    yield from rows(
        _descend(instance), generator, limit=True, note=f"{DESCENT:,} normalised steps from W = 0"
    )


@LADDER.rung(
    "16 real inputs",
    relaxes="tokens in general position, others that score the same",
    column="real tokens",
)
def weights(generator: torch.Generator) -> Iterator[Measurement]:
    """Yields the quantities of descent on W on images of two digits."""
    instance = Pair.draw(generator).few(INPUTS).instance
    yield from rows(
        _descend(instance), generator, limit=True, note=f"{DESCENT:,} normalised steps from W = 0"
    )


def _descend(instance: Instance) -> Head:
    """Returns the head after descent on W from zero."""
    end = normalised_descent(instance, start(instance), steps=DESCENT, rate=RATE)
    return Head(end.W, instance.tokens, instance.query, instance.scores)


Descent = Callable[[Pair, Factors], tuple[Factors, Float[Tensor, " d"]]]


def _on_factors(pair: Pair, state: Factors) -> tuple[Factors, Float[Tensor, " d"]]:
    return common_norm_descent(pair.instance, state, steps=DESCENT, rate=RATE), pair.head


def _on_all(pair: Pair, state: Factors) -> tuple[Factors, Float[Tensor, " d"]]:
    return descend_with_head(pair, state, pair.head, steps=DESCENT, rate=RATE)


@LADDER.rung(
    "K and Q",
    relaxes="descent on W itself from zero: random factors, the nuclear norm in place of the Frobenius norm",
    column="everything trained",
    descent=_on_factors,
)
@LADDER.rung("head trained", relaxes="a fixed linear head", column="everything trained", descent=_on_all)
def factors(generator: torch.Generator, *, descent: Descent) -> Iterator[Measurement]:
    """Yields the quantities of descent on K and Q. For factors the theory names the nuclear max-margin
    solution.
    """
    pair = Pair.draw(generator).few(INPUTS)
    end, v = descent(pair, random_factors(pair.instance, generator=generator))
    head = Head(end.W, pair.tokens, pair.query, token_scores(pair.tokens, v, pair.sign), norm="nuclear")
    yield from rows(head, generator, limit=True, note=f"{DESCENT:,} normalised steps with one common norm")


@LADDER.rung(
    "AdamW",
    relaxes=f"gradient descent on all inputs: AdamW on batches of {BATCH}, for which the theory names no "
    "limit",
    column="AdamW and mini-batches",
    embedded=False,
)
@LADDER.rung(
    "embedding and positions",
    relaxes="fixed tokens, and a linear head that starts from a regression",
    column="full block",
    embedded=True,
)
def one_head(generator: torch.Generator, *, embedded: bool) -> Iterator[Measurement]:
    """Yields the quantities of a head whose K, Q and linear head, and embedding if there is one, are trained
    by AdamW.

    Without an embedding K, Q and the linear head start where descent on K and Q does.
    """
    pair = Pair.draw(generator).few(INPUTS)
    T, d = pair.tokens.shape[1:]
    state = random_factors(pair.instance, generator=generator)
    run = trained(
        lambda: (
            OneHead(WIDTH, embedding=Positions(T, d, WIDTH)) if embedded else OneHead.of(state, pair.head)
        ),
        pair.data,
        generator,
        steps=DESCENT,
    )
    with torch.no_grad():
        x, (first, second) = run.model.embedding(pair.tokens), run.model.head.weight  # pyright: ignore
        W = run.model.K @ run.model.Q.mT  # pyright: ignore
    # The loss depends on the difference of the two logits, v^T o with v the difference of their weights.
    head = Head(W, x, x[:, POSITION], token_scores(x, second - first, pair.sign), norm="nuclear")
    note = f"training accuracy {run.accuracy[-1]:.3f} after {DESCENT:,} steps"
    yield from rows(head, generator, draws=WIDE_DRAWS if embedded else LADDER_DRAWS, note=note)


@LADDER.rung(
    "LayerNorm and MLP",
    relaxes=f"one head that is linear in its tokens: residual stream, LayerNorm, MLP, {HEADS} heads; "
    f"{BLOCK_STEPS:,} steps",
    column="full block",
    depth=1,
)
@LADDER.rung("two layers", relaxes="attention on the inputs alone", column="depth", depth=2)
def layers(generator: torch.Generator, *, depth: int) -> Iterator[Measurement]:
    """Yields the quantities of the last layer of a network of pre-norm blocks, averaged over heads.

    The last layer has one query per input, the one that is read out, so all constraints of its training are
    measured. In earlier layers all tokens are queries: 16 times as many constraints, which are not measured.
    """
    pair = Pair.draw(generator).few(INPUTS)
    T, d = pair.tokens.shape[1:]
    run = trained(
        lambda: Layers(Positions(T, d, WIDTH), WIDTH, depth=depth, heads=HEADS, classes=2),
        pair.data,
        generator,
        steps=BLOCK_STEPS,
    )
    with torch.no_grad():
        x = run.model.attended(pair.tokens)[-1]  # pyright: ignore
        heads = run.model.blocks[-1].attention.bilinear()  # pyright: ignore
    measured = []
    for W in heads:
        # One seed for all heads: draw i of their mean then has the same signs in each.
        own = torch.Generator().manual_seed(generator.initial_seed())
        measured.append(
            list(rows(Head(W, x, x[:, POSITION], norm="nuclear"), own, draws=WIDE_DRAWS, no_scores=NO_SCORES))
        )
    yield from mean_rows(
        measured, note=f"training accuracy {run.accuracy[-1]:.3f} after {BLOCK_STEPS:,} steps; last layer"
    )


@trained_networks(LADDER)
def recipe_rows(
    generator: torch.Generator, images: tuple[Images, Images] | None = None, *, recipe: str
) -> Iterator[Measurement]:
    """Yields the quantities of a network of a comparison on validation images, averaged over heads and
    layers.

    The query is a random token of each image. The network was trained on other images with all tokens as
    queries, so these are not the constraints of its training. On a sample of the constraints the max-margin
    solution of all of them does not leave its nulls either; the cosine therefore has neither a prediction nor
    a null here.
    """
    model, validation = trained_network(recipe, generator.initial_seed(), images)
    metric, measured = AlignmentMetric(max_samples=SAMPLE), []
    with evaluation(model), probe(model, [metric], draws=0) as p, p.accumulate(0):
        model(validation.tokens[:SAMPLE].float())
    for place in sorted({place[:2] for place in metric.sums}):
        heads, tokens = metric.sums[*place, BILINEAR], metric.tokens(place).double()
        position = torch.randint(tokens.shape[1], (len(tokens),), generator=generator)
        for W in heads.double():
            head = Head(W, tokens, tokens[torch.arange(len(tokens)), position])
            measured.append(list(untested_rows(head, generator, no_scores=NO_SCORES)))
    note = f"{SAMPLE} validation images: a sample of the constraints, on which no null is fair"
    yield from mean_rows(measured, data=validation.name, model=recipe, note=note)

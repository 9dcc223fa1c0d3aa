r"""The ladder of this theory: the cosine of W to the max-margin direction of the tokens that W selects, from one head to trained networks.

Each rung keeps what the earlier ones relax. The rungs up to "head trained" run normalised descent, exact for any norm of W; the later ones
train by AdamW. A finite run need not reach the limit that the theory states, so each rung also measures how far training has gone
(:mod:`.quantities`). The rungs with one head compare W with the constraints of all inputs of the training. The rungs with several heads use
a sample of the images for each head; even in the limit, the cosine to the solution of a sample is below one.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from ....core.ladder import Rung
from ....core.measurement import Measurement
from ....core.statistics import HEADLINE_DRAWS, RANGE_DRAWS
from ....data import Images
from ....probes import probe
from ....probes.evaluation import evaluation
from ....training.trained_rungs import trained_network, trained_network_rungs
from ..analysis import RATE, STEPS
from ..balance import common_norm_descent
from ..dynamics import Factors, normalised_descent, random_factors, start
from ..in_networks import AlignmentMetric, alignment
from ..problem import Instance, equal_distractors, token_scores
from ..selection import first_step_condition
from .quantities import ALL, BASE, FEW_COSINE, NAME, Head, mean_rows, nuclear_row, row, rows
from .trainings import ADAM_STEPS, POSITION, Layers, OneHead, Pair, Positions, descend_with_head, load, trained

FEW, MANY = 16, 256  # inputs of the first rung on real tokens and of the others
WIDE_DRAWS = 99  # null draws in 32 dimensions, where a draw costs as much as ten of the others; a p-value needs 99
MAX_DRAWS = 200  # instances that are drawn to find one that meets the assumptions
DESCENT = STEPS[-1]  # steps of descent
WIDTH, HEADS = 32, 4
SAMPLE = 16  # images per head whose constraints are solved in networks of several heads: as many constraints as on 16 real inputs
NO_SCORES = "tokens have no scores: the head is not linear in them"


def own_instances(generator: torch.Generator) -> Iterator[Measurement]:
    """Yields the quantities of descent on W on a random instance that meets the assumptions of the global theorem.

    Six inputs of eight tokens in ten dimensions, the size of the paper's experiments: in general position every selection is feasible. One
    token of each input is best and the others score the same. Instances are drawn until the first step from W = 0 raises all best tokens.
    """
    for _ in range(MAX_DRAWS):
        instance = equal_distractors(inputs=6, tokens=8, dim=10, generator=generator)
        if first_step_condition(instance) > 0:
            break
    else:
        yield BASE.row(NAME, None, reason=f"none of {MAX_DRAWS} instances has a first step that raises the best tokens")
        return
    yield from rows(_descend(instance), generator, note=f"{DESCENT:,} normalised steps from W = 0")


def weights(inputs: int, generator: torch.Generator) -> Iterator[Measurement]:
    """Yields the quantities of descent on W on images of two digits."""
    instance = Pair.draw(generator).few(inputs).instance
    yield from rows(_descend(instance), generator, note=f"{DESCENT:,} normalised steps from W = 0")


def _descend(instance: Instance) -> Head:
    """Returns the head after descent on W from zero."""
    end = normalised_descent(instance, start(instance), steps=DESCENT, rate=RATE)
    return Head(end.W, instance.tokens, instance.query, instance.scores)


Descent = Callable[[Pair, Factors], tuple[Factors, Float[Tensor, " d"]]]


def _on_factors(pair: Pair, state: Factors) -> tuple[Factors, Float[Tensor, " d"]]:
    return common_norm_descent(pair.instance, state, steps=DESCENT, rate=RATE), pair.head


def _on_all(pair: Pair, state: Factors) -> tuple[Factors, Float[Tensor, " d"]]:
    return descend_with_head(pair, state, pair.head, steps=DESCENT, rate=RATE)


def factors(descent: Descent, generator: torch.Generator) -> Iterator[Measurement]:
    """Yields the quantities of descent on K and Q, and the cosines of the same descent on 16 inputs.

    On 16 inputs the nuclear max-margin solution is known as well; for factors the theory names it in place of the Frobenius solution.
    """
    pair = Pair.draw(generator).few(MANY)
    state = random_factors(pair.instance, generator=generator)
    end, v = descent(pair, state)
    head = Head(end.W, pair.tokens, pair.query, token_scores(pair.tokens, v, pair.sign))
    yield from rows(head, generator, note=f"{DESCENT:,} normalised steps with one common norm")
    few = pair.few(FEW)
    W = descent(few, state)[0].W
    aligned = alignment(W, few.tokens, few.query, generator=generator, constraints=ALL, draws=HEADLINE_DRAWS)
    yield row(FEW_COSINE, aligned.cosine, null=aligned.null, side=">=", n=FEW, reason=aligned.reason)
    yield nuclear_row(few.instance, W)


def one_head(embedded: bool, generator: torch.Generator) -> Iterator[Measurement]:
    """Yields the quantities of a head whose K, Q and linear head, and embedding if there is one, are trained by AdamW."""
    pair = Pair.draw(generator).few(MANY)
    T, d = pair.tokens.shape[1:]
    run = trained(lambda: OneHead(WIDTH, embedding=Positions(T, d, WIDTH)) if embedded else OneHead(d), pair.data, generator)
    with torch.no_grad():
        x, (first, second) = run.model.embedding(pair.tokens.float()).double(), run.model.head.weight.double()  # pyright: ignore
        W = (run.model.K @ run.model.Q.mT).double()  # pyright: ignore
    # The loss depends on the difference of the two logits, v^T o with v the difference of their weights.
    head = Head(W, x, x[:, POSITION], token_scores(x, second - first, pair.sign))
    infeasible = "not computed: the solver needs minutes for so many constraints" if embedded else ""
    draws = WIDE_DRAWS if embedded else HEADLINE_DRAWS
    yield from rows(
        head, generator, draws=draws, no_best=infeasible, note=f"training accuracy {run.accuracy[-1]:.3f} after {ADAM_STEPS:,} steps"
    )


def layers(depth: int, generator: torch.Generator) -> Iterator[Measurement]:
    """Yields the quantities of a network of pre-norm blocks on all ten digits, averaged over heads and layers.

    The last layer is measured at the query that is read out. All queries of an earlier layer take part in the training, so a random query
    of each image is measured there.
    """
    data = load()
    T, d = data.tokens.shape[1:]
    run = trained(lambda: Layers(Positions(T, d, WIDTH), WIDTH, depth=depth, heads=HEADS, classes=data.classes), data, generator)
    measured = []
    with torch.no_grad():
        attended = run.model.attended(data.tokens.float())  # pyright: ignore
        for number, x in enumerate(attended):
            for W in run.model.blocks[number].attention.bilinear().double():  # pyright: ignore
                chosen = torch.randperm(len(x), generator=generator)[:SAMPLE]
                last = number == depth - 1
                position = torch.full((SAMPLE,), POSITION) if last else torch.randint(T, (SAMPLE,), generator=generator)
                tokens = x[chosen].double()
                head = Head(W, tokens, tokens[torch.arange(SAMPLE), position])
                measured.append(list(rows(head, generator, draws=WIDE_DRAWS, no_scores=NO_SCORES)))
    yield from mean_rows(measured, note=f"training accuracy {run.accuracy[-1]:.3f} after {ADAM_STEPS:,} steps; {SAMPLE} images per head")


def recipe_rows(recipe: str, generator: torch.Generator, images: tuple[Images, Images] | None = None) -> Iterator[Measurement]:
    """Yields the quantities of a network of a comparison on validation images, averaged over heads and layers.

    The query is a random token of each image.
    """
    model, validation = trained_network(recipe, generator.initial_seed(), images)
    metric, measured = AlignmentMetric(max_samples=SAMPLE), []
    with evaluation(model), probe(model, [metric], draws=0) as p, p.together(0):
        model(validation.tokens[:SAMPLE].float())
    for place, heads in sorted(metric.bilinear.items(), key=lambda item: item[0]):
        tokens = metric.tokens[place].double()
        position = torch.randint(tokens.shape[1], (len(tokens),), generator=generator)
        for W in heads.double():
            head = Head(W, tokens, tokens[torch.arange(len(tokens)), position])
            measured.append(list(rows(head, generator, draws=RANGE_DRAWS, no_scores=NO_SCORES)))
    yield from mean_rows(measured, data=validation.name, model=recipe, note=f"{SAMPLE} validation images per head")


LADDER = replace(
    BASE,
    rungs=(
        Rung("own instances", "", own_instances, column="own setting", covered=True),
        Rung("16 real inputs", "tokens in general position, others that score the same", partial(weights, FEW), column="real tokens"),
        Rung("256 real inputs", "few inputs, so that a short training suffices", partial(weights, MANY), column="real tokens"),
        Rung("K and Q", "descent on W itself", partial(factors, _on_factors), column="everything trained"),
        Rung("head trained", "a fixed linear head", partial(factors, _on_all), column="everything trained"),
        Rung("AdamW", "descent along the whole gradient", partial(one_head, False), column="AdamW and mini-batches"),
        Rung("embedding and positions", "fixed tokens", partial(one_head, True), column="full block"),
        Rung("LayerNorm and MLP", "one head that is linear in its tokens, two classes", partial(layers, 1), column="full block"),
        Rung("two layers", "attention on the inputs alone", partial(layers, 2), column="depth"),
        *trained_network_rungs(recipe_rows),
    ),
)

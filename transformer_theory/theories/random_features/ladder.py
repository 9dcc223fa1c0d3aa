"""The ladder: how much of a target random-feature attention explains, from the paper's targets to trained
networks.

The quantity is the correlation of predictions and targets on held-out inputs, over all outputs, each centred.
The theory predicts that it is positive; the first rung is the reference. The null permutes the targets of the
held-out inputs.

From "labels of digits" on the target is the class of a digit. From "weights trained" on the heads are trained
as well: on all inputs at once, then in batches, then inside a transformer block, then in two blocks. In
trained networks, frozen random heads read the tokens after the last block.
Source: :cite:t:`fu2023what`.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn
from torch.nn import functional

from ...core.errors import NotConverged
from ...core.ladder import Ladder
from ...core.measurement import CORRELATION, Measurement, Null
from ...core.sources import Source
from ...core.statistics import LADDER_DRAWS, permutations
from ...core.theory import Unsupported
from ...data import Images, TokenData, digits
from ...models import ViT, build
from ...probes.features import features
from ...training.supervised import train_classifier
from ...training.trained_rungs import trained_network, trained_networks
from .features import RandomFeatureAttention, RidgePath
from .kernels import Inputs
from .on_data import Split, split
from .targets import NAME, Target, correlation, sphere, square

HEADS, TRAIN, VALIDATION, TEST, SPREAD = 100, 512, 128, 512, 4.0
STEPS, BATCH = 300, 64
LADDER = Ladder(
    theory=NAME,
    quantity="correlation of predictions and targets on held-out inputs",
    side=">=",
    bounds=CORRELATION,
    null="permuted targets of the held-out inputs",
    source=Source("fu2023what", status="own"),
)


def row(
    predicted: Float[Tensor, "t outputs"], target: Float[Tensor, "t outputs"], **columns: str
) -> Measurement:
    """Returns the row of a rung."""
    predicted, target = (each - each.mean(0) for each in (predicted, target))
    norm = float(predicted.norm() * target.norm())
    if norm == 0:
        return LADDER.row(None, reason="predictions or targets are all equal", **columns)
    draws = [
        float((predicted * target[order]).sum()) / norm for order in permutations(len(target), LADDER_DRAWS)
    ]
    null = Null(LADDER.null, tuple(draws))
    return LADDER.row(float((predicted * target).sum()) / norm, nulls=(null,), n=len(target), **columns)


def read_by_heads(
    problem: Split, target: Float[Tensor, "n outputs"], generator: Generator, *, spread: float, **columns: str
) -> Measurement:
    """Fits ridge on frozen random heads."""
    heads = RandomFeatureAttention.draw(HEADS, problem.inputs.shape[2], spread=spread, generator=generator)
    values = heads.features(problem.inputs)
    train, validation, test = problem.parts
    fitted = RidgePath(values[train], values[validation], values[test]).fit(target[train], target[validation])
    return row(fitted.test, target[test], note=f"penalty {fitted.penalty:.0e}", **columns)


@LADDER.rung("target of keys", column="own setting", covered=True, target=square, spread=0.0)
@LADDER.rung(
    "target of correlations",
    relaxes="a target of keys alone; from here on heads favour the correlation",
    column="own setting",
    covered=True,
    target=correlation,
    spread=SPREAD,
)
def on_sphere(generator: Generator, *, target: Target, spread: float) -> Iterator[Measurement]:
    """Measures a target of the paper's kind on the sphere."""
    x = sphere(TRAIN + VALIDATION + TEST, generator=generator)
    problem = Split(x, torch.zeros(len(x), dtype=torch.long), TRAIN, VALIDATION)
    yield read_by_heads(problem, target(x)[:, None], generator, spread=spread)


@lru_cache(maxsize=1)
def digit_tokens() -> Split:
    """Returns the digits, the query being the mean of the patches; the split is the same for all seeds."""
    data = digits()
    problem = split(replace(data, query=data.tokens.mean(1)))
    assert isinstance(problem, Split)
    return problem


@LADDER.rung("digits' patches", relaxes="tokens on the sphere", column="real tokens")
def patches(generator: Generator) -> Iterator[Measurement]:
    """Measures the target of the correlation on patches of the digits."""
    problem = digit_tokens()
    yield read_by_heads(problem, correlation(problem.inputs)[:, None], generator, spread=SPREAD)


@LADDER.rung("labels of digits", relaxes="an average of a function of query and key", column="real tokens")
def labels(generator: Generator) -> Iterator[Measurement]:
    """Measures the classes of the digits."""
    problem = digit_tokens()
    yield read_by_heads(problem, classes_of(problem), generator, spread=SPREAD)


def classes_of(problem: Split) -> Float[Tensor, "n classes"]:
    """Returns the classes as unit vectors."""
    return functional.one_hot(problem.labels).double()


class TrainedHeads(nn.Module):
    """Random-feature attention whose matrices are parameters, with a linear read-out."""

    def __init__(self, d: int, outputs: int):
        super().__init__()
        # inside build()
        drawn = RandomFeatureAttention.draw(HEADS, d, spread=SPREAD, generator=torch.default_generator)
        self.weights = nn.Parameter(drawn.weights.float() / d**0.5)
        self.values = nn.Linear(HEADS * (d + 1), outputs)

    def forward(self, x: Inputs) -> Float[Tensor, "n outputs"]:
        """Maps a query and keys ``[n, 1 + N, d]`` to outputs."""
        tokens = torch.cat([x, torch.ones_like(x[..., :1])], -1)
        scores = torch.einsum("na,mab,nib->nmi", tokens[:, 0], self.weights, tokens[:, 1:]).relu()
        return self.values((scores @ tokens[:, 1:] / (x.shape[1] - 1)).flatten(1))


@LADDER.rung(
    "weights trained",
    relaxes="frozen heads",
    column="everything trained",
    model="heads",
    batch_size=10_000,
)
@LADDER.rung(
    "mini-batches",
    relaxes="all inputs in each step",
    column="AdamW and mini-batches",
    model="heads",
    batch_size=BATCH,
)
@LADDER.rung(
    "transformer block",
    relaxes="attention alone, relu",
    column="full block",
    model="blocks",
    batch_size=BATCH,
)
@LADDER.rung(
    "two blocks",
    relaxes="two blocks instead of one",
    column="depth",
    model="blocks",
    batch_size=BATCH,
    depth=2,
)
def trained(
    generator: Generator, *, model: str, batch_size: int, depth: int = 1, learning_rate: float = 3e-3
) -> Iterator[Measurement]:
    """Trains heads or transformer blocks on the classes of the digits, and measures the probabilities of the
    classes.
    """
    problem = digit_tokens()
    train, _, test = problem.parts
    targets = classes_of(problem)
    _, tokens, d = problem.inputs.shape
    parts = [
        TokenData(problem.inputs[part], labels=problem.labels[part], name="digits") for part in (train, test)
    ]
    made = {
        "heads": lambda: TrainedHeads(d, targets.shape[1]),
        "blocks": lambda: ViT.for_tokens(tokens, d, targets.shape[1], dim=32, depth=depth, heads=2),
    }
    network = build(made[model], generator)
    size = min(batch_size, len(parts[0]))
    try:
        train_classifier(
            network, *parts, steps=STEPS, learning_rate=learning_rate, batch_size=size, generator=generator
        )
    except NotConverged as error:
        yield LADDER.row(None, reason=str(error))
        return
    with torch.no_grad():
        predicted = network.eval()(problem.inputs[test].float()).double().softmax(-1)
    yield row(predicted, targets[test], note=f"{STEPS} steps of AdamW in batches of {size}")


@trained_networks(LADDER)
def in_trained_network(
    generator: Generator, images: tuple[Images, Images] | None = None, *, recipe: str
) -> Iterator[Measurement]:
    """Measures frozen heads on the tokens after the last block of a trained network."""
    model, validation = trained_network(recipe, generator.initial_seed(), images)
    problem = split(features(model, validation))
    columns = {"data": validation.name, "model": recipe}
    if isinstance(problem, Unsupported):
        yield LADDER.row(None, reason=problem.reason, **columns)
        return
    yield read_by_heads(problem, classes_of(problem), generator, spread=SPREAD, **columns)

r"""The ladder: weight on the own group, from attention written by hand to a vision transformer trained on the
digits.

The quantity is the mean weight of a patch on the other patches of its group, as a share of its weight on all
other patches; for written attention the theory predicts 1. The null permutes the patches among the groups.
Networks have the mean over layers, heads and images, and weights on a class token do not count. The groups of
the digits are the four quadrants of the image, which is our choice: the theory says only that patches of one
group belong together.
Source: :cite:t:`jelassi2022vision`.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor

from ...core.ladder import Ladder
from ...core.measurement import Measurement, Null
from ...core.sources import Source
from ...core.statistics import LADDER_DRAWS, permutations
from ...data.tokens import TokenData
from ...metrics.networks import AttentionMaps
from ...probes.evaluation import evaluation
from ...probes.probing import probe
from ...training.trained_rungs import digit_parts, fit_classifier, vit_for
from .association import group_attention, group_mass, group_ranking
from .learning import train_patches
from .patches import SpatialPatchData

LADDER = Ladder(
    theory="vision",
    quantity="mass on the own group",
    unit="share",
    side=">=",
    null="permuted groups",
    source=Source("jelassi2022vision", status="own"),
)
RANKING, ACCURACY = "ranking of the own group", "accuracy"
DATA = SpatialPatchData(q=0.1)
STEPS, STORED, NETWORK_STEPS, DIGIT_STEPS = 800, 1024, 200, 150
QUADRANTS = torch.tensor([0, 0, 1, 1] * 2 + [2, 2, 3, 3] * 2)  # of a grid of 4 x 4


def rows_of(
    S: Float[Tensor, "D D"], groups: Int[Tensor, " D"], accuracy: float, *, note: str = ""
) -> Iterator[Measurement]:
    """Yields mass, ranking and accuracy of one attention matrix."""
    chance = Null(
        LADDER.null,
        tuple(float(group_mass(S, groups[order])) for order in permutations(len(groups), LADDER_DRAWS)),
    )
    n = len(groups)
    yield LADDER.row(float(group_mass(S, groups)), predicted=1.0, nulls=(chance,), n=n, note=note)
    yield LADDER.other_row(RANKING, group_ranking(S, groups), unit="share", side=">=", predicted=1.0, n=n)
    yield LADDER.other_row(ACCURACY, accuracy, unit="share", side=">=")


@LADDER.rung("written by hand", column="own setting", covered=True)
def written(generator: Generator) -> Iterator[Measurement]:
    """Measures attention that is written for a random partition of the patches."""
    groups = DATA.groups[torch.randperm(DATA.patches, generator=generator)]
    yield from rows_of(
        group_attention(groups), groups, 1.0, note="the accuracy is exact up to the law of the other groups"
    )


@LADDER.rung(
    "P P^T, trained", relaxes="scores written by hand", column="everything trained", rank=DATA.patches
)
@LADDER.rung("free A", relaxes="A = P P^T", column="everything trained")
@LADDER.rung(
    "AdamW, 1,024 images",
    relaxes="new images in each step",
    column="AdamW and mini-batches",
    stored=STORED,
    decay=0.01,
)
def trained(
    generator: Generator, *, rank: int = 0, stored: int = 0, decay: float = 0.0
) -> Iterator[Measurement]:
    """Trains positional attention by Adam and measures it."""
    found = train_patches(
        DATA,
        generator=generator,
        optimiser="adam",
        steps=STEPS,
        rank=rank,
        diagonal=True,
        spread=0.1,
        stored=stored,
        decay=decay,
    )
    yield from rows_of(found.model.weights().detach().double(), DATA.groups, found.accuracy)


@LADDER.rung("one block of a ViT", relaxes="attention without contents", column="full block", depth=1)
@LADDER.rung("two blocks", relaxes="two blocks instead of one", column="depth", depth=2)
def network(generator: Generator, *, depth: int) -> Iterator[Measurement]:
    """Trains a vision transformer on stored images of the theory's data."""
    w = DATA.direction(generator)
    parts = []
    for n in (STORED, 512):
        sample = DATA.sample(n, w, generator)
        parts.append(
            TokenData(tokens=sample.patches, labels=(sample.labels > 0).long(), name="spatial patches")
        )
    yield from measured(parts[0], parts[1], DATA.groups, generator, depth=depth, steps=NETWORK_STEPS)


@LADDER.rung("ViT on the digits", relaxes="groups by construction", column="trained network")
def digits(generator: Generator) -> Iterator[Measurement]:
    """Trains a vision transformer on the digits; the groups are the quadrants."""
    train, validation = digit_parts()
    yield from measured(train, validation, QUADRANTS, generator, depth=2, steps=DIGIT_STEPS)


def measured(
    train: TokenData,
    validation: TokenData,
    groups: Int[Tensor, " D"],
    generator: Generator,
    *,
    depth: int,
    steps: int,
) -> Iterator[Measurement]:
    """Trains a vision transformer by AdamW and measures its mean attention on the validation data."""
    model, seq = vit_for(train, generator, depth=depth), train.tokens.shape[1]
    accuracy = fit_classifier(model, train, validation, generator, steps=steps)
    metric = AttentionMaps(keep=256)
    with evaluation(model), torch.no_grad(), probe(model, [metric], draws=0) as p, p.accumulate(0):
        model(validation.tokens[:256].float())
    # of the patches, which follow a class token
    of_layers = [sums[..., -seq:, -seq:].sum(0).double() / len(sums) for sums in metric.sums.values()]
    maps = torch.cat(of_layers).mean(0)
    yield from rows_of(maps / maps.sum(1, keepdim=True), groups, accuracy)

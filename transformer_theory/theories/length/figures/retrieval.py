"""Retrieval heads that were trained on 16 keys, at up to 4,096: predicted and measured weights, and scores
multiplied by log n.

Source: :cite:t:`velickovic2025softmax`.
"""

import math
from collections.abc import Iterator

import torch

from ....core.experiment import setting
from ....core.figure import Panel, Reading, curves, figure, mean
from ....core.sources import Source
from ..dispersion import score_gap, winner_weight
from ..retrieval import KEYS, LENGTHS, Kind, at_length, short_scores, train_head

TOP, RIGHT = "largest weight", "weight on the right key"
RANKED, ACCURACY, BOUND = "right key ranked first", "accuracy", "delta - log n"
SCALES = {"scores as trained": False, "times log n": True}
WEIGHT = {"ylabel": "weight", "ylim": (-0.03, 1.05)}
CHANCE = {"_": 0.1}
MAXIMUM, NEEDLE = {"task": "maximum"}, {"task": "needle"}
SHARE = {"ylabel": "accuracy", "ylim": (-0.03, 1.05)}


@figure(
    "length.retrieval",
    source=(Source("velickovic2025softmax", status="own"), Source("chiang2022overcoming", status="own")),
    view=curves(
        "keys",
        panels=(
            Panel("largest of n keys", TOP, MAXIMUM, "scores", predicted="predicted", axes=WEIGHT),
            Panel("on the right key", RIGHT, MAXIMUM, "scores", legend="", axes=WEIGHT),
            Panel("accuracy", ACCURACY, MAXIMUM, "scores", levels=CHANCE, legend="", axes=SHARE),
            Panel("one marked key", TOP, NEEDLE, "scores", predicted="predicted", axes=WEIGHT),
            Panel("accuracy", ACCURACY, NEEDLE, "scores", levels=CHANCE, legend="", axes=SHARE),
        ),
        log="x",
        caption="Means of {heads} heads trained on 16 keys. Three panels for the largest of n keys: "
        "resampled scores of 16 keys predict the largest weight. Two for one marked key: a lone winner is "
        "predicted by its gap. Chance is .1.",
        size=(10.5, 2.8),
    ),
    quick={"heads": 1, "steps": 10, "longest": 64, "sequences": 20},
)
def retrieval(
    *,
    heads: int = setting(5, ge=1, le=100, help="trainings of each task"),
    steps: int = setting(1500, ge=1, le=10**6, help="steps of Adam; a fifth for the marked key"),
    longest: int = setting(4096, ge=16, le=10**6, help="largest number of keys"),
    sequences: int = setting(400, ge=2, le=10**6, help="measured sequences at each length"),
    seed: int = 0,
) -> Iterator[Reading]:
    """Heads that retrieve the largest of n keys, or a marked one, at lengths beyond that of the training.

    The largest weight is predicted by resampling for the largest of n keys, and by the gap of a lone winner
    for the marked key. Rows are means over heads.
    """
    generator = torch.Generator().manual_seed(seed)
    trainings: dict[Kind, int] = {"maximum": steps, "needle": max(1, steps // 5)}
    for task, trained in trainings.items():
        found = {(n, scale): [] for n in LENGTHS if n <= longest for scale in SCALES}
        for _ in range(heads):
            model = train_head(task, generator=generator, steps=trained)
            short = short_scores(model, task, generator=generator, sequences=4000)
            for (n, scale), heads_at in found.items():
                scaled = SCALES[scale]
                row = at_length(
                    model, task, n, short, scaled=scaled, generator=generator, sequences=sequences
                )
                gaps = score_gap(short * (math.log(n) / math.log(KEYS) if scaled else 1.0))
                alone = float(winner_weight(gaps, n).mean())
                heads_at.append((row, row.predicted if task == "maximum" else alone))
        for (n, scale), heads_at in found.items():
            rows, predicted = zip(*heads_at)
            at = {"task": task, "scores": scale, "keys": n}
            columns = {"over": "heads", "unit": "share", "at": at}
            yield mean(TOP, [row.top for row in rows], predicted=sum(predicted) / heads, **columns)
            yield mean(RIGHT, [row.right for row in rows], **columns)
            yield mean(RANKED, [row.ranked for row in rows], **columns)
            yield mean(ACCURACY, [row.accuracy for row in rows], **columns)
            yield mean(BOUND, [row.bound for row in rows], **columns | {"unit": "nats"})

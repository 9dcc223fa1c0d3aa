"""Associative memories: recall against the number of pairs, and the order in which a network stores its
memories.

Source: :cite:t:`bietti2023birth`; the formula of the recall is our own.
"""

from collections.abc import Iterator

import torch

from ....core.experiment import setting
from ....core.figure import Panel, Reading, curves, figure, reading
from ....core.sources import Source
from ..claims.memories import OPTIMISERS
from ..memory import MEMORIES, capacity, measured_recall, predicted_recall, train_memories

RECALL, MASS = "recall of a memory", "softmax mass on the right answer"
SHARE = {"ylim": (-0.03, 1.05)}
LOG = {**SHARE, "xlabel": "pairs N", "xscale": "log"}


@figure(
    "induction.memories",
    source=Source("bietti2023birth", status="own"),
    view=curves(
        "step",
        panels=(
            Panel("recall", RECALL, lines="d", predicted="formula", legend="lower left", axes=LOG, x="N"),
            *(
                Panel(f"mass, {name}", MASS, {"optimiser": name}, "memory", "", {"_": 0.5}, legend, SHARE)
                for name, legend in zip(OPTIMISERS, ("", "ends"))
            ),
        ),
        caption="Left: share of N random outer products in d dimensions that are recalled in one draw. "
        "Right: softmax mass on the right answer of the output of layer 2, its keys, and the keys of layer "
        "1. Dashed: one half.",
        size=(7.0, 2.7),
    ),
    quick={"widths": (32,), "steps": 30},
)
def memories(
    *,
    widths: tuple[int, ...] = setting((32, 64, 128), ge=4, le=1024, help="dimensions d of the embeddings"),
    steps: int = setting(160, ge=1, le=10**5, help="batches of 64 sequences"),
    seed: int = 0,
) -> Iterator[Reading]:
    """Recall of random outer products beside the formula, and the memories of the induction head over
    training, with each optimiser.
    """
    generator = torch.Generator().manual_seed(seed)
    for d in widths:
        for factor in (0.1, 0.2, 0.4, 0.7, 1.0, 1.5, 2.5, 4.0):
            N = max(2, round(factor * capacity(d)))
            columns = {"predicted": predicted_recall(N, d), "at": {"d": d, "N": N}, "n": N}
            yield reading(RECALL, measured_recall(N, d, generator), unit="share", **columns)
    measured = {*range(0, steps + 1, 2), steps}
    for name, optimiser in OPTIMISERS.items():
        generator = torch.Generator().manual_seed(seed)
        _, found = train_memories(optimiser, steps=steps, measured=measured, generator=generator)
        for step, masses in found.items():
            for memory in MEMORIES:
                at = {"optimiser": name, "memory": memory}
                yield reading(MASS, masses[memory], unit="share", at=at, step=step)

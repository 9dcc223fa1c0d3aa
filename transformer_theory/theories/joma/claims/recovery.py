"""What the recovery of latents reads before anything is learnt."""

import torch
from torch import Generator

from ....core.claims import Claim, Evidence
from ....core.sources import Source
from ....models.embedding import build
from ..hierarchy import random_hierarchy
from ..recovery import recovery
from ..stack import Stack


def _untrained(generator: Generator, *, shuffled: bool) -> Evidence:
    """Recovery of the lowest latents by the first layer of an untrained stack."""
    hierarchy = random_hierarchy(generator)
    model = build(lambda: Stack(vocabulary=100, classes=hierarchy.classes, dim=256), generator)
    assert isinstance(model, Stack)
    with torch.no_grad():
        _, inside = model.look_inside(hierarchy.sequences(30))
    order = torch.randperm(hierarchy.classes, generator=generator) if shuffled else torch.arange(hierarchy.classes)
    return Evidence(float(recovery(inside[0].hidden.amax(1), hierarchy.activity()[1][order])), 0.85, ">=")


CLAIMS = (
    Claim(
        id="joma/recovery-untrained",
        statement=r"A recovery near 1 of the lowest latents is no sign of learning: in the smaller setting of Table 1 an untrained "
        r"network, 4M = 400 units a layer, has $\operatorname{mean}_a \max_u \operatorname{corr}(h_u, a) \ge 0.85$ (the line is ours).",
        source=Source("tian2024joma", "Table 1"),
        assumptions=("C = 20 classes, 10 and 20 latents, sets of 2, M = 100, L = 30", "width 256 in the place of 1024"),
        check=lambda generator: _untrained(generator, shuffled=False),
        control=lambda generator: _untrained(generator, shuffled=True),
        control_description="shuffles the classes of the latents",
        corrects="In Table 1 a correlation near 1 is a sign that a latent is found. It is the largest of 400 units over 20 or 30 "
        "sequences, and before training it is .94 to .99 for the lowest latents at the published sizes.",
    ),
)

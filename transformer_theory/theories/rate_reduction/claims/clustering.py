"""Coding length as a measure of grouping: the subspaces that samples came from are the groups that compress them, and merging finds them.

Source: :cite:t:`ma2007segmentation`.
"""

import itertools

import torch
from torch import Generator, Tensor

from ....core.claims import Claim, Evidence
from ....core.sources import Source
from ....maths.linalg import orthonormalise
from ....metrics.coding import segmented_coding_length

SEGMENTATION = Source("ma2007segmentation")
DIM, RANKS, PER_GROUP, NOISE = 12, (2, 3, 4), 40, 0.03
EPS = NOISE * DIM**0.5  # ε² is the energy of the noise
SHARE = 0.95  # of samples in their own group; a few lie near two subspaces


def _samples(generator: Generator, *, subspaces: bool = True) -> tuple[Tensor, Tensor]:
    """Samples around random subspaces through the origin, one a group; or all around the first, whatever their group."""
    bases = [orthonormalise(torch.randn(DIM, rank, dtype=torch.float64, generator=generator)) for rank in RANKS]
    rows = [
        torch.randn(PER_GROUP, basis.shape[1], dtype=torch.float64, generator=generator) @ basis.mT
        for basis in (bases if subspaces else [bases[0]] * len(bases))
    ]
    clean = torch.cat(rows)
    noise = NOISE * torch.randn(clean.shape, dtype=torch.float64, generator=generator)
    return clean + noise, torch.arange(len(RANKS)).repeat_interleave(PER_GROUP)


def _shortest_other(generator: Generator, *, subspaces: bool) -> Evidence:
    """Bits a sample that the shortest of other groupings takes beyond the true one."""
    features, truth = _samples(generator, subspaces=subspaces)
    groups = range(len(RANKS))
    others = {"all in one": torch.zeros_like(truth), "shuffled": truth[torch.randperm(len(truth), generator=generator)]}
    for i, j in itertools.combinations(groups, 2):
        others[f"{i} and {j} united"] = torch.where(truth == j, i, truth)
    for i in groups:
        half = torch.randint(2, truth.shape, generator=generator) == 0
        others[f"{i} split"] = torch.where((truth == i) & half, len(RANKS), truth)
    own = segmented_coding_length(features, truth, eps=EPS)
    beyond = {name: float(segmented_coding_length(features, other, eps=EPS) - own) / len(truth) for name, other in others.items()}
    return Evidence(min(beyond.values()), 0.0, ">=", detail=beyond)


def _recovered(generator: Generator, *, subspaces: bool) -> Evidence:
    """Share of samples that merging puts with their own; the number of groups is not given."""
    from ..clustering import CodingLengthClustering, clustering_accuracy

    features, truth = _samples(generator, subspaces=subspaces)
    found = CodingLengthClustering(EPS).fit(features.numpy())
    share = clustering_accuracy(truth.numpy(), found.labels_)
    return Evidence(share, SHARE, ">=", detail={"groups": found.n_clusters_, "bits": float(found.lengths_[-1])})


CLAIMS = (
    Claim(
        id="rate_reduction/subspaces-compress",
        statement=r"Samples around distinct subspaces have a shorter code $L^s$ grouped by subspace than with two groups united, one "
        r"split, or labels shuffled.",
        source=SEGMENTATION,
        assumptions=("subspaces go through the origin and differ", "ε² is the energy of the noise", "many samples a subspace"),
        check=lambda generator: _shortest_other(generator, subspaces=True),
        control=lambda generator: _shortest_other(generator, subspaces=False),
        control_description="draws all groups from one subspace",
    ),
    Claim(
        id="rate_reduction/merging-finds-subspaces",
        statement=r"Merging the pair of groups that shortens $L^s$ most, from single samples until none does, puts at least 95 % of the "
        r"samples with those of their subspace, though nobody says how many there are.",
        source=SEGMENTATION,
        assumptions=("subspaces go through the origin and differ", "ε² is the energy of the noise", "many samples a subspace"),
        check=lambda generator: _recovered(generator, subspaces=True),
        control=lambda generator: _recovered(generator, subspaces=False),
        control_description="draws all groups from one subspace",
    ),
)

"""Claims about two algorithms: ReduNet, a network of steps that raise the rate reduction, and clustering by coding length.

Source: :cite:t:`chan2022redunet`, :cite:t:`ma2007segmentation`.
"""

import itertools

import numpy as np
import torch
from torch import Generator, Tensor

from ....core.claims import Claim, Evidence
from ....core.sources import Source
from ....maths.linalg import orthonormalise
from ....metrics.coding import segmented_coding_length, unit_norm
from ..problem import CODING_LENGTH, gaussian_toy
from ..redunet import construct, construct_shift_invariant, guaranteed_step

REDUNET_EPS = 0.1**0.5
ROUNDING = 1e-12
DIM, RANKS, PER_GROUP, NOISE = 12, (2, 3, 4), 40, 0.03  # settings of the samples around subspaces
SEGMENTATION_EPS = NOISE * DIM**0.5  # ε² is the energy of the noise
RECOVERED_SHARE = 0.95  # smallest share of samples in the group of their subspace; a few lie near two subspaces


def _instances(generator: Generator) -> dict[str, tuple[Tensor, Tensor]]:
    """Draws the toy of the paper, and random directions with random labels."""
    directions = unit_norm(torch.randn(60, 8, dtype=torch.float64, generator=generator))
    return {
        "toy in the plane": gaussian_toy(2, 100, generator=generator),
        "toy in space": gaussian_toy(3, 50, generator=generator),
        "random directions and labels": (directions, torch.randperm(60, generator=generator) % 3),
    }


def _smallest_rise(generator: Generator, *, times: float) -> Evidence:
    """Measures the smallest change of ΔR by a layer for steps of ``times`` the guaranteed length, in units of the largest ΔR."""
    rises = {}
    for name, (features, labels) in _instances(generator).items():
        step = times * guaranteed_step(*features.shape, eps=REDUNET_EPS)
        reductions = construct(features, labels, layers=30, eps=REDUNET_EPS, step=step).reductions
        rises[name] = float(reductions.diff().min() / reductions.max())
    return Evidence(min(rises.values()), -ROUNDING, ">=", detail=rises)


def _shift_gap(generator: Generator, *, vector: bool) -> Evidence:
    """Measures the largest difference between the features of shifted images and the shifted features of the images (norms 1)."""
    samples = torch.randn(12, 2, 4, 5, dtype=torch.float64, generator=generator)
    unseen = torch.randn(6, 2, 4, 5, dtype=torch.float64, generator=generator)
    labels, settings = torch.arange(12) % 3, {"layers": 5, "eps": REDUNET_EPS, "step": 0.2, "sharpness": 10.0}
    if vector:
        plain = construct(samples.flatten(1), labels, **settings)
        moved = [plain.transform(x.flatten(1)).view_as(x) for x in (unseen, unseen.roll((1, 2), (2, 3)))]
    else:
        net = construct_shift_invariant(samples, labels, **settings)
        moved = [net.transform(x) for x in (unseen, unseen.roll((1, 2), (2, 3)))]
    return Evidence(float((moved[0].roll((1, 2), (2, 3)) - moved[1]).abs().max()), ROUNDING, "<=")


def _samples(generator: Generator, *, subspaces: bool = True) -> tuple[Tensor, Tensor]:
    """Draws samples and their groups: around one random subspace through the origin per group, or around one for all groups."""
    bases = [orthonormalise(torch.randn(DIM, rank, dtype=torch.float64, generator=generator)) for rank in RANKS]
    rows = [
        torch.randn(PER_GROUP, basis.shape[1], dtype=torch.float64, generator=generator) @ basis.mT
        for basis in (bases if subspaces else [bases[0]] * len(bases))
    ]
    clean = torch.cat(rows)
    noise = NOISE * torch.randn(clean.shape, dtype=torch.float64, generator=generator)
    return clean + noise, torch.arange(len(RANKS)).repeat_interleave(PER_GROUP)


def _shortest_other(generator: Generator, *, subspaces: bool) -> Evidence:
    """Measures the excess bits per sample of the shortest wrong grouping over the true grouping."""
    features, truth = _samples(generator, subspaces=subspaces)
    groups = range(len(RANKS))
    groupings = {"all in one": torch.zeros_like(truth), "shuffled": truth[torch.randperm(len(truth), generator=generator)]}
    for i, j in itertools.combinations(groups, 2):
        groupings[f"{i} and {j} united"] = torch.where(truth == j, i, truth)
    for i in groups:
        half = torch.randint(2, truth.shape, generator=generator) == 0
        groupings[f"{i} split"] = torch.where((truth == i) & half, len(RANKS), truth)
    true_length = segmented_coding_length(features, truth, eps=SEGMENTATION_EPS)
    excess = {
        name: float(segmented_coding_length(features, grouping, eps=SEGMENTATION_EPS) - true_length) / len(truth)
        for name, grouping in groupings.items()
    }
    return Evidence(min(excess.values()), 0.0, ">=", detail=excess)


def _recovered(generator: Generator, *, subspaces: bool) -> Evidence:
    """Measures the share of samples that merging puts into the group of their subspace, without knowing the number of groups."""
    from ..clustering import CodingLengthClustering  # imports scikit-learn
    from ..evaluation import clustering_accuracy

    features, truth = _samples(generator, subspaces=subspaces)
    clustering = CodingLengthClustering(SEGMENTATION_EPS).fit(features.numpy())
    share = clustering_accuracy(truth.numpy(), clustering.labels_)
    return Evidence(share, RECOVERED_SHARE, ">=", detail={"groups": clustering.n_clusters_, "bits": float(clustering.lengths_[-1])})


def _merging(generator: Generator, *, grouped: bool) -> Evidence:
    """Measures the largest rise of L^s by a merge, and the error of the recorded lengths, in bits per sample."""
    from ..clustering import CodingLengthClustering  # imports scikit-learn

    features, truth = _samples(generator)
    lengths, eps = {}, SEGMENTATION_EPS
    clustering = CodingLengthClustering(eps).fit(features.numpy())
    groups = torch.from_numpy(clustering.labels_) if grouped else truth[torch.randperm(len(truth), generator=generator)]
    ends = {"one sample per group": torch.arange(len(truth)), "the groups found": groups}
    for (name, labels), recorded in zip(ends.items(), (clustering.lengths_[0], clustering.lengths_[-1])):
        lengths[f"error of the recorded length, {name}"] = abs(float(segmented_coding_length(features, labels, eps=eps)) - float(recorded))
    lengths["largest rise by a merge"] = float(np.diff(clustering.lengths_).max())
    lengths["excess over the true groups"] = float(clustering.lengths_[-1] - segmented_coding_length(features, truth, eps=eps)) - len(truth)
    bits = {name: value / len(truth) for name, value in lengths.items()}
    return Evidence(max(bits.values()), 1e-9, "<=", detail=bits)


CLAIMS = (
    Claim(
        id="rate_reduction/redunet-ascent",
        statement=r"No layer of ReduNet, $x^+ \propto x + \eta\,(xE - \sum_j \frac{n_j}{n} \pi_j\, xC_j)$ on the unit sphere, lowers "
        r"$\Delta R$ of its training features if $0 < \eta \le \frac{8 n \epsilon^2}{9 d}$.",
        measures="smallest change of the rate reduction by a layer, relative to the largest",
        source=Source("chan2022redunet", "", "not found"),
        assumptions=(
            "unit norm",
            "the step is at most 8 n ε² / (9 d), a bound derived in redunet.construction; it is 2 / (9α/4), with the bound 9α/4 on the "
            "Hessian of R of Yu et al. (2023), Lemma 6",
            "training samples use their labels",
        ),
        check=lambda generator: _smallest_rise(generator, times=1.0),
        control=lambda generator: _smallest_rise(generator, times=10.0),
        control_description="takes steps ten times as long",
        corrects=r"A rise at every layer is a property of short steps. The bound on $\eta$ is derived here; the usual $\eta = 0.5$ is not "
        "always below it.",
    ),
    Claim(
        id="rate_reduction/shift-equivariance",
        statement=r"ReduNet $f$ built from all cyclic shifts of the samples commutes with each cyclic shift $T$: $f(Tx) = T f(x)$.",
        measures="largest difference between features of shifted images and shifted features",
        source=Source("chan2022redunet", "", "not found"),
        assumptions=("shifts are cyclic: the grid is a ring or a torus",),
        check=lambda generator: _shift_gap(generator, vector=False),
        control=lambda generator: _shift_gap(generator, vector=True),
        control_description="builds the network from the samples alone, without their shifts",
    ),
    Claim(
        id="rate_reduction/subspaces-compress",
        statement=r"Samples around distinct subspaces have a shorter code $L^s$ grouped by subspace than with two groups united, one "
        r"split, or labels shuffled.",
        measures="smallest excess of another grouping's coding length, bits per sample",
        source=Source("ma2007segmentation", "", "not found"),
        assumptions=("subspaces go through the origin and differ", "ε² is the energy of the noise", "many samples per subspace"),
        check=lambda generator: _shortest_other(generator, subspaces=True),
        control=lambda generator: _shortest_other(generator, subspaces=False),
        control_description="draws all groups from one subspace",
    ),
    Claim(
        id="rate_reduction/merging-finds-subspaces",
        statement=r"Merging the pair of groups that shortens $L^s$ most, from single samples until none does, puts at least 95 % of the "
        r"samples into the group of their subspace; the number of groups is not given.",
        measures="share of samples in the group of their subspace",
        source=Source("ma2007segmentation", "", "not found"),
        assumptions=("subspaces go through the origin and differ", "ε² is the energy of the noise", "many samples per subspace"),
        check=lambda generator: _recovered(generator, subspaces=True),
        control=lambda generator: _recovered(generator, subspaces=False),
        control_description="draws all groups from one subspace",
    ),
    Claim(
        id="rate_reduction/merging-shortens",
        statement=r"Merging groups of samples shortens the code at every merge, from $L^s$ of single samples to $L^s$ of the groups found, "
        "which is at most one bit per sample longer than the code by the true subspaces.",
        measures="largest rise of the coding length, or error of the recorded lengths, bits per sample",
        source=CODING_LENGTH,
        assumptions=("subspaces go through the origin and differ", "ε² is the energy of the noise", "many samples per subspace"),
        check=lambda generator: _merging(generator, grouped=True),
        control=lambda generator: _merging(generator, grouped=False),
        control_description="compares with the length of shuffled groups",
    ),
)

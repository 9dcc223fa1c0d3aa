"""Claims about two algorithms: ReduNet, a network of steps that raise the rate reduction, and clustering by
coding length.

Source: :cite:t:`chan2022redunet`, :cite:t:`ma2007segmentation`.
"""

import itertools

import numpy as np
import torch
from torch import Generator, Tensor

from ....core.claims import NEAR, Measured, but, claim
from ....core.sources import Source
from ....maths.linalg import orthonormalise
from ....metrics.coding import segmented_coding_length, unit_norm
from ..problem import gaussian_toy
from ..redunet import construct, construct_shift_invariant, guaranteed_step

REDUNET_EPS = 0.1**0.5
ROUNDING = 1e-12
DIM, RANKS, PER_GROUP, NOISE = 12, (2, 3, 4), 40, 0.03  # settings of the samples around subspaces
SEGMENTATION_EPS = NOISE * DIM**0.5  # ε² is the energy of the noise
# smallest share of samples in the group of their subspace; a few lie near two subspaces
RECOVERED_SHARE = 0.95
AROUND_SUBSPACES = (
    f"{PER_GROUP} samples around each of three subspaces of dimensions 2, 3, 4 in "
    f"$\\mathbb{{R}}^{{{DIM}}}$, noise {NOISE:g}",
    "the subspaces go through the origin and are drawn",
    "ε² is the energy of the noise",
)


def _instances(generator: Generator) -> dict[str, tuple[Tensor, Tensor]]:
    """Draws the toy of the paper, and random directions with random labels."""
    directions = unit_norm(torch.randn(60, 8, dtype=torch.float64, generator=generator))
    return {
        "toy in the plane": gaussian_toy(2, 100, generator=generator),
        "toy in space": gaussian_toy(3, 50, generator=generator),
        "random directions and labels": (directions, torch.randperm(60, generator=generator) % 3),
    }


@claim(
    "rate_reduction/redunet-ascent",
    measures="smallest change of the rate reduction by a layer, in units of the largest rate reduction",
    at_least=-ROUNDING,
    source=Source("chan2022redunet", "", "own"),
    assumptions=(
        "features have norm 1",
        r"the step is at most $8 n \epsilon^2/(9 d)$, derived here from $\nabla^2 \Delta R \succeq "
        r"-\frac98 \alpha$",
        "training samples move by their labels; in the source they, too, move by estimated memberships",
    ),
    control=but("takes steps ten times as long", times=10.0),
)
def redunet_ascent(generator: Generator, *, times: float = 1.0) -> Measured:
    r"""No layer of ReduNet, $x^+ \propto x + \eta\,(xE - \sum_j \frac{n_j}{n} \pi_j\, xC_j)$ on the unit
    sphere, lowers $\Delta R$ of its training features if $0 < \eta \le \frac{8 n \epsilon^2}{9 d}$.
    """
    rises = {}
    for name, (features, labels) in _instances(generator).items():
        step = times * guaranteed_step(*features.shape, eps=REDUNET_EPS)
        reductions = construct(features, labels, layers=30, eps=REDUNET_EPS, step=step).reductions
        rises[name] = float(reductions.diff().min() / reductions.max())
    return Measured(min(rises.values()), rises)


@claim(
    "rate_reduction/shift-equivariance",
    measures="largest difference between features of shifted images and shifted features, over all "
    "shifts; features have norm 1",
    at_most=ROUNDING,
    source=Source("chan2022redunet", status="second-hand"),
    assumptions=("shifts are cyclic: the grid is a ring or a torus",),
    control=but("builds the network from the samples alone, without their shifts", vector=True),
)
def shift_equivariance(generator: Generator, *, vector: bool = False) -> Measured:
    r"""ReduNet $f$ built from all cyclic shifts of the samples commutes with each cyclic shift $\tau$:
    $f(\tau x) = \tau f(x)$.
    """
    samples = torch.randn(12, 2, 4, 5, dtype=torch.float64, generator=generator)
    unseen = torch.randn(6, 2, 4, 5, dtype=torch.float64, generator=generator)
    shifts = list(itertools.product(*map(range, unseen.shape[2:])))
    labels, settings = torch.arange(12) % 3, {"layers": 5, "eps": REDUNET_EPS, "step": 0.2, "sharpness": 10.0}
    if vector:
        plain = construct(samples.flatten(1), labels, **settings)
        features = [
            plain.transform(x.flatten(1)).view_as(x) for x in (unseen.roll(shift, (2, 3)) for shift in shifts)
        ]
    else:
        net = construct_shift_invariant(samples, labels, **settings)
        features = [net.transform(unseen.roll(shift, (2, 3))) for shift in shifts]
    # The first shift is by (0, 0).
    gaps = [
        float((features[0].roll(shift, (2, 3)) - moved).abs().max()) for shift, moved in zip(shifts, features)
    ]
    return Measured(max(gaps), {"shifts": len(gaps)})


def _samples(generator: Generator, *, subspaces: bool = True) -> tuple[Tensor, Tensor]:
    """Draws samples and their groups: around one random subspace through the origin per group, or around one
    for all groups.
    """
    bases = [
        orthonormalise(torch.randn(DIM, rank, dtype=torch.float64, generator=generator)) for rank in RANKS
    ]
    rows = [
        torch.randn(PER_GROUP, basis.shape[1], dtype=torch.float64, generator=generator) @ basis.mT
        for basis in (bases if subspaces else [bases[0]] * len(bases))
    ]
    clean = torch.cat(rows)
    noise = NOISE * torch.randn(clean.shape, dtype=torch.float64, generator=generator)
    return clean + noise, torch.arange(len(RANKS)).repeat_interleave(PER_GROUP)


@claim(
    "rate_reduction/subspaces-compress",
    measures="smallest excess of another grouping's coding length, bits per sample",
    at_least=0.0,
    source=Source("ma2007segmentation", status="second-hand"),
    assumptions=AROUND_SUBSPACES,
    control=but("draws all groups from one subspace", subspaces=False),
)
def subspaces_compress(generator: Generator, *, subspaces: bool = True) -> Measured:
    """Samples around distinct subspaces have a shorter code $L^s$ grouped by subspace than all in one group,
    with two groups united, with one split, or with labels shuffled.
    """
    features, truth = _samples(generator, subspaces=subspaces)
    groups = range(len(RANKS))
    groupings = {
        "all in one": torch.zeros_like(truth),
        "shuffled": truth[torch.randperm(len(truth), generator=generator)],
    }
    for i, j in itertools.combinations(groups, 2):
        groupings[f"{i} and {j} united"] = torch.where(truth == j, i, truth)
    for i in groups:
        half = torch.randint(2, truth.shape, generator=generator) == 0
        groupings[f"{i} split"] = torch.where((truth == i) & half, len(RANKS), truth)
    true_length = segmented_coding_length(features, truth, eps=SEGMENTATION_EPS)
    excess = {
        name: float(segmented_coding_length(features, grouping, eps=SEGMENTATION_EPS) - true_length)
        / len(truth)
        for name, grouping in groupings.items()
    }
    return Measured(min(excess.values()), excess)


@claim(
    "rate_reduction/merging-finds-subspaces",
    measures="share of samples in the group of their subspace",
    at_least=RECOVERED_SHARE,
    margin=NEAR,
    source=Source("ma2007segmentation", status="second-hand"),
    assumptions=AROUND_SUBSPACES,
    control=but("draws all groups from one subspace", subspaces=False),
)
def merging_finds_subspaces(generator: Generator, *, subspaces: bool = True) -> Measured:
    """Merging the pair of groups that shortens $L^s$ most, from single samples until none does, finds the
    subspaces: it puts at least 95 % of the samples (a threshold chosen here) into the group of their
    subspace. The number of groups is not given.
    """
    from ..clustering import CodingLengthClustering  # imports scikit-learn
    from ..evaluation import clustering_accuracy

    features, truth = _samples(generator, subspaces=subspaces)
    clustering = CodingLengthClustering(SEGMENTATION_EPS).fit(features.numpy())
    share = clustering_accuracy(truth.numpy(), clustering.labels_)
    return Measured(share, {"groups": clustering.n_clusters_, "bits": float(clustering.lengths_[-1])})


@claim(
    "rate_reduction/merging-shortens",
    measures="largest of: rise of the coding length by a merge; error of the recorded lengths; excess "
    "over the code by the true subspaces; bits per sample",
    at_most=1e-9,
    source=Source("ma2007segmentation", "", "own"),
    assumptions=AROUND_SUBSPACES,
    control=but("takes a hundredth of ε, far below the noise", eps=SEGMENTATION_EPS / 100),
)
def merging_shortens(generator: Generator, *, eps: float = SEGMENTATION_EPS) -> Measured:
    """Merging the pair of groups that shortens $L^s$ most, until none does, shortens the code at every merge,
    from $L^s$ of single samples to $L^s$ of the groups found. In every instance tried the latter is no longer
    than the code by the true subspaces.
    """
    from ..clustering import CodingLengthClustering  # imports scikit-learn

    features, truth = _samples(generator)
    lengths, clustering = {}, CodingLengthClustering(eps).fit(features.numpy())
    ends = {
        "one sample per group": torch.arange(len(truth)),
        "the groups found": torch.from_numpy(clustering.labels_),
    }
    for (name, labels), recorded in zip(ends.items(), (clustering.lengths_[0], clustering.lengths_[-1])):
        lengths[f"error of the recorded length, {name}"] = abs(
            float(segmented_coding_length(features, labels, eps=eps)) - float(recorded)
        )
    lengths["largest rise by a merge"] = float(np.diff(clustering.lengths_).max())
    lengths["excess over the true groups"] = float(
        clustering.lengths_[-1] - segmented_coding_length(features, truth, eps=eps)
    )
    bits = {name: value / len(truth) for name, value in lengths.items()}
    return Measured(max(bits.values()), bits)


CLAIMS = (redunet_ascent, shift_equivariance, subspaces_compress, merging_finds_subspaces, merging_shortens)

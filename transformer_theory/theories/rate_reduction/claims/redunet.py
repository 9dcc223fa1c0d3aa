"""ReduNet: every layer built from data raises the rate reduction, and on a cyclic grid commutes with shifts."""

import torch
from torch import Generator, Tensor

from ....core.claims import Claim, Evidence
from ....core.sources import Source
from ....metrics.coding import unit_norm
from ..problem import gaussian_toy
from ..redunet import construct, construct_shift_invariant, guaranteed_step

REDUNET = Source("chan2022redunet")
EPS = 0.1**0.5
ROUNDING = 1e-12


def _instances(generator: Generator) -> dict[str, tuple[Tensor, Tensor]]:
    """The toy of the paper, and features of random directions with random labels, which have no classes at all."""
    directions = unit_norm(torch.randn(60, 8, dtype=torch.float64, generator=generator))
    return {
        "toy in the plane": gaussian_toy(2, 100, generator=generator),
        "toy in space": gaussian_toy(3, 50, generator=generator),
        "random directions and labels": (directions, torch.randperm(60, generator=generator) % 3),
    }


def _smallest_rise(generator: Generator, *, times: float) -> Evidence:
    """The smallest change of ΔR by a layer when steps are ``times`` the guaranteed length, in units of the largest ΔR seen."""
    rises = {}
    for name, (features, labels) in _instances(generator).items():
        step = times * guaranteed_step(*features.shape, eps=EPS)
        reductions = construct(features, labels, layers=30, eps=EPS, step=step).reductions
        rises[name] = float(reductions.diff().min() / reductions.max())
    return Evidence(min(rises.values()), -ROUNDING, ">=", detail=rises)


def _shift_gap(generator: Generator, *, vector: bool) -> Evidence:
    """How far the features of shifted images are from the shifted features of the images; their norms are 1."""
    samples = torch.randn(12, 2, 4, 5, dtype=torch.float64, generator=generator)
    unseen = torch.randn(6, 2, 4, 5, dtype=torch.float64, generator=generator)
    labels, settings = torch.arange(12) % 3, {"layers": 5, "eps": EPS, "step": 0.2, "sharpness": 10.0}
    if vector:
        plain = construct(samples.flatten(1), labels, **settings)
        moved = [plain.transform(x.flatten(1)).view_as(x) for x in (unseen, unseen.roll((1, 2), (2, 3)))]
    else:
        net = construct_shift_invariant(samples, labels, **settings)
        moved = [net.transform(x) for x in (unseen, unseen.roll((1, 2), (2, 3)))]
    return Evidence(float((moved[0].roll((1, 2), (2, 3)) - moved[1]).abs().max()), ROUNDING, "<=")


CLAIMS = (
    Claim(
        id="rate_reduction/redunet-ascent",
        statement=r"No layer of ReduNet, $x^+ \propto x + \eta\,(xE - \sum_j \frac{n_j}{n} \pi_j\, xC_j)$ on the unit sphere, lowers "
        r"$\Delta R$ of its training features if $0 < \eta \le \frac{8 n \epsilon^2}{9 d}$.",
        source=REDUNET,
        assumptions=(
            "unit norm",
            "the step is at most 8 n ε² / (9 d), a bound derived in redunet.step",
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
        source=REDUNET,
        assumptions=("shifts are cyclic: the grid is a ring or a torus",),
        check=lambda generator: _shift_gap(generator, vector=False),
        control=lambda generator: _shift_gap(generator, vector=True),
        control_description="builds the network from the samples alone, without their shifts",
    ),
)

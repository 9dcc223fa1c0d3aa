"""Several units: the stable rank of the lower layer falls and comes back."""

import torch
from torch import Generator

from ....core.claims import Claim, Evidence
from ....core.sources import Source
from ..lower_layer import gaussian_points, linear_layer, nonlinear_layer, rank_bounce


def _rebound(generator: Generator, *, linear: bool) -> Evidence:
    """The smaller of fall and return of the stable rank, as a share of the rank at the start."""
    points = gaussian_points(generator)
    if linear:
        layers = linear_layer(points, torch.logspace(0, -12, 100, dtype=torch.float64)[1:])
    else:
        layers = nonlinear_layer(points, torch.logspace(-7, 3, 200, dtype=torch.float64))
    found = rank_bounce(points, layers)
    share = min(found.drop, found.rebound) / found.start
    return Evidence(share, 0.05, ">=", detail={"start": found.start, "least": found.least, "end": found.end})


CLAIMS = (
    Claim(
        id="joma/stable-rank-rebound",
        statement=r"Nonlinear units that share attention, $\dot v_{kl} = (\mu_{kl} - v_{kl})\, e^{\sum_j v_{jl}^2/2}$, learn "
        r"$V(t) = M \operatorname{diag}(1 - \delta(t))$ from zero, M the matrix of $\mu$: the stable rank "
        r"$\|V\|_F^2 / \|V\|_2^2$ falls while the longest columns alone are learnt, and comes back. Here: the smaller of fall and return, "
        r"as a share of the start; the line is ours.",
        source=Source("tian2024joma"),
        assumptions=("twelve units, twenty tokens, independent normal critical points", "the lower layer moves by the given equation"),
        check=lambda generator: _rebound(generator, linear=False),
        control=lambda generator: _rebound(generator, linear=True),
        control_description="takes linear units, of which one column leaves all others behind for good",
    ),
)

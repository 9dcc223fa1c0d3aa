"""One nonlinear unit under uniform attention: its motion on a mixture of isotropic components, against a sample mean."""

import torch
from torch import Generator

from ....core.claims import Claim, Evidence
from ....core.sources import Source
from ..dynamics import relu, tanh
from ..mixture import Mixture, relu_averages, tanh_averages

DIM, COMPONENTS, DRAWS, SPREAD = 6, 3, 40_000, 0.8
UNITS = ((relu, relu_averages), (tanh, tanh_averages))


def _sampled(generator: Generator, *, flattened: float) -> Evidence:
    """Largest distance of the formula from the mean of g phi'(v x) x over draws, in sd; one direction ``flattened`` by a factor."""
    centres = torch.randn(COMPONENTS, DIM, generator=generator, dtype=torch.float64)
    pulls = torch.randn(COMPONENTS, generator=generator, dtype=torch.float64)
    v = torch.randn(DIM, generator=generator, dtype=torch.float64)
    noise = torch.randn(COMPONENTS, DRAWS, DIM, generator=generator, dtype=torch.float64)
    along = v / v.norm()
    noise = noise - (1 - flattened) * (noise @ along)[..., None] * along
    x, worst = centres[:, None] + SPREAD * noise, {}
    for activation, averages in UNITS:
        moves = pulls[:, None, None] * activation(x @ v)[1][..., None] * x
        sd = (moves.var(1) / DRAWS).sum(0).sqrt().clamp(min=1e-9)  # where no draw makes the unit active it would be 0
        gap = Mixture(centres, pulls, SPREAD, averages).velocity(v) - moves.mean(1).sum(0)
        worst[activation.__name__] = float((gap / sd).abs().max())
    return Evidence(max(worst.values()), 5.0, "<=", detail=worst)


CLAIMS = (
    Claim(
        id="joma/isotropic-mixture",
        statement=r"Under uniform attention, x from a mixture of isotropic components around $\bar x_j$ and a gradient that is constant in "
        r"each, $E[g \phi'(v^\top x) x]$ lies in the span of the centres and v: $\sum_j a_j E[\phi'(r_j + \sigma \|v\| \xi)] \bar x_j + "
        r"\sigma \sum_j a_j E[\phi'(r_j + \sigma \|v\| \xi) \xi]\, v / \|v\|$. Here: the largest distance from a sample mean, "
        r"in standard deviations.",
        source=Source("tian2024joma"),
        assumptions=("components are isotropic (here Gaussian)", "the gradient is constant within a component"),
        check=lambda generator: _sampled(generator, flattened=1.0),
        control=lambda generator: _sampled(generator, flattened=0.5),
        control_description="takes components half as wide along v as across",
    ),
)

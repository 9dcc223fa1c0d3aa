"""ReduNet: every layer built from data raises the rate reduction."""

from torch import Generator

from ....citations import Source
from ....claims import Claim, Evidence
from ..problem import gaussian_toy
from ..redunet import construct

REDUNET = Source("chan2022redunet")


def _smallest_rise(generator: Generator, step: float) -> Evidence:
    features, labels = gaussian_toy(2, 100, generator=generator)
    reductions = construct(features, labels, layers=100, eps=0.1**0.5, step=step).reductions
    return Evidence(float(reductions.diff().min()), 0.0, ">=", detail={"first": float(reductions[0]), "last": float(reductions[-1])})


CLAIMS = (
    Claim(
        id="rate_reduction/redunet-ascent",
        statement=r"Each layer of ReduNet, $x^+ \propto x + \eta\,(xE - \sum_j \frac{n_j}{n} \pi_j\, xC_j)$ on the unit sphere, raises "
        r"$\Delta R$ of the training features (for small $\eta > 0$).",
        source=REDUNET,
        assumptions=("unit norm", "a small step: η <= 0.5 here, an observation and not a theorem", "training samples use their labels"),
        check=lambda generator: _smallest_rise(generator, 0.5),
        control=lambda generator: _smallest_rise(generator, -0.5),
        control_says="reverses the sign of the step",
    ),
)

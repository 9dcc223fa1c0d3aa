"""What training does to compression through the layers. An observation of the papers, in a network of a second's training: no theorem."""

import torch
from torch import nn

from ....citations import Source
from ....claims import Claim, Evidence
from ....supervised import accuracy
from ..layerwise import AFTER, curves
from ..trained import Split, crate, digit_split, fit

DEPTH, STEPS, RATE = 3, 100, 7e-3
READ = 64  # sequences on which rates are read


def _fall(generator: torch.Generator, *, steps: int) -> Evidence:
    """R^c of the last layer over that of the first."""
    seed = int(torch.randint(2**31, (), generator=generator))
    data = digit_split(seed=0)
    model = crate(data.train, seed=seed, depth=DEPTH)
    if steps:
        fit(model, data, steps=steps, learning_rate=RATE, seed=seed)
    detail = {"accuracy on the validation part": accuracy(model, data.validation)}
    return Evidence(_ratio(model, data), 0.9, "<=", detail=detail)


def _ratio(model: nn.Module, data: Split) -> float:
    rows = curves(model, data.test.tokens[:READ])
    rates = [row["value"] or 0.0 for row in rows if row["quantity"] == AFTER]
    return rates[-1] / rates[0]


CLAIMS = (
    Claim(
        id="crate/compression-is-learned",
        statement=r"In a trained network (released form, three layers, handwritten digits) $R^c(Z^{\ell+1/2}; U^\ell_{[K]})$ falls "
        r"from the first layer to the last by at least a tenth.",
        source=Source("yu2023white"),
        assumptions=(
            "an empirical observation: nothing in the theory says what training makes of free output matrices",
            "a learning rate of 0.007; single networks differ: on seeds 0 to 19 one fell by a little less than a tenth",
        ),
        check=lambda generator: _fall(generator, steps=STEPS),
        control=lambda generator: _fall(generator, steps=0),
        control_says="random weights: the network is not trained",
    ),
)

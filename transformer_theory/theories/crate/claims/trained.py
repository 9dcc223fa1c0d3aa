"""What training does to compression through the layers. An observation of the papers, in networks of a second's training: no theorem.

That training lowers the rate does not make the fall a sign of what was learned: on shuffled labels it is larger (docs/theories/crate.md).
"""

from collections.abc import Callable

import torch
from torch import nn

from ....core.claims import Claim, Evidence
from ....core.sources import Source
from ....training.supervised import accuracy
from ..layer_curves import AFTER, curves
from ..trained import Split, crate, digit_split, fit

NETWORKS, DEPTH = 3, 3  # single networks differ: their mean is what is held against the bound
STEPS, BATCH, RATE = 100, 32, 7e-3
READ = 64  # sequences on which rates are read


def _untrained(data: Split, seed: int) -> nn.Module:
    return crate(data.train, seed=seed, depth=DEPTH)


def _trained(data: Split, seed: int) -> nn.Module:
    return fit(_untrained(data, seed), data, steps=STEPS, learning_rate=RATE, batch_size=BATCH, seed=seed).model


def _fall(generator: torch.Generator, network: Callable[[Split, int], nn.Module]) -> Evidence:
    """R^c of the last layer over that of the first, mean over networks."""
    data = digit_split(seed=0)
    models = [network(data, seed) for seed in torch.randint(2**31, (NETWORKS,), generator=generator).tolist()]
    ratios = [_ratio(model, data) for model in models]
    correct = [accuracy(model, data.validation) for model in models]
    detail = {"largest ratio of a network": max(ratios), "mean accuracy on the validation part": sum(correct) / NETWORKS}
    return Evidence(sum(ratios) / NETWORKS, 0.9, "<=", detail=detail)


def _ratio(model: nn.Module, data: Split) -> float:
    rows = curves(model, data.test.tokens[:READ])
    rates = [row["value"] or 0.0 for row in rows if row["quantity"] == AFTER]
    return rates[-1] / rates[0]


CLAIMS = (
    Claim(
        id="crate/training-compresses",
        statement=r"Training makes $R^c(Z^{\ell+1/2}; U^\ell_{[K]})$ fall with depth: in networks of the released form with three layers, "
        r"after 100 steps on handwritten digits, that of the last layer over that of the first is at most 0.9, mean over three networks.",
        source=Source("yu2023white"),
        assumptions=(
            "an empirical observation: nothing in the theory says what training makes of free output matrices",
            "a learning rate of 0.007, batches of 32; at smaller rates it falls less, though more is learned",
            "of training, not of what is learned: on shuffled labels it falls further",
        ),
        check=lambda generator: _fall(generator, _trained),
        control=lambda generator: _fall(generator, _untrained),
        control_description="random weights: the networks are not trained",
        corrects="The released curve is labelled as the rate after attention and measured on what attention reads; here it is read after "
        "attention.",
    ),
)

"""The effect of training on compression through the layers: an observation of the papers, not a theorem,
checked in small networks.

The fall of the rate does not measure what was learnt: it is larger with shuffled labels
(docs/theories/crate.md).
"""

from collections.abc import Callable

import torch
from torch import nn

from ....core.claims import Measured, but, claim
from ....core.sources import Source
from ..in_networks import AFTER
from ..layer_curves import curves
from ..networks import DataParts, accuracy, crate, digit_parts, fit

NETWORKS, DEPTH = 3, 3  # networks vary, so the mean over three is compared with the threshold
STEPS, BATCH, LEARNING_RATE = 100, 32, 7e-3
MAX_SEQUENCES = 64  # test sequences on which rates are measured


def _untrained(data: DataParts, seed: int) -> nn.Module:
    return crate(data.train, seed=seed, depth=DEPTH)


def _trained(data: DataParts, seed: int) -> nn.Module:
    return fit(
        _untrained(data, seed), data, steps=STEPS, learning_rate=LEARNING_RATE, batch_size=BATCH, seed=seed
    ).model


def _ratio(model: nn.Module, data: DataParts) -> float:
    table = curves(model, data.test.tokens[:MAX_SEQUENCES])
    rates = [value or 0.0 for value in table.select(quantity=AFTER).column("value")]
    return rates[-1] / rates[0]


@claim(
    "crate/training-compresses",
    measures="R^c after attention of the last layer over the first, mean over three networks",
    at_most=0.9,
    margin="five trainings; a layer that does not compress has the ratio 1, a tenth above the threshold",
    source=Source("yu2023white", "Section 3.1, Figs. 3, 4; Fig. 5, App. B.2.1", "confirmed"),
    assumptions=(
        "an empirical observation, in the paper of networks of 12 layers on ImageNet, in most cases; "
        "the theory does not predict free output matrices after training",
        "a learning rate of 0.007, batches of 32",
    ),
    control=but("random weights: the networks are not trained", network=_untrained),
    corrects="The released curve is labelled as the rate after attention and measured on its input; "
    "here it is measured after attention.",
    corrected=Source("yu2023white", "released code, vis_utils/crate_hook.py, for Figs. 3 and 4", "confirmed"),
    cost="training",
)
def training_compresses(
    generator: torch.Generator, *, network: Callable[[DataParts, int], nn.Module] = _trained
) -> Measured:
    r"""Training makes $R^c(Z^{\ell+1/2}; U^\ell_{[K]})$ fall with depth: in networks of the released form
    with three layers, after 100 steps on handwritten digits, that of the last layer over that of the first is
    at most 0.9, mean over three networks.
    """
    data = digit_parts(seed=0)
    models = [network(data, seed) for seed in torch.randint(2**31, (NETWORKS,), generator=generator).tolist()]
    ratios = [_ratio(model, data) for model in models]
    accuracies = [accuracy(model, data.validation) for model in models]
    detail = {
        "largest ratio of a network": max(ratios),
        "mean accuracy on the validation part": sum(accuracies) / NETWORKS,
    }
    return Measured(sum(ratios) / NETWORKS, detail)


CLAIMS = (training_compresses,)

"""Claims about networks that learn: induction heads need two layers, and chains are learnt strategy by
strategy.
"""

from functools import lru_cache

import torch
from torch import Generator

from ....core.claims import BOUND, NEAR, Measured, but, claim
from ....core.sources import Source
from ..learning import ACCURACY, chain_curves, formation, passed
from ..scores import PREFIX

OLSSON, EDELMAN = "olsson2022incontext", "edelman2024evolution"
STEPS, EVERY = 400, 50
GOOD_ACCURACY, GOOD_PREFIX = 0.99, 0.95
REPEATED = (
    "32 ids, repeated patterns of 6 to 16 ids, attention and LayerNorm, width 64, two heads per layer, Adam"
)
CHAINS = "3 states, chains of 64, attention only, width 32, one head per layer, 600 batches of 64, Adam"


@lru_cache(maxsize=64)
def _formed(layers: int, seed: int) -> Measured:
    values = formation(layers, torch.Generator().manual_seed(seed), steps=STEPS, every=EVERY)
    # Smaller of the two numbers, each relative to its target; the best measured step counts.
    ratios = {
        step: min(each[ACCURACY] / GOOD_ACCURACY, each[PREFIX] / GOOD_PREFIX) for step, each in values.items()
    }
    step = max(ratios, key=lambda number: ratios[number])
    detail = {"accuracy": values[step][ACCURACY], PREFIX: values[step][PREFIX], "step": step}
    return Measured(ratios[step], detail)


@claim(
    "induction/formation",
    measures="smaller of accuracy / .99 and prefix matching / .95, at the best of the steps measured",
    at_least=1.0,
    margin=BOUND,
    source=Source(OLSSON, "Argument 1", "own"),
    assumptions=(REPEATED, "measured every 50 steps"),
    control=but("one layer", layers=1),
    cost="training",
)
def heads_form(generator: Generator, *, layers: int = 2) -> Measured:
    r"""Two layers form an induction head: copy accuracy $\ge .99$ and prefix matching $\ge .95$ within 400
    steps. The thresholds are ours.
    """
    return _formed(layers, generator.initial_seed())


@claim(
    "induction/two-layers-bigram",
    measures="share of the gap of the losses that is closed",
    at_least=0.6,
    margin=NEAR,
    source=Source(EDELMAN, status="own"),
    assumptions=(CHAINS,),
    control=but("one layer", layers=1),
    cost="training",
)
def two_layers_bigram(generator: Generator, *, layers: int = 2) -> Measured:
    r"""Two layers of attention learn bigram statistics in context: they close more than .6 of the gap
    $L_{\text{unigram}} - L_{\text{bigram}}$.
    """
    curves = chain_curves(layers, generator.initial_seed())
    losses, loss = curves["strategies"], curves["loss"][-1]
    share = (losses["unigram"] - loss) / (losses["unigram"] - losses["bigram"])
    return Measured(share, {"loss": loss, **losses})


@claim(
    "induction/one-layer-unigram",
    measures="distance of the loss from that of the unigram strategy on the same chains, nats",
    at_most=0.01,
    source=Source(EDELMAN, status="own"),
    assumptions=(CHAINS,),
    control=but("two layers", layers=2),
    cost="training",
)
def one_layer_unigram(generator: Generator, *, layers: int = 1) -> Measured:
    r"""One layer of attention reaches the unigram loss and stops there: $|L - L_{\text{unigram}}| \le .01$
    nats.
    """
    curves = chain_curves(layers, generator.initial_seed())
    distance = abs(curves["loss"][-1] - curves["strategies"]["unigram"])
    return Measured(distance, {"divergence from unigram": curves["divergence"]["unigram"][-1]})


@claim(
    "induction/order-of-strategies",
    measures="number of strategies that are nearest at some step, if first in this order",
    at_least=3.0,
    source=Source("edelman2024evolution", "abstract", "second-hand"),
    assumptions=(CHAINS, "measured every 4 steps up to step 100, then every 20"),
    control=but("one layer", layers=1),
    cost="training",
)
def order_of_strategies(generator: Generator, *, layers: int = 2) -> float:
    r"""Training passes the strategies in the order uniform, unigram, bigram: for the first time each has the
    smallest $\mathrm{KL}(q \| p)$ to the network's p.
    """
    order = passed(chain_curves(layers, generator.initial_seed())["divergence"])
    in_order = order == ["uniform", "unigram", "bigram"][: len(order)]
    return float(len(order) if in_order else 0)


CLAIMS = (heads_form, two_layers_bigram, one_layer_unigram, order_of_strategies)

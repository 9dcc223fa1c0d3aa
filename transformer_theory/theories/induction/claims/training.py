"""Claims about networks that learn: induction heads need two layers, and chains are learnt strategy by
strategy.
"""

from functools import lru_cache

import torch
from torch import Generator

from ....core.claims import Claim, Evidence
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
def _formed(layers: int, seed: int) -> Evidence:
    values = formation(layers, torch.Generator().manual_seed(seed), steps=STEPS, every=EVERY)
    # Smaller of the two numbers, each relative to its target; the best measured step counts.
    ratios = {
        step: min(each[ACCURACY] / GOOD_ACCURACY, each[PREFIX] / GOOD_PREFIX) for step, each in values.items()
    }
    step = max(ratios, key=lambda number: ratios[number])
    detail = {"accuracy": values[step][ACCURACY], PREFIX: values[step][PREFIX], "step": step}
    return Evidence(ratios[step], 1.0, ">=", detail=detail)


def _closed(generator: Generator, layers: int) -> Evidence:
    """Measures which share of the gap from unigram to bigram loss the network has closed."""
    curves = chain_curves(layers, generator.initial_seed())
    losses, loss = curves["strategies"], curves["loss"][-1]
    share = (losses["unigram"] - loss) / (losses["unigram"] - losses["bigram"])
    return Evidence(share, 0.6, ">=", detail={"loss": loss, **losses})


def _unigram(generator: Generator, layers: int) -> Evidence:
    """Measures the distance of the loss from that of the unigram strategy."""
    curves = chain_curves(layers, generator.initial_seed())
    distance = abs(curves["loss"][-1] - curves["strategies"]["unigram"])
    return Evidence(
        distance, 0.01, "<=", detail={"divergence from unigram": curves["divergence"]["unigram"][-1]}
    )


def _order(generator: Generator, layers: int) -> Evidence:
    """Measures how many strategies are nearest at some step, if they are so for the first time in this order;
    0 if they are not.
    """
    order = passed(chain_curves(layers, generator.initial_seed())["divergence"])
    in_order = order == ["uniform", "unigram", "bigram"][: len(order)]
    return Evidence(float(len(order) if in_order else 0), 3.0, ">=")


TRAINING = (
    Claim(
        id="induction/formation",
        statement=r"Two layers form an induction head: copy accuracy $\ge .99$ and prefix matching $\ge "
        ".95$ within 400 steps. The thresholds are ours.",
        measures="smaller of accuracy / .99 and prefix matching / .95, at the best of the steps measured",
        source=Source(OLSSON, "Argument 1", "own"),
        assumptions=(REPEATED, "measured every 50 steps"),
        check=lambda generator: _formed(2, generator.initial_seed()),
        control=lambda generator: _formed(1, generator.initial_seed()),
        control_description="one layer",
        cost="training",
    ),
    Claim(
        id="induction/two-layers-bigram",
        statement="Two layers of attention learn bigram statistics in context: they close more than .6 of "
        r"the gap $L_{\text{unigram}} - L_{\text{bigram}}$.",
        measures="share of the gap of the losses that is closed",
        source=Source(EDELMAN, status="own"),
        assumptions=(CHAINS,),
        check=lambda generator: _closed(generator, 2),
        control=lambda generator: _closed(generator, 1),
        control_description="one layer",
        cost="training",
    ),
    Claim(
        id="induction/one-layer-unigram",
        statement=r"One layer of attention reaches the unigram loss and stops there: $|L - "
        r"L_{\text{unigram}}| \le .01$ nats.",
        measures="distance of the loss from that of the unigram strategy on the same chains, nats",
        source=Source(EDELMAN, status="own"),
        assumptions=(CHAINS,),
        check=lambda generator: _unigram(generator, 1),
        control=lambda generator: _unigram(generator, 2),
        control_description="two layers",
        cost="training",
    ),
    Claim(
        id="induction/order-of-strategies",
        statement="Training passes the strategies in the order uniform, unigram, bigram: for the first "
        r"time each has the smallest $\mathrm{KL}(q \| p)$ to the network's p.",
        measures="number of strategies that are nearest at some step, if first in this order",
        source=Source(EDELMAN, status="second-hand"),
        assumptions=(CHAINS, "measured every 4 steps up to step 100, then every 20"),
        check=lambda generator: _order(generator, 2),
        control=lambda generator: _order(generator, 1),
        control_description="one layer",
        cost="training",
    ),
)

"""The paper's Syn-Medium (Figure 6): sparsity of attention over the distinct tokens, by learning rates and
number of classes.

Each setting of the sweep is one seed of one data set. All learning rates are trained together on the same
sequences from the same start, so that only the rates differ.
"""

from collections.abc import Iterator
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ....core.experiment import setting, sweep
from ....core.figure import Panel, Reading, bands, distinct, figure, reading
from ....core.measurement import Null
from ....core.plotting import style
from ....core.result import Result
from ....core.sources import Source
from ..dynamics import HeavyBall, Weights, gradient_descent, sampled
from ..problem import SequenceClasses, synthetic
from ..published import ENTROPY, ETA_Z, LAST, RATIOS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DISTINCT_ENTROPY = "entropy over distinct tokens"
SD = "standard deviation"
SPREAD = f"{SD} of {DISTINCT_ENTROPY}"
UNIFORM = "uniform attention"
PER_QUERY = 2  # classes that share a query


@style()
def draw(result: Result) -> "Figure":
    """Draws the entropy against the ratio of the rates, one panel per number of classes."""
    sizes, look = distinct(result.table, "K"), {"xlabel": "$\\eta_Y / \\eta_Z$"}
    view = bands(
        x="ratio",
        panels=[
            Panel(f"$K$ = {K}", DISTINCT_ENTROPY, {"K": K}, "eta_Z", legend="", axes=look) for K in sizes
        ],
        spread=SD,
        ylabel="entropy, nats",
        log="x",
        caption="Entropy of attention over each class's distinct tokens, renormalised, mean over classes and "
        "seeds, after training; bands: standard deviation over {seeds} seeds; dashed: uniform attention.",
        size=(1.2 + 1.9 * len(sizes), 3.0),
    )
    drawn = view(result)
    drawn.legend(*drawn.axes[0].get_legend_handles_labels(), loc="outside upper left", ncols=5)
    return drawn


@figure(
    "scan_snap.syn_medium",
    source=Source("tian2023scan", "Fig. 6"),
    view=draw,
    quick={"last": (1, 3), "eta_z": (1.0, 3.0), "ratios": (1.0, 5.0), "seeds": 2, "steps": 30},
)
def syn_medium(
    *,
    last: tuple[int, ...] = setting(
        LAST, ge=1, le=100, help="numbers of query tokens, with two classes each"
    ),
    eta_z: tuple[float, ...] = setting(ETA_Z, gt=0, le=100, help="learning rates of attention"),
    ratios: tuple[float, ...] = setting(
        RATIOS, gt=0, le=1000, help="learning rate of the decoder over that of attention"
    ),
    seeds: int = setting(20, ge=1, help="runs per cell; the paper has ten"),
    steps: int = setting(100, ge=1, help="steps of training"),
    batch: int = setting(128, ge=1, help="sequences per step"),
    length: int = setting(128, ge=2, help="tokens per sequence, including the query"),
    momentum: float = setting(0.9, ge=0, lt=1, help="momentum of gradient descent"),
    seed: int = 0,
) -> Iterator[Reading]:
    """Entropy of attention over each class's distinct tokens after training from random weights, with the
    released table: one row per cell, the mean over the seeds.
    """
    options = {"steps": steps, "batch": batch, "length": length, "momentum": momentum}
    shared = {"eta_z": eta_z, "ratios": ratios, **options}
    runs = torch.randint(2**31, (seeds,), generator=torch.Generator().manual_seed(seed)).tolist()
    settings = [{"last": queries, "seed": run, **shared} for queries in last for run in runs]
    entropy = np.array(sweep(entropies, settings)).reshape(len(last), seeds, len(eta_z), len(ratios))
    for queries, of_queries in zip(last, entropy):
        uniform = distinct_entropy(synthetic(PER_QUERY * queries, per_query=PER_QUERY))
        null, mean, spread = Null(UNIFORM, (float(uniform),)), of_queries.mean(0), of_queries.std(0)
        for (j, rate), (k, ratio) in product(enumerate(eta_z), enumerate(ratios)):
            at = {"K": PER_QUERY * queries, "eta_Z": rate, "ratio": ratio}
            columns = {"unit": "nats", "at": at, "n": seeds}
            known = released(queries, rate, ratio)
            published = {} if known is None else {"reference": (known, "printed"), "needs": tuple(options)}
            note = f"standard deviation over seeds {spread[j, k]:.3f}"
            value = float(mean[j, k])
            yield reading(DISTINCT_ENTROPY, value, nulls=(null,), note=note, **published, **columns)
            yield reading(SPREAD, float(spread[j, k]), **columns)


def released(last: int, eta_z: float, ratio: float) -> float | None:
    """Returns the released entropy of a cell; None if the table lacks it."""
    if last not in LAST or eta_z not in ETA_Z or ratio not in RATIOS:
        return None
    return float(ENTROPY[LAST.index(last), ETA_Z.index(eta_z), RATIOS.index(ratio)])


def trained_attention(
    *,
    last: int,
    seed: int,
    eta_z: tuple[float, ...],
    ratios: tuple[float, ...],
    steps: int,
    batch: int,
    length: int,
    momentum: float,
) -> tuple[SequenceClasses, Float[Tensor, "eta_z ratios K S"]]:
    """Returns the classes, and attention after training with each pair of rates from the seed's random
    weights and sequences.
    """
    classes = synthetic(PER_QUERY * last, per_query=PER_QUERY)
    z = torch.tensor(eta_z, dtype=torch.float64)[:, None].expand(-1, len(ratios)).ravel()
    y = z * torch.tensor(ratios, dtype=torch.float64).repeat(len(eta_z))
    seeds = [seed] * len(z)
    batches = sampled(classes, batch, context=length - 1, seeds=seeds)
    path = gradient_descent(
        Weights.random(classes, seeds=seeds),
        batches,
        steps=steps,
        eta_y=y,
        eta_z=z,
        optimiser=HeavyBall(momentum),
    )
    return classes, classes.attended(path.attention[-1]).unflatten(0, (len(eta_z), len(ratios)))


def distinct_entropy(
    classes: SequenceClasses, attended: Float[Tensor, "*runs K S"] | None = None
) -> Float[Tensor, "*runs"]:
    """Returns the entropy of attention over each class's distinct tokens, renormalised, mean over the
    classes.

    ``attended`` is None for uniform attention.
    """
    c = classes.conditional if attended is None else attended
    distinct_attention = torch.where(classes.distinct(), c, torch.zeros_like(c))
    share = distinct_attention / distinct_attention.sum(-1, keepdim=True)
    return -torch.special.xlogy(share, share).sum(-1).mean(-1)


def entropies(**settings) -> np.ndarray:
    """Returns :func:`distinct_entropy` after :func:`trained_attention`, ``[eta_z, ratios]``."""
    return distinct_entropy(*trained_attention(**settings)).numpy()

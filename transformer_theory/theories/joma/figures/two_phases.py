"""Attention that is sparse first and dense later (Fig. 3 or 4), and the learning speeds of salient
components.

The paper prints no numbers. A plain loop over the published descent (ten components from torch's seed 0, T =
3, 5000 steps of 0.02 from 0.05) gives the reference values of the figure. Inverting the time as an integral
over ln(delta) gives those of the ratios of ln(1/delta). The tests repeat both computations. Source:
:cite:t:`tian2024joma`.
"""

from collections.abc import Iterator

import numpy as np
import torch

from ....core.experiment import setting
from ....core.figure import Panel, Reading, curves, figure, reading
from ....core.measurement import Null
from ....core.sources import Source
from ....metrics.attention import entropy_lower_bound
from ..nonlinear import (
    attention_entropy,
    bounce,
    learning_ratio,
    linear_descent,
    log_remaining,
    published_mu,
    salient_descent,
    undecided,
)

FIGURE = Source("tian2024joma", "Fig. 3 or 4", "second-hand")
SPEEDS = Source("tian2024joma", "Theorem 4", "second-hand")
THEOREM = Source("zhai2023stabilizing", "Theorem 3.1", "second-hand")
ENTROPY = "entropy of attention"
LEAST_STEP = "step of the smallest entropy"
COMPONENT = "component at the end"
APPROACH = "component over its critical point"
BOUND = "lower bound of the entropy"
REBOUND = "rebound of the entropy"
FLOOR = "smallest entropy less its lower bound"
RATIO = "ratio of ln 1/δ"
PUBLISHED_ENTROPY = {"at the start": 2.3026, "least": 0.9416, "at the end": 1.5493}  # nats
PUBLISHED_LEAST_STEP = 669
PUBLISHED_COMPONENTS = (0.954, 1.067, 1.594, 2.180, 2.335, 2.363, 2.893, 2.899, 3.305, 3.689)
RATIO_MU = (3.0, 2.0, 1.0, 0.5)
LIMITS = learning_ratio(torch.tensor(RATIO_MU, dtype=torch.float64))[
    :-1, -1
].tolist()  # of the ratios to the last component
# time -> ratios to the last component
RATIOS = {2.0: (59.3, 4.01, 1.19), 20.0: (77.7, 6.30, 1.43), 1000.0: (79.40, 6.516, 1.4545)}
DRAWN = 40  # number of steps of the curves, evenly spaced in their logarithm
FLOOR_LOOK = {BOUND: {"color": "null", "label": "floor"}}


@figure(
    "joma.two_phases",
    source=(Source("tian2024joma"), Source("zhai2023stabilizing")),
    view=curves(
        "step",
        panels=(
            Panel(
                "Components, $v / \\mu$",
                APPROACH,
                lines="μ",
                legend="",
                axes={"ylabel": "light: large $\\mu$"},
            ),
            (
                Panel("Entropy of attention, nats", ENTROPY, lines="MLP"),
                Panel(quantity=BOUND, lines=("quantity", FLOOR_LOOK)),
            ),
            Panel(
                "Ratios of $\\ln(1/\\delta)$",
                RATIO,
                lines="μ",
                levels={f"_{limit}": limit for limit in LIMITS},
                axes={"xlabel": "time t", "yscale": "log"},
                x="time",
            ),
        ),
        log="x",
        caption="Floor: the least entropy that scores of the nonlinear run's norm allow. Right: over $\\mu$ "
        "= 1/2; dashed: their limits, $\\exp((\\mu^2-1/4)/2)$; crosses: recomputed independently.",
        size=(8.5, 2.9),
    ),
    quick={"steps": 1000, "until": 20.0},
)
def two_phases(
    *,
    steps: int = setting(5000, ge=10, le=10**6, help="steps of the descent"),
    rate: float = setting(0.02, ge=1e-6, le=1, help="learning rate"),
    temperature: float = setting(3.0, ge=0.1, le=100, help="T in softmax(v²/T)"),
    start: float = setting(0.05, ge=0, le=1, help="initial value of all components"),
    until: float = setting(1000.0, ge=2, le=1e5, help="last time of the ratios"),
) -> Iterator[Reading]:
    """The ten components of the paper: descent with a nonlinear and with a linear MLP, and the entropy of
    attention.

    The experiment also measures ln(1/delta) of four components over time. Their ratios tend to exp((mu_j^2 -
    mu_k^2) / 2).
    """
    mu, descent = published_mu(), {"start": start, "rate": rate, "temperature": temperature, "steps": steps}
    lower, linear = salient_descent(mu, **descent), linear_descent(mu, **descent)
    H, linear_H = (attention_entropy(v, temperature=temperature) for v in (lower, linear))
    curve, published = bounce(H), {"source": FIGURE, "needs": tuple(descent)}
    for (moment, number), value in zip(PUBLISHED_ENTROPY.items(), (curve.start, curve.least, curve.end)):
        columns = {"reference": (number, "recomputed"), "at": {"moment": moment}, "unit": "nats"}
        yield reading(ENTROPY, value, **columns, **published)
    reference = (PUBLISHED_LEAST_STEP, "recomputed")
    yield reading(LEAST_STEP, float(curve.index), reference=reference, unit="steps", **published)
    tokens = [{"component": token, "μ": goal} for token, goal in enumerate(mu.tolist())]
    for at, value, number in zip(tokens, lower[-1].tolist(), PUBLISHED_COMPONENTS):
        yield reading(COMPONENT, value, reference=(number, "recomputed"), at=at, **published)
    null = Null("linear MLP with the same numbers", (bounce(linear_H).rebound,))
    columns = {"predicted": 0.01, "unit": "nats", "source": FIGURE, "note": "End minus minimum."}
    yield reading(REBOUND, curve.rebound, at_least=0.01, nulls=(null,), side=">=", **columns)
    scores = lower.square() / temperature
    floor = entropy_lower_bound((scores - scores.mean(-1, keepdim=True)).norm(dim=-1), keys=len(mu))
    gaps = (H - floor)[undecided(H, keys=len(mu))]
    if len(gaps):
        note = "Where the entropy differs by more than .1 from 0 and from its largest value."
        columns = {"predicted": 0.0, "unit": "nats", "source": THEOREM, "note": note}
        yield reading(FLOOR, float(gaps.min()), at_least=0.0, **columns)
    for step in np.unique(np.geomspace(1, steps, DRAWN).round().astype(int)).tolist():
        for at, value in zip(tokens, lower[step].tolist()):
            yield reading(APPROACH, value / at["μ"], at=at, step=step)
        for name, entropies in (("nonlinear", H), ("linear", linear_H)):
            yield reading(ENTROPY, float(entropies[step]), unit="nats", at={"MLP": name}, step=step)
        yield reading(BOUND, float(floor[step]), unit="nats", step=step)
    yield from _ratios(until)


def _ratios(until: float) -> Iterator[Reading]:
    """Yields the ratios of ln(1/delta) over time, with the recomputed ones of :data:`RATIOS`, and at the end
    beside their limits.
    """
    marks = torch.tensor([time for time in RATIOS if time <= until], dtype=torch.float64)
    times = torch.cat([torch.logspace(-3, 0, 200, dtype=torch.float64) * until, marks]).unique()
    logs = log_remaining(torch.tensor(RATIO_MU, dtype=torch.float64), times)
    for token, limit in enumerate(LIMITS):
        at, ratios = {"μ": RATIO_MU[token]}, (logs[:, token] / logs[:, -1]).tolist()
        for index, (time, ratio) in enumerate(zip(times.tolist(), ratios)):
            reference = (RATIOS[time][token], "recomputed") if time in RATIOS else None
            if reference or index % 5 == 0:
                place = {"at": at | {"time": time}, "source": SPEEDS}
                yield reading(RATIO, ratio, reference=reference, needs=(), **place)
        yield reading(RATIO, ratios[-1], reference=(limit, "limit"), at=at, source=SPEEDS)

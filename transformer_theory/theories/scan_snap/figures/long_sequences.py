"""Training on finite sequences against the exact population flow, by length of the sequences (Lemma 2)."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ....core.experiment import setting
from ....core.figure import Axis, Panel, Reading, draw_curves, figure, reading
from ....core.plotting import axes, caption, style
from ....core.result import Result
from ....core.sources import Source
from ..dynamics import Weights, gradient_descent, sampled
from ..flow import EXACT, exact_flow
from ..problem import synthetic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DISTINCT_LOGIT, COMMON_LOGIT = "logit of the likeliest distinct token", "logit of the common token"
RECORDED_STEPS = 40  # largest number of steps at which the logits are stored


@style()
def draw(result: Result) -> "Figure":
    """Draws both logits over the steps, and their distance from the flow at the end."""
    drawn, (paths, gap) = axes(1, 2)
    look = {"xlabel": "step", "ylabel": "attention logit z", "xscale": "log"}
    rising = Panel("Logits", DISTINCT_LOGIT, lines="T", predicted=EXACT, axes=look)
    draw_curves(paths, result, rising, x="step")
    draw_curves(paths, result, Panel("", COMMON_LOGIT, lines="T", predicted="_", legend=""), x="step")
    lengths = np.array(result.settings["lengths"])
    for quantity in (DISTINCT_LOGIT, COMMON_LOGIT):
        ends = result.select(quantity=quantity, step=result.settings["steps"])
        distance = np.abs(np.subtract(ends.column("value"), ends.column("predicted")))
        gap.loglog(lengths, distance, "o-", label=quantity)
    first = gap.lines[0].get_ydata()[0]
    gap.loglog(lengths, first * lengths[0] / lengths, ":", label="$1 / T$")
    gap.set(title="Distance from the flow at the end", xlabel="length $T$ of the sequences")
    gap.legend()
    caption(drawn, "Left: the likeliest distinct token, above zero, and a common one, below.")
    return drawn


@figure(
    "scan_snap.long_sequences",
    source=Source("tian2023scan", "Lemma 2"),
    over={
        "T": Axis(
            128, 1024, 16384, setting="lengths", ge=2, le=10**9, help="tokens per sequence, with the query"
        )
    },
    view=draw,
    quick={"lengths": (32, 1024), "steps": 60, "seeds": 2},
)
def long_sequences(
    T: int,
    *,
    steps: int = setting(1000, ge=1, help="steps of training"),
    batch: int = setting(128, ge=1, help="sequences per step"),
    eta_y: float = setting(1.0, ge=1e-3, le=100, help="learning rate of the decoder"),
    eta_z: float = setting(1.0, ge=1e-3, le=100, help="learning rate of attention"),
    seeds: int = setting(5, ge=1, help="independent runs"),
    seed: int = setting(0, ge=0, le=2**32 - 1, help="seed of the random numbers"),
) -> Iterator[Reading]:
    """Syn-Small by plain gradient descent: the logits of the likeliest distinct and of a common token, by
    length of the sequences; means over seeds, with the exact flow as the limit.
    """
    classes = synthetic(2)
    rates: dict[str, Any] = {"eta_y": eta_y, "eta_z": eta_z}
    recorded = sorted({int(t) for t in np.geomspace(1, steps, RECORDED_STEPS)})
    limit = exact_flow(classes, torch.tensor(recorded, dtype=torch.float64), **rates).logits
    runs = torch.randint(2**31, (seeds,), generator=torch.Generator().manual_seed(seed)).tolist()
    sizes = classes.tokens, classes.queries, classes.classes, classes.vocab_size
    start = Weights.zeros(*sizes, runs=(seeds,))
    batches = sampled(classes, batch, context=T - 1, seeds=runs)
    path = gradient_descent(start, batches, steps=steps, keep=recorded, **rates)
    trained = two_logits(path.attention[1:])[-len(recorded) :]
    for step, values, known in zip(recorded, trained, two_logits(limit)):
        for quantity, of_runs, flow in zip((DISTINCT_LOGIT, COMMON_LOGIT), values.T, known):
            spread = f"{of_runs.min():.4f} to {of_runs.max():.4f} over runs"
            columns = {"step": step, "n": seeds, "note": f"{spread}; predicted: the exact population flow"}
            yield reading(quantity, float(of_runs.mean()), reference=(float(flow), "limit"), **columns)


def two_logits(z: torch.Tensor) -> np.ndarray:
    """Returns mean logits of the classes' likeliest distinct tokens and of the ten common ones, ``[*runs, Q,
    S] -> [*runs, 2]``.
    """
    # In Syn-Small tokens 0 to 9 are common, 10 to 19 are distinct to class 0, 20 to 29 to class 1. The last
    # of each ten is the likeliest.
    return torch.stack([(z[..., 0, 19] + z[..., 1, 29]) / 2, z[..., :10].mean((-1, -2))], -1).numpy()

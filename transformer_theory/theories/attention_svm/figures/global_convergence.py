"""How often descent from W = 0 selects the best token of every input, as a function of the dimension."""

from ....core.experiment import setting
from ....core.figure import Panel, Reading, curves, figure, share
from ....core.sources import Source
from ..dynamics import normalised_descent, start
from ..published import published_instances
from .common import RATE, THRESHOLD, T_axis, d_axis, n_axis

BEST_SELECTED = "share of problems that select every best token"
KNOWN_DIMS = (2, 5, 10, 20, 50, 100)
KNOWN = {  # (n, T) -> one share per dimension in KNOWN_DIMS, computed independently with the default settings
    (5, 5): (0.06, 0.69, 0.91, 0.98, 1.00, 0.99),
    (10, 5): (0.0, 0.21, 0.59, 0.86, 0.99, 0.99),
    (15, 5): (0.0, 0.03, 0.28, 0.78, 0.97, 1.00),
    (5, 10): (0.0, 0.41, 0.72, 0.83, 0.93, 0.98),
    (5, 15): (0.01, 0.37, 0.60, 0.70, 0.85, 0.92),
}
LOOK = {"ylim": (-0.03, 1.04), "xlabel": "dimension d"}


@figure(
    "attention_svm.global_convergence",
    source=Source("tarzanagh2023transformers"),
    over={
        "n": n_axis(5, 10, 15),
        "T": T_axis(5, 10, 15),
        "d": d_axis(*KNOWN_DIMS),
    },
    where=lambda n, T: n == 5 or T == 5,
    reference=lambda n, T, d: dict(zip(KNOWN_DIMS, KNOWN.get((n, T), ()))).get(d),
    basis="recomputed",
    view=curves(
        "d",
        panels=(
            Panel("All best tokens selected, T = 5", at={"T": 5}, lines="n", legend="lower right", axes=LOOK),
            Panel("All best tokens selected, n = 5", at={"n": 5}, lines="T", legend="lower right", axes=LOOK),
        ),
        ylabel="share of problems",
        log="x",
        caption="Share of {trials} random problems per size; bands: 95 % intervals (Clopper-Pearson).",
    ),
    quick={"inputs": (3, 5), "tokens": (3, 5), "dims": (2, 5, 20), "trials": 10, "steps": 400},
)
def global_convergence(
    n: int,
    T: int,
    d: int,
    *,
    trials: int = setting(100, ge=1, help="random problems per size"),
    steps: int = setting(1000, ge=1, help="steps of descent"),
    rate: float = RATE,
    threshold: float = THRESHOLD,
) -> Reading:
    """Share of random problems in which normalised descent from W = 0 selects the best token of every input,
    against the dimension.

    The paper states the trend: the share goes to one as the dimension grows, and falls with the number of
    inputs and of tokens. A token is selected if at most 0.001 of the attention goes to other tokens. Data are
    drawn as in the paper's other figures (seeds 0 to 99). The paper does not publish the settings of this
    figure, so the reference numbers come from another program that ran with the default settings given here.
    """
    instance = published_instances(range(trials), inputs=n, tokens=T, dim=d)
    end = normalised_descent(instance, start(instance), steps=steps, rate=rate)
    best = instance.attention(end.W).gather(-1, instance.optimal()[..., None]).squeeze(-1)
    return share(BEST_SELECTED, (best > 1 - threshold).all(-1), step=steps)

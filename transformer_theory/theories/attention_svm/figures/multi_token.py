"""Descent with a one-layer network as head, for which attention may stay on several tokens, compared with the
predicted weights.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch

from ....core.experiment import setting, sweep
from ....core.figure import Panel, Reading, draw_curves, figure, reading, share
from ....core.plotting import TINTS, axes, caption, style
from ....core.result import Result
from ....core.sources import Source
from ....core.table import Arrays
from ....maths.linalg import cosine
from ..builders import constraints
from ..dynamics import random_start, trajectory
from ..published import published_heads
from ..sharing import NO_ATTENTION, SOME_ATTENTION, least_push, settled, shared
from ..solvers import frobenius_max_margins, generalised_max_margins
from .common import RATE, ROUNDING_UNIT, arrays, arrays_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ACCEPTED, DISTANCE = "share of trials accepted", "1 - cosine to the target"
SHARED = "share of accepted trials that share attention"
ALL_PUSHED = "share of accepted trials in which every masked token is pushed away"
MEDIAN_DISTANCE = "median of 1 - cosine to the prediction"
TARGETS = {
    "prediction": "finite part and direction",
    "direction": "direction alone",
    "one token": "max-margin of the top tokens",
}
# Dimension -> distance to each of TARGETS, read off the published figure.
PUBLISHED = {
    4: (0.034, 0.07, 0.155),
    6: (0.017, 0.043, 0.14),
    8: (0.011, 0.015, 0.135),
    10: (0.0055, 0.0085, 0.12),
}
MIN_PUSH = 1e-3  # smallest least_push at which masked tokens count as pushed away; gains are of order one
CHUNK = 500  # trials that descend together
ERROR = "standard error"


def descend(
    seeds: range,
    dim: int,
    inputs: int,
    tokens: int,
    steps: int,
    every: int,
    rate: float,
    eps: float,
    start: int,
) -> dict[str, np.ndarray]:
    """Runs descent on the trials of these seeds and returns numbers of the k trials that the published rule
    accepts.

    Returns:
        Arrays by name:

        - ``tried`` [1]: number of trials;
        - ``apart`` [k, checkpoints, 3]: 1 - cosine of W to the three targets;
        - ``masked`` [k]: largest attention on a masked token;
        - ``several`` [k]: whether some input shares its attention between tokens;
        - ``pushed`` [k]: whether the head pushes every masked token away.
    """
    instance = published_heads(seeds, inputs=inputs, tokens=tokens, dim=dim)
    # One generator per chunk: the large prime separates the seeds of different values of ``start``.
    first_state = random_start(
        instance, generator=torch.Generator().manual_seed(start * 1_000_003 + seeds.start)
    )
    states = list(trajectory(instance, first_state, steps=range(every, steps + 1, every), rate=rate, eps=eps))
    attention = instance.attention(states[-1].W)
    settled_trials, tried = settled(attention).nonzero().squeeze(-1), np.array([len(attention)])
    if not len(settled_trials):
        empty = {name: np.zeros(0, dtype=bool) for name in ("masked", "several", "pushed")}
        return {"tried": tried, "apart": np.zeros((0, len(states), len(TARGETS)))} | empty
    x, z, s = instance.tokens[settled_trials], instance.query[settled_trials], attention[settled_trials]
    general, single = (
        generalised_max_margins(x, z, s, threshold=SOME_ATTENTION),
        frobenius_max_margins(constraints(x, z, s.argmax(-1))),
    )
    solved = general.direction.solved & general.finite.solved & single.solved  # pyright: ignore[reportAttributeAccessIssue]
    distances = []
    for state in states:
        W = state.W[settled_trials]
        targets = (general.predict(W), general.direction.W, single.W)
        distances.append(
            torch.stack([1 - cosine(W[solved], target[solved], dim=(-2, -1)) for target in targets], -1)
        )
    accepted = settled_trials[solved]
    return {
        "tried": tried,
        "apart": torch.stack(distances, 1).numpy(),
        "masked": s[solved].masked_fill(s[solved] > NO_ATTENTION, 0.0).flatten(1).amax(-1).numpy(),
        "several": shared(attention[accepted]).numpy(),
        "pushed": (least_push(instance, states[-1].W)[accepted] > MIN_PUSH).numpy(),
    }


@style()
def draw(result: Result) -> "Figure":
    """Draws the distance of W to three predictions, the share of accepted trials, and the distance against
    the remaining attention.
    """
    a = arrays_of(result)
    drawn, (left, middle, right) = axes(1, 3, width=7.0, height=3.3)
    distances = Panel("1 − cosine of W to", DISTANCE, lines="target", axes={"yscale": "log"})
    draw_curves(left, result, distances, x="d", spread=ERROR)
    draw_curves(middle, result, Panel("Share of trials accepted", ACCEPTED), x="d")
    for d, tint in zip(result.settings["dims"], TINTS):
        ends, masked, pushed = a[f"end_{d}"], np.maximum(a[f"masked_{d}"], 1e-20), a[f"pushed_{d}"]
        look = {"color": tint, "alpha": 0.55, "s": 7}
        right.scatter(masked[pushed], ends[pushed], linewidths=0, label=f"d = {d}", **look)
        right.scatter(masked[~pushed], ends[~pushed], linewidths=0.7, marker="x", **look)
    right.set(title="1 − cosine to prediction", xlabel="attention left elsewhere", xscale="log", yscale="log")
    right.legend()
    for ax in (left, middle):
        ax.set_xlabel("dimension d")
    caption(
        drawn,
        "Left: means over the accepted trials; bands: standard error; prediction: finite part and direction; "
        "one token: max-margin solution of the most attended tokens. Middle: band: 95 % interval. Right: one "
        "mark per accepted trial, against the largest attention left on a masked token; crosses: the head is "
        "flat at some masked token, so descent does not push it away.",
    )
    return drawn


def check_every(every: int, steps: int) -> None:
    """Checks that there is a measurement.

    Raises:
        ValueError: ``every`` exceeds ``steps``.
    """
    if every > steps:
        raise ValueError(f"every must be at most steps = {steps}, got {every}; lower every, or raise steps")


@figure(
    "attention_svm.multi_token",
    source=Source("tarzanagh2023transformers"),
    view=draw,
    quick={"dims": (4,), "trials": 120, "steps": 400, "every": 100},
    check=check_every,
)
def multi_token(
    *,
    dims: tuple[int, ...] = setting((4, 6, 8, 10), ge=1, help="dimensions d of the tokens"),
    inputs: int = setting(3, ge=1, help="number n of inputs"),
    tokens: int = setting(4, ge=2, help="number T of tokens per input"),
    trials: int = setting(4000, ge=1, help="random problems per dimension"),
    steps: int = setting(2000, ge=1, help="steps of descent"),
    every: int = setting(100, ge=1, help="steps between two measurements"),
    rate: float = RATE,
    eps: float = setting(ROUNDING_UNIT, ge=0, le=1, help="added to the norm of the gradient; 0 is exact"),
    seed: int = 0,
) -> Iterator[Reading | Arrays]:
    r"""Normalised descent with the head :math:`h(o) = 1^\top \max(V^\top o, 0)`, compared with three
    predictions of the direction of W.

    Attention may stay on several tokens. The prediction is then a finite part plus a multiple of a direction.
    The two other candidates are the direction alone, and the max-margin solution that scores each input's
    most attended token above all others. A trial counts only if it has settled: no token has between 1e-6 and
    1e-3 of the attention, and some token has less. The figure shows the share of settled trials, which falls
    with the dimension. The prediction fails in trials in which the head is flat at a masked token and so does
    not push it away; the figure marks these trials. ``eps`` is added to the norm of the gradient, as
    published; with ``eps = 0`` descent is exact and W grows further.
    """
    sizes = {"inputs": inputs, "tokens": tokens}
    run = {"steps": steps, "every": every, "rate": rate, "eps": eps, "start": seed}
    parts = [range(first, min(first + CHUNK, trials + 1)) for first in range(1, trials + 1, CHUNK)]
    calls = [{"seeds": seeds, "dim": d, **sizes, **run} for d in dims for seeds in parts]
    outcomes = iter(sweep(descend, calls))
    for d in dims:
        chunks = [next(outcomes) for _ in parts]
        found = {name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]}
        ends, pushed = found["apart"][:, -1], found["pushed"]  # [accepted, targets], [accepted]
        accepted, note = len(ends), "each trial has at least one negative label"
        yield share(ACCEPTED, accepted, int(found["tried"].sum()), at={"d": d}, note=note)
        points = {"end": ends[:, 0], "masked": found["masked"], "pushed": pushed}
        yield arrays({f"{name}_{d}": values for name, values in points.items()})
        if not accepted:
            continue
        for (target, text), values, known in zip(TARGETS.items(), ends.T, PUBLISHED.get(d, (None,) * 3)):
            here = {"at": {"target": target, "d": d}, "step": steps, "n": accepted}
            # numpy divides the variance by n, hence n - 1 here
            error = float(values.std() / max(accepted - 1, 1) ** 0.5)
            yield reading(
                DISTANCE,
                float(values.mean()),
                reference=None if known is None else (known, "figure"),
                needs=("inputs", "tokens", "trials", "steps", "rate", "eps"),
                note=f"{text}: mean over accepted trials, standard error {error:.4f}",
                **here,
            )
            yield reading(f"{ERROR} of {DISTANCE}", error, **here)
        here = {"unit": "share", "at": {"d": d}, "n": accepted}
        yield reading(SHARED, float(found["several"].mean()), **here)
        yield reading(ALL_PUSHED, float(pushed.mean()), **here)
        for masked, these in (("pushed away", pushed), ("not all pushed away", ~pushed)):
            if these.any():
                median = float(np.median(ends[these, 0]))
                yield reading(
                    MEDIAN_DISTANCE, median, at={"masked tokens": masked, "d": d}, n=int(these.sum())
                )

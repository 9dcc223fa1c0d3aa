"""The orbit of the linear MLP: one constant for all tokens, attention on one token after finite time, and a
slower clock.

Source: :cite:t:`tian2024joma`.
"""

import math
from collections.abc import Iterator

import torch

from ....core.experiment import setting
from ....core.figure import Panel, Reading, curves, figure, reading
from ....core.measurement import Null
from ....core.sources import Source
from ..nonlinear import attention
from ..orbit import blow_up_time, limits, normalised_clock, orbit, progress

SPREAD = "spread of erf(v/√2)/Δ over the tokens"
END = "v at the end"
LEADING = "attention to the leading token"
SLOWDOWN = "slowdown by a common normaliser"
LOWER, ATTENTION = "v", "attention"
EVERY = 13  # of the 300 points of the orbit, every 13th is drawn, from the first to the last
LEFT = {"xlabel": "$1 - t/t^*$ (time runs to the left)", "ylabel": "softmax($v^2/2$)", "xscale": "log"}


@figure(
    "joma.linear_orbit",
    source=Source("tian2024joma", "Theorem 2", "second-hand"),
    view=curves(
        "time",
        panels=(
            Panel("Exponential attention", LOWER, lines="Δ", legend="", axes={"ylabel": "v"}),
            Panel("Common normaliser", LOWER, x="clock", lines="Δ", legend="", axes={"ylabel": "v"}),
            Panel("Attention", ATTENTION, lines="Δ", x="remaining", axes=LEFT),
        ),
        xlabel="time t",
        caption="The same orbit in all panels: $\\mathrm{{erf}}(v/\\sqrt{{2}})/\\Delta$ is equal for all "
        "tokens, so the leading one blows up at $t^*$ and the others stop. Softmax attention is not shown: "
        "trained with the MLP it leaves this orbit.",
        size=(8.0, 2.8),
    ),
    quick={"end": 1e-2},
)
def linear_orbit(
    *,
    discriminancy: tuple[float, ...] = setting(
        (1.0, 0.8, 0.5, -0.3, 0.1), ge=-1e3, le=1e3, help="Δ of each token, not all zero"
    ),
    end: float = setting(1e-4, ge=1e-12, lt=1, help="share of the time to the blow-up that remains"),
) -> Iterator[Reading]:
    """The closed form of five tokens with different discriminancy, from zero until a share ``end`` of the
    blow-up time remains.

    The joint flow of attention and MLP follows this orbit (claim joma/linear-orbit). A normaliser that all
    samples share, with z = v²/2 unchanged, gives the same orbit on a slower clock. Softmax attention has a
    normaliser per sample and leaves the orbit (claim joma/softmax-leaves-the-orbit).
    """
    delta = torch.tensor(discriminancy, dtype=torch.float64)
    remaining = torch.logspace(0, math.log10(end), 300, dtype=torch.float64)
    v, last = orbit(delta, remaining), blow_up_time(delta)
    b, clock = attention(v), normalised_clock(delta, torch.full_like(delta, 1 / len(delta)), remaining)
    candidates = [progress(v[-1] * inside, delta)[delta != 0] for inside in (1.0, math.sqrt(0.5))]
    spread, other = (float(constants.max() / constants.min()) - 1 for constants in candidates)
    yield reading(
        SPREAD,
        spread,
        at_most=1e-9,
        predicted=0.0,
        nulls=(Null("erf(v/2)/Δ, which does not solve the equation", (other,)),),
        side="<=",
        note=f"Largest over smallest, minus 1, at {end:g} of t* before the end.",
    )
    tokens = [{"token": token, "Δ": value} for token, value in enumerate(discriminancy)]
    for at, value, limit in zip(tokens, v[-1].tolist(), limits(delta).tolist()):
        if at["Δ"] and math.isfinite(limit):
            yield reading(END, value, reference=(limit, "limit"), at=at)
    leading = int(delta.abs().argmax())
    yield reading(LEADING, float(b[-1, leading]), reference=(1.0, "limit"))
    note = "Ratio of the times to reach the same point of the orbit, common over constant normaliser; z = "
    yield reading(SLOWDOWN, float(clock[-1]) / ((1 - end) * last), note=note + "v²/2 is kept.")
    for index in range(0, len(remaining), EVERY):
        left = float(remaining[index])
        clocks = {"time": (1 - left) * last, "clock": float(clock[index])}
        for at, lower, share in zip(tokens, v[index].tolist(), b[index].tolist()):
            yield reading(LOWER, lower, at=at | clocks)
            yield reading(ATTENTION, share, at=at | {"remaining": left})

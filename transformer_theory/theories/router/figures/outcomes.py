"""What trained selectors do: share of success under several schedules, and hit beside accuracy with the
label-blind bound.

Source: :cite:t:`lei2016rationalizing` has the setting; the schedules are our own.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch

from ....core.experiment import setting
from ....core.figure import Reading, figure, reading
from ....core.plotting import COLOURS, axes, caption, colour, style
from ....core.result import Result
from ....core.sources import Source
from ....core.table import Arrays
from ..selector import ANNEALED, Schedule, mixture, straight_through, train_on_needles

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUCCESS = "share of selectors with a hit above .9"
SHORTCUTS = "share of selectors above the label-blind bound by .1"
INFORMATION = "information of the choice about the label, given the needle"
GOOD, EXCESS = 0.9, 0.1
SCHEDULES: dict[str, Schedule] = {
    "hard, no penalty": straight_through(0.0),
    "hard, .05": straight_through(0.05),
    "hard, .5": straight_through(0.5),
    "mixture, no penalty": mixture(0.0),
    "mixture, .5": mixture(0.5),
    "annealed, penalty early": Schedule(penalty_from=0.0),
    "annealed": ANNEALED,
}
ROUTERS = {"keys": False, "keys and contents": True}


@style()
def draw(result: Result) -> "Figure":
    """Draws the shares of success, and hit beside accuracy of all selectors whose router sees contents."""
    drawn, (left, right) = axes(1, 2, width=7.2, height=3.1)
    places, tint = np.arange(len(SCHEDULES)), colour("router")
    for offset, router, fill in ((-0.2, "keys", COLOURS["raw"]), (0.2, "keys and contents", tint)):
        values = result.table.select(quantity=SUCCESS, at={"router": router}).column("value")
        left.barh(places + offset, values, height=0.38, color=fill, label=router)
    left.set_yticks(places, list(SCHEDULES))
    left.set(xlim=(0, 1.02), xlabel="share with a hit above .9", title="success")
    left.invert_yaxis()
    left.legend(title="router sees", loc="upper center", bbox_to_anchor=(0.4, -0.2), ncol=2)
    hits, accuracies = np.concatenate([result.arrays[name] for name in SCHEDULES], 1)
    right.plot(hits, accuracies, "o", color=tint, markersize=4, markeredgewidth=0, alpha=0.35)
    right.plot([0, 1], [0.5, 1], color=COLOURS["raw"], linestyle="--")
    right.text(0.62, 0.72, "label-blind\nbound", fontsize=7.5, color=COLOURS["raw"])
    right.text(0.5, 0.9, "shortcut", fontsize=7.5, ha="center", color=tint)
    right.set(xlabel="hit", ylabel="accuracy", xlim=(-0.03, 1.03), ylim=(0.42, 1.03))
    right.set_title("router sees contents")
    text = (
        "{networks} selectors for each schedule and router, {steps} steps. A penalty from the first step "
        "costs successes; the annealed schedule has it from half of the training. Right: all selectors of "
        "the seven schedules; those above the line tell the label by their choice."
    )
    caption(drawn, text.format(**result.settings))
    return drawn


@figure(
    "router.outcomes",
    source=Source("lei2016rationalizing", status="own"),
    view=draw,
    quick={"networks": 2, "steps": 5},
)
def outcomes(
    *,
    networks: int = setting(48, ge=1, le=1000, help="selectors for each schedule and router"),
    steps: int = setting(500, ge=1, le=10**5, help="batches of 32 sequences"),
    seed: int = 0,
) -> Iterator[Reading | Arrays]:
    """Selectors of needles under seven schedules, with routers that see keys only, or keys and contents:
    shares and mean information; hit and accuracy of each selector whose router sees contents, ``[2,
    selectors]`` by schedule.
    """
    for router, contents in ROUTERS.items():
        for name, schedule in SCHEDULES.items():
            generator = torch.Generator().manual_seed(seed)
            sizes = {"networks": networks, "generator": generator, "steps": steps}
            found, _ = train_on_needles(schedule, sees_contents=contents, **sizes)
            place = {"n": networks, "at": {"router": router, "schedule": name}}
            good = float((found.hit > GOOD).double().mean())
            yield reading(SUCCESS, good, unit="share", **place)
            above = found.accuracy > found.hit + (1 - found.hit) / 2 + EXCESS
            yield reading(SHORTCUTS, float(above.double().mean()), unit="share", **place)
            yield reading(INFORMATION, float(found.information.mean()), unit="nats", **place)
            if contents:
                yield Arrays({name: np.stack([found.hit.numpy(), found.accuracy.numpy()])})

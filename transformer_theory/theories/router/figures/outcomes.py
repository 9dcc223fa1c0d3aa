"""What trained selectors do: share of success under several schedules, and hit beside accuracy with the
label-blind bound.

Source: :cite:t:`lei2016rationalizing` has the setting; the schedules are our own.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ....core.experiment import RandomExperiment, setting
from ....core.measurement import Measurement
from ....core.plotting import COLOURS, axes, caption, colour, style
from ....core.result import Result
from ....core.sources import Source
from ....core.table import Arrays
from ..selector import ANNEALED, Schedule, mixture, straight_through, train_on_needles

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "router"
SUCCESS, SHORTCUTS = (
    "share of selectors with a hit above .9",
    "share of selectors above the label-blind bound by .1",
)
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


@dataclass(frozen=True)
class Outcomes(RandomExperiment):
    """Selectors of needles under seven schedules, with routers that see keys only, or keys and contents."""

    networks: int = setting(48, ge=1, le=1000, help="selectors for each schedule and router")
    steps: int = setting(500, ge=1, le=10**5, help="batches of 32 sequences")

    name = "router.outcomes"
    sources = (Source("lei2016rationalizing", status="own"),)

    @classmethod
    def quick(cls) -> "Outcomes":
        """Two selectors, five steps."""
        return cls(networks=2, steps=5)

    def measure(self) -> Iterator[Measurement | Arrays]:
        """Yields shares and mean information for each schedule and router; hit and accuracy of each selector
        whose router sees contents, ``[2, selectors]`` by schedule.
        """
        for router, contents in ROUTERS.items():
            for name, schedule in SCHEDULES.items():
                found, _ = train_on_needles(
                    schedule,
                    sees_contents=contents,
                    networks=self.networks,
                    generator=self.generator(),
                    steps=self.steps,
                )
                place = {"n": self.networks, "at": {"router": router, "schedule": name}}
                good = float((found.hit > GOOD).double().mean())
                yield self.row(SUCCESS, good, unit="share", **place)
                above = found.accuracy > found.hit + (1 - found.hit) / 2 + EXCESS
                yield self.row(SHORTCUTS, float(above.double().mean()), unit="share", **place)
                yield self.row(INFORMATION, float(found.information.mean()), unit="nats", **place)
                if contents:
                    yield Arrays({name: np.stack([found.hit.numpy(), found.accuracy.numpy()])})

    @style()
    def plot(self, result: Result) -> "Figure":
        """Draws the shares of success, and hit beside accuracy of all selectors whose router
        sees contents.
        """
        figure, (left, right) = axes(1, 2, width=7.2, height=3.1)
        places = np.arange(len(SCHEDULES))
        for offset, router, tint in (
            (-0.2, "keys", COLOURS["raw"]),
            (0.2, "keys and contents", colour(NAME)),
        ):
            values = result.select(quantity=SUCCESS, at={"router": router}).column("value")
            left.barh(places + offset, values, height=0.38, color=tint, label=router)
        left.set(
            yticks=places,
            yticklabels=list(SCHEDULES),
            xlim=(0, 1.02),
            xlabel="share with a hit above .9",
            title="success",
        )
        left.invert_yaxis()
        left.legend(title="router sees", loc="upper center", bbox_to_anchor=(0.4, -0.2), ncol=2)
        hits, accuracies = np.concatenate([result.arrays[name] for name in SCHEDULES], 1)
        dots = {"marker": "o", "linestyle": "", "markersize": 4, "markeredgewidth": 0, "alpha": 0.35}
        right.plot(hits, accuracies, color=colour(NAME), **dots)
        right.plot([0, 1], [0.5, 1], color=COLOURS["raw"], linestyle="--")
        right.text(0.62, 0.72, "label-blind\nbound", fontsize=7.5, color=COLOURS["raw"])
        right.text(0.5, 0.9, "shortcut", fontsize=7.5, ha="center", color=colour(NAME))
        right.set(
            xlabel="hit",
            ylabel="accuracy",
            xlim=(-0.03, 1.03),
            ylim=(0.42, 1.03),
            title="router sees contents",
        )
        caption(
            figure,
            f"{self.networks} selectors for each schedule and router, {self.steps} steps. A penalty from "
            "the first step costs successes; the annealed schedule has it from half of the training. "
            "Right: all selectors of the seven schedules; those above the line tell the label by their "
            "choice.",
        )
        return figure

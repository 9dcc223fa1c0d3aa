"""Errors on three targets against the number of inputs, and against the number of keys.

Source: :cite:t:`fu2023what`; the targets and sizes are our own, in the paper's manner.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ....core.experiment import RandomExperiment, setting
from ....core.figure import Panel, curves
from ....core.measurement import Measurement
from ....core.plotting import COLOURS, style
from ....core.result import Result
from ....core.sources import Source
from ..features import RandomFeatureAttention, RandomFeatureMLP, RidgePath, share_explained
from ..targets import NAME, TARGETS, D, Target, sphere, square

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ERROR = "error on held-out inputs"
LOOKS = {
    "attention": {"color": NAME},
    "attention, s = 4": {"color": NAME, "linestyle": "--"},
    "MLP": {"color": COLOURS["network"]},
}
LIMITS = {"ylim": (1e-3, 2)}
TEST = 2000


def middle_of(samples: Sequence[int]) -> int:
    """Returns the number of inputs at which the keys are varied."""
    return samples[len(samples) // 2]


def caption_of(result: Result) -> str:
    """Returns the caption."""
    heads, spread, samples = (result.settings[name] for name in ("heads", "spread", "samples"))
    return (
        f"Ridge regression on frozen features, {heads * (D + 1)} trained numbers each, {TEST:,} held-out "
        "inputs, "
        f"one draw per point. Last panel: {middle_of(samples)} training inputs. s = {spread:g}: heads "
        "favour the "
        "correlation of query and key."
    )


@dataclass(frozen=True)
class Errors(RandomExperiment):
    """Errors of random-feature attention and a random-feature MLP with equally many trained numbers."""

    samples: tuple[int, ...] = setting(
        (64, 128, 256, 512, 1024, 2048), ge=16, le=10_000, help="numbers of training inputs"
    )
    keys: tuple[int, ...] = setting((2, 4, 8, 16, 32), ge=1, le=256, help="numbers of keys in the last panel")
    heads: int = setting(200, ge=1, le=2000, help="heads; the MLP has five times as many units")
    spread: float = setting(4.0, ge=0, le=100, help="standard deviation s of the weight of the correlation")

    name = "random_features.errors"
    sources = (Source("fu2023what", status="own"),)

    view = curves(
        "n",
        panels=(
            *(
                Panel(
                    f"{label},\n16 keys",
                    ERROR,
                    {"target": label},
                    ("features", LOOKS),
                    legend="lower left" if place == 2 else "",
                    axes=LIMITS if place else LIMITS | {"ylabel": "error, share of the variance"},
                )
                for place, label in enumerate(TARGETS)
            ),
            Panel(
                f"{next(iter(TARGETS))},\nby keys",
                ERROR,
                lines=("features", LOOKS),
                legend="",
                axes=LIMITS | {"xlabel": "keys"},
                x="keys",
            ),
        ),
        xlabel="training inputs",
        log="xy",
        caption=caption_of,
        size=(7.0, 2.9),
    )

    @classmethod
    def quick(cls) -> "Errors":
        """Two sizes of each and 20 heads."""
        return cls(samples=(64, 128), keys=(2, 4), heads=20)

    def measure(self) -> Iterator[Measurement]:
        """Yields the errors by target and number of inputs, then those of the first target by number
        of keys.
        """
        for label, target in TARGETS.items():
            for n in self.samples:
                for name, value in self._errors(n, 16, target).items():
                    yield self.row(ERROR, value, at={"target": label, "features": name, "n": n}, n=n)
        middle = middle_of(self.samples)
        for keys in self.keys:
            for name, value in self._errors(middle, keys, square).items():
                yield self.row(ERROR, value, at={"features": name, "n": middle, "keys": keys}, n=middle)

    def _errors(self, n: int, keys: int, target: Target) -> dict[str, float]:
        """The error of each model as a share of that of the targets' mean; the penalty is picked on a quarter
        as many inputs.
        """
        generator = self.generator()
        x, validation, test = (
            sphere(count, keys=keys, generator=generator) for count in (n, max(n // 4, 64), TEST)
        )
        models = {
            "attention": RandomFeatureAttention.draw(self.heads, D, generator=generator),
            "attention, s = 4": RandomFeatureAttention.draw(
                self.heads, D, spread=self.spread, generator=generator
            ),
            "MLP": RandomFeatureMLP.draw(self.heads * (D + 1), keys + 1, D, generator=generator),
        }
        errors = {}
        for name, model in models.items():
            path = RidgePath(*(model.features(part) for part in (x, validation, test)))
            predicted = path.fit(target(x)[:, None], target(validation)[:, None]).test
            errors[name] = 1 - share_explained(predicted, target(test)[:, None])
        return errors

    @style()
    def plot(self, result: Result) -> "Figure":
        """Turns the numbers below the panels, which would overlap."""
        figure = super().plot(result)
        for ax in figure.axes:
            ax.tick_params(axis="x", labelrotation=60)
        return figure

"""Errors on three targets against the number of inputs, and against the number of keys.

Source: :cite:t:`fu2023what`; the targets and sizes are our own, in the paper's manner.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ....core.experiment import RandomExperiment, setting
from ....core.measurement import Arrays, Measurement
from ....core.plotting import COLOURS, axes, caption, line, style, text_figure
from ....core.result import Result
from ....core.sources import Source
from ..features import RandomFeatureAttention, RandomFeatureMLP, RidgePath, share_explained
from ..targets import NAME, TARGETS, D, Target, sphere, square

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SOURCE = Source("fu2023what", status="own")
ERROR = "error on held-out inputs"
MODELS = {"attention": (NAME, "-"), "attention, s = 4": (NAME, "--"), "MLP": ("network", "-")}
TEST = 2000


@dataclass(frozen=True)
class Errors(RandomExperiment):
    """Errors of random-feature attention and a random-feature MLP with equally many trained numbers."""

    samples: tuple[int, ...] = setting(
        (64, 128, 256, 512, 1024, 2048), ge=16, le=10_000, help="numbers of training inputs"
    )
    keys: tuple[int, ...] = setting((2, 4, 8, 16, 32), ge=1, le=256, help="numbers of keys in the last panel")
    heads: int = setting(200, ge=1, le=2000, help="heads; the MLP has five times as many units")
    spread: float = setting(4.0, ge=0, le=100, help="standard deviation s of the weight of the correlation")

    name: ClassVar[str] = "random_features.errors"
    sources: ClassVar[tuple[Source, ...]] = (SOURCE,)

    @classmethod
    def quick(cls) -> "Errors":
        """Two sizes of each and 20 heads."""
        return cls(samples=(64, 128), keys=(2, 4), heads=20)

    def measure(self) -> Iterator[Measurement | Arrays]:
        """Yields the errors by target and number of inputs, then those of the first target by number of keys."""
        arrays = {"samples": np.array(self.samples), "keys": np.array(self.keys)}
        for label, target in TARGETS.items():
            rows = []
            for n in self.samples:
                errors = self._errors(n, 16, target)
                rows.append(list(errors.values()))
                for name, value in errors.items():
                    yield Measurement(
                        NAME,
                        "figure",
                        ERROR,
                        value,
                        at={"target": label, "features": name, "n": n},
                        n=n,
                        source=SOURCE,
                    )
            arrays[label] = np.array(rows)
        rows = []
        middle = self.samples[len(self.samples) // 2]
        for keys in self.keys:
            errors = self._errors(middle, keys, square)
            rows.append(list(errors.values()))
            for name, value in errors.items():
                yield Measurement(
                    NAME,
                    "figure",
                    ERROR,
                    value,
                    at={"features": name, "n": middle, "keys": keys},
                    n=middle,
                    source=SOURCE,
                )
        yield Arrays(
            {f"{NAME}/{name}": values for name, values in {**arrays, "by keys": np.array(rows)}.items()}
        )

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
        """Plots the errors in four panels."""
        if f"{NAME}/by keys" not in result.arrays:
            return text_figure(f"{self.name}: nothing was measured")
        middle = self.samples[len(self.samples) // 2]
        figure, panels = axes(1, 4, height=2.7)
        for ax, label in zip(panels, [*TARGETS, "by keys"]):
            x = result.arrays[f"{NAME}/{'keys' if label == 'by keys' else 'samples'}"]
            for (name, (colour, how)), values in zip(MODELS.items(), result.arrays[f"{NAME}/{label}"].T):
                line(ax, x, values, color=COLOURS[colour], linestyle=how, label=name)
            title = f"{next(iter(TARGETS))},\n{middle} inputs" if label == "by keys" else f"{label},\n16 keys"
            ax.set(
                title=title,
                xlabel="keys" if label == "by keys" else "training inputs",
                xscale="log",
                yscale="log",
                ylim=(1e-3, 2),
            )
            ax.set_xticks(
                x, [str(number) if index % 2 == 0 or len(x) < 4 else "" for index, number in enumerate(x)]
            )
            ax.minorticks_off()
        panels[0].set_ylabel("error, share of the variance")
        panels[2].legend(loc="lower left")
        numbers = f"{self.heads * (D + 1)} trained numbers each, {TEST:,} held-out inputs, one draw per point"
        last = (
            f"Last panel: {middle} training inputs. s = {self.spread:g}: heads favour the correlation of "
            "query and key."
        )
        caption(figure, f"Ridge regression on frozen features, {numbers}. {last}")
        return figure

"""Errors on three targets against the number of inputs, and against the number of keys.

Source: :cite:t:`fu2023what`; the targets and sizes are our own, in the paper's manner.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from ....core.experiment import setting
from ....core.figure import Panel, Reading, curves, figure, reading
from ....core.plotting import COLOURS, style
from ....core.result import Result
from ....core.sources import Source
from ..features import RandomFeatureAttention, RandomFeatureMLP, RidgePath, share_explained
from ..targets import TARGETS, D, Target, sphere, square

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ERROR = "error on held-out inputs"
LOOKS = {
    "attention": {"color": "random_features"},
    "attention, s = 4": {"color": "random_features", "linestyle": "--"},
    "MLP": {"color": COLOURS["network"]},
}
LINES, LIMITS = ("features", LOOKS), {"ylim": (1e-3, 2)}
BY_KEYS = LIMITS | {"xlabel": "keys"}


@style()
def draw(result: Result) -> "Figure":
    """Draws the errors by target and by keys; turns the numbers below the panels, which would overlap."""
    samples, trained = result.settings["samples"], result.settings["heads"] * (D + 1)
    drawn = curves(
        "n",
        panels=(
            *(
                Panel(f"{of},\n16 keys", ERROR, {"target": of}, LINES, legend="", axes=LIMITS)
                for of in TARGETS
            ),
            Panel(
                f"{next(iter(TARGETS))},\nby keys",
                ERROR,
                lines=LINES,
                axes=BY_KEYS,
                legend="ends",
                x="keys",
            ),
        ),
        xlabel="training inputs",
        ylabel="error / variance",
        log="xy",
        caption=f"Ridge regression on frozen features, {trained} trained numbers each, 2,000 held-out "
        f"inputs, one draw per point. Last panel: {samples[len(samples) // 2]} training inputs. "
        "s = {spread:g}: heads favour the correlation of query and key.",
        size=(7.0, 2.9),
    )(result)
    for ax in drawn.axes:
        ax.tick_params(axis="x", labelrotation=60)
    return drawn


@figure(
    "random_features.errors",
    source=Source("fu2023what", status="own"),
    view=draw,
    quick={"samples": (64, 128), "keys": (2, 4), "heads": 20},
)
def errors(
    *,
    samples: tuple[int, ...] = setting(
        (64, 128, 256, 512, 1024, 2048), ge=16, le=10_000, help="numbers of training inputs"
    ),
    keys: tuple[int, ...] = setting(
        (2, 4, 8, 16, 32), ge=1, le=256, help="numbers of keys in the last panel"
    ),
    heads: int = setting(200, ge=1, le=2000, help="heads; the MLP has five times as many units"),
    spread: float = setting(4.0, ge=0, le=100, help="standard deviation s of the weight of the correlation"),
    seed: int = 0,
) -> Iterator[Reading]:
    """Errors of random-feature attention and a random-feature MLP with equally many trained numbers: by
    target and number of inputs, then those of the first target by number of keys.
    """
    shared = {"heads": heads, "spread": spread, "seed": seed}
    for label, target in TARGETS.items():
        for n in samples:
            for name, value in error_shares(n, 16, target, **shared).items():
                yield reading(ERROR, value, at={"target": label, "features": name, "n": n}, n=n)
    middle = samples[len(samples) // 2]
    for count in keys:
        for name, value in error_shares(middle, count, square, **shared).items():
            yield reading(ERROR, value, at={"features": name, "n": middle, "keys": count}, n=middle)


def error_shares(
    n: int, keys: int, target: Target, *, heads: int, spread: float, seed: int
) -> dict[str, float]:
    """Returns the error of each model as a share of that of the targets' mean; the penalty is picked on a
    quarter as many inputs.
    """
    generator = torch.Generator().manual_seed(seed)
    x, validation, test = (
        sphere(count, keys=keys, generator=generator) for count in (n, max(n // 4, 64), 2000)
    )
    models = {
        "attention": RandomFeatureAttention.draw(heads, D, generator=generator),
        "attention, s = 4": RandomFeatureAttention.draw(heads, D, spread=spread, generator=generator),
        "MLP": RandomFeatureMLP.draw(heads * (D + 1), keys + 1, D, generator=generator),
    }
    errors = {}
    for name, model in models.items():
        path = RidgePath(*(model.features(part) for part in (x, validation, test)))
        predicted = path.fit(target(x)[:, None], target(validation)[:, None]).test
        errors[name] = 1 - share_explained(predicted, target(test)[:, None])
    return errors

"""Membership maps of token statistics: which patches does each head count as its own, and are they the
regions of the image?

Source: :cite:t:`wu2025token`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ....core.experiment import setting, sweep
from ....core.figure import DASHED, Reading, figure
from ....core.measurement import Null
from ....core.plotting import COLOURS, caption, colour, stacked, style
from ....core.result import Result
from ....core.sources import Source
from ....core.table import Arrays
from ....data.two_objects import two_objects
from ....models.crate import ReleasedTokenStatisticsAttention
from ....models.image_networks import Mlp
from .. import networks
from .common import seed_mean
from .region_agreement import OTHERS, PERMUTED, Examples, agreements, membership_maps

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SOURCE = Source("wu2025token")
ACCURACY = "test accuracy"
AGREEMENT = "agreement of the best head with the foreground"
BEST = {"layer chosen by": "validation"}
UNTRAINED = "untrained networks"
INK = 0.25  # mean ink from which a patch of a digit is foreground
COVER = 0.5  # share of a patch that objects must cover
DRAWS = 199
LEARNING_RATE = 3e-3
MAX_PLOTTED = 3
HEADS = 4

Loader = Callable[[int, int], tuple[networks.DataParts, Examples, Examples]]


def digit_examples(seed: int, images: int) -> tuple[networks.DataParts, Examples, Examples]:
    """Returns the digits, and their validation and test parts with the inked patches as foreground; all
    digits are used.
    """
    parts = networks.digit_parts(seed=seed)
    validation, test = (
        Examples(data.tokens, data.tokens.mean(-1) > INK, data.images.permute(0, 2, 3, 1))  # pyright: ignore[reportOptionalMemberAccess]
        for data in (parts.validation, parts.test)
    )
    return parts, validation, test


def object_examples(seed: int, images: int) -> tuple[networks.DataParts, Examples, Examples]:
    """Draws images of two objects, 70 % of them for training, and up to 200 more for the choice of a head and
    for the measurement.
    """
    generator = torch.Generator().manual_seed(seed)
    parts = networks.split(two_objects(images, generator=generator).data, seed=seed)

    def examples() -> Examples:
        drawn = two_objects(min(200, images), generator=generator)
        assert drawn.data.images is not None
        return Examples(
            drawn.data.tokens, drawn.shares.sum(1) > COVER, drawn.data.images.clamp(0, 1).permute(0, 2, 3, 1)
        )

    return parts, examples(), examples()


DATA: dict[str, Loader] = {"two objects": object_examples, "digits": digit_examples}


def train_network(data: str, seed: int, images: int, steps: int, dim: int, depth: int) -> dict[str, Any]:
    """Trains one network. Returns its accuracy, the agreements by layer with their nulls, those of an
    untrained network, and pictures.
    """
    parts, validation, test = DATA[data](seed, images)
    halves = {"attention": ReleasedTokenStatisticsAttention, "sparsify": Mlp}
    model, untrained = (
        networks.crate(parts.train, seed=s, dim=dim, depth=depth, heads=HEADS, **halves)
        for s in (seed, seed + 1)
    )
    networks.fit(model, parts, steps=steps, learning_rate=LEARNING_RATE, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    trained = agreements(model, validation, test, draws=DRAWS, generator=generator)
    initial = agreements(untrained, validation, test, draws=0, generator=generator)
    accuracy, layer = networks.accuracy(model, parts.test), int(trained.validation.argmax())
    side = round(test.tokens.shape[1] ** 0.5)
    examples = Examples(*(part[:MAX_PLOTTED] for part in test))
    maps = [
        membership_maps(network, examples.tokens)[layer].unflatten(-1, (side, side))
        for network in (model, untrained)
    ]
    return {
        "accuracy": accuracy,
        "p": networks.guessing_p([accuracy], parts.test),
        "values": torch.stack([trained.test, initial.test]).numpy(),
        "best": (layer, int(initial.validation.argmax())),
        "nulls": {kind: draws.numpy() for kind, draws in trained.nulls.items()},
        "pictures": {
            "images": examples.images.float().numpy(),
            "foreground": examples.foreground.unflatten(-1, (side, side)).numpy(),
            # [images, heads of the trained network, then of the untrained one, side, side]
            "maps": torch.cat(maps, 1).float().numpy(),
            "head": np.array(int(trained.head[layer])),
        },
    }


@style()
def draw(result: Result) -> "Figure":
    """Draws one row per image: the image, its foreground, the maps of the heads, trained and untrained;
    below, the agreements.
    """
    from matplotlib.patches import Rectangle

    pictures = {
        data: [result.arrays[f"crate/memberships/{data}/{name}"] for name in ("images", "foreground", "maps")]
        for data in DATA
    }
    shown = [(data, row) for data in DATA for row in zip(*pictures[data])]
    drawn, (above, below) = stacked([0.66 * len(shown) + 0.3, 1.6], height=0.66 * len(shown) + 2.5)
    grid = above.subplots(len(shown), 2 + 2 * HEADS, squeeze=False)
    titles = ["image", "foreground"]
    titles += [f"{state}\nhead {k + 1}" for state in ("trained", "untrained") for k in range(HEADS)]
    for line, (data, (image, foreground, maps)) in zip(grid, shown):
        for number, (ax, picture) in enumerate(zip(line, (image, foreground, *maps))):
            ax.imshow(picture, cmap="viridis" if number > 1 else "gray", interpolation="nearest")
            ax.axis("off")
        frame = Rectangle((-0.5, -0.5), *maps.shape[-2:], fill=False, edgecolor=colour("crate"), linewidth=3)
        line[2 + int(result.arrays[f"crate/memberships/{data}/head"])].add_patch(frame)
    for ax, title in zip(grid[0], titles):
        ax.set_title(title, fontsize=7, loc="center")
    for ax, data in zip(below.subplots(1, len(DATA)), DATA):
        _agreement_panel(ax, result, data)
    caption(
        drawn,
        "Above: memberships of the patches in the heads of one layer; each map has its own scale, from its "
        "smallest value (dark) to its largest (bright); framed: the head with the best agreement. Below: "
        "the probability that a foreground patch has a larger membership than a background patch of its "
        "image (or a smaller one). Layer, head and direction are chosen on validation images. Bars: means "
        "of the seeds; dots: the seeds, or the ends of the draws. Other images: the same map and the "
        "foreground of another image, that is, what the position alone says. Dashed: chance, 1/2."
        + networks.chance_note(result, ACCURACY),
    )
    return drawn


@figure(
    "crate.memberships",
    source=(SOURCE, Source("alpaydin1998optical")),
    view=draw,
    quick={"seeds": 1, "images": 400, "steps": 80, "dim": 32, "depth": 1},
)
def memberships(
    *,
    seeds: int = setting(3, ge=1, help="number of data sets or splits, and initial weights"),
    images: int = setting(2000, ge=60, help="number of images of two objects, 70 % of them for training"),
    steps: int = setting(250, ge=1, help="optimiser steps per network, 64 images per step"),
    dim: int = setting(48, ge=8, multiple_of=4, help="width, in four heads"),
    depth: int = setting(3, ge=1, help="layers"),
    seed: int = 0,
) -> Iterator[Reading | Arrays]:
    """Memberships of patches in the heads of a network with token statistics, beside the foreground of
    held-out images.

    The network has the released attention of token statistics and the MLP of a ViT; it learns the classes
    only. The agreement of a head is the probability that a foreground patch has a larger membership than a
    background patch of the same image (or a smaller one); the head and the direction are chosen on validation
    images, so chance is 1/2. There are three chance levels: permuted positions, the regions of other images
    at the same positions (what the position alone says), and untrained networks.
    """
    sizes = {"images": images, "steps": steps, "dim": dim, "depth": depth}
    # Seeds advance by two, because the untrained network of a seed has the next one.
    settings = [{"data": d, "seed": 1000 * seed + 2 * k, **sizes} for d in DATA for k in range(seeds)]
    results = iter(sweep(train_network, settings))
    for data in DATA:
        runs = [next(results) for _ in range(seeds)]
        columns: dict[str, Any] = {"unit": "share", "split": "test", "data": data, "side": ">="}
        columns["model"] = f"token statistics, {data}"
        # The networks of the seeds are independent, so the largest probability is on the safe side.
        p = max(run["p"] for run in runs)
        yield seed_mean(ACCURACY, [run["accuracy"] for run in runs], p=p, **columns)
        for layer in range(depth):
            yield agreement(runs, [(layer, layer)] * seeds, layer=layer, **columns)
        best = [run["best"] for run in runs]
        yield agreement(runs, best, at=BEST, **columns)
        pictures = runs[0]["pictures"]
        yield Arrays({f"crate/memberships/{data}/{name}": array for name, array in pictures.items()})
        at_best = np.array([run["values"][0, layer] for run, (layer, _) in zip(runs, best)])
        yield Arrays({f"crate/memberships/{data}/seeds": at_best})


def agreement(
    runs: Sequence[Mapping[str, Any]], layers: Sequence[tuple[int, int]], **columns: Any
) -> Reading:
    """Returns the mean over seeds with its chance levels.

    Args:
        runs: results of the seeds.
        layers: the layer of the trained and of the untrained network, for each seed.
        columns: further columns of the row.
    """
    pairs = [(run, trained, untrained) for run, (trained, untrained) in zip(runs, layers)]
    values = [run["values"][0, layer] for run, layer, _ in pairs]
    # draw i of the mean is the mean of the seeds' draws i
    nulls = [
        Null(kind, tuple(np.mean([run["nulls"][kind][:, layer] for run, layer, _ in pairs], 0)))
        for kind in (PERMUTED, OTHERS)
    ]
    nulls.append(Null(UNTRAINED, tuple(run["values"][1, layer] for run, _, layer in pairs)))
    p = nulls[0].p(float(np.mean(values)), ">=")
    return seed_mean(AGREEMENT, values, nulls=tuple(nulls), p=p, **columns)


def _agreement_panel(ax: "Axes", result: Result, data: str) -> None:
    """Plots one bar per state, with the seeds, or the ends of the null, as dots."""
    row = result.table.select(quantity=AGREEMENT, data=data, at=BEST).one()
    permuted, others, untrained = row.nulls
    bars = {  # name -> points and mean
        "trained": (result.arrays[f"crate/memberships/{data}/seeds"], row.value),
        "other images": ((others.low, others.high), others.mean),
        "permuted": ((permuted.low, permuted.high), permuted.mean),
        "untrained": (untrained.draws, untrained.mean),
    }
    for place, (points, mean) in enumerate(bars.values()):
        ax.bar(place, mean, color=colour("crate") if place == 0 else COLOURS["null"], width=0.65)
        ax.plot([place] * len(points), points, "o", color="black", markersize=2.5)
        ax.text(place, max(*points, mean, 0.5) + 0.02, f"{mean:.2f}", ha="center", fontsize=7)
    names = list(bars)
    ax.axhline(0.5, color="black", linewidth=0.8, linestyle=DASHED)
    ax.set_xticks(range(len(names)), names, fontsize=7)
    ax.set_ylim(0, 1.08)
    ax.set_title(f"Agreement, {data}")

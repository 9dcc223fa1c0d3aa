"""Membership maps of token statistics: which patches does each head count as its own, and are they the
regions of the image?

Source: :cite:t:`wu2024token`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ....core.experiment import RandomExperiment, setting, sweep
from ....core.measurement import Measurement, Null
from ....core.plotting import COLOURS, caption, colour, stacked, style
from ....core.result import Result
from ....core.sources import Source
from ....core.table import Arrays
from ....data.two_objects import two_objects
from ....models.crate import ReleasedTokenStatisticsAttention
from ....models.image_networks import Mlp
from .. import networks
from .region_agreement import OTHERS, PERMUTED, Examples, agreements, membership_maps

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SOURCE = Source("wu2024token")
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
    model, untrained = (
        networks.crate(
            parts.train,
            seed=s,
            attention=ReleasedTokenStatisticsAttention,
            sparsify=Mlp,
            dim=dim,
            depth=depth,
            heads=HEADS,
        )
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


@dataclass(frozen=True)
class MembershipMaps(RandomExperiment):
    """Memberships of patches in the heads of a network with token statistics, beside the foreground of
    held-out images.

    The network has the released attention of token statistics and the MLP of a ViT; it learns the classes
    only. The agreement of a head is the probability that a foreground patch has a larger membership than a
    background patch of the same image (or a smaller one); the head and the direction are chosen on validation
    images, so chance is 1/2. There are three chance levels: permuted positions, the regions of other images
    at the same positions (what the position alone says), and untrained networks.
    """

    seeds: int = setting(3, ge=1, help="number of data sets or splits, and initial weights")
    images: int = setting(2000, ge=60, help="number of images of two objects, 70 % of them for training")
    steps: int = setting(250, ge=1, help="optimiser steps per network, 64 images per step")
    dim: int = setting(48, ge=8, multiple_of=4, help="width, in four heads")
    depth: int = setting(3, ge=1, help="layers")

    name = "crate.memberships"
    sources = (SOURCE, Source("alpaydin1998optical"))

    def measure(self) -> Iterator[Measurement | Arrays]:
        """Yields the accuracies and the agreements with their nulls; arrays with the agreements of the seeds
        and with pictures of the first.
        """
        sizes = {"images": self.images, "steps": self.steps, "dim": self.dim, "depth": self.depth}
        # Seeds advance by two, because the untrained network of a seed has the next one.
        runs = sweep(
            train_network,
            [{"data": d, "seed": 1000 * self.seed + 2 * k, **sizes} for d in DATA for k in range(self.seeds)],
        )
        for position, data in enumerate(DATA):
            of_data = runs[position * self.seeds : (position + 1) * self.seeds]
            # The networks of the seeds are independent, so the largest probability is on the safe side.
            yield self._row(
                ACCURACY,
                data,
                [run["accuracy"] for run in of_data],
                p=max(run["p"] for run in of_data),
                side=">=",
            )
            values = np.stack([run["values"] for run in of_data])  # [seeds, trained or untrained, layers]
            # [seeds, draws, layers]
            nulls = {kind: np.stack([run["nulls"][kind] for run in of_data]) for kind in (PERMUTED, OTHERS)}
            best = np.array([run["best"] for run in of_data])  # [seeds, trained or untrained]
            seeds = np.arange(self.seeds)
            for layer in range(self.depth):
                yield self._agreement(
                    data, values[:, :, layer], {k: n[:, :, layer] for k, n in nulls.items()}, layer=layer
                )
            chosen = np.stack([values[seeds, state, best[:, state]] for state in range(2)], 1)
            at_best = {kind: null[seeds, :, best[:, 0]] for kind, null in nulls.items()}
            yield self._agreement(data, chosen, at_best, at=BEST)
            pictures = of_data[0]["pictures"]
            yield Arrays({f"crate/memberships/{data}/{name}": array for name, array in pictures.items()})
            yield Arrays({f"crate/memberships/{data}/seeds": chosen[:, 0]})

    def _agreement(
        self, data: str, values: np.ndarray, nulls: dict[str, np.ndarray], **place: Any
    ) -> Measurement:
        """Returns the mean over seeds with its chance levels; ``values`` is [seeds, trained or untrained], a
        null [seeds, draws].
        """
        # draw i of the mean is the mean of the seeds' draws i
        drawn = [Null(kind, tuple(draws.mean(0))) for kind, draws in nulls.items()]
        drawn.append(Null(UNTRAINED, tuple(values[:, 1])))
        p = drawn[0].p(float(values[:, 0].mean()), ">=")
        return self._row(AGREEMENT, data, values[:, 0], nulls=tuple(drawn), side=">=", p=p, **place)

    def _row(self, quantity: str, data: str, values: Any, **columns: Any) -> Measurement:
        """Returns a row with the mean over seeds."""
        note = f"mean of the seeds, {min(values):.3g} to {max(values):.3g}"
        columns = {
            "unit": "share",
            "split": "test",
            "data": data,
            "model": f"token statistics, {data}",
            "n": self.seeds,
            **columns,
        }
        return self.row(quantity, float(np.mean(values)), note=note, **columns)

    @style()
    def plot(self, result: Result) -> "Figure":
        """Plots one row per image: the image, its foreground, the maps of the heads, trained and untrained;
        below, the agreements.
        """
        from matplotlib.patches import Rectangle

        shown = [
            (data, row)
            for data in DATA
            for row in range(len(result.arrays[f"crate/memberships/{data}/images"]))
        ]
        figure, (above, below) = stacked([0.66 * len(shown) + 0.3, 1.6], height=0.66 * len(shown) + 2.5)
        grid = above.subplots(len(shown), 2 + 2 * HEADS, squeeze=False)
        titles = [
            "image",
            "foreground",
            *(f"{state}\nhead {k + 1}" for state in ("trained", "untrained") for k in range(HEADS)),
        ]
        for line, (data, row) in zip(grid, shown):
            image, *maps = (
                result.arrays[f"crate/memberships/{data}/{name}"][row]
                for name in ("images", "foreground", "maps")
            )
            for number, (ax, picture) in enumerate(zip(line, (image, maps[0], *maps[1]))):
                ax.imshow(picture, cmap="viridis" if number > 1 else "gray", interpolation="nearest")
                ax.axis("off")
            best = line[2 + int(result.arrays[f"crate/memberships/{data}/head"])]
            best.add_patch(
                Rectangle(
                    (-0.5, -0.5), *maps[1].shape[-2:], fill=False, edgecolor=colour("crate"), linewidth=3
                )
            )
        for ax, title in zip(grid[0], titles):
            ax.set_title(title, fontsize=7, loc="center")
        for ax, data in zip(below.subplots(1, len(DATA)), DATA):
            _agreement_panel(ax, result, data)
        caption(
            figure,
            "Above: memberships of the patches in the heads of one layer; each map has its own scale, from "
            "its smallest value (dark) to its largest (bright); framed: the head with the best agreement. "
            "Below: the probability that a foreground patch has a larger membership than a background "
            "patch of its image (or a smaller one). Layer, head and direction are chosen on validation "
            "images. Bars: means of the seeds; dots: the seeds, or the ends of the draws. Other images: the "
            "same map and the foreground of another image, that is, what the position alone says. Dashed: "
            "chance, 1/2." + networks.chance_note(result, ACCURACY),
        )
        return figure

    @classmethod
    def quick(cls) -> "MembershipMaps":
        return cls(seeds=1, images=400, steps=80, dim=32, depth=1)


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
    ax.axhline(0.5, color="black", linewidth=0.8, linestyle=(0, (4, 3)))
    ax.set_xticks(range(len(names)), names, fontsize=7)
    ax.set_ylim(0, 1.08)
    ax.set_title(f"Agreement, {data}")

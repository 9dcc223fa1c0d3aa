"""Does segmentation emerge from classification? CRATE and a ViT on generated images of two objects with known
masks.

Source: :cite:t:`yu2023emergence`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from ....core.experiment import RandomExperiment, setting, sweep
from ....core.measurement import Measurement, Null
from ....core.plotting import axes, caption, colour, style
from ....core.result import Result
from ....core.sources import Source
from ....core.table import Arrays
from ....data.two_objects import TwoObjects, two_objects
from .. import networks
from ..segmentation import (
    MASS,
    Selection,
    class_attention,
    components,
    exceeding,
    overlap,
    random_patches,
    top_mass,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SOURCE = Source("yu2023emergence")
# name -> constructor and learning rate
NETWORKS = {"CRATE (released form)": (networks.crate, 3e-3), "ViT": (networks.vit, 2e-3)}
Rule = tuple[str, float]
CUTS = (0.2, 0.4, 0.6, 0.8)  # shares of a map that the selected patches hold
# A rule takes the patches that hold a share of the mass of a map, or of its excess over the mean.
RULES = tuple(("mass", cut) for cut in CUTS)
EXCESS = ("excess", MASS)
# Kind of map -> rules. The maps of components are excesses over the mean already.
MAPS = {"attention of the class token": (*RULES, EXCESS), "principal components": RULES}
STATES = ("trained", "untrained", "random")
ACCURACY, PARAMETERS = "test accuracy", "trainable parameters"
OBJECT_IOU, FOREGROUND_IOU = "IoU with each object", "IoU with both objects"
RANDOM_OBJECT_IOU, RANDOM_FOREGROUND_IOU = (
    "IoU of random patches with each object",
    "IoU of random patches with both objects",
)
MAX_PLOTTED = 4


def train_network(name: str, seed: int, images: int, steps: int, dim: int, depth: int) -> dict[str, Any]:
    """Trains one network. Returns its numbers and pictures, and the IoU of its maps, of untrained maps and of
    random patches.
    """
    constructor, rate = NETWORKS[name]
    generator = torch.Generator().manual_seed(seed)
    data = networks.split(two_objects(images, generator=generator).data, seed=seed)
    test_images = two_objects(min(300, images), generator=generator)
    model, untrained = (constructor(data.train, seed=s, dim=dim, depth=depth) for s in (seed, seed + 1))
    networks.fit(model, data, steps=steps, learning_rate=rate, seed=seed)
    numbers = {
        ACCURACY: networks.accuracy(model, data.test),
        PARAMETERS: float(networks.parameter_count(model)),
    }
    overlaps = {}
    for network, state in ((model, "trained"), (untrained, "untrained")):
        for kind, selections in _selections(network, test_images).items():
            for rule, selection in selections.items():
                overlaps[kind, rule, state] = overlap(selection, test_images.masks)
                if state == "trained":
                    overlaps[kind, rule, "random"] = overlap(
                        random_patches(selection, generator=generator), test_images.masks
                    )
    return {
        "numbers": numbers,
        "p": networks.guessing_p([numbers[ACCURACY]], data.test),
        "overlaps": overlaps,
        "pictures": _pictures(model, test_images),
    }


@dataclass(frozen=True)
class Emergence(RandomExperiment):
    """IoU of attention maps and principal components with the objects of generated images, in CRATE and a ViT
    that learnt their colours.

    A map becomes a selection of patches by a rule: the fewest patches that hold a share of its mass (four
    shares), or, for attention, of its excess over the mean of the image on either side, which is the rule for
    components. There are two chance levels, both with the same number of candidates: untrained networks, and
    equally many patches at random places.
    """

    seeds: int = setting(3, ge=1, help="number of data sets and initial weights")
    images: int = setting(
        3000, ge=60, help="number of images, 70 % of them for training; IoU is measured on up to 300 more"
    )
    steps: int = setting(400, ge=1, help="optimiser steps per network, 64 images per step")
    dim: int = setting(48, ge=8, multiple_of=4, help="width, in four heads")
    depth: int = setting(3, ge=1, help="layers")

    name = "crate.emergence"
    sources = (SOURCE, Source("dosovitskiy2021image"))

    def measure(self) -> Iterator[Measurement | Arrays]:
        """Yields the accuracies and the IoU with both chance levels; arrays with pictures and with the IoU of
        the seeds.
        """
        sizes = {"images": self.images, "steps": self.steps, "dim": self.dim, "depth": self.depth}
        # Seeds advance by two, because the untrained network of a seed has the next one.
        settings = [
            {"name": name, "seed": 1000 * self.seed + 2 * k, **sizes}
            for name in NETWORKS
            for k in range(self.seeds)
        ]
        results = sweep(train_network, settings)
        by_network = {name: results[i * self.seeds : (i + 1) * self.seeds] for i, name in enumerate(NETWORKS)}
        for name, runs in by_network.items():
            for quantity in runs[0]["numbers"]:
                values = [run["numbers"][quantity] for run in runs]
                # The networks of the seeds are independent, so the largest probability is on the safe side.
                columns = {"p": max(run["p"] for run in runs), "side": ">="} if quantity == ACCURACY else {}
                yield self._row(
                    quantity, values, name, unit="" if quantity == PARAMETERS else "share", **columns
                )
            yield from self._overlaps(name, [run["overlaps"] for run in runs])
            pictures = runs[0]["pictures"]
            yield Arrays({f"crate/emergence/{name}/{picture}": array for picture, array in pictures.items()})

    def _overlaps(
        self, name: str, runs: Sequence[Mapping[tuple[str, Rule, str], Any]]
    ) -> Iterator[Measurement | Arrays]:
        """Yields the IoU of a network with both chance levels, and an array with those of the seeds."""
        for kind, rules in MAPS.items():
            for rule in rules:
                place = {"at": dict(zip(("map", "of", "share"), (kind, *rule)))}
                for quantity, random_quantity, field in (
                    (OBJECT_IOU, RANDOM_OBJECT_IOU, "per_object"),
                    (FOREGROUND_IOU, RANDOM_FOREGROUND_IOU, "foreground"),
                ):
                    iou = {
                        state: [getattr(run[kind, rule, state], field) for run in runs] for state in STATES
                    }
                    null = Null("untrained networks", tuple(iou["untrained"]))
                    yield self._row(quantity, iou["trained"], name, nulls=(null,), side=">=", **place)
                    yield self._row(random_quantity, iou["random"], name, **place)
            seeds = [[run[kind, rule, "trained"].per_object for run in runs] for rule in rules]
            yield Arrays({f"crate/emergence/{name}/{kind}": np.array(seeds)})  # [rules, seeds]

    def _row(self, quantity: str, values: list[float], model: str, **columns: Any) -> Measurement:
        """Returns a row with the mean of the values over seeds."""
        note = f"mean of the seeds, {min(values):.3g} to {max(values):.3g}"
        columns = {"unit": "share", "model": model, "n": len(values), "note": note, **columns}
        return self.row(quantity, float(np.mean(values)), **columns)

    @style()
    def plot(self, result: Result) -> "Figure":
        """Plots one row per image and, below, the IoU. Each row has the image and, per network, the maps of
        its heads and components.
        """
        names = list(NETWORKS)
        images = result.arrays[f"crate/emergence/{names[0]}/images"][:3]
        heads = result.arrays[f"crate/emergence/{names[0]}/attention"].shape[1]
        columns = 1 + len(names) * (heads + 1)
        figure, flat = axes(len(images) + 1, columns, width=0.82 * columns, height=1.05 * len(images) + 2.1)
        grid = flat.reshape(len(images) + 1, columns)
        for row, image in enumerate(images):
            _image(grid[row, 0], image.transpose(1, 2, 0), "image" if row == 0 else "")
            for number, name in enumerate(names):
                start = 1 + number * (heads + 1)
                for head in range(heads):
                    title = f"{name.split()[0]}\nhead {head + 1}" if row == 0 else ""
                    _image(
                        grid[row, start + head],
                        result.arrays[f"crate/emergence/{name}/attention"][row, head],
                        title,
                    )
                colours = result.arrays[f"crate/emergence/{name}/components"][row].transpose(1, 2, 0)
                _image(
                    grid[row, start + heads], np.clip(0.5 + colours / 5, 0, 1), "\nPCA" if row == 0 else ""
                )
        # The last row of cells is replaced by two wide panels.
        spec = grid[-1, 0].get_gridspec()
        for ax in grid[-1]:
            ax.remove()
        half = columns // 2
        parts = [figure.add_subplot(part) for part in (spec[-1, 1:half], spec[-1, half + 1 :])]
        for ax, kind in zip(parts, MAPS):
            _iou_panel(ax, result, kind)
        top = 1.08 * max(ax.dataLim.y1 for ax in parts)
        for ax in parts:
            ax.set_ylim(0, top)
        caption(
            figure,
            "Heads: attention of the class token; each map has its own scale, from its smallest weight "
            "(dark) to its largest (bright). PCA: the first three principal components as red, green and "
            "blue, from -2.5 to 2.5 standard deviations. Below: IoU of the best candidate with each "
            "object, by the share of a map that is selected, and for attention by its excess over the "
            "mean. Solid: trained, one marker per seed; dashed: untrained; dotted: random patches."
            + networks.chance_note(result, ACCURACY),
        )
        return figure

    @classmethod
    def quick(cls) -> "Emergence":
        return cls(seeds=1)


def _selections(model: nn.Module, data: TwoObjects) -> dict[str, dict[Rule, Selection]]:
    """Returns the selected patches by kind of map and rule, in the order of MAPS."""
    attention = class_attention(model, data.data.tokens)
    maps = dict(zip(MAPS, (attention, exceeding(components(model, data.data.tokens)))))
    selections = {
        kind: {rule: top_mass(maps[kind], mass=cut) for rule, cut in zip(RULES, CUTS)} for kind in MAPS
    }
    selections["attention of the class token"][EXCESS] = top_mass(exceeding(attention))
    return selections


def _pictures(model: nn.Module, test_images: TwoObjects) -> dict[str, np.ndarray]:
    """Returns the first images, the map of every head, and three principal components."""
    examples = test_images[:MAX_PLOTTED]
    assert examples.data.images is not None
    side = int(examples.data.tokens.shape[1] ** 0.5)
    # Components concern all test images, though only the first are plotted.
    projected = components(model, test_images.data.tokens, count=3)[:MAX_PLOTTED]
    return {
        "images": examples.data.images.clamp(0, 1).float().numpy(),
        "attention": class_attention(model, examples.data.tokens).unflatten(-1, (side, side)).float().numpy(),
        "components": projected.unflatten(-1, (side, side)).float().numpy(),
    }


def _image(ax: "Axes", picture: np.ndarray, title: str) -> None:
    ax.imshow(picture, cmap="viridis", interpolation="nearest")
    ax.set_title(title, fontsize=7)
    ax.axis("off")


def _iou_panel(ax: "Axes", result: Result, kind: str) -> None:
    """Plots the IoU with each object against the rules of one kind of map."""
    rules = MAPS[kind]
    for name in NETWORKS:
        rows, random = (
            result.table.select(quantity=quantity, model=name, at={"map": kind})
            for quantity in (OBJECT_IOU, RANDOM_OBJECT_IOU)
        )
        for values, linestyle, label in (
            (rows.column("value"), "-", name.split()[0]),
            ([null.mean for null in rows.column("null")], (0, (3, 2)), "_"),
            (random.column("value"), (0, (1, 2)), "_"),
        ):
            look = {"linestyle": linestyle, "color": colour(name), "linewidth": 1.2}
            # The rule on the excess is another rule, not another share, so it is not connected with the
            # others.
            ax.plot(range(len(CUTS)), values[: len(CUTS)], label=label, **look)
            for place, value in enumerate(values[len(CUTS) :], start=len(CUTS)):
                ax.plot([place - 0.3, place + 0.3], [value] * 2, **look)
        for place, seeds in enumerate(result.arrays[f"crate/emergence/{name}/{kind}"]):
            ax.plot([place] * len(seeds), seeds, "o", color=colour(name), markersize=3)
    labels = [f"{share:.0%}" if of == "mass" else of for of, share in rules]
    ax.set_xticks(range(len(rules)), labels, fontsize=7)
    ax.set_title(f"IoU, {kind}", fontsize=7.5)
    ax.legend(fontsize=7)

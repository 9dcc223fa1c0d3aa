"""Does segmentation emerge from classification? CRATE and a ViT on generated images of two objects with known
masks.

Source: :cite:t:`yu2024emergence`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from ....core.experiment import setting, sweep
from ....core.figure import DASHED, Reading, figure
from ....core.measurement import Null
from ....core.plotting import caption, colour, stacked, style
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
from .common import seed_mean

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SOURCE = Source("yu2024emergence")
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
RANDOM_OBJECT_IOU = "IoU of random patches with each object"
RANDOM_FOREGROUND_IOU = "IoU of random patches with both objects"
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


@style()
def draw(result: Result) -> "Figure":
    """Draws one row per image and, below, the IoU. Each row has the image and, per network, the maps of its
    heads and components.
    """
    names, arrays = list(NETWORKS), result.arrays
    images = arrays[f"crate/emergence/{names[0]}/images"][:3]
    heads = arrays[f"crate/emergence/{names[0]}/attention"].shape[1]
    titles = ["image"]
    for name in names:
        titles += [f"{name.split()[0]}\nhead {head + 1}" for head in range(heads)] + ["\nPCA"]
    width, height = 0.82 * len(titles), 1.05 * len(images)
    drawn, (above, below) = stacked([height, 1.9], width=width, height=height + 2.1)
    grid = above.subplots(len(images), len(titles), squeeze=False)
    for row, (line, image) in enumerate(zip(grid, images)):
        pictures = [image.transpose(1, 2, 0)]
        for name in names:
            colours = arrays[f"crate/emergence/{name}/components"][row].transpose(1, 2, 0)
            pictures += [*arrays[f"crate/emergence/{name}/attention"][row], np.clip(0.5 + colours / 5, 0, 1)]
        for ax, picture in zip(line, pictures):
            ax.imshow(picture, cmap="viridis", interpolation="nearest")
            ax.axis("off")
    for ax, title in zip(grid[0], titles):
        ax.set_title(title, fontsize=7)
    parts = below.subplots(1, len(MAPS))
    for ax, kind in zip(parts, MAPS):
        _iou_panel(ax, result, kind)
    top = 1.08 * max(ax.dataLim.y1 for ax in parts)
    for ax in parts:
        ax.set_ylim(0, top)
    caption(
        drawn,
        "Heads: attention of the class token; each map has its own scale, from its smallest weight (dark) "
        "to its largest (bright). PCA: the first three principal components as red, green and blue, from "
        "-2.5 to 2.5 standard deviations. Below: IoU of the best candidate with each object, by the share "
        "of a map that is selected, and for attention by its excess over the mean. Solid: trained, one "
        "marker per seed; dashed: untrained; dotted: random patches."
        + networks.chance_note(result, ACCURACY),
    )
    return drawn


@figure(
    "crate.emergence",
    source=(SOURCE, Source("dosovitskiy2021image")),
    view=draw,
    quick={"seeds": 1},
)
def emergence(
    *,
    seeds: int = setting(3, ge=1, help="number of data sets and initial weights"),
    images: int = setting(
        3000, ge=60, help="number of images, 70 % of them for training; IoU is measured on up to 300 more"
    ),
    steps: int = setting(400, ge=1, help="optimiser steps per network, 64 images per step"),
    dim: int = setting(48, ge=8, multiple_of=4, help="width, in four heads"),
    depth: int = setting(3, ge=1, help="layers"),
    seed: int = 0,
) -> Iterator[Reading | Arrays]:
    """IoU of attention maps and principal components with the objects of generated images, in CRATE and a ViT
    that learnt their colours.

    A map becomes a selection of patches by a rule: the fewest patches that hold a share of its mass (four
    shares), or, for attention, of its excess over the mean of the image on either side, which is the rule for
    components. There are two chance levels, both with the same number of candidates: untrained networks, and
    equally many patches at random places.
    """
    sizes = {"images": images, "steps": steps, "dim": dim, "depth": depth}
    # Seeds advance by two, because the untrained network of a seed has the next one.
    settings = [{"name": n, "seed": 1000 * seed + 2 * k, **sizes} for n in NETWORKS for k in range(seeds)]
    results = iter(sweep(train_network, settings))
    for name in NETWORKS:
        runs = [next(results) for _ in range(seeds)]
        accuracies, counts = ([run["numbers"][of] for run in runs] for of in (ACCURACY, PARAMETERS))
        # The networks of the seeds are independent, so the largest probability is on the safe side.
        p = max(run["p"] for run in runs)
        yield seed_mean(ACCURACY, accuracies, unit="share", model=name, p=p, side=">=")
        yield seed_mean(PARAMETERS, counts, model=name)
        yield from overlap_readings(name, [run["overlaps"] for run in runs])
        pictures = runs[0]["pictures"]
        yield Arrays({f"crate/emergence/{name}/{picture}": array for picture, array in pictures.items()})


def overlap_readings(
    name: str, runs: Sequence[Mapping[tuple[str, Rule, str], Any]]
) -> Iterator[Reading | Arrays]:
    """Yields the IoU of a network with both chance levels, and an array with those of the seeds."""
    for kind, rules in MAPS.items():
        for of, share in rules:
            place = {"at": {"map": kind, "of": of, "share": share}, "unit": "share", "model": name}
            for quantity, random_quantity, field in (
                (OBJECT_IOU, RANDOM_OBJECT_IOU, "per_object"),
                (FOREGROUND_IOU, RANDOM_FOREGROUND_IOU, "foreground"),
            ):
                trained, untrained, random = (
                    [getattr(run[kind, (of, share), state], field) for run in runs] for state in STATES
                )
                null = Null("untrained networks", tuple(untrained))
                yield seed_mean(quantity, trained, nulls=(null,), side=">=", **place)
                yield seed_mean(random_quantity, random, **place)
        seeds = [[run[kind, rule, "trained"].per_object for run in runs] for rule in rules]
        yield Arrays({f"crate/emergence/{name}/{kind}": np.array(seeds)})  # [rules, seeds]


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
            ([null.mean for null in rows.column("null")], DASHED, "_"),
            (random.column("value"), ":", "_"),
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

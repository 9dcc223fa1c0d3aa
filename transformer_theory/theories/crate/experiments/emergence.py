"""Do segmentations emerge from classification? CRATE beside a ViT on generated images of two objects with known masks.

Source: :cite:t:`yu2023emergence`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from ....core.experiment import RandomExperiment, setting, sweep
from ....core.measurement import Arrays, Row
from ....core.result import Result
from ....core.sources import Source
from ....data.two_objects import TwoObjects, two_objects
from ....training.supervised import accuracy
from .. import trained
from ..figures.emergence import draw
from ..segmentation import class_attention, components, exceeding, overlap, random_patches, top_mass
from .layers import ACCURACY

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EMERGENCE = Source("yu2023emergence")
NETWORKS = {"CRATE (released form)": (trained.crate, 3e-3), "ViT": (trained.vit, 2e-3)}
WAYS = ("attention of the class token", "principal components")
PICTURED = 4


def learn(name: str, seed: int, images: int, steps: int, dim: int, depth: int) -> dict[str, Any]:
    """Trains one network; IoU of its maps, of those of an untrained one, and of random patches. Source: :cite:t:`yu2023emergence`."""
    make, rate = NETWORKS[name]
    generator = torch.Generator().manual_seed(seed)
    data = trained.split(two_objects(images, generator=generator).data, seed=seed)
    held_out = two_objects(min(300, images), generator=generator)
    model, untrained = (make(data.train, seed=s, dim=dim, depth=depth) for s in (seed, seed + 1))
    trained.fit(model, data, steps=steps, learning_rate=rate, seed=seed)
    numbers = {ACCURACY: accuracy(model, data.test), "trainable parameters": float(trained.parameters(model))}
    overlaps = {}
    for network, whose in ((model, "trained"), (untrained, "untrained")):
        for way, maps in zip(WAYS, _maps(network, held_out)):
            chosen = top_mass(maps)
            overlaps[way, whose] = overlap(chosen, held_out.masks)
            if whose == "trained":
                overlaps[way, "random"] = overlap(random_patches(chosen, generator=generator), held_out.masks)
    return {"numbers": numbers, "overlaps": overlaps, "pictures": _pictures(model, held_out)}


@dataclass(frozen=True)
class Emergence(RandomExperiment):
    """IoU of attention maps and principal components with the objects of generated images, in CRATE and a ViT trained to tell the colours.

    Nulls: untrained networks, and random patches of the same number, both with as many candidates to choose from.
    """

    seeds: int = setting(3, ge=1, help="data sets and initial weights")
    images: int = setting(3000, ge=60, help="of which 70 % are learned from; IoU is read on 300 more")
    steps: int = setting(400, ge=1, help="optimiser steps of each network, 64 images each")
    dim: int = setting(48, ge=8, multiple_of=4, help="width, in four heads")
    depth: int = setting(3, ge=1, help="layers")

    name = "crate.emergence"
    sources = (EMERGENCE, Source("dosovitskiy2021image"))

    def measure(self) -> Iterator[Row | Arrays]:
        sizes = {"images": self.images, "steps": self.steps, "dim": self.dim, "depth": self.depth}
        settings = [{"name": name, "seed": 1000 * self.seed + 2 * k, **sizes} for name in NETWORKS for k in range(self.seeds)]
        results = sweep(learn, settings)
        for position, name in enumerate(NETWORKS):
            own = results[position * self.seeds : (position + 1) * self.seeds]
            for quantity in own[0]["numbers"]:
                yield _row(quantity, name, [one["numbers"][quantity] for one in own])
            for way in WAYS:
                for what in ("per_object", "foreground"):
                    read = {
                        whose: [getattr(one["overlaps"][way, whose], what) for one in own] for whose in ("trained", "untrained", "random")
                    }
                    words = "each object" if what == "per_object" else "both objects"
                    yield _row(f"IoU with {words}, {way}", name, read["trained"], null=read["untrained"])
                    yield _row(f"IoU with {words}, {way}: random patches", name, read["random"])
            yield Arrays({f"crate/emergence/{name}/{what}": array for what, array in own[0]["pictures"].items()})
        yield Arrays(
            {
                f"crate/emergence/{way}": np.array(
                    [
                        [[one["overlaps"][way, whose].per_object for one in results[i * self.seeds : (i + 1) * self.seeds]]
                         for whose in ("trained", "untrained", "random")]
                        for i in range(len(NETWORKS))
                    ]
                )
                for way in WAYS
            }
        )  # fmt: skip

    def draw(self, result: Result) -> "Figure":
        """Images with the maps of every head and the first principal components; IoU with its nulls."""
        return draw(result.arrays, list(NETWORKS), WAYS)

    @classmethod
    def quick(cls) -> "Emergence":
        return cls(seeds=1, images=60, steps=2, dim=16, depth=1)


def _maps(model: nn.Module, data: TwoObjects) -> tuple[Tensor, Tensor]:
    return class_attention(model, data.data.tokens), exceeding(components(model, data.data.tokens))


def _pictures(model: nn.Module, held_out: TwoObjects) -> dict[str, np.ndarray]:
    """The first images, their masks, the map of every head, and three principal components."""
    some = held_out[:PICTURED]
    assert some.data.images is not None
    side = int(some.data.tokens.shape[1] ** 0.5)
    projected = components(model, held_out.data.tokens, count=3)[:PICTURED]
    return {
        "images": some.data.images.clamp(0, 1).float().numpy(),
        "masks": some.masks.numpy(),
        "attention": class_attention(model, some.data.tokens).unflatten(-1, (side, side)).float().numpy(),
        "components": projected.unflatten(-1, (side, side)).float().numpy(),
    }


def _row(quantity: str, model: str, values: list[float], null: list[float] | None = None) -> Row:
    note = f"{len(values)} seeds, {min(values):.3g} to {max(values):.3g}"
    row = Row(theory="crate", quantity=quantity, value=float(np.mean(values)), model=model, note=note, source=str(EMERGENCE))
    return row if null is None else Row(**{**row, "null": float(np.mean(null)), "note": f"{note}; null: untrained networks"})

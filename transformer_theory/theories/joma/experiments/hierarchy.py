"""Do hidden units find the latents of a hierarchy? The setting of the paper's Table 1, beside what its measure reads by chance.

Source: :cite:t:`tian2024joma`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from ....core.experiment import RandomExperiment, setting, sweep
from ....core.measurement import Arrays, Row
from ....core.result import Result
from ....core.sources import Source
from .. import published
from ..figures import hierarchy
from ..hierarchy import random_hierarchy
from ..joint import learn
from ..nonlinear import bounce
from ..recovery import shuffled_recovery, uncentred_recovery, varying

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME, TABLE = "joma", Source("tian2024joma", "Table 1")
SIZES = ((20, (10, 20)), (30, (20, 30)))  # classes, latents of each layer
PARTS = (2, 3)
CURVES = ("loss", "recovered", "rank", "entropy")


@dataclass(frozen=True)
class HierarchyLearning(RandomExperiment):
    """Three layers of attention and MLP learn the class of sequences made from two layers of latents, 4M = 400 hidden units a layer.

    Read over training: how well units of a layer correlate with the latents of that layer (and, in the last, with the classes), beside
    the untrained network and shuffled latents; the stable rank of each MLP's lower layer; the entropy of attention. The paper takes
    10,000 steps, smaller ones, and a width of 1024; here fewer and 128, and a batch is its number of draws of each class, which is exact.
    The paper's decay, which its theory has not, moves attention and lower layer by itself once the loss is small; 0 leaves it out.
    """

    steps: int = setting(300, ge=2, le=10**6, help="of Adam")
    rate: float = setting(1e-3, gt=0, le=1, help="learning rate (the paper: 1e-5, its figures 1e-4)")
    decay: float = setting(1e-4, ge=0, le=1, help="of the weights, in Adam's gradient, as in the paper; 0 as in its theory")
    dim: int = setting(128, ge=4, le=4096, help="of the stream (the paper: 1024)")
    seeds: int = setting(2, ge=1, le=100, help="hierarchies and starts of each setting")
    settings: int = setting(4, ge=1, le=4, help="how many of the four: C = 20, p = 2 and 3; C = 30, p = 2 and 3")

    name: ClassVar[str] = "joma.hierarchy"
    sources: ClassVar[tuple[Source, ...]] = (TABLE,)

    @classmethod
    def quick(cls) -> "HierarchyLearning":
        return cls(steps=20, rate=1e-3, dim=32, seeds=1, settings=1)

    def measure(self) -> Iterator[Row | Arrays]:
        """Recovery with its nulls, stable rank and entropy, by setting and layer; means over seeds."""
        marks = np.unique(np.geomspace(1, self.steps, 24).astype(int)).tolist()
        shared = {"steps": self.steps, "rate": self.rate, "decay": self.decay, "dim": self.dim, "marks": tuple(marks)}
        arrays = {"steps": np.array([0, *marks])}
        for (classes, latents), parts in [*product(SIZES, PARTS)][: self.settings]:
            kind = {"classes": classes, "latents": latents, "parts": parts}
            runs = sweep(one_run, [shared | kind | {"seed": self.seed + number} for number in range(self.seeds)])
            name = f"C = {classes}, p = {parts}"
            arrays |= {f"{name}_{curve}": np.stack([run[curve] for run in runs]) for curve in CURVES}
            arrays[f"{name}_shuffled"] = np.mean([run["shuffled"][1] for run in runs], axis=0)
            yield from self._rows(name, runs)
        yield Arrays({f"{NAME}/{name}": values for name, values in arrays.items()})

    def _rows(self, name: str, runs: list[dict]) -> Iterator[Row]:
        def mean(key: str) -> np.ndarray:
            return np.mean([run[key] for run in runs], axis=0)

        spread = np.std([run["recovered"][[0, -1]] for run in runs], axis=0, ddof=min(1, len(runs) - 1))
        recovered, shuffled, uncentred, latents = (mean(key) for key in ("recovered", "shuffled", "uncentred", "latents"))
        different, loss = float(np.mean([run["different"] for run in runs])), mean("loss")
        yield Row(theory=NAME, quantity=f"different sequences, {name}", value=different, note="classes that share one cannot be told apart")
        yield Row(theory=NAME, quantity=f"cross-entropy, {name}", value=float(loss[-1]), null=float(loss[0]), note="nats")
        for layer in range(recovered.shape[1]):
            what, told = "classes", ["null: before training"]
            if layer < len(published.SECOND_HAND_RECOVERY):
                what = "latents"
                told += [f"{latents[layer]:.0f} vary"]
                told += [f"shuffled latents: {shuffled[1, layer]:.3f}, before training {shuffled[0, layer]:.3f}"]
                told += [f"the paper's, second-hand: {published.SECOND_HAND_RECOVERY[layer]}"]
            else:
                told += ["shuffling classes changes nothing, each is one sequence"]
            if self.seeds > 1:
                told += [f"sd over {self.seeds} hierarchies {spread[1, layer]:.2g}, of the null {spread[0, layer]:.2g}"]
            before, after = float(recovered[0, layer]), float(recovered[-1, layer])
            yield self._row(f"recovery of the {what}, {name}", layer, after, before, "; ".join(told))
            raw = f"recovery of the {what} without centring, {name}"
            yield self._row(raw, layer, float(uncentred[1, layer]), float(uncentred[0, layer]), "null: before training")
            for key, quantity in (("rank", "stable rank of the lower layer"), ("entropy", "entropy of attention, nats")):
                curves = [bounce(torch.from_numpy(run[key][:, layer])) for run in runs]
                start, end, drop, rebound = (float(np.mean([getattr(c, at) for c in curves])) for at in ("start", "end", "drop", "rebound"))
                note = f"null: before training; falls by {drop:.3g} and comes back by {rebound:.3g}, means of {self.seeds}"
                yield self._row(f"{quantity}, {name}", layer, end, start, note)

    def _row(self, quantity: str, layer: int, value: float, null: float, note: str) -> Row:
        return Row(theory=NAME, quantity=quantity, value=value, null=null, note=note, source=str(TABLE), layer=layer, step=self.steps)

    def draw(self, result: Result) -> "Figure":
        """Recovery, stable rank and entropy over training, one row a setting."""
        return hierarchy(result)


def one_run(
    *,
    classes: int,
    latents: tuple[int, ...],
    parts: int,
    seed: int,
    steps: int,
    rate: float,
    decay: float,
    dim: int,
    marks: tuple[int, ...],
) -> dict:
    """One hierarchy and one training; arrays by name. Source: :cite:t:`tian2024joma`, Table 1."""
    generator = torch.Generator().manual_seed(seed)
    drawn = random_hierarchy(generator, classes=classes, latents=latents, parts=parts)
    found = learn(drawn, generator, steps=steps, rate=rate, decay=decay, dim=dim, at=marks)
    activity = drawn.activity()[1:]
    sides = (found.before, found.after)
    shuffled = [[float(shuffled_recovery(h, a, generator=generator).mean()) for h, a in zip(side, activity)] for side in sides]
    uncentred = [[float(uncentred_recovery(h, a)) for h, a in zip(side, activity)] for side in sides]
    return {name: getattr(found, name).double().numpy() for name in CURVES} | {
        "shuffled": np.array(shuffled),
        "uncentred": np.array(uncentred),
        "latents": np.array([int(varying(a).sum()) for a in activity], dtype=float),
        "different": np.array(float(len(drawn.sequences(30).unique(dim=0)))),
    }

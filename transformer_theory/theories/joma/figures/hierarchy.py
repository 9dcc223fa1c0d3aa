"""Table 1: do hidden units find the latents of a hierarchy? The paper's measure with its chance levels.

The paper's recoveries are second-hand, since the table was not accessible. They are quoted in notes; nothing is compared with them.
Source: :cite:t:`tian2024joma`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from ....core.experiment import RandomExperiment, setting, sweep
from ....core.measurement import Arrays, Measurement, Null, Side
from ....core.plotting import axes, caption, label_ends, line, shades, style, text_figure
from ....core.result import Result
from ....core.sources import Source
from ....core.statistics import student_interval
from ..hierarchy import random_hierarchy, shuffled_recovery, uncentred_recovery, varying
from ..joint import fit_stack
from ..nonlinear import bounce

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME, TABLE = "joma", Source("tian2024joma", "Table 1")
SIZES = ((20, (10, 20)), (30, (20, 30)))  # classes, latents of each layer
PARTS = (2, 3)
SETTINGS = {f"C = {classes}, p = {parts}": (classes, latents, parts) for (classes, latents), parts in product(SIZES, PARTS)}
CURVES = ("loss", "recovered", "rank", "entropy")
DIFFERENT = "different sequences"
LOSS = "cross-entropy"
RECOVERY, SHUFFLED, UNCENTRED = "recovery", "recovery of shuffled latents", "recovery without centring"
RANK = "stable rank of the lower layer"
ENTROPY = "entropy of attention"
SECOND_HAND = ("0.94 to 1.00", "0.55 to 0.81")  # the paper's recovery of the latents of layer 0 and 1, over the settings of Table 1


@dataclass(frozen=True)
class HierarchyLearning(RandomExperiment):
    """Three layers of attention and MLP learn the class of sequences made from two layers of latents, 4M = 400 hidden units per layer.

    Measured over training: how well units of a layer correlate with the latents of that layer (in the last layer, with the classes), with
    the untrained network and shuffled latents as chance levels; the stable rank of each MLP's lower layer; the entropy of attention. The
    paper takes 10,000 smaller steps at width 1024; the defaults are 300 steps at width 128. A batch is represented by its number of draws
    of each class, which is exact. The paper's weight decay, which its theory does not have, moves attention and lower layer even where the
    loss is small; ``decay=0`` omits it.
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

    def measure(self) -> Iterator[Measurement | Arrays]:
        """Recovery with its chance levels, stable rank and entropy, by setting and layer; means over seeds."""
        marks = np.unique(np.geomspace(1, self.steps, 24).astype(int)).tolist()
        shared = {"steps": self.steps, "rate": self.rate, "decay": self.decay, "dim": self.dim, "marks": tuple(marks)}
        arrays = {"steps": np.array([0, *marks])}
        for name, (classes, latents, parts) in [*SETTINGS.items()][: self.settings]:
            kind = {"classes": classes, "latents": latents, "parts": parts}
            runs = sweep(one_run, [shared | kind | {"seed": self.seed + number} for number in range(self.seeds)])
            arrays |= {f"{name}_{curve}": np.stack([run[curve] for run in runs]) for curve in CURVES}
            arrays[f"{name}_shuffled"] = np.mean([run["shuffled"][1] for run in runs], axis=0)
            yield from self._rows(name, runs)
        yield Arrays({f"{NAME}/{name}": values for name, values in arrays.items()})

    def _rows(self, name: str, runs: list[dict[str, np.ndarray]]) -> Iterator[Measurement]:
        sequences = [float(run["different"]) for run in runs]
        note = "Classes that share a sequence cannot be separated."
        yield self._row(DIFFERENT, name, sequences, None, None, step=None, note=note)
        yield self._row(LOSS, name, *_ends(runs, "loss"), "<=", unit="nats")
        layers = runs[0]["recovered"].shape[1]
        for layer in range(layers):
            note = "The last layer; its latents are the classes."
            if layer < layers - 1:  # shuffling the classes themselves changes nothing: each of them is one sequence
                varying_latents = np.mean([run["latents"][layer] for run in runs])
                note = f"{varying_latents:.0f} latents vary; the paper's value, second-hand: {SECOND_HAND[layer]}."
                shuffled, untrained = ([float(run["shuffled"][side][layer]) for run in runs] for side in (1, 0))
                yield self._row(SHUFFLED, name, shuffled, untrained, ">=", layer=layer)
            yield self._row(RECOVERY, name, *_ends(runs, "recovered", layer), ">=", layer=layer, note=note)
            yield self._row(UNCENTRED, name, *_ends(runs, "uncentred", layer), ">=", layer=layer)
            for key, quantity, unit in (("rank", RANK, ""), ("entropy", ENTROPY, "nats")):
                curves = [bounce(torch.from_numpy(run[key][:, layer])) for run in runs]
                drop, rebound = (float(np.mean([getattr(curve, part) for curve in curves])) for part in ("drop", "rebound"))
                note = f"It falls by {drop:.3g} and then rises by {rebound:.3g}, means over seeds."
                yield self._row(quantity, name, *_ends(runs, key, layer), "<=", layer=layer, unit=unit, note=note)

    def _row(
        self, quantity: str, name: str, values: list[float], untrained: list[float] | None, side: Side | None, **columns: Any
    ) -> Measurement:
        """The mean over seeds with its interval; the null is the untrained networks."""
        interval = student_interval(values)
        columns = {"step": self.steps, "setting": name, "n": self.seeds, "source": TABLE} | columns
        columns |= {"null": None if untrained is None else Null("untrained networks", tuple(untrained)), "side": side}
        columns |= {} if interval is None else {"interval": interval, "interval_kind": "over seeds"}
        return Measurement(NAME, "figure", quantity, float(np.mean(values)), **columns)

    @style()
    def plot(self, result: Result) -> "Figure":
        """A row per setting: recovery of each layer and of shuffled latents, stable rank as a share of its start, entropy."""
        kinds = [name for name in SETTINGS if f"{NAME}/{name}_recovered" in result.arrays]
        if not kinds:
            return text_figure(f"{self.name}: nothing was measured")
        figure, panels = axes(len(kinds), 3, width=8.5, height=2.2 * len(kinds) + 0.9)
        steps = result.arrays[f"{NAME}/steps"] + 1
        for row, kind in enumerate(kinds):
            left, middle, right = panels[3 * row : 3 * row + 3]
            names = ("recovered", "rank", "entropy", "shuffled")
            recovered, rank, entropy, shuffled = (result.arrays[f"{NAME}/{kind}_{name}"] for name in names)
            for layer, tint in enumerate(shades(recovered.shape[2])):
                null = float(shuffled[layer]) if layer < recovered.shape[2] - 1 else None  # shuffled classes are the same classes
                line(left, steps, recovered[:, :, layer].mean(0), color=tint, null=null)
                for ax, values in ((middle, rank / rank[:, :1]), (right, entropy)):
                    ax.fill_between(steps, values[:, :, layer].min(0), values[:, :, layer].max(0), color=tint, alpha=0.18, linewidth=0)
                    line(ax, steps, values[:, :, layer].mean(0), color=tint, label=f"layer {layer}")
            left.set(title=f"{kind}: recovery", ylabel="largest correlation", ylim=(min(0.4, float(np.min(shuffled))) - 0.02, 1.02))
            middle.set(title="Stable rank, share of the start")
            right.set(title="Entropy of attention", ylabel="nats", ylim=(0, None))
            label_ends(right)
            for ax in (left, middle, right):
                ax.set(xscale="log")
                ax.set_xlabel("step + 1" if row == len(kinds) - 1 else "")
        caption(
            figure,
            "Recovery: the largest correlation of any unit with a latent of the same layer (of the last: with a class), mean over latents. "
            "Its first point is the untrained network; dashed: shuffled latents, after training. Bands: all seeds.",
        )
        return figure


def _ends(runs: list[dict[str, np.ndarray]], key: str, layer: int | None = None) -> tuple[list[float], list[float]]:
    """The last and the first value of a curve in each run."""
    curves = [run[key] if layer is None else run[key][:, layer] for run in runs]
    return [float(curve[-1]) for curve in curves], [float(curve[0]) for curve in curves]


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
) -> dict[str, np.ndarray]:
    """One hierarchy and one training; arrays by name."""
    generator = torch.Generator().manual_seed(seed)
    hierarchy = random_hierarchy(generator, classes=classes, latents=latents, parts=parts)
    run = fit_stack(hierarchy, generator, steps=steps, rate=rate, decay=decay, dim=dim, measure_steps=marks)
    activity = hierarchy.activity()[1:]
    sides = (run.before, run.after)
    shuffled = [[float(shuffled_recovery(h, a, generator=generator).mean()) for h, a in zip(side, activity)] for side in sides]
    uncentred = [[float(uncentred_recovery(h, a)) for h, a in zip(side, activity)] for side in sides]
    return {name: getattr(run, name).double().numpy() for name in CURVES} | {
        "shuffled": np.array(shuffled),
        "uncentred": np.array(uncentred),
        "latents": np.array([int(varying(a).sum()) for a in activity], dtype=float),
        "different": np.array(float(len(hierarchy.sequences(30).unique(dim=0)))),
    }

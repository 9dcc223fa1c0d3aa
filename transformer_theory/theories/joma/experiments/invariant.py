"""How well the logits of softmax attention follow from the MLP's weights over training: the setting of the paper's Figs. 2 and 3.

Source: :cite:t:`tian2024joma`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from ....core.claims import Evidence
from ....core.experiment import RandomExperiment, setting
from ....core.measurement import Arrays, Row, finding
from ....core.result import Result
from ....core.sources import Source
from ..analysis_rows import LINE, STILL
from ..dynamics import Model, train
from ..figures import invariant
from ..figures.invariant import WAYS
from ..forms import Softmax
from ..invariants import agreement, first_term, fixed_mean, mean_attention, moving_mean, unfactored
from ..problem import gaussian_block, gaussian_contexts, random_contexts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "joma"
FIGURE = Source("tian2024joma", "Fig. 2")
SHOWN = (100, 1000, 2000)
KINDS = {"Gaussian": gaussian_contexts, "random": random_contexts}
SAYS = {
    "both": "both terms, mean attention of the start (the paper's)",
    "first": "first term alone",
    "moving": "both terms, mean attention of each moment",
}


@dataclass(frozen=True)
class Invariant(RandomExperiment):
    """Softmax attention at T = 1/2 on 10 distinct and 10 common tokens of 20 classes, full-batch descent on the cross-entropy.

    Measured beside the paper's correlation is the relative error, which it does not see, and two variants of the prediction: the first
    term alone, and the mean attention of each moment in the place of that of the start.
    """

    steps: int = setting(2000, ge=10, help="of gradient descent")
    rate: float = setting(0.1, gt=0, le=10, help="learning rate")
    temperature: float = setting(0.5, ge=1e-2, le=1e2, help="of the softmax")
    scale: float = setting(0.01, gt=0, le=10, help="standard deviation of the start")
    seeds: int = setting(5, ge=1, le=100, help="draws of contexts and start")

    name: ClassVar[str] = "joma.invariant"
    sources: ClassVar[tuple[Source, ...]] = (Source("tian2024joma"),)

    @classmethod
    def quick(cls) -> "Invariant":
        return cls(steps=200, seeds=2)

    def measure(self) -> Iterator[Row | Arrays]:
        """Correlation and relative error of the predicted change of the logits, at 100, 1000, 2000 steps and at the end."""
        keep = np.unique(np.linspace(0, self.steps, 201).astype(int)).tolist()
        marks = sorted({mark for mark in SHOWN if mark in keep} | {self.steps})
        generator, arrays = self.generator(), {f"{NAME}/steps": np.array(keep)}
        for kind, draw in KINDS.items():
            curves = {f"{way}_{measure}": [] for way in SAYS for measure in ("correlation", "error")}
            for seed in range(self.seeds):
                contexts, model = draw(generator), Model(Softmax(self.temperature))
                start = gaussian_block(contexts, units=20, scale=self.scale, generator=generator)
                path = train(start, contexts, model, step=self.rate, steps=self.steps, keep=keep)
                z = path.states.logits[:, 0]
                predicted = {
                    "both": fixed_mean(model, contexts, path),
                    "first": first_term(model.attention, path),
                    "moving": moving_mean(model, contexts, path),
                }
                for way, change in predicted.items():
                    found = agreement(change, z - z[0])
                    curves[f"{way}_correlation"].append(found.correlation)
                    curves[f"{way}_error"].append(found.error)
                mean = mean_attention(model, contexts, path)
                off = torch.stack([(mean - mean[0]).abs().sum(-1) / 2, unfactored(model, contexts, path)], dim=-1)
                errors = curves["both_error"][-1]
                yield from (self._row(kind, seed, mark, float(errors[at]), off[at]) for mark in marks for at in [keep.index(mark)])
                if not seed:
                    arrays |= {
                        f"{NAME}/{kind}_true": (z - z[0])[-1].numpy(),
                        f"{NAME}/{kind}_both": predicted["both"][-1].numpy(),
                        f"{NAME}/{kind}_moving": predicted["moving"][-1].numpy(),
                        f"{NAME}/{kind}_lower": path.states.lower[[0, -1]].numpy(),
                        f"{NAME}/{kind}_unit": path.states.lower[:, 0, :4].numpy(),
                    }
            arrays |= {f"{NAME}/{kind}_{name}": torch.stack(values).numpy() for name, values in curves.items()}
            for way, says in SAYS.items():
                for measure, ideal in (("correlation", 1.0), ("error", 0.0)):
                    for mark in marks:
                        values = torch.stack([curve[keep.index(mark)] for curve in curves[f"{way}_{measure}"]])
                        note = f"{says}; mean of {self.seeds} draws, {float(values.min()):.3g} to {float(values.max()):.3g}"
                        quantity, value = f"{measure}, {kind} contexts, {WAYS[way]}", float(values.mean())
                        row = Row(theory=NAME, quantity=quantity, value=value, step=mark, note=note, source=str(FIGURE))
                        if way != "first":  # alone it is nobody's prediction
                            row["predicted"], row["basis"] = ideal, "theory"
                        yield row
        yield Arrays(arrays)

    def _row(self, kind: str, seed: int, step: int, error: float, off: torch.Tensor) -> Row:
        """The error of the paper's invariant in one draw, judged where both of its assumptions hold: attention stays, and factorises."""
        moved, left = off.tolist()
        return finding(
            NAME,
            f"relative error of the softmax invariant, {kind} contexts",
            Evidence(error, LINE, "<=", covered=moved <= STILL and left <= STILL),
            source=FIGURE,
            predicted=0.0,
            step=step,
            seed=seed,
            note=f"mean attention has moved {moved:.2g} of its mass, the factorisation leaves out {left:.2g} of dz/dt at this step "
            f"(assumed: each at most {STILL:g}, our line; so is that of the error)",
        )

    def draw(self, result: Result) -> "Figure":
        """Correlation and relative error over training, predicted against true change, and the lower layer."""
        return invariant(result)

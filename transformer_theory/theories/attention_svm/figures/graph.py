"""Next-token prediction: W compared with the direction and the finite part that the token-priority graphs
predict.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ....core.experiment import RandomExperiment, setting
from ....core.measurement import Arrays, Measurement
from ....core.plotting import COLOURS, axes, caption, style
from ....core.result import Result
from ....core.sources import Source
from ....maths.linalg import cosine
from ..builders import graph_svm
from ..dynamics import random_start, trajectory
from ..graph import PriorityGraph, priority_graph
from ..next_token import LOG, finite_part, finite_span, next_token_instance, project, random_sequences
from ..problem import Instance
from ..solvers import frobenius_max_margin
from .common import NAME, Reference, arrays_of, figure_row, mark_steps, references

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SOURCE = Source("li2024mechanics")
# token ids and labels of the released run
STORED_SEQUENCES = torch.tensor([[2, 3, 1], [2, 4, 0], [2, 3, 1]]), torch.tensor([2, 2, 1])
STORED_STEP = 1000
# Printed by the released run at STORED_STEP. Its embeddings and start are not stored, so any other run is
# another draw.
STORED = {"cosine": 0.980232, "finite": 0.003662, "R": 6.850332}
ANOTHER_DRAW = "stored, another draw"  # setting of the rows of these sequences
QUANTITIES = {
    "cosine": "cosine to the Graph-SVM direction outside S_fin",
    "free": "cosine to the max-margin direction without the equations",
    "finite": "distance of the part in S_fin from W_fin",
    "R": "length R along the Graph-SVM solution",
}
STEPS = (1, 3, 10, 30, 100, 300, 1000, 2000, 4000, 10_000)
BLUE, ORANGE, GREY = COLOURS["attention_svm"], COLOURS["scan_snap"], COLOURS["null"]
Data = tuple[Tensor, Tensor, PriorityGraph]


@dataclass(frozen=True)
class Graph(RandomExperiment):
    r"""Normalised descent on the log loss, compared with the prediction of (Graph-SVM), :math:`W(t) \approx
    W_{fin} + R(t) W_{svm}`.

    There are three kinds of data, each with unit embeddings in random directions and with random starts:

    * acyclic, as in the paper's figures: 4 sequences of length 6 over 8 tokens;
    * cyclic, as in the paper's figures: 6 sequences of length 4 over 6 tokens;
    * stored: three sequences over 5 tokens, from the run that is stored with the released code. Its
      embeddings are not stored, so these embeddings differ.

    The cosine to the Graph-SVM direction is measured on the part of W outside S_fin. The part of W inside
    S_fin is compared with W_fin; descent with steps of length :math:`\eta` stays about :math:`\eta/2` away
    from it.
    """

    trials: int = setting(20, ge=1, help="random embeddings and starts per kind of data")
    steps: int = setting(20_000, ge=1, help="steps of descent")
    rate: float = setting(0.01, gt=0, le=1e6, help="length of a step")
    dim: int = setting(8, ge=1, help="dimension d of the tokens")

    name = "attention_svm.graph"
    sources = (SOURCE,)

    def measure(self) -> Iterator[Measurement | Arrays]:
        """Yields rows at the published step and at the last step, and arrays with every trial's curves."""
        generator = self.generator()

        def random_data(sequences: int, length: int, tokens: int, cyclic: bool) -> list[Data]:
            sizes = {"sequences": sequences, "length": length, "tokens": tokens}
            return [random_sequences(**sizes, cyclic=cyclic, generator=generator) for _ in range(self.trials)]

        yield from self._run("acyclic", random_data(4, 6, 8, cyclic=False), 4000, generator)
        yield from self._run("cyclic", random_data(6, 4, 6, cyclic=True), 1000, generator)
        released_data = (*STORED_SEQUENCES, priority_graph(*STORED_SEQUENCES, tokens=5))
        yield from self._run("stored", [released_data] * self.trials, STORED_STEP, generator)

    def _run(
        self, kind: str, data: list[Data], published_step: int, generator: torch.Generator
    ) -> Iterator[Measurement | Arrays]:
        """Yields the rows and arrays of one kind of data."""
        normal = [
            torch.randn(order.tokens, self.dim, generator=generator, dtype=torch.float64)
            for _, _, order in data
        ]
        embeddings = [torch.nn.functional.normalize(e, dim=-1) for e in normal]
        problems = [next_token_instance(e, ids, labels) for e, (ids, labels, _) in zip(embeddings, data)]
        instance = Instance(
            *(
                torch.stack([getattr(problem, field) for problem in problems])
                for field in ("tokens", "query", "scores")
            )
        )
        steps = sorted({s for s in (*STEPS, published_step) if s < self.steps} | {self.steps})
        first_state = random_start(instance, generator=generator)
        states = trajectory(instance, first_state, steps=steps, rate=self.rate, loss=LOG)
        W = torch.stack([state.W for state in states], 1)  # [trials, steps, d, d]
        curves: dict[str, list[Tensor]] = {name: [] for name in QUANTITIES}
        for path, e, (ids, labels, order) in zip(W, embeddings, data):
            pairs = graph_svm(order, e)
            svm, finite = frobenius_max_margin(pairs).W, finite_part(order, e, ids, labels)
            free = frobenius_max_margin(pairs.take((~pairs.equality).nonzero().squeeze(-1))).W
            inside = project(path, finite_span(order, e))
            curves["cosine"].append(cosine(path - inside, svm.expand_as(path), dim=(-2, -1)))
            curves["free"].append(cosine(path, free.expand_as(path), dim=(-2, -1)))
            curves["finite"].append((inside - finite).norm(dim=(-2, -1)))
            curves["R"].append(((path - finite) * svm).sum((-2, -1)) / svm.square().sum())
        stacked = {name: torch.stack(values) for name, values in curves.items()}
        for step in sorted({min(published_step, self.steps), self.steps}):
            yield from self._rows(
                kind, {name: values[:, steps.index(step)] for name, values in stacked.items()}, step
            )
        yield Arrays(
            {
                f"{NAME}/{kind}/steps": torch.tensor(steps).numpy(),
                **{f"{NAME}/{kind}/{name}": v.numpy() for name, v in stacked.items()},
            }
        )

    def _rows(self, kind: str, curves: dict[str, Tensor], step: int) -> Iterator[Measurement]:
        """Yields one row per quantity, the median over trials at this step."""
        for name, quantity in QUANTITIES.items():
            # no cycles, hence no equations: S_fin is zero
            if kind == "acyclic" and name in ("free", "finite"):
                continue
            values = curves[name]
            note = f"median over trials, range {float(values.min()):.4f} to {float(values.max()):.4f}"
            reference: Reference | None = (1.0, "limit") if name == "cosine" else None
            if (
                kind == "stored"
                and step == STORED_STEP
                and name in STORED
                and self.at_defaults("rate", "dim")
            ):
                reference = (STORED[name], "printed")
                note += "; the released number comes from one run with other random numbers"
            yield figure_row(
                quantity,
                float(values.median()),
                SOURCE,
                reference=reference,
                at={"setting": ANOTHER_DRAW if kind == "stored" else kind},
                step=step,
                n=len(values),
                note=note,
            )

    @style()
    def plot(self, result: Result) -> "Figure":
        """Plots the cosine to the Graph-SVM direction for acyclic and cyclic data, and the distance of the
        finite part from W_fin.
        """
        a, stored_rows = arrays_of(result), result.table.select(at={"setting": ANOTHER_DRAW})
        figure, (left, middle, right) = axes(1, 3, width=7.0, height=3.1)
        _band(left, a["acyclic/steps"], a["acyclic/cosine"], BLUE, "-", "random data")
        _band(middle, a["cyclic/steps"], a["cyclic/cosine"], BLUE, "-", "random data")
        _band(middle, a["cyclic/steps"], a["cyclic/free"], GREY, ":", "same, no equations")
        _band(middle, a["stored/steps"], a["stored/cosine"], ORANGE, "--", "stored sequences")
        _band(right, a["cyclic/steps"], a["cyclic/finite"], BLUE, "-", "random data")
        _band(right, a["stored/steps"], a["stored/finite"], ORANGE, "--", "stored sequences")
        right.axhline(self.rate / 2, color="black", linewidth=0.8, linestyle=(0, (4, 3)), label="half a step")
        mark_steps(middle, stored_rows.select(quantity=QUANTITIES["cosine"]))
        mark_steps(right, stored_rows.select(quantity=QUANTITIES["finite"]))
        for ax, title in ((left, "Acyclic: cosine"), (middle, "Cyclic: cosine")):
            ax.axhline(1, color="black", linewidth=0.7)
            ax.set(title=title, xlabel="step", xscale="log", ylim=(-1.0, 1.05))
        lowest = min(float(a[f"{name}/finite"].min(initial=self.rate)) for name in ("cyclic", "stored"))
        # one decade more, so that the legend fits below the curves
        bottom = 10 ** np.floor(np.log10(max(lowest, 1e-12)) - 1)
        right.set(title="Finite part: distance", xlabel="step", xscale="log", yscale="log", ylim=(bottom, 3))
        for ax in (left, middle, right):
            ax.legend(loc="lower right" if ax is left else "lower left", handlelength=1.8, borderaxespad=0.1)
        note = (
            "The released code's number comes from one run with other random numbers."
            if len(references(stored_rows))
            else ""
        )
        caption(
            figure,
            f"Lines: median over {len(a['acyclic/cosine'])} random embeddings and starts; bands: range. "
            "Cosines are to the Graph-SVM direction or, where marked, to the max-margin direction without "
            "its equations. " + note,
        )
        return figure

    @classmethod
    def quick(cls) -> "Graph":
        """Returns a small version: four trials and 1,000 longer steps, about half a second."""
        return cls(trials=4, steps=1000, rate=0.05)


def _band(ax: "Axes", steps: np.ndarray, curves: np.ndarray, tint: str, dashes: str, label: str) -> None:
    """Plots the median of the curves [trials, steps] over trials, with their range as a band."""
    ax.fill_between(steps, curves.min(0), curves.max(0), color=tint, alpha=0.13, linewidth=0)
    ax.plot(steps, np.median(curves, 0), color=tint, linestyle=dashes, label=label)

"""One W for many queries per input: where descent goes in causal and in sequence-to-sequence attention."""

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
from ..builders import causal, sequence_to_sequence
from ..constraint_set import Constraints
from ..dynamics import start, trajectory
from ..problem import Instance
from ..sequences import causal_instance, causal_problem, sequence_instance, sequence_problem
from ..solvers import frobenius_max_margins
from .common import NAME, arrays_of, figure_row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SOURCE = Source("tarzanagh2023transformers")
COSINE, BEST_SELECTED = "cosine to the max-margin solution", "share of trials that select every best token"
OWN, LAST, FULL = "all queries, allowed tokens", "last query only", "all queries, all tokens"
TITLES = {"causal": "Causal", "sequence to sequence": "Sequence to sequence"}
LOOKS = {  # constraints -> label, colour and line style of the curve
    OWN: ("its own constraints", COLOURS["attention_svm"], "-"),
    FULL: ("mask ignored", COLOURS["scan_snap"], "--"),
    LAST: ("last query only", COLOURS["null"], ":"),
}


@dataclass(frozen=True)
class Sequences(RandomExperiment):
    """Normalised descent with many queries per input and one W, compared with the max-margin solution under
    the constraints of all queries.

    In the left panel attention is causal (a position attends to itself and earlier positions); in the middle
    panel every query attends to every token. Both panels also show the solution under the constraints of the
    last query alone, and the left one the solution under constraints that ignore the mask. The right panel
    shows 1 - cosine to the predicted solution. Each query has one best token, and all other tokens score the
    same. W starts at zero.
    """

    inputs: int = setting(3, ge=1, help="number n of inputs")
    tokens: int = setting(5, ge=2, help="number T of tokens per input")
    dim: int = setting(16, ge=1, help="dimension d of the tokens")
    trials: int = setting(20, ge=1, help="random problems")
    steps: int = setting(10_000, ge=1, help="steps of descent")
    rate: float = setting(0.1, gt=0, le=1e6, help="length of a step")

    name = "attention_svm.sequences"
    sources = (SOURCE,)

    def measure(self) -> Iterator[Measurement | Arrays]:
        """Yields rows at the last step, and arrays with every trial's cosines."""
        sizes = {"inputs": self.inputs, "tokens": self.tokens, "dim": self.dim, "trials": self.trials}
        generator = self.generator()
        x, scores, best = causal_problem(**sizes, generator=generator)
        all_queries = causal(x, best)
        targets = {OWN: all_queries, LAST: _last(all_queries), FULL: sequence_to_sequence(x, x, best)}
        yield from self._run("causal", causal_instance(x, scores), targets)
        x, z, scores, best = sequence_problem(**sizes, queries=self.tokens, generator=generator)
        all_queries = sequence_to_sequence(x, z, best)
        yield from self._run(
            "sequence to sequence",
            sequence_instance(x, z, scores),
            {OWN: all_queries, LAST: _last(all_queries)},
        )

    def _run(
        self, kind: str, instance: Instance, targets: dict[str, Constraints]
    ) -> Iterator[Measurement | Arrays]:
        """Yields the rows and arrays of one kind of attention."""
        steps = [s for s in (1, 3, 10, 30, 100, 300, 1000, 3000, 10_000, 30_000) if s < self.steps] + [
            self.steps
        ]
        states = list(trajectory(instance, start(instance), steps=steps, rate=self.rate))
        arrays = {f"{NAME}/{kind}/steps": torch.tensor(steps).numpy()}
        for target, constraints in targets.items():
            solutions = frobenius_max_margins(constraints)
            solved = solutions.solved
            if not bool(solved.any()):
                yield figure_row(
                    COSINE,
                    None,
                    SOURCE,
                    at={"setting": f"{kind}: {target}"},
                    reason="infeasible in every trial",
                )
                continue
            curve = torch.stack([cosine(s.W[solved], solutions.W[solved], dim=(-2, -1)) for s in states], 1)
            arrays[f"{NAME}/{kind}/{target}"] = curve.numpy()
            end = curve[:, -1]
            yield figure_row(
                COSINE,
                float(end.median()),
                SOURCE,
                reference=(1.0, "limit") if target == OWN else None,
                at={"setting": f"{kind}: {target}"},
                step=self.steps,
                n=len(end),
                note=f"median over the feasible trials among {self.trials}, smallest {float(end.min()):.5f}",
            )
        selected: Tensor = (instance.selected(states[-1].W) == instance.optimal()).all(-1)
        share = float(selected.double().mean())
        yield figure_row(
            BEST_SELECTED, share, SOURCE, unit="share", at={"setting": kind}, step=self.steps, n=self.trials
        )
        yield Arrays(arrays)

    @style()
    def plot(self, result: Result) -> "Figure":
        """Plots the cosine of W to the max-margin solutions (median and range over trials), and 1 - cosine to
        the predicted one.
        """
        a = arrays_of(result)
        figure, panels = axes(1, 3, width=7.0, height=2.9)
        for ax, (kind, title) in zip(panels, TITLES.items()):
            for target, (label, tint, dashes) in LOOKS.items():
                if (curve := a.get(f"{kind}/{target}")) is not None:
                    ax.fill_between(
                        a[f"{kind}/steps"], curve.min(0), curve.max(0), color=tint, alpha=0.14, linewidth=0
                    )
                    ax.plot(
                        a[f"{kind}/steps"], np.median(curve, 0), color=tint, linestyle=dashes, label=label
                    )
            ax.axhline(1, color="black", linewidth=0.7)
            ax.set(title=title, xlabel="step", ylabel="cosine", xscale="log", ylim=(0, 1.04))
            if ax.lines[:-1]:  # none if every trial was infeasible
                ax.legend(loc="lower right", handlelength=1.8)
        last = panels[-1]
        for kind, tint, dashes in zip(TITLES, (COLOURS["attention_svm"], COLOURS["crate"]), ("-", "--")):
            if (curve := a.get(f"{kind}/{OWN}")) is not None:
                last.plot(
                    a[f"{kind}/steps"], np.median(1 - curve, 0), color=tint, linestyle=dashes, label=kind
                )
        last.set(title="1 − cosine, median", xlabel="step", xscale="log", yscale="log")
        if last.lines:
            last.legend(loc="lower left", handlelength=1.8)
        caption(
            figure,
            f"Lines: median over the feasible problems among {self.trials} random ones; bands: smallest to "
            "largest. Left and middle: cosine of W to the max-margin solutions under its own constraints, "
            "under constraints that ignore the mask, and under those of the last query only. Right: "
            "distance to the solution under its own constraints.",
        )
        return figure

    @classmethod
    def quick(cls) -> "Sequences":
        """Returns a small version: six trials and 1,000 steps, about half a second."""
        return cls(trials=6, steps=1000)


def _last(constraints: Constraints) -> Constraints:
    """Returns the constraints of the last position of each input."""
    # Every trial has equally many such constraints, so their indices form a matrix [trials, constraints].
    index = (
        (constraints.position == constraints.position.max())
        .nonzero()[:, -1]
        .reshape(len(constraints.position), -1)
    )
    rows = index[..., None]
    d, d_z = constraints.difference.shape[-1], constraints.query.shape[-1]
    return Constraints(
        constraints.difference.gather(-2, rows.expand(*index.shape, d)),
        constraints.query.gather(-2, rows.expand(*index.shape, d_z)),
    )

"""The two examples in the plane: where descent on W and on its factors sends the queries, beside the two max-margin solutions."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ....core.experiment import RandomExperiment, setting
from ....core.measurement import Arrays, Row
from ....core.result import Result
from ....core.sources import Source
from ....maths.linalg import cosine
from ..builders import constraints
from ..dynamics import Factors, start, trajectory
from ..figures import trajectories
from ..problem import Instance
from ..published import PICTURES, published_picture
from ..solution import MaxMargin
from ..solvers import frobenius_max_margin, nuclear_max_margin

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "attention_svm"
SOURCE = Source("tarzanagh2023transformers")
KNOWN = {  # the published settings, by general solvers and plain autograd; the paper shows pictures only
    1: {
        "W_mm": [[2.85369, -2.70294], [5.37124, 5.58053]],
        "W*_mm": [[0.486706, 0.469258], [7.005536, 6.754383]],
        "Frobenius norm": 8.68574,
        "nuclear norm": 9.754810,
        "rank": 1,
        "cosine": 0.99968,
    },
    2: {
        "W_mm": [[0.792552, -1.086473], [-0.633028, -0.347115]],
        "W*_mm": [[0.99375, -1.25966], [-0.13324, -0.25784]],
        "Frobenius norm": 1.526360,
        "nuclear norm": 1.872604,
        "rank": 2,
        "cosine": 0.99995,
    },
}


@dataclass(frozen=True)
class Trajectories(RandomExperiment):
    """Paths of W z_i in the plane, for the two published examples (n = 2, d = 2, with three and with five tokens an input).

    Normalised descent on W starts at W = 0, that on the factors of W = K Q^T at Q = 0 and a small random K, with the published penalty
    (the rounding unit). The theory sends the first to the Frobenius solution of the optimal tokens, the second to the nuclear one.

    The paper shows these paths as pictures without numbers. The numbers beside ours are of the same data and settings, computed apart:
    the solutions by general convex solvers, the cosine by plain autograd.
    """

    steps: int = setting(2000, ge=1, help="steps of descent")
    rate: float = setting(0.1, gt=0, le=1e6, help="length of a step")
    scale: float = setting(0.1, gt=0, le=1e3, help="standard deviation of the entries that K starts from")

    name = "attention_svm.trajectories"
    sources = (SOURCE,)

    def measure(self) -> Iterator[Row | Arrays]:
        """Rows with the solutions and the cosines at the end; arrays with tokens, solutions and paths."""
        generator = self.generator()
        at = sorted({0, *(int(s) for s in torch.logspace(0, 3, 60).tolist() if s < self.steps), self.steps})
        for number in PICTURES:
            instance = published_picture(number)
            pairs = constraints(instance.tokens, instance.query, instance.optimal())
            frobenius, nuclear = frobenius_max_margin(pairs), nuclear_max_margin(pairs)
            K = self.scale * torch.randn(2, 2, generator=generator, dtype=torch.float64)
            smallest = torch.finfo(torch.float64).eps
            runs = {
                "W": trajectory(instance, start(instance), at=at, rate=self.rate),
                "KQ": trajectory(instance, Factors(K, torch.zeros_like(K)), at=at, rate=self.rate, penalty=smallest),
            }
            paths = {name: torch.stack([state.W for state in states]) for name, states in runs.items()}
            yield from self._rows(number, instance, frobenius, nuclear, paths)
            arrays = {"tokens": instance.tokens, "select": instance.optimal()}
            for name, W in {"frobenius": frobenius.W, "nuclear": nuclear.W, **{f"path_{k}": v for k, v in paths.items()}}.items():
                arrays[name] = instance.query @ W.mT  # W z_i, [..., n, 2]
            yield Arrays({f"{NAME}/{number}_{name}": value.numpy() for name, value in arrays.items()})

    def _rows(self, number: int, instance: Instance, frobenius: MaxMargin, nuclear: MaxMargin, paths: dict[str, Tensor]) -> Iterator[Row]:
        known = KNOWN[number]

        def row(quantity: str, value: float, note: str, **where) -> Row:
            return Row(theory=NAME, quantity=f"picture {number}: {quantity}", value=value, source=str(SOURCE), note=note, **where)

        for name, note, W in (("W_mm", "Frobenius solution", frobenius.W), ("W*_mm", "nuclear solution", nuclear.W)):
            for i, j in product(range(2), range(2)):
                yield row(f"{name}[{i},{j}]", float(W[i, j]), note, predicted=known[name][i][j], basis="recomputed")
        for quantity, value, note, key in (
            ("|W_mm|_F", frobenius.norm, "smallest Frobenius norm", "Frobenius norm"),
            ("|W*_mm|_*", nuclear.norm, f"smallest nuclear norm, KKT residual {nuclear.kkt:.0e}", "nuclear norm"),
            ("rank of W*_mm", float(nuclear.rank), "by complementarity", "rank"),
        ):
            yield row(quantity, value, note, predicted=float(known[key]), basis="recomputed")
        for name, W in paths.items():
            for norm, target in (("Frobenius", frobenius.W), ("nuclear", nuclear.W)):
                same = (name, norm) == ("W", "Frobenius") and self.at_defaults("steps", "rate")
                beside = {"predicted": known["cosine"], "basis": "recomputed"} if same else {}
                what = "descent on W" if name == "W" else "descent on K and Q"
                value = float(cosine(W[-1], target))
                yield row(f"cosine to the {norm} solution, {what}", value, "solution of the best tokens", step=self.steps, **beside)
            best = bool((instance.selected(W[-1]) == instance.optimal()).all())
            yield row(
                f"share of best tokens selected, {what}",
                float(best),
                "1 if every input attends to its best token",
                step=self.steps,
                predicted=1.0,
                basis="limit",
            )

    def draw(self, result: Result) -> "Figure":
        """Paths, tokens, directions and separating lines; one row an example."""
        return trajectories(result)

    @classmethod
    def quick(cls) -> "Trajectories":
        """300 steps: a second."""
        return cls(steps=300)

"""Next-token prediction: W against the direction and the finite part that the token-priority graphs predict."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ....core.experiment import RandomExperiment, setting
from ....core.measurement import Arrays, Row
from ....core.result import Result
from ....core.sources import Source
from ....maths.linalg import cosine
from ..builders import graph_svm
from ..dynamics import random_start, trajectory
from ..figures import graph
from ..graph import PriorityGraph, priority_graph
from ..next_token import LOG, finite_part, finite_span, next_token_instance, project, random_sequences
from ..problem import Instance
from ..solvers import frobenius_max_margin

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "attention_svm"
SOURCE = Source("li2024mechanics")
PUBLISHED = torch.tensor([[2, 3, 1], [2, 4, 0], [2, 3, 1]]), torch.tensor([2, 2, 1])  # sequences of the stored run, five tokens
STORED_STEP = 1000
SAVED = {"cosine": 0.980232, "finite": 0.003662, "R": 6.850332}  # of that run, one start, at that step
Data = tuple[Tensor, Tensor, PriorityGraph]


@dataclass(frozen=True)
class Graph(RandomExperiment):
    r"""Normalised descent of the log loss against (Graph-SVM): :math:`W(t) \approx W_{fin} + R(t) W_{svm}`.

    Three kinds of data, with unit embeddings in random directions and random starts. Acyclic (4 sequences of 6 out of 8 tokens, d = 8) and
    cyclic (6 of 4 out of 6, d = 8) as in the paper's figures; and the three sequences of the one run whose numbers are stored with its code
    (5 tokens, d = 8), embeddings drawn anew. Cosines are those of the part of W outside S_fin; the part inside is compared with W_fin, from
    which steps of length :math:`\eta` stay about :math:`\eta/2` away.
    """

    trials: int = setting(20, ge=1, help="random embeddings and starts, for each kind of data")
    steps: int = setting(20_000, ge=1, help="steps of descent")
    rate: float = setting(0.01, gt=0, le=1e6, help="length of a step")
    dim: int = setting(8, ge=1, help="dimension d of the tokens")

    name = "attention_svm.graph"
    sources = (SOURCE,)

    def measure(self) -> Iterator[Row | Arrays]:
        """Rows at the published number of steps and at the last; arrays with every trial's curves."""
        generator = self.generator()

        def drawn(sequences: int, length: int, tokens: int, cyclic: bool) -> list[Data]:
            sizes = {"sequences": sequences, "length": length, "tokens": tokens}
            return [random_sequences(**sizes, cyclic=cyclic, generator=generator) for _ in range(self.trials)]

        yield from self._run("acyclic", drawn(4, 6, 8, cyclic=False), 4000, generator)
        yield from self._run("cyclic", drawn(6, 4, 6, cyclic=True), 1000, generator)
        stored = (*PUBLISHED, priority_graph(*PUBLISHED, tokens=5))
        yield from self._run("stored", [stored] * self.trials, STORED_STEP, generator)

    def _run(self, kind: str, data: list[Data], published: int, generator: torch.Generator) -> Iterator[Row | Arrays]:
        drawn = [torch.randn(order.tokens, self.dim, generator=generator, dtype=torch.float64) for _, _, order in data]
        embeddings = [torch.nn.functional.normalize(e, dim=-1) for e in drawn]
        ones = [next_token_instance(e, ids, labels) for e, (ids, labels, _) in zip(embeddings, data)]
        instance = Instance(*(torch.stack([getattr(one, field) for one in ones]) for field in ("tokens", "query", "scores")))
        at = sorted({s for s in (1, 3, 10, 30, 100, 300, 1000, 2000, 4000, 10_000, published) if s < self.steps} | {self.steps})
        begin = random_start(instance, generator=generator)
        W = torch.stack([state.W for state in trajectory(instance, begin, at=at, rate=self.rate, loss=LOG)], 1)
        curves: dict[str, list[Tensor]] = {"cosine": [], "free": [], "finite": [], "R": []}
        for path, e, (ids, labels, order) in zip(W, embeddings, data):
            pairs = graph_svm(order, e)
            assert pairs.equality is not None
            svm, target = frobenius_max_margin(pairs).W, finite_part(order, e, ids, labels)
            free = frobenius_max_margin(pairs.take((~pairs.equality).nonzero().squeeze(-1))).W
            inside = project(path, finite_span(order, e))
            curves["cosine"].append(cosine(path - inside, svm.expand_as(path), dim=(-2, -1)))
            curves["free"].append(cosine(path, free.expand_as(path), dim=(-2, -1)))
            curves["finite"].append((inside - target).norm(dim=(-2, -1)))
            curves["R"].append(((path - target) * svm).sum((-2, -1)) / svm.square().sum())
        found = {name: torch.stack(values) for name, values in curves.items()}
        for step in sorted({min(published, self.steps), self.steps}):
            yield from self._rows(kind, found, at.index(step), step)
        yield Arrays(
            {f"{NAME}/{kind}/steps": torch.tensor(at).numpy(), **{f"{NAME}/{kind}/{name}": v.numpy() for name, v in found.items()}}
        )

    def _rows(self, kind: str, found: dict[str, Tensor], index: int, step: int) -> Iterator[Row]:
        quantities = {
            "cosine": "cosine to the Graph-SVM direction, outside S_fin",
            "free": "cosine to the max-margin direction without the equations",
            "finite": "distance of the part in S_fin from W_fin",
            "R": "R, the length along the Graph-SVM solution",
        }
        for name, quantity in quantities.items():
            if kind == "acyclic" and name in ("free", "finite"):  # there are no equations
                continue
            values = found[name][:, index]
            note = f"median over {len(values)} trials, from {float(values.min()):.4f} to {float(values.max()):.4f}"
            row = Row(theory=NAME, quantity=f"{kind}: {quantity}", value=float(values.median()), step=step, source=str(SOURCE), note=note)
            if kind == "stored" and step == STORED_STEP and name in SAVED and self.at_defaults("rate", "dim"):
                row["predicted"], row["basis"] = SAVED[name], "printed"
                row["note"] = f"{note}; beside it one run with other embeddings and start"
            elif name == "cosine":
                row["predicted"], row["basis"] = 1.0, "limit"
            yield row

    def draw(self, result: Result) -> "Figure":
        """Cosines and the distance in S_fin against steps, the published numbers as crosses."""
        return graph(result)

    @classmethod
    def quick(cls) -> "Graph":
        """Four trials, 1,000 longer steps: about half a second."""
        return cls(trials=4, steps=1000, rate=0.05)

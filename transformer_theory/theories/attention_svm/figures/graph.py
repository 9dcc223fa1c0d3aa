"""Next-token prediction: W compared with the direction and the finite part that the token-priority graphs
predict.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ....core.experiment import RANGE, RandomExperiment, setting
from ....core.figure import Panel, bands
from ....core.measurement import Measurement
from ....core.plotting import COLOURS, TINTS, style
from ....core.result import Result
from ....core.sources import Source
from ....maths.linalg import cosine
from ..builders import graph_svm
from ..dynamics import random_start, trajectory
from ..graph import PriorityGraph, priority_graph
from ..next_token import LOG, finite_part, finite_span, next_token_instance, project, random_sequences
from ..problem import Instance
from ..solvers import frobenius_max_margin
from .common import Reference, median_and_range

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SOURCE = Source("li2024mechanics")
# token ids and labels of the released run
STORED_SEQUENCES = torch.tensor([[2, 3, 1], [2, 4, 0], [2, 3, 1]]), torch.tensor([2, 2, 1])
STORED_STEP = 1000
# KNOWN is printed by the released run at STORED_STEP. Its embeddings and start are not stored, so any other
# run is another draw.
ANOTHER_DRAW = "stored, another draw"  # the data set of these sequences
COSINE = "cosine to the Graph-SVM direction outside S_fin"
FREE = "cosine to the max-margin direction without the equations"
FINITE = "distance of the part in S_fin from W_fin"
LENGTH = "length R along the Graph-SVM solution"
KNOWN = {COSINE: 0.980232, FINITE: 0.003662, LENGTH: 6.850332}
STEPS = (1, 3, 10, 30, 100, 300, 1000, 2000, 4000, 10_000)
RANDOM = {"label": "random data"}
STORED = {"label": "stored sequences", "color": TINTS[1], "linestyle": "--"}
LOOKS = ("data set", {"cyclic": RANDOM | {"color": TINTS[0]}, ANOTHER_DRAW: STORED})
FREE_LOOK = {FREE: {"label": "same, no equations", "color": COLOURS["null"], "linestyle": ":"}}
LIMITS = {"ylim": (-1.0, 1.05)}
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

    view = bands(
        spread=RANGE,
        panels=(
            Panel(
                "Acyclic: cosine",
                COSINE,
                {"data set": "acyclic"},
                ("data set", {"acyclic": RANDOM}),
                legend="lower right",
                axes=LIMITS,
            ),
            (
                Panel("Cyclic: cosine", COSINE, {"data set": ("cyclic", ANOTHER_DRAW)}, LOOKS, axes=LIMITS),
                Panel("", FREE, {"data set": "cyclic"}, ("quantity", FREE_LOOK)),
            ),
            Panel("Finite part: distance", FINITE, lines=LOOKS, axes={"yscale": "log"}),
        ),
        log="x",
        caption="Lines: median over {trials} random embeddings and starts; bands: range. Cosines are to "
        "the Graph-SVM direction or, where marked, to the max-margin direction without its equations. The "
        "step has length {rate:g}. The released code's number comes from one run with other random "
        "numbers.",
    )

    def measure(self) -> Iterator[Measurement]:
        """Yields medians and ranges over the trials, for each kind of data over the steps."""
        generator = self.generator()

        def random_data(sequences: int, length: int, tokens: int, cyclic: bool) -> list[Data]:
            sizes = {"sequences": sequences, "length": length, "tokens": tokens}
            return [random_sequences(**sizes, cyclic=cyclic, generator=generator) for _ in range(self.trials)]

        yield from self._run("acyclic", random_data(4, 6, 8, cyclic=False), 4000, generator)
        yield from self._run("cyclic", random_data(6, 4, 6, cyclic=True), 1000, generator)
        released_data = (*STORED_SEQUENCES, priority_graph(*STORED_SEQUENCES, tokens=5))
        yield from self._run(ANOTHER_DRAW, [released_data] * self.trials, STORED_STEP, generator)

    def _run(
        self, kind: str, data: list[Data], published_step: int, generator: torch.Generator
    ) -> Iterator[Measurement]:
        """Yields the rows of one kind of data."""
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
        curves: dict[str, list[Tensor]] = {COSINE: [], FREE: [], FINITE: [], LENGTH: []}
        for path, e, (ids, labels, order) in zip(W, embeddings, data):
            pairs = graph_svm(order, e)
            svm, finite = frobenius_max_margin(pairs).W, finite_part(order, e, ids, labels)
            free = frobenius_max_margin(pairs.take((~pairs.equality).nonzero().squeeze(-1))).W
            inside = project(path, finite_span(order, e))
            curves[COSINE].append(cosine(path - inside, svm.expand_as(path), dim=(-2, -1)))
            curves[FREE].append(cosine(path, free.expand_as(path), dim=(-2, -1)))
            curves[FINITE].append((inside - finite).norm(dim=(-2, -1)))
            curves[LENGTH].append(((path - finite) * svm).sum((-2, -1)) / svm.square().sum())
        for quantity, curve in curves.items():
            # no cycles, hence no equations: S_fin is zero
            if kind == "acyclic" and quantity in (FREE, FINITE):
                continue
            for step, values in zip(steps, torch.stack(curve).T):
                note = f"median over trials, range {float(values.min()):.4f} to {float(values.max()):.4f}"
                reference: Reference | None = (1.0, "limit") if quantity == COSINE else None
                comparable = kind == ANOTHER_DRAW and step == STORED_STEP and self.at_defaults("rate", "dim")
                if comparable and quantity in KNOWN:
                    reference = (KNOWN[quantity], "printed")
                    note += "; the released number comes from one run with other random numbers"
                here = {"at": {"data set": kind}, "step": step, "note": note, "reference": reference}
                yield from median_and_range(self, quantity, values, **here)

    @style()
    def plot(self, result: Result) -> "Figure":
        """Adds lines at one, the limit of the cosines, and at half a step."""
        figure = super().plot(result)
        for ax, level in zip(figure.axes, (1, 1, self.rate / 2)):
            ax.axhline(level, color="black", linewidth=0.7, linestyle="-" if level == 1 else (0, (4, 3)))
        return figure

    @classmethod
    def quick(cls) -> "Graph":
        """Returns a small version: four trials and 1,000 longer steps, about half a second."""
        return cls(trials=4, steps=1000, rate=0.05)

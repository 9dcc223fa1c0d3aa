"""Next-token prediction: W compared with the direction and the finite part that the token-priority graphs
predict.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ....core.experiment import setting
from ....core.figure import DASHED, RANGE, Panel, Reading, bands, figure
from ....core.plotting import COLOURS, style
from ....core.result import Result
from ....core.sources import Source
from ....maths.linalg import cosine
from ..builders import graph_svm
from ..dynamics import random_start, trajectory
from ..graph import PriorityGraph, priority_graph
from ..next_token import LOG, finite_part, finite_span, next_token_instance, project, random_sequences
from ..problem import Instance
from ..solvers import frobenius_max_margin
from .common import median_and_range

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# token ids and labels of the released run, and its settings
STORED_SEQUENCES = torch.tensor([[2, 3, 1], [2, 4, 0], [2, 3, 1]]), torch.tensor([2, 2, 1])
STORED_STEP, STORED_RATE, STORED_DIM = 1000, 0.01, 8
# KNOWN is printed by the released run at STORED_STEP. Its embeddings and start are not stored, so any other
# run is another draw.
ACYCLIC, CYCLIC, ANOTHER_DRAW = "acyclic", "cyclic", "stored, another draw"  # kinds of data
SIZES = {
    ACYCLIC: {"sequences": 4, "length": 6, "tokens": 8, "cyclic": False},
    CYCLIC: {"sequences": 6, "length": 4, "tokens": 6, "cyclic": True},
}
COSINE = "cosine to the Graph-SVM direction outside S_fin"
FREE = "cosine to the max-margin direction without the equations"
FINITE = "distance of the part in S_fin from W_fin"
LENGTH = "length R along the Graph-SVM solution"
KNOWN = {COSINE: 0.980232, FINITE: 0.003662, LENGTH: 6.850332}
STEPS = (1, 3, 10, 30, 100, 300, 1000, 2000, 4000, 10_000)
NO_EQUATIONS = {FREE: {"label": "cyclic, no equations", "color": "null", "linestyle": DASHED}}
LIMITS = {"ylim": (-1.0, 1.05)}
Data = tuple[Tensor, Tensor, PriorityGraph]


@style()
def draw(result: Result) -> "Figure":
    """Draws the medians, and a line at half a step, at which the finite part stays."""
    drawn = bands(
        spread=RANGE,
        panels=(
            Panel("Acyclic: cosine", COSINE, {"data set": ACYCLIC}, levels={"_limit": 1.0}, axes=LIMITS),
            (
                Panel(
                    "Cyclic: cosine",
                    COSINE,
                    {"data set": (CYCLIC, ANOTHER_DRAW)},
                    "data set",
                    levels={"_limit": 1.0},
                    legend="lower right",
                    axes=LIMITS,
                ),
                Panel("", FREE, {"data set": CYCLIC}, ("quantity", NO_EQUATIONS)),
            ),
            Panel("Finite part: distance", FINITE, lines="data set", axes={"yscale": "log"}),
        ),
        log="x",
        caption="Lines: median over {trials} random embeddings and starts; bands: range. Cosines are to the "
        "Graph-SVM direction or, where marked, to the max-margin direction without its equations. Dashed, "
        "right: half a step, of length {rate:g}. The released code's number comes from one run with other "
        "random numbers.",
    )(result)
    drawn.axes[2].axhline(result.settings["rate"] / 2, color=COLOURS["null"], linewidth=0.9, linestyle=DASHED)
    return drawn


def curves_of(
    data: list[Data], *, dim: int, steps: list[int], rate: float, generator: torch.Generator
) -> dict[str, Tensor]:
    """Returns the quantities ``[steps, trials]`` of descent on one data set per trial."""
    normal = [
        torch.randn(order.tokens, dim, generator=generator, dtype=torch.float64) for _, _, order in data
    ]
    embeddings = [torch.nn.functional.normalize(e, dim=-1) for e in normal]
    problems = [next_token_instance(e, ids, labels) for e, (ids, labels, _) in zip(embeddings, data)]
    fields = ("tokens", "query", "scores")
    instance = Instance(*(torch.stack([getattr(problem, field) for problem in problems]) for field in fields))
    states = trajectory(
        instance, random_start(instance, generator=generator), steps=steps, rate=rate, loss=LOG
    )
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
    return {quantity: torch.stack(curve).T for quantity, curve in curves.items()}


@figure(
    "attention_svm.graph",
    source=Source("li2024mechanics"),
    view=draw,
    quick={"trials": 4, "steps": 1000, "rate": 0.05},
)
def graph(
    *,
    trials: int = setting(20, ge=1, help="random embeddings and starts per kind of data"),
    steps: int = setting(20_000, ge=1, help="steps of descent"),
    rate: float = setting(STORED_RATE, gt=0, le=1e6, help="length of a step"),
    dim: int = setting(STORED_DIM, ge=1, help="dimension d of the tokens"),
    seed: int = 0,
) -> Iterator[list[Reading]]:
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
    generator = torch.Generator().manual_seed(seed)
    for kind, published_step in ((ACYCLIC, 4000), (CYCLIC, 1000), (ANOTHER_DRAW, STORED_STEP)):
        if kind == ANOTHER_DRAW:
            data = [(*STORED_SEQUENCES, priority_graph(*STORED_SEQUENCES, tokens=5))] * trials
        else:
            data = [random_sequences(**SIZES[kind], generator=generator) for _ in range(trials)]
        measured = sorted({s for s in (*STEPS, published_step) if s < steps} | {steps})
        curves = curves_of(data, dim=dim, steps=measured, rate=rate, generator=generator)
        comparable = kind == ANOTHER_DRAW and (rate, dim) == (STORED_RATE, STORED_DIM)
        for quantity, curve in curves.items():
            if kind == ACYCLIC and quantity in (FREE, FINITE):
                continue  # no cycles, hence no equations: S_fin is zero
            for step, values in zip(measured, curve):
                note = f"median over trials, range {float(values.min()):.4f} to {float(values.max()):.4f}"
                reference = (1.0, "limit") if quantity == COSINE else None
                if comparable and step == STORED_STEP and quantity in KNOWN:
                    reference = (KNOWN[quantity], "printed")
                    note += "; the released number comes from one run with other random numbers"
                here = {"at": {"data set": kind}, "step": step, "note": note}
                yield median_and_range(quantity, values, reference=reference, needs=(), **here)

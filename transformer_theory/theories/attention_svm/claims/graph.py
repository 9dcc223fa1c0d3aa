"""Claims about next-token prediction: the direction and the finite part that the token-priority graphs
predict.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ....core.claims import NEAR, Measured, but, claim
from ....core.errors import NotConverged
from ....core.sources import Source
from ....maths.linalg import cosine
from ..builders import graph_svm
from ..constraint_set import Constraints
from ..dynamics import normalised_descent, start
from ..graph import priority_graph
from ..next_token import LOG, finite_part, finite_span, next_token_instance, project, random_sequences
from ..solvers import frobenius_max_margin
from .common import MAX_DRAWS, limit_distance, no_instance

# the number comes from a machine-written summary: weak
SOURCE = Source("li2024mechanics", "Theorem 1", "second-hand")
THRESHOLD = 0.1  # of both claims
MIN_FINITE_NORM = 0.2
UNSOLVED = 1e6  # distance reported without a prediction
ASSUMPTIONS = (
    "log loss of the attention to the label (the head separates the embeddings); each label is a token of "
    "its sequence",
    "the embeddings are linearly independent, so that (Graph-SVM) is feasible",
    "the graphs have a component of several tokens, and a strict priority",
    "normalised steps from $W = 0$, 1,600 of length 0.1 and 100 of length 0.01: with steps of length "
    r"$\eta$ the part in $S_{fin}$ stays about $\eta/2$ away from its limit",
    r"$\|W_{fin}\|_F > 0.2$: labels within a component are not equally frequent",
)


@dataclass(frozen=True)
class _Run:
    """Descent on cyclic data, with the prediction of the graphs.

    Attributes:
        half, W: W half-way and at the end.
        basis: orthonormal basis of S_fin.
        finite: predicted finite part W_fin; None if its minimisation failed.
        svm: constraints of (Graph-SVM).
        other_svm: constraints of (Graph-SVM) for other labels of the same sequences.
    """

    half: Tensor
    W: Tensor
    basis: Tensor
    finite: Tensor | None
    svm: Constraints
    other_svm: Constraints

    def distance(self, target: Tensor) -> Measured:
        """Returns 1 - cosine between the target and the part of W outside S_fin."""
        before, after = (1 - float(cosine(W - project(W, self.basis), target)) for W in (self.half, self.W))
        # The norm grows only like a logarithm, so a distance that falls by 5 % in half the run is still
        # falling.
        return limit_distance(before, after, THRESHOLD, falling=0.95, detail={"norm": float(self.W.norm())})

    def error(self, share: float) -> Measured:
        """Returns the distance of the part in S_fin from a share of W_fin, relative to the
        norm of W_fin.
        """
        if self.finite is None:
            return Measured(UNSOLVED, note="the minimiser of a strictly convex loss was not found")
        size, target = float(self.finite.norm()), share * self.finite
        before, after = (float((project(W, self.basis) - target).norm()) / size for W in (self.half, self.W))
        return limit_distance(before, after, THRESHOLD, detail={"norm": size})


def _descend(generator: torch.Generator) -> _Run:
    """Descends on random data with a non-zero finite part: labels in a component are not equally frequent."""
    embeddings = torch.nn.functional.normalize(
        torch.randn(8, 10, generator=generator, dtype=torch.float64), dim=-1
    )
    for _ in range(MAX_DRAWS):
        ids, labels, graph = random_sequences(
            sequences=10, length=4, tokens=8, last=2, cyclic=True, generator=generator
        )
        try:
            finite = finite_part(graph, embeddings, ids, labels)
        except NotConverged:
            finite = None  # the loss is strictly convex on S_fin, so a missing minimiser violates the claim
        if finite is None or float(finite.norm()) > MIN_FINITE_NORM:
            break
    else:
        raise no_instance("whose finite part is not zero")
    instance = next_token_instance(embeddings, ids, labels)
    half = normalised_descent(instance, start(instance), steps=800, loss=LOG)
    end = normalised_descent(instance, half, steps=800, loss=LOG)
    # The finite part stays half a step away from its limit, so the last steps are short.
    end = normalised_descent(instance, end, steps=100, rate=0.01, loss=LOG)
    label_position = (ids == labels[:, None]).int().argmax(1, keepdim=True)
    # Another token of each sequence of four: its position is the position of the label plus 1, 2 or 3, modulo
    # 4.
    other_labels = ids.gather(
        1, (label_position + torch.randint(1, 4, (10, 1), generator=generator)) % 4
    ).squeeze(1)
    other_svm = graph_svm(priority_graph(ids, other_labels, tokens=8), embeddings)
    return _Run(
        half.W, end.W, finite_span(graph, embeddings), finite, graph_svm(graph, embeddings), other_svm
    )


def _other_labels(generator: torch.Generator) -> Measured:
    run = _descend(generator)
    return run.distance(frobenius_max_margin(run.other_svm).W)


@claim(
    "attention_svm/graph-direction",
    measures="1 - cosine of the part outside S_fin to the Graph-SVM direction",
    at_most=THRESHOLD,
    margin=NEAR,
    source=SOURCE,
    assumptions=ASSUMPTIONS,
    control=but(
        "The graphs are those of the same sequences with other labels, drawn at random.", _other_labels
    ),
)
def graph_direction(generator: torch.Generator) -> Measured:
    r"""In next-token prediction the part of $W$ outside $S_{fin}$ converges in direction to the smallest
    matrix with $(e_i - e_j)^\top W e_k = 0$ within the strongly connected components of the token-priority
    graph of $k$ and $(e_i - e_j)^\top W e_k \ge 1$ along the edges between them. Here $S_{fin}$ is the span
    of the matrices $(e_i - e_j)e_k^\top$ with $i$ and $j$ in one component of the graph of $k$.
    """
    run = _descend(generator)
    try:
        target = frobenius_max_margin(run.svm).W
    except NotConverged:
        # independent embeddings make the problem feasible, so a missing solution violates the claim
        return Measured(UNSOLVED, note="no verified solution of Graph-SVM was found")
    return run.distance(target)


@claim(
    "attention_svm/graph-finite-part",
    measures="distance of the part in S_fin from W_fin, relative to its norm",
    at_most=THRESHOLD,
    source=SOURCE,
    assumptions=ASSUMPTIONS,
    control=but("Attention is predicted to be shared equally within a component.", share=0.0),
)
def graph_finite_part(generator: torch.Generator, *, share: float = 1.0) -> Measured:
    r"""In next-token prediction the part of $W$ in $S_{fin}$ converges to the minimiser $W_{fin}$ of the loss
    in which each sequence keeps only the tokens of its label's component. Here $S_{fin}$ is the span of the
    matrices $(e_i - e_j)e_k^\top$ with $i$ and $j$ in one component of the graph of $k$.
    """
    return _descend(generator).error(share)


CLAIMS = (graph_direction, graph_finite_part)

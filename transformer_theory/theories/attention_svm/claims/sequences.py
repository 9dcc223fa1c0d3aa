"""Claims about self-attention, and about many queries per input with one W: causal and sequence-to-sequence
attention.
"""

import torch

from ....core.claims import NEAR, Measured, but, claim
from ....core.sources import Source
from ....maths.linalg import cosine
from ..builders import self_attention, sequence_to_sequence
from ..constraint_set import Constraints
from ..dynamics import State, normalised_descent, start
from ..problem import Instance, equal_distractors
from ..selection import SATURATION_ATOL
from ..sequences import causal_instance, causal_problem, sequence_instance, sequence_problem
from ..solvers import frobenius_max_margin
from .common import limit_distance

SOURCE = Source("tarzanagh2023transformers", status="not found")
STEPS = 600
THRESHOLD = 0.02  # largest 1 - cosine
ASSUMPTIONS = (
    "each query has one best token and all its other tokens score the same",
    "the max-margin problem of all queries together is feasible, and descent selects the best tokens, which "
    "equal scores do not guarantee",
    "decreasing smooth loss (logistic); normalised steps from W = 0",
)


def _descend(instance: Instance) -> tuple[State, State]:
    """Returns the states half-way and at the end of descent from W = 0."""
    half = normalised_descent(instance, start(instance), steps=STEPS // 2)
    return half, normalised_descent(instance, half, steps=STEPS // 2)


def _distance(instance: Instance, constraints: Constraints) -> Measured:
    """Returns 1 - cosine of W to the max-margin solution."""
    half, end = _descend(instance)
    target = frobenius_max_margin(constraints).W
    before, after = (1 - float(cosine(state.W, target)) for state in (half, end))
    selected = float(1 - instance.attention(end.W).amax(-1).min()) < SATURATION_ATOL
    best = bool((instance.selected(end.W) == instance.optimal()).all())
    return limit_distance(
        before, after, THRESHOLD, done=selected, covered=best, detail={"constraints": len(constraints)}
    )


@claim(
    "attention_svm/causal-direction",
    measures="1 - cosine to the max-margin direction",
    at_most=THRESHOLD,
    source=SOURCE,
    assumptions=ASSUMPTIONS,
    control=but(
        "The constraints include the tokens after each position, which attention does not see.", masked=False
    ),
)
def causal_direction(generator: torch.Generator, *, masked: bool = True) -> Measured:
    r"""With causal attention, descent on $W$ converges in direction to the max-margin solution of the
    constraints $(x_{i,a_{ik}} - x_{i,t})^\top W x_{i,k} \ge 1$ of all positions $k$ and all $t \le k$, $t \ne
    a_{ik}$.
    """
    x, scores, best = causal_problem(inputs=3, tokens=4, dim=14, generator=generator)
    pairs = sequence_to_sequence(x, x, best)
    if masked:
        pairs = pairs.take((pairs.token <= pairs.position).nonzero().squeeze(-1))
    return _distance(causal_instance(x, scores), pairs)


@claim(
    "attention_svm/sequence-direction",
    measures="1 - cosine to the max-margin direction",
    at_most=THRESHOLD,
    source=SOURCE,
    assumptions=ASSUMPTIONS,
    control=but("Only the constraints of the last query of each input are kept.", positions=(2,)),
)
def sequence_direction(generator: torch.Generator, *, positions: tuple[int, ...] = (0, 1, 2)) -> Measured:
    r"""With many queries per input and one $W$, descent converges in direction to the max-margin solution of
    the constraints $(x_{i,a_{ik}} - x_{i,t})^\top W z_{ik} \ge 1$ of all queries together.
    """
    x, z, scores, best = sequence_problem(inputs=3, tokens=4, queries=3, dim=12, generator=generator)
    pairs = sequence_to_sequence(x, z, best)
    kept = torch.isin(pairs.position, torch.tensor(positions)).nonzero().squeeze(-1)
    return _distance(sequence_instance(x, z, scores), pairs.take(kept))


@claim(
    "attention_svm/self-attention-direction",
    measures="1 - cosine to the max-margin direction",
    at_most=THRESHOLD,
    margin=NEAR,
    source=SOURCE,
    assumptions=("the query of each input is its second token", *ASSUMPTIONS),
    control=but("The constraints have the first token of each input as query.", position=0),
)
def self_attention_direction(generator: torch.Generator, *, position: int = 1) -> Measured:
    r"""With self-attention, descent on $W$ converges in direction to the max-margin solution of the
    constraints $(x_{i,a_i} - x_{i,t})^\top W x_{i,k} \ge 1$: the query of each input is its own token k.
    """
    drawn = equal_distractors(inputs=5, tokens=5, dim=9, generator=generator)
    instance = Instance(drawn.tokens, drawn.tokens[:, 1], drawn.scores)
    return _distance(instance, self_attention(instance.tokens, instance.optimal(), position=position))


CLAIMS = (causal_direction, sequence_direction, self_attention_direction)

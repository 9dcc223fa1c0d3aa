"""Claims about self-attention, and about many queries per input with one W: causal and sequence-to-sequence
attention.
"""

import torch
from torch import Tensor

from ....core.claims import Claim, Evidence
from ....core.sources import Source
from ....maths.linalg import cosine
from ..builders import self_attention, sequence_to_sequence
from ..constraint_set import Constraints
from ..dynamics import State, normalised_descent, start
from ..problem import Instance, equal_distractors
from ..selection import SATURATION_ATOL
from ..sequences import causal_instance, causal_problem, sequence_instance, sequence_problem
from ..solvers import frobenius_max_margin
from .common import limit_evidence

SOURCE = Source("tarzanagh2023transformers", status="not found")
STEPS = 600


def _descend(instance: Instance) -> tuple[State, State]:
    """Returns the states half-way and at the end of descent from W = 0."""
    half = normalised_descent(instance, start(instance), steps=STEPS // 2)
    return half, normalised_descent(instance, half, steps=STEPS // 2)


def _distance(instance: Instance, constraints: Constraints) -> Evidence:
    """Returns evidence about 1 - cosine of W to the max-margin solution."""
    half, end = _descend(instance)
    target = frobenius_max_margin(constraints).W
    before, after = (1 - float(cosine(state.W, target)) for state in (half, end))
    selected = float(1 - instance.attention(end.W).amax(-1).min()) < SATURATION_ATOL
    best = bool((instance.selected(end.W) == instance.optimal()).all())
    return limit_evidence(
        before, after, 0.02, done=selected, covered=best, detail={"constraints": len(constraints)}
    )


def _causal(generator: torch.Generator) -> tuple[Instance, Tensor, Tensor]:
    x, scores, best = causal_problem(inputs=3, tokens=4, dim=14, generator=generator)
    return causal_instance(x, scores), x, best


def _causal_direction(generator: torch.Generator) -> Evidence:
    instance, x, best = _causal(generator)
    pairs = sequence_to_sequence(x, x, best)
    return _distance(instance, pairs.take((pairs.token <= pairs.position).nonzero().squeeze(-1)))


def _mask_ignored(generator: torch.Generator) -> Evidence:
    instance, x, best = _causal(generator)
    return _distance(instance, sequence_to_sequence(x, x, best))


def _sequences(generator: torch.Generator) -> tuple[Instance, Constraints]:
    x, z, scores, best = sequence_problem(inputs=3, tokens=4, queries=3, dim=12, generator=generator)
    return sequence_instance(x, z, scores), sequence_to_sequence(x, z, best)


def _sequence_direction(generator: torch.Generator) -> Evidence:
    return _distance(*_sequences(generator))


def _last_query_only(generator: torch.Generator) -> Evidence:
    instance, constraints = _sequences(generator)
    last = (constraints.position == 2).nonzero().squeeze(-1)  # positions are 0, 1 and 2
    return _distance(instance, constraints.take(last))


def _self_attention(generator: torch.Generator, *, position: int) -> Evidence:
    """Returns evidence about descent whose query is token 1 of each input; the constraints have token
    ``position`` as query.
    """
    drawn = equal_distractors(inputs=5, tokens=5, dim=9, generator=generator)
    instance = Instance(drawn.tokens, drawn.tokens[:, 1], drawn.scores)
    return _distance(instance, self_attention(instance.tokens, instance.optimal(), position=position))


def _own_query(generator: torch.Generator) -> Evidence:
    return _self_attention(generator, position=1)


def _other_query(generator: torch.Generator) -> Evidence:
    return _self_attention(generator, position=0)


ASSUMPTIONS = (
    "each query has one best token and all its other tokens score the same",
    "the max-margin problem of all queries together is feasible, and descent selects the best tokens, which "
    "equal scores do not guarantee",
    "decreasing smooth loss (logistic); normalised steps from W = 0",
)

CLAIMS = (
    Claim(
        id="attention_svm/causal-direction",
        statement="With causal attention, descent on $W$ converges in direction to the max-margin solution "
        r"of the constraints $(x_{i,a_{ik}} - x_{i,t})^\top W x_{i,k} \ge 1$ of all positions $k$ and all "
        r"$t \le k$, $t \ne a_{ik}$.",
        measures="1 - cosine to the max-margin direction",
        source=SOURCE,
        assumptions=ASSUMPTIONS,
        check=_causal_direction,
        control=_mask_ignored,
        control_description="The constraints include the tokens after each position, which attention does "
        "not see.",
    ),
    Claim(
        id="attention_svm/sequence-direction",
        statement="With many queries per input and one $W$, descent converges in direction to the "
        r"max-margin solution of the constraints $(x_{i,a_{ik}} - x_{i,t})^\top W z_{ik} \ge 1$ of all "
        "queries together.",
        measures="1 - cosine to the max-margin direction",
        source=SOURCE,
        assumptions=ASSUMPTIONS,
        check=_sequence_direction,
        control=_last_query_only,
        control_description="Only the constraints of the last query of each input are kept.",
    ),
    Claim(
        id="attention_svm/self-attention-direction",
        statement="With self-attention, descent on $W$ converges in direction to the max-margin solution "
        r"of the constraints $(x_{i,a_i} - x_{i,t})^\top W x_{i,k} \ge 1$: the query of each input is its "
        "own token k.",
        measures="1 - cosine to the max-margin direction",
        source=SOURCE,
        assumptions=("the query of each input is its second token", *ASSUMPTIONS),
        check=_own_query,
        control=_other_query,
        control_description="The constraints have the first token of each input as query.",
    ),
)

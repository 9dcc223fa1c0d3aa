r"""The theory on real data: one attention head, trained by descent on W, against the max-margin solution of the tokens it should select.

The data need labels. One class against the rest gives Y in {-1, 1}; a linear head v is fitted to the mean tokens by ridge regression and
kept fixed; the scores :math:`\gamma_{i,t} = Y_i v^\top x_{i,t}` then say which token of an input is best. Queries are those of the data.
Whether one W can select the best tokens of n inputs is measured for random sets of growing n. Descent runs, from W = 0, on a set grown
one random input at a time as long as its best tokens stay feasible (up to :data:`INPUTS`).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...citations import Source
from ...claims import Evidence
from ...data.tokens import TokenData
from ...errors import Infeasible, NotConverged
from ...linalg import cosine
from ...rows import Arrays, Row, assumption, finding, not_applicable
from .alignment import alignment
from .builders import distinct_constraints
from .constraint_set import Constraints
from .dynamics import State, start, trajectory
from .problem import Instance, token_scores
from .selection import first_step_condition, neighbour_gap, ties
from .solution import MaxMargin
from .solvers import frobenius_max_margin

NAME = "attention_svm"
SOURCE = Source("tarzanagh2023transformers")
ANSWER = "cosine of W to the max-margin direction of the selected tokens"
INPUTS = 24
SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24)
DRAWS = 12  # random subsets of each size
BROADEST = 50.0  # largest norm of a max-margin solution that descent can be expected to resolve in STEPS (tokens have norm one)
CANDIDATES = 96  # inputs tried when a feasible set is grown
RATE = 0.25
STEPS = (0, 10, 20, 40, 80, 160, 320, 640, 1000, 1500, 2000, 3000, 4000)
PICTURED = 6  # inputs whose attention is drawn
BOUND = 0.95


@dataclass(frozen=True)
class Task:
    """One class against the rest, with a linear head: what the attention head is trained on.

    Attributes:
        instance: all usable inputs, tokens divided by their root-mean-square norm.
        index: position of each in the data.
        accuracy: share of inputs whose label the head predicts from the mean token.
        positive: the class that is told from the others.
    """

    instance: Instance
    index: Tensor
    accuracy: float
    positive: int


def one_against_rest(data: TokenData, generator: torch.Generator, *, most: int = 1000) -> Task:
    """A task with as many inputs of one random class as of the others, at most ``most``, in random order, the two alternating.

    Tokens and queries are divided by one number each (their root-mean-square norm), which changes the scale of W and nothing else.

    Raises:
        ValueError: the data have no labels or only one class.
    """
    if data.labels is None or data.query is None or len(data.labels.unique()) < 2:
        raise ValueError("labels must name at least two classes: one is told from the rest")
    present = data.labels.unique()
    positive = int(present[torch.randint(len(present), (1,), generator=generator)])
    order = torch.randperm(len(data), generator=generator)
    inside, outside = order[data.labels[order] == positive], order[data.labels[order] != positive]
    half = min(len(inside), len(outside), most // 2)
    index = torch.stack([inside[:half], outside[:half]], 1).ravel()
    sign = torch.where(data.labels[index] == positive, 1.0, -1.0).double()
    tokens, query = (_unit_scale(v[index].detach().cpu().double()) for v in (data.tokens, data.query))
    means = tokens.mean(1)
    gram = means.T @ means
    ridge = 1e-3 * gram.diagonal().mean().clamp(min=1e-12) * torch.eye(len(gram), dtype=torch.float64)
    head = torch.linalg.solve(gram + ridge, means.T @ sign)
    head = head / head.norm().clamp(min=1e-300)
    accuracy = float(((means @ head).sign() == sign).double().mean())
    return Task(Instance(tokens, query, token_scores(tokens, head, sign)), index, accuracy, positive)


def feasible_shares(instance: Instance, generator: torch.Generator) -> tuple[list[int], list[float]]:
    """For growing n: the share of random sets of n inputs whose best tokens a W can select. Stops after a size with none."""
    sizes, shares = [], []
    for size in (s for s in SIZES if s <= len(instance.tokens)):
        draws = DRAWS if size <= 8 else DRAWS // 3
        subsets = [torch.randperm(len(instance.tokens), generator=generator)[:size] for _ in range(draws)]
        sizes.append(size)
        shares.append(sum(_solve(_pairs(instance[subset])) is not None for subset in subsets) / draws)
        if not shares[-1]:
            break
    return sizes, shares


@dataclass(frozen=True)
class Grown:
    """A set of inputs whose best tokens one W can select.

    Attributes:
        kept: their positions.
        solution: the max-margin solution of their best tokens; None if there are none.
        guaranteed: how many the theory promises, whatever the scores: the rank of the queries of those candidates whose differences (best
            token minus each other one) are linearly independent. For data in general position, d of them if d >= T - 1.
        resolved: every candidate left out was infeasible; otherwise the margin of one was only too small.
    """

    kept: Tensor
    solution: MaxMargin | None
    guaranteed: int
    resolved: bool


def grow_feasible(instance: Instance, generator: torch.Generator) -> Grown:
    """A set of inputs whose best tokens one W can select, grown greedily in random order, and the max-margin solution.

    An input is left out if the margin would become so small that descent could not show it in the steps it is given.
    """
    kept, solution, resolved = [], None, True
    candidates = torch.randperm(len(instance.tokens), generator=generator)[:CANDIDATES]
    for candidate in candidates.tolist():
        try:
            found = frobenius_max_margin(_pairs(instance[torch.tensor([*kept, candidate])]), tol=1e-9)
        except Infeasible:
            continue
        except NotConverged:
            resolved = False
            continue
        resolved &= found.norm <= BROADEST
        if 0 < found.norm <= BROADEST:
            kept, solution = [*kept, candidate], found
        if len(kept) == INPUTS:
            break
    free = [c for c in candidates.tolist() if _independent(_pairs(instance[torch.tensor([c])]).difference)]
    promised = int(torch.linalg.matrix_rank(instance.query[torch.tensor(free)])) if free else 0
    return Grown(torch.tensor(kept, dtype=torch.long), solution, promised, resolved)


def _independent(vectors: Tensor) -> bool:
    return 0 < len(vectors) == int(torch.linalg.matrix_rank(vectors))


def predict_and_measure(data: TokenData, generator: torch.Generator) -> Iterator[Row | Arrays]:
    """Rows and arrays of the theory on labelled data; see the module's docstring."""
    if data.tokens.shape[1] < 2:
        yield not_applicable(NAME, "needs at least two tokens an input to select from")
        return
    try:
        task = one_against_rest(data, generator)
    except ValueError:
        yield not_applicable(NAME, "needs labels of at least two classes")
        return
    instance, (n, T, d) = task.instance, task.instance.tokens.shape
    tied = ties(instance.scores, instance.tokens)
    yield Row(
        theory=NAME,
        quantity="accuracy of the linear head on mean tokens",
        value=task.accuracy,
        null=0.5,
        note=f"class {task.positive} against the rest, {n} inputs: the head that scores the tokens",
    )
    yield assumption(
        NAME,
        "every input has one best token",
        not bool(tied.any()),
        value=float((~tied).double().mean()),
        source=SOURCE,
        note="share of inputs in which no different token scores as high; the others are left out",
    )
    if bool(tied.all()):
        yield not_applicable(NAME, "no input has a single best token")
        return
    clear = instance[(~tied).nonzero().squeeze(-1)]
    sizes, shares = feasible_shares(clear, generator)
    grown = grow_feasible(clear, generator)
    subset, optimal = grown.kept, grown.solution
    yield from _feasibility(sizes, shares, grown, T, d)
    if optimal is None:
        reason = "infeasible (no W selects the best token of even one input)"
        yield Row(theory=NAME, quantity=ANSWER, value=None, verdict=f"not applicable: {reason}", source=str(SOURCE), note=reason)
        return
    yield from _descent(clear[subset], optimal, len(clear.tokens), generator)


def _feasibility(sizes: list[int], shares: list[float], grown: Grown, T: int, d: int) -> Iterator[Row | Arrays]:
    n, promised = len(grown.kept), min(grown.guaranteed, INPUTS)
    yield Arrays({f"{NAME}/feasible_n": np.array(sizes), f"{NAME}/feasible_share": np.array(shares), f"{NAME}/grown": np.array(n)})
    if promised:
        sure = f"guaranteed up to n = {grown.guaranteed}, the rank of the queries"
    elif d < T - 1:
        sure = f"nothing is guaranteed as the dimension {d} is below T - 1 = {T - 1}"
    else:
        sure = "nothing is guaranteed as the tokens of an input depend on one another linearly"
    curve = ", ".join(f"{share:.0%} of {n}" for n, share in zip(sizes, shares))
    yield finding(
        NAME,
        "number of inputs whose best tokens one W can select",
        Evidence(n, promised, ">=", converged=grown.resolved or n >= promised, in_assumptions=promised > 0),
        source=SOURCE,
        note=f"set grown greedily, at most {INPUTS}, margin at least {1 / BROADEST:g}; {sure}; feasible random sets: {curve}",
    )


def _descent(instance: Instance, optimal: MaxMargin, available: int, generator: torch.Generator) -> Iterator[Row | Arrays]:
    """Descent on the chosen inputs, and where it goes."""
    n = len(instance.tokens)
    states = list(trajectory(instance, start(instance), at=STEPS, rate=RATE))
    end, half = states[-1], states[-3]
    select = instance.selected(end.W)
    pairs = _pairs(instance, select)
    solution = _solve(pairs)
    attention = instance.attention(end.W)
    same = instance.tokens == instance.tokens.gather(1, select[:, None, None].expand(-1, 1, instance.tokens.shape[-1]))
    mass = (attention * same.all(-1)).sum(-1)  # equal tokens count as one
    hit = instance.scores.gather(1, select[:, None]).squeeze(1) >= instance.scores.amax(-1) - 1e-12
    saturated = bool(mass.min() > 1 - 1e-3)
    about = f"n = {n} of {available} inputs, {STEPS[-1]} normalised steps of {RATE} from W = 0"
    yield from _assumptions(instance, optimal)
    yield Row(
        theory=NAME, quantity="share of inputs whose best token is selected", value=float(hit.double().mean()), predicted=1.0, note=about
    )
    yield Row(
        theory=NAME,
        quantity="attention on the selected token (smallest over the inputs)",
        value=float(mass.min()),
        predicted=1.0,
        null=1 / instance.tokens.shape[1],
        source=str(SOURCE),
        note="below .999 the run has not settled, and what follows is inconclusive",
    )
    growth = float(end.W.norm() / half.W.norm()) if float(half.W.norm()) else 1.0
    yield Row(
        theory=NAME,
        quantity="norm of W, relative to half-way",
        value=growth,
        source=str(SOURCE),
        predicted=end.step / half.step,
        note=f"diverges in the theory; from {float(half.W.norm()):.0f} at step {half.step} to {float(end.W.norm()):.0f} at step {end.step}",
    )
    good_start = first_step_condition(instance) > 0
    yield _cosine_row("cosine of W to the max-margin direction of the best tokens", states, optimal, good_start, None, about, saturated)
    if solution is None:
        yield Row(
            theory=NAME,
            quantity=ANSWER,
            value=None,
            verdict="not applicable: infeasible (selected tokens tie)",
            source=str(SOURCE),
            note=about,
        )
        return
    gap = neighbour_gap(instance.scores, select, pairs, solution)
    settled = saturated and _still(states, solution) < 0.002
    yield finding(
        NAME,
        "share of inputs whose selected token scores above its neighbours",
        Evidence(float((gap < 0).double().mean()), 1.0, ">=", converged=settled),
        source=SOURCE,
        note="locally optimal selections are the only stable ones",
    )
    margin = float(pairs.margins(end.W).min() / end.W.norm()) * solution.norm
    yield finding(
        NAME,
        "smallest margin, share of the largest possible",
        Evidence(margin, 0.9, ">=", converged=settled),
        source=SOURCE,
        predicted=1.0,
    )
    null = alignment(
        end.W, instance.tokens, instance.query, generator=generator, constraints=n * (instance.tokens.shape[1] - 1), draws=8
    ).null
    yield _cosine_row(ANSWER, states, solution, not settled or bool((gap < 0).all()), null, about, saturated)
    yield _pictures(instance, states, (optimal, solution), pairs, null)


def _assumptions(instance: Instance, optimal: MaxMargin) -> Iterator[Row]:
    spread = []
    for scores, best in zip(instance.scores, instance.optimal()):
        others = scores[torch.arange(len(scores)) != best]
        spread.append(float((others.max() - others.min()) / (scores[best] - others.min()).clamp(min=1e-300)))
    yield assumption(
        NAME,
        "all other tokens of an input score the same",
        max(spread) < 1e-9,
        value=max(spread),
        source=SOURCE,
        note="largest spread of the others' scores relative to the best token's lead; needed by the global theorem from any start",
    )
    first = first_step_condition(instance)
    yield assumption(
        NAME,
        "the first step from W = 0 raises every best token above the others",
        first > 0,
        value=first,
        source=SOURCE,
        note="smallest margin of the first step, relative; positive: descent from zero reaches the best tokens",
    )


def _cosine_row(
    quantity: str, states: list[State], target: MaxMargin, in_assumptions: bool, null: float | None, note: str, saturated: bool
) -> Row:
    value = float(cosine(states[-1].W, target.W)) if bool(states[-1].W.any()) else float("nan")
    short = (
        ""
        if value >= BOUND
        else "; still rising"
        if _still(states, target) > 0.005
        else ""
        if saturated
        else "; attention is not yet saturated"
    )
    evidence = Evidence(value, BOUND, ">=", converged=not short, in_assumptions=in_assumptions)
    extra = {} if null is None else {"null": null}
    return finding(NAME, quantity, evidence, source=SOURCE, predicted=1.0, note=note + short, **extra)


def _still(states: list[State], target: MaxMargin) -> float:
    """How much the cosine to the target rose over the last quarter of the run."""
    before, after = (float(cosine(s.W, target.W)) if bool(s.W.any()) else 0.0 for s in states[-2:])
    return after - before


def _pictures(
    instance: Instance, states: list[State], targets: tuple[MaxMargin, MaxMargin], pairs: Constraints, null: float | None
) -> Arrays:
    end, (optimal, selected) = states[-1], targets
    moved = [s for s in states if bool(s.W.any())]
    return Arrays(
        {
            f"{NAME}/steps": np.array([s.step for s in moved]),
            f"{NAME}/cosine_optimal": np.array([float(cosine(s.W, optimal.W)) for s in moved]),
            f"{NAME}/cosine_selected": np.array([float(cosine(s.W, selected.W)) for s in moved]),
            f"{NAME}/norm": np.array([float(s.W.norm()) for s in moved]),
            f"{NAME}/null": np.array(float("nan") if null is None else null),
            f"{NAME}/margins": (pairs.margins(end.W) / end.W.norm() * selected.norm).numpy(),
            f"{NAME}/margins_max_margin": selected.margins.numpy(),
            f"{NAME}/attention": instance.attention(end.W)[:PICTURED].numpy(),
            f"{NAME}/best_token": instance.optimal()[:PICTURED].numpy(),
        }
    )


def _pairs(instance: Instance, select: Tensor | None = None) -> Constraints:
    return distinct_constraints(instance.tokens, instance.query, instance.optimal() if select is None else select)


def _solve(pairs: Constraints) -> MaxMargin | None:
    """The max-margin solution; None where there is none, or none that float64 can resolve."""
    try:
        return frobenius_max_margin(pairs, tol=1e-9)
    except (Infeasible, NotConverged):
        return None


def _unit_scale(vectors: Tensor) -> Tensor:
    size = vectors.norm(dim=-1).pow(2).mean().sqrt()
    return vectors / size if float(size) > 0 else vectors

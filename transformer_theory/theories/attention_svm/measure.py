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

from ...core.claims import Evidence
from ...core.errors import Infeasible, NotConverged
from ...core.measurement import Arrays, Row, assumption, finding, not_applicable
from ...core.sources import Source
from ...data.tokens import TokenData
from .analysis import RATE, STEPS, Analysis, Selection, analyse, unit_scale
from .builders import distinct_constraints
from .constraint_set import Constraints
from .problem import Instance, token_scores
from .selection import ties
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
BOUND = 0.95
EQUAL = 1e-9  # spread of scores that count as the same


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

    Args:
        data: labelled tokens with a query each.
        generator: draws the class and the inputs.
        most: how many inputs at most, those of the class and the others together.
    Returns:
        The task; ``instance`` holds the inputs in float64.
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
    tokens, query = (unit_scale(v[index].detach().cpu().double()) for v in (data.tokens, data.query))
    means = tokens.mean(1)
    gram = means.T @ means
    ridge = 1e-3 * gram.diagonal().mean().clamp(min=1e-12) * torch.eye(len(gram), dtype=torch.float64)
    head = torch.linalg.solve(gram + ridge, means.T @ sign)
    head = head / head.norm().clamp(min=1e-300)
    accuracy = float(((means @ head).sign() == sign).double().mean())
    return Task(Instance(tokens, query, token_scores(tokens, head, sign)), index, accuracy, positive)


def feasible_shares(instance: Instance, generator: torch.Generator) -> tuple[list[int], list[float]]:
    """For growing n: the share of random sets of n inputs whose best tokens a W can select. Stops after a size with none.

    Args:
        instance: a single problem; each input has one best token.
        generator: draws the sets.
    Returns:
        The sizes that were tried, and the share of each.
    """
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

    Args:
        instance: a single problem; each input has one best token.
        generator: draws the order.
    Returns:
        The set with its solution, and what the theory guarantees.
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
    """Rows and arrays of the theory on labelled data; see the module's docstring.

    Args:
        data: tokens with a query each; without labels of two classes, or with a single token an input, one row says so.
        generator: draws the class, the inputs and the null.
    Returns:
        Assumptions, predictions beside measurements, and the arrays of the picture, one by one.
    """
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
    chosen, seed = clear[subset], int(torch.randint(2**31, (1,), generator=generator))
    yield from _descent(analyse(chosen.tokens, chosen.query, chosen.scores, at=STEPS, rate=RATE, seed=seed), len(clear.tokens))


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
        Evidence(n, promised, ">=", converged=grown.resolved or n >= promised, covered=promised > 0),
        source=SOURCE,
        note=f"set grown greedily, at most {INPUTS}, margin at least {1 / BROADEST:g}; {sure}; feasible random sets: {curve}",
    )


def _descent(found: Analysis, available: int) -> Iterator[Row | Arrays]:
    """Descent on the chosen inputs, and where it goes."""
    end, half = found.states[-1], found.states[-3]
    about = f"n = {len(found.tied)} of {available} inputs, {end.step} normalised steps of {RATE} from W = 0"
    yield from _assumptions(found)
    yield Row(
        theory=NAME,
        quantity="share of inputs whose best token is selected",
        value=float(found.agreement.double().mean()),
        predicted=1.0,
        note=about,
    )
    yield Row(
        theory=NAME,
        quantity="attention on the selected token (smallest over the inputs)",
        value=float(found.attention.min()),
        predicted=1.0,
        null=1 / found.instance.tokens.shape[1],
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
    promised = found.first_step > 0 and _unequal(found) < EQUAL
    yield _cosine_row("cosine of W to the max-margin direction of the best tokens", found, found.best, promised, None, about)
    if found.selected.solution is None:
        verdict = f"not applicable: {found.selected.reason.split(':')[0]}"
        yield Row(theory=NAME, quantity=ANSWER, value=None, verdict=verdict, source=str(SOURCE), note=about)
        return
    settled = found.saturated and _rise(found, found.selected) < 0.002
    yield finding(
        NAME,
        "share of inputs whose selected token scores above its neighbours",
        Evidence(float(found.locally_optimal.double().mean()), 1.0, ">=", converged=settled),
        source=SOURCE,
        note="locally optimal selections: at others descent does not stay; an input that selects none counts as not locally optimal",
    )
    yield finding(
        NAME,
        "smallest margin, share of the largest possible",
        Evidence(found.margin, 0.9, ">=", converged=settled),
        source=SOURCE,
        predicted=1.0,
    )
    stable = not settled or bool(found.locally_optimal.all())
    yield _cosine_row(ANSWER, found, found.selected, stable, found.null, about)
    yield Arrays({f"{NAME}/{name}": value for name, value in found.arrays().items()})


def _unequal(found: Analysis) -> float:
    """Largest spread of the other tokens' scores, relative to the best token's lead."""
    spread = []
    for scores, best in zip(found.instance.scores, found.best.tokens):
        others = scores[torch.arange(len(scores)) != best]
        spread.append(float((others.max() - others.min()) / (scores[best] - others.min()).clamp(min=1e-300)))
    return max(spread)


def _assumptions(found: Analysis) -> Iterator[Row]:
    unequal = _unequal(found)
    yield assumption(
        NAME,
        "all other tokens of an input score the same",
        unequal < EQUAL,
        value=unequal,
        source=SOURCE,
        note="largest spread of the others' scores relative to the best token's lead; zero: no finite stationary point",
    )
    yield assumption(
        NAME,
        "the first step from W = 0 raises every best token above the others",
        found.first_step > 0,
        value=found.first_step,
        source=SOURCE,
        note="smallest margin of the first step, relative; positive, with the others' scores equal: descent reaches the best tokens",
    )


def _cosine_row(quantity: str, found: Analysis, selection: Selection, in_assumptions: bool, null: float | None, note: str) -> Row:
    value = float(found.cosines(selection)[-1])
    short = ""
    if value < BOUND and _rise(found, selection) > 0.005:
        short = "; still rising"
    elif value < BOUND and not found.saturated:
        short = "; attention is not yet saturated"
    evidence = Evidence(value, BOUND, ">=", converged=not short, covered=in_assumptions)
    row = finding(NAME, quantity, evidence, source=SOURCE, predicted=1.0, note=note + short)
    if null is not None:
        row["null"] = null
    return row


def _rise(found: Analysis, selection: Selection) -> float:
    """How much the cosine to the selection's solution rose over the last quarter of the run."""
    before, after = found.cosines(selection)[-2:]
    return float(after - before)


def _pairs(instance: Instance) -> Constraints:
    return distinct_constraints(instance.tokens, instance.query, instance.optimal())


def _solve(pairs: Constraints) -> MaxMargin | None:
    """The max-margin solution; None where there is none, or none that float64 can resolve."""
    try:
        return frobenius_max_margin(pairs, tol=1e-9)
    except (Infeasible, NotConverged):
        return None

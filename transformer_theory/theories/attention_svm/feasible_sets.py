"""Random sets of inputs whose best tokens one W can select."""

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from ...core.errors import Infeasible, NotConverged
from .builders import distinct_constraints
from .constraint_set import Constraints
from .problem import Instance
from .solution import MaxMargin
from .solvers import frobenius_max_margin

MAX_INPUTS = 24  # largest size of the set on which W is trained
SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24)
SUBSETS = 12  # number of random subsets of each size up to 8; a third of it for larger sizes
# largest norm of a max-margin solution that descent can resolve in STEPS (tokens have norm one)
MAX_NORM = 50.0
MAX_CANDIDATES = 96  # largest number of inputs that are tested for a feasible set
SOLVER_TOL = 1e-9


def feasible_shares(instance: Instance, generator: torch.Generator) -> tuple[list[int], list[float]]:
    """Measures, for growing n, the share of feasible sets among random sets of n inputs: one W can select all
    best tokens.

    Returns:
        The sizes n and their shares, up to the first share of zero.
    """
    sizes, shares = [], []
    for size in (s for s in SIZES if s <= len(instance.tokens)):
        draws = SUBSETS if size <= 8 else SUBSETS // 3
        subsets = [torch.randperm(len(instance.tokens), generator=generator)[:size] for _ in range(draws)]
        sizes.append(size)
        shares.append(sum(_feasible(_best_constraints(instance[subset])) for subset in subsets) / draws)
        if not shares[-1]:
            break
    return sizes, shares


@dataclass(frozen=True)
class FeasibleSet:
    """A set of inputs whose best tokens one W can select.

    Attributes:
        inputs: positions of the inputs in the instance.
        solution: the max-margin solution of their best tokens; None if the set is empty.
        guaranteed: number of inputs that the theory guarantees for any scores. It is the rank of the queries
            of all candidates whose differences (best token minus each other token) are linearly independent.
            For data in general position: d if d >= T - 1.
        resolved: whether every rejected candidate was infeasible; False if some candidate was rejected for a
            small margin.
    """

    inputs: Int[Tensor, " m"]
    solution: MaxMargin | None
    guaranteed: int
    resolved: bool


def grow_feasible(instance: Instance, generator: torch.Generator) -> FeasibleSet:
    """Builds a feasible set of inputs greedily in random order, with its max-margin solution.

    A candidate is also rejected if the margin would become too small for descent to resolve within its budget
    of steps. Every input of the instance must have a single best token.
    """
    inputs, solution, resolved = [], None, True
    candidates = torch.randperm(len(instance.tokens), generator=generator)[:MAX_CANDIDATES]
    for candidate in candidates.tolist():
        try:
            larger = frobenius_max_margin(
                _best_constraints(instance[torch.tensor([*inputs, candidate])]), tol=SOLVER_TOL
            )
        except Infeasible:
            continue
        except NotConverged:
            resolved = False
            continue
        resolved &= larger.norm <= MAX_NORM
        if 0 < larger.norm <= MAX_NORM:
            inputs, solution = [*inputs, candidate], larger
        if len(inputs) == MAX_INPUTS:
            break
    # The condition of :mod:`.feasibility`: the differences within each candidate are linearly independent,
    # and so are the queries.
    differences = {c: _best_constraints(instance[torch.tensor([c])]).difference for c in candidates.tolist()}
    free = [c for c, rows in differences.items() if 0 < len(rows) == int(torch.linalg.matrix_rank(rows))]
    guaranteed = int(torch.linalg.matrix_rank(instance.query[torch.tensor(free)])) if free else 0
    return FeasibleSet(torch.tensor(inputs, dtype=torch.long), solution, guaranteed, resolved)


def _best_constraints(instance: Instance) -> Constraints:
    return distinct_constraints(instance.tokens, instance.query, instance.optimal())


def _feasible(pairs: Constraints) -> bool:
    """Returns whether float64 resolves a max-margin solution."""
    try:
        frobenius_max_margin(pairs, tol=SOLVER_TOL)
    except (Infeasible, NotConverged):
        return False
    return True

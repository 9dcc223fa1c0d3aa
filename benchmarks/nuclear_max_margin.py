"""Nuclear max-margin problems: this library, one by one and in a batch, against cvxpy.

The sizes are n = 10, T = 5, d = 20 and n = 6, T = 8, d = 10. The textbook version has one cvxpy constraint
per token and cvxpy's default solver (SCS). The strongest plain version has a single vectorised constraint and
the solver Clarabel. To compare accuracy, their W is scaled until it is feasible; the excess is that of its
norm over the norm of our solution, whose duality gap is at the level of rounding. Times are CPU seconds with
the preparation of the constraints.
"""

import statistics
import time
from itertools import pairwise

import numpy as np
import torch

from benchmarks._rows import Row, table
from benchmarks.baselines.nuclear import all_at_once, constraint_by_constraint
from transformer_theory.theories.attention_svm import (
    constraints,
    cross_attention,
    nuclear_max_margin,
    nuclear_max_margins,
)

SIZES = (
    ({"inputs": 10, "tokens": 5, "dim": 20}, {"single": 8.0, "batched": 20.0}),
    ({"inputs": 6, "tokens": 8, "dim": 10}, {"batched": 20.0}),
)
ROUNDS, BATCH, EACH = 9, 200, 5  # EACH: problems per round of the single solver
MEASURED = (
    "single",
    "batched",
    "cvxpy, one constraint per token, SCS",
    "cvxpy, one vector of constraints, Clarabel",
)
WORDS = {"single": "one by one", "batched": f"in a batch of {BATCH}"}


def excess(W: np.ndarray, difference: np.ndarray, query: np.ndarray, norm: float) -> float:
    """Returns the relative excess of a solution's norm over the smallest norm, after W is scaled so that all
    margins are at least one.
    """
    margin = float(((difference @ W) * query).sum(1).min())
    return float(np.linalg.norm(W, "nuc")) / margin / norm - 1


def run(size: dict[str, int], targets: dict[str, float], rounds: int = ROUNDS) -> list[Row]:
    """Returns processor seconds per problem of our two versions beside those of cvxpy; every round has new
    problems.

    Args:
        size: sizes of the problems.
        targets: target ratios to the textbook version, of "single" and of "batched".
        rounds: number of timed rounds.
    """
    generator = torch.Generator().manual_seed(0)
    seconds: dict[str, list[float]] = {name: [] for name in MEASURED}
    excesses: dict[str, list[float]] = {name: [] for name in MEASURED[2:]}
    kkt, polished = [], []
    for turn in range(-1, rounds):  # the first round warms up
        batch = cross_attention(**size, generator=generator, trials=BATCH)
        select = batch.optimal()
        pairs = constraints(batch.tokens, batch.query, select)
        problem = pairs.problem(0)
        clock = [time.process_time()]
        singles = [
            nuclear_max_margin(constraints(batch.tokens[i], batch.query[i], select[i])) for i in range(EACH)
        ]
        clock.append(time.process_time())
        solutions = nuclear_max_margins(constraints(batch.tokens, batch.query, select))
        clock.append(time.process_time())
        first = constraint_by_constraint(batch.tokens[0].numpy(), batch.query[0].numpy(), select[0].numpy())
        clock.append(time.process_time())
        second = all_at_once(problem.difference.numpy(), problem.query.numpy())
        clock.append(time.process_time())
        if turn < 0:
            continue
        for name, (begin, end), count in zip(MEASURED, pairwise(clock), (EACH, BATCH, 1, 1)):
            seconds[name].append((end - begin) / count)
        kkt.append(max(float(solutions.kkt[solutions.solved].max()), *(solution.kkt for solution in singles)))
        polished.append(float((solutions.gap <= 1e-9).double().mean()))
        for name, W in zip(excesses, (first, second)):
            excesses[name].append(
                excess(W, problem.difference.numpy(), problem.query.numpy(), singles[0].norm)
            )
    sizes = f"n = {size['inputs']}, T = {size['tokens']}, d = {size['dim']}"
    print(f"{sizes}: KKT residuals <= {max(kkt):.0e}, gap <= 1e-9 in {100 * statistics.mean(polished):.1f} %")
    return [
        Row(
            f"nuclear max-margin, {WORDS[ours]}",
            other,
            sizes,
            seconds[ours],
            seconds[other],
            max(map(abs, excesses[other])),
            "smallest norm",
            targets.get(ours) if other == MEASURED[2] else None,
        )
        for ours in WORDS
        for other in excesses
    ]


def main() -> list[Row]:
    """Returns the rows of both sizes."""
    return [row for size, targets in SIZES for row in run(size, targets)]


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(table(main()))

"""Frobenius max-margin problems: this library, one by one and in a batch, against cvxpy.

The sizes are n = 10, T = 5, d = 20, with fewer constraints than entries of W, and n = 15, T = 5, d = 5, with
more; four percent of the latter have no solution, which the batch proves. The textbook version has one cvxpy
constraint per token. The strongest plain version has a single vectorised constraint and the solver Clarabel.
Times are CPU seconds with the preparation of the constraints.
"""

import statistics
import time
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise

import torch

from benchmarks._rows import Row, table
from benchmarks.baselines.attention_svm import all_at_once, constraint_by_constraint
from transformer_theory.core.errors import Infeasible
from transformer_theory.theories.attention_svm import (
    constraints,
    cross_attention,
    frobenius_max_margin,
    frobenius_max_margins,
)

# EACH: problems per round of the single solver, because one is too short to time
ROUNDS, BATCH, EACH = 15, 400, 25
MEASURED = (
    "single",
    "batched",
    "cvxpy, one constraint per token",
    "cvxpy, one vector of constraints, Clarabel",
)
WORDS = {"single": "one by one", "batched": f"in a batch of {BATCH}"}


@dataclass(frozen=True)
class Case:
    """Sizes of the problems, and target ratios to the textbook version, one by one and in a batch; None
    without a target.
    """

    inputs: int
    tokens: int
    dim: int
    single: int | None
    batched: int

    @property
    def name(self) -> str:
        """The sizes in words."""
        return f"n = {self.inputs}, T = {self.tokens}, d = {self.dim}"


CASES = (Case(10, 5, 20, 80, 400), Case(15, 5, 5, None, 250))


def run(case: Case, rounds: int = ROUNDS) -> list[Row]:
    """Returns processor seconds per problem of our two versions beside those of cvxpy; every round has new
    problems.

    The difference is that of W, relative to its norm, on a problem that has a solution.
    """
    generator = torch.Generator().manual_seed(0)
    seconds: dict[str, list[float]] = {name: [] for name in MEASURED}
    distances: dict[str, list[float]] = {name: [] for name in MEASURED[2:]}
    kkt, solved = [], []
    for turn in range(-1, rounds):  # the first round warms up
        batch = cross_attention(
            inputs=case.inputs, tokens=case.tokens, dim=case.dim, generator=generator, trials=BATCH
        )
        select = batch.optimal()
        clock = [time.process_time()]
        for trial in range(EACH):
            _single(batch.tokens[trial], batch.query[trial], select[trial])
        clock.append(time.process_time())
        solutions = frobenius_max_margins(constraints(batch.tokens, batch.query, select))
        clock.append(time.process_time())
        # the textbook versions solve the first problem that has a solution
        first = int(solutions.solved.nonzero()[0])
        plain = constraints(batch.tokens[first], batch.query[first], select[first])
        values = [
            constraint_by_constraint(
                batch.tokens[first].numpy(), batch.query[first].numpy(), select[first].numpy()
            )
        ]
        clock.append(time.process_time())
        values.append(all_at_once(plain.difference.numpy(), plain.query.numpy()))
        clock.append(time.process_time())
        if turn >= 0:
            for name, (begin, end), count in zip(MEASURED, pairwise(clock), (EACH, BATCH, 1, 1)):
                seconds[name].append((end - begin) / count)
            kkt.append(float(solutions.kkt[solutions.solved].max()))
            solved.append(float(solutions.solved.double().mean()))
            for name, value in zip(distances, values):
                apart = (torch.from_numpy(value) - solutions.W[first]).norm() / solutions.norm[first]
                distances[name].append(float(apart))
    print(
        f"{case.name}: {100 * statistics.mean(solved):.1f} % of the problems have a solution, KKT residuals "
        f"<= {max(kkt):.0e}"
    )
    return [
        Row(
            f"Frobenius max-margin, {WORDS[ours]}",
            other,
            case.name,
            seconds[ours],
            seconds[other],
            max(distances[other]),
            "W",
            getattr(case, ours) if other == MEASURED[2] else None,
        )
        for ours in WORDS
        for other in distances
    ]


def _single(tokens: torch.Tensor, query: torch.Tensor, select: torch.Tensor) -> None:
    """Solves one problem; a proof that there is no solution counts as well."""
    with suppress(Infeasible):
        frobenius_max_margin(constraints(tokens, query, select))


def main() -> list[Row]:
    """Returns the rows of both sizes."""
    return [row for case in CASES for row in run(case)]


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(table(main()))

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
MEASURED = ("single", "batched", "textbook", "vectorised")


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


def run(case: Case, rounds: int = ROUNDS) -> dict[str, float]:
    """Returns medians in CPU seconds per problem, ratios and the largest KKT residual; the versions take
    turns in every round.
    """
    generator = torch.Generator().manual_seed(0)
    seconds: dict[str, list[float]] = {name: [] for name in MEASURED}
    kkt, distances, solved = [], [], []
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
        value = constraint_by_constraint(
            batch.tokens[first].numpy(), batch.query[first].numpy(), select[first].numpy()
        )
        clock.append(time.process_time())
        all_at_once(plain.difference.numpy(), plain.query.numpy())
        clock.append(time.process_time())
        if turn >= 0:
            for name, (begin, end), count in zip(MEASURED, pairwise(clock), (EACH, BATCH, 1, 1)):
                seconds[name].append((end - begin) / count)
            kkt.append(float(solutions.kkt[solutions.solved].max()))
            solved.append(float(solutions.solved.double().mean()))
            distances.append(
                float((torch.from_numpy(value) - solutions.W[first]).norm() / solutions.norm[first])
            )
    ratios = {
        f"{ours}, {other}": statistics.median(b / a for a, b in zip(seconds[ours], seconds[other]))
        for ours in ("single", "batched")
        for other in ("textbook", "vectorised")
    }
    accuracy = {"kkt": max(kkt), "apart": max(distances), "solved": statistics.mean(solved)}
    return {name: statistics.median(times) for name, times in seconds.items()} | ratios | accuracy


def _single(tokens: torch.Tensor, query: torch.Tensor, select: torch.Tensor) -> None:
    """Solves one problem; a proof that there is no solution counts as well."""
    with suppress(Infeasible):
        frobenius_max_margin(constraints(tokens, query, select))


def main() -> None:
    """Prints times and ratios for both sizes."""
    for case in CASES:
        numbers = run(case)
        single, batched = (f"(target {target}x)" if target else "" for target in (case.single, case.batched))
        print(
            f"Frobenius max-margin, {case.name} ({ROUNDS} rounds, batches of {BATCH}); KKT residuals <= "
            f"{numbers['kkt']:.0e}, "
            f"{100 * numbers['solved']:.1f} % have a solution\n"
            f"  one cvxpy constraint per token  {1e3 * numbers['textbook']:8.2f} ms per problem, solution "
            f"{numbers['apart']:.0e} away\n"
            f"  vectorised cvxpy, Clarabel      {1e3 * numbers['vectorised']:8.2f} ms\n"
            f"  here, one by one                {1e3 * numbers['single']:8.2f} ms   "
            f"{numbers['single, textbook']:5.0f}x {single:14} "
            f"and {numbers['single, vectorised']:4.0f}x faster than these\n"
            f"  here, in a batch                {1e3 * numbers['batched']:8.2f} ms   "
            f"{numbers['batched, textbook']:5.0f}x {batched:14} "
            f"and {numbers['batched, vectorised']:4.0f}x faster than these"
        )


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()

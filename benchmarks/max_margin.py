"""Frobenius max-margin, n = 10 inputs of T = 5 tokens in d = 20 dimensions: this library, one by one and in a batch, against cvxpy.

The textbook version has one cvxpy constraint per token. The strongest plain version has a single vectorised constraint and the solver
Clarabel.
"""

import statistics
import time

import torch

from benchmarks.baselines.attention_svm import all_at_once, constraint_by_constraint
from transformer_theory.theories.attention_svm import constraints, cross_attention, frobenius_max_margin, frobenius_max_margins

SIZE = {"inputs": 10, "tokens": 5, "dim": 20}
ROUNDS, BATCH, EACH = 15, 400, 25  # EACH: problems per round of the single solver, because one is too short to time
MEASURED = ("single", "batched", "textbook", "vectorised")


def run(rounds: int = ROUNDS) -> dict[str, float]:
    """Returns medians in seconds per problem, ratios and the largest KKT residual; the versions take turns in every round."""
    generator = torch.Generator().manual_seed(0)
    seconds: dict[str, list[float]] = {name: [] for name in MEASURED}
    kkt, distances = [], []
    for turn in range(-1, rounds):  # the first round warms up
        batch = cross_attention(**SIZE, generator=generator, trials=BATCH)
        single, select = batch[0], batch.optimal()
        plain = constraints(single.tokens, single.query, select[0])
        clock = [time.perf_counter()]
        for _ in range(EACH):
            solution = frobenius_max_margin(constraints(single.tokens, single.query, select[0]))
        clock.append(time.perf_counter())
        solutions = frobenius_max_margins(constraints(batch.tokens, batch.query, select))
        clock.append(time.perf_counter())
        value = constraint_by_constraint(single.tokens.numpy(), single.query.numpy(), select[0].numpy())
        clock.append(time.perf_counter())
        all_at_once(plain.difference.numpy(), plain.query.numpy())
        clock.append(time.perf_counter())
        if turn >= 0:
            for name, begin, end, count in zip(MEASURED, clock, clock[1:], (EACH, BATCH, 1, 1)):
                seconds[name].append((end - begin) / count)
            kkt.append(max(solution.kkt, float(solutions.kkt.max())))
            distances.append(float((torch.from_numpy(value) - solution.W).norm() / solution.W.norm()))
    ratios = {
        f"{ours}, {other}": statistics.median(b / a for a, b in zip(seconds[ours], seconds[other]))
        for ours in ("single", "batched")
        for other in ("textbook", "vectorised")
    }
    return {name: statistics.median(times) for name, times in seconds.items()} | ratios | {"kkt": max(kkt), "apart": max(distances)}


def main() -> None:
    """Prints times and ratios."""
    numbers = run()
    print(
        f"Frobenius max-margin, n = 10, T = 5, d = 20 ({ROUNDS} rounds, batches of {BATCH}); KKT residuals <= {numbers['kkt']:.0e}\n"
        f"  one cvxpy constraint per token  {1e3 * numbers['textbook']:8.2f} ms per problem, solution {numbers['apart']:.0e} away\n"
        f"  vectorised cvxpy, Clarabel      {1e3 * numbers['vectorised']:8.2f} ms\n"
        f"  here, one by one                {1e3 * numbers['single']:8.2f} ms   {numbers['single, textbook']:5.0f}x (target 80x) "
        f"and {numbers['single, vectorised']:4.0f}x faster than these\n"
        f"  here, in a batch                {1e3 * numbers['batched']:8.2f} ms   {numbers['batched, textbook']:5.0f}x (target 400x) "
        f"and {numbers['batched, vectorised']:4.0f}x faster than these"
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()

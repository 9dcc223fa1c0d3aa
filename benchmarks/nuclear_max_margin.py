"""Nuclear max-margin problems: this library, one by one and in a batch, against cvxpy.

The sizes are n = 10, T = 5, d = 20 and n = 6, T = 8, d = 10. The textbook version has one cvxpy constraint
per token and cvxpy's default solver (SCS). The strongest plain version has a single vectorised constraint and
the solver Clarabel. To compare accuracy, their W is scaled until it is feasible; the excess is that of its
norm over the norm of our solution, whose duality gap is at the level of rounding. Times are CPU seconds with
the preparation of the constraints.
"""

import statistics
import time

import numpy as np
import torch

from benchmarks.baselines.nuclear import all_at_once, constraint_by_constraint
from transformer_theory.theories.attention_svm import (
    constraints,
    cross_attention,
    nuclear_max_margin,
    nuclear_max_margins,
)

SIZES = ({"inputs": 10, "tokens": 5, "dim": 20}, {"inputs": 6, "tokens": 8, "dim": 10})
ROUNDS, BATCH, EACH = 9, 200, 5  # EACH: problems per round of the single solver
MEASURED = ("single", "batched", "textbook", "vectorised")


def excess(W: np.ndarray, difference: np.ndarray, query: np.ndarray, norm: float) -> float:
    """Returns the relative excess of a solution's norm over the smallest norm, after W is scaled so that all
    margins are at least one.
    """
    margin = float(((difference @ W) * query).sum(1).min())
    return float(np.linalg.norm(W, "nuc")) / margin / norm - 1


def run(size: dict[str, int], rounds: int = ROUNDS) -> dict[str, float]:
    """Returns medians in CPU seconds per problem, ratios and accuracies; the versions take turns in every
    round.
    """
    generator = torch.Generator().manual_seed(0)
    seconds: dict[str, list[float]] = {name: [] for name in MEASURED}
    kkt, polished, excesses = [], [], {"textbook": [], "vectorised": []}
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
        for name, begin, end, count in zip(MEASURED, clock, clock[1:], (EACH, BATCH, 1, 1)):
            seconds[name].append((end - begin) / count)
        kkt.append(max(float(solutions.kkt[solutions.solved].max()), *(solution.kkt for solution in singles)))
        polished.append(float((solutions.gap <= 1e-9).double().mean()))
        for name, W in (("textbook", first), ("vectorised", second)):
            excesses[name].append(
                excess(W, problem.difference.numpy(), problem.query.numpy(), singles[0].norm)
            )
    ratios = {
        f"{ours}, {other}": statistics.median(b / a for a, b in zip(seconds[ours], seconds[other]))
        for ours in ("single", "batched")
        for other in ("textbook", "vectorised")
    }
    accuracy = {f"{name} excess": max(values) for name, values in excesses.items()}
    accuracy |= {"kkt": max(kkt), "polished": statistics.mean(polished)}
    return {name: statistics.median(times) for name, times in seconds.items()} | ratios | accuracy


def main() -> None:
    """Prints times, ratios and accuracies for both sizes."""
    for size in SIZES:
        numbers = run(size)
        target = "(target 8x) " if size is SIZES[0] else ""
        textbook, vectorised = (
            f"{numbers[f'{name} excess']:.0e} above the smallest norm" for name in ("textbook", "vectorised")
        )
        print(
            f"nuclear max-margin, n = {size['inputs']}, T = {size['tokens']}, d = {size['dim']} ({ROUNDS} "
            f"rounds, batches of {BATCH}); "
            f"KKT residuals <= {numbers['kkt']:.0e}, gap <= 1e-9 in {100 * numbers['polished']:.1f} %\n"
            f"  one cvxpy constraint per token  {1e3 * numbers['textbook']:8.2f} ms per problem, {textbook}\n"
            f"  vectorised cvxpy, Clarabel    {1e3 * numbers['vectorised']:8.2f} ms, {vectorised}\n"
            f"  here, one by one              {1e3 * numbers['single']:8.2f} ms   "
            f"{numbers['single, textbook']:5.1f}x {target:14}"
            f"and {numbers['single, vectorised']:4.1f}x faster than these\n"
            f"  here, in a batch              {1e3 * numbers['batched']:8.2f} ms   "
            f"{numbers['batched, textbook']:5.1f}x (target 20x)  "
            f"and {numbers['batched, vectorised']:4.0f}x faster than these"
        )


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()

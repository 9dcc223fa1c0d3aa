"""Nuclear max-margin, this library one by one and in a batch against cvxpy, at n10 T5 d20 and n6 T8 d10.

The textbook version has one cvxpy constraint per token and cvxpy's default solver (SCS); the strongest plain version has a single
vectorised constraint and Clarabel. Their accuracy is the excess of their norm, once W is scaled to be feasible, over the norm here, whose
duality gap is at rounding.
"""

import statistics
import time

import numpy as np
import torch

from benchmarks.baselines.nuclear import all_at_once, constraint_by_constraint
from transformer_theory.theories.attention_svm import constraints, cross_attention, nuclear_max_margin, nuclear_max_margins

SIZES = ({"inputs": 10, "tokens": 5, "dim": 20}, {"inputs": 6, "tokens": 8, "dim": 10})
ROUNDS, BATCH, EACH = 9, 200, 5  # EACH: problems per round of the single solver
MEASURED = ("single", "batched", "textbook", "vectorised")


def excess(W: np.ndarray, difference: np.ndarray, query: np.ndarray, norm: float) -> float:
    """Excess of the norm of a solution over the smallest, relative to it, once W is scaled so that all margins are at least one."""
    margin = float(((difference @ W) * query).sum(1).min())
    return float(np.linalg.norm(W, "nuc")) / margin / norm - 1


def run(size: dict[str, int], rounds: int = ROUNDS) -> dict[str, float]:
    """Medians in seconds per problem, ratios, and accuracies; the versions take turns in every round."""
    generator = torch.Generator().manual_seed(0)
    seconds: dict[str, list[float]] = {name: [] for name in MEASURED}
    kkt, polished, far = [], [], {"textbook": [], "vectorised": []}
    for turn in range(-1, rounds):  # the first round warms up
        drawn = cross_attention(**size, generator=generator, trials=BATCH)
        select = drawn.optimal()
        pairs = constraints(drawn.tokens, drawn.query, select)
        plain = pairs.problem(0)
        clock = [time.perf_counter()]
        singles = [nuclear_max_margin(constraints(drawn.tokens[at], drawn.query[at], select[at])) for at in range(EACH)]
        clock.append(time.perf_counter())
        solutions = nuclear_max_margins(constraints(drawn.tokens, drawn.query, select))
        clock.append(time.perf_counter())
        first = constraint_by_constraint(drawn.tokens[0].numpy(), drawn.query[0].numpy(), select[0].numpy())
        clock.append(time.perf_counter())
        second = all_at_once(plain.difference.numpy(), plain.query.numpy())
        clock.append(time.perf_counter())
        if turn < 0:
            continue
        for name, begin, end, count in zip(MEASURED, clock, clock[1:], (EACH, BATCH, 1, 1)):
            seconds[name].append((end - begin) / count)
        kkt.append(max(float(solutions.kkt[solutions.solved].max()), *(one.kkt for one in singles)))
        polished.append(float((solutions.gap <= 1e-9).double().mean()))
        for name, W in (("textbook", first), ("vectorised", second)):
            far[name].append(excess(W, plain.difference.numpy(), plain.query.numpy(), singles[0].norm))
    ratios = {
        f"{ours}, {other}": statistics.median(b / a for a, b in zip(seconds[ours], seconds[other]))
        for ours in ("single", "batched")
        for other in ("textbook", "vectorised")
    }
    accuracy = {f"{name} excess": max(values) for name, values in far.items()} | {"kkt": max(kkt), "polished": statistics.mean(polished)}
    return {name: statistics.median(times) for name, times in seconds.items()} | ratios | accuracy


def main() -> None:
    """Prints the ratios."""
    for size in SIZES:
        numbers = run(size)
        textbook, vectorised = (f"{numbers[f'{name} excess']:.0e} above the smallest norm" for name in ("textbook", "vectorised"))
        print(
            f"nuclear max-margin, n = {size['inputs']}, T = {size['tokens']}, d = {size['dim']} ({ROUNDS} rounds, batches of {BATCH}); "
            f"KKT residuals <= {numbers['kkt']:.0e}, gap <= 1e-9 in {100 * numbers['polished']:.1f} %\n"
            f"  one cvxpy constraint per token  {1e3 * numbers['textbook']:8.2f} ms per problem, {textbook}\n"
            f"  vectorised cvxpy, Clarabel    {1e3 * numbers['vectorised']:8.2f} ms, {vectorised}\n"
            f"  here, one by one              {1e3 * numbers['single']:8.2f} ms   {numbers['single, textbook']:5.0f}x "
            f"and {numbers['single, vectorised']:4.1f}x faster than these\n"
            f"  here, in a batch              {1e3 * numbers['batched']:8.2f} ms   {numbers['batched, textbook']:5.0f}x (target 20x) "
            f"and {numbers['batched, vectorised']:4.0f}x faster than these"
        )


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()

"""Normalised descent on W, 100 trials of n = 6, T = 8, d = 10: ours against a loop of autograd runs and against batched autograd."""

import statistics
import time

import torch

from benchmarks.baselines.attention_svm import autograd_descent
from transformer_theory.theories.attention_svm import cross_attention, normalised_descent, random_start

TRIALS, STEPS, ROUNDS = 100, 50, 9
LOOPED = 10  # trials of the loop timed a round; its time is proportional to their number


def run(rounds: int = ROUNDS, steps: int = STEPS) -> dict[str, float]:
    """Medians in seconds for all trials, and ratios; the versions take turns in every round."""
    generator = torch.Generator().manual_seed(0)
    instance = cross_attention(inputs=6, tokens=8, dim=10, generator=generator, trials=TRIALS)
    begin = random_start(instance, generator=generator)
    data = (instance.tokens, instance.query, instance.scores)
    ours, loop, batched, apart = [], [], [], 0.0
    for turn in range(-1, rounds):
        started = time.perf_counter()
        end = normalised_descent(instance, begin, steps=steps, rate=0.1)
        between = time.perf_counter()
        for trial in range(LOOPED):
            one = instance[trial]
            single = autograd_descent(one.tokens, one.query, one.scores, begin.W[trial], steps=steps, rate=0.1)
            apart = max(apart, float((single - end.W[trial]).norm() / single.norm()))
        later = time.perf_counter()
        autograd_descent(*data, begin.W, steps=steps, rate=0.1)
        ended = time.perf_counter()
        if turn >= 0:
            ours.append(between - started)
            loop.append((later - between) * TRIALS / LOOPED)
            batched.append(ended - later)
    return {
        "ours": statistics.median(ours),
        "loop": statistics.median(loop),
        "batched": statistics.median(batched),
        "ratio to loop": statistics.median(a / b for a, b in zip(loop, ours)),
        "ratio to batched": statistics.median(a / b for a, b in zip(batched, ours)),
        "distance": apart,
    }


def main() -> None:
    """Prints the ratios."""
    read = run()
    print(f"normalised descent, {TRIALS} trials of n = 6, T = 8, d = 10, {STEPS} steps: {1e3 * read['ours']:.1f} ms")
    print(f"  autograd, trial by trial  {1e3 * read['loop']:8.0f} ms   {read['ratio to loop']:5.0f}x slower (target 60x)")
    print(f"  autograd, batched         {1e3 * read['batched']:8.1f} ms   {read['ratio to batched']:5.1f}x slower, wrong once saturated")
    print(f"  largest relative distance of W between ours and autograd after {STEPS} steps: {read['distance']:.0e}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()

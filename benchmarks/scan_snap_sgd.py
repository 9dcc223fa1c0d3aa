"""Training of scan-and-snap's model, sampling included: ours in count form, against autograd on one-hot
sequences and on counts.

The textbook version makes a key of every token, scores it by the query and differentiates through all
operations. The better baseline uses counts, drawn as in our version; our remaining advantages over it are
closed-form directions, few columns and batched runs.

The batch size is 128 and the momentum 0.9. One run starts from zero (our decoder then has K + 1 columns) or
from random weights (all M columns); sixteen runs with different seeds train side by side. All versions
alternate on one thread. Every version draws new sequences at each step. Our times are those of whole runs of
100 steps, as in the paper, and include the set-up of the sampler and its tables.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from benchmarks._common import take_turns
from benchmarks._rows import Row, table
from benchmarks.baselines.scan_snap import OneLayer, counted, optimiser, sequences, step
from transformer_theory.theories.scan_snap import HeavyBall, Weights, gradient_descent, sampled, synthetic

BATCH, MOMENTUM, RUNS, ROUNDS = 128, 0.9, 16, 7
ONE_HOT, COUNTS = "autograd on one-hot tokens", "autograd on counts"
OURS, THEIRS = 100, 4  # steps per round of our version and of the baselines


@dataclass(frozen=True)
class Case:
    """One row of the table: sizes, and the target ratios for a single run and for each of sixteen runs."""

    classes: int
    per_query: int
    length: int
    single: float
    batched: float


CASES = (Case(2, 1, 128, 15, 25), Case(20, 2, 128, 40, 70), Case(2, 1, 1024, 100, 180))


def versions(case: Case, start: str):
    """Returns each version as a function without arguments, with the number of steps times runs that it
    trains.
    """
    classes = synthetic(case.classes, per_query=case.per_query)
    M, S = classes.vocab_size, classes.tokens

    def ours(runs: int) -> Callable[[], None]:
        seeds = range(runs)
        sizes = (S, classes.queries, classes.classes, M)
        begin = (
            Weights.random(classes, seeds=seeds) if start == "random" else Weights.zeros(*sizes, runs=(runs,))
        )

        def train() -> None:
            batches = sampled(classes, BATCH, context=case.length - 1, seeds=seeds)
            gradient_descent(begin, batches, steps=OURS, eta_y=1.0, eta_z=1.0, optimiser=HeavyBall(MOMENTUM))

        return train

    model = OneLayer(M)
    if start == "zero":
        for matrix in model.parameters():
            torch.nn.init.zeros_(matrix)
    descent, generator = optimiser(model, 1.0, 1.0, MOMENTUM), torch.Generator().manual_seed(0)

    def one_hot() -> None:
        for _ in range(THEIRS):
            n, ids = sequences(classes.conditional, classes.query, M, BATCH, case.length, generator)
            logits = model.of_sequences(torch.nn.functional.one_hot(ids, M).float())
            step(model, descent, logits, S + classes.queries + n)

    better = OneLayer(M).double()
    better_descent = optimiser(better, 1.0, 1.0, MOMENTUM)
    numbers, P = np.random.default_rng(0), classes.conditional.numpy()

    def counts():
        for _ in range(THEIRS):
            n, x, query = counted(P, classes.query, M, BATCH, case.length, numbers)
            step(better, better_descent, better.of_counts(x, query), S + classes.queries + n)

    return {
        ONE_HOT: (one_hot, THEIRS),
        COUNTS: (counts, THEIRS),
        "1 run": (ours(1), OURS),
        "16 runs": (ours(RUNS), OURS * RUNS),
    }


def agree() -> float:
    """Returns the largest difference between our losses and those of the explicit model over ten steps from
    zero on the same sequences.
    """
    classes = synthetic(2)
    batches = sampled(classes, BATCH, context=127, seeds=[0])
    start = Weights.zeros(classes.tokens, classes.queries, 2, classes.vocab_size, runs=(1,))
    ours = gradient_descent(
        start, batches, steps=10, eta_y=1.0, eta_z=1.0, optimiser=HeavyBall(MOMENTUM)
    ).loss[:, 0]
    model = OneLayer(classes.vocab_size).double()
    for matrix in model.parameters():
        torch.nn.init.zeros_(matrix)
    descent, S, losses = optimiser(model, 1.0, 1.0, MOMENTUM), classes.tokens, []
    for t in range(10):
        batch = batches(t)
        n, x = batch.target[0], batch.dense()[0].long()
        # Turn counts [batch, S] into sequences [batch, 127]: each token as often as it was counted.
        ids = torch.arange(S).expand(BATCH, -1).flatten().repeat_interleave(x.flatten()).view(BATCH, 127)
        ids = torch.cat([ids, S + classes.query[n, None]], dim=1)
        logits = model.of_sequences(torch.nn.functional.one_hot(ids, classes.vocab_size).double())
        losses.append(step(model, descent, logits, S + classes.queries + n))
    return float((ours - torch.tensor(losses, dtype=torch.float64)).abs().max())


def main() -> list[Row]:
    """Returns the rows of all sizes, starts and numbers of runs."""
    difference, rows = agree(), []
    for case in CASES:
        for start in ("zero", "random"):
            work = versions(case, start)
            seconds = take_turns(
                {name: function for name, (function, _) in work.items()}, ROUNDS, clock=time.process_time
            )
            times = {name: [second / work[name][1] for second in values] for name, values in seconds.items()}
            rows += [
                Row(
                    f"scan-and-snap SGD from {start}, {ours}",
                    other,
                    f"K = {case.classes}, T = {case.length}, batch {BATCH}",
                    times[ours],
                    times[other],
                    difference,
                    "losses of 10 steps at K = 2",
                    {"1 run": case.single, "16 runs": case.batched}.get(ours) if other == ONE_HOT else None,
                )
                for ours in ("1 run", "16 runs")
                for other in (ONE_HOT, COUNTS)
            ]
    return rows


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(table(main()))

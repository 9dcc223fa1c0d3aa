"""Normalised descent on attention weights, 100 trials: this library against a loop of autograd runs and
against batched autograd.

The loop is the textbook version. Batching alone explains most of the ratio on small problems; the closed-form
gradient, computed in the cheapest of three spaces, explains the rest. This gradient stays exact after
attention has saturated; autograd does not.
"""

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks._common import take_turns
from benchmarks._rows import Row, table
from benchmarks.baselines.attention_descent import EPS, on_factors, on_weights
from transformer_theory.theories.attention_svm import cross_attention, normalised_descent
from transformer_theory.theories.attention_svm.dynamics import Factors, random_factors, random_start

TRIALS, ROUNDS, RATE = 100, 7, 0.1
EARLY = 30  # step at which the weights are compared; later, attention saturates and autograd loses digits
LOOPED = 2  # trials of the loop that are timed per round; its time is proportional to their number


@dataclass(frozen=True)
class Case:
    """One problem.

    Attributes:
        inputs, tokens, dim: sizes of the problem.
        factors: whether K and Q are trained; otherwise W.
        steps: number of steps.
        target: target ratio to the loop.
    """

    inputs: int
    tokens: int
    dim: int
    factors: bool
    steps: int
    target: int


CASES = (
    Case(6, 8, 10, False, 400, 100),
    Case(6, 8, 10, True, 400, 100),
    Case(10, 10, 50, False, 200, 100),
    Case(10, 10, 50, True, 100, 25),
)


def run(case: Case, rounds: int = ROUNDS) -> list[Row]:
    """Returns our processor seconds per step of all trials beside those of the loop and of batched autograd.

    The difference is the largest relative one of W over the trials after EARLY steps. Batched autograd is
    timed over a quarter of the steps.
    """
    generator = torch.Generator().manual_seed(0)
    instance = cross_attention(
        inputs=case.inputs, tokens=case.tokens, dim=case.dim, generator=generator, trials=TRIALS
    )
    begin = (
        random_factors(instance, generator=generator)
        if case.factors
        else random_start(instance, generator=generator)
    )
    penalty = EPS if case.factors else 0.0

    def ours(steps: int) -> Tensor:
        # One call per type of state: the result has the type of the start, which the type checker cannot
        # infer for a union.
        if isinstance(begin, Factors):
            return normalised_descent(instance, begin, steps=steps, rate=RATE, eps=EPS, penalty=penalty).W
        return normalised_descent(instance, begin, steps=steps, rate=RATE, eps=EPS, penalty=penalty).W

    def textbook(trial: int | slice, steps: int) -> Tensor:
        tokens, query, scores = instance.tokens[trial], instance.query[trial], instance.scores[trial]
        if isinstance(begin, Factors):
            K, Q = on_factors(
                tokens, query, scores, begin.K[trial], begin.Q[trial], steps=steps, rate=RATE, penalty=penalty
            )
            return K @ Q.mT
        return on_weights(tokens, query, scores, begin.W[trial], steps=steps, rate=RATE)

    loop, batched = "autograd, trial by trial", "autograd, batched (exact before saturation)"
    steps = {"ours": case.steps, loop: case.steps * LOOPED / TRIALS, batched: case.steps // 4}
    seconds = take_turns(
        {
            "ours": lambda: ours(case.steps),
            loop: lambda: [textbook(trial, case.steps) for trial in range(LOOPED)],
            batched: lambda: textbook(slice(None), case.steps // 4),
        },
        rounds,
        clock=time.process_time,
    )
    per_step = {name: [value / steps[name] for value in values] for name, values in seconds.items()}
    early, every = ours(EARLY), textbook(slice(None), EARLY)
    alone = torch.stack([textbook(trial, EARLY) for trial in range(LOOPED)])
    return [
        Row(
            f"normalised descent on {'K and Q' if case.factors else 'W'}, {TRIALS} trials",
            other,
            f"n = {case.inputs}, T = {case.tokens}, d = {case.dim}, {case.steps} steps",
            per_step["ours"],
            per_step[other],
            float(((theirs - early[: len(theirs)]).norm(dim=(-2, -1)) / theirs.norm(dim=(-2, -1))).max()),
            f"W after {EARLY} steps",
            case.target if other == loop else None,
        )
        for other, theirs in ((loop, alone), (batched, every))
    ]


def main() -> list[Row]:
    """Returns the rows of all cases."""
    return [row for case in CASES for row in run(case)]


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(table(main()))

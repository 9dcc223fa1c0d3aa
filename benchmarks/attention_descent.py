"""Normalised descent on attention weights, 100 trials: this library against a loop of autograd runs and
against batched autograd.

The loop is the textbook version. Batching alone explains most of the ratio on small problems; the closed-form
gradient, computed in the cheapest of three spaces, explains the rest. This gradient stays exact after
attention has saturated; autograd does not.
"""

import statistics
import time
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from benchmarks.baselines.attention_descent import EPS, on_factors, on_weights
from transformer_theory.theories.attention_svm import cross_attention, normalised_descent
from transformer_theory.theories.attention_svm.dynamics import Factors, random_factors, random_start

TRIALS, ROUNDS, RATE = 100, 7, 0.1
EARLY = 30  # step at which the weights are compared; later, attention saturates and autograd loses digits
LOOPED = 2  # trials of the loop that are timed per round; its time is proportional to their number


@dataclass(frozen=True)
class Case:
    """One line of the table.

    Attributes:
        inputs, tokens, dim: sizes of the problem.
        factors: whether K and Q are trained; otherwise W.
        steps: number of steps.
        target: target ratio to the loop; None without a target.
    """

    inputs: int
    tokens: int
    dim: int
    factors: bool
    steps: int
    target: int | None

    @property
    def name(self) -> str:
        """The trained matrices and the sizes."""
        return f"{'K and Q' if self.factors else 'W':8}n = {self.inputs}, T = {self.tokens}, d = {self.dim}"


CASES = (
    Case(6, 8, 10, False, 400, 100),
    Case(6, 8, 10, True, 400, 100),
    Case(10, 10, 50, False, 200, 40),
    Case(10, 10, 50, True, 100, 25),
)


def run(case: Case, rounds: int = ROUNDS) -> dict[str, float]:
    """Returns the median CPU seconds per step of all trials, ratios, and the distance between our W and the
    loop's W.

    The distance is the largest relative one over the trials after EARLY steps. The versions take turns in
    every round, so that changes of the machine's load affect all of them. Batched autograd is timed over a
    quarter of the steps.
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

    seconds: dict[str, list[float]] = {"ours": [], "loop": [], "batched": []}
    for turn in range(-1, rounds):  # the first round warms up
        clock = [time.process_time()]
        ours(case.steps)
        clock.append(time.process_time())
        for trial in range(LOOPED):
            textbook(trial, case.steps)
        clock.append(time.process_time())
        textbook(slice(None), case.steps // 4)
        clock.append(time.process_time())
        if turn >= 0:
            closed_form, loop, batched = (after - before for before, after in pairwise(clock))
            seconds["ours"].append(closed_form / case.steps)
            seconds["loop"].append(loop * TRIALS / LOOPED / case.steps)
            seconds["batched"].append(batched / (case.steps // 4))
    early = ours(EARLY)
    apart = max(
        float((W - early[trial]).norm() / W.norm())
        for trial in range(LOOPED)
        for W in [textbook(trial, EARLY)]
    )
    ratios = {
        f"ratio to {name}": statistics.median(a / b for a, b in zip(seconds[name], seconds["ours"]))
        for name in ("loop", "batched")
    }
    return (
        {name: statistics.median(values) for name, values in seconds.items()} | ratios | {"distance": apart}
    )


def main() -> None:
    """Prints the table, one line per case."""
    print(
        f"a step of {TRIALS} trials, CPU      ours      autograd, trial by trial       autograd, batched   "
        f"W apart, step {EARLY}"
    )
    for case in CASES:
        numbers = run(case)
        target = f"(target {case.target}x)" if case.target else ""
        print(
            f"{case.name:34}{1e3 * numbers['ours']:6.2f} ms{1e3 * numbers['loop']:7.1f} "
            f"ms{numbers['ratio to loop']:5.0f}x {target:14}{1e3 * numbers['batched']:6.2f} "
            f"ms{numbers['ratio to batched']:5.1f}x       {numbers['distance']:.0e}"
        )


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()

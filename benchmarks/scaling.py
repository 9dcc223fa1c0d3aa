"""Growth of the cost of attention-SVM: CPU time per problem and per step against n inputs, T tokens,
dimension d and batch size.

``python -m benchmarks.scaling FIGURE.svg`` also draws the growth.
"""

import math
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from benchmarks._common import command_line, take_turns, write
from transformer_theory.theories import attention_svm as svm
from transformer_theory.theories.attention_svm.dynamics import random_factors, random_start
from transformer_theory.theories.attention_svm.problem import random_selection

BASE = {"n": 8, "T": 8, "d": 64, "batch": 16}
VARIED = {
    "n": (2, 4, 8, 16, 32),
    "T": (2, 4, 8, 16, 32),
    "d": (8, 16, 32, 64, 128),
    "batch": (1, 4, 16, 64, 256),
}
NAMES = {"n": "inputs n", "T": "tokens T", "d": "dimension d", "batch": "problems at once"}
STEPS, ROUNDS = 50, 3
LABELS = (
    "Frobenius, one by one",
    "Frobenius, batched",
    "nuclear, batched",
    "descent on W",
    "descent on K and Q",
)
SOLVERS = 3  # number of labels that count problems, which come first; the others count steps


def prepare(*, n: int, T: int, d: int, batch: int) -> dict[str, tuple[int, Callable[[], object]]]:
    """Returns for each label the number of problems, or of steps times problems, that a call computes, and
    the call.

    All problems are feasible if d >= max(T - 1, n).
    """
    generator = torch.Generator().manual_seed(0)
    instance = svm.cross_attention(inputs=n, tokens=T, dim=d, generator=generator, trials=batch)
    c = svm.constraints(instance.tokens, instance.query, random_selection(instance, generator=generator))
    W, factors = random_start(instance, generator=generator), random_factors(instance, generator=generator)
    few = min(batch, 4)
    return {
        LABELS[0]: (few, lambda: [svm.frobenius_max_margin(c.problem(b)) for b in range(few)]),
        LABELS[1]: (batch, partial(svm.frobenius_max_margins, c)),
        LABELS[2]: (batch, partial(svm.nuclear_max_margins, c)),
        LABELS[3]: (batch * STEPS, partial(svm.normalised_descent, instance, W, steps=STEPS)),
        LABELS[4]: (batch * STEPS, partial(svm.normalised_descent, instance, factors, steps=STEPS)),
    }


def run(
    rounds: int = ROUNDS, varied: dict[str, tuple[int, ...]] = VARIED
) -> dict[str, dict[str, list[float]]]:
    """Returns the median CPU seconds per problem or step: ``run()[axis][label]`` has one number per size in
    ``varied[axis]``.
    """
    costs = {}
    for axis, sizes in varied.items():
        costs[axis] = {label: [] for label in LABELS}
        for size in sizes:
            calls = prepare(**{**BASE, axis: size})
            seconds = take_turns(
                {label: call for label, (_, call) in calls.items()}, rounds, clock=time.process_time
            )
            for label, (count, _) in calls.items():
                costs[axis][label].append(statistics.median(seconds[label]) / count)
    return costs


def exponent(sizes: tuple[int, ...], seconds: list[float]) -> float:
    """Computes the slope on log-log axes between the middle and the largest size; 1 means time proportional
    to size.
    """
    middle = len(sizes) // 2
    return math.log(seconds[-1] / seconds[middle]) / math.log(sizes[-1] / sizes[middle])


def draw(costs: dict[str, dict[str, list[float]]], caption: str):
    """Draws solvers in the first row and descent in the second, one column per axis; a grey line shows
    proportional growth.
    """
    from transformer_theory.core.plotting import COLOURS, axes, colour, style

    tints = dict(
        zip(
            LABELS,
            (
                colour(name)
                for name in ("attention_svm", "attention_svm", "scan_snap", "rate_reduction", "crate")
            ),
        )
    )
    with style():
        figure, panels = axes(2, 4, width=9.5, height=5.2)
        for row, (labels, unit) in enumerate(((LABELS[:SOLVERS], "problem"), (LABELS[SOLVERS:], "step"))):
            for column, (axis, sizes) in enumerate(VARIED.items()):
                ax = panels[4 * row + column]
                for label in labels:
                    dashes = "--" if label == LABELS[0] else "-"
                    ax.loglog(
                        sizes,
                        [1e3 * s for s in costs[axis][label]],
                        dashes,
                        marker="o",
                        markersize=3,
                        color=tints[label],
                        label=label,
                    )
                if axis != "batch":
                    ends = sizes[0], sizes[-1]
                    first = 1e3 * min(costs[axis][label][0] for label in labels)
                    ax.plot(
                        ends,
                        [first, first * ends[1] / ends[0]],
                        color=COLOURS["null"],
                        linewidth=0.9,
                        linestyle=":",
                        label="proportional",
                    )
                ax.set_xticks(sizes, [str(size) for size in sizes])
                ax.minorticks_off()
                ax.set(xlabel=NAMES[axis])
                if not column:
                    ax.set_title(("Max-margin problems", "Normalised descent, per trial")[row])
                    ax.set(ylabel=f"milliseconds per {unit}")
                    ax.legend(loc="upper left", fontsize=6.5)
            for ax in panels[4 * row : 4 * row + 4]:
                ax.set_ylim(
                    min(p.get_ylim()[0] for p in panels[4 * row : 4 * row + 4]),
                    max(p.get_ylim()[1] for p in panels[4 * row : 4 * row + 4]),
                )
        figure.supxlabel(caption, fontsize=6.5, color=COLOURS["raw"])
    return figure


def main(path: Path | None = None) -> None:
    """Prints the growth of the costs; draws it if a path is given."""
    costs = run()
    base = ", ".join(f"{name} = {value}" for name, value in BASE.items())
    print(
        f"cost at {base}, and the exponent of its growth in each (1: proportional); CPU time, medians of "
        f"{ROUNDS} rounds"
    )
    for number, label in enumerate(LABELS):
        base_time = 1e3 * costs["n"][label][VARIED["n"].index(BASE["n"])]
        growth = "  ".join(
            f"{axis} {exponent(sizes, costs[axis][label]):+.1f}" for axis, sizes in VARIED.items()
        )
        print(
            f"  {label:<22} {base_time:8.4f} ms per {'problem' if number < SOLVERS else 'step   '}   {growth}"
        )
    if path is not None:
        setting = f"{base} where not varied · CPU time on one thread, medians of {ROUNDS} rounds"
        write(path, lambda caption: draw(costs, caption), setting)


if __name__ == "__main__":
    command_line(main, __doc__)
    sys.exit()

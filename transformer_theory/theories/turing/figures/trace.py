"""A run of a machine in the transformer: the tape over time, and the attention that finds the symbols."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, get_args

import numpy as np
import torch

from ....core.experiment import setting
from ....core.figure import DASHED, Reading, figure, reading
from ....core.plotting import COLOURS, axes, caption, colour, heatmap, style
from ....core.result import Result
from ....core.sources import Source
from ....core.table import Arrays
from .. import exact, floating
from ..construction import Arithmetic, PerezTransformer, check_choice, compile_machine
from ..ladder import FIRST_ERROR, NAME
from ..machine import Trace, TuringMachine
from ..machines import LIBRARY, find

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HALTED, SIZE = "steps until the machine halts", "size of a token"
MOST_STEPS = 400  # of a machine that does not halt, and of the picture
EXAMPLE = "example"
TINTS = ("#F1F3F5", "#9CC3E6", "#F2B279", "#A8D5A2", "#D8A6CF", "#C9C9A0")


def space_time(machine: TuringMachine, trace: Trace, word: str) -> tuple[np.ndarray, int]:
    """Rebuilds the tape from what a trace reads and writes.

    Returns:
        Numbers of the symbols ``[times, cells]`` before the step at each time, and the number of the first
        cell.
    """
    code = {symbol: number for number, symbol in enumerate(machine.alphabet)}
    low, high = min(*trace.heads, 0), max(*trace.heads, len(word) + 1)
    tape = np.full(high - low + 1, code[machine.blank])
    for cell, symbol in enumerate(word, 1):
        tape[cell - low] = code[symbol]
    rows = []
    for state, symbol, head in zip(trace.states, trace.symbols, trace.heads):
        if state == "?":  # the run has overflowed
            break
        tape[head - low] = code[symbol]  # what the transformer takes for the content of the cell
        rows.append(tape.copy())
        tape[head - low] = code[machine.step(state, symbol)[1]]
    return np.stack(rows), low


def run_with_scores(
    transformer: PerezTransformer, word: str, steps: int, arithmetic: str
) -> tuple[Trace, np.ndarray]:
    """Runs the transformer.

    Returns:
        The trace, and the scores of the third layer at the first times, [queries, keys], with NaN for keys
        that are not allowed.
    """
    scores = np.full((min(steps, MOST_STEPS),) * 2, np.nan)
    if arithmetic == "exact":
        found = list(transformer.steps(word, steps))
        for row, step in zip(scores, found[1:]):
            row[: len(step.scores)] = step.scores
        return exact.trace(found), scores.astype(np.float32)
    filled = torch.tensor(scores)
    trace = floating.trace(
        transformer.machine,
        transformer.weights,
        word,
        steps,
        dtype=getattr(torch, arithmetic),
        all_scores=filled,
    )
    return trace, filled.float().numpy()


@style()
def draw(result: Result) -> "Figure":
    """Draws the tape over time with the head's path, and the scores of the third layer with the attended
    positions.
    """
    from matplotlib.colors import ListedColormap

    names = ("tape", "low", "heads", "attended", "scores", "wrong", "alphabet")
    tape, low, heads, attended, scores, (wrong,), alphabet = (
        result.arrays[f"{NAME}/{name}"] for name in names
    )
    tape, heads, count = tape[: MOST_STEPS + 1], heads[: min(len(tape), MOST_STEPS + 1)], len(scores)
    drawn, (left, right) = axes(1, 2, height=4.2)
    tints = [TINTS[k % len(TINTS)] for k in range(len(alphabet))]
    extent = (low - 0.5, low + tape.shape[1] - 0.5, len(tape) - 0.5, -0.5)
    symbols = left.imshow(tape, ListedColormap(tints), vmin=-0.5, vmax=len(tints) - 0.5, extent=extent)
    drawn.colorbar(symbols, ax=left, ticks=range(len(tints))).ax.set_yticklabels(map(chr, alphabet))
    left.plot(heads, np.arange(len(heads)), color=colour(NAME), linewidth=1.2)
    left.set(title="Tape and head", xlabel="cell", ylabel="time")
    with np.errstate(divide="ignore"):
        sizes = np.log10(-scores)
    label = "minus the score, $\\log_{10}\\, |\\langle q_i, k_j \\rangle|$"
    # The query of time i generates the token of time i + 1, so both panels have the same vertical axis.
    heatmap(right, sizes, label, cmap="Blues").set_extent((-0.5, count - 0.5, count + 0.5, 0.5))
    right.plot(attended[1 : count + 1], np.arange(1, count + 1), ".", color=colour(NAME), markersize=4)
    right.set(title="Third layer", xlabel="key: time j", ylabel="time i + 1 that the query generates")
    for ax in (left, right):
        ax.grid(False)
        ax.set(aspect="auto", ylim=(count + 0.5, -0.5))
        ax.locator_params(integer=True, nbins=6)
        if wrong >= 0:
            ax.axhline(wrong, color=COLOURS["null"], linewidth=1.0, linestyle=DASHED)
    caption(
        drawn,
        f"Left: the tape before each step, as the transformer reads it, with the head; {count} steps. Right: "
        f"scores of the third layer ({result.settings['arithmetic']} arithmetic); the dot is the position to "
        "which the query attends, the latest visit of the cell"
        + (f" up to the first error, at step {wrong} (dashed)." if wrong >= 0 else "."),
    )
    return drawn


@figure(
    "turing.trace",
    source=Source("perez2021attention"),
    view=draw,
    check=lambda arithmetic: check_choice("arithmetic", arithmetic, get_args(Arithmetic)),
)
def trace(
    *,
    machine: str = setting("increment", help="name of a machine of the library, or path of a text file"),
    word: str = setting(
        EXAMPLE,
        help=f"input of the machine; {EXAMPLE!r}: the library's word for it, and the empty word for a file",
    ),
    steps: int = setting(
        0, ge=0, le=5000, help=f"number of steps; 0: until the machine halts, at most {MOST_STEPS}"
    ),
    arithmetic: str = setting("exact", help=f"one of {', '.join(get_args(Arithmetic))}"),
) -> Iterator[Reading | Arrays]:
    """A transformer runs a machine on a word: the tape over time with the path of the head, and the scores of
    the third layer.

    The machine is one of the library or a text file, see :meth:`.TuringMachine.parse`.

    Raises:
        ValueError: the arithmetic is unknown, the machine is unknown or does not parse, or the word has
            foreign symbols.
    """
    transformer = compile_machine(find(machine))
    found = transformer.machine
    word = LIBRARY.get(machine, (None, ""))[1] if word == EXAMPLE else word
    halted = found.halting_time(word, steps or MOST_STEPS)
    steps = steps or halted or MOST_STEPS
    run, scores = run_with_scores(transformer, word, steps, arithmetic)
    reference = found.run(word, steps)
    share, first = run.agreement(reference), run.first_difference(reference)
    judged = {"predicted": 1.0, "at_least": 1.0, "covered": arithmetic == "exact"}
    note = f"{steps} steps, " + ("no error" if first is None else f"first error at step {first}")
    yield reading(FIRST_ERROR, share, unit="share", at={"arithmetic": arithmetic}, note=note, **judged)
    accepted = "accepts" if reference.states[-1] in found.accept else "does not accept"
    note = f"{accepted} {word!r}; with the steps of the normal form, which first reads the word"
    reason = "" if halted is not None else f"the machine does not halt in {steps} steps"
    yield reading(HALTED, halted, unit="steps", reason=reason, note=note)
    predicted = 2 * len(found.states) + 4 * len(found.alphabet) + 11
    yield reading(SIZE, transformer.d, predicted=predicted)
    tape, low = space_time(found, run, word)
    arrays = {"tape": tape, "low": low, "heads": run.heads, "attended": run.attended, "scores": scores}
    arrays |= {"wrong": [-1 if first is None else first], "alphabet": [ord(s) for s in found.alphabet]}
    yield Arrays({f"{NAME}/{name}": np.array(values) for name, values in arrays.items()})

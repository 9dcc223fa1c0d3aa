"""A run of a machine in the transformer: the tape over time, and the attention that finds the symbols."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, get_args

import numpy as np

from ....core.experiment import Experiment, setting
from ....core.measurement import Arrays, Measurement, judge
from ....core.plotting import COLOURS, axes, caption, colour, heatmap, style, text_figure
from ....core.result import Result
from ....core.sources import Source
from ..construction import Arithmetic, check_choice, compile_machine
from ..ladder import FIRST_ERROR, NAME
from ..machine import Trace, TuringMachine
from ..machines import find
from ..retrieval import products

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SOURCE = Source("perez2021attention")
HALTED, SIZE = "steps until the machine halts", "size of a token"
MOST_STEPS = 400  # for a machine that does not halt
LARGEST_MAP = 200  # number of times up to which the map of the scores is drawn cell by cell


def space_time(machine: TuringMachine, trace: Trace, word: str) -> tuple[np.ndarray, int]:
    """Rebuilds the tape from what a trace reads and writes.

    Returns:
        Numbers of the symbols ``[times, cells]`` before the step at each time, and the number of the first cell.
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


@dataclass(frozen=True)
class TraceRun(Experiment):
    """A transformer runs a machine on a word: the tape over time with the path of the head, and the scores of the third layer.

    The machine is one of the library or a text file, see :meth:`.TuringMachine.parse`.

    Raises:
        ValueError: the arithmetic is unknown.
    """

    machine: str = setting("increment", help="name of a machine of the library, or path of a text file")
    word: str = setting("1011", help="input of the machine")
    steps: int = setting(0, ge=0, le=5000, help=f"number of steps; 0: until the machine halts, at most {MOST_STEPS}")
    arithmetic: str = setting("exact", help=f"one of {', '.join(get_args(Arithmetic))}")

    name: ClassVar[str] = "turing.trace"
    sources: ClassVar[tuple[Source, ...]] = (SOURCE,)

    def __post_init__(self):
        super().__post_init__()
        check_choice("arithmetic", self.arithmetic, get_args(Arithmetic))

    def measure(self) -> Iterator[Measurement | Arrays]:
        """Yields the share of the steps before the first error, the halting time and the size of a token.

        Raises:
            ValueError: the machine is unknown or does not parse, or the word has foreign symbols.
        """
        transformer = compile_machine(find(self.machine))
        machine = transformer.machine
        halted = machine.halting_time(self.word, self.steps or MOST_STEPS)
        steps = self.steps or halted or MOST_STEPS
        trace = transformer.run(self.word, steps, arithmetic=self.arithmetic)  # pyright: ignore[reportArgumentType]
        reference = machine.run(self.word, steps)
        share, first = trace.agreement(reference), trace.first_difference(reference)
        covered = self.arithmetic == "exact"
        yield Measurement(
            NAME,
            "figure",
            FIRST_ERROR,
            share,
            unit="share",
            predicted=1.0,
            op=">=",
            threshold=1.0,
            verdict=judge(share, ">=", 1.0, covered=covered),
            setting=self.arithmetic,
            source=SOURCE,
            note=f"{steps} steps, no error" if first is None else f"{steps} steps, first error at step {first}",
        )
        accepted = "accepts" if reference.states[-1] in machine.accept else "does not accept"
        reason = "" if halted is not None else f"the machine does not halt in {steps} steps"
        yield Measurement(NAME, "figure", HALTED, halted, unit="steps", reason=reason, note=f"{accepted} {self.word!r}", source=SOURCE)
        predicted = 2 * len(machine.states) + 4 * len(machine.alphabet) + 11
        yield Measurement(NAME, "figure", SIZE, float(transformer.d), predicted=float(predicted), source=SOURCE)
        tape, low = space_time(machine, trace, self.word)
        arrays = {"tape": tape, "low": np.array(low), "heads": np.array(trace.heads), "attended": np.array(trace.attended)}
        arrays["wrong"] = np.array([-1 if first is None else first])
        arrays["alphabet"] = np.array([ord(symbol) for symbol in machine.alphabet])
        yield Arrays({f"{NAME}/{name}": values for name, values in arrays.items()})

    @style()
    def plot(self, result: Result) -> "Figure":
        """Draws the tape over time with the head's path, and the scores of the third layer with the attended positions."""
        if f"{NAME}/tape" not in result.arrays:
            return text_figure(f"{self.name}: nothing was measured")
        from matplotlib.colors import ListedColormap
        from matplotlib.patches import Patch
        from matplotlib.ticker import MaxNLocator

        a = {name: result.arrays[f"{NAME}/{name}"] for name in ("tape", "low", "heads", "attended", "wrong", "alphabet")}
        tape, low, wrong = a["tape"], int(a["low"]), int(a["wrong"][0])
        figure, (left, right) = axes(1, 2, height=4.2)
        symbols = [chr(code) for code in a["alphabet"]]
        tints = ["#F1F3F5", "#9CC3E6", "#F2B279", "#A8D5A2", "#D8A6CF", "#C9C9A0"]
        tints = [tints[k % len(tints)] for k in range(len(symbols))]
        shown = ListedColormap(tints)
        extent = (low - 0.5, low + tape.shape[1] - 0.5, len(tape) - 0.5, -0.5)
        left.imshow(tape, cmap=shown, vmin=-0.5, vmax=len(symbols) - 0.5, aspect="auto", interpolation="nearest", extent=extent)
        left.plot(
            a["heads"][: len(tape)],
            np.arange(len(tape)),
            color=colour(NAME),
            linewidth=1.2,
            marker="o",
            markersize=2.2 if len(tape) < 60 else 0,
        )
        left.grid(False)
        left.set(title="Tape and head", xlabel="cell", ylabel="time")
        left.legend(
            handles=[Patch(facecolor=tint, edgecolor="#B8BFC6", label=symbol) for tint, symbol in zip(tints, symbols)],
            loc="lower center",
            bbox_to_anchor=(0.5, 1.06),
            ncols=6,
            handlelength=1,
            handleheight=1,
        )
        last = min(len(a["heads"]), LARGEST_MAP + 1)
        size = products(a["heads"][:last].tolist()).abs().numpy()
        with np.errstate(divide="ignore"):
            heatmap(
                right, np.where(np.isfinite(size), np.log10(size), np.nan), "$\\log_{10}\\, |\\langle q_i, k_j \\rangle|$", cmap="viridis_r"
            )
        rows = np.arange(last - 1)
        right.plot(a["attended"][1:last], rows, "o", color=colour(NAME), markersize=max(1.2, 3.4 - last / 60), markeredgewidth=0)
        right.set(title="Third layer", xlabel="key: time j", ylabel="query: time i")
        for ax in (left, right):
            for axis in (ax.xaxis, ax.yaxis):
                axis.set_major_locator(MaxNLocator(integer=True, nbins=6))
            if wrong >= 0:
                ax.axhline(wrong, color=COLOURS["null"], linewidth=1.0, linestyle=(0, (4, 3)))
        text = (
            "Left: the tape before each step, as the transformer reads it, with the head. Right: scores of the third layer; the dot is the "
        )
        text += "position to which the query attends, the latest visit of the next cell."
        if wrong >= 0:
            text += f" Dashed: the first error, at step {wrong}."
        if last < len(a["heads"]):
            text += f" Right: the first {LARGEST_MAP} times."
        caption(figure, text)
        return figure

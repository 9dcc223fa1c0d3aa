"""The gap against the length of the task, and the published numbers of the official runs beside ours.

Source: :cite:t:`feng2023towards`.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from ....core.experiment import setting
from ....core.figure import DASHED, Axis, Panel, Reading, draw_curves, figure, reading
from ....core.plotting import COLOURS, axes, caption, colour, style
from ....core.result import Result
from ....core.sources import Source
from ....core.statistics import share_interval
from .. import learning
from ..arithmetic import Arithmetic
from ..tasks import split

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OWN = Source("feng2023towards", status="own")
RELEASED = Source(
    "feng2023towards", "released logs of CoT_benchmark, last epoch, mean of 4 seeds", "second-hand"
)
ACCURACY, MAJORITY = "accuracy of the answer", "share of the most frequent answer"
OFFICIAL = {  # by operations: without chain at 3, 4 and 5 layers; with chain at 3 layers
    4: (0.729, 0.914, 0.968, 1.000),
    5: (0.374, 0.322, 0.699, 0.9999),
    6: (0.254, 0.252, 0.491, 0.9998),
}
WITH, WITHOUT = "with chain", "without"
LOOKS = {WITH: {"color": "chain_of_thought"}, WITHOUT: {"color": COLOURS["network"]}}
FREQUENT = {MAJORITY: {"color": COLOURS["null"], "linestyle": DASHED, "marker": ""}}
LOOK = {"xlabel": "operations", "ylabel": "accuracy", "ylim": (0, 1.05)}


@style()
def draw(result: Result) -> "Figure":
    """Draws our accuracies on the left, the released ones on the right."""
    drawn, (left, right) = axes(1, 2, height=3.0)
    title = "Ours: 2 layers, modulo {modulus}".format(**result.settings)
    ours = Panel(title, ACCURACY, lines=("mode", LOOKS), axes=LOOK)
    draw_curves(left, result, ours, Panel("", MAJORITY, lines=("quantity", FREQUENT)), x="operations")
    *without, chain = zip(*OFFICIAL.values())
    for layers, values, alpha in zip((3, 4, 5), without, (0.4, 0.65, 1.0)):
        label = f"{layers} layers, {WITHOUT}"
        right.plot(list(OFFICIAL), values, "-s", color=COLOURS["network"], alpha=alpha, label=label)
    right.plot(list(OFFICIAL), chain, "-s", color=colour("chain_of_thought"), label=f"3 layers, {WITH}")
    right.set(title="Official runs: width 256, modulo 11", xticks=list(OFFICIAL), **LOOK)
    right.legend(loc="lower left")
    text = (
        "Left: one seed, equal steps ({steps_per_operation} per operation), free-running; bands: 95 % "
        "interval over questions. Right: numbers of the released logs, not measured by us."
    )
    caption(drawn, text.format(**result.settings))
    return drawn


@figure(
    "chain_of_thought.lengths",
    source=(OWN, RELEASED),
    over={"operations": Axis(2, 3, 4, ge=1, le=8, help="operations of an expression")},
    view=draw,
    quick={"operations": (1, 2), "modulus": 3, "steps_per_operation": 10, "train": 200, "test": 40},
)
def lengths(
    operations: int,
    *,
    modulus: int = setting(5, ge=2, le=97, help="modulus p"),
    steps_per_operation: int = setting(300, ge=1, help="training steps, times the number of operations"),
    train: int = setting(20_000, ge=1, help="training questions, or 80 % of all questions"),
    test: int = setting(500, ge=1, help="test questions, or 10 % of all questions"),
    seed: int = setting(0, ge=0, le=2**32 - 1, help="seed of the random numbers"),
) -> Iterator[Reading]:
    """Accuracy on expressions of 2 to 4 operations with and without the chain, at equal steps, beside the
    official runs.

    The official runs are larger: width 256, 10^6 training questions, 100 epochs, modulus 11 with division.
    """
    generator, steps = torch.Generator().manual_seed(seed + operations), operations * steps_per_operation
    task = Arithmetic(operations, modulus)
    n = min(test, int(0.1 * task.questions))
    parts = split(task, train=min(train, int(0.8 * task.questions)), test=n, generator=generator)
    modes: dict[str, learning.Mode] = {WITH: "chain", WITHOUT: "direct"}
    for name, mode in modes.items():
        network = learning.train(
            parts, mode, steps=steps, generator=generator, measured=(steps,), questions=n
        )
        value = network.accuracies[steps]
        columns = {"interval": share_interval(value, n), "interval_kind": "over samples"}
        yield reading(ACCURACY, value, at={"mode": name}, step=steps, unit="share", n=n, **columns)
    yield reading(MAJORITY, float(parts.guessed.double().mean()), unit="share", n=n)

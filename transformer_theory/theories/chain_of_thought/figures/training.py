"""Accuracy over training with the chain, without it and with filler symbols, beside the most frequent answer.

Source: :cite:t:`feng2023towards`; filler symbols as in :cite:t:`pfau2024dot`.
"""

from collections.abc import Iterator

import torch

from ....core.experiment import setting
from ....core.figure import Panel, Reading, curves, figure, reading
from ....core.plotting import COLOURS, TINTS
from ....core.sources import Source
from ....core.statistics import share_interval
from .. import learning
from ..arithmetic import Arithmetic
from ..tasks import split

OWN = Source("feng2023towards", status="own")
ACCURACY, MAJORITY = "accuracy of the answer", "share of the most frequent answer"
LABELS: dict[learning.Mode, str] = {"chain": "with chain", "direct": "without", "filler": "filler"}
LOOKS = {
    "with chain": {"color": "chain_of_thought"},
    "without": {"color": COLOURS["network"]},
    "filler": {"color": TINTS[3]},
}
LOOK = {"lines": ("mode", LOOKS), "levels": {"most frequent answer": MAJORITY}}


@figure(
    "chain_of_thought.training",
    source=(Source("feng2023towards", status="second-hand"), Source("pfau2024dot", status="second-hand")),
    view=curves(
        "symbols",
        panels=(
            Panel("By steps", ACCURACY, x="step", axes={"xlabel": "optimiser steps"}, **LOOK),
            Panel("By compute", ACCURACY, **LOOK),
        ),
        xlabel="symbols read",
        ylabel="accuracy",
        caption="{operations} operations modulo {modulus}, {test} questions outside the training set, "
        "free-running. One seed. Bands: 95 % interval over questions.",
        size=(7.0, 2.9),
    ),
    quick={"operations": 1, "modulus": 3, "steps": 20, "train": 17, "test": 10, "points": 2},
)
def training(
    *,
    operations: int = setting(3, ge=1, le=8, help="operations of an expression"),
    modulus: int = setting(5, ge=2, le=97, help="modulus p"),
    steps: int = setting(1000, ge=1, help="steps with the chain"),
    train: int = setting(20_000, ge=1, help="training questions"),
    test: int = setting(500, ge=1, help="test questions"),
    points: int = setting(10, ge=1, le=100, help="measurements on the way"),
    seed: int = 0,
) -> Iterator[Reading]:
    """Free-running accuracy on unseen expressions over training, against steps and against symbols read.

    Without the chain, training goes on until the network has read as many symbols as with it.
    """
    generator = torch.Generator().manual_seed(seed)
    parts = split(Arithmetic(operations, modulus), train=train, test=test, generator=generator)
    share = float(parts.guessed.double().mean())
    columns = {"unit": "share", "n": test, "source": OWN}
    yield reading(MAJORITY, share, interval=share_interval(share, test), **columns)
    for mode, label in LABELS.items():
        end = learning.equal_compute_steps(parts, mode, steps) if mode == "direct" else steps
        measured = sorted({round(end * i / points) for i in range(points + 1)} | {steps})
        network = learning.train(
            parts, mode, steps=end, generator=generator, measured=measured, questions=test
        )
        for step in measured:
            value = network.accuracies[step]
            at = {"mode": label, "symbols": step * learning.symbols_per_step(parts, mode)}
            columns |= {"interval": share_interval(value, test), "interval_kind": "over samples"}
            yield reading(ACCURACY, value, at=at, step=step, **columns)

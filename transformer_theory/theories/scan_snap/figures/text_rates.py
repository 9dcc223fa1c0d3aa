"""Sparsity of attention against the learning rate (Figure 10), in a one-layer language model that is trained
on a text.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ....core.experiment import setting, sweep
from ....core.figure import Panel, Reading, curves, figure, reading
from ....core.measurement import Null
from ....core.sources import Source
from ....metrics.networks import ENTROPY
from ..text_runs import HELD_OUT_LOSS, train_and_measure

SEED_STRIDE = 1000  # distance between the seeds of two experiments, so that their runs do not share seeds
AXES = {"ylim": (0, None)}


@figure(
    "scan_snap.text_rates",
    source=(Source("tian2023scan", "Fig. 10"), Source("merity2017pointer")),
    view=curves(
        "rate",
        panels=(
            (
                Panel("Attention entropy, nats", ENTROPY, {"seed": None}, legend="", axes=AXES),
                Panel("", ENTROPY, lines="seed"),
            ),
            (
                Panel("Held-out loss, nats per word", HELD_OUT_LOSS, {"seed": None}, legend=""),
                Panel("", HELD_OUT_LOSS, lines="seed"),
            ),
        ),
        xlabel="learning rate",
        caption="After {steps} steps: the mean over {seeds} seeds, and each seed. Dashed: before training.",
    ),
    quick={"rates": (2.0, 10.0), "seeds": 2, "steps": 30, "dim": 16, "words": 50, "windows": 3},
)
def text_rates(
    *,
    text: str = setting("", help="plain-text file to learn (empty: the shipped text)"),
    held_out: str = setting(
        "", help="file on which attention is measured (empty: the last fifth of the text)"
    ),
    rates: tuple[float, ...] = setting(
        (1.0, 2.0, 3.0, 4.0, 5.0), gt=0, help="learning rates; the first layer's MLP has twice the rate"
    ),
    seeds: int = setting(3, ge=1, help="runs of each rate; the paper has five"),
    steps: int = setting(600, ge=1, help="steps of training"),
    words: int = setting(3000, ge=10, help="largest number of words in the vocabulary"),
    dim: int = setting(200, ge=2, help="width of the residual stream and the MLP, an even number"),
    windows: int = setting(100, ge=1, help="number of held-out windows on which attention is measured"),
    seed: int = 0,
) -> Iterator[Reading]:
    """Entropy of attention and held-out loss after training by gradient descent at several rates: means over
    a few seeds, and each seed. The paper plots the entropies without numbers.
    """
    shared = {"text": text, "held_out": held_out, "words": words, "steps": steps, "dim": dim}
    shared |= {"depth": 1, "measured": (0, steps), "windows": windows}
    numbers = [SEED_STRIDE * seed + k for k in range(seeds)]
    settings = [{"rate": rate, "seed": number, **shared} for rate in rates for number in numbers]
    runs, shape = sweep(train_and_measure, settings), (len(rates), seeds)
    entropy = np.array([run.series(ENTROPY)[:, 0] for run in runs]).reshape(*shape, 2)
    losses = np.array([run.held_out_losses[-1] for run in runs]).reshape(shape)
    start = Null("before training", (float(entropy[:, :, 0].mean()),))
    for rate, values, loss in zip(rates, entropy[:, :, 1], losses):
        columns: dict[str, Any] = {"model": "1 layer", "at": {"rate": rate}, "step": steps, "unit": "nats"}
        of_loss: dict[str, Any] = columns | {"split": "validation"}
        note = f"{values.min():.3f} to {values.max():.3f} over seeds"
        yield reading(ENTROPY, float(values.mean()), nulls=(start,), note=note, n=seeds, **columns)
        note = f"per word; {loss.min():.3f} to {loss.max():.3f} over seeds"
        yield reading(HELD_OUT_LOSS, float(loss.mean()), note=note, n=seeds, **of_loss)
        for k, number in enumerate(numbers):
            yield reading(ENTROPY, float(values[k]), seed=number, **columns)
            yield reading(HELD_OUT_LOSS, float(loss[k]), seed=number, **of_loss)

"""Label-relevant tokens: accuracy over the number of samples, and the number of samples that are needed, by
the share of such tokens.

Source: :cite:t:`li2023theoretical`.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import torch

from ....core.experiment import setting
from ....core.figure import Panel, Reading, curves, figure, mean, reading
from ....core.plotting import COLOURS, style
from ....core.result import Result
from ....core.sources import Source
from ..tokens import LabelRelevantTokens, needed_samples, train_tokens

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ACCURACY, MASS = "accuracy", "mass on relevant tokens divided by their share"
NEEDED, EXPONENT = "samples for an accuracy of .9", "exponent of the needed samples in the share"
SHARES, SIZES, TARGET = (0.15, 0.2, 0.3, 0.4), (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048), 0.9
LOGS = {"yscale": "log", "xlabel": "share of relevant tokens", "ylabel": NEEDED}


@style()
def draw(result: Result) -> "Figure":
    """Draws accuracy, needed samples with the law share to the -2, and mass."""
    drawn = curves(
        "samples",
        panels=(
            Panel("", ACCURACY, lines="share", levels={"_": TARGET}, axes={"ylabel": ACCURACY}),
            Panel("", NEEDED, axes=LOGS, x="share"),
            Panel("", MASS, lines="share", levels={"_": 1}, axes={"ylabel": "mass on relevant / share"}),
        ),
        log="x",
        caption="40 tokens, noise {noise:g}, {steps} steps; means of {groups} groups of four models. The "
        "number of samples falls faster than the share to the -2 (dashed). Right: attention moves to the "
        "relevant tokens only if there are enough samples.",
        size=(8.4, 3.0),
    )(result)
    known = [row for row in result.table.select(quantity=NEEDED) if row.value is not None]
    if known:
        shares = np.array([row.at["share"] for row in known])
        law = known[-1].value * (shares / shares[-1]) ** -2.0
        drawn.axes[1].plot(shares, law, "--", color=COLOURS["null"])
    return drawn


@figure(
    "vision.samples",
    source=Source("li2023theoretical", status="own"),
    view=draw,
    quick={"groups": 1, "steps": 2, "largest": 16},
)
def samples(
    *,
    groups: int = setting(5, ge=1, le=100, help="groups of four models; the exponent is fitted in each"),
    steps: int = setting(200, ge=1, le=10**5, help="steps of Adam"),
    noise: float = setting(
        0.5, ge=0.0, le=10.0, help="standard deviation of the noise of a token in each coordinate"
    ),
    largest: int = setting(2048, ge=8, le=10**6, help="largest number of samples"),
    seed: int = 0,
) -> Iterator[Reading]:
    """Small transformers trained on few sequences whose label is carried by a share of the tokens: accuracy
    and mass of each share and size, the needed samples, and their exponent with its interval over groups.
    """
    generator, sizes = torch.Generator().manual_seed(seed), [n for n in SIZES if n <= largest]
    accuracies = np.zeros((groups, len(SHARES), len(sizes)))
    for (row, alpha), (column, n) in product(enumerate(SHARES), enumerate(sizes)):
        data = LabelRelevantTokens(alpha, noise)
        found = train_tokens(data, n, networks=4 * groups, generator=generator, steps=steps)
        accuracies[:, row, column] = found.accuracy.reshape(groups, 4).mean(1)
        masses = (found.mass.reshape(groups, 4).mean(1) / alpha).double().numpy()
        at = {"share": alpha, "samples": n}
        yield mean(ACCURACY, accuracies[:, row, column], "groups", at=at)
        yield mean(MASS, masses, "groups", at=at)
    for alpha, curve in zip(SHARES, accuracies.mean(0)):
        value = needed_samples(sizes, curve.tolist(), TARGET)
        reason = "" if value is not None else "the accuracy is above or below the target at all sizes"
        yield reading(NEEDED, value, at={"share": alpha}, reason=reason, n=groups)
    slopes = [exponent(sizes, curves) for curves in accuracies.tolist()]
    known = [slope for slope in slopes if slope is not None]
    if known:
        yield mean(EXPONENT, known, "groups", predicted=-2.0)
    else:
        reason = "fewer than three shares reach the target"
        yield reading(EXPONENT, None, predicted=-2.0, reason=reason, n=0)


def exponent(sizes: Sequence[int], accuracies: Sequence[Sequence[float]]) -> float | None:
    """Returns the exponent of the needed samples in the share, fitted to the accuracies of each share; None
    if fewer than three shares reach the target.
    """
    needed = [needed_samples(sizes, curve, TARGET) for curve in accuracies]
    known = [(math.log(share), math.log(n)) for share, n in zip(SHARES, needed) if n is not None]
    if len(known) < 3:
        return None
    x, y = np.array(known).T
    return float(np.polyfit(x, y, 1)[0])

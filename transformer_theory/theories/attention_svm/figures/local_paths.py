"""Regularisation paths within a cone around the max-margin solution of a selection that is not the
best one.
"""

from collections.abc import Iterator
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ....core.experiment import setting
from ....core.figure import DASHED, Panel, Reading, draw_curves, figure, reading
from ....core.plotting import COLOURS, axes, caption, colour, style
from ....core.result import Result
from ....core.sources import Source
from ....core.table import Arrays
from ....maths.linalg import cosine
from ..dynamics import local_path
from ..problem import cross_attention
from ..selection import all_selections
from .common import arrays, arrays_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH = "width of the widest cone"
USED = "share of local selections with a wide enough cone"
REACHED = "share of paths that end at the max-margin solution"
DISTANCE = "1 - cosine to the max-margin solution, relative to the width of the cone"
SLOPE = "slope of the logarithm of 1 - cosine over the last two radii"
LOCAL, OTHER = "locally optimal", "not locally optimal"
NEAR = 0.25  # largest 1 - cosine, relative to the width of the cone, of a path that has reached the solution
CONTROL = {OTHER: {"label": "control", "color": "null", "linestyle": DASHED}}


@style()
def draw(result: Result) -> "Figure":
    """Draws distances against the radius, the share of paths that end at the solution, and the distribution
    of predicted widths.
    """
    drawn, (left, middle, right) = axes(1, 3, width=7.0, height=3.3)
    control = {"selections": OTHER, "width": result.settings["multiples"][0]}
    look = {"xscale": "log", "yscale": "log", "xlabel": "radius / $\\|W_a\\|$"}
    distances = Panel("(1 − cosine) / width", DISTANCE, {"selections": LOCAL}, "width", axes=look)
    draw_curves(left, result, distances, Panel("", DISTANCE, control, ("selections", CONTROL)), x="radius")
    look = {"xscale": "log", "xlabel": "width / predicted width", "ylim": (-0.05, 1.45)}
    share = Panel("Share that ends at $W_a$", REACHED, lines="selections", predicted="predicted", axes=look)
    draw_curves(middle, result, share, x="width")
    widths = np.sort(arrays_of(result)["widths"])
    below = np.arange(1, len(widths) + 1) / len(widths)
    right.plot(widths, below, color=colour("attention_svm"), drawstyle="steps-post")
    narrowest = result.settings["narrowest"]
    right.axvline(narrowest, color=COLOURS["null"], linewidth=1.0, linestyle=DASHED)
    right.set(
        title="Predicted widths", xlabel="1 − cosine", xscale="log", ylabel="share below", ylim=(0, 1.03)
    )
    caption(
        drawn,
        f"{result.select(quantity=REACHED)[0].n} locally optimal selections that are not the best, and as "
        "many that are not locally optimal. Left: medians; width of the cone relative to the predicted one; "
        f"control: not locally optimal, width {control['width']:g}; 1: the boundary of the cone. Right: all "
        "locally optimal selections; dashed: the narrowest cone used.",
    )
    return drawn


@figure(
    "attention_svm.local_paths",
    source=(Source("tarzanagh2023transformers"), Source("tarzanagh2023maxmargin")),
    view=draw,
    quick={"trials": 15, "multiples": (0.5, 2.0), "radii": (64.0, 256.0), "steps": 100},
)
def local_paths(
    *,
    inputs: int = setting(3, ge=1, le=5, help="number n of inputs"),
    tokens: int = setting(4, ge=2, le=6, help="number T of tokens per input"),
    dim: int = setting(5, ge=2, help="dimension d of the tokens"),
    trials: int = setting(80, ge=1, help="random problems; every selection of each is considered"),
    multiples: tuple[float, ...] = setting(
        (0.25, 0.5, 0.8, 1.25, 2.0, 4.0), gt=0, le=4, help="widths relative to the predicted width"
    ),
    radii: tuple[float, ...] = setting(
        (16.0, 32.0, 64.0, 128.0, 256.0), gt=0, le=1e4, help="radii in units of the norm of the solution"
    ),
    narrowest: float = setting(
        0.003, gt=0, lt=0.2, help="smallest predicted width of a selection that is used"
    ),
    steps: int = setting(300, ge=1, help="steps of projected descent from each start"),
    seed: int = 0,
) -> Iterator[Reading | Arrays]:
    r"""The weights of least loss in growing balls, within a cone around the max-margin solution W_a of a
    selection a that is not the best.

    The papers prove that :math:`W_R / R` tends to :math:`W_a / \|W_a\|_F` in a cone that is narrow enough, if
    a is locally optimal. How narrow follows from the scores and the constraints (``selection.cone_width``,
    our own): the path ends at W_a if and only if the width of the cone, as 1 - cosine, is below that of the
    nearest W whose smallest margin belongs to a token that scores higher than the selected one. The
    experiment sets the width to multiples of the predicted one. The control takes the same widths around the
    solutions of selections that are not locally optimal, for which the predicted width is zero. Each set is
    searched from a random point of the boundary of the cone, from the point where the cone first fails, and
    from the best weights in the previous set. Cones narrower than ``narrowest`` need larger balls and are
    left out, and so are those of which a multiple is not below one.
    """
    generator = torch.Generator().manual_seed(seed)
    problems = cross_attention(inputs=inputs, tokens=tokens, dim=dim, generator=generator, trials=trials)
    found, local, other = all_selections(problems)
    wide = local & (found.width > narrowest) & (found.width * max(multiples) < 1)
    widths, others = found.width[local], other.nonzero().squeeze(-1)
    yield arrays({"widths": widths})
    if not (wide.any() and len(others)):
        yield reading(REACHED, None, n=0, reason="no selection has a wide enough cone")
        return
    used = found[wide]
    control = found[others[torch.randperm(len(others), generator=generator)[: len(used.width)]]]
    note = "median over the locally optimal selections"
    yield reading(WIDTH, float(widths.median()), n=len(widths), note=note)
    yield reading(USED, len(used.width) / len(widths), unit="share", n=len(widths))
    for (kind, these), multiple in product(((LOCAL, used), (OTHER, control)), multiples):
        width = multiple * used.width[: len(these.width)]
        noise = torch.randn(these.W.shape, generator=generator, dtype=torch.float64)
        starts = torch.stack([noise, these.start])
        path = local_path(these.instance, these.select, these.W, starts, radii, width=width, steps=steps)
        distance = 1 - cosine(path.W, these.W.expand_as(path.W), dim=(-2, -1))  # [radii, selections]
        inside, at = kind == LOCAL and multiple < 1, {"selections": kind, "width": multiple}
        here: dict[str, Any] = {"n": len(width)}
        share = float((distance[-1] / width < NEAR).double().mean())
        yield reading(REACHED, share, reference=(float(inside), "theory"), unit="share", at=at, **here)
        here["note"] = "median over the selections"
        for radius, ratio in zip(radii, distance / width):
            yield reading(DISTANCE, float(ratio.median()), at={**at, "radius": radius}, **here)
        if inside and len(radii) > 1:
            slope = (distance[-1] / distance[-2]).log() / float(np.log(radii[-1] / radii[-2]))
            yield reading(SLOPE, float(slope.median()), reference=(-2.0, "limit"), at=at, **here)

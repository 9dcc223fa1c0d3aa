"""Three inputs of seven tokens with one prompt: normalised and plain descent, their attention and their
norms.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from ....core.experiment import setting
from ....core.figure import DASHED, Panel, Reading, draw_curves, figure, reading
from ....core.plotting import TINTS, axes, caption, style
from ....core.result import Result
from ....core.sources import Source
from ....core.table import Arrays
from ....maths.linalg import cosine
from ..builders import prompt
from ..dynamics import normalised_descent, plain_descent, start
from ..problem import Instance
from ..published import PROMPT_STARTS, published_prompts
from ..solvers import frobenius_max_margin
from .common import RATE, Reference, arrays, arrays_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ZERO_START = PROMPT_STARTS.index(0.0)  # PROMPT_STARTS holds the first coordinate of p; the second is 0
EPS = 1e-12  # added to the norm of the gradient in the released run
NORMALISED, RELEASED = "normalised steps", f"normalised steps with eps = {EPS:.0e}"
PLAIN = "plain steps"
ATTENTION, NORM, COSINE = "attention on the best token", "norm of p", "cosine to p_mm"
SMALLEST = "smallest cosine to p_mm over the starts"
OBJECTIVE = "|p_mm|^2 / 2"
# objective of the released run; its solver gets keys with the score as a third coordinate
PRINTED_OBJECTIVE = 0.31319
# (quantity, descent, step) -> reference number for the start at zero
KNOWN: Mapping[tuple[str, str, int], Reference] = {
    (ATTENTION, RELEASED, 50): (0.9931, "recomputed"),
    (NORM, RELEASED, 199): (19.5, "figure"),  # single precision; double precision gives 19.75
    (ATTENTION, PLAIN, 50): (0.8177, "recomputed"),
    (ATTENTION, PLAIN, 199): (0.9719, "recomputed"),
    (NORM, PLAIN, 199): (3.85, "figure"),
    (COSINE, RELEASED, 1000): (0.9999, "recomputed"),
    (COSINE, PLAIN, 1000): (0.985, "recomputed"),
}
PLOTTED = {"step": tuple(range(201)), "descent": (RELEASED, PLAIN)}
LINES = ("descent", {RELEASED: {"label": "normalised steps"}, PLAIN: {}})


@style()
def draw(result: Result) -> "Figure":
    """Draws tokens, paths of p and p_mm in the plane, and attention on the best token and the norm of p over
    200 steps from zero.
    """
    a = arrays_of(result)
    drawn, (left, middle, right) = axes(1, 3, width=7.0, height=3.0)
    for keys, tint in zip(a["keys"], (TINTS[3], TINTS[2], TINTS[5])):
        left.scatter(*keys[1:].T, s=9, color=tint, zorder=3)
        left.scatter(*keys[0], s=80, marker="*", color=tint, edgecolors="black", linewidths=0.6, zorder=5)
    left.plot(a["paths"][..., 0], a["paths"][..., 1], color=TINTS[0], linewidth=1.1, zorder=2)
    left.plot(*a["paths"][0].T, linestyle="", marker="o", markersize=3, color="black", zorder=4)
    end = 9 * a["target"] / np.linalg.norm(a["target"])  # beyond the edge of the panel
    left.plot(*zip((0, 0), end), color="black", linestyle=DASHED, linewidth=1, label="$p_{mm}$")
    left.set(title="Paths of p", xlabel="$p_1$", ylabel="$p_2$", xlim=(-1.9, 2.7), ylim=(-2.1, 2.5))
    left.set_aspect("equal")
    left.legend(loc="upper right", borderaxespad=0.1)
    draw_curves(middle, result, Panel("Attention, best token", ATTENTION, PLOTTED, LINES), x="step")
    draw_curves(right, result, Panel("Norm of p", NORM, PLOTTED, LINES), x="step")
    middle.set(xlabel="step", ylim=(None, 1.03))
    right.set(xlabel="step", ylim=(0, None))
    caption(
        drawn,
        "Left: three inputs, one colour each, with stars for the best tokens, and normalised steps "
        "from six starts (black dots). $p_{mm}$ is the max-margin prompt. Middle and right: start at "
        "zero; attention is the mean over the inputs.",
    )
    return drawn


@figure(
    "attention_svm.multi_input",
    source=Source("tarzanagh2023maxmargin"),
    view=draw,
    quick={"steps": 200},
)
def multi_input(
    *,
    steps: int = setting(1000, ge=1, help="steps of descent"),
    rate: float = RATE,
    plain_rate: float = setting(1.0, gt=0, le=1e6, help="factor of the gradient in plain descent"),
) -> Iterator[Reading | Arrays]:
    """Descent on one prompt for three inputs: direction and norm of the prompt, and attention on the best
    tokens.

    Each input has one best token, and its other tokens score the same. With normalised steps (rate .1)
    attention sharpens at once, and the norm grows like the number of steps. Plain steps (rate 1) slow down as
    the gradient vanishes, and the norm grows like the logarithm of the number of steps. Only the keys are
    random; they are drawn as in the released run.
    """
    instance, scored_keys = published_prompts()
    target = frobenius_max_margin(prompt(instance.tokens, instance.optimal()))
    with_score = frobenius_max_margin(prompt(scored_keys, instance.optimal()))
    printed = {"reference": (PRINTED_OBJECTIVE, "printed"), "needs": ()}
    note = "the released run solves this problem, though attention does not use the score"
    at = {"keys": "score as third coordinate"}
    yield reading(OBJECTIVE, with_score.norm**2 / 2, at=at, note=note, **printed)
    yield reading(OBJECTIVE, target.norm**2 / 2, at={"keys": "keys in the plane"})
    agreement = float(cosine(with_score.W[:2].flatten(), target.W.flatten()))
    yield reading("cosine between p_mm with and without the third coordinate", agreement, source=None)

    trials = len(PROMPT_STARTS)
    parts = (instance.tokens, instance.query, instance.scores)
    batch = Instance(*(part.expand(trials, *part.shape) for part in parts))
    first = torch.tensor([[x, 0.0] for x in PROMPT_STARTS], dtype=torch.float64)[..., None]
    usual = {*range(0, 101, 2), 199, *range(0, steps, 25), steps}
    measured = sorted(step for step in usual if step <= steps)
    for descent, descend, needs in (
        (NORMALISED, partial(normalised_descent, rate=rate), ("rate",)),
        (RELEASED, partial(normalised_descent, rate=rate, eps=EPS), ("rate",)),
        (PLAIN, partial(plain_descent, rate=plain_rate), ("plain_rate",)),
    ):
        state, states = start(batch, W=first), []
        for step in measured:
            state = descend(batch, state, steps=step - state.step)
            states.append(state.W.squeeze(-1))
        path, at = torch.stack(states), {"descent": descent}  # [steps, starts, 2]
        # Scores have the shape [steps, starts, inputs, tokens]; token 0 is the best of every input.
        attention = (path[:, :, None, None, :] * instance.tokens).sum(-1).softmax(-1)[..., 0].mean(-1)
        norm = path.norm(dim=-1)
        along = (path @ target.W).squeeze(-1) / (norm * target.norm).clamp(min=1e-300)  # 0 at p = 0
        for quantity, curve in {ATTENTION: attention, NORM: norm, COSINE: along}.items():
            for step, value in zip(measured, curve[:, ZERO_START].tolist()):
                here = {"at": at, "step": step, "note": "start at zero"}
                known = KNOWN.get((quantity, descent, step))
                yield reading(quantity, value, reference=known, needs=needs, **here)
        here = {"at": at, "step": steps, "n": trials}
        yield reading(SMALLEST, float(along[-1].min()), reference=(1.0, "limit"), **here)
        if descent == NORMALISED:
            yield arrays({"keys": instance.tokens, "target": target.W.squeeze(-1), "paths": path})

"""One input of three tokens in the plane: descent on the prompt from six starts. All of them, or only some,
lead to the best token.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch

from ....core.experiment import setting
from ....core.figure import DASHED, Reading, figure, reading
from ....core.plotting import COLOURS, TINTS, axes, caption, style
from ....core.result import Result
from ....core.sources import Source
from ....core.table import Arrays
from ....maths.linalg import cosine
from ..builders import prompt
from ..dynamics import normalised_descent, start, trajectory
from ..published import PROMPT_KEYS, PROMPT_SCORES, PROMPT_STARTS, published_prompt
from ..solvers import frobenius_max_margin
from .common import RATE, arrays, arrays_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OBJECTIVE, SELECTED, COSINE = "|p_mm|^2 / 2", "token selected", "cosine to p_mm of the selected token"
OBJECTIVES = (0.49505, 0.5)  # |p_mm|^2 / 2 of tokens 0 and 1, by a general solver
RELEASED = {  # (case, second coordinate of the start) -> cosine with the released settings, by plain autograd
    ("global", 1.0): 0.9956,
    ("global", -1.5): 0.9943,
    ("local", -0.5): 0.9998,
    ("local", -1.0): 0.9996,
    ("local", -1.5): 0.9994,
}
EPS = 1e-9  # added to the norm of the gradient in the released run
TOKENS = ((TINTS[0], "*", 110), (TINTS[1], "o", 36), (COLOURS["null"], "o", 36))  # looks; token 0 is the best


@style()
def draw(result: Result) -> "Figure":
    """Draws tokens, paths of p and directions of p_mm in both cases, and 1 - cosine of p to its p_mm, half
    the squared distance of unit vectors, against the step.
    """
    a = arrays_of(result)
    drawn, (left, middle, right) = axes(1, 3, width=7.0, height=3.2)
    units = a["targets"] / np.linalg.norm(a["targets"], axis=1, keepdims=True)
    for ax, case, dashes in ((left, "global", "-"), (middle, "local", DASHED)):
        rows = result.select(quantity=SELECTED, at={"case": case})
        ends = {row.at["start"]: round(row.value or 0) for row in rows}
        for token in sorted(set(ends.values())):
            ray = {"color": TINTS[token], "linestyle": DASHED, "linewidth": 1.1, "zorder": 1}
            ax.plot(*zip((0, 0), 9 * units[token]), **ray)
        for y, path in zip(PROMPT_STARTS, a[f"paths_{case}"].swapaxes(0, 1)):
            token = ends.get(y, 1)
            ax.plot(*path.T, color=TINTS[token], linewidth=1.3, zorder=2)
            ax.plot(*path[0], marker="o", markersize=3, color="black", zorder=4)
            direction = path[1:] / np.linalg.norm(path[1:], axis=1, keepdims=True)
            distance = ((direction - units[token]) ** 2).sum(1) / 2
            look = {"color": TINTS[token], "linestyle": dashes, "linewidth": 1}
            right.plot(a["steps"][1:], np.maximum(distance, 1e-16), **look)
        for key, (tint, marker, size) in zip(a["keys"], TOKENS):
            edge = {"edgecolors": "black", "linewidths": 0.6, "zorder": 5}
            ax.scatter(*key, s=size, marker=marker, color=tint, **edge)
        ax.set(title=f"{case.capitalize()} case", xlim=(-1.5, 3.2), ylim=(-1.9, 2.8), aspect="equal")
        ax.set(xlabel="$p_1$", ylabel="$p_2$")
    right.set(title="1 − cosine to $p_{mm}$", xlabel="step", xscale="log", yscale="log", ylim=(1e-6, 3))
    caption(
        drawn,
        "Left and middle: paths of the prompt p from six starts (black dots), in the colour of the token at "
        "which they end: 0, the best (star), or 1. Dashed: its max-margin prompt $p_{mm}$. Right: distance "
        "of each path to that $p_{mm}$; solid: global case, dashed: local case.",
    )
    return drawn


@figure(
    "attention_svm.single_input",
    source=Source("tarzanagh2023maxmargin"),
    view=draw,
    quick={"steps": 200},
)
def single_input(
    *, steps: int = setting(1000, ge=1, help="steps of descent"), rate: float = RATE
) -> Iterator[Reading | Arrays]:
    """Normalised descent on the prompt p of one input, from six starts, compared with the max-margin prompts
    p_mm of two tokens.

    Global case: the tokens that are not best have the same score, and every start ends at the best token.
    Local case: token 1 scores higher than its only neighbour, so it is locally optimal, and the lowest starts
    end there. The paper shows the paths as pictures; the reference numbers come from another program that ran
    with the paper's settings. Nothing is random.
    """
    measured = sorted({*range(0, min(101, steps), 2), *range(0, steps, 25), steps})
    keys = torch.tensor([PROMPT_KEYS], dtype=torch.float64)
    targets = [frobenius_max_margin(prompt(keys, torch.tensor([token]))) for token in (0, 1)]
    for token, (target, number) in enumerate(zip(targets, OBJECTIVES)):
        known = {"reference": (number, "recomputed"), "needs": ()}
        yield reading(OBJECTIVE, target.norm**2 / 2, at={"token": token}, **known)
    paths = {}
    for case in PROMPT_SCORES:
        instance = published_prompt(case)
        first = start(
            instance, W=torch.tensor([[0.0, y] for y in PROMPT_STARTS], dtype=torch.float64)[..., None]
        )
        states = list(trajectory(instance, first, steps=measured, rate=rate))
        released = normalised_descent(instance, first, steps=steps, rate=rate, eps=EPS)
        paths[f"paths_{case}"] = torch.stack([state.W.squeeze(-1) for state in states])
        select = instance.selected(states[-1].W).squeeze(-1)
        for trial, (y, token) in enumerate(zip(PROMPT_STARTS, select.tolist())):
            if token > 1:
                continue  # token 2 is not locally optimal, so this run has not settled yet
            at, goal = {"case": case, "start": y}, targets[token].W.flatten()
            expected = (0.0, "limit") if case == "global" else (float(y < -0.5), "recomputed")
            note = "token 0 is the best, token 1 locally optimal in the local case"
            yield reading(SELECTED, float(token), reference=expected, at=at, step=steps, note=note)
            known = (RELEASED[case, y], "recomputed") if (case, y) in RELEASED else None
            stops = "the released settings stop where the gradient falls below eps"
            exact, with_eps = (float(cosine(end.W[trial].flatten(), goal)) for end in (states[-1], released))
            here = {"at": {**at, "gradient": "exact gradient"}, "step": steps}
            yield reading(COSINE, exact, reference=(1.0, "limit"), **here)
            here = {"at": {**at, "gradient": f"eps = {EPS:.0e} as released"}, "step": steps, "note": stops}
            yield reading(COSINE, with_eps, reference=known, **here)
    directions = torch.stack([target.W.squeeze(-1) for target in targets])
    yield arrays(
        {"keys": torch.tensor(PROMPT_KEYS), "targets": directions, "steps": torch.tensor(measured), **paths}
    )

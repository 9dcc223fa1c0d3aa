"""Three inputs of seven tokens with one prompt: normalised and plain descent, their attention and their
norms.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from ....core.experiment import Experiment, setting
from ....core.figure import Panel, draw_curves
from ....core.measurement import Measurement
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
from .common import NAME, Reference, arrays_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SOURCE = Source("tarzanagh2023maxmargin")
ZERO_START = PROMPT_STARTS.index(0.0)  # PROMPT_STARTS holds the first coordinate of p; the second is 0
EPS = 1e-12  # added to the norm of the gradient in the released run
VARIANTS = {
    "normalised": "normalised steps",
    "released": f"normalised steps with eps = {EPS:.0e}",
    "plain": "plain steps",
}
QUANTITIES = {"attention": "attention on the best token", "norm": "norm of p", "cosine": "cosine to p_mm"}
OBJECTIVE = "|p_mm|^2 / 2"
# objective of the released run; its solver gets keys with the score as a third coordinate
PRINTED_OBJECTIVE = 0.31319
# (quantity, variant, step) -> reference number for the start at zero
KNOWN: Mapping[tuple[str, str, int], Reference] = {
    ("attention", "released", 50): (0.9931, "recomputed"),
    ("norm", "released", 199): (19.5, "figure"),  # single precision; double precision gives 19.75
    ("attention", "plain", 50): (0.8177, "recomputed"),
    ("attention", "plain", 199): (0.9719, "recomputed"),
    ("norm", "plain", 199): (3.85, "figure"),
    ("cosine", "released", 1000): (0.9999, "recomputed"),
    ("cosine", "plain", 1000): (0.985, "recomputed"),
}
INPUT_TINTS = (TINTS[3], TINTS[2], TINTS[5])
PLOTTED = {
    VARIANTS["released"]: {"label": "normalised steps", "color": TINTS[0]},
    VARIANTS["plain"]: {"label": "plain steps", "color": TINTS[1]},
}
LAST_PLOTTED_STEP = 200


@dataclass(frozen=True)
class MultiInput(Experiment):
    """Descent on one prompt for three inputs: direction and norm of the prompt, and attention on the best
    tokens.

    Each input has one best token, and its other tokens score the same. With normalised steps (rate .1)
    attention sharpens at once, and the norm grows like the number of steps. Plain steps (rate 1) slow down as
    the gradient vanishes, and the norm grows like the logarithm of the number of steps. Only the keys are
    random; they are drawn as in the released run.
    """

    steps: int = setting(1000, ge=1, help="steps of descent")
    rate: float = setting(0.1, gt=0, le=1e6, help="length of a step")
    plain_rate: float = setting(1.0, gt=0, le=1e6, help="factor of the gradient in plain descent")

    name = "attention_svm.multi_input"
    sources = (SOURCE,)

    def measure(self) -> Iterator[Measurement | Arrays]:
        """Yields the objectives, the quantities over the steps for the start at zero, and arrays with the
        paths of normalised descent.
        """
        instance, scored_keys = published_prompts()
        target = frobenius_max_margin(prompt(instance.tokens, instance.optimal()))
        with_score = frobenius_max_margin(prompt(scored_keys, instance.optimal()))
        note = "the released run solves this problem, though attention does not use the score"
        reference: Reference = (PRINTED_OBJECTIVE, "printed")
        objective = with_score.norm**2 / 2
        yield self.row(
            OBJECTIVE,
            objective,
            reference=reference,
            at={"keys": "score as third coordinate"},
            note=note,
        )
        yield self.row(OBJECTIVE, target.norm**2 / 2, at={"keys": "keys in the plane"})
        agreement = float(cosine(with_score.W[:2].flatten(), target.W.flatten()))
        yield self.row("cosine between p_mm with and without the third coordinate", agreement, source=None)

        trials = len(PROMPT_STARTS)
        batch = Instance(
            *(v.expand(trials, *v.shape) for v in (instance.tokens, instance.query, instance.scores))
        )
        first_prompts = torch.tensor([[x, 0.0] for x in PROMPT_STARTS], dtype=torch.float64)[..., None]
        steps = sorted(
            step
            for step in {*range(0, 101, 2), 199, *range(0, self.steps, 25), self.steps}
            if step <= self.steps
        )
        arrays = {"keys": instance.tokens, "target": target.W.squeeze(-1)}
        runs = {
            "normalised": partial(normalised_descent, rate=self.rate),
            "released": partial(normalised_descent, rate=self.rate, eps=EPS),
            "plain": partial(plain_descent, rate=self.plain_rate),
        }
        for variant, descend in runs.items():
            state, paths = start(batch, W=first_prompts), []
            for step in steps:
                state = descend(batch, state, steps=step - state.step)
                paths.append(state.W.squeeze(-1))
            path = torch.stack(paths)  # [steps, starts, 2]
            # Scores have the shape [steps, starts, inputs, tokens]; token 0 is the best of every input.
            attention = (path[:, :, None, None, :] * instance.tokens).sum(-1).softmax(-1)[..., 0].mean(-1)
            norm = path.norm(dim=-1)
            along = (path @ target.W).squeeze(-1) / (norm * target.norm).clamp(min=1e-300)  # 0 at p = 0
            curves = {"attention": attention, "norm": norm, "cosine": along}
            if variant == "normalised":
                arrays["paths"] = path
            comparable = self.at_defaults("plain_rate" if variant == "plain" else "rate")
            for name, curve in curves.items():
                for step, value in zip(steps, curve[:, ZERO_START].tolist()):
                    known = KNOWN.get((name, variant, step)) if comparable else None
                    here = {"at": {"descent": VARIANTS[variant]}, "step": step, "note": "start at zero"}
                    yield self.row(QUANTITIES[name], value, reference=known, **here)
            yield self.row(
                "smallest cosine to p_mm over the starts",
                float(curves["cosine"][-1].min()),
                reference=(1.0, "limit"),
                at={"descent": VARIANTS[variant]},
                step=self.steps,
                n=trials,
            )
        yield Arrays({f"{NAME}/{name}": value.numpy() for name, value in arrays.items()})

    @style()
    def plot(self, result: Result) -> "Figure":
        """Plots tokens, paths of p and p_mm in the plane, and attention on the best token and the norm of p
        over 200 steps from zero.
        """
        a = arrays_of(result)
        figure, (left, middle, right) = axes(1, 3, width=7.0, height=3.0)
        _plane(left, a)
        for ax, name, title, ylim in (
            (middle, "attention", "Attention, best token", (None, 1.03)),
            (right, "norm", "Norm of p", (0, None)),
        ):
            early = {"step": tuple(range(LAST_PLOTTED_STEP + 1))}
            look = {"xlabel": "step", "ylim": ylim}
            panel = Panel(title, QUANTITIES[name], early, ("descent", PLOTTED), legend="", axes=look)
            draw_curves(ax, result, panel, x="step")
        handles = {
            label: handle for ax in (middle, right) for handle, label in zip(*ax.get_legend_handles_labels())
        }
        labels = sorted(handles, key=lambda label: handles[label].get_marker() != "None")  # curves first
        figure.legend(
            [handles[label] for label in labels], labels, loc="outside upper center", ncols=len(labels)
        )
        caption(
            figure,
            "Left: three inputs, one colour each, with stars for the best tokens, and normalised steps "
            "from six starts (black dots). $p_{mm}$ is the max-margin prompt. Middle and right: start at "
            "zero; attention is the mean over the inputs.",
        )
        return figure

    @classmethod
    def quick(cls) -> "MultiInput":
        """Returns a small version: 200 steps, a third of a second."""
        return cls(steps=200)


def _plane(ax: "Axes", a: dict[str, np.ndarray]) -> None:
    """Plots the tokens, the paths of p and the direction of p_mm."""
    for keys, tint in zip(a["keys"], INPUT_TINTS):
        ax.scatter(*keys[1:].T, s=9, color=tint, zorder=3)
        ax.scatter(*keys[0], s=80, marker="*", color=tint, edgecolors="black", linewidths=0.6, zorder=5)
    for trial in range(a["paths"].shape[1]):
        path = a["paths"][:, trial]
        ax.plot(*path.T, color=TINTS[0], linewidth=1.1, zorder=2)
        ax.plot(*path[0], marker="o", markersize=3, color="black", zorder=4)
    end = 9 * a["target"] / np.linalg.norm(a["target"])  # beyond the edge of the panel
    ax.plot(
        [0, end[0]],
        [0, end[1]],
        color="black",
        linestyle=(0, (4, 3)),
        linewidth=1,
        zorder=4,
        label="$p_{mm}$",
    )
    ax.set(
        title="Paths of p", xlabel="$p_1$", ylabel="$p_2$", xlim=(-1.9, 2.7), ylim=(-2.1, 2.5), aspect="equal"
    )
    ax.legend(loc="upper right", borderaxespad=0.1)

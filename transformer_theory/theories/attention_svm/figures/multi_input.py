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
from ....core.measurement import Arrays, Measurement
from ....core.plotting import COLOURS, axes, caption, style
from ....core.result import Result
from ....core.sources import Source
from ....maths.linalg import cosine
from ..builders import prompt
from ..dynamics import normalised_descent, plain_descent, start
from ..problem import Instance
from ..published import PROMPT_STARTS, published_prompts
from ..solvers import frobenius_max_margin
from .common import NAME, Reference, arrays_of, figure_row, mark_steps

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
INPUT_TINTS = (COLOURS["rate_reduction"], COLOURS["joma"], COLOURS["crate"])
PLOTTED = {
    "released": ("normalised steps", COLOURS["attention_svm"]),
    "plain": ("plain steps", COLOURS["scan_snap"]),
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
        """Yields rows with the published numbers, and arrays with the paths, the attention on the best token
        and the norms.
        """
        instance, scored_keys = published_prompts()
        target = frobenius_max_margin(prompt(instance.tokens, instance.optimal()))
        with_score = frobenius_max_margin(prompt(scored_keys, instance.optimal()))
        note = "the released run solves this problem, though attention does not use the score"
        reference: Reference = (PRINTED_OBJECTIVE, "printed")
        objective = with_score.norm**2 / 2
        yield figure_row(
            OBJECTIVE,
            objective,
            SOURCE,
            reference=reference,
            at={"setting": "score as third coordinate"},
            note=note,
        )
        yield figure_row(OBJECTIVE, target.norm**2 / 2, SOURCE, at={"setting": "keys in the plane"})
        agreement = float(cosine(with_score.W[:2].flatten(), target.W.flatten()))
        yield figure_row("cosine between p_mm with and without the third coordinate", agreement, None)

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
        arrays = {"steps": torch.tensor(steps), "keys": instance.tokens, "target": target.W.squeeze(-1)}
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
            arrays |= {
                f"path_{variant}": path,
                **{f"{name}_{variant}": curve for name, curve in curves.items()},
            }
            comparable = self.at_defaults("plain_rate" if variant == "plain" else "rate")
            for (name, reference_variant, step), reference in KNOWN.items():
                if reference_variant == variant and step in steps:
                    yield figure_row(
                        QUANTITIES[name],
                        float(curves[name][steps.index(step), ZERO_START]),
                        SOURCE,
                        reference=reference if comparable else None,
                        at={"setting": VARIANTS[variant]},
                        step=step,
                        note="start at zero",
                    )
            yield figure_row(
                "smallest cosine to p_mm over the starts",
                float(curves["cosine"][-1].min()),
                SOURCE,
                reference=(1.0, "limit"),
                at={"setting": VARIANTS[variant]},
                step=self.steps,
                n=trials,
            )
        yield Arrays({f"{NAME}/{name}": value.numpy() for name, value in arrays.items()})

    @style()
    def plot(self, result: Result) -> "Figure":
        """Plots tokens, paths of p and p_mm in the plane, and attention on the best token and the norm of p
        over 200 steps from zero.
        """
        a, table = (
            arrays_of(result),
            result.table.where(lambda row: row.step is not None and row.step <= LAST_PLOTTED_STEP),
        )
        figure, (left, middle, right) = axes(1, 3, width=7.0, height=3.0)
        _plane(left, a)
        early = a["steps"] <= LAST_PLOTTED_STEP
        for ax, name in ((middle, "attention"), (right, "norm")):
            for variant, (label, tint) in PLOTTED.items():
                ax.plot(a["steps"][early], a[f"{name}_{variant}"][early, ZERO_START], color=tint, label=label)
            mark_steps(ax, table.select(quantity=QUANTITIES[name]))
        middle.set(title="Attention, best token", xlabel="step", ylim=(None, 1.03))
        right.set(title="Norm of p", xlabel="step", ylim=(0, None))
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
    for trial in range(a["path_normalised"].shape[1]):
        path = a["path_normalised"][:, trial]
        ax.plot(*path.T, color=PLOTTED["released"][1], linewidth=1.1, zorder=2)
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

"""Three inputs of seven tokens with one prompt: normalised and plain descent, their attention and their norms."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch

from ....core.experiment import Experiment, setting
from ....core.measurement import Arrays, Basis, Row
from ....core.result import Result
from ....core.sources import Source
from ....maths.linalg import cosine
from ..builders import prompt
from ..dynamics import normalised_descent, plain_descent, start
from ..figures import multi_input
from ..problem import Instance
from ..solvers import frobenius_max_margin

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "attention_svm"
SOURCE = Source("tarzanagh2023maxmargin")
STARTS = (1.0, 0.5, 0.0, -0.5, -1.0, -1.5)  # the first coordinate of p; the second is 0
MIDDLE = STARTS.index(0.0)
EPS = 1e-12  # added to the norm of the gradient in the released run
KNOWN: Mapping[tuple[str, str, int], tuple[float, Basis]] = {  # of the start at zero; "released" are normalised steps with EPS
    ("attention", "released", 50): (0.9931, "recomputed"),
    ("norm", "released", 199): (19.5, "figure"),  # in single precision; 19.75 in double
    ("attention", "plain", 50): (0.8177, "recomputed"),
    ("attention", "plain", 199): (0.9719, "recomputed"),
    ("norm", "plain", 199): (3.85, "figure"),
    ("cosine", "released", 1000): (0.9999, "recomputed"),
    ("cosine", "plain", 1000): (0.985, "recomputed"),
}
HOW = {"normalised": "normalised steps", "released": f"normalised steps with eps = {EPS:.0e}", "plain": "plain steps"}
WORDS = {"attention": "attention on the best token", "norm": "norm of p", "cosine": "cosine to p_mm"}
OBJECTIVE = 0.31319  # printed by the released run, which gives the solver the keys with the score as a third coordinate


def published_inputs() -> tuple[Instance, torch.Tensor]:
    """The published example and its keys with the score as a third coordinate, ``[3, 7, 3]``. Token 0 of each input scores 1, the others
    1/2; drawn in single precision.

    Source: :cite:t:`tarzanagh2023maxmargin`.
    """
    tokens = 0.2 * torch.randn(3, 7, 3, generator=torch.Generator().manual_seed(0))
    centres = torch.tensor([[1.0, 0.0], [-1.0, 1.0], [-0.5, -0.5]])
    tokens[..., :2] += centres[[0, 1, 1, 1, 2, 2, 2]]
    tokens[..., 2] = torch.tensor([1.0] + [0.5] * 6)
    wide = tokens.double()
    keys, scores = wide[..., :2].clone(), wide[..., 2].clone()
    return Instance(keys, keys.new_ones(3, 1), scores), wide


@dataclass(frozen=True)
class MultiInput(Experiment):
    """Descent on one prompt for three inputs whose other tokens score alike: direction, attention on the best tokens, norm.

    Normalised steps (rate .1) sharpen attention at once, and the norm grows like the number of steps; plain steps (rate 1) slow down as
    the gradient vanishes, and the norm grows like its logarithm. Keys are drawn as in the released run; nothing else is drawn at random.
    """

    steps: int = setting(1000, ge=1, help="steps of descent")
    rate: float = setting(0.1, gt=0, le=1e6, help="length of a step")
    plain_rate: float = setting(1.0, gt=0, le=1e6, help="factor of the gradient in plain descent")

    name = "attention_svm.multi_input"
    sources = (SOURCE,)

    def measure(self) -> Iterator[Row | Arrays]:
        """Rows beside the published numbers; arrays with the paths, the attention on the best token and the norms."""
        instance, wide = published_inputs()
        pairs = prompt(instance.tokens, instance.optimal())
        target, three = frobenius_max_margin(pairs), frobenius_max_margin(prompt(wide, instance.optimal()))
        yield Row(
            theory=NAME,
            quantity="|p_mm|^2 / 2, score as third coordinate",
            value=three.norm**2 / 2,
            predicted=OBJECTIVE,
            basis="printed",
            source=str(SOURCE),
            note="the released run solves this problem, though attention does not see the score",
        )
        yield Row(theory=NAME, quantity="|p_mm|^2 / 2", value=target.norm**2 / 2, source=str(SOURCE), note="keys in the plane")
        cos = float(cosine(three.W[:2].flatten(), target.W.flatten()))
        yield Row(theory=NAME, quantity="cosine of the two in the plane", value=cos, note="how much the third coordinate matters")

        trials = len(STARTS)
        batch = Instance(*(v.expand(trials, *v.shape) for v in (instance.tokens, instance.query, instance.scores)))
        first = torch.tensor([[x, 0.0] for x in STARTS], dtype=torch.float64)[..., None]
        at = sorted(step for step in {*range(0, 101, 2), 199, *range(0, self.steps, 25), self.steps} if step <= self.steps)
        arrays = {"steps": torch.tensor(at), "keys": instance.tokens, "target": target.W.squeeze(-1)}
        runs = {
            "normalised": partial(normalised_descent, rate=self.rate),
            "released": partial(normalised_descent, rate=self.rate, eps=EPS),
            "plain": partial(plain_descent, rate=self.plain_rate),
        }
        for how, descend in runs.items():
            state, paths = start(batch, W=first), []
            for step in at:
                state = descend(batch, state, steps=step - state.step)
                paths.append(state.W.squeeze(-1))
            path = torch.stack(paths)  # [steps, starts, 2]
            attention = (path[:, :, None, None, :] * instance.tokens).sum(-1).softmax(-1)[..., 0].mean(-1)
            norm = path.norm(dim=-1)
            along = (path @ target.W).squeeze(-1) / (norm * target.norm).clamp(min=1e-300)  # 0 at p = 0
            curves = {"attention": attention, "norm": norm, "cosine": along}
            arrays |= {f"path_{how}": path, **{f"{name}_{how}": curve for name, curve in curves.items()}}
            same = self.at_defaults("plain_rate" if how == "plain" else "rate")
            for (name, which, step), (known, basis) in KNOWN.items():
                if which == how and step in at:
                    value, note = float(curves[name][at.index(step), MIDDLE]), "start at zero"
                    row = Row(theory=NAME, quantity=f"{WORDS[name]}, {HOW[how]}", value=value, step=step, source=str(SOURCE), note=note)
                    if same:
                        row["predicted"], row["basis"] = known, basis
                    yield row
            yield Row(
                theory=NAME,
                quantity=f"smallest cosine to p_mm over the six starts, {HOW[how]}",
                value=float(curves["cosine"][-1].min()),
                predicted=1.0,
                basis="limit",
                step=self.steps,
                source=str(SOURCE),
                note="the limit",
            )
        yield Arrays({f"{NAME}/{name}": value.numpy() for name, value in arrays.items()})

    def draw(self, result: Result) -> "Figure":
        """Tokens and paths in the plane; attention on the best token and the norm over the steps, with the published numbers."""
        return multi_input(result)

    @classmethod
    def quick(cls) -> "MultiInput":
        """200 steps: a third of a second."""
        return cls(steps=200)

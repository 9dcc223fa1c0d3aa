"""One input of three tokens in the plane: prompts from six starts, when every start leads to the best token and when some do not."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ....core.experiment import Experiment, setting
from ....core.measurement import Arrays, Row
from ....core.result import Result
from ....core.sources import Source
from ....maths.linalg import cosine
from ..builders import prompt
from ..dynamics import normalised_descent, start, trajectory
from ..figures import single_input
from ..problem import Instance
from ..solution import MaxMargin
from ..solvers import frobenius_max_margin

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "attention_svm"
SOURCE = Source("tarzanagh2023maxmargin")
KEYS = ((-0.1, 1.0), (1.0, 0.0), (0.0, 0.0))
SCORES = {"global": (1.0, 0.9, 0.9), "local": (1.0, 0.9, 0.0)}  # all but the best token score alike, or not
STARTS = (1.0, 0.5, 0.0, -0.5, -1.0, -1.5)  # the second coordinate of p; the first is 0
OBJECTIVES = (0.49505, 0.5)  # |p|^2 / 2 of the max-margin prompts of tokens 0 and 1, by a general solver
RELEASED = {  # cosines with the released settings, by plain autograd: the range over the starts, and the two that end at token 1
    ("global", 1.0): 0.9956,
    ("global", -1.5): 0.9943,
    ("local", -0.5): 0.9998,
    ("local", -1.0): 0.9996,
    ("local", -1.5): 0.9994,
}
EPS = 1e-9  # added to the norm of the gradient there


def published_input(case: str) -> Instance:
    """The published example, one trial a start: ``"global"`` or ``"local"``.

    Source: :cite:t:`tarzanagh2023maxmargin`.
    """
    keys, scores = torch.tensor([KEYS], dtype=torch.float64), torch.tensor([SCORES[case]], dtype=torch.float64)
    trials = len(STARTS)
    return Instance(keys.expand(trials, 1, 3, 2), keys.new_ones(trials, 1, 1), scores.expand(trials, 1, 3))


@dataclass(frozen=True)
class SingleInput(Experiment):
    """Normalised descent on the prompt p of one input, from six starts, against the max-margin prompts p_mm of two of its tokens.

    Global case: the tokens that are not best have the same score, and every start ends at the best token. Local case: token 1 scores
    higher than its only neighbour, so it is locally optimal, and the lowest starts end there. The paper shows the paths as pictures; the
    numbers beside ours come from its settings by another program. Nothing is drawn at random.
    """

    steps: int = setting(1000, ge=1, help="steps of descent")
    rate: float = setting(0.1, gt=0, le=1e6, help="length of a step")

    name = "attention_svm.single_input"
    sources = (SOURCE,)

    def measure(self) -> Iterator[Row | Arrays]:
        """Rows with the objectives of p_mm and, for each start, the token and the cosine to its p_mm; arrays with the paths."""
        at = sorted({*range(0, min(101, self.steps), 2), *range(0, self.steps, 25), self.steps})
        first = torch.stack([torch.zeros(len(STARTS), dtype=torch.float64), torch.tensor(STARTS, dtype=torch.float64)], 1)[..., None]
        targets = [frobenius_max_margin(prompt(torch.tensor([KEYS], dtype=torch.float64), torch.tensor([a]))) for a in (0, 1)]
        for token, (target, objective) in enumerate(zip(targets, OBJECTIVES)):
            yield Row(
                theory=NAME,
                quantity=f"|p_mm|^2 / 2, token {token}",
                value=target.norm**2 / 2,
                predicted=objective,
                basis="recomputed",
                source=str(SOURCE),
                note="objective of the max-margin problem",
            )
        arrays = {"keys": torch.tensor(KEYS), "targets": torch.stack([t.W.squeeze(-1) for t in targets]), "steps": torch.tensor(at)}
        for case in SCORES:
            instance = published_input(case)
            paths = torch.stack([s.W for s in trajectory(instance, start(instance, W=first), at=at, rate=self.rate)])
            released = normalised_descent(instance, start(instance, W=first), steps=self.steps, rate=self.rate, eps=EPS)
            yield from self._rows(case, instance, targets, paths[-1], released.W)
            arrays[f"paths_{case}"] = paths.squeeze(-1)
            arrays[f"selected_{case}"] = instance.selected(paths[-1]).squeeze(-1)
        yield Arrays({f"{NAME}/{name}": value.numpy() for name, value in arrays.items()})

    def _rows(self, case: str, instance: Instance, targets: list[MaxMargin], W: Tensor, released: Tensor) -> Iterator[Row]:
        select, same = instance.selected(W).squeeze(-1), self.at_defaults("steps", "rate")
        for trial, y in enumerate(STARTS):
            token = int(select[trial])
            if token > 1:
                continue  # not settled yet: token 2 is no neighbour of its own max-margin prompt
            where = f"{case}, start (0, {y})"
            chosen = Row(
                theory=NAME,
                quantity=f"token selected, {where}",
                value=float(token),
                step=self.steps,
                source=str(SOURCE),
                note="token 0 is the best, token 1 locally optimal in the local case",
            )
            if case == "global":
                chosen["predicted"], chosen["basis"] = 0.0, "limit"
            elif same:
                chosen["predicted"], chosen["basis"] = float(y < -0.5), "recomputed"
            yield chosen
            for how, end in (("exact gradient", W), (f"eps = {EPS:.0e} as released", released)):
                row = Row(
                    theory=NAME,
                    quantity=f"cosine to p_mm of the token, {where}, {how}",
                    value=float(cosine(end[trial].flatten(), targets[token].W.flatten())),
                    step=self.steps,
                    source=str(SOURCE),
                    note="the limit is 1" if end is W else "the released settings stop where the gradient falls below eps",
                )
                if end is W:
                    row["predicted"], row["basis"] = 1.0, "limit"
                elif same and (case, y) in RELEASED:
                    row["predicted"], row["basis"] = RELEASED[case, y], "recomputed"
                yield row

    def draw(self, result: Result) -> "Figure":
        """Tokens, the paths of p and the directions of p_mm, global and local; the angle to p_mm over the steps."""
        return single_input(result)

    @classmethod
    def quick(cls) -> "SingleInput":
        """200 steps: a third of a second."""
        return cls(steps=200)

r"""Two inputs whose max-margin prompt does not depend on the loss, and the finite part of the prompt, which does.

Input 1 has the tokens (0, 0) with score 0 and (1, 1) with score C, input 2 (0, 0) with score 0 and (1, -1) with score 1. The direction of p
is (1, 0) for every loss. Across it, p stops where the inputs pull equally: with :math:`1 - s_1 \to e^{-p_1 - p_2}` and
:math:`1 - s_2 \to e^{-p_1 + p_2}`, :math:`C|\ell'(C)| e^{-p_2} = |\ell'(1)| e^{p_2}`, so

.. math:: p_2 \;\to\; \tfrac12 \ln\frac{C\,\ell'(C)}{\ell'(1)} .

Source: the example is that of :cite:t:`tarzanagh2023maxmargin`; the limit is worked out here.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ....core.experiment import Experiment, setting
from ....core.measurement import Arrays, Row
from ....core.result import Result
from ....core.sources import Source
from ..dynamics import normalised_descent, start
from ..dynamics.losses import LINEAR, LOGISTIC, Loss
from ..figures import loss_comparison
from ..problem import Instance

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "attention_svm"
SOURCE = Source("tarzanagh2023maxmargin")
SCORES = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 100.0)  # C
EPS = 1e-9  # added to the norm of the gradient in the released run


def published_pair(scores: tuple[float, ...] = SCORES) -> Instance:
    """The published example, one trial for each score C.

    Source: :cite:t:`tarzanagh2023maxmargin`.
    """
    trials, keys = len(scores), torch.tensor([[[0.0, 0.0], [1.0, 1.0]], [[0.0, 0.0], [1.0, -1.0]]], dtype=torch.float64)
    gamma = torch.zeros(trials, 2, 2, dtype=torch.float64)
    gamma[:, 0, 1], gamma[:, 1, 1] = torch.tensor(scores, dtype=torch.float64), 1.0
    return Instance(keys.expand(trials, 2, 2, 2), keys.new_ones(trials, 2, 1), gamma)


def limit(scores: Tensor, *, loss: Loss) -> Tensor:
    r""":math:`\tfrac12 \ln(C \ell'(C) / \ell'(1))` for each score C ``[k]``.

    Source: module docstring.
    """
    return 0.5 * (scores * loss.slope(scores) / loss.slope(torch.ones_like(scores))).log()


@dataclass(frozen=True)
class LossComparison(Experiment):
    """Normalised descent on a prompt with the losses -x and log(1 + e^-x), for scores C of the first input from 1 to 100.

    Both send p in the direction (1, 0); across it p has a limit that depends on the loss, known in closed form. The released run, which
    adds 1e-9 to the norm of the gradient, stops short of it for the logistic loss and C = 100, where the limit is -47.04.
    Nothing is drawn at random.
    """

    steps: int = setting(1000, ge=1, help="steps of descent")
    rate: float = setting(0.1, gt=0, le=1e6, help="length of a step")

    name = "attention_svm.loss_comparison"
    sources = (SOURCE,)

    def measure(self) -> Iterator[Row | Arrays]:
        """A row for each loss and score with the second coordinate of p beside its limit; arrays with the paths."""
        instance, scores = published_pair(), torch.tensor(SCORES, dtype=torch.float64)
        at = sorted({*range(0, min(161, self.steps), 2), *range(0, self.steps, 20), self.steps})
        arrays = {"steps": torch.tensor(at), "scores": scores}
        for loss in (LINEAR, LOGISTIC):
            state, path = start(instance), []
            for step in at:
                state = normalised_descent(instance, state, steps=step - state.step, rate=self.rate, loss=loss)
                path.append(state.W.squeeze(-1))
            ends, limits = path[-1][:, 1], limit(scores, loss=loss)
            for C, value, expected in zip(SCORES, ends.tolist(), limits.tolist()):
                yield Row(
                    theory=NAME,
                    quantity=f"second coordinate of p, loss {loss.name}, C = {C:g}",
                    value=value,
                    predicted=expected,
                    basis="limit",
                    step=self.steps,
                    source=str(SOURCE),
                    note="the limit in closed form",
                )
            released = normalised_descent(instance, start(instance), steps=self.steps, rate=self.rate, loss=loss, eps=EPS)
            yield Row(
                theory=NAME,
                quantity=f"second coordinate of p, loss {loss.name}, C = 100, eps = {EPS:.0e} as released",
                value=float(released.W[-1, 1, 0]),
                predicted=float(limits[-1]),
                basis="limit",
                step=self.steps,
                source=str(SOURCE),
                note="the released settings stop where the gradient falls below eps",
            )
            arrays |= {f"path_{loss.name}": torch.stack(path), f"limit_{loss.name}": limits, f"released_{loss.name}": released.W[:, 1, 0]}
        yield Arrays({f"{NAME}/{name}": value.numpy() for name, value in arrays.items()})

    def draw(self, result: Result) -> "Figure":
        """Paths of p for both losses, and where its second coordinate ends against C, over the closed form."""
        return loss_comparison(result)

    @classmethod
    def quick(cls) -> "LossComparison":
        """200 steps: a third of a second."""
        return cls(steps=200)

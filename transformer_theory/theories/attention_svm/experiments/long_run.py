"""Normalised descent for a million steps, beside the same descent by automatic differentiation."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ....core.experiment import RandomExperiment, setting
from ....core.measurement import Arrays, Row
from ....core.result import Result
from ....core.sources import Source
from ..builders import constraints
from ..claims.rate import direction_error
from ..dynamics import start, trajectory
from ..figures import long_run
from ..problem import Instance, cross_attention
from ..solvers import frobenius_max_margins

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "attention_svm"
SOURCE = Source("vasudeva2025implicit")
# Medians of 1 - cosine at those sizes, by a separate implementation of the same descent over other draws of the data.
KNOWN = {30: 0.41, 100: 0.25, 300: 0.044, 1000: 4.7e-3, 3000: 6.4e-4, 10_000: 6.4e-5}
EPS = torch.finfo(torch.float64).eps
NAIVE = {"naive": 0.0, "naive_eps": EPS}


def by_differentiation(instance: Instance, *, at: list[int], rate: float, eps: float) -> list[Tensor]:
    """W at the given steps of normalised descent from W = 0 as one would write it down: softmax, loss, gradient by autograd."""
    W, found = start(instance).W, []
    for step in range(at[-1] + 1):
        if step in at:
            found.append(W)
        W = W.detach().requires_grad_()
        attention = (instance.tokens @ (instance.query @ W.mT)[..., None]).squeeze(-1).softmax(-1)
        loss = torch.nn.functional.softplus(-(attention * instance.scores).sum(-1)).mean(-1).sum()
        (gradient,) = torch.autograd.grad(loss, W)
        W = W.detach() - rate * gradient / (torch.linalg.matrix_norm(gradient)[..., None, None] + eps)
    return found


def spread_out(steps: int) -> list[int]:
    """About twelve steps a decade, 1, 3, 10, 30, ... among them, and the last."""
    decades = range(math.ceil(math.log10(max(steps, 10))))
    shown = {f * 10**k for k in decades for f in (1, 3)}
    return sorted({s for s in shown | {round(10 ** (k / 12)) for k in range(12 * len(decades))} if s <= steps} | {steps})


@dataclass(frozen=True)
class LongRun(RandomExperiment):
    """Normalised descent on W from W = 0 for a million steps, eight random problems (n = 6, T = 8, d = 10) at once.

    The direction comes closer to the max-margin solution of the selected tokens by 1/t, so 1 - cosine falls like 1/t^2, without end.
    Written down with softmax and autograd, the same descent ends near step 1,000: attention saturates, the gradient is rounding error,
    and normalising makes a full step of it. Adding the rounding unit to the norm, as the released runs do, stops it there instead.
    One core takes a minute or two.
    """

    inputs: int = setting(6, ge=1, help="number n of inputs")
    tokens: int = setting(8, ge=2, help="number T of tokens of an input")
    dim: int = setting(10, ge=2, help="dimension d of the tokens")
    trials: int = setting(8, ge=1, help="random problems")
    steps: int = setting(1_000_000, ge=2, help="steps of descent")
    naive_steps: int = setting(20_000, ge=1, help="steps of descent by autograd")
    rate: float = setting(0.1, gt=0, le=10, help="length of a step")

    name = "attention_svm.long_run"
    sources = (SOURCE,)

    def measure(self) -> Iterator[Row | Arrays]:
        """Rows with the slope, the medians beside known ones, and the best and last of autograd; arrays with every trial's error."""
        instance = cross_attention(inputs=self.inputs, tokens=self.tokens, dim=self.dim, trials=self.trials, generator=self.generator())
        at, early = spread_out(self.steps), spread_out(self.naive_steps)
        states = list(trajectory(instance, start(instance), at=at, rate=self.rate))
        select = instance.selected(states[-1].W)
        targets = frobenius_max_margins(constraints(instance.tokens, instance.query, select))
        kept = targets.solved
        error = torch.stack([direction_error(state.W, targets.W)[kept] for state in states])
        naive = {
            name: torch.stack(
                [direction_error(W, targets.W)[kept] for W in by_differentiation(instance, at=early, rate=self.rate, eps=eps)]
            )
            for name, eps in NAIVE.items()
        }
        yield from self._rows(at, error)
        for name, words in (("naive", "by autograd"), ("naive_eps", "by autograd, eps in the norm")):
            median = (naive[name] ** 2 / 2).median(-1).values
            best = int(median.argmin())
            yield self._row(f"smallest 1 - cosine, {words}", float(median[best]), "median over the problems", step=early[best])
            yield self._row(f"1 - cosine at the end, {words}", float(median[-1]), "median over the problems", step=early[-1])
        arrays = {"steps": torch.tensor(at), "error": error, "naive_steps": torch.tensor(early), **naive}
        yield Arrays({f"{NAME}/{name}": value.numpy() for name, value in arrays.items()})

    def _rows(self, at: list[int], error: Tensor) -> Iterator[Row]:
        median = (error**2 / 2).median(-1).values
        same = self.at_defaults("inputs", "tokens", "dim", "trials", "rate")
        for step in sorted({*KNOWN, at[-1]} & set(at)):
            note, beside = "median over the problems", {}
            if same and step in KNOWN:
                note += "; beside it that of a separate implementation over other draws of the data"
                beside = {"predicted": KNOWN[step], "basis": "recomputed"}
            yield self._row("1 - cosine to the max-margin solution", float(median[at.index(step)]), note, step=step, **beside)
        steps = torch.tensor(at, dtype=torch.float64)
        far = steps >= self.steps / 100
        x, y = steps[far].log(), error[far].median(-1).values.log()
        slope = float(((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum())
        note = "least squares over the last two decades of steps; -1 means an error like 1/t"
        yield self._row("slope of the logarithm of the direction error", slope, note, step=at[-1], predicted=-1.0, basis="limit")

    def _row(self, quantity: str, value: float, note: str, **where) -> Row:
        return Row(theory=NAME, quantity=quantity, value=value, source=str(SOURCE), note=note, **where)

    def draw(self, result: Result) -> "Figure":
        """1 - cosine against the step, ours and by autograd; and the error times the step, which levels off."""
        return long_run(result)

    @classmethod
    def quick(cls) -> "LongRun":
        """3,000 steps, 1,000 by autograd: a second."""
        return cls(trials=4, steps=3000, naive_steps=1500)

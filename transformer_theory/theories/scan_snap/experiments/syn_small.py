"""The paper's small synthetic training."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from ....citations import Source
from ....claims import Evidence
from ....experiment import RandomExperiment, Result, parameter
from ....rows import Arrays, Row, finding
from ..dynamics import Weights, gradient_descent, sampled
from ..figures import syn_small
from ..problem import synthetic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME, PAPER = "scan_snap", "tian2023scan"


@dataclass(frozen=True)
class SynSmall(RandomExperiment):
    """The paper's Syn-Small: two classes with a query each, ten common and ten distinct tokens, gradient descent with momentum."""

    batch: int = parameter(128, at_least=1, says="sequences a step")
    length: int = parameter(128, at_least=2, says="tokens of a sequence, with the query")
    steps: int = parameter(100, at_least=1, says="steps of training")
    eta_y: float = parameter(1.0, at_least=1e-6, at_most=1e6, says="learning rate of the decoder")
    eta_z: float = parameter(1.0, at_least=1e-6, at_most=1e6, says="learning rate of attention")
    momentum: float = parameter(0.9, at_least=0, below=1, says="of gradient descent")
    seeds: int = parameter(3, at_least=1, says="independent runs")

    name: ClassVar[str] = "scan_snap.syn_small"
    sources: ClassVar[tuple[Source, ...]] = (Source(PAPER, "Fig. 4"),)

    @classmethod
    def quick(cls) -> "SynSmall":
        return cls(steps=20, seeds=2)

    def measure(self) -> Iterator[Row | Arrays]:
        # 10 common and 2 x 10 distinct tokens, 2 queries and 2 next tokens: M = 34
        classes, generator = synthetic(2), self.generator()
        common = classes.common()
        keep = [step for step in (0, 2, 4, 6, 8, 10, 20, 50) if step <= self.steps]
        attended, losses = [], []
        for run in range(self.seeds):
            start = Weights.zeros(classes.tokens, classes.queries, classes.classes, classes.vocab_size)
            batches = sampled(classes, self.batch, context=self.length - 1, generator=generator)
            rates = {"eta_y": self.eta_y, "eta_z": self.eta_z, "momentum": self.momentum}
            path = gradient_descent(start, batches, steps=self.steps, keep=keep, **rates)
            c = classes.attended(path.attention)
            attended.append(c)
            losses.append(path.loss)
            for step in (0, self.steps - 1):
                yield Row(theory=NAME, quantity="loss", value=float(path.loss[step]), step=step, seed=run)
            before, after = (float(c[i, :, common].sum(-1).mean()) for i in (0, -1))
            yield finding(
                NAME,
                "attention to common tokens after training",
                Evidence(after, before, "<=", in_assumptions=False),
                source=Source(PAPER, "Fig. 4"),
                seed=run,
                note="exact gradient descent with momentum, which the theory does not have; the line is attention before training",
            )
            own = torch.where(classes.distinct(), c[-1], torch.zeros_like(c[-1]))
            top = float(own.max(1).values.mean())
            yield Row(theory=NAME, quantity="attention to the likeliest distinct token", value=top, seed=run)
        shown = torch.tensor(sorted({0, self.steps} | set(keep)))
        yield Arrays(
            {
                f"{NAME}/loss": torch.stack(losses, dim=1).numpy(),
                f"{NAME}/steps": shown.numpy(),
                f"{NAME}/attended": attended[0].numpy(),
            }
        )

    def draw(self, result: Result) -> "Figure":
        return syn_small(result)

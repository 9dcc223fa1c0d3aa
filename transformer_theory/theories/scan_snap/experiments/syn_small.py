"""The paper's small synthetic trainings: two classes with a query each, ten common and ten distinct tokens, from zero.

The released log of the loss is one run of other random numbers (drawn sequence by sequence, in single precision), so it is compared with
the range of ours: the first loss is ln M, the last ones are a plateau, and in between the loss falls by five orders of magnitude.

Source: :cite:t:`tian2023scan`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from ....core.claims import Evidence
from ....core.experiment import RandomExperiment, setting
from ....core.measurement import Arrays, Row, finding
from ....core.result import Result
from ....core.sources import Source
from ..dynamics import Adam, HeavyBall, Trajectory, Weights, gradient_descent, sampled
from ..dynamics.optimisers import Optimiser
from ..figures import adam, syn_small
from ..problem import SequenceClasses, synthetic
from ..published import LOSS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME, PAPER = "scan_snap", "tian2023scan"
SHOWN = (0, 2, 4, 6, 8, 10, 20, 50)  # steps whose attention is kept


@dataclass(frozen=True)
class SynSmall(RandomExperiment):
    """The paper's Syn-Small by gradient descent with momentum, with several learning rates of the decoder."""

    batch: int = setting(128, ge=1, help="sequences a step")
    length: int = setting(128, ge=2, help="tokens of a sequence, with the query")
    steps: int = setting(100, ge=1, help="steps of training")
    eta_y: tuple[float, ...] = setting((1.0, 10.0), ge=1e-6, le=1e6, help="learning rates of the decoder")
    eta_z: float = setting(1.0, ge=1e-6, le=1e6, help="learning rate of attention")
    momentum: float = setting(0.9, ge=0, lt=1, help="of gradient descent")
    seeds: int = setting(10, ge=1, help="independent runs")

    name: ClassVar[str] = "scan_snap.syn_small"
    sources: ClassVar[tuple[Source, ...]] = (Source(PAPER, "Fig. 4"),)

    @classmethod
    def quick(cls) -> "SynSmall":
        return cls(steps=20, seeds=2)

    def measure(self) -> Iterator[Row | Arrays]:
        """Losses beside the released log, and where attention ends, means over the seeds."""
        classes = synthetic(2)
        path = _train(
            classes,
            [eta_y for eta_y in self.eta_y for _ in range(self.seeds)],
            [self.eta_z] * (len(self.eta_y) * self.seeds),
            seeds=self._streams() * len(self.eta_y),
            optimiser=HeavyBall(self.momentum),
            batch=self.batch,
            length=self.length,
            steps=self.steps,
        )
        shape = (len(self.eta_y), self.seeds)
        loss, c = path.loss.unflatten(1, shape), classes.attended(path.attention).unflatten(1, shape)
        for i, eta_y in enumerate(self.eta_y):
            yield from self._losses(eta_y, loss[:, i])
            yield from _ends(classes, c[:, i], f"eta_Y = {eta_y:g}", "Fig. 4")
        log = LOSS if self._as_published() else {}
        yield Arrays(
            {
                f"{NAME}/loss": loss.numpy(),
                f"{NAME}/published_steps": np.array(list(log), dtype=int),
                f"{NAME}/published_loss": np.array(list(log.values()), dtype=float),
                f"{NAME}/eta_y": np.array(self.eta_y),
                f"{NAME}/steps": path.steps.numpy(),
                f"{NAME}/attended": c[:, :, 0, 0, classes.conditional[0] > 0].numpy(),
            }
        )

    def _losses(self, eta_y: float, loss: torch.Tensor) -> Iterator[Row]:
        for step in sorted({*(s for s in LOSS if s < self.steps), self.steps - 1}):
            low, high = float(loss[step].min()), float(loss[step].max())
            note = f"nats; mean of {self.seeds} runs, {low:.3g} to {high:.3g}; the log is one run of other random numbers"
            row = Row(theory=NAME, quantity=f"loss, eta_Y = {eta_y:g}", value=float(loss[step].mean()), step=step, note=note)
            if eta_y == 1.0 and step in LOSS and self._as_published():
                row["predicted"], row["basis"] = LOSS[step], "printed"
            yield row

    def _as_published(self) -> bool:
        return self.at_defaults("batch", "length", "eta_z", "momentum")

    def _streams(self) -> list[int]:
        return torch.randint(2**31, (self.seeds,), generator=self.generator()).tolist()

    def draw(self, result: Result) -> "Figure":
        """The loss, and attention of the first class in one run, a panel a learning rate."""
        return syn_small(result)


@dataclass(frozen=True)
class SynSmallAdam(RandomExperiment):
    """Syn-Small by Adam, both matrices at the same learning rate: which distinct tokens keep attention depends on it."""

    rates: tuple[float, ...] = setting((0.1, 0.5, 1.0), gt=0, le=100, help="learning rates of both matrices")
    batch: int = setting(128, ge=1, help="sequences a step")
    length: int = setting(128, ge=2, help="tokens of a sequence, with the query")
    steps: int = setting(100, ge=1, help="steps of training")
    seeds: int = setting(10, ge=1, help="independent runs")

    name: ClassVar[str] = "scan_snap.syn_small_adam"
    sources: ClassVar[tuple[Source, ...]] = (Source(PAPER, "Fig. 5"),)

    @classmethod
    def quick(cls) -> "SynSmallAdam":
        return cls(steps=20, seeds=2)

    def measure(self) -> Iterator[Row | Arrays]:
        """Where attention ends, means over the seeds."""
        classes = synthetic(2)
        rates = [rate for rate in self.rates for _ in range(self.seeds)]
        streams = torch.randint(2**31, (self.seeds,), generator=self.generator()).tolist()
        sizes = {"batch": self.batch, "length": self.length, "steps": self.steps}
        path = _train(classes, rates, rates, seeds=streams * len(self.rates), optimiser=Adam(), **sizes)
        c = classes.attended(path.attention).unflatten(1, (len(self.rates), self.seeds))
        for i, rate in enumerate(self.rates):
            yield from _ends(classes, c[:, i], f"Adam, eta = {rate:g}", "Fig. 5")
        yield Arrays(
            {
                f"{NAME}/rates": np.array(self.rates),
                f"{NAME}/steps": path.steps.numpy(),
                f"{NAME}/attended": c[:, :, 0, 0, classes.conditional[0] > 0].numpy(),
            }
        )

    def draw(self, result: Result) -> "Figure":
        """Attention of the first class in one run, a panel a learning rate."""
        return adam(result)


def _train(
    classes: SequenceClasses,
    eta_y: list[float],
    eta_z: list[float],
    *,
    seeds: list[int],
    optimiser: Optimiser,
    batch: int,
    length: int,
    steps: int,
) -> Trajectory:
    """All runs beside each other, from zero."""
    return gradient_descent(
        Weights.zeros(classes.tokens, classes.queries, classes.classes, classes.vocab_size, runs=(len(seeds),)),
        sampled(classes, batch, context=length - 1, seeds=seeds),
        steps=steps,
        eta_y=torch.tensor(eta_y, dtype=torch.float64),
        eta_z=torch.tensor(eta_z, dtype=torch.float64),
        optimiser=optimiser,
        keep=SHOWN,
    )


def _ends(classes: SequenceClasses, c: torch.Tensor, setting: str, figure: str) -> Iterator[Row]:
    """What attention ``[kept, seeds, K, S]`` gives to common tokens, to the likeliest distinct one, and how many of those gain."""
    source, n = Source(PAPER, figure), c.shape[1]
    common = c[..., classes.common()].sum(-1).mean(-1)
    yield finding(
        NAME,
        f"attention to common tokens after training, {setting}",
        Evidence(float(common[-1].mean()), float(common[0].mean()), "<=", covered=False),
        source=source,
        note=f"mean of {n} runs; an optimiser that the theory does not have; the line is attention before training",
    )
    before, after = (c[i][:, classes.distinct()] for i in (0, -1))
    top = float(after.unflatten(-1, (classes.classes, -1)).amax(-1).mean())
    gain = float((after > before).double().mean())
    for quantity, value in (("attention to the likeliest distinct token", top), ("share of distinct tokens that gained attention", gain)):
        yield Row(theory=NAME, quantity=f"{quantity}, {setting}", value=value, source=str(source), note=f"mean of {n} runs")

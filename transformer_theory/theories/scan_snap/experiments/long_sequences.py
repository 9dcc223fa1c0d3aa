"""How long sequences must be for training to follow the population: gradient descent on finite sequences against the exact flow.

Source: :cite:t:`tian2023scan`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from ....core.experiment import RandomExperiment, setting, sweep
from ....core.measurement import Arrays, Row
from ....core.result import Result
from ....core.sources import Source
from ..dynamics import Weights, gradient_descent, sampled
from ..figures import long_sequences
from ..flow import exact_flow
from ..problem import synthetic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME, PAPER = "scan_snap", "tian2023scan"
KEPT = 40  # times at which the logits are kept


@dataclass(frozen=True)
class LongSequences(RandomExperiment):
    """Syn-Small by plain gradient descent: the logits of the likeliest distinct and of a common token, by length of the sequences."""

    lengths: tuple[int, ...] = setting((128, 1024, 16384), ge=2, le=10**9, help="tokens of a sequence, with the query")
    steps: int = setting(1000, ge=1, help="steps of training")
    batch: int = setting(128, ge=1, help="sequences a step")
    eta_y: float = setting(1.0, ge=1e-3, le=100, help="learning rate of the decoder")
    eta_z: float = setting(1.0, ge=1e-3, le=100, help="learning rate of attention")
    seeds: int = setting(5, ge=1, help="independent runs")

    name: ClassVar[str] = "scan_snap.long_sequences"
    sources: ClassVar[tuple[Source, ...]] = (Source(PAPER, "Lemma 2"),)

    @classmethod
    def quick(cls) -> "LongSequences":
        return cls(lengths=(32, 1024), steps=60, seeds=2)

    def measure(self) -> Iterator[Row | Arrays]:
        """Two rows a length, means over seeds, with the exact flow as the limit."""
        classes = synthetic(2)
        kept = sorted({int(t) for t in np.geomspace(1, self.steps, KEPT)})
        flow = exact_flow(classes, torch.tensor(kept, dtype=torch.float64), eta_y=self.eta_y, eta_z=self.eta_z).logits
        streams = torch.randint(2**31, (self.seeds,), generator=self.generator()).tolist()
        shared = {"steps": self.steps, "batch": self.batch, "eta_y": self.eta_y, "eta_z": self.eta_z, "seeds": streams, "kept": kept}
        found = np.stack(sweep(logits, [{"length": length, **shared} for length in self.lengths]))  # [lengths, kept, runs, 2]
        limit = _read(flow)  # [kept, 2]
        for length, z in zip(self.lengths, found[:, -1]):
            for i, token in enumerate(("likeliest distinct token", "common token")):
                yield Row(
                    theory=NAME,
                    quantity=f"logit of the {token}, T = {length}",
                    value=float(z[:, i].mean()),
                    predicted=float(limit[-1, i]),
                    basis="limit",
                    step=self.steps,
                    source=str(Source(PAPER, "Lemma 2")),
                    note=f"mean of {self.seeds} runs, {z[:, i].min():.4f} to {z[:, i].max():.4f}; predicted: exact population flow",
                )
        yield Arrays(
            {
                f"{NAME}/lengths": np.array(self.lengths),
                f"{NAME}/steps": np.array(kept),
                f"{NAME}/logits": found.mean(2),
                f"{NAME}/limit": limit,
            }
        )

    def draw(self, result: Result) -> "Figure":
        """Both logits over the steps, a curve a length; the distance from the flow at the end."""
        return long_sequences(result)


def logits(*, length: int, steps: int, batch: int, eta_y: float, eta_z: float, seeds: list[int], kept: list[int]) -> np.ndarray:
    """Logits of the likeliest distinct and of a common token of Syn-Small at the kept steps, ``[kept, runs, 2]``."""
    classes = synthetic(2)
    start = Weights.zeros(classes.tokens, classes.queries, classes.classes, classes.vocab_size, runs=(len(seeds),))
    batches = sampled(classes, batch, context=length - 1, seeds=seeds)
    return _read(gradient_descent(start, batches, steps=steps, eta_y=eta_y, eta_z=eta_z, keep=kept).attention[1:])


def _read(z: torch.Tensor) -> np.ndarray:
    """``[*runs, Q, S] -> [*runs, 2]``, means over the two classes of Syn-Small and its common tokens."""
    return torch.stack([(z[..., 0, 19] + z[..., 1, 29]) / 2, z[..., :10].mean((-1, -2))], -1).numpy()

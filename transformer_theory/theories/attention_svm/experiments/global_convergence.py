"""How often descent from W = 0 selects the best token of every input, against the dimension."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ....core.experiment import Experiment, setting, sweep
from ....core.measurement import Arrays, Row
from ....core.result import Result
from ....core.sources import Source
from ....core.statistics import clopper_pearson
from ..dynamics import normalised_descent, start
from ..figures import global_convergence
from ..problem import Instance
from ..published import published_instances

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "attention_svm"
SOURCE = Source("tarzanagh2023transformers")
DIMS = (2, 5, 10, 20, 50, 100)
KNOWN = {  # (n, T): shares at DIMS of an independent computation with these settings
    (5, 5): (0.06, 0.69, 0.91, 0.98, 1.00, 0.99),
    (10, 5): (0.0, 0.21, 0.59, 0.86, 0.99, 0.99),
    (15, 5): (0.0, 0.03, 0.28, 0.78, 0.97, 1.00),
    (5, 10): (0.0, 0.41, 0.72, 0.83, 0.93, 0.98),
    (5, 15): (0.01, 0.37, 0.60, 0.70, 0.85, 0.92),
}


def selects_best(instance: Instance, *, steps: int, rate: float, threshold: float) -> np.ndarray:
    """Trials in which descent from W = 0 gives all but ``threshold`` of the attention of each input to its best token."""
    end = normalised_descent(instance, start(instance), steps=steps, rate=rate)
    attention = instance.attention(end.W)
    best = attention.gather(-1, instance.optimal()[..., None]).squeeze(-1)
    return (best > 1 - threshold).all(-1).numpy()


def count_best(inputs: int, tokens: int, dim: int, trials: int, steps: int, rate: float, threshold: float) -> int:
    """Of the first ``trials`` published seeds, those in which descent selects the best token of every input."""
    instance = published_instances(range(trials), inputs=inputs, tokens=tokens, dim=dim)
    return int(selects_best(instance, steps=steps, rate=rate, threshold=threshold).sum())


@dataclass(frozen=True)
class GlobalConvergence(Experiment):
    """Share of random problems in which normalised descent from W = 0 selects the best token of every input, against the dimension.

    The paper's claim is the trend: the share goes to one as the dimension grows, and falls with the number of inputs and of tokens. On the
    left the inputs vary at T = 5, on the right the tokens at n = 5. A token is selected if it gets all but 0.001 of the attention. Data are
    drawn as in the paper's other figures (seeds 0 to 99); its settings for this one are not known to us, so the numbers beside ours are
    those of another program with these settings.
    """

    inputs: tuple[int, ...] = setting((5, 10, 15), ge=1, help="numbers n of inputs")
    tokens: tuple[int, ...] = setting((5, 10, 15), ge=2, help="numbers T of tokens of an input")
    dims: tuple[int, ...] = setting(DIMS, ge=1, help="dimensions d of the tokens")
    common: int = setting(5, ge=2, help="n where T varies, and T where n varies")
    trials: int = setting(100, ge=1, help="random problems for each size")
    steps: int = setting(1000, ge=1, help="steps of descent")
    rate: float = setting(0.1, gt=0, le=1e6, help="length of a step")
    threshold: float = setting(1e-3, gt=0, lt=1, help="attention that a selected token may leave to the others")

    name = "attention_svm.global_convergence"
    sources = (SOURCE,)

    def measure(self) -> Iterator[Row | Arrays]:
        """A row for each (n, T, d); arrays with the shares and their 95 % bands."""
        pairs = list(dict.fromkeys([*((n, self.common) for n in self.inputs), *((self.common, T) for T in self.tokens)]))
        kept = {"trials": self.trials, "steps": self.steps, "rate": self.rate, "threshold": self.threshold}
        settings = [{"inputs": n, "tokens": T, "dim": d, **kept} for n, T in pairs for d in self.dims]
        counts = np.array(sweep(count_best, settings)).reshape(len(pairs), len(self.dims))
        low, high = clopper_pearson(counts, self.trials)
        for at, (n, T) in enumerate(pairs):
            same = self.at_defaults("trials", "steps", "rate", "threshold")
            known = dict(zip(DIMS, KNOWN.get((n, T), ()))) if same else {}
            for column, d in enumerate(self.dims):
                row = Row(
                    theory=NAME,
                    quantity=f"share that selects every best token, n={n} T={T} d={d}",
                    value=float(counts[at, column] / self.trials),
                    step=self.steps,
                    source=str(SOURCE),
                    note=f"95 % interval {low[at, column]:.3f} to {high[at, column]:.3f}, {self.trials} trials",
                )
                if d in known:
                    row["predicted"], row["basis"] = known[d], "recomputed"
                yield row
        yield Arrays(
            {
                f"{NAME}/pairs": np.array(pairs),
                f"{NAME}/dims": np.array(self.dims),
                f"{NAME}/share": counts / self.trials,
                f"{NAME}/low": low,
                f"{NAME}/high": high,
            }
        )

    def draw(self, result: Result) -> "Figure":
        """Share against dimension, one curve a number of inputs (left) and of tokens (right)."""
        return global_convergence(result, self.common)

    @classmethod
    def quick(cls) -> "GlobalConvergence":
        """Ten trials, few sizes: a second."""
        return cls(inputs=(3, 5), tokens=(3, 5), dims=(2, 5, 20), trials=10, steps=400)

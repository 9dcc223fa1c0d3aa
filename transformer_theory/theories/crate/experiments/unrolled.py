"""The three forms of compression, :cite:t:`yu2023white`, on tokens that satisfy the theory's model, or break it by noise."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ....claims import Evidence
from ....data.synthetic import subspace_mixture
from ....experiment import RandomExperiment, Result, parameter
from ....plotting import axes
from ....rows import Arrays, Row, finding
from ..attention import coordinates, expansion
from ..figures import rate_panel
from ..unrolled import PAPER, SIGN, compress, forms, guaranteed

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Unrolled(RandomExperiment):
    """Exact, paper's and tied residual steps on a mixture of orthogonal subspaces whose bases are known.

    The tokens live in classes * rank dimensions, so the bases are complete. The paper's step needs beta = rank / (tokens eps^2) small.
    """

    sequences: int = parameter(128, at_least=1, says="number of sequences")
    tokens: int = parameter(32, at_least=1, says="number of tokens of a sequence")
    classes: int = parameter(4, at_least=1, says="number of subspaces")
    rank: int = parameter(6, at_least=1, says="dimension of each subspace")
    noise: float = parameter(
        0.1, at_least=0, at_most=1e3, says="standard deviation of what lies outside the subspaces, relative to the tokens"
    )
    eps: float = parameter(2.0, at_least=1e-3, at_most=1e3, says="distortion ε; squared inside")
    layers: int = parameter(12, at_least=1, says="steps")

    name = "crate.unrolled"
    sources = (PAPER, SIGN)

    def measure(self) -> Iterator[Row | Arrays]:
        mixture = subspace_mixture(
            self.sequences,
            seq=self.tokens,
            dim=self.classes * self.rank,
            classes=self.classes,
            rank=self.rank,
            noise=self.noise,
            generator=self.generator(),
        )
        tokens, bases = mixture.data.tokens, mixture.bases
        radius = expansion(bases, n=self.tokens, eps=self.eps) * float(torch.linalg.matrix_norm(coordinates(tokens, bases), 2).max()) ** 2
        runs = {
            name: compress(tokens, bases, step, eps=self.eps, layers=self.layers)
            for name, step in forms(bases, n=self.tokens, eps=self.eps).items()
        }
        small = radius < 1
        for name, source in (("exact", PAPER), ("paper", PAPER), ("tied residual", SIGN)):
            changes = runs[name].changes
            falls = Evidence(float(changes.max()), 0.0, "<=", in_assumptions=small or name == "exact")
            rises = Evidence(float(changes.min()), 0.0, ">=", in_assumptions=small)
            yield finding(
                "crate",
                f"{'smallest' if source is SIGN else 'largest'} change of R^c in a step, {name}",
                rises if source is SIGN else falls,
                source=source,
                note=f"over the first R^c, {self.layers} steps; the Neumann series expands in {radius:.2g}",
            )
            for step, rate in enumerate(runs[name].rates.tolist()):
                yield Row(theory="crate", quantity=f"R^c, {name}", value=rate, layer=step)
        arrays = {f"crate/rate/{name}": run.rates.numpy() for name, run in runs.items()}
        yield Arrays({**arrays, "crate/rate/guaranteed": guaranteed(runs["exact"], bases, eps=self.eps).numpy()})

    def draw(self, result: Result) -> "Figure":
        figure, (ax,) = axes(width=5.0)
        rate_panel(ax, result.arrays)
        return figure

    @classmethod
    def quick(cls) -> "Unrolled":
        return cls(sequences=16, layers=6)

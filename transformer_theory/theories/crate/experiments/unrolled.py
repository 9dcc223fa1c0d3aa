"""The three forms of compression, :cite:t:`yu2023white`, on tokens that satisfy the theory's model, or break it by noise."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ....core.claims import Evidence
from ....core.experiment import RandomExperiment, setting
from ....core.measurement import Arrays, Row, finding
from ....core.plotting import axes
from ....core.result import Result
from ....data.synthetic import subspace_mixture
from ....models.crate.sparse_coding import curvature, fista, fista_steps, ista, lasso
from ....models.crate.subspace_attention import coordinates, expansion
from ..figures.unrolled import gap_panel, rate_panel
from ..unrolled import LAM, LASSO, PAPER, SIGN, compress, forms, guaranteed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CODED = 64  # tokens whose sparse codes are followed


@dataclass(frozen=True)
class Unrolled(RandomExperiment):
    """Exact, paper's and tied residual steps on a mixture of orthogonal subspaces whose bases are known.

    The tokens live in classes * rank dimensions, so the bases are complete. The paper's step needs beta = rank / (tokens eps^2) small.
    Tokens are then coded in D = [U, -U], whose optimal code is known: ISTA and FISTA from zero against it, step by step.
    """

    sequences: int = setting(128, ge=1, help="number of sequences")
    tokens: int = setting(32, ge=1, help="number of tokens of a sequence")
    classes: int = setting(4, ge=1, help="number of subspaces")
    rank: int = setting(6, ge=1, help="dimension of each subspace")
    noise: float = setting(0.1, ge=0, le=1e3, help="standard deviation of what lies outside the subspaces, relative to the tokens")
    eps: float = setting(2.0, ge=1e-3, le=1e3, help="distortion ε; squared inside")
    layers: int = setting(12, ge=1, help="steps")
    codings: int = setting(24, ge=1, help="steps of ISTA and FISTA")

    name = "crate.unrolled"
    sources = (PAPER, SIGN, LASSO)

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
            falls = Evidence(float(changes.max()), 0.0, "<=", covered=small or name == "exact")
            rises = Evidence(float(changes.min()), 0.0, ">=", covered=small)
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
        yield from self._coded(tokens.flatten(0, 1)[:CODED], bases)

    def _coded(self, tokens: Tensor, bases: Tensor) -> Iterator[Row | Arrays]:
        """How far the objective is above its optimum after each step, per token."""
        whole = bases.transpose(0, 1).flatten(1)
        dictionary = torch.cat([whole, -whole], dim=1)
        best = optimal_code(tokens, bases, lam=LAM)
        least, L = lasso(best, tokens, dictionary, lam=LAM), curvature(dictionary)
        solved = fista(tokens, dictionary, lam=LAM).objective.sum()
        yield finding(
            "crate",
            "objective of the LASSO at its optimum, closed form against FISTA run to its end",
            Evidence(float((least - solved).abs() / least), 1e-8, "<="),
            source=LASSO,
            note=f"relative difference, {len(tokens)} tokens: the optimum in [U, -U] with U orthogonal is soft thresholding",
        )
        gaps = {"ISTA": [], "FISTA": []}
        start = torch.zeros_like(best)
        for steps in range(self.codings + 1):
            slow = ista(tokens, dictionary, lam=LAM, steps=steps)
            fast = fista_steps(start, tokens, dictionary, eta=1 / L, lam=LAM, steps=steps)
            for name, code in (("ISTA", slow), ("FISTA", fast)):
                gaps[name].append(max(0.0, float(lasso(code, tokens, dictionary, lam=LAM) - least) / len(tokens)))
        for name, values in gaps.items():
            for step, gap in enumerate(values):
                yield Row(theory="crate", quantity=f"objective above its optimum, {name}", value=gap, step=step, source=str(LASSO))
        allowed = float(2 * L * best.square().sum()) / len(tokens)
        yield finding(
            "crate",
            "objective above its optimum after the last step of FISTA",
            Evidence(gaps["FISTA"][-1], allowed / (self.codings + 1) ** 2, "<="),
            source=LASSO,
            null=gaps["ISTA"][-1],
            note=f"per token, {self.codings} steps from zero; the line is the bound of the theory, the null what ISTA leaves",
        )
        yield Arrays({f"crate/gap/{name}": np.array(values) for name, values in gaps.items()})

    def draw(self, result: Result) -> "Figure":
        """R^c by step in each form; the objective of the sparse code above its optimum."""
        figure, (rates, gaps) = axes(1, 2)
        rate_panel(rates, result.arrays)
        gap_panel(gaps, result.arrays)
        return figure

    @classmethod
    def quick(cls) -> "Unrolled":
        return cls(sequences=16, layers=6, codings=8)


def optimal_code(tokens: Float[Tensor, "n d"], bases: Float[Tensor, "K d p"], *, lam: float) -> Float[Tensor, "n m"]:
    r"""The minimiser of the non-negative LASSO in D = [U, -U] for orthonormal columns U = [U_1 ... U_K].

    With w = U^T z the objective is a sum over coordinates, so :math:`\mathrm{relu}(\pm w - \lambda)`.

    Args:
        tokens: z, [n, d].
        bases: U_k, [K, d, p], all their columns orthonormal.
        lam: weight of the l1 norm.
    Returns:
        [n, 2 K p]. Source: :cite:t:`beck2009fast`.
    """
    whole = tokens @ bases.transpose(0, 1).flatten(1)
    return torch.cat([(whole - lam).relu(), (-whole - lam).relu()], dim=1)

"""Relatives on a binary latent tree: how often leaves occur together, and in which order a block attends to them.

Source: :cite:t:`tian2024joma`.
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
from .. import published
from ..dynamics import Model, train
from ..figures import relatives
from ..forms import AttentionForm, Exponential, Softmax
from ..nonlinear import learning_ratio
from ..orbit import limits
from ..problem import gaussian_block
from ..relatives import masked_leaf
from ..tree import Tree, pair_table, sample_leaves, uniform_tree

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME, JOMA = "joma", Source("tian2024joma")
RARELY = 0.2  # how often the sibling is heard, in the setting that breaks the assumption


@dataclass(frozen=True)
class Relatives(RandomExperiment):
    """A tree of L levels: co-occurrence by formula, transition matrices and draws; then a block learns to guess one leaf from the others.

    Two linear units, cross-entropy, descent from near zero: with exponential attention, with the sibling rarely heard, and with softmax.
    Beside it what the theory's flows do with the co-occurrences alone, where the order is built in.
    """

    rho: float = setting(published.TREE_RHO, gt=0, lt=1, help="of every edge below the root's children")
    levels: int = setting(published.TREE_LEVELS, ge=2, le=8, help="L, edges from root to leaf")
    draws: int = setting(200_000, ge=1000, le=10**7, help="of the tree, for co-occurrence")
    samples: int = setting(4000, ge=200, le=10**6, help="sequences to learn from")
    steps: int = setting(200, ge=10, le=10**5, help="of descent")
    rate: float = setting(0.5, gt=0, le=10, help="learning rate")
    seeds: int = setting(5, ge=1, le=100, help="draws of sequences and start")

    name: ClassVar[str] = "joma.relatives"
    sources: ClassVar[tuple[Source, ...]] = (JOMA,)

    @classmethod
    def quick(cls) -> "Relatives":
        return cls(levels=3, draws=20_000, samples=1000, steps=40, seeds=2)

    def measure(self) -> Iterator[Row | Arrays]:
        """Co-occurrence by H, the theory's flows, and attention logits by H over training."""
        generator = self.generator()
        tree = uniform_tree(rho=self.rho, levels=self.levels, zero=published.TREE_ZERO)
        leaves = sample_leaves(tree, self.draws, generator=generator)
        on, kinship = leaves[leaves[:, 0]].double().mean(0), tree.kinship(0)
        formula = [tree.cooccurrence(up) for up in range(1, self.levels + 1)]
        drawn = [float(on[kinship == up].mean()) for up in range(1, self.levels + 1)]
        yield from self._co_occurrence(tree, formula, drawn)
        yield from self._flows(torch.tensor(formula, dtype=torch.float64))
        keep = np.unique(np.linspace(0, self.steps, 41).astype(int)).tolist()
        arrays = {"formula": formula, "drawn": drawn, "frequency": [tree.frequency()], "steps": keep}
        plain = Exponential(normaliser=tree.leaves / 2)
        for how, form, heard in (("exponential", plain, 1.0), ("exponential, sibling rare", plain, RARELY), ("softmax", Softmax(), 1.0)):
            curves = torch.stack([self._learn(tree, form, heard, keep, generator) for _ in range(self.seeds)])
            arrays[f"logits_{how}"] = curves.numpy()
            yield from self._order(how, curves, keep)
        yield Arrays({f"{NAME}/{name}": np.asarray(values) for name, values in arrays.items()})

    def _co_occurrence(self, tree: Tree, formula: list[float], drawn: list[float]) -> Iterator[Row]:
        usual = self.at_defaults("rho", "levels")
        for up, (value, mean) in enumerate(zip(formula, drawn), start=1):
            table = pair_table(tree, up)
            place = f"common ancestor {up} up" if up < self.levels else "common ancestor the root"
            exact = float(table[1, 1] / table[1].sum())
            row = Row(theory=NAME, quantity=f"P(leaf | leaf), {place}", value=exact, null=tree.frequency(), source=str(JOMA))
            row["note"] = "by transition matrices; null: P(leaf)"
            if usual and up in published.TREE_CO_OCCURRENCE:
                row["predicted"], row["basis"] = published.TREE_CO_OCCURRENCE[up], "recomputed"
            else:
                row["predicted"], row["basis"] = value, "theory"
            yield row
            quantity, null = f"P(leaf | leaf) in {self.draws} draws, {place}", tree.frequency()
            yield Row(theory=NAME, quantity=quantity, value=mean, predicted=value, basis="theory", null=null, source=str(JOMA))

    def _flows(self, formula: torch.Tensor) -> Iterator[Row]:
        ends, speeds = limits(formula), learning_ratio(formula)[0]
        for up in range(2, self.levels + 1):
            note = "the sibling's is infinite; with a constant gradient, by the closed form"
            yield Row(theory=NAME, quantity=f"v at the blow-up, linear MLP, H = {up}", value=float(ends[up - 1]), note=note)
            note = "in the long run, in ln(1/δ), for critical points equal to the co-occurrences"
            quantity = f"speed of the sibling over that of H = {up}, nonlinear MLP"
            yield Row(theory=NAME, quantity=quantity, value=float(speeds[up - 1]), note=note)

    def _learn(self, tree: Tree, form: AttentionForm, heard: float, keep: list[int], generator: torch.Generator) -> torch.Tensor:
        """Change of the logits by H, ``[t, L]``."""
        task = masked_leaf(tree, self.samples, generator=generator, heard=heard)
        start = gaussian_block(task.contexts, units=2, scale=0.01, generator=generator)
        path = train(start, task.contexts, Model(form), step=self.rate, steps=self.steps, keep=keep)
        z = path.states.logits[:, 0]
        return task.by_kinship(z - z[0])

    def _order(self, how: str, curves: torch.Tensor, keep: list[int]) -> Iterator[Row]:
        """The smallest fall of the logits from H to H + 1, after a fifth of the steps and at the end; worst draw."""
        for step in (keep[len(keep) // 5], keep[-1]):
            falls = (curves[:, keep.index(step), :-1] - curves[:, keep.index(step), 1:]).amin(-1)
            note = f"worst of {self.seeds} draws; negative: a farther relative has the larger logit"
            evidence = Evidence(float(falls.min()), 0.0, ">=", covered=how == "exponential")
            yield finding(NAME, f"smallest fall of z from H to H + 1, {how}", evidence, source=JOMA, predicted=0.0, step=step, note=note)
        for up, value in enumerate(curves[:, -1].mean(0).tolist(), start=1):
            yield Row(theory=NAME, quantity=f"change of z at H = {up}, {how}", value=value, step=keep[-1])

    def draw(self, result: Result) -> "Figure":
        """Co-occurrence by H, and attention logits by H over training, in the three settings."""
        return relatives(result)

"""Descent with a one-layer network as head, which shares attention among tokens, against the weights that the theory predicts."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from ....core.experiment import RandomExperiment, setting, sweep
from ....core.measurement import Arrays, Row
from ....core.result import Result
from ....core.sources import Source
from ....core.statistics import clopper_pearson
from ....maths.linalg import cosine
from ..builders import constraints
from ..dynamics import HeadInstance, random_start, relu_head, trajectory
from ..figures import multi_token
from ..sharing import HIGH, LOW, least_push, settled, shared
from ..solvers import frobenius_max_margins, generalised_max_margins

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "attention_svm"
SOURCE = Source("tarzanagh2023transformers")
TARGETS = {"prediction": "finite part and direction", "direction": "direction alone", "one token": "max-margin of the top tokens"}
PUBLISHED = {4: (0.034, 0.07, 0.155), 6: (0.017, 0.043, 0.14), 8: (0.011, 0.015, 0.135), 10: (0.0055, 0.0085, 0.12)}  # read off the figure
UNIT = torch.finfo(torch.float64).eps
PUSH = 1e-3  # gains are of order one
CHUNK = 500  # trials that descend together


def draw_trials(seeds: range, *, inputs: int, tokens: int, dim: int) -> HeadInstance:
    """The published data of these seeds: hidden weights, tokens, labels and queries, drawn in single precision in this order.

    Seeds whose labels are all positive are left out, as there: the head is never negative, so nothing keeps those from any selection.
    """
    drawn = []
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        V = torch.randn(dim, dim, generator=generator)
        x = torch.nn.functional.normalize(torch.randn(inputs, tokens, dim, generator=generator), dim=-1)
        Y = 2.0 * (torch.randn(inputs, generator=generator) > 0) - 1
        z = torch.nn.functional.normalize(torch.randn(inputs, dim, generator=generator), dim=-1)
        if bool((Y < 0).any()):
            drawn.append((V / V.norm(), x, Y, z))
    V, x, Y, z = (torch.stack(part).double() for part in zip(*drawn))
    return HeadInstance(x, z, Y, relu_head(V))


def descend(
    seeds: range, dim: int, inputs: int, tokens: int, steps: int, every: int, rate: float, eps: float, start: int
) -> dict[str, np.ndarray]:
    """Runs the trials of these seeds and keeps those that the published rule accepts.

    Returns:
        ``tried`` [1], the number of trials; for each of k accepted ones ``apart`` [k, checkpoints, 3], the cosine distances of W to the
        three targets, ``masked`` [k], the most attention that a token outside the sets gets, ``several`` [k], whether any input shares its
        attention, and ``pushed`` [k], whether the head pushes every such token away.
    """
    instance = draw_trials(seeds, inputs=inputs, tokens=tokens, dim=dim)
    begin = random_start(instance, generator=torch.Generator().manual_seed(start * 1_000_003 + seeds.start))
    states = list(trajectory(instance, begin, at=range(every, steps + 1, every), rate=rate, eps=eps))
    attention = instance.attention(states[-1].W)
    clear, tried = settled(attention).nonzero().squeeze(-1), np.array([len(attention)])
    if not len(clear):
        empty = {name: np.zeros(0, dtype=bool) for name in ("masked", "several", "pushed")}
        return {"tried": tried, "apart": np.zeros((0, len(states), len(TARGETS)))} | empty
    x, z, s = instance.tokens[clear], instance.query[clear], attention[clear]
    general, single = generalised_max_margins(x, z, s, threshold=HIGH), frobenius_max_margins(constraints(x, z, s.argmax(-1)))
    solved = general.direction.solved & general.finite.solved & single.solved  # pyright: ignore[reportAttributeAccessIssue]
    apart = []
    for state in states:
        W = state.W[clear]
        targets = (general.predict(W), general.direction.W, single.W)
        apart.append(torch.stack([1 - cosine(W[solved], target[solved], dim=(-2, -1)) for target in targets], -1))
    kept = clear[solved]
    return {
        "tried": tried,
        "apart": torch.stack(apart, 1).numpy(),
        "masked": s[solved].masked_fill(s[solved] > LOW, 0.0).flatten(1).amax(-1).numpy(),
        "several": shared(attention[kept]).numpy(),
        "pushed": (least_push(instance, states[-1].W)[kept] > PUSH).numpy(),
    }


@dataclass(frozen=True)
class MultiToken(RandomExperiment):
    r"""Normalised descent with the head :math:`h(o) = 1^\top \max(V^\top o, 0)` against three predictions of the direction of W.

    Attention may stay on several tokens of an input. The prediction is then a finite part plus a multiple of a direction; beside it stand
    the direction alone, and the max-margin solution that puts each input's top token above all others. A trial counts only if it has
    settled: no token has between 1e-6 and 1e-3 of the attention, and some token has less. Few do, ever fewer in more dimensions: the
    share is shown. The prediction fails where a masked token is one that the head does not push away (it is flat there): those trials are
    drawn apart. ``eps`` is added to the gradient's norm as published; 0 is exact, and goes further.

    Raises:
        ValueError: ``every`` is more than ``steps``; or a setting is beyond its bounds.
    """

    dims: tuple[int, ...] = setting((4, 6, 8, 10), ge=1, help="dimensions d of the tokens")
    inputs: int = setting(3, ge=1, help="number n of inputs")
    tokens: int = setting(4, ge=2, help="number T of tokens of an input")
    trials: int = setting(4000, ge=1, help="random problems for each dimension")
    steps: int = setting(2000, ge=1, help="steps of descent")
    every: int = setting(100, ge=1, help="steps between two measurements")
    rate: float = setting(0.1, gt=0, le=1e6, help="length of a step")
    eps: float = setting(UNIT, ge=0, le=1, help="added to the norm of the gradient; 0 is exact")

    name = "attention_svm.multi_token"
    sources = (SOURCE,)

    def __post_init__(self):
        super().__post_init__()
        if self.every > self.steps:
            raise ValueError(f"every must be at most steps = {self.steps}, got {self.every}; lower every, or raise steps")

    def measure(self) -> Iterator[Row | Arrays]:
        """Rows of each dimension: share of trials accepted, and mean distances at the end; arrays with those of every accepted trial."""
        kept = {name: getattr(self, name) for name in ("inputs", "tokens", "steps", "every", "rate", "eps")} | {"start": self.seed}
        parts = [range(first, min(first + CHUNK, self.trials + 1)) for first in range(1, self.trials + 1, CHUNK)]
        found = sweep(descend, [{"seeds": seeds, "dim": d, **kept} for d in self.dims for seeds in parts])
        stored: dict[str, np.ndarray] = {
            f"{NAME}/steps": np.arange(self.every, self.steps + 1, self.every),
            f"{NAME}/dims": np.array(self.dims),
        }
        accepted, tried = [], []
        for at, d in enumerate(self.dims):
            mine = found[at * len(parts) : (at + 1) * len(parts)]
            joined = {name: np.concatenate([part[name] for part in mine]) for name in mine[0]}
            accepted.append(len(joined["apart"]))
            tried.append(int(joined["tried"].sum()))
            stored |= {f"{NAME}/{name}_{d}": joined[name] for name in ("apart", "masked", "several", "pushed")}
            yield from self._rows(d, joined, accepted[-1], tried[-1])
        low, high = clopper_pearson(accepted, tried)
        share = np.array(accepted) / np.array(tried)
        yield Arrays(stored | {f"{NAME}/accepted": np.array(accepted), f"{NAME}/share": share, f"{NAME}/low": low, f"{NAME}/high": high})

    def _rows(self, d: int, joined: dict[str, np.ndarray], accepted: int, tried: int) -> Iterator[Row]:
        note = f"{accepted} of {tried} trials settled; some labels are negative in all of them"
        yield Row(theory=NAME, quantity=f"share of trials accepted, d={d}", value=accepted / tried, source=str(SOURCE), note=note)
        if not accepted:
            return
        same = self.at_defaults("inputs", "tokens", "trials", "steps", "rate", "eps")
        published = PUBLISHED.get(d) if same else None
        for target, (name, words) in enumerate(TARGETS.items()):
            values = joined["apart"][:, -1, target]
            error = values.std() / max(accepted - 1, 1) ** 0.5
            row = Row(
                theory=NAME,
                quantity=f"1 - cosine to the {name}, d={d}",
                value=float(values.mean()),
                step=self.steps,
                source=str(SOURCE),
                note=f"{words}: mean over {accepted} accepted trials, standard error {error:.4f}",
            )
            if published is not None:
                row["predicted"], row["basis"] = published[target], "figure"
            yield row
        pushed, ends = joined["pushed"], joined["apart"][:, -1, 0]
        for name, value, note in (
            ("share of accepted trials that share attention", joined["several"].mean(), "several tokens of some input keep attention"),
            ("share of accepted trials in which every masked token is pushed away", pushed.mean(), "the head is not flat at any of them"),
        ):
            yield Row(theory=NAME, quantity=f"{name}, d={d}", value=float(value), source=str(SOURCE), note=note)
        for name, which in (("pushed away", pushed), ("not all pushed away", ~pushed)):
            if which.any():
                quantity = f"median of 1 - cosine to the prediction, masked tokens {name}, d={d}"
                note = f"{int(which.sum())} trials"
                yield Row(theory=NAME, quantity=quantity, value=float(np.median(ends[which])), source=str(SOURCE), note=note)

    def draw(self, result: Result) -> "Figure":
        """Distances at the end against the dimension, the share accepted, and distance against the attention that is left elsewhere."""
        return multi_token(result)

    @classmethod
    def quick(cls) -> "MultiToken":
        """Few trials in four dimensions, a fifth of the steps: a second."""
        return cls(dims=(4,), trials=120, steps=400, every=100)

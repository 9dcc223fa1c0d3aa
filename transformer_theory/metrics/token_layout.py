"""What stands for a sequence: the tokens from which the network computes its outputs, or else all tokens with
contents (:attr:`.Activations.tokens_read`).
"""

from collections.abc import Sequence
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from ..core.measurement import Measurement
from ..core.metric import NOT_READ, ActivationKind, Activations, Grid, Metric

MEAN = "the mean of the tokens"


def mean_feature(activations: Activations) -> Float[Tensor, "batch dim"]:
    """Returns the mean of the output of a block over the tokens that stand for each sequence, float64; NaN
    for a sequence without such tokens.
    """
    tokens, which = activations.output.detach(), activations.tokens_read
    if which is None or bool(which.all()):
        return tokens.mean(1, dtype=torch.float64)
    count = which.sum(1, keepdim=True)
    if bool((count == 1).all()):
        return tokens[which].double()
    # Zeros at the other tokens, which may hold NaN.
    used = torch.where(which[..., None], tokens.double(), 0.0)
    return used.sum(1) / torch.where(count > 0, count.double(), torch.nan)


def mean_query(activations: Activations) -> Float[Tensor, "batch heads keys"] | None:
    """Returns the mean of the attention weights over the queries that stand for each sequence; None if the
    weights are unknown.
    """
    weights, which = activations.weights, activations.tokens_read
    if weights is None:
        return None
    if which is None or which.shape != (len(weights), weights.shape[2]):
        return weights.mean(2)
    count = which.sum(1)
    every, one = torch.stack([(count == which.shape[1]).all(), (count == 1).all()]).tolist()
    if every:
        return weights.mean(2)
    if one:
        return weights[torch.arange(len(weights), device=weights.device), :, which.int().argmax(1)]
    used = torch.where(which[:, None, :, None], weights, 0.0)
    return used.sum(2) / count[:, None, None]


def where(activations: Activations) -> str:
    """Names the tokens of :func:`mean_feature`."""
    if activations.read is None and activations.reading != NOT_READ:
        return f"{MEAN} ({activations.reading})"
    if activations.read is None or activations.reading == "the tokens":
        return MEAN
    one = bool((activations.read.sum(1) == 1).all())
    return activations.reading if one else f"the mean of {activations.reading}"


class TokenLayout(Metric):
    """Counts the tokens of a sequence, and finds their grid. Has no rows.

    Attributes:
        tokens: number of tokens of a sequence in the first block; 0 before the first update.
        leading: number of tokens without contents before the others, such as class and register tokens.
        grid: rows and columns of the patches; None if there is no grid, or if it is not complete.
        where: which tokens stand for a sequence, in words; empty before the first update.
    """

    kinds: ClassVar[tuple[ActivationKind, ...]] = ("features",)
    takes_padding = True

    def reset(self) -> None:
        """Starts a new count."""
        super().reset()
        self.tokens, self.leading, self.where = 0, 0, ""
        self.grid: tuple[int, int] | None = None

    def update(self, activations: Activations) -> None:
        """Reads the tokens of the first block."""
        if self.tokens:
            return
        self.tokens, self.where = activations.tokens.shape[1], where(activations)
        content, grid = activations.content, activations.grid
        if content is not None:
            self.leading = int((~content[0]).long().cumprod(0).sum())
        if isinstance(grid, Grid) and int((grid.places[0] >= 0).sum()) == grid.rows * grid.columns:
            self.grid = grid.rows, grid.columns

    def compute(self, *, draws: int = 0, generator: torch.Generator | None = None) -> Sequence[Measurement]:
        """Returns no rows."""
        return ()

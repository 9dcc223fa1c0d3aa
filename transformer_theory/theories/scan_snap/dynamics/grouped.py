r"""Descent directions of a sampled batch whose sequences are grouped by class, with leading runs.

Sequences of a class have few tokens in common with those of others: the *shared* tokens, that several classes have, and their class's *own*
ones. So a sequence is a row of W = shared + own counts instead of one over all S tokens, the shared part of every product is one matrix
product, and the own part one small product a class:

    v = x e^{z - max},   f = v / |v|_2,   logits = f Y,   r = e_n - alpha,   dz = f o (Y r - f (f.Y r)),   dY = f r^T

where :math:`e^{z - \max}` is computed once a class instead of once a sequence, as only the direction of v enters (and once a sequence if
that underflows).

Source: :cite:t:`tian2023scan` (Lemma 1); the arrangement is ours.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..problem import SequenceClasses
from .batches import Descent
from .weights import Weights

FEW = 4  # classes up to which all tokens count as shared: then one product over all is cheaper than one a class


@dataclass(frozen=True, eq=False)
class Layout:
    """Which tokens are shared, which are whose, and in which order they stand.

    Attributes:
        order: token at each place: the shared ones, then ``width`` own ones of each class (filled up with token 0), ``[shared + K width]``.
        place: where each token stands (of its first place), ``[S]``.
        conditional: P(l | n) of the shared and the class's own tokens, zero at filled places, ``[K, W]``.
        query: of each class, ``[K]``.
        shared, width: numbers of shared tokens and of places for own ones a class; W is their sum.
    """

    order: Int[Tensor, " places"]
    place: Int[Tensor, " S"]
    conditional: Float[Tensor, "K W"]
    query: Int[Tensor, " K"]
    shared: int
    width: int

    @classmethod
    def of(cls, classes: SequenceClasses) -> "Layout":
        """The layout in which the products are cheapest: with few classes all tokens count as shared."""
        if classes.classes > FEW:
            return cls.by_class(classes)
        every = torch.arange(classes.tokens)
        return cls(every, every, classes.conditional, classes.query, shared=classes.tokens, width=0)

    @classmethod
    def by_class(cls, classes: SequenceClasses) -> "Layout":
        """The layout that has each class's distinct tokens apart."""
        own = classes.distinct()
        shared = (~own.any(0)).nonzero()[:, 0]
        width = int(own.sum(1).max())
        owned = torch.zeros(classes.classes, width, dtype=torch.long)
        filled = torch.arange(width) < own.sum(1, keepdim=True)
        owned[filled] = own.nonzero()[:, 1]
        order = torch.cat([shared, owned.ravel()])
        real = torch.cat([torch.ones_like(shared, dtype=torch.bool), filled.ravel()])
        place = torch.zeros(classes.tokens, dtype=torch.long)
        place[order[real]] = torch.arange(len(order))[real]
        P = classes.conditional
        own_p = P.gather(1, owned) * filled
        return cls(order, place, torch.cat([P[:, shared], own_p], 1), classes.query, len(shared), width)

    @cached_property
    def natural(self) -> bool:
        """Whether the tokens stand in their own order, so that nothing need be moved."""
        return torch.equal(self.order, torch.arange(len(self.place)))

    @cached_property
    def barred(self) -> Float[Tensor, "K W"]:
        """0 where a token can occur, minus infinity where not."""
        return torch.where(self.conditional > 0, 0.0, -math.inf).double()


@dataclass(frozen=True, eq=False)
class GroupedBatch:
    """Sequences of each run as counts, sorted by class.

    Attributes:
        layout: what the columns mean.
        counts: of shared and own tokens, ``[runs, batch, W]``.
        target: the class of each, increasing, ``[runs, batch]``.
        largest: at least the number of sequences of any class in any run.
    """

    layout: Layout
    counts: Float[Tensor, "runs batch W"]
    target: Int[Tensor, "runs batch"]
    largest: int

    def dense(self) -> Float[Tensor, "runs batch S"]:
        """The counts of all S tokens."""
        at = self.layout
        R, B, _ = self.counts.shape
        own = self.target[..., None] * at.width + at.shared + torch.arange(at.width)
        places = torch.cat([torch.arange(at.shared).expand(R, B, -1), own], -1)
        return self.counts.new_zeros(R, B, len(at.order)).scatter_(-1, places, self.counts)[..., at.place]

    def descent(self, weights: Weights) -> Descent:
        """Mean loss of each run and the closed-form descent directions of its weights ``[runs, ...]``; exact, like ``forward``."""
        at = self.layout
        Y, Z = weights.decoder, weights.attention
        if not at.natural:
            Y, Z = Y[:, at.order], Z[..., at.order]
        R, K, C = len(Y), len(at.query), Y.shape[-1]
        row = self.target + K * torch.arange(R)[:, None]  # of the pair run, class
        f = self._features(Z, row)
        shared, own = f[..., : at.shared], f[..., at.shared :]
        logits = shared @ Y[:, : at.shared]
        if at.width:
            groups = _Groups.of(self.target, row, K, self.largest)
            decoders = Y[:, at.shared :].reshape(R * K, at.width, C)
            gathered = groups.gather(own)
            logits += groups.scatter(gathered @ decoders).view_as(logits)
        residual, loss = _residual(logits, self.target, weights.rest)
        residual /= self.target.shape[-1]
        along = (residual * logits).sum(-1, keepdim=True)  # f.g, as g = Y r
        g = residual @ Y[:, : at.shared].mT
        dY = shared.mT @ residual
        if at.width:
            pulled = groups.gather(residual)
            g = torch.cat([g, groups.scatter(pulled @ decoders.mT).view_as(own)], -1)
            dY = torch.cat([dY, (gathered.mT @ pulled).view(R, -1, C)], 1)
        dz = f * (g - f * along)
        dZ = self._to_queries(dz, Z)
        if weights.rest:
            dY[..., -1] /= weights.rest
        if not at.natural:
            dY, dZ = dY[:, at.place], dZ[..., at.place]
        return Descent(loss, dY, dZ)

    def _features(self, Z: Tensor, row: Tensor) -> Tensor:
        """f ``[runs, batch, W]`` from the arranged logits ``[runs, Q, places]``."""
        at = self.layout
        z = Z[..., : at.shared].index_select(1, at.query)
        if at.width:
            z = torch.cat([z, self._own(Z)[:, at.query, torch.arange(len(at.query))]], -1)
        z = z + at.barred.to(z.dtype)
        scale = torch.exp(z - z.amax(-1, keepdim=True)).flatten(0, 1)
        v = self.counts.to(z.dtype) * scale[row]
        norm = torch.linalg.vector_norm(v, dim=-1, keepdim=True)
        if float(norm.amin()) < torch.finfo(z.dtype).tiny ** 0.25:  # a sequence without the tokens of the class that have the attention
            own = z.flatten(0, 1)[row] + self.counts.to(z.dtype).log()
            v = torch.exp(own - own.amax(-1, keepdim=True))
            norm = torch.linalg.vector_norm(v, dim=-1, keepdim=True)
        return v / norm

    def _own(self, Z: Tensor) -> Tensor:
        """The logits of own tokens, by class: a view ``[runs, Q, K, width]``."""
        return Z[..., self.layout.shared :].unflatten(-1, (len(self.layout.query), self.layout.width))

    def _to_queries(self, dz: Tensor, Z: Tensor) -> Tensor:
        """Sums directions ``[runs, batch, W]`` over the sequences of each query, those of own tokens over the sequences of each class."""
        at = self.layout
        shared = _sums(at.query[self.target], dz[..., : at.shared], Z.shape[1])
        if not at.width:
            return shared
        dZ = torch.zeros_like(Z)
        dZ[..., : at.shared] = shared
        self._own(dZ)[:, at.query, torch.arange(len(at.query))] = _sums(self.target, dz[..., at.shared :], len(at.query))
        return dZ


@dataclass(frozen=True, eq=False)
class _Groups:
    """Moves rows of sequences to a zero-filled block a run and class, and back."""

    slot: Int[Tensor, " rows"]
    blocks: int
    size: int

    @classmethod
    def of(cls, target: Tensor, row: Tensor, classes: int, size: int) -> "_Groups":
        first = torch.searchsorted(target, target)  # the targets are sorted
        rank = torch.arange(target.shape[-1]) - first
        return cls((row * size + rank).ravel(), len(target) * classes, size)

    def gather(self, rows: Tensor) -> Tensor:
        """``[runs, batch, w] -> [runs K, size, w]``."""
        blocks = rows.new_zeros(self.blocks * self.size, rows.shape[-1])
        return blocks.index_copy_(0, self.slot, rows.flatten(0, 1)).view(self.blocks, self.size, -1)

    def scatter(self, blocks: Tensor) -> Tensor:
        """``[runs K, size, w] -> [runs batch, w]``."""
        return blocks.flatten(0, 1).index_select(0, self.slot)


def _residual(logits: Tensor, target: Tensor, rest: int) -> tuple[Tensor, Tensor]:
    """e_n - alpha, with 1 - alpha_n as the sum of the others (nothing cancels), and the mean loss, nats, ``[runs]``."""
    here = target[..., None]
    if rest:
        logits = torch.cat([logits[..., :-1], logits[..., -1:] + math.log(rest)], -1)
    top = logits.amax(-1, keepdim=True)
    mine = logits.gather(-1, here) - top
    alpha = torch.exp(logits - top).scatter_(-1, here, 0.0)
    others = alpha.sum(-1, keepdim=True)
    total = others + mine.exp()
    residual = alpha.div_(-total).scatter_(-1, here, others / total)
    return residual, (total.log() - mine)[..., 0].mean(-1)


def _sums(group: Tensor, rows: Tensor, groups: int) -> Tensor:
    """Rows ``[runs, batch, w]`` added up by their group ``[runs, batch]``: ``[runs, groups, w]``."""
    return (group[:, None] == torch.arange(groups)[:, None]).to(rows.dtype) @ rows

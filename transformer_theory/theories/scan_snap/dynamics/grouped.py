r"""Descent directions of a sampled batch whose sequences are grouped by class, for several runs at once.

A sequence holds only *shared* tokens, which several classes have, and its class's *own* tokens. It is stored as a row of W = shared + own
counts instead of one over all S tokens. The shared part of every product is one matrix product, the own part one small product per class:

    v = x e^{z - max},   f = v / |v|_2,   logits = f Y,   r = e_n - alpha,   dz = f o (Y r - f (f.Y r)),   dY = f r^T

:math:`e^{z - \max}` is computed once per class, since only the direction of v enters (and once per sequence if that underflows).

Source: :cite:t:`tian2023scan` (Lemma 1).
"""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..problem import SequenceClasses
from .model import Descent, Weights

MAX_CLASSES_SHARED = 4  # up to this many classes all tokens count as shared: one large product is cheaper than one per class


@dataclass(frozen=True, eq=False)
class Layout:
    """Order of the tokens: the shared ones first, then those of each class.

    Attributes:
        order: token at each place: the shared ones, then ``width`` own ones of each class (padded with token 0), ``[shared + K width]``.
        place: first place of each token, ``[S]``.
        conditional: P(l | n) of the shared and the class's own tokens, zero at padded places, ``[K, W]``.
        query: of each class, ``[K]``.
        shared, width: number of shared tokens, and of places for own tokens per class; W is their sum.
    """

    order: Int[Tensor, " places"]
    place: Int[Tensor, " S"]
    conditional: Float[Tensor, "K W"]
    query: Int[Tensor, " K"]
    shared: int
    width: int

    @classmethod
    def of(cls, classes: SequenceClasses) -> "Layout":
        """The layout with the cheapest products: with few classes all tokens count as shared."""
        if classes.classes > MAX_CLASSES_SHARED:
            return cls.by_class(classes)
        every = torch.arange(classes.tokens)
        return cls(every, every, classes.conditional, classes.query, shared=classes.tokens, width=0)

    @classmethod
    def by_class(cls, classes: SequenceClasses) -> "Layout":
        """The layout that separates each class's distinct tokens."""
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
        """Whether the layout keeps the order of the tokens, so that nothing has to be moved."""
        return torch.equal(self.order, torch.arange(len(self.place)))

    @cached_property
    def barred(self) -> Float[Tensor, "K W"]:
        """0 where a token can occur, minus infinity where not."""
        return torch.where(self.conditional > 0, 0.0, -math.inf).double()


@dataclass(frozen=True, eq=False)
class GroupedBatch:
    """Sequences of each run as counts, sorted by class.

    Attributes:
        layout: meaning of the columns.
        counts: of shared and own tokens, ``[runs, batch, W]``.
        target: class of each sequence, increasing within a run, ``[runs, batch]``.
        largest: upper bound on the number of sequences of a class in a run.
    """

    layout: Layout
    counts: Float[Tensor, "runs batch W"]
    target: Int[Tensor, "runs batch"]
    largest: int

    def dense(self) -> Float[Tensor, "runs batch S"]:
        """Counts of all S tokens."""
        at = self.layout
        R, B, _ = self.counts.shape
        own = self.target[..., None] * at.width + at.shared + torch.arange(at.width)
        places = torch.cat([torch.arange(at.shared).expand(R, B, -1), own], -1)
        return self.counts.new_zeros(R, B, len(at.order)).scatter_(-1, places, self.counts)[..., at.place]

    def descent(self, weights: Weights) -> Descent:
        """Mean loss of each run and the closed-form descent directions of its weights ``[runs, ...]``; equals :func:`.forward`."""
        at = self.layout
        Y, Z = weights.decoder, weights.attention
        if not at.natural:
            Y, Z = Y[:, at.order], Z[..., at.order]
        R, K, C = len(Y), len(at.query), Y.shape[-1]
        row = self.target + K * torch.arange(R)[:, None]  # number of the pair (run, class)
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
        along = (residual * logits).sum(-1, keepdim=True)  # f.g = f.(Y r) = (f Y).r
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
        if float(norm.amin()) < torch.finfo(z.dtype).tiny ** 0.25:
            # A sequence without the tokens that hold the attention of its class: scale by its own largest score instead.
            own = z.flatten(0, 1)[row] + self.counts.to(z.dtype).log()
            v = torch.exp(own - own.amax(-1, keepdim=True))
            norm = torch.linalg.vector_norm(v, dim=-1, keepdim=True)
        return v / norm

    def _own(self, Z: Tensor) -> Tensor:
        """The logits of own tokens, by class: a view ``[runs, Q, K, width]``."""
        return Z[..., self.layout.shared :].unflatten(-1, (len(self.layout.query), self.layout.width))

    def _to_queries(self, dz: Tensor, Z: Tensor) -> Tensor:
        """Sums directions ``[runs, batch, W]`` by query; those of own tokens by class."""
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
    """Moves rows of sequences to a zero-padded block per run and class, and back."""

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
    """e_n - alpha, with 1 - alpha_n as the sum of the others (no cancellation), and the mean loss, nats, ``[runs]``."""
    index = target[..., None]
    if rest:
        logits = torch.cat([logits[..., :-1], logits[..., -1:] + math.log(rest)], -1)
    top = logits.amax(-1, keepdim=True)
    target_logit = logits.gather(-1, index) - top
    alpha = torch.exp(logits - top).scatter_(-1, index, 0.0)
    others = alpha.sum(-1, keepdim=True)
    total = others + target_logit.exp()
    residual = alpha.div_(-total).scatter_(-1, index, others / total)
    return residual, (total.log() - target_logit)[..., 0].mean(-1)


def _sums(group: Tensor, rows: Tensor, groups: int) -> Tensor:
    """Rows ``[runs, batch, w]`` added up by their group ``[runs, batch]``: ``[runs, groups, w]``."""
    return (group[:, None] == torch.arange(groups)[:, None]).to(rows.dtype) @ rows

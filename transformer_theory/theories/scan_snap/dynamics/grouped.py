r"""Descent directions of a sampled batch whose sequences are grouped by class, for several runs at once.

A sequence contains only *shared* tokens, which occur in several classes, and its class's *own* tokens. It is
therefore stored as a row of W = shared + own counts instead of a row over all S tokens. The shared part of
every product is one matrix product, and the own part is one small product per class:

    v = x e^{z - max},   f = v / |v|_2,   logits = f Y,   r = e_n - alpha,   dz = f o (Y r - f (f.Y r)),
                         dY = f r^T

Only the direction of v enters, so :math:`e^{z - \max}` is computed once per class; if that underflows, once
per sequence.

Source: :cite:t:`tian2023scan` (Lemma 1).
"""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..problem import SequenceClasses
from .model import Descent, Weights, residuals

# up to this many classes all tokens count as shared: one large product is cheaper than a few small ones
MAX_CLASSES_SHARED = 4


@dataclass(frozen=True, eq=False)
class Layout:
    """Order of the tokens: the shared tokens first, then the own tokens of each class.

    Attributes:
        order: token at each place, ``[shared + K width]``: the shared tokens, then ``width`` own tokens of
            each class, padded with token 0.
        place: first place of each token, ``[S]``.
        conditional: P(l | n) of the shared and the class's own tokens, zero at padded places, ``[K, W]``.
        query: query of each class, ``[K]``.
        shared, width: numbers of shared tokens and of places for own tokens per class; W is their sum.
    """

    order: Int[Tensor, " places"]
    place: Int[Tensor, " S"]
    conditional: Float[Tensor, "K W"]
    query: Int[Tensor, " K"]
    shared: int
    width: int

    @classmethod
    def of(cls, classes: SequenceClasses) -> "Layout":
        """Returns the layout with the cheapest products: with few classes all tokens count as shared."""
        if classes.classes > MAX_CLASSES_SHARED:
            return cls.by_class(classes)
        identity = torch.arange(classes.tokens)
        return cls(identity, identity, classes.conditional, classes.query, shared=classes.tokens, width=0)

    @classmethod
    def by_class(cls, classes: SequenceClasses) -> "Layout":
        """Returns the layout that separates each class's distinct tokens."""
        distinct = classes.distinct()
        shared = (~distinct.any(0)).nonzero()[:, 0]
        width = int(distinct.sum(1).max())
        # nonzero lists the own tokens class by class, in the order in which the filled places are assigned.
        own_tokens = torch.zeros(classes.classes, width, dtype=torch.long)
        filled = torch.arange(width) < distinct.sum(1, keepdim=True)
        own_tokens[filled] = distinct.nonzero()[:, 1]
        order = torch.cat([shared, own_tokens.ravel()])
        # Invert the order. Padded places are omitted, because they would overwrite the place of token 0.
        is_filled = torch.cat([torch.ones_like(shared, dtype=torch.bool), filled.ravel()])
        place = torch.zeros(classes.tokens, dtype=torch.long)
        place[order[is_filled]] = torch.arange(len(order))[is_filled]
        P = classes.conditional
        own_p = P.gather(1, own_tokens) * filled
        return cls(order, place, torch.cat([P[:, shared], own_p], 1), classes.query, len(shared), width)

    @cached_property
    def natural(self) -> bool:
        """Whether the places are the tokens in their original order, so that nothing has to be rearranged."""
        return torch.equal(self.order, torch.arange(len(self.place)))

    @cached_property
    def column(self) -> Int[Tensor, "K S"]:
        """Column of each token in the counts of a class; W if a sequence of the class cannot contain the
        token.
        """
        K, W = self.conditional.shape
        # rank among the own tokens of class k
        own = self.place - self.shared - self.width * torch.arange(K)[:, None]
        column = torch.where((own >= 0) & (own < self.width), self.shared + own, W)
        return torch.where(self.place < self.shared, self.place, column)

    @cached_property
    def barred(self) -> Float[Tensor, "K W"]:
        """Zero where a token can occur in the class, minus infinity elsewhere; added to logits it removes the
        other tokens.
        """
        return torch.where(self.conditional > 0, 0.0, -math.inf).double()


@dataclass(frozen=True, eq=False)
class GroupedBatch:
    """Sequences of each run as counts, sorted by class.

    Attributes:
        layout: meaning of the columns.
        counts: counts of shared and own tokens, ``[runs, batch, W]``.
        target: class of each sequence, increasing within a run, ``[runs, batch]``.
        largest: upper bound on the number of sequences of a class in a run.
    """

    layout: Layout
    counts: Float[Tensor, "runs batch W"]
    target: Int[Tensor, "runs batch"]
    largest: int

    def dense(self) -> Float[Tensor, "runs batch S"]:
        """Expands the counts to rows over all S tokens."""
        padded = torch.nn.functional.pad(self.counts, (0, 1))
        return padded.gather(-1, self.layout.column[self.target])

    def descent(self, weights: Weights) -> Descent:
        """Computes the mean loss of each run and the closed-form descent directions of its weights, like
        :func:`.forward`.
        """
        layout = self.layout
        Y, Z = weights.decoder, weights.attention
        if not layout.natural:
            Y, Z = Y[:, layout.order], Z[..., layout.order]
        R, K, C = len(Y), len(layout.query), Y.shape[-1]
        row = self.target + K * torch.arange(R)[:, None]  # number of the pair (run, class)
        f = self._features(Z, row)
        shared_f, own_f = f[..., : layout.shared], f[..., layout.shared :]
        # f Y in two parts: the shared tokens in one product, the own tokens in one block per (run, class).
        logits = shared_f @ Y[:, : layout.shared]
        if layout.width:
            groups = _Groups.of(self.target, row, K, self.largest)
            # rows of the own tokens, one block per (run, class)
            decoders = Y[:, layout.shared :].reshape(R * K, layout.width, C)
            gathered = groups.gather(own_f)  # [runs K, size, width]
            logits += groups.scatter(gathered @ decoders).view_as(logits)
        residual, losses = residuals(logits, self.target, weights.rest)
        residual /= self.target.shape[-1]  # the loss is a mean over the batch
        # f.g = f.(Y r) = (f Y).r: no product with f is needed
        projection = (residual * logits).sum(-1, keepdim=True)
        g = residual @ Y[:, : layout.shared].mT
        dY = shared_f.mT @ residual
        if layout.width:
            own_residual = groups.gather(residual)
            g = torch.cat([g, groups.scatter(own_residual @ decoders.mT).view_as(own_f)], -1)
            dY = torch.cat([dY, (gathered.mT @ own_residual).view(R, -1, C)], 1)
        dz = f * (g - f * projection)
        dZ = self._to_queries(dz, Z)
        if weights.rest:  # each of the equal columns gets an equal part of the pooled residual
            dY[..., -1] /= weights.rest
        if not layout.natural:
            dY, dZ = dY[:, layout.place], dZ[..., layout.place]
        return Descent(losses.mean(-1), dY, dZ)

    def _features(self, Z: Tensor, row: Tensor) -> Tensor:
        """Computes f ``[runs, batch, W]`` from the arranged logits ``[runs, Q, places]``."""
        layout = self.layout
        z = Z[..., : layout.shared].index_select(1, layout.query)
        if layout.width:
            z = torch.cat([z, self._own(Z)[:, layout.query, torch.arange(len(layout.query))]], -1)
        z = z + layout.barred.to(z.dtype)
        scale = torch.exp(z - z.amax(-1, keepdim=True)).flatten(0, 1)
        v = self.counts.to(z.dtype) * scale[row]
        norm = torch.linalg.vector_norm(v, dim=-1, keepdim=True)
        if float(norm.amin()) < torch.finfo(z.dtype).tiny ** 0.25:
            # Some sequence lacks the tokens that hold the attention of its class, so its entries underflow or
            # lose digits. Scale every sequence by its own largest score instead; this costs an exponential
            # per sequence, not per class.
            scores = z.flatten(0, 1)[row] + self.counts.to(z.dtype).log()
            v = torch.exp(scores - scores.amax(-1, keepdim=True))
            norm = torch.linalg.vector_norm(v, dim=-1, keepdim=True)
        return v / norm

    def _own(self, Z: Tensor) -> Tensor:
        """Returns the logits of the classes' own tokens as a view ``[runs, Q, K, width]``."""
        return Z[..., self.layout.shared :].unflatten(-1, (len(self.layout.query), self.layout.width))

    def _to_queries(self, dz: Tensor, Z: Tensor) -> Tensor:
        """Sums the directions ``[runs, batch, W]`` of the sequences: shared tokens by query, own tokens by
        class.
        """
        layout = self.layout
        shared = _sums(layout.query[self.target], dz[..., : layout.shared], Z.shape[1])
        if not layout.width:
            return shared
        dZ = torch.zeros_like(Z)
        dZ[..., : layout.shared] = shared
        self._own(dZ)[:, layout.query, torch.arange(len(layout.query))] = _sums(
            self.target, dz[..., layout.shared :], len(layout.query)
        )
        return dZ


@dataclass(frozen=True, eq=False)
class _Groups:
    """Rearranges rows of sequences into one zero-padded block per run and class, and back.

    Attributes:
        slot: row of each sequence in the stacked blocks, ``[runs batch]``.
        blocks: number of blocks, runs times classes.
        size: rows per block.
    """

    slot: Int[Tensor, " rows"]
    blocks: int
    size: int

    @classmethod
    def of(cls, target: Tensor, row: Tensor, classes: int, size: int) -> "_Groups":
        # The targets are sorted, so searchsorted gives the first sequence of each class; the rest is the rank
        # within the class.
        first = torch.searchsorted(target, target)
        rank = torch.arange(target.shape[-1]) - first
        return cls((row * size + rank).ravel(), len(target) * classes, size)

    def gather(self, rows: Tensor) -> Tensor:
        """Arranges rows in blocks, ``[runs, batch, w] -> [runs K, size, w]``."""
        blocks = rows.new_zeros(self.blocks * self.size, rows.shape[-1])
        return blocks.index_copy_(0, self.slot, rows.flatten(0, 1)).view(self.blocks, self.size, -1)

    def scatter(self, blocks: Tensor) -> Tensor:
        """Undoes :meth:`gather`, ``[runs K, size, w] -> [runs batch, w]``."""
        return blocks.flatten(0, 1).index_select(0, self.slot)


def _sums(group: Tensor, rows: Tensor, groups: int) -> Tensor:
    """Sums rows ``[runs, batch, w]`` by their group ``[runs, batch]`` to ``[runs, groups, w]``."""
    # A product with the indicator of the groups is faster than index_add for few groups, and its result is
    # reproducible.
    return (group[:, None] == torch.arange(groups)[:, None]).to(rows.dtype) @ rows

r"""What vision transformers attend to: neighbouring patches, label-relevant patches, and how far; and how
alike their layers are.

The patches must form a square grid; class and register tokens in front of them are recognised in the first
module. Per head, passively:

* **mass on the 4-neighbours**, the weight of a patch on the patches beside, above and below it, as a share of
  its weight on all other patches; uniform attention has the mean number of neighbours over (places - 1).
  **Mean attention distance** of the same shares, in patches (:cite:t:`raghu2021vision`). The null of both are
  untrained networks.
* **mass on label-relevant patches**: the weight of the class token, or of the mean over patches, on the fifth
  of the patches with the largest relevance (:mod:`.relevance`). Words are k-means centres of the tokens of
  the first module at each place, posteriors are counted on every second image, and the mass is measured on
  the others. The null gives each image the map of another one, so it keeps what places alone explain. Rare
  words have uncertain posteriors and look relevant: where permuted labels have more mass than the maps of
  other images, this excess is added to the null.
* **CKA** of each block with the first one (:cite:t:`kornblith2019similarity`): linear, with the unbiased
  estimator of HSIC (:cite:t:`song2012feature`), which is accumulated over batches (:cite:t:`nguyen2021wide`),
  on the features of all tokens. The null are untrained networks.

How much of the scores is positional is measured by the theory of induction heads (``PositionalShare``).
"""

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Generator, Tensor

from ...core.measurement import Measurement
from ...core.metric import SHARED, ActivationKind, Activations, PerModule, Place
from ...core.sources import Source
from ...core.statistics import fixed_generator, permutations
from ...core.theory import InNetworks
from ...core.validation import converted
from ...metrics.class_token import ClassTokenMetric
from .on_data import words_of
from .relevance import most_relevant, word_posteriors

NAME = "vision"
RAGHU, KORNBLITH, LI = (
    Source("raghu2021vision", status="own"),
    Source("nguyen2021wide", status="own"),
    Source("li2023theoretical", status="own"),
)
NEIGHBOURS, DISTANCE = "mass on the 4-neighbour patches", "mean attention distance, patches"
RELEVANT, SIMILARITY = "mass on label-relevant patches", "CKA with the first block"
OTHER_IMAGES = "maps of other images, plus the excess of permuted labels"
NO_GRID = "patches do not form a square grid of at least 2 x 2"
UNUSABLE = "weights are not finite, or all weight is on the class token or the patch itself"
# images of the relevance, dimensions of their tokens, images per batch of CKA
STORED, PROJECTED, PER_BATCH = 1000, 8, 32


@lru_cache(maxsize=16)
def grid(places: int) -> tuple[Float[Tensor, "T T"], Float[Tensor, "T T"]] | None:
    """Returns the mask of the 4-neighbours and the Euclidean distances of a square grid, ``[T, T]``; None if
    there is none.
    """
    side = math.isqrt(places)
    if side < 2 or side**2 != places:
        return None
    at = torch.cartesian_prod(torch.arange(side), torch.arange(side)).double()
    distance = torch.cdist(at, at)
    return (distance - 1).abs().lt(1e-6).double(), distance


class PatchAttention(ClassTokenMetric, PerModule):
    """Mass on the 4-neighbours and mean attention distance of each head.

    Attributes:
        sums: by layer, first head and size of a row: number of images, then the sum of the maps, ``[heads, 1
            + queries * keys]``.
    """

    kinds: ClassVar[tuple[ActivationKind, ...]] = ("attention",)
    null_source: ClassVar = "untrained"
    theory, quantity, unit, side, source = NAME, NEIGHBOURS, "share", ">=", RAGHU

    def reset(self) -> None:
        """Starts a new measurement."""
        super().reset()
        self.first: int | None = None  # layer of the first module that was measured

    def place(self, activations: Activations, statistics: Tensor) -> Place:
        """Returns layer, first head and size of a row."""
        return (*super().place(activations, statistics), statistics.shape[1])

    def statistics(self, activations: Activations) -> Float[Tensor, "heads one_and_pairs"] | None:
        """Returns the maps of one module; None if it has no known weights."""
        if (weights := activations.weights) is None:
            return None
        skip = self.recognise(activations.tokens)
        n, heads, queries, keys = weights.shape
        self.first = activations.layer if self.first is None else self.first
        if not skip and self.first > 0 and grid(keys) is None and grid(keys - 1) is not None:
            skip = 1  # a class token that contents have reached, since only later modules are measured
        fits = n == len(activations.tokens) and queries == keys
        total = weights.detach().float().sum(0)[:, skip:, skip:] if fits else weights.new_zeros(heads, 0, 0)
        count = total.new_full((heads, 1), float(n))
        return torch.cat([count, total.flatten(1)], 1).double().cpu()

    def rows(
        self, place: Place, *sums: Float[Tensor, "heads _"], draws: int, generator: Generator | None
    ) -> Iterator[Measurement]:
        """Yields two rows per head, for each size of the images."""
        for part in sums:
            for head, (count, *flat) in enumerate(part.tolist()):
                places = math.isqrt(len(flat))
                columns = {"head": head, "n": int(count), "reason": NO_GRID}
                mass, distance, found, span = None, None, grid(places), {}
                if found is not None:
                    A = torch.tensor(flat, dtype=torch.float64).reshape(places, places)
                    A = A * (1 - torch.eye(places, dtype=torch.float64))
                    total = A.sum(1)
                    columns["reason"] = UNUSABLE
                    if bool(total.isfinite().all()) and bool((total > 1e-12 * count).all()):
                        near, far = found
                        mass, distance = (float(((A * each).sum(1) / total).mean()) for each in (near, far))
                        uniform = [float(each.sum() / (places * (places - 1))) for each in (near, far)]
                        side = math.isqrt(places)
                        span["bounds"] = (1.0, float(far.max()))
                        columns["note"] = (
                            f"grid of {side} x {side}; uniform attention: {uniform[0]:.3f} and "
                            f"{uniform[1]:.2f} patches"
                        )
                yield self.row(mass, **columns)
                yield self.other_row(DISTANCE, distance, **span, **columns)


class RelevantMass(ClassTokenMetric, PerModule):
    """Mass on label-relevant patches of each head; see the module's docstring.

    The first 1,000 images are stored: the tokens of the first module in at most eight random directions, the
    labels, and for each head the weights of the class token, or of the mean over patches.

    Attributes:
        sums: by layer and first head: weights on the patches, ``[n, heads, T]``; at (-1,): tokens and label,
            ``[n, T, 9]``. Of one dimension, and empty, where they are unknown.
        relevant: the most relevant patches of every second image, and the same for permuted labels; or the
            reason why there are none. Of the last call of :meth:`compute`.
    """

    kinds: ClassVar[tuple[ActivationKind, ...]] = ("attention",)
    theory, quantity, unit, side, source, null_kind = NAME, RELEVANT, "share", ">=", LI, OTHER_IMAGES

    def reset(self) -> None:
        """Starts a new measurement."""
        super().reset()
        self.first: Place | None = None  # the module whose tokens are the patches

    def add(self, place: Place, sums: Tensor) -> None:
        """Appends rows of further images."""
        stored = self.sums.get(place, torch.zeros(0))
        if stored.ndim == sums.ndim == 3 and stored.shape[1:] != sums.shape[1:]:
            sums = torch.zeros(0)  # images of another size are left out
        self.sums[place] = (
            (torch.cat([stored, sums.to(stored)]) if len(stored) else sums)[:STORED] if len(sums) else stored
        )

    def update(self, activations: Activations) -> None:
        """Adds the rows of one module; modules without known weights are skipped."""
        weights, labels = activations.weights, activations.labels
        if weights is None:
            return
        place, skip = (activations.layer, activations.first_head), self.recognise(activations.tokens)
        tokens = activations.tokens
        fits = (
            labels is not None
            and len(weights) == len(labels)
            and weights.shape[-1] == tokens.shape[1] >= 2 + skip
        )
        if not fits or labels is None or not bool((labels >= 0).any()):
            self.add(place, torch.zeros(0))
            return
        if not bool((labels >= 0).all()):
            known = labels >= 0
            weights, tokens = (x[known.to(x.device)] for x in (weights, tokens))
            labels = labels[known]
        if len(self.sums.get(place, ())) >= STORED:
            return
        query = weights[:, :, 0] if self.class_token else weights[:, :, skip:].float().mean(2)
        self.add(place, query[..., skip:].float().cpu())
        self.first = place if self.first is None else self.first
        if place == self.first:
            tokens = tokens[:, skip:].float()
            if tokens.shape[-1] > PROJECTED:
                directions = (
                    torch.randn(tokens.shape[-1], PROJECTED, generator=fixed_generator())
                    / tokens.shape[-1] ** 0.5
                )
                tokens = tokens @ directions.to(tokens)
            column = labels.to(tokens)[:, None, None].expand(-1, tokens.shape[1], 1)
            self.add(SHARED, torch.cat([tokens, column], -1).cpu())

    def compute(self, *, draws: int = 0, generator: Generator | None = None) -> Sequence[Measurement]:
        """Returns one row per layer and head, or one per module with the reason."""
        self.relevant = self._relevant(draws)
        return super().compute(draws=draws, generator=generator)

    def rows(
        self, place: Place, sums: Tensor, *, draws: int, generator: Generator | None
    ) -> Iterator[Measurement]:
        """Yields one row per head, or one with the reason."""
        if isinstance(self.relevant, str):
            yield self.row(None, reason=self.relevant, head=0)
            return
        top, permuted = self.relevant
        if not len(sums) or len(sums) // 2 != len(top) or sums.shape[-1] != top.shape[1]:
            yield self.row(None, reason="modules have seen different numbers of images or patches", head=0)
        elif not bool(sums.isfinite().all()):
            yield self.row(None, reason="weights are not finite", head=0)
        else:
            maps = sums[1::2].double()
            maps = maps / maps.sum(-1, keepdim=True).clamp(min=1e-300)
            # what the mean map over images, which depends on places only, does not explain
            rest, chance = maps - maps.mean(0), []
            for order, other in zip(permutations(len(top), draws), permuted):
                chance.append((_mass(maps, top[order]) + _mass(rest, other).clamp(min=0)).tolist())
            for head, mass in enumerate(_mass(maps, top).tolist()):
                yield self.row(mass, draws=[draw[head] for draw in chance], head=head, n=len(top))

    def _relevant(self, draws: int) -> tuple[Bool[Tensor, "n T"], list[Bool[Tensor, "n T"]]] | str:
        """Returns the most relevant patches of every second image, the same for permuted labels, or the
        reason why there are none.
        """
        stored = self.sums.get(SHARED, torch.zeros(0))
        if stored.ndim < 3:
            return "no labels, sequences in windows, or a single patch"
        labels = stored[:, 0, -1].long()
        different, labels = labels.unique(return_inverse=True)
        classes = len(different)
        if classes < 2:
            return "all images have one label"
        if len(labels) < 4 * classes:
            return (
                f"expected at least {4 * classes} images of {classes} classes, got {len(labels)}; measure "
                "more images"
            )
        if not bool(stored.isfinite().all()):
            return "tokens are not finite"
        # Centred at each place, so that words are about contents and not about positions.
        tokens = stored[..., :-1].double()
        ids = words_of(tokens - tokens.mean(0))
        counted, words = labels[::2], int(ids.max()) + 1

        def top(labels: Tensor) -> Bool[Tensor, "n T"]:
            found = word_posteriors(ids[::2], labels, words=words, classes=classes)
            return most_relevant(found.of_patches(ids[1::2])).bool()

        return top(counted), [top(counted[order]) for order in permutations(len(counted), draws)]


def _mass(maps: Float[Tensor, "n heads T"], top: Bool[Tensor, "n T"]) -> Float[Tensor, " heads"]:
    """Computes the mean over images of the weight on the marked patches, ``[heads]``."""
    return torch.einsum("nht,nt->h", maps, top.to(maps)) / len(top)


@converted(floats=("K", "L"))
def hsic(K: Float[Tensor, "n n"], L: Float[Tensor, "n n"]) -> Float[Tensor, ""]:
    r"""Computes the unbiased estimator of the Hilbert-Schmidt independence criterion from two Gram matrices
    of n >= 4 samples.

    With both diagonals set to 0,
    :math:`\bigl(\mathrm{tr}(KL) + \tfrac{1^\top K 1\, 1^\top L 1}{(n-1)(n-2)} - \tfrac{2}{n-2} 1^\top K L
    1\bigr) / (n(n-3))`.

    Raises:
        ValueError: there are fewer than four samples, or the matrices differ in size.
    """
    n = len(K) if K.ndim else 0
    if n < 4 or not K.shape == L.shape == (n, n):
        raise ValueError(
            f"K and L must be Gram matrices of the same n >= 4 samples, got {list(K.shape)} and "
            f"{list(L.shape)}; add samples"
        )
    free = 1 - torch.eye(n, dtype=K.dtype, device=K.device)
    K, L = K * free, L * free
    k, m = K.sum(1), L.sum(1)
    return ((K * L).sum() + k.sum() * m.sum() / ((n - 1) * (n - 2)) - 2 * (k @ m) / (n - 2)) / (n * (n - 3))


class LayerSimilarity(PerModule):
    """Linear CKA of each block with the first one, from up to 32 images of each batch.

    Attributes:
        sums: by layer and 0: images, batches, and the sums over batches of HSIC(first, layer), HSIC(layer,
            layer), HSIC(first, first), ``[5]``.
    """

    kinds: ClassVar[tuple[ActivationKind, ...]] = ("features",)
    null_source: ClassVar = "untrained"
    theory, quantity, source = NAME, SIMILARITY, KORNBLITH

    def reset(self) -> None:
        """Starts a new measurement."""
        super().reset()
        self.first: int | None = None
        self.gram = torch.zeros(0, 0)  # of the first block, in the current batch

    def statistics(self, activations: Activations) -> Float[Tensor, "5"]:
        """Returns the statistics of one block of one batch."""
        output = activations.output.detach()
        n, layer = len(output), activations.layer
        self.first = layer if self.first is None else min(self.first, layer)
        sums = torch.tensor([float(n), 1, 0, 0, 0], dtype=torch.float64)
        x = output[torch.linspace(0, n - 1, min(n, PER_BATCH)).long().to(output.device)].flatten(1).double()
        x = x - x.mean(0)
        # the CKA of one batch does not depend on it, and all batches count alike
        scale = x.square().mean().sqrt()
        gram = (x @ x.mT / scale.square().clamp(min=1e-300)).cpu() / x.shape[1]
        if layer == self.first:
            self.gram = gram
        if len(gram) >= 4 and gram.shape == self.gram.shape:
            sums[2:] = torch.stack([hsic(self.gram, gram), hsic(gram, gram), hsic(self.gram, self.gram)])
        return sums

    def rows(
        self, place: Place, sums: Float[Tensor, "5"], *, draws: int, generator: Generator | None
    ) -> Iterator[Measurement]:
        """Yields one row, none of the first block; with the reason if there is a single block."""
        count, _, cross, own, reference = sums.tolist()
        if len(self.sums) == 1:
            yield self.row(None, reason="there is only one block", n=int(count))
        elif place != min(self.sums):
            finite = math.isfinite(cross) and math.isfinite(own) and math.isfinite(reference)
            value = cross / (own * reference) ** 0.5 if finite and own > 0 and reference > 0 else None
            reason = "features are constant or not finite, or batches have fewer than four images"
            yield self.row(value, reason=reason, n=int(count))


IN_NETWORKS = InNetworks(
    metrics=lambda: (PatchAttention(), RelevantMass(), LayerSimilarity()),
    headline=RELEVANT,
    side=">=",
    meaning="attention to the fifth of the patches that say most about the class",
)

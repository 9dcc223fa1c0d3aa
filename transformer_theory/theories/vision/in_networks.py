r"""What vision transformers attend to: neighbouring patches, label-relevant patches, and how far; and how
alike their layers are.

The patches must lie on a grid (:attr:`.Activations.grid`); some may be missing. Per head, passively:

* **mass on the 4-neighbours**, the weight of a patch on the patches beside, above and below it, as a share of
  its weight on all other patches; uniform attention has the mean number of neighbours over (places - 1).
  **Mean attention distance** of the same shares, in patches (:cite:t:`raghu2021vision`). Both are means over
  images and patches; their null are untrained networks.
* **mass on label-relevant patches**: the weight of the token that the network reads, or of the mean over the
  patches, on the fifth of the patches with the largest relevance (:mod:`.relevance`). Words are k-means
  centres of the tokens of the first module at each place, posteriors are counted on every second image, and
  the mass is measured on the others. The null gives each image the map of another one, so it keeps what
  places alone explain. Rare words have uncertain posteriors and look relevant: where permuted labels have
  more mass than the maps of other images, this excess is added to the null.
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
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor

from ...core.measurement import Measurement
from ...core.metric import SHARED, WORDS, ActivationKind, Activations, Grid, PerModule, Place
from ...core.sources import Source
from ...core.statistics import fixed_generator, permutations
from ...core.theory import InNetworks
from ...core.validation import converted, in_range
from ...metrics.token_layout import mean_query
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
OTHER_KEYS = "attention in windows, or to keys other than the patches"
NO_PATCHES = "no labels, sequences in windows, a single patch, or patches that differ between images"
TOO_SMALL = "the grid has a single place"
UNUSABLE = "weights are not finite, or all weight is on the class token or the patch itself"
# images of the relevance, dimensions of their tokens, images per batch of CKA
STORED, PROJECTED, PER_BATCH = 1000, 8, 32


@lru_cache(maxsize=16)
def grid_distances(rows: int, columns: int) -> tuple[Float[Tensor, "T T"], Float[Tensor, "T T"]]:
    """Returns the mask of the 4-neighbours and the Euclidean distances of the places of a grid, ``[T, T]``,
    row by row.
    """
    at = torch.cartesian_prod(torch.arange(rows), torch.arange(columns)).double()
    distance = torch.cdist(at, at)
    return (distance - 1).abs().lt(1e-6).double(), distance


class PatchAttention(PerModule):
    """Mass on the 4-neighbours and mean attention distance of each head.

    Attributes:
        sums: by layer, first head, and rows and columns of the grid: number of images, number of patches with
            weight on others, and the sums of both quantities over these, ``[heads, 4]``; zeros for modules
            without a grid, whose rows and columns are 0.
        no_grid: the reason why the last of these modules has none.
    """

    kinds: ClassVar[tuple[ActivationKind, ...]] = ("attention",)
    null_source: ClassVar = "networks"
    theory, quantity, unit, side, source = NAME, NEIGHBOURS, "share", ">=", RAGHU

    def reset(self) -> None:
        """Starts a new measurement."""
        super().reset()
        self.no_grid = OTHER_KEYS

    def update(self, activations: Activations) -> None:
        """Adds the maps of one module; modules without known weights are skipped."""
        weights, grid = activations.weights, activations.grid
        if weights is None:
            return
        place = activations.layer, activations.first_head
        n, heads, queries, keys = weights.shape
        fits = n == len(activations.tokens) and queries == keys == activations.tokens.shape[1]
        if isinstance(grid, str) or not fits or min(grid.rows, grid.columns) < 1:
            self.no_grid = grid if isinstance(grid, str) else OTHER_KEYS
            self.add((*place, 0, 0), torch.zeros(heads, 4, dtype=torch.float64))
            return
        self.add((*place, grid.rows, grid.columns), _grid_sums(weights.detach(), grid))

    def rows(
        self, place: Place, *sums: Float[Tensor, "heads _"], draws: int, generator: Generator | None
    ) -> Iterator[Measurement]:
        """Yields two rows per head, for each size of the images."""
        sizes = sorted(key[2:] for key in self.sums if key[:2] == place)
        for (height, width), part in zip(sizes, sums):
            places, span, note = height * width, {}, ""
            if places > 1:
                near, far = grid_distances(height, width)
                uniform = [float(each.sum() / (places * (places - 1))) for each in (near, far)]
                span["bounds"] = (1.0, float(far.max()))
                note = (
                    f"grid of {height} x {width}; uniform attention: {uniform[0]:.3f} and {uniform[1]:.2f} "
                    "patches"
                )
            for head, (count, patches, mass, distance) in enumerate(part.tolist()):
                reason = UNUSABLE if places > 1 else TOO_SMALL if places else self.no_grid
                found = (mass / patches, distance / patches) if patches else (None, None)
                columns = {"head": head, "n": int(count), "reason": reason, "note": note if patches else ""}
                yield self.row(found[0], **columns)
                yield self.other_row(DISTANCE, found[1], **span, **columns)


def _grid_sums(weights: Float[Tensor, "n heads T T"], grid: Grid) -> Float[Tensor, "heads 4"]:
    """Returns the sums of :class:`PatchAttention` of one batch."""
    at = grid.places.to(weights.device)
    if bool((at == at[:1]).all()):
        at = at[:1]
    patch = at >= 0
    pairs = patch[:, :, None] & patch[:, None] & ~torch.eye(at.shape[1], dtype=torch.bool, device=at.device)
    row, column = at.clamp(min=0)[:, :, None], at.clamp(min=0)[:, None]
    near, far = (each.to(at.device)[row, column] for each in grid_distances(grid.rows, grid.columns))
    # The sums over other patches of A, and of A times either distance, are one product for each query.
    factors = torch.stack([torch.ones_like(near), near, far], -1) * pairs[..., None]
    A = weights.to(torch.promote_types(weights.dtype, torch.float32))
    total, *parts = (A.transpose(1, 2) @ factors.to(A.dtype)).double().unbind(-1)  # [n, T, heads]
    # Rows without weight on other patches, or with weights that are not finite, have no share.
    valid = total.isfinite() & (total > 1e-12)
    sums = [valid.double().sum((0, 1))]
    sums += [torch.where(valid, part / total, 0.0).sum((0, 1)) for part in parts]
    count = torch.full_like(sums[0], float(len(weights)))
    return torch.stack([count, *sums], 1).cpu()


class RelevantMass(PerModule):
    """Mass on label-relevant patches of each head; see the module's docstring.

    The first 1,000 images of each number of patches are stored: the tokens of the first module in at most
    eight random directions, the labels, and for each head the weights of the class token, or of the mean over
    patches. The number of patches with most images is measured, without images whose tokens are not finite.

    Attributes:
        sums: by layer, first head and number of patches T: weights on the patches, ``[n, heads, T]``; at
            (-1, T): tokens and label, ``[n, T, 9]``. At T = 0, of one dimension, and empty, where they are
            unknown.
        patches: number of patches that is measured, of the last call of :meth:`compute`.
        finite: which of its images have finite tokens.
        relevant: the most relevant patches of every second image, and the same for permuted labels; or the
            reason why there are none.
    """

    kinds: ClassVar[tuple[ActivationKind, ...]] = ("attention",)
    theory, quantity, unit, side, source, null_kind = NAME, RELEVANT, "share", ">=", LI, OTHER_IMAGES

    def reset(self) -> None:
        """Starts a new measurement."""
        super().reset()
        self.first: Place | None = None  # the module whose tokens are the patches
        self.no_patches = NO_PATCHES  # the reason if no module has any

    def add(self, place: Place, sums: Tensor) -> None:
        """Appends rows of further images."""
        stored = self.sums.get(place, torch.zeros(0))
        self.sums[place] = torch.cat([stored, sums.to(stored)])[:STORED] if len(stored) else sums[:STORED]

    def update(self, activations: Activations) -> None:
        """Adds the rows of one module; modules without known weights are skipped."""
        weights, labels = activations.weights, activations.labels
        if weights is None:
            return
        place = activations.layer, activations.first_head
        patches = _patches(activations)
        if activations.grid == WORDS:
            self.no_patches = WORDS
        fits = (
            labels is not None
            and len(weights) == len(labels)
            and weights.shape[-1] == activations.tokens.shape[1]
            and patches is not None
            and len(patches) >= 2
        )
        if not fits or labels is None or patches is None:
            self.add((*place, 0), torch.zeros(0))
            return
        labels = labels.to(weights.device)
        known = (labels >= 0).nonzero().squeeze(1)
        if not len(known):
            self.add((*place, 0), torch.zeros(0))
            return
        place = (*place, len(patches))
        if len(self.sums.get(place, ())) >= STORED:
            return
        query = activations.shared(mean_query)
        assert query is not None
        self.add(place, query[known][..., patches].float().cpu())
        self.first = place[:2] if self.first is None else self.first
        if place[:2] == self.first:
            tokens = activations.tokens[known][:, patches].float()
            if tokens.shape[-1] > PROJECTED:
                directions = (
                    torch.randn(tokens.shape[-1], PROJECTED, generator=fixed_generator())
                    / tokens.shape[-1] ** 0.5
                )
                tokens = tokens @ directions.to(tokens)
            column = labels[known].to(tokens)[:, None, None].expand(-1, tokens.shape[1], 1)
            self.add((*SHARED, len(patches)), torch.cat([tokens, column], -1).cpu())

    def compute(self, *, draws: int = 0, generator: Generator | None = None) -> Sequence[Measurement]:
        """Returns one row per layer and head, or one per module with the reason."""
        sizes = {place[1]: len(x) for place, x in self.sums.items() if place[:1] == SHARED}
        self.patches = max(sizes, key=lambda T: (sizes[T], T), default=0)
        self.finite = torch.zeros(0, dtype=torch.bool)
        self.relevant = self._relevant(draws)
        return super().compute(draws=draws, generator=generator)

    def rows(
        self, place: Place, *sums: Tensor, draws: int, generator: Generator | None
    ) -> Iterator[Measurement]:
        """Yields one row per head, or one with the reason."""
        if isinstance(self.relevant, str):
            yield self.row(None, reason=self.relevant, head=0)
            return
        top, permuted = self.relevant
        stored = self.sums.get((*place, self.patches), torch.zeros(0))
        if len(stored) != len(self.finite):
            yield self.row(None, reason="modules have seen different numbers of images or patches", head=0)
            return
        stored = stored[self.finite]
        if not bool(stored.abs().amax().isfinite()):
            yield self.row(None, reason="weights are not finite", head=0)
        else:
            maps = stored[1::2].double()
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
        stored = self.sums.get((*SHARED, self.patches), torch.zeros(0))
        if stored.ndim < 3:
            return self.no_patches
        self.finite = stored.abs().flatten(1).amax(1).isfinite()
        stored = stored[self.finite]
        if not len(stored):
            return "tokens are not finite"
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
        # Centred at each place, so that words are about contents and not about positions.
        tokens = stored[..., :-1].double()
        ids = words_of(tokens - tokens.mean(0))
        counted, words = labels[::2], int(ids.max()) + 1

        def top(labels: Tensor) -> Bool[Tensor, "n T"]:
            found = word_posteriors(ids[::2], labels, words=words, classes=classes)
            return most_relevant(found.of_patches(ids[1::2])).bool()

        return top(counted), [top(counted[order]) for order in permutations(len(counted), draws)]


def _patches(activations: Activations) -> Int[Tensor, " patches"] | None:
    """Returns the positions of the patches, which must be those of all images; None if they are not, or if
    the tokens are words.
    """
    content, grid, T = activations.content, activations.grid, activations.tokens.shape[1]
    if grid == WORDS or (content is not None and not bool((content == content[:1]).all())):
        return None
    if isinstance(grid, Grid) and not bool((grid.places == grid.places[:1]).all()):
        return None
    return torch.arange(T) if content is None else content[0].nonzero().squeeze(1)


def _mass(maps: Float[Tensor, "n heads T"], top: Bool[Tensor, "n T"]) -> Float[Tensor, " heads"]:
    """Computes the mean over images of the weight on the marked patches, ``[heads]``."""
    return torch.einsum("nht,nt->h", maps, top.to(maps)) / len(top)


@converted(floats=("K", "L"))
@in_range
def hsic(K: Float[Tensor, "n n"], L: Float[Tensor, "n n"]) -> Float[Tensor, ""]:
    r"""Computes the unbiased estimator of the Hilbert-Schmidt independence criterion from two Gram matrices
    of n >= 4 samples.

    With both diagonals set to 0,
    :math:`\bigl(\mathrm{tr}(KL) + \tfrac{1^\top K 1\, 1^\top L 1}{(n-1)(n-2)} - \tfrac{2}{n-2} 1^\top K L
    1\bigr) / (n(n-3))`.

    Raises:
        ValueError: there are fewer than four samples, the matrices differ in size, or a number is not finite
            or becomes so.
    """
    n = len(K) if K.ndim else 0
    if n < 4 or not K.shape == L.shape == (n, n):
        raise ValueError(
            f"K and L must be Gram matrices of the same n >= 4 samples, got {list(K.shape)} and "
            f"{list(L.shape)}; add samples"
        )
    return _hsic(K, L)


def _hsic(K: Float[Tensor, "n n"], L: Float[Tensor, "n n"]) -> Float[Tensor, ""]:
    """Computes :func:`hsic` without checks."""
    n, dtype = len(K), K.dtype
    # Constants that are added to a matrix cancel, which takes the digits of float64.
    free = 1 - torch.eye(n, dtype=torch.float64, device=K.device)
    K, L = K * free, L * free
    k, m = K.sum(1), L.sum(1)
    value = ((K * L).sum() + k.sum() * m.sum() / ((n - 1) * (n - 2)) - 2 * (k @ m) / (n - 2)) / (n * (n - 3))
    return value.to(dtype)


class LayerSimilarity(PerModule):
    """Linear CKA of each block with the first one, from up to 32 images of each batch.

    Attributes:
        sums: by layer and 0: images, batches, and the sums over batches of HSIC(first, layer), HSIC(layer,
            layer), HSIC(first, first), ``[5]``.
    """

    kinds: ClassVar[tuple[ActivationKind, ...]] = ("features",)
    takes_padding = True
    null_source: ClassVar = "networks"
    theory, quantity, source = NAME, SIMILARITY, KORNBLITH

    def reset(self) -> None:
        """Starts a new measurement."""
        super().reset()
        self.first: int | None = None
        # of the first block, in the current batch: number of images, which of them are compared, and their
        # inner products
        self.count, self.images, self.gram = 0, torch.zeros(0, dtype=torch.long), torch.zeros(0, 0)

    def statistics(self, activations: Activations) -> Float[Tensor, "5"]:
        """Returns the statistics of one block of one batch."""
        output = activations.output.detach()
        n, layer = len(output), activations.layer
        self.first = layer if self.first is None else min(self.first, layer)
        sums = torch.tensor([float(n), 1, 0, 0, 0], dtype=torch.float64)
        # Images with values that are not finite are left out.
        finite = output.flatten(1).sum(1, dtype=torch.float64).isfinite().cpu()
        images = finite.nonzero()[:, 0] if layer == self.first else self.images
        if layer == self.first:
            images = images[torch.linspace(0, len(images) - 1, min(len(images), PER_BATCH)).long()]
        elif n != self.count:
            return sums
        kept = finite[images]
        x = output[images[kept].to(output.device)].flatten(1).double()
        x = x - x.mean(0)
        # the CKA of one batch does not depend on it, and all batches count alike
        scale = x.square().mean().sqrt()
        gram = (x @ x.mT / scale.square().clamp(min=1e-300)).cpu() / x.shape[1]
        if layer == self.first:
            self.count, self.images, self.gram = n, images, gram
        first = self.gram[kept][:, kept]
        if len(gram) >= 4:
            sums[2:] = torch.stack([_hsic(first, gram), _hsic(gram, gram), _hsic(first, first)])
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
    of_labels=True,
    meaning="attention to the fifth of the patches that say most about the class",
)

r"""What the heads of a network will hold on to in longer sequences. Per head, passively:

* **gap over the log of the keys**, the mean of :math:`g / \log(n - 1)` over queries with n >= 3 allowed keys;
  1 is the critical value, at which the winner holds one half (:mod:`.dispersion`). The null has Gaussian
  scores with the variance of each measured row; untrained networks are added by the caller.
* **predicted weight of the chosen key** at 2n and 16n keys, from the same gaps. If the winner stays the only
  one of its kind, it is :math:`1 / (1 + (mn - 1) e^{-g})`. If further keys are as good as the first n, the
  winner keeps a share of :math:`1/m` of its weight.
* **share kept with doubled keys**: a query also sees the keys of another sequence of the batch, at the same
  positions, and keeps the share :math:`R = Z_1/(Z_1 + Z_2)` of its weights on its own keys. Nothing is run
  again: R is computed from queries and keys. It is 1/2 if the keys of both sequences are exchangeable, which
  is the assumption of the second prediction; more if the head attends to the contents of its own sequence.
  The null exchanges the keys of both sequences at random positions. A second row has the weight of the chosen
  key with doubled keys over half of its weight, which is 1 where R and the weight are not correlated.
* **norm of the sink's value** over the mean norm of the values, at the key position with the largest mean
  weight (:mod:`.responses`).

Scores depend on queries and keys alone where :math:`\log a_{ij} = c\, q_i^\top k_j + \text{const}_i`; c is
fitted, and a head with a bias, relative positions as a bias, or a cap has a row with this reason. With rotary
positions the product has this form at the same positions, but keys at larger distances are of another source.
Behind a causal mask further keys are farther away as well. So predictions have the verdict "not covered"
where there is a mask, or queries and keys are not linear in the tokens. Sources:
:cite:t:`velickovic2025softmax`; the quantities are our own.
"""

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor

from ...core.measurement import Measurement
from ...core.metric import ActivationKind, Activations, PerModule, Place
from ...core.sources import Source
from ...core.statistics import FIXED_SEED, evenly_spaced, fixed_generator
from ...core.theory import InNetworks
from ...metrics.attention import row_deviation
from ...metrics.networks import MIN_ROW_SUM
from .responses import RESPONSES, SinkValue

NAME, OWN = "length", Source("velickovic2025softmax", status="own")
GAP, PREDICTED = "gap over the log of the keys", "predicted weight of the chosen key"
KEPT, HALVED = "share kept with doubled keys", "weight of the chosen key with doubled keys over half of it"
GAUSSIAN, EXCHANGED = "Gaussian scores of the same variance", "keys exchanged at random positions"
TIMES = (2, 16)
# sequences, queries of each, sequences in pairs, of a batch; stored rows of a place
SEQUENCES, QUERIES, PAIRED, ROWS = 32, 16, 16, 1024
BUDGET = 2**23  # numbers drawn for the null of one module
FIT_RTOL = 1e-3  # largest root mean square of log a - c q k, relative to that of the centred log a
NO_ROWS = "no query has three allowed keys and finite weights"
REASONS = {
    -1: "batches of one sequence have no other keys",
    -2: "queries and keys are unknown, of windows, or without a learnt sink",
    -3: "scores are not seen to be a multiple of the products of queries and keys: a bias, relative "
    "positions, a cap, a learnt sink, weights in half precision, or weights that all underflow but one",
}


def allowed_keys(
    activations: Activations, weights: Float[Tensor, "n heads q k"]
) -> Bool[Tensor, "n heads q k"]:
    """Returns the mask of the keys that queries may see, in the shape of the weights."""
    mask = activations.mask
    return torch.ones_like(weights, dtype=torch.bool) if mask is None else mask.expand(weights.shape)


def random_queries(rows: int, size: int) -> Int[Tensor, "rows chosen"]:
    """Draws up to 16 of ``size`` query positions for each of the rows, without replacement and in order.

    Every position has the same chance, so a class token counts for 1/T in expectation; evenly spaced
    positions would always take it. The positions depend on the two numbers alone: heads, layers and networks
    share them.
    """
    generator = torch.Generator().manual_seed(FIXED_SEED + size)
    return torch.rand(rows, size, generator=generator).argsort(1)[:, :QUERIES].sort(1).values


def at_queries(
    values: Float[Tensor, "n heads q _"] | Bool[Tensor, "n heads q _"],
    rows: Int[Tensor, " rows"],
    queries: Int[Tensor, "rows chosen"],
) -> Tensor:
    """Returns the values of sequences, each at its own query positions, ``[rows, heads, chosen, _]``. All are
    on one device.
    """
    return values.transpose(1, 2)[rows[:, None], queries].transpose(1, 2)


class ScoreGaps(PerModule):
    """Gap over the log of the keys, and predicted weights of the chosen key, of each head; see the module's
    docstring.

    Of each batch up to 32 sequences count, evenly spaced, with 16 random queries of each, and 1,024 rows of
    weights in all.

    Attributes:
        sums: by layer and first head: number of allowed keys, standard deviation of the scores, and gap, NaN
            in rows that do not count; then whether predictions are covered, that is, queries and keys are
            linear in the tokens, and there is no mask, ``[rows, heads, 4]``.
    """

    kinds: ClassVar[tuple[ActivationKind, ...]] = ("attention",)
    keeps = ROWS
    theory, quantity, side, source, null_kind = NAME, GAP, ">=", OWN, GAUSSIAN

    def statistics(self, activations: Activations) -> Float[Tensor, "rows heads 4"] | None:
        """Returns rows of one module; None if it has no known weights, or enough rows are stored."""
        weights, place = activations.weights, (activations.layer, activations.first_head)
        if weights is None or not weights.numel() or len(self.sums.get(place, ())) >= ROWS:
            return None
        rows = evenly_spaced(len(weights), SEQUENCES)
        queries = random_queries(len(rows), weights.shape[2]).to(weights.device)
        rows = rows.to(weights.device)
        A, allowed = at_queries(weights, rows, queries), None
        total, n = A.sum(-1), A.new_tensor(A.shape[-1], dtype=torch.float32)
        if activations.mask is not None:
            masks = activations.mask.shape[1]
            allowed = activations.mask.expand(len(weights), masks, *weights.shape[2:])
            allowed = at_queries(allowed, rows, queries).float()
            n = allowed.sum(-1)
        valid = total.isfinite() & (total > MIN_ROW_SUM) & (n >= 3)
        # Log-weights are the scores up to a constant per row. Weights that underflow are cut off at the
        # smallest normal number of their dtype, so g is at most 87 in float32 and 9.7 in float16.
        tiny = max(torch.finfo(A.dtype).tiny, torch.finfo(torch.float32).tiny)
        A = torch.where(valid[..., None], A, 1.0).float().clamp(min=tiny)
        scores = A.log()
        spread, A = row_deviation(scores, allowed), A if allowed is None else A * allowed
        # The gap of :func:`.score_gap`, from weights. The others are summed without the largest: 1 - a_max
        # would lose all digits in a sharp head. Of several equal ones, all but one are others.
        best = A.amax(-1, keepdim=True)
        largest = best == A
        others = A.masked_fill(largest, 0.0).sum(-1) + (largest.float().sum(-1) - 1) * best[..., 0]
        gap = (best[..., 0] * (n - 1) / others).log()
        found = torch.where(valid[..., None], torch.stack([n.expand_as(gap), spread, gap], -1), math.nan)
        covered = float(activations.mask is None and activations.has_bilinear)
        found = torch.cat([found, torch.full_like(found[..., :1], covered)], -1)
        return found.transpose(1, 2).flatten(0, 1).cpu()

    def rows(
        self,
        place: Place,
        sums: Float[Tensor, "rows heads 4"],
        *,
        draws: int,
        generator: Generator | None,
    ) -> Iterator[Measurement]:
        """Yields five rows per head; without rows one with the reason."""
        n, _, gap, covered = sums.double().unbind(2)
        ratios, weights = gap / (n - 1).log(), predictions(n, gap)
        means = torch.stack([ratios, *weights.values()]).nanmean(1).T.tolist()
        counts = n.isfinite().sum(0).tolist()
        for head, (count, (ratio, *predicted)) in enumerate(zip(counts, means)):
            columns = {"head": head, "n": count}
            if not count:
                yield self.row(None, reason=NO_ROWS, **columns)
                continue
            values = sums[n[:, head].isfinite(), head, :3].double()
            chance = gaussian_ratios(values, draws, generator, heads=sums.shape[1]) if draws else ()
            yield self.row(ratio, draws=chance, **columns)
            columns |= {"unit": "share", "note": f"with n keys {predicted[0]:.3f}"}
            columns["verdict"] = None if bool(covered[0, 0]) else "not covered"
            for (times, case), value in zip([*weights][1:], predicted[1:]):
                yield self.other_row(PREDICTED, value, at={"keys over n": times, "case": case}, **columns)


def predictions(
    keys: Float[Tensor, "*rows"], gap: Float[Tensor, "*rows"]
) -> dict[tuple[int, str], Float[Tensor, "*rows"]]:
    """Returns the weight of the chosen key with n keys, and its predictions at 2n and 16n keys, two each, by
    the multiple of n and the case.
    """
    now = torch.sigmoid(gap - (keys - 1).log())
    found = {(1, ""): now}
    for times in TIMES:
        found[times, "one winner"] = torch.sigmoid(gap - (times * keys - 1).log())
        found[times, "same source"] = now / times
    return found


def gaussian_ratios(
    rows: Float[Tensor, "rows 3"], draws: int, generator: Generator | None, *, heads: int = 1
) -> tuple[float, ...]:
    """Draws the mean of g / log(n - 1) for Gaussian scores with the number of keys and the variance of each
    row.

    Args:
        rows: number of keys, standard deviation and gap, ``[rows, 3]``.
        draws: number of draws.
        generator: random generator. None: the fixed one.
        heads: number of heads that share the budget of numbers.
    """
    longest = int(rows[:, 0].max())
    used = rows[evenly_spaced(len(rows), max(16, BUDGET // (max(draws, 1) * longest * heads)))]
    measured = rows[:, 2] / (rows[:, 0] - 1).log()
    # Long sequences have too many numbers for all rows. Differences between drawn and measured ratios of the
    # same rows then take the place of the drawn ratios, so that the choice of the rows does not shift the
    # null.
    shift = float(measured.mean()) - float((used[:, 2] / (used[:, 0] - 1).log()).mean())
    # keys that are not allowed lie at minus infinity, and 0 * inf is NaN
    n, spread = used[:, 0], used[:, 1, None].clamp(min=1e-300)
    keys = tuple(n.tolist())
    drawn = fixed_rows(keys, draws) if generator is None else normalised_rows(keys, draws, generator)
    # The gap of :func:`.score_gap`, with one further key, the second, outside the logarithm: the sum is at
    # least 1.
    gaps = (spread[:, 0] * lead - ((spread * others).exp().sum(-1) / (n - 1)).log() for lead, others in drawn)
    return tuple(float((gap / (n - 1).log()).mean()) + shift for gap in gaps)


NormalisedRows = list[tuple[Float[Tensor, " rows"], Float[Tensor, "rows others"]]]


def normalised_rows(keys: tuple[float, ...], draws: int, generator: Generator) -> NormalisedRows:
    """Draws rows of n Gaussian numbers of mean 0 and variance 1.

    Returns:
        For each draw the difference of the two largest of each row, and the others without the largest minus
        the second, minus infinity
        beyond n: ``[rows]`` and ``[rows, max n - 1]``.
    """
    n, longest = torch.tensor(keys, dtype=torch.float64), int(max(keys))
    allowed, found = torch.arange(longest) < n[:, None], []
    for _ in range(draws):
        z = torch.randn(len(keys), longest, generator=generator, dtype=torch.float64) * allowed
        z = (z - z.sum(-1, keepdim=True) / n[:, None]) * allowed
        z = z / (z.square().sum(-1, keepdim=True) / n[:, None]).sqrt()
        z = z.masked_fill(~allowed, -math.inf).sort(-1, descending=True).values
        found.append((z[:, 0] - z[:, 1], z[:, 1:] - z[:, 1:2]))
    return found


@lru_cache(maxsize=1)
def fixed_rows(keys: tuple[float, ...], draws: int) -> NormalisedRows:
    """Returns :func:`normalised_rows` of the fixed generator: heads and layers whose rows have the same
    numbers of keys share them.
    """
    return normalised_rows(keys, draws, fixed_generator())


class KeptShare(PerModule):
    """Share kept with doubled keys of each head; see the module's docstring. Up to 16 sequences of each batch
    count, with 16 random queries of each.

    Attributes:
        sums: by layer, first head and keys T: number of rows, the sums of the largest weight and of that with
            doubled keys, and of the weights on the own keys and on those of the other sequence with doubled
            keys, ``[heads, 3 + 2T]``. By layer, first head and a negative number: that reason for no value.
    """

    kinds: ClassVar[tuple[ActivationKind, ...]] = ("attention",)
    theory, quantity, unit, source, null_kind = NAME, KEPT, "share", OWN, EXCHANGED

    def update(self, activations: Activations) -> None:
        """Adds the rows of one module; modules without known weights are skipped."""
        weights = activations.weights
        if weights is None or not weights.numel():
            return
        place, found = (activations.layer, activations.first_head), doubled_weights(activations)
        if isinstance(found, int):
            self.add((*place, found), torch.zeros(weights.shape[1], 1, dtype=torch.float64))
            return
        own, other, before, valid = found
        parts = torch.stack([valid.float(), before, own.amax(-1)], -1)
        sums = [part.sum((0, 2), dtype=torch.float64) for part in (parts, own, other)]
        self.add((*place, own.shape[-1]), torch.cat(sums, 1).cpu())

    def rows(
        self, place: Place, *sums: Float[Tensor, "heads _"], draws: int, generator: Generator | None
    ) -> Iterator[Measurement]:
        """Yields two rows per head, or one with the reason."""
        parts = {key[2]: part for key, part in self.sums.items() if key[:2] == place}
        known = {T: part for T, part in parts.items() if T > 0 and bool((part[:, 0] > 0).all())}
        if not known:
            yield self.row(None, reason=REASONS.get(min(parts), NO_ROWS), head=0)
            return
        count, before, after = torch.stack([part[:, :3] for part in known.values()]).sum(0).unbind(1)
        # A draw exchanges the keys of both sequences at random positions, the same in all heads: the share is
        # linear in the weights.
        exchanged = torch.zeros(draws, len(count), dtype=torch.float64)
        value = torch.zeros_like(count)
        for T, part in sorted(known.items()):
            own, other = part[:, 3 : 3 + T], part[:, 3 + T :]
            value = value + own.sum(1)
            kept = torch.rand(draws, T, generator=fixed_generator() if generator is None else generator) < 0.5
            for total, each in zip(exchanged, kept):
                total += torch.where(each, own, other).sum(1)
        found = zip(count.tolist(), (value / count).tolist(), (2 * after / before).tolist())
        for head, (n, share, ratio) in enumerate(found):
            yield self.row(share, draws=(exchanged[:, head] / n).tolist(), head=head, n=int(n))
            yield self.other_row(HALVED, ratio, predicted=1.0, head=head, n=int(n))


Doubled = tuple[
    Float[Tensor, "n heads q k"],
    Float[Tensor, "n heads q k"],
    Float[Tensor, "n heads q"],
    Bool[Tensor, "n heads q"],
]


def doubled_weights(activations: Activations) -> Doubled | int:
    """Computes the weights if each query also sees the keys of another sequence; the key of a reason in
    :data:`REASONS` if it cannot.

    Returns:
        Weights on the own keys and on the others, ``[n, heads, q, k]`` each; the largest weight without the
        others, and which rows count, ``[n, heads, q]``. Weights of rows that do not count are 0.
    """
    weights, query, key = activations.weights, activations.query, activations.key
    assert weights is not None
    n, heads, q, k = weights.shape
    if (
        query is None
        or key is None
        or query.shape[:3] != (n, heads, q)
        or key.shape[:3] != (n, heads, k)
        or n != len(activations.tokens)
    ):
        return -2
    finite = weights.sum((1, 2, 3)).isfinite().nonzero()[:, 0]  # a pair needs two sequences with weights
    used = finite if len(finite) else torch.arange(n, device=weights.device)
    if len(used) < 2:
        return -1
    rows = used[evenly_spaced(len(used), PAIRED)]
    rows = rows[: len(rows) // 2 * 2]
    queries = random_queries(len(rows), q).to(rows.device)
    partner = rows.roll(len(rows) // 2)
    A, allowed, both_allowed = at_queries(weights, rows, queries).float(), None, None
    vectors, keys = at_queries(query, rows, queries).float(), key[rows].float()
    own, other = (vectors @ each.mT for each in (keys, keys.roll(len(rows) // 2, 0)))
    if activations.mask is not None:
        mask = allowed_keys(activations, weights)
        allowed, other_allowed = at_queries(mask, rows, queries), at_queries(mask, partner, queries)
        both_allowed = torch.cat([allowed, other_allowed], -1)
    fit = fitted_scores(A, own, allowed)
    if fit is None:
        return -3
    scale, constant = fit
    total = A.sum(-1)
    valid, scores = total.isfinite() & (total > MIN_ROW_SUM), scale * torch.cat([own, other], -1) - constant
    if both_allowed is not None:
        valid = valid & both_allowed[..., :k].any(-1) & both_allowed[..., k:].any(-1)
        scores = scores.masked_fill(~both_allowed, -math.inf)
    both, before = scores.softmax(-1), A.amax(-1)
    if not bool(valid.all()):
        both, before = torch.where(valid[..., None], both, 0.0), torch.where(valid, before, 0.0)
    return both[..., :k], both[..., k:], before, valid


def fitted_scores(
    weights: Float[Tensor, "n heads q k"],
    products: Float[Tensor, "n heads q k"],
    allowed: Bool[Tensor, "n heads q k"] | None,
) -> tuple[Float[Tensor, "heads 1 1"], Float[Tensor, "n heads q 1"]] | None:
    """Fits log a = c q k - constant, with c for each head and a constant for each row; None if there is a
    residual or nothing to fit.

    Args:
        weights, products: attention weights, and products of queries and keys.
        allowed: mask of the keys. None: all keys.
    """
    if allowed is None and bool((weights.amin() > 1e-30) & products.sum().isfinite()):
        x, y = products, weights.log()
        x_mean, y_mean = x.mean(-1, keepdim=True), y.mean(-1, keepdim=True)
        x, y = x - x_mean, y - y_mean
    else:
        known = products.isfinite() if allowed is None else products.isfinite() & allowed
        seen = known & (weights > 1e-30)  # weights that underflow say nothing about their scores
        count = seen.sum(-1, keepdim=True).clamp(min=1)
        x, y = torch.where(seen, products, 0.0), torch.where(seen, weights, 1.0).log()
        x_mean, y_mean = x.sum(-1, keepdim=True) / count, y.sum(-1, keepdim=True) / count
        x, y = torch.where(seen, x - x_mean, 0.0), torch.where(seen, y - y_mean, 0.0)
        # Rows in which all weights but one underflow say nothing about the scale. Products that are all equal
        # need none.
        still = x.abs().amax((0, 2, 3)) == 0
        if bool(still.any()) and bool(
            ((torch.where(known, products - x_mean, 0.0).abs().amax((0, 2, 3)) > 0) & still).any()
        ):
            return None
    spread = x.square().sum((0, 2, 3))
    scale = (x * y).sum((0, 2, 3)) / spread.clamp(min=1e-30)
    scale = scale[:, None, None]
    residual = (y - scale * x).square().mean().sqrt()
    if not bool(residual <= FIT_RTOL * y.square().mean().sqrt() + 1e-5):
        return None
    return scale, scale * x_mean - y_mean


IN_NETWORKS = InNetworks(
    metrics=lambda: (ScoreGaps(), KeptShare(), SinkValue()),
    headline=GAP,
    side=">=",
    responses=RESPONSES,
    meaning="lead of the largest score over the log of the number of keys; 1: the key with this score holds "
    "half of the weight",
)

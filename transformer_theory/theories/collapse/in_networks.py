r"""How much each head of a network contracts the differences between tokens, and how peaked its attention is.
Passive, per head:

* **contraction** (:mod:`.heads`): the differences between tokens after :math:`A X` over those before, X the
  tokens that the attention reads, as root mean square over sequences. 0: all tokens become equal; 1:
  identity. The null permutes the keys of each row. With a causal or other mask that rows do not share, the
  permutations stay within the allowed keys, and uniform attention has a contraction above 0. The null is a
  head that picks keys at random, not a network that has learnt nothing: random W exceeds it as well, since
  its rows share the covariance of the tokens. Untrained networks show what training changed.
* **contraction of random weights**: the prediction of :mod:`.initialisation` from the tokens and the variance
  of the scores alone. It covers untrained networks whose rows see all keys; trained weights are not random.
* **participation less that of Gaussian scores** with the same number of keys and the same variance within
  each row (:mod:`.phases`); positive if the head is more peaked than its scores' size explains.
* **phase of the scores** :math:`b = s / \sqrt{\log n}`, s the standard deviation of the scores within a row
  over n allowed keys: below :math:`1/\sqrt 2` the weights average over many keys, above :math:`\sqrt 2` a few
  hold them.

All are measured on the first 32 sequences of each module, which are stored. Scores are logarithms of the
weights, up to a constant per row.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Generator, Tensor

from ...core.measurement import Measurement, Null
from ...core.metric import ActivationKind, Activations, PerModule, Place
from ...core.sources import Source
from ...core.statistics import RANGE_DRAWS, fixed_generator
from ...core.theory import InNetworks
from ...metrics.attention import row_deviation
from ...metrics.own_tokens import attends_elsewhere
from .heads import permuted_keys, residual_within, squared_contraction_of
from .initialisation import contraction_of_tokens, largest_variance
from .phases import curves, expected_participation

NAME = "collapse"
CONTRACTION, RANDOM = "contraction of differences between tokens", "contraction of random weights"
PEAKED, PHASE = "participation less Gaussian scores", "score deviation over root log n"
PERMUTED, GAUSSIAN = "permuted keys of each row", "Gaussian scores of the same variance"
DONG, REM = Source("dong2021attention", status="own"), Source("giorlandino2026two", status="own")
# sequences and numbers per module; queries whose participation is compared
STORED, NUMBERS, QUERIES = 32, 2**21, 16
PERMUTED_QUERIES = 64  # whose keys are permuted, if there are more than twice as many
OTHER_KEYS = "attention in windows, or to keys other than the module's own tokens"
SINGLE, EQUAL = "sequences have a single token", "all tokens of a sequence are equal, or not finite"
WEIGHTS = "no sequence has weights that are finite and not negative, and whose rows sum to 1"
REASONS = (OTHER_KEYS, SINGLE, WEIGHTS, EQUAL)
DIFFERENT = "rows see different keys: uniform attention contracts less than to 0"
TOO_LARGE = "scores vary more within a row than the formula allows: a variance of 1, or half of log n"
NO_SCORES = "no row of weights has two allowed keys with finite weights that sum to 1"


@dataclass(frozen=True)
class Stored:
    """What the metric keeps of one module, for sequences of one length.

    Attributes:
        weights: ``[n, heads, q, k]``, 0 on keys that are not allowed, NaN where a weight is negative.
        gram: normalised inner products of the residuals of the tokens, ``[n, q, q]``; zeros where the tokens
            are equal or not finite.
        spread: 1 minus the mean cosine of the tokens, ``[n]``.
        allowed: True for allowed keys, ``[n, 1 or heads, q, k]``; None if all are.
    """

    weights: Float[Tensor, "n heads q k"]
    gram: Float[Tensor, "n q q"]
    spread: Float[Tensor, " n"]
    allowed: Bool[Tensor, "n masks q k"] | None

    @classmethod
    def of(cls, activations: Activations, most: int) -> "Stored":
        """Takes the first ``most`` sequences of the batch."""
        weights, tokens, allowed = activations.weights, activations.tokens, activations.mask
        assert weights is not None
        # The first ones, so that two halves merge to the same sequences as one pass.
        used = weights[:most].detach().float()
        if bool(used.amin() < 0):
            used = torch.where(used < 0, torch.nan, used)
        if allowed is not None:
            allowed = allowed[:most] if len(allowed) > 1 else allowed
            allowed = allowed.expand(len(used), allowed.shape[1], *used.shape[2:])
            used = used.masked_fill(~allowed, 0.0)
        q = used.shape[2]
        own = len(tokens) == len(weights) and q == used.shape[3] == tokens.shape[1]
        if own and not activations.shared(attends_elsewhere):
            gram, spread = _gram(tokens[:most].detach().double(), _inside(allowed))
        else:
            gram, spread = used.new_full((len(used), q, q), torch.nan), used.new_zeros(len(used))
        return cls(used, gram.float(), spread.float(), allowed)

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Number of heads, queries, keys, and masks: 0 without a mask, 1 if all heads share it."""
        heads, q, k = self.weights.shape[1:]
        return heads, q, k, 0 if self.allowed is None else self.allowed.shape[1]

    @cached_property
    def sums_to_one(self) -> Bool[Tensor, "n heads q"]:
        """Which rows are distributions; False for NaN."""
        return (self.weights.sum(-1) - 1).abs() < 1e-2

    @cached_property
    def deviations(self) -> Float[Tensor, "n heads q"]:
        """The standard deviation of the scores of each row over its allowed keys."""
        return _deviations(self.weights, self.allowed)

    def packed(self) -> Tensor:
        """Returns one tensor per sequence, ``[n, numbers]``."""
        mask = [] if self.allowed is None else [self.allowed.flatten(1).float()]
        return torch.cat([self.spread[:, None], self.gram.flatten(1), self.weights.flatten(1), *mask], 1)

    @classmethod
    def unpacked(cls, packed: Float[Tensor, "n numbers"], heads: int, q: int, k: int, masks: int) -> "Stored":
        """Restores what :meth:`packed` returned."""
        spread, gram, weights, mask = packed.split([1, q * q, heads * q * k, masks * q * k], 1)
        allowed = mask.reshape(-1, masks, q, k).bool() if masks else None
        return cls(weights.reshape(-1, heads, q, k), gram.reshape(-1, q, q), spread[:, 0], allowed)


def _gram(
    x: Float[Tensor, "n q d"], inside: Bool[Tensor, "n q"] | None
) -> tuple[Float[Tensor, "n q q"], Float[Tensor, " n"]]:
    """Returns the normalised Gram matrices and the spreads of :class:`Stored`."""
    size = torch.linalg.vector_norm(x, dim=(1, 2))
    # squares of the others may leave the range of float64
    if not bool(((size > 1e-100) & (size < 1e100)).all()):
        largest = x.abs().amax((1, 2))
        # Zeros, which have no differences, stand for sequences that are not finite.
        largest, x = (
            torch.where(largest.isfinite(), largest, 0.0),
            torch.where(largest.isfinite()[:, None, None], x, 0.0),
        )
        x = x / torch.where(largest > 0, largest, 1.0)[:, None, None]
        size = torch.linalg.vector_norm(x, dim=(1, 2))
    R = residual_within(x, inside)
    gram, q = R @ R.mT, x.shape[1]
    trace = gram.diagonal(dim1=1, dim2=2).sum(-1)
    # 1 - rho = tr(C) / E|x|^2 for the covariance over n - 1.
    spread = trace / size.square().clamp(min=1e-300) * q / max(q - 1, 1)
    return gram / torch.where(trace > 0, trace, 1.0)[:, None, None], spread


@dataclass(frozen=True)
class Contractions:
    """Squared contractions of one module, for sequences of one length.

    Attributes:
        values: of the sequences that can be measured, ``[n, heads]``.
        compared: the same on the queries whose keys are permuted, ``[n, heads]``.
        chance: with permuted keys, ``[draws, n, heads]``.
        predicted: those of random weights, ``[n, heads]``; empty with a mask.
        variances: of the scores within rows, as a share of the largest that the prediction covers.
        reason: number of the text in :data:`REASONS` if there are no values.
        different: whether rows see different keys.
    """

    values: Float[Tensor, "n heads"]
    compared: Float[Tensor, "n heads"]
    chance: Float[Tensor, "draws n heads"]
    predicted: Float[Tensor, "_ heads"]
    variances: Float[Tensor, "_ heads"]
    reason: int = 0
    different: bool = False

    @classmethod
    def of(cls, stored: Stored, draws: int, generator: Generator) -> "Contractions":
        """Measures sequences and draws permutations, those of :data:`PERMUTED_QUERIES` evenly spaced queries
        if there are more than twice as many.
        """
        weights, gram, allowed = stored.weights, stored.gram, stored.allowed
        none = weights.new_empty(0, weights.shape[1])

        def without(reason: str) -> Contractions:
            return cls(none, none, none.expand(draws, *none.shape), none, none, REASONS.index(reason))

        if bool(gram[:, 0, 0].isnan().any()):
            return without(OTHER_KEYS)
        if gram.shape[-1] < 2:
            return without(SINGLE)
        differ = gram.diagonal(dim1=1, dim2=2).sum(-1) > 0.5
        inside, rows_fit = _inside(allowed), stored.sums_to_one
        if inside is not None:
            rows_fit = rows_fit | ~inside[:, None]
        usable, different = differ & rows_fit.flatten(1).all(1), False
        if not bool(usable.any()):
            return without(WEIGHTS if bool(differ.any()) else EQUAL)
        if not bool(usable.all()):
            weights, gram = weights[usable], gram[usable]
        gram, inside = gram[:, None], None if inside is None else inside[usable, None]
        if allowed is not None:
            allowed = allowed[usable]
            if allowed.shape[1] > 1 and bool((allowed == allowed[:, :1]).all()):
                allowed = allowed[:, :1]
            unequal = (~allowed if inside is None else allowed != inside[:, :, None]).any(-1)
            different = bool((unequal if inside is None else unequal & inside).any())
        values = compared = squared_contraction_of(weights, gram, inside)
        if draws and weights.shape[2] > 2 * PERMUTED_QUERIES:
            rows = torch.linspace(0, weights.shape[2] - 1, PERMUTED_QUERIES).long()
            # G is divided by the differences of all tokens
            gram = weights.shape[2] / PERMUTED_QUERIES * gram
            weights = weights[:, :, rows]
            allowed = None if allowed is None else allowed[:, :, rows]
            inside = None if inside is None else inside[..., rows]
            compared = squared_contraction_of(weights, gram, inside)
        chance = values.new_empty(draws, *values.shape)
        for k, permuted in enumerate(permuted_keys(weights, generator, draws=draws, allowed=allowed)):
            chance[k] = squared_contraction_of(permuted, gram, inside)
        predicted = variances = none
        if allowed is None:
            v, rho = stored.deviations.square().mean(-1)[usable], 1 - stored.spread[usable, None]
            D = stored.gram[usable, None].square().sum((-2, -1)).reciprocal()  # tr(C) = 1
            predicted = contraction_of_tokens(v.clamp(max=1.0), rho, weights.shape[-1], D).square()
            variances = v / largest_variance(weights.shape[-1])
        return cls(values, compared, chance, predicted, variances, different=different)


@dataclass(frozen=True)
class ChosenRows:
    """The rows of one module whose participation is compared, for sequences of one length.

    Attributes:
        weights, allowed: as in :class:`Stored`, of the chosen queries.
        fits: which rows are distributions of tokens that are no padding.
    """

    weights: Float[Tensor, "n heads chosen k"]
    allowed: Bool[Tensor, "n masks chosen k"] | None
    fits: Bool[Tensor, "n heads chosen"]

    @classmethod
    def of(cls, stored: Stored) -> "ChosenRows":
        """Chooses queries of all parts of the sequences."""
        q, k = stored.weights.shape[2:]
        chosen = torch.linspace(0, q - 1, min(q, QUERIES)).long()
        fits = stored.sums_to_one[:, :, chosen]
        if q == k and (inside := _inside(stored.allowed)) is not None:
            fits = fits & inside[:, None, chosen]
        allowed = None if stored.allowed is None else stored.allowed[:, :, chosen]
        return cls(stored.weights[:, :, chosen], allowed, fits)


@dataclass(frozen=True)
class Reduced:
    """What the metric keeps of one long sequence in place of its weights, with the draws of its null."""

    contractions: Contractions
    rows: ChosenRows

    def packed(self) -> Tensor:
        """Returns one tensor, ``[1, numbers]``."""
        found, rows = self.contractions, self.rows
        head = [found.reason, found.different, len(found.values), len(found.predicted), len(found.chance)]
        parts = [found.values, found.compared, found.predicted, found.variances, found.chance]
        parts += [rows.fits, rows.weights]
        parts += [] if rows.allowed is None else [rows.allowed]
        return torch.cat([found.values.new_tensor(head), *(part.flatten().float() for part in parts)])[None]

    @classmethod
    def unpacked(
        cls, packed: Float[Tensor, "1 numbers"], heads: int, q: int, k: int, masks: int
    ) -> "Reduced":
        """Restores what :meth:`packed` returned."""
        reason, different, n, predictions, draws = map(int, packed[0, :5].tolist())
        c = min(q, QUERIES)
        sizes = (n, n, predictions, predictions, draws * n, c, c * k)
        *parts, mask = packed[0, 5:].split([*(size * heads for size in sizes), masks * c * k])
        values, compared, predicted, variances, chance, fits, weights = parts
        return cls(
            Contractions(
                values.reshape(n, heads),
                compared.reshape(n, heads),
                chance.reshape(draws, n, heads),
                predicted.reshape(predictions, heads),
                variances.reshape(predictions, heads),
                reason,
                bool(different),
            ),
            ChosenRows(
                weights.reshape(1, heads, c, k),
                mask.reshape(1, masks, c, k).bool() if masks else None,
                fits.reshape(1, heads, c).bool(),
            ),
        )


class HeadContraction(PerModule):
    """The four quantities of the module's docstring, per layer and head.

    Args:
        most_draws: largest number of draws of the nulls.

    Attributes:
        sums: by layer, first head, heads, queries, keys and masks: up to 32 sequences, ``[n, numbers]``
            (:class:`Stored`). Of weights with more than :data:`NUMBERS` entries, one sequence is measured at
            once, with the fixed generator (:class:`Reduced`); its place ends with 1, the others with 0.
    """

    kinds: ClassVar[tuple[ActivationKind, ...]] = ("attention",)
    theory, quantity, side, source, null_kind = NAME, CONTRACTION, ">=", DONG, PERMUTED

    def __init__(self, *, most_draws: int = RANGE_DRAWS):
        super().__init__()
        self.most_draws = most_draws

    def update(self, activations: Activations) -> None:
        """Stores sequences of one module; modules without known weights are skipped."""
        if (weights := activations.weights) is None or not weights.numel():
            return
        masks = 0 if activations.mask is None else activations.mask.shape[1]
        # One sequence of this size is measured, and its weights need not be kept.
        long = weights[0].numel() > NUMBERS
        place = (activations.layer, activations.first_head, *weights.shape[1:], masks, int(long))
        missing = self._limit(place) - len(self.sums.get(place, ()))
        if missing > 0:
            stored = Stored.of(activations, missing)
            if long:
                draws = min(self.draws, self.most_draws)
                found = Contractions.of(stored, draws, fixed_generator())
                self.add(place, Reduced(found, ChosenRows.of(stored)).packed().cpu())
            else:
                self.add(place, stored.packed().cpu())

    def add(self, place: Place, sums: Tensor) -> None:
        """Appends sequences, up to the limit of the place."""
        self.sums[place] = (
            torch.cat([self.sums[place], sums])[: self._limit(place)] if place in self.sums else sums
        )

    @staticmethod
    def _limit(place: Place) -> int:
        *_, heads, q, k, _, _ = place
        return max(1, min(STORED, NUMBERS // (heads * q * k)))

    def rows(
        self, place: Place, *sums: Float[Tensor, "_ _"], draws: int, generator: Generator | None
    ) -> Iterator[Measurement]:
        """Yields four rows per head, with at most ``most_draws`` draws of the nulls."""
        sizes = sorted(key[2:] for key in self.sums if key[:2] == place)
        seed = fixed_generator() if generator is None else generator
        new = torch.Generator().manual_seed(seed.initial_seed())
        n, count = sum(map(len, sums)), min(draws, self.most_draws)
        found, chosen = [], []
        for packed, (*size, reduced) in zip(sums, sizes):
            if reduced:
                each = Reduced.unpacked(packed, *size)
                count = min(count, len(each.contractions.chance))
                found.append(each.contractions)
                chosen.append(each.rows)
            else:
                each = Stored.unpacked(packed, *size)
                found.append(Contractions.of(each, count, new))
                chosen.append(ChosenRows.of(each))
        yield from self._contractions(found, sizes[0][0], n, count)
        yield from self._participations(chosen, n, min(draws, self.most_draws), new)

    def _contractions(
        self, found: Sequence[Contractions], heads: int, n: int, draws: int
    ) -> Iterator[Measurement]:
        """Yields contraction, with its null, and the prediction for random weights of each head."""
        measured = [each for each in found if len(each.values)]
        predicted = [each.predicted for each in measured if len(each.predicted)]
        reason = REASONS[([each.reason for each in found if each.reason] or [0])[-1]]
        note = DIFFERENT if any(each.different for each in measured) else ""
        values = _root_mean([each.values for each in measured]) if measured else []
        compared = _root_mean([each.compared for each in measured]) if measured else []
        drawn = [_root_mean([each.chance[k] for each in measured]) for k in range(draws if measured else 0)]
        random = _root_mean(predicted) if predicted else []
        variances = [each.variances for each in measured]
        covered = torch.cat(variances).mean(0).le(1).tolist() if predicted else []

        for head in range(heads):
            columns: dict[str, Any] = {"head": head, "n": n}
            if not measured:
                yield self.row(None, reason=reason, **columns)
                continue
            chance = tuple(draw[head] for draw in drawn)
            value = None if compared[head] == values[head] else compared[head]
            nulls = (Null(PERMUTED, chance, value),) if chance else ()
            yield self.row(values[head], nulls=nulls, note=note, **columns)
            expected, why = None, "a mask hides keys: the formula needs rows that see all keys"
            if predicted:
                expected, why = (random[head], "") if covered[head] else (None, TOO_LARGE)
            yield self.other_row(RANDOM, expected, reason=why, **columns)

    def _participations(
        self, rows: Sequence[ChosenRows], n: int, draws: int, generator: Generator
    ) -> Iterator[Measurement]:
        """Yields participation less that of Gaussian scores, and the phase of each head."""
        heads = rows[0].weights.shape[1]
        # rows; sum of the excess; sum of b^2; sums of the draws' excess
        total = torch.zeros(3 + draws, heads, dtype=torch.float64)
        for each in rows:
            weights, allowed = each.weights, each.allowed
            deviations = _deviations(weights, allowed)
            keys = torch.tensor(weights.shape[-1]) if allowed is None else allowed.sum(-1)
            fits, keys = each.fits & (keys > 1), keys.expand(deviations.shape)
            s, keys, measured = deviations[fits].double(), keys[fits], weights[fits].square().sum(-1).double()
            expected, head = expected_participation(keys, s), fits.nonzero()[:, 1]
            parts = torch.stack([torch.ones_like(s), measured - expected, s.square() / keys.double().log()])
            total[:3].index_add_(1, head, parts)
            for m in keys.unique().tolist() if draws else ():
                which, table = keys == m, curves(m)
                drawn = torch.stack([table.draw(s[which], generator) - expected[which] for _ in range(draws)])
                total[3:].index_add_(1, head[which], drawn)

        for head, (count, excess, phase, *chance) in enumerate(total.T.tolist()):
            columns = {"head": head, "n": n, "reason": NO_SCORES, "source": REM}
            null = Null(GAUSSIAN, tuple(each / count for each in chance)) if draws and count else None
            excess = excess / count if count else None
            yield self.other_row(PEAKED, excess, nulls=(null,), bounds=(-1.0, 1.0), **columns)
            yield self.other_row(PHASE, (phase / count) ** 0.5 if count else None, **columns)


def _inside(allowed: Bool[Tensor, "n masks q k"] | None) -> Bool[Tensor, "n k"] | None:
    """Returns which keys any query may see, the others are padding; None if there is no padding."""
    if allowed is None:
        return None
    inside = allowed.any(2).any(1)
    return None if bool(inside.all()) else inside


def _root_mean(squares: Sequence[Float[Tensor, "_ heads"]]) -> list[float]:
    """Returns the root of the mean over sequences of the squares of each head; the theory speaks of mean
    squares.
    """
    return torch.cat(list(squares)).mean(0).sqrt().tolist()


def _deviations(
    weights: Float[Tensor, "n heads q k"], allowed: Bool[Tensor, "n masks q k"] | None
) -> Float[Tensor, "n heads q"]:
    """Returns the standard deviation of the scores of each row; a weight that underflows is cut off."""
    logs = weights.clamp(min=torch.finfo(torch.float32).tiny).log()
    return row_deviation(logs, None if allowed is None else allowed.float())


IN_NETWORKS = InNetworks(
    metrics=lambda: (HeadContraction(),),
    headline=CONTRACTION,
    side=None,
    meaning="differences between tokens after attention over those before; 0: all tokens become equal, 1: "
    "unchanged",
)
"""No side: the theory is about random weights, and heads of untrained networks keep more than heads that pick
keys at random, too.
"""

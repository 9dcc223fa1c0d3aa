r"""Do the tokens of a network cluster, and does its attention move them as the theory says?

Passive, per block, on the residual stream after its attention has been added (the output of the block if no
addition was found):

* **within-less-between cosine** D, and its share of the largest possible value (:mod:`.within_between`). The
  share is the headline: D alone also rises if positions or a direction that all tokens share become smaller,
  and then a comparison with untrained networks would call that clustering. Each has two chance levels: the
  sequences are permuted at each position, within a batch, and untrained networks.
* **mean cosine** within a sequence, and between sequences at other positions. Their difference is D.

Padding, tokens without contents (class and register tokens, separators) and tokens without direction are left
out. Of long sequences at most :data:`POSITIONS` positions count, evenly spaced.

* **alignment with V = I**: the mean cosine of the displacement of a token by attention and the mean of the
  attended tokens, both without their component along the token. It is 1 if V is a positive multiple of the
  identity, as the theory assumes. In the null the attended mean is that of another sequence at the same
  position, where that sequence is long enough. Below :data:`ALIGNED` the theory does not cover the block. All
  real tokens count.
* **rise of the mean cosine** by the attention. Its prediction moves each token by the same length towards the
  attended mean.

Active, :data:`MOSAICS`: the network runs on sequences whose tokens are exchanged with those of other
sequences at the same positions. Attention mixes unrelated tokens too, and after it they have something in
common. This chance level contains positions, anisotropy and such mixing; on noise the exchanged sequences
have the same law as the given ones, so nothing can be found. Sources: :cite:t:`geshkovski2025mathematical`;
the quantities are our own.
"""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor

from ...core.measurement import CORRELATION, Measurement, judge
from ...core.metric import ActivationKind, Activations, PerModule, Place
from ...core.sources import Source
from ...core.statistics import RANGE_DRAWS, evenly_spaced, permutations
from ...core.theory import InNetworks, Response
from .within_between import PERMUTED, Sums, directions, position_permutations, shuffled, unchecked_sums

NAME, SOURCE = "particles", Source("geshkovski2025mathematical", status="own")
SHARE = "within-less-between cosine, share of its largest value"
DIFFERENCE = "within-less-between cosine"
WITHIN, BETWEEN = "mean cosine within a sequence", "mean cosine between sequences at other positions"
ALIGNMENT, RISE = "alignment of attention's displacement with V = I", "rise of the mean cosine by attention"
OTHER_FIELD, EXCHANGED = "attended means of other sequences", "inputs with tokens of other sequences"
# positions of a sequence, and sequences of a batch in which the displacement is measured
POSITIONS, FIELD_SEQUENCES = 64, 16
ROUNDING = 1e-5  # share of a squared norm below which the component across the token is rounding
ALIGNED = 0.9  # smallest cosine at which V counts as a positive multiple of the identity
MOSAIC_SEQUENCES = 64  # sequences of the response


class SequenceClusters(PerModule):
    """Within-less-between cosine of the tokens of each block.

    Attributes:
        sums: by layer and 0, ``[9 + 2 draws]``: sequences, left out tokens and tokens, then :class:`.Sums`:
            pairs, variance, within, draws.
    """

    kinds: ClassVar[tuple[ActivationKind, ...]] = ("attention", "features")
    takes_padding = True
    theory, quantity, side, source, null_kind = NAME, SHARE, ">=", SOURCE, PERMUTED
    bounds = CORRELATION  # the share is a correlation of deviations

    def statistics(self, activations: Activations) -> Float[Tensor, " k"] | None:
        """Returns the sums of one block."""
        if activations.kind == "attention":
            return None
        after = activations.output if activations.after_attention is None else activations.after_attention
        x, kept = after.detach(), activations.real if activations.content is None else activations.content
        if kept is not None and bool((used := kept.any(0)).any()):
            x, kept = x[:, used], kept[:, used]
        n, T = x.shape[:2]
        keep = evenly_spaced(T, POSITIONS).to(x.device)
        x = x[:, keep] if T > POSITIONS else x
        u, valid = directions(x)
        found = torch.ones_like(valid) if kept is None else kept[:, keep]
        valid = valid & found
        left = found.sum() - valid.sum()
        sums = unchecked_sums(u.float(), valid, draws=self.draws if n > 1 else 0)
        draws = sums.draws.flatten() if n > 1 else u.new_zeros(2 * self.draws).double()
        head = torch.stack([torch.full_like(left, n), left, valid.sum()]).double()
        return torch.cat([head, sums.pairs, sums.variance, sums.within, draws]).cpu()

    def rows(
        self, place: Place, sums: Float[Tensor, " k"], *, draws: int, generator: Generator | None
    ) -> Iterator[Measurement]:
        """Yields four rows; one with the reason where there is no share."""
        n, left, tokens = sums[:3].tolist()
        note = f"{int(left)} tokens without a direction are left out" if left else ""
        found = Sums(sums[3:5], sums[5:7], sums[7:9], sums[9:].reshape(-1, 2)[:draws])
        if reason := why_not(found, tokens):
            yield self.row(None, reason=reason, n=int(n), note=note)
            return
        within, scale = float(found.within[0] / found.within[1]), float(found.variance[0] / found.variance[1])
        chance, columns = found.chance if draws else (), {"n": int(n), "note": note}
        yield self.row(found.share, draws=[draw / scale for draw in chance], **columns)
        yield self.other_row(
            DIFFERENCE, found.difference, draws=chance, side=">=", bounds=(-2.0, 2.0), **columns
        )
        yield self.other_row(WITHIN, within, bounds=CORRELATION, **columns)
        yield self.other_row(BETWEEN, within - found.difference, bounds=CORRELATION, **columns)


def why_not(sums: Sums, tokens: float) -> str:
    """Returns the reason why the share cannot be computed; empty if it can."""
    if tokens < 1:
        return "no token has a direction: all are zero, or not finite"
    if float(sums.variance[1]) < 1:
        return "needs batches of at least two sequences with tokens at common positions"
    if float(sums.within[1]) < 1:
        return "sequences of one token have no pairs"
    if not float(sums.pairs[1]) > 1e-6:
        return "needs two sequences with two tokens at common positions"
    if not float(sums.variance[0]) > 1e-6 * tokens:
        return "all sequences have the same tokens"
    return ""


class ValueAlignment(PerModule):
    """Alignment of attention's displacement with V = I, and the rise of the mean cosine, from up to 16
    sequences of each batch.

    Attributes:
        sums: by layer and 0, ``[5 + draws]``: sequences, tokens, sums of the alignment, of the rise and of
            its prediction, and of the alignment in each draw of the null. All zero where attention or its
            addition to the stream is not known.
        fields: by layer, the mean attended token in the current batch, ``[n, T, d]``.
    """

    kinds: ClassVar[tuple[ActivationKind, ...]] = ("attention", "features")
    takes_padding = True
    theory, quantity, side, source, null_kind = NAME, ALIGNMENT, ">=", SOURCE, OTHER_FIELD
    bounds = CORRELATION

    def reset(self) -> None:
        """Starts a new measurement."""
        super().reset()
        self.fields: dict[int, Float[Tensor, "n T d"]] = {}

    def statistics(self, activations: Activations) -> Float[Tensor, " k"] | None:
        """Stores the attended means of a block's first attention, and compares them with the displacement at
        its end.
        """
        layer = activations.layer
        if activations.kind == "attention":
            weights, tokens = activations.weights, activations.tokens
            n, T, _ = tokens.shape
            if (
                activations.first_head == 0
                and weights is not None
                and (len(weights), *weights.shape[2:]) == (n, T, T)
            ):
                some = torch.linspace(0, n - 1, min(n, FIELD_SEQUENCES)).long().to(tokens.device)
                if n > FIELD_SEQUENCES:
                    weights, tokens = weights[some], tokens[some]
                self.fields[layer] = at_least_float32(weights.mean(1)) @ at_least_float32(tokens)
            return None
        field, count = self.fields.pop(layer, None), min(self.draws, RANGE_DRAWS)
        sums = torch.zeros(5 + count, dtype=torch.float64)
        x, after = activations.tokens.detach(), activations.after_attention
        some = torch.linspace(0, len(x) - 1, min(len(x), FIELD_SEQUENCES)).long().to(x.device)
        if field is not None and after is not None and field.shape == x[some].shape:
            x, y = at_least_float32(x[some]), at_least_float32(after.detach()[some])
            real = None if activations.real is None else activations.real[some]
            finite = torch.isfinite((x + y + field).sum((1, 2)))
            if not bool(finite.all()):
                x, y, field = x[finite], y[finite], field[finite]
                real = None if real is None else real[finite]
            sums[0] = len(some)
            if len(x):
                sums[1:] = torch.stack(self._sums(x, y, field, real, count)).double().cpu()
        return sums

    def _sums(
        self, x: Tensor, y: Tensor, field: Tensor, real: Bool[Tensor, "n T"] | None, draws: int
    ) -> list[Tensor]:
        """Returns tokens, alignment, rise, its prediction, and the alignment of each draw, summed over the
        tokens of a batch; padding is zero.

        Components along a token, and norms, follow from inner products: P_x a and P_x b have the inner
        product <a, b> - <x, a><x, b> /
        |x|^2.
        """
        n, T, _ = x.shape
        moved = y - x
        vectors = torch.stack([x, moved, field], 2).flatten(0, 1)
        products = (vectors @ vectors.mT).flatten(1).T.unflatten(1, (n, T))
        size, radial, along, _, length, both, _, _, fields = products
        size = size.clamp(min=torch.finfo(size.dtype).tiny)
        step, toward = length - radial.square() / size, fields - along.square() / size
        used = (step > ROUNDING * length) & (toward > ROUNDING * fields)
        step, toward = step.clamp(min=0).sqrt(), torch.where(used, toward, 1.0).sqrt()
        product = torch.where(used, step * toward, 1.0)
        # The predicted token is own * x + scale * field. It keeps the radial part of the displacement, which
        # decides how far it turns.
        scale = torch.where(used, step / toward, 0.0)
        own = 1 + radial / size - scale * along / size
        norm = (
            (own.square() * size + 2 * own * scale * along + scale.square() * fields).clamp(min=1e-30).sqrt()
        )
        after = 1 / (size + 2 * radial + length).clamp(min=1e-30).sqrt()
        lengths = torch.full((n,), T, device=x.device) if real is None else real.sum(1)
        before, after = (
            _pairs(_weighted(1 / size.sqrt(), x), lengths),
            _pairs(_weighted(after, y), lengths),
        )
        predicted = _pairs(_weighted(own / norm, x) + _weighted(scale / norm, field), lengths)
        sums = [used.sum(), ((both - radial * along / size) / product)[used].sum()]
        sums += [((after - before) * lengths).sum(), ((predicted - before) * lengths).sum()]
        for order in permutations(n, draws):
            other = field[order.to(x.device)]
            along, fields = (x * other).sum(-1), (other * other).sum(-1)
            toward = (fields - along.square() / size).clamp(min=1e-30).sqrt()
            cosines = ((moved * other).sum(-1) - radial * along / size) / (step.clamp(min=1e-30) * toward)
            if real is None:
                sums.append(cosines[used].sum())
            else:  # the other sequence may be shorter
                sums.append(cosines[used & real[order.to(x.device)]].mean() * used.sum())
        return sums

    def rows(
        self, place: Place, sums: Float[Tensor, " k"], *, draws: int, generator: Generator | None
    ) -> Iterator[Measurement]:
        """Yields two rows, or one with the reason."""
        n, tokens, total, rise, predicted, *chance = sums.tolist()
        if not tokens:
            reason = (
                "attention moves no token, or tokens are not finite"
                if n
                else "no addition of attention to the stream was found"
            )
            yield self.row(None, reason=reason, n=int(n))
            return
        value, chance = total / tokens, [draw / tokens for draw in chance[:draws]] if n > 1 else []
        covered = value >= ALIGNED
        columns = {"op": ">=", "threshold": ALIGNED, "verdict": "holds" if covered else "fails", "n": int(n)}
        yield self.row(value, draws=chance, **columns)
        columns |= {"threshold": 0.0, "verdict": judge(rise / tokens, ">=", 0.0, covered=covered)}
        yield self.other_row(RISE, rise / tokens, predicted=predicted / tokens, **columns)


def at_least_float32(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Returns half precision as float32 and other numbers as they are, so that weights, tokens and sums have
    one precision.
    """
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _weighted(weights: Float[Tensor, "n T"], X: Float[Tensor, "n T d"]) -> Float[Tensor, "n d"]:
    """Returns the weighted sum of the tokens of each sequence."""
    return (weights[:, None] @ X).squeeze(1)


def _pairs(total: Float[Tensor, "n d"], lengths: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Returns the mean cosine of the pairs of tokens of each sequence from the sum of their directions; 0 for
    sequences of one token.
    """
    return (total.square().sum(1) - lengths) / (lengths * (lengths - 1)).clamp(min=1)


def mosaics(data: Tensor, limits: Mapping[str, int], generator: Generator) -> dict[str, Any]:
    """Makes the inputs of :data:`MOSAICS` from tokens ``[n, T, d]``, ids ``[n, T]`` or images ``[n, c, h,
    w]``.

    Images are exchanged in blocks of a quarter of their sides, which keep what the patches inside a block
    have in common; without such blocks, and for a single sequence, there is no null. Sequences must not be
    padded (:mod:`.main_input` removes padding): the exchange scatters padding, and the length is then found
    as clustering. The order of the permutations is the same for all networks, so ``generator`` is not used.
    """
    data = data[:MOSAIC_SEQUENCES]
    made = exchanged(data, RANGE_DRAWS)
    return {"value": data, "null": made} if made else {"value": data}


def exchanged(data: Tensor, draws: int) -> list[Tensor]:
    """Returns draws of the inputs ``[n, T, d]``, ``[n, T]`` or ``[n, c, h, w]`` with exchanged tokens, see
    :func:`mosaics`.

    There are none for a single sequence, or for images without blocks.
    """
    n = len(data)
    if n < 2 or data.ndim not in (2, 3, 4):
        return []
    if data.ndim < 4:
        return [shuffled(data, order) for order in position_permutations(n, data.shape[1], draws)]
    c, h, w = data.shape[1:]
    if h % 4 or w % 4:
        return []
    blocks = data.reshape(n, c, 4, h // 4, 4, w // 4).permute(0, 2, 4, 1, 3, 5).flatten(1, 2)
    made = [shuffled(blocks, order) for order in position_permutations(n, 16, draws)]
    return [each.unflatten(1, (4, 4)).permute(0, 3, 1, 4, 2, 5).reshape(data.shape) for each in made]


MOSAICS = Response(
    "exchanged tokens", inputs=mosaics, metrics=lambda: (SequenceClusters(),), null_kind=EXCHANGED
)
IN_NETWORKS = InNetworks(
    metrics=lambda: (SequenceClusters(), ValueAlignment()),
    headline=SHARE,
    side=">=",
    responses=(MOSAICS,),
    meaning="cosine of tokens of one sequence less that of tokens of two, over its largest value; 1: the "
    "tokens of a sequence are alike",
)

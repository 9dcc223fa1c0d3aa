r"""The theory's questions to a trained network: how exact must its scores be for attention to choose the same
keys, and does the order count?

The construction chooses one key per query, and it fails where two scores are too close for the number type.
The *margin* of a query in bits is :math:`\log_2(g / u)` with the gap g between the two largest scores
:math:`\langle q, k \rangle` and the distance :math:`u = 2^{\lfloor \log_2 |s| \rfloor - 7}` of neighbouring
bfloat16 numbers at the score s that is larger in size: so many binary digits the scores can lose before the
choice is within their rounding. A factor common to all scores, a power of two, changes nothing. It is 0
for a *close call*, :math:`g < u`, and at most 9, since :math:`g \le 2 |s| < 2^9 u`. The null consists of
Gaussian scores with the mean and the variance of the same query's scores.

The mean margin is the headline. The share of close calls is shown beside it and is none: scores
without structure have close calls in one of about a hundred queries already, so that 0, the best share, lies
only a few deviations below that of copies, and too near to be found among the headlines.

The *responses* test proportion invariance: the change of the outputs when the tokens are permuted, and when a
sequence is repeated token by token instead of as a whole, relative to the outputs. Both are 0 without
positions and mask. Source: :cite:t:`perez2021attention`.
"""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Generator, Tensor

from ...core.measurement import Measurement
from ...core.metric import Activations, PerHead
from ...core.sources import Source
from ...core.statistics import RANGE_DRAWS, fixed_generator
from ...core.theory import InNetworks, Response
from ...metrics.responses import OutputChange
from ...probes.respond import doubled_tokens, permuted_tokens

MARGIN = "score margin over bfloat16 rounding"
CLOSE = "close calls of attention in bfloat16"
NULL_KIND = "Gaussian scores with the mean and variance of each query"
NAME, SOURCE = "turing", Source("perez2021attention", status="own")
EXPONENT = 7  # bfloat16 stores seven binary digits after the leading one
MOST = EXPONENT + 2.0  # largest margin in bits
TABLE = 128  # Gaussian samples per draw and number of keys
REASON = "no query has two allowed keys with finite scores"


def resolution(scores: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """Returns the distance of neighbouring bfloat16 numbers at each score, 2^(floor(log2 |s|) - 7); 0 at 0,
    ``[*n]``.
    """
    _, exponent = torch.frexp(scores)  # |s| = m 2^e with m in [1/2, 1)
    return torch.where(scores == 0, 0.0, torch.ldexp(torch.ones_like(scores), exponent - 1 - EXPONENT))


def margin_bits(top: Float[Tensor, "*n 2"]) -> Float[Tensor, "*n"]:
    """Returns log2 of the gap between the two largest scores in units of the resolution at the larger in
    size, 0 for smaller gaps, ``[*n]``.
    """
    gap, unit = (top[..., 0] - top[..., 1]).abs(), resolution(top.abs().amax(-1))
    # scores that are both 0 have no resolution; float32 scores below 2^-126 may have a gap of 0 digits
    return torch.where(unit > 0, gap / unit.clamp(min=torch.finfo(unit.dtype).tiny), 0.0).clamp(min=1).log2()


def close_calls(top: Float[Tensor, "*n 2"]) -> Tensor:
    """Returns whether the two largest scores differ by less than the resolution at the larger in size, or not
    at all, ``[*n]``.
    """
    gap = (top[..., 0] - top[..., 1]).abs()
    return (gap < resolution(top.abs().amax(-1))) | (gap == 0)


@lru_cache(maxsize=8)
def gaussian_tops(keys: int) -> Float[Tensor, "draws samples keys 2"]:
    """Returns the two largest of the first k standard Gaussian numbers for k = 1 to ``keys``, ``[draws,
    samples, keys, 2]`` float32.

    The numbers are the same in every call. The second of one number is -inf.
    """
    z = torch.randn(RANGE_DRAWS, TABLE, keys, generator=fixed_generator())
    first = z.cummax(-1).values
    before = torch.nn.functional.pad(first[..., :-1], (1, 0), value=-torch.inf)
    return torch.stack([first, torch.minimum(before, z).cummax(-1).values], dim=-1)


class Margins(PerHead):
    """Mean margin, in bits, of the queries of each head, and the share of the queries that are close
    calls. Queries with fewer than two allowed keys or infinite scores are left out.
    """

    theory, quantity, unit, side = NAME, MARGIN, "bits", ">="
    source, null_kind, bounds = SOURCE, NULL_KIND, (0.0, MOST)

    def statistics(self, activations: Activations) -> Float[Tensor, "heads k"] | None:
        """Returns the number of queries, and for them and each draw of the null the sum of the margins
        and the number of close calls. Modules whose queries and keys are unknown are skipped.
        """
        query, key = activations.query, activations.key
        if query is None or key is None or not query.numel() or query.shape[1] != key.shape[1]:
            return None
        scores = query.float() @ key.float().mT
        keys = scores.shape[-1]
        if keys < 2:
            # topk needs a second score
            scores = torch.nn.functional.pad(scores, (0, 1), value=-torch.inf)
        if activations.mask is None:
            allowed, counts = None, torch.full(query.shape[:3], keys, device=scores.device)
            top = scores.topk(2).values
            # no score is NaN, which is the largest, or infinite
            valid = top.isfinite().all(-1) & scores.amin(-1).isfinite()
        else:
            allowed = torch.nn.functional.pad(activations.mask[..., :keys], (0, scores.shape[-1] - keys))
            counts = allowed.sum(-1).expand(query.shape[:3])
            shown = scores.masked_fill(~allowed, -torch.inf)
            top = shown.topk(2).values
            # masked scores do not count; -inf among the others is found from below
            lowest = scores.masked_fill(~allowed, 0.0).amin(-1)
            valid = (counts >= 2) & top.isfinite().all(-1) & lowest.isfinite()
        parts = [valid.sum((0, 2)), *_sums(top, valid)]
        if self.draws:
            size = counts.clamp(min=1)
            used = valid[..., None] if allowed is None else allowed & valid[..., None]
            kept = scores if allowed is None and bool(valid.all()) else scores.masked_fill(~used, 0.0)
            mean = kept.sum(-1) / size
            deviation = (kept - mean[..., None]).square_()
            deviation = deviation if allowed is None else deviation.mul_(allowed)
            spread = deviation.sum(-1).div_(size).sqrt_()
            # Row r takes the sample r mod TABLE of each draw, so that an update draws no random numbers.
            table = gaussian_tops(max(2, keys)).to(scores.device)
            sample = torch.arange(counts.numel(), device=scores.device).view_as(counts) % TABLE
            for draw in range(min(self.draws, RANGE_DRAWS)):
                z = table[draw, sample, counts.clamp(min=2) - 1]
                random = mean[..., None] + spread[..., None] * z
                parts += _sums(random, valid)
        return torch.stack(parts, dim=1).double().cpu()

    def rows_of_head(self, sums: Float[Tensor, " k"], *, draws: int) -> Iterator[Measurement]:
        """Yields the mean and the share of one head."""
        count, *found = sums.tolist()
        if not count:
            yield self.row(None, reason=REASON)
            return
        digits, *random_digits = (each / count for each in found[::2])
        close, *random_close = (each / count for each in found[1::2])
        yield self.row(digits, draws=random_digits[:draws])
        yield self.other_row(CLOSE, close, draws=random_close[:draws], unit="share", side="<=")


def _sums(top: Float[Tensor, "n h q 2"], valid: Bool[Tensor, "n h q"]) -> list[Tensor]:
    """Returns for each head the sum of the margins and the number of close calls of valid queries,
    ``[h]``.
    """
    top = torch.where(valid[..., None], top, 0.0)  # without digits
    return [margin_bits(top).sum((0, 2)), (close_calls(top) & valid).sum((0, 2))]


def permuted(data: Tensor, limits: Mapping[str, int], generator: Generator) -> dict[str, Any]:
    """Returns sequences ``[n, seq]`` or ``[n, seq, dim]`` with permuted tokens, compared with the outputs for
    the original order.

    Raises:
        ValueError: the inputs are images.
    """
    _sequences(data)
    return {"value": permuted_tokens(data, generator), "null": data.roll(1, 0), "reference": data}


def repeated(data: Tensor, limits: Mapping[str, int], generator: Generator) -> dict[str, Any]:
    """Returns sequences that occur twice, compared with the outputs for sequences of the same proportions.

    If twice the length is allowed, a sequence ``[seq, ...]`` of float tokens is compared with itself repeated
    once. Otherwise, and for ids, whose networks have an output per position, the first half h of it is
    repeated, as a whole (h h), and compared with its tokens repeated one by one.

    Raises:
        ValueError: the inputs are images.
    """
    _sequences(data)
    seq = data.shape[1]
    if data.is_floating_point() and limits.get("length", 0) >= 2 * seq:
        doubled = doubled_tokens(data)
        return {"value": doubled, "null": doubled.roll(1, 0), "reference": data}
    rest = data[:, seq - seq % 2 :]  # the last token of an odd number stays
    half = data[:, : seq // 2]
    whole = torch.cat([half, half, rest], dim=1)
    return {
        "value": whole,
        "null": whole.roll(1, 0),
        "reference": torch.cat([half.repeat_interleave(2, dim=1), rest], dim=1),
    }


def _sequences(data: Tensor) -> None:
    """Checks that the second axis of the inputs is that of the tokens; that of images is the channels."""
    if data.ndim > 3:
        raise ValueError(
            "the network makes tokens of its images itself, so their order cannot be changed; got inputs "
            f"{list(data.shape)}"
        )


def metrics() -> tuple[Margins, ...]:
    """Returns the metrics of this theory."""
    return (Margins(),)


def output_change() -> tuple[OutputChange, ...]:
    """Returns the metric of the responses."""
    return (OutputChange(),)


IN_NETWORKS = InNetworks(
    metrics=metrics,
    headline=MARGIN,
    side=">=",
    responses=(
        Response("permuted tokens", permuted, output_change, null_kind="another sequence"),
        Response("repeated sequence", repeated, output_change, null_kind="another sequence"),
    ),
    meaning="binary digits that bfloat16 scores can lose before rounding may change the key with the largest "
    "one; 0: closer than neighbouring numbers",
)

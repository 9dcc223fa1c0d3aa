r"""The sink of a head, and two tests that run the network on inputs made for them.

* **Sinks.** At the key position with the largest mean weight, the norm of the value over the mean norm of all
  values. A sink whose value is near 0 contracts the branch (:mod:`.dispersion`). The band has other key
  positions.
* **Doubled keys**, in causal networks of ids. Two halves A and B of different sequences are joined in both
  orders. A query at place p of the first half sees p + 1 keys; at the same place of the second half it sees
  the keys of the other sequence as well. If they are of the same source, its largest weight on its own half
  falls by the factor (p + 1)/(p + 1 + m), with m tokens in a half. The row has the sum of the measured
  weights over that of the predictions, for the last quarter of each half; 1 is the prediction. The second
  number is that for sequences that are joined with themselves, whose keys are copies: what positions and
  repetition do without other contents.
* **One token.** The relative change of the output at the last position, or of the classes, when one token is
  exchanged with that of another sequence. For bounded scores it falls like 1/n
  (:cite:t:`hahn2020theoretical`). The second number exchanges all tokens. Of an image, one block of an eighth
  of the height and width is exchanged.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from ...core.measurement import Measurement
from ...core.metric import ActivationKind, Activations, PerHead, PerModule, Place
from ...core.sources import Source
from ...core.statistics import evenly_spaced
from ...core.theory import Response
from ...metrics.networks import weight_sums

NAME = "length"
SINK_NORM, DOUBLED, CHANGE = (
    "norm of the sink's value",
    "weight with doubled keys over its prediction",
    "change of the output by one token",
)
OTHER_KEYS, COPIES, ALL = "other key positions", "copies of the own keys", "all tokens exchanged"
SINKS, HAHN, OWN = (
    Source("xiao2024efficient", status="own"),
    Source("hahn2020theoretical", status="own"),
    Source("velickovic2025softmax", status="own"),
)


class SinkValue(PerHead):
    """Norm of the value at the key position with the largest mean weight, over the mean norm. Sequences with
    values that are not finite are left out.

    Attributes:
        sums: number of rows; then of each key its weight, the sum of the norms of its value, its weight if
            attention to the allowed keys is uniform, and the number of sequences that have it, ``[heads, 1 +
            T, 4]``; ``[heads, 1, 4]`` if values are unknown. Shorter sequences are padded with zeros.
    """

    theory, quantity, side, source, null_kind = NAME, SINK_NORM, "<=", SINKS, OTHER_KEYS
    pads = True

    def statistics(self, activations: Activations) -> Float[Tensor, "heads one_and_keys 4"] | None:
        """Returns the sums of one module; None if it has no known weights."""
        sums, weights = activations.shared(weight_sums), activations.weights
        if sums is None or weights is None or not weights.numel():
            return None
        value, mask, (n, heads, queries, T) = activations.value, activations.mask, weights.shape
        if value is None or value.shape[1] != heads or value.shape[2] != T:
            return torch.zeros(heads, 1, 4, dtype=torch.float64)
        norms = value.detach().float().norm(dim=-1)
        finite = norms.sum((1, 2)).isfinite()
        if not bool(finite.all()):
            norms, n = norms[finite], int(finite.sum())
            mask = mask if mask is None or len(mask) == 1 else mask[finite]
        norms = norms.sum(0)
        allowed = torch.ones(1, 1, queries, T) if mask is None else mask.float()
        allowed = allowed.expand(*allowed.shape[:2], queries, T)
        uniform = (allowed / allowed.sum(-1, keepdim=True).clamp(min=1)).sum(2) / queries
        uniform = uniform.expand(n, heads, T).mean(0).nan_to_num(0.0).to(sums) * sums[0][:, None]
        of_keys = torch.stack([sums[4:].mT, norms.to(sums), uniform, torch.full_like(uniform, n)], -1)
        rows = sums[0][:, None, None].expand(-1, 1, 4)
        return torch.cat([rows, of_keys], 1).cpu()

    def rows_of_head(self, sums: Float[Tensor, "one_and_keys 4"], *, draws: int) -> Iterator[Measurement]:
        """Yields the norm in one head."""
        count, T = float(sums[0, 0]), len(sums) - 1
        mass, totals, uniform, sequences = sums[1:].T.tolist()
        norms = [total / number if number else math.nan for total, number in zip(totals, sequences)]
        mean = sum(norms) / max(T, 1)
        if T < 2 or not count or not 0 < mean < math.inf:
            yield self.row(None, reason="values are unknown, zero or not finite, or there is one key")
            return
        sink = max(range(T), key=mass.__getitem__)
        chance = [norm / mean for key, norm in enumerate(norms) if key != sink]
        chance = [chance[key] for key in evenly_spaced(T - 1, draws).tolist()] if draws else []
        note = (
            f"key {sink} has a mean weight of {mass[sink] / count:.3f}, uniform attention "
            f"{uniform[sink] / count:.3f}"
        )
        yield self.row(norms[sink] / mean, draws=chance, note=note, n=int(count))


class DoubledWeight(PerHead):
    """Largest weight on the own half with doubled keys, over its prediction; for the inputs of
    :func:`joined_halves`.
    """

    theory, quantity, predicted, source = NAME, DOUBLED, 1.0, OWN

    def statistics(self, activations: Activations) -> Float[Tensor, "heads 3"] | None:
        """Returns the sums of the measured and of the predicted weights, and the number of rows with weight
        on later keys.
        """
        weights = activations.weights
        if weights is None or weights.shape[-1] != weights.shape[-2] or weights.shape[-1] < 4:
            return None
        m = weights.shape[-1] // 2
        places = torch.arange(m - max(1, m // 4), m)
        first, second = weights[:, :, places].float(), weights[:, :, places + m].float()
        factor = ((places + 1.0) / (places + 1.0 + m)).to(first)
        expected, measured = first[..., :m].amax(-1) * factor, second[..., m:].amax(-1)
        later = (first[..., m:].sum(-1) > 0).sum((0, 2))
        return torch.stack([measured.sum((0, 2)), expected.sum((0, 2)), later.float()], 1).double().cpu()

    def rows_of_head(self, sums: Float[Tensor, "3"], *, draws: int) -> Iterator[Measurement]:
        """Yields the ratio of one head."""
        measured, expected, later = sums.tolist()
        if later:
            reason = "queries see later keys, so that the first half has doubled keys as well"
            yield self.row(None, reason=reason)
        elif expected > 0:
            yield self.row(measured / expected)
        else:
            yield self.row(None, reason="weights are zero or not finite")


class TokenChange(PerModule):
    """Relative change of the output at the last position, or of the classes, with respect to the targets; for
    :func:`one_exchanged`.

    Attributes:
        sums: squared distance, squared norm of the targets, and number of sequences, ``[3]``.
    """

    kinds: ClassVar[tuple[ActivationKind, ...]] = ("outputs",)
    theory, quantity, side, source = NAME, CHANGE, "<=", HAHN

    def statistics(self, activations: Activations) -> Float[Tensor, "3"] | None:
        """Returns the statistics of one forward pass; None without targets."""
        y, t = activations.outputs, activations.targets
        if y is None or t is None or y.shape != t.shape:
            return None
        y, t = (x[:, -1] if x.ndim == 3 else x for x in (y.double(), t.double()))
        return torch.stack([(y - t).square().sum(), t.square().sum(), y.new_tensor(float(len(y)))]).cpu()

    def rows(
        self, place: Place, sums: Float[Tensor, "3"], *, draws: int, generator: Generator | None
    ) -> Iterator[Measurement]:
        """Yields one row."""
        distance, size, count = sums.tolist()
        value = (distance / size) ** 0.5 if size > 0 else None
        yield self.row(value, reason="the outputs are zero", n=int(count))


def joined_halves(data: Tensor, limits: Mapping[str, int], generator: Generator) -> dict[str, Any]:
    """Returns halves of different sequences of ids joined in both orders, and each half joined with itself,
    ``[n, 2m]``.
    """
    n = min(len(data), limits.get("sequences", len(data)), 32) // 2 * 2
    m = min(data.shape[1], limits.get("length", data.shape[1])) // 2
    halves = data[torch.randperm(len(data), generator=generator)[:n], :m]
    if n < 2 or m < 2:  # too short for two halves; the metric then has no rows
        return {"value": data[:1, :2]}
    A, B = halves[: n // 2], halves[n // 2 :]
    return {
        "value": torch.cat([torch.cat([A, B], 1), torch.cat([B, A], 1)]),
        "null": [torch.cat([halves, halves], 1)],
    }


def one_exchanged(data: Tensor, limits: Mapping[str, int], generator: Generator) -> dict[str, Any]:
    """Returns inputs in which one token is that of the previous sequence, with all inputs of the previous
    sequence as the second number.

    The last token is not exchanged if there are others. Of an image ``[n, c, h, w]`` one block of h/8 x w/8
    pixels is exchanged.
    """
    value, previous = data.clone(), data.roll(1, 0)
    if data.ndim == 4:
        h, w = (max(1, size // 8) for size in data.shape[-2:])
        for row in range(len(data)):
            top, left = (
                int(torch.randint(size - side + 1, (), generator=generator))
                for size, side in zip(data.shape[-2:], (h, w))
            )
            value[row, :, top : top + h, left : left + w] = previous[row, :, top : top + h, left : left + w]
    else:
        rows = torch.arange(len(data))
        chosen = torch.randint(max(1, data.shape[1] - 1), (len(data),), generator=generator)
        value[rows, chosen] = previous[rows, chosen]
    return {"value": value, "null": [previous], "reference": data}


RESPONSES = (
    Response("doubled keys", joined_halves, lambda: (DoubledWeight(),), null_kind=COPIES, reads="ids"),
    Response("one token exchanged", one_exchanged, lambda: (TokenChange(),), null_kind=ALL),
)

r"""Which tokens attention goes to: the sink of each head, the first and the previous token, and tokens whose
norm stands out.

A metric sees places, not words: the first token of a sequence is 0, its last one :data:`LAST`. What stands
there is known to whoever has the tokenizer or the image (:mod:`~..report.token_names`).

Source: :cite:t:`xiao2024efficient` (sinks); :cite:t:`darcet2024vision` (tokens whose norm stands out).
"""

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from ..core.measurement import Measurement, Unit
from ..core.metric import ActivationKind, Activations, Metric
from .networks import network_row, weight_rows
from .own_tokens import attends_elsewhere

LAST, LEARNT = -1, -2  # places: the last token of a sequence; a key that belongs to no token
SINK_PLACE, SINK_MASS, SINK_VALUE = (
    "place of the sink",
    "mass on the sink's place",
    "norm of the value at the sink's place",
)
FIRST_MASS, PREVIOUS_MASS = "mass on the first token", "mass on the previous token"
OUTLIERS, LARGEST_NORM = "outlier tokens in a sequence", "largest norm over the median norm"
OUTLIER_MASS, OUTLIER_PLACE = "mass on outlier tokens", "commonest place of outlier tokens"
OUTLIER_SHARE = "share of outlier tokens at their commonest place"
PLACES = (SINK_PLACE, OUTLIER_PLACE)  # quantities whose value is a place
DEVIATIONS, TIMES = 10.0, 2.0  # of an outlier: median absolute deviations above the median, and medians
MIN_TOKENS = 8  # of a sequence whose outliers are counted


class AttendedTokens(Metric):
    r"""The sink of each head, and its mass on the first and on the previous token.

    The sink is the place with the largest mean weight over all queries and sequences. Places count from the
    start; the last token of a sequence, wherever it is, is a place of its own, and so is a learnt key without
    a token. Its value is :math:`\|v_t\|` over the mean norm of the values of the sequence, averaged over the
    sequences with a token there. The mass on the first token is that of the queries behind it; the mass on
    the previous token is that of the queries from the third on, whose previous token is not the first.

    Windows of a sequence and attention to other tokens than the module's own are left out.

    Attributes:
        sums: ``(layer, first head, 0)``: sums over queries and sequences, ``[9, heads]``; ``(layer, first
            head, 1)``: weight, relative norm of the value, and number of sequences by place, ``[3, heads,
            tokens]``.
    """

    kinds: ClassVar[tuple[ActivationKind, ...]] = ("attention",)
    null_source = "networks"
    pads = True

    def update(self, activations: Activations) -> None:
        """Adds the attention of one module."""
        n, T = activations.tokens.shape[:2]
        if not _is_among_tokens(activations) or activations.shared(attends_elsewhere):
            return
        rows = activations.shared(weight_rows)
        assert rows is not None
        weights = rows.counted(rows.weights)
        counts = rows.counted(torch.ones_like(rows.entropy))
        mass = rows.received.double()  # [n, heads, keys]
        norms = _relative_norms(activations, T, mass)
        known = torch.isfinite(norms).all(-1, keepdim=True)
        norms = torch.where(known, norms, 0.0)
        last, previous = mass[..., T - 1], weights.diagonal(-1, 2, 3)[..., 1:]
        sums = [
            counts.sum(2),
            counts[:, :, 1:].sum(2),
            weights[:, :, 1:, 0].sum(2),
            counts[:, :, 2:].sum(2),
            previous.sum(2),
            last,
            norms[..., -1],
            mass[..., T] if mass.shape[-1] > T else torch.zeros_like(last),
            known[..., 0],
        ]
        place = activations.layer, activations.first_head
        self.add((*place, 0), torch.stack([x.double().sum(0) for x in sums]))
        by_place = [mass[..., :T], norms, known.expand(n, -1, T)]
        self.add((*place, 1), torch.stack([x.double().sum(0) for x in by_place]))

    def compute(self, *, draws: int = 0, generator: torch.Generator | None = None) -> Sequence[Measurement]:
        """Returns up to five rows per layer and head."""
        rows: list[Measurement] = []
        for (layer, first, part), sums in sorted(self.sums.items(), key=lambda item: item[0]):
            if part:
                continue
            by_place = self.sums[layer, first, 1]
            for head, (own, places) in enumerate(zip(sums.T.tolist(), by_place.transpose(0, 1)), first):
                rows += [
                    network_row(
                        quantity, value, unit, layer=layer, head=head, reason="no row of weights is finite"
                    )
                    for quantity, value, unit in _of_head(own, places)
                ]
        return rows


def _is_among_tokens(activations: Activations) -> bool:
    """Returns whether each token of a sequence is a query and a key, with at most one key behind them."""
    n, T = activations.tokens.shape[:2]
    weights = activations.weights
    return weights is not None and len(weights) == n and weights.shape[2] == T <= weights.shape[3] <= T + 1


def _relative_norms(activations: Activations, T: int, like: Tensor) -> Float[Tensor, "n heads tokens"]:
    """Returns the norms of the values of the tokens over their mean in each sequence; NaN if unknown."""
    value = activations.value
    if value is None or value.shape[:2] != like.shape[:2] or value.shape[2] < T:
        return torch.full_like(like[..., :T], torch.nan)
    norms = torch.linalg.vector_norm(value[:, :, :T].detach().double(), dim=-1)
    return norms / norms.mean(-1, keepdim=True)


def _of_head(own: Sequence[float], places: Float[Tensor, "3 tokens"]) -> list[tuple[str, float, Unit]]:
    """Returns quantity, value and unit of the rows of a head."""
    queries, later, on_first, from_third, on_previous, last, last_norm, learnt, sequences = own
    weight, norms, present = places
    at = int(weight.argmax())
    found = [(float(weight[at]), at, float(norms[at]), float(present[at]))]
    # with sequences of one length the last place is found twice, and is called the last
    found.append((last * (1 + 1e-9), LAST, last_norm, sequences))
    found.append((learnt, LEARNT, 0.0, 1.0))
    mass, sink, norm, count = max(found)
    rows: list[tuple[str, float, Unit]] = [
        (SINK_PLACE, float(sink) if queries else math.nan, ""),
        (SINK_MASS, min(mass, queries) / queries if queries else math.nan, "share"),
    ]
    if count:
        rows.append((SINK_VALUE, norm / count, ""))
    if later:
        rows.append((FIRST_MASS, on_first / later, "share"))
    if from_third:
        rows.append((PREVIOUS_MASS, on_previous / from_third, "share"))
    return rows


class OutlierTokens(Metric):
    r"""Tokens whose norm stands out in the stream that a block reads, and the attention that they get there.

    An outlier has a norm above :data:`TIMES` times the median norm of its sequence, and more than
    :data:`DEVIATIONS` median absolute deviations above this median. Its attention is the mean weight over the
    heads and queries of its first attention, and is averaged over the sequences with outliers.

    Attributes:
        sums: ``(layer, 0)``: number of sequences, outliers, outliers in the last place, sum of the largest
            norm over the median norm, number of sequences with outliers and known weights, their mass,
            ``[6]``; ``(layer, 1)``: outliers by place, ``[tokens]``.
    """

    null_source = "networks"
    pads = True

    def reset(self) -> None:
        """Starts a new measurement."""
        super().reset()
        self._received: dict[
            tuple[int, int], Tensor
        ] = {}  # by layer and number of tokens: weight of each key

    def update(self, activations: Activations) -> None:
        """Adds one block; of an attention, keeps the weights until its block comes."""
        place = activations.layer, activations.tokens.shape[1]
        if activations.kind == "features":
            self._add(activations, self._received.pop(place, None))
        elif activations.kind == "attention" and not activations.first_head and _is_among_tokens(activations):
            rows = activations.shared(weight_rows)
            assert rows is not None
            counts = rows.counted(torch.ones_like(rows.entropy)).sum(2)
            mean = rows.received[..., : place[1]] / counts.clamp(min=1)[..., None]
            self._received[place] = mean.double().mean(1)

    def _add(self, block: Activations, received: Tensor | None) -> None:
        """Adds the tokens that a block reads, and the weights that they got."""
        norms = torch.linalg.vector_norm(block.tokens.detach().double(), dim=-1)
        if norms.shape[1] < MIN_TOKENS:
            return
        # a sequence that is not finite has zeros: no outliers, and no largest norm
        finite = torch.isfinite(norms).all(1, keepdim=True)
        norms = torch.where(finite, norms, 0.0)
        median = norms.median(1, keepdim=True).values
        spread = (norms - median).abs().median(1, keepdim=True).values
        counted = finite & (median > 0)
        outliers = counted & (norms > TIMES * median) & (norms > median + DEVIATIONS * spread)
        largest = torch.where(counted, norms.amax(1, keepdim=True) / median, 0.0)
        known, mass = torch.zeros_like(finite), torch.zeros_like(median)
        if received is not None and received.shape == norms.shape:
            known = outliers.any(1, keepdim=True)
            mass = (outliers * received).sum(1, keepdim=True)
        sums = [counted, outliers, outliers[:, -1], largest, known, mass]
        self.add((block.layer, 0), torch.stack([x.double().sum() for x in sums]))
        self.add((block.layer, 1), outliers.double().sum(0))

    def compute(self, *, draws: int = 0, generator: torch.Generator | None = None) -> Sequence[Measurement]:
        """Returns two rows per layer, and three more for a layer with outliers."""
        rows: list[Measurement] = []
        for layer in sorted({place[0] for place in self.sums}):
            sequences, outliers, last, largest, known, mass = self.sums[layer, 0].tolist()
            if not sequences:
                continue
            found: list[tuple[str, float, Unit]] = [
                (OUTLIERS, outliers / sequences, ""),
                (LARGEST_NORM, largest / sequences, ""),
            ]
            if known:
                found.append((OUTLIER_MASS, mass / known, "share"))
            if outliers:
                by_place = self.sums[layer, 1]
                at = int(by_place.argmax())
                most, place = max((float(by_place[at]), at), (last * (1 + 1e-9), LAST))
                found.append((OUTLIER_PLACE, float(place), ""))
                found.append((OUTLIER_SHARE, min(most, outliers) / outliers, "share"))
            rows += [
                network_row(quantity, value, unit, layer=layer, reason="no sequence is finite")
                for quantity, value, unit in found
            ]
        return rows

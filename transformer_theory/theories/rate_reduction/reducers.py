"""The order parameter of rate reduction in a trained network: how far each block's features separate the classes, in nats.

The feature of a sequence is its class token after the block if the network has one, otherwise the mean of its tokens, scaled to norm 1.
A class token is recognised where it enters: the first token of the first block's input, and no other, is the same in every sequence.
The null is the same with shuffled labels: with few samples a class it is far from zero.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...citations import Source
from ...metrics.coding import SecondMoments, class_coding_rates, coding_rate, unit_norm
from ...probes import Observation
from ...rows import Row
from .optimum import optimum

EPS = 0.5**0.5  # ε² = 1/2 for features of norm 1, as in the MCR² experiments
SHUFFLES = 4
KEPT = 4  # samples, times the dimension: up to here they are kept as they are
SOURCE = Source("yu2020learning")


class RateReduction:
    """Streams R, R^c, ΔR of the class token (or the mean token) after each block, by class, beside four shuffles of the labels.

    Rows a layer: "rate reduction" (ΔR, nats), "rate reduction as a share of the optimum" (for this dimension and these class sizes),
    "coding rate" (R) and "class coding rate" (R^c); their note says which token was read. Passes without labels are not counted.

    Args:
        eps: distortion for features of norm 1; squared inside.
        seed: of the shuffles.
    Source: :cite:t:`yu2020learning`.
    """

    def __init__(self, *, eps: float = EPS, seed: int = 0):
        self.eps, self.seed = eps, seed
        self.reset()

    def reset(self) -> None:
        """Forgets what was seen."""
        self.kept: dict[int, tuple[Tensor, Tensor]] = {}  # layer -> features, labels, while they are few
        self.states: dict[int, list[SecondMoments]] = {}  # layer -> moments by class, then by shuffled class, once they are many
        self.class_token: bool | None = None  # decided at the first features seen
        self.generator = torch.Generator().manual_seed(self.seed)

    def update(self, seen: Observation, labels: Int[Tensor, " batch"] | None) -> None:
        """Adds the features of one block (kind "features"); nothing without labels."""
        if seen.kind != "features" or labels is None:
            return
        if self.class_token is None:
            self.class_token = has_class_token(seen.tokens)
        if labels.is_floating_point() or (len(labels) and int(labels.min()) < 0):
            raise ValueError(f"labels must be integers 0, 1, ..., got {labels.dtype} from {float(labels.min()):g}; relabel from zero")
        tokens = seen.output.detach()
        features = unit_norm(tokens[:, 0].double() if self.class_token else tokens.mean(1, dtype=torch.float64))
        finite = torch.isfinite(features).all(1)
        if not bool(finite.all()):
            features, labels = features[finite], labels.to(features.device)[finite]
        if len(features):
            self._add(seen.layer, features, labels.to(features.device))

    def _add(self, layer: int, features: Tensor, labels: Tensor) -> None:
        """Keeps samples as they are while they take less room than moments would: their classes' Gram matrices are small."""
        if layer in self.kept:
            old = self.kept.pop(layer)
            features, labels = torch.cat([old[0], features.to(old[0])]), torch.cat([old[1], labels.to(old[1].device)])
        if layer not in self.states and len(features) <= KEPT * features.shape[1]:
            self.kept[layer] = features, labels
            return
        states = self.states.setdefault(layer, [SecondMoments() for _ in range(1 + SHUFFLES)])
        states[0].update(features, labels)
        for state in states[1:]:
            state.update(features, labels[torch.randperm(len(labels), generator=self.generator).to(labels.device)])

    def merge(self, other: "RateReduction") -> None:
        """Adds another reducer's state.

        Raises:
            ValueError: one read a class token and the other the mean of the tokens.
        """
        if None not in (self.class_token, other.class_token) and self.class_token != other.class_token:
            raise ValueError("merge needs two readings of the same token, got a class token and a mean of tokens; probe one network only")
        self.class_token = other.class_token if self.class_token is None else self.class_token
        for layer, states in other.states.items():
            if layer in self.kept:
                features, labels = self.kept.pop(layer)
                self.states[layer] = [SecondMoments() for _ in range(1 + SHUFFLES)]
                self._add(layer, features, labels)
            for mine, theirs in zip(self.states.setdefault(layer, [SecondMoments() for _ in range(1 + SHUFFLES)]), states):
                mine.merge(theirs)
        for layer, (features, labels) in other.kept.items():
            self._add(layer, features, labels)

    def compute(self) -> Sequence[Row]:
        """Four rows a layer; none if no labelled features were seen."""
        rows: list[Row] = []
        note = "read at the class token" if self.class_token else "read at the mean of the tokens"
        for layer in sorted(self.kept | self.states):
            rate, within, within_null, sizes, dim = self._rates(layer)
            best = optimum(sizes, dim, eps=self.eps).value if sum(size > 0 for size in sizes) <= dim else 0.0

            def row(quantity: str, value: float, layer: int = layer, **more) -> Row:
                return Row(theory="rate_reduction", quantity=quantity, value=value, layer=layer, source=str(SOURCE), note=note, **more)

            rows.append(row("rate reduction", rate - within, null=rate - within_null))
            if best > 0:
                null = (rate - within_null) / best
                rows.append(row("rate reduction as a share of the optimum", (rate - within) / best, null=null))
            rows.append(row("coding rate", rate))
            rows.append(row("class coding rate", within, null=within_null))
        return rows

    def _rates(self, layer: int) -> tuple[float, float, float, list[int], int]:
        """R, R^c, R^c with shuffled labels, class sizes, dimension."""
        if layer in self.states:
            state = self.states[layer][0]
            within, *null = (float(each.class_coding_rate(eps=self.eps)) for each in self.states[layer])
            sizes = state.counts.long().tolist()
            return float(state.coding_rate(eps=self.eps)), within, sum(null) / SHUFFLES, sizes, state.moments.shape[-1]
        features, labels = self.kept[layer]
        sizes = torch.bincount(labels)
        generator = torch.Generator().manual_seed(self.seed)
        orders = [torch.randperm(len(labels), generator=generator).to(labels.device) for _ in range(SHUFFLES)]
        together = torch.cat([given + k * len(sizes) for k, given in enumerate([labels, *(labels[order] for order in orders)])])
        rates = class_coding_rates(features.repeat(1 + SHUFFLES, 1), together, eps=self.eps)  # all labellings at once
        within, *null = (rates.view(-1, len(sizes)) @ (sizes.double() / len(labels))).tolist()
        return float(coding_rate(features, eps=self.eps)), within, sum(null) / SHUFFLES, sizes.tolist(), features.shape[1]


def has_class_token(tokens: Float[Tensor, "batch seq dim"]) -> bool:
    """Whether the first token, and no other, is the same in every sequence of what the first block reads."""
    same = (tokens == tokens[:1]).all(2).all(0)
    return len(tokens) > 1 and len(same) > 1 and bool(same[0]) and not bool(same[1:].any())


def reducers() -> tuple[RateReduction, ...]:
    """The order parameters of this room."""
    return (RateReduction(),)

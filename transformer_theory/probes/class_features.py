"""What blocks do to classes: coding rates of the features and neural collapse, each beside the same with shuffled labels.

The feature of a sequence is its class token after the block if the network has one, otherwise the mean of its tokens.
A class token is recognised where it enters: the first token of the first block's input, and no other, is the same in every sequence.
With few samples a class the null is far from zero. Labels may come sorted, so that shuffling them within a batch would change nothing.
Up to 16 d samples are kept, each with a random key, and their labels are shuffled at the end. Of more, those with the 16 d smallest keys
are kept, a uniform draw whatever the order.
Source: :cite:t:`yu2020learning` (rates), :cite:t:`papyan2020prevalence` (neural collapse).
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..core.measurement import Row
from ..maths.linalg import logdet_identity_plus
from ..metrics.coding import SecondMoments, class_coding_rate, coding_rate, unit_norm
from ..metrics.geometry import neural_collapse
from .observation import Observation

EPS = 0.5**0.5  # ε² = 1/2 for features of norm 1, as in the MCR² experiments
SHUFFLES = 4
KEPT = 16  # samples, times the dimension, that are kept as they are
NC1, NC2_NORMS, NC2_ANGLES = "variability within classes (NC1)", "spread of the class means' norms (NC2)", "class means' angles (NC2)"


class ClassFeatures:
    """Streams the features of each block with their classes: what reducers that read classes have in common.

    Passes without labels are not counted, nor are features that are not finite. Merged states have the samples of the union; shuffles and
    draws depend on their order, so nulls, and what is read of a draw, need not be to the digit those of one batch.

    Args:
        seed: of the keys and the shuffles.
    Source: :cite:t:`yu2020learning`.
    """

    kinds = ("features",)

    def __init__(self, *, seed: int = 0):
        self.seed = seed
        self.reset()

    def reset(self) -> None:
        """Forgets what was seen."""
        self.kept: dict[int, tuple[Tensor, Tensor, Tensor]] = {}  # layer -> features, labels and keys of a uniform draw, or of all
        self.class_token: bool | None = None  # decided at the first features seen
        self.generator = torch.Generator().manual_seed(self.seed)

    def update(self, seen: Observation, labels: Int[Tensor, " batch"] | None) -> None:
        """Adds the features of one block; nothing without labels."""
        if seen.kind != "features" or labels is None or not len(labels):
            return
        if self.class_token is None:
            self.class_token = has_class_token(seen.tokens)
        if labels.is_floating_point() or (len(labels) and int(labels.min()) < 0):
            raise ValueError(f"labels must be integers 0, 1, ..., got {labels.dtype} from {float(labels.min()):g}; relabel from zero")
        tokens = seen.output.detach()
        features = self._scaled(tokens[:, 0].double() if self.class_token else tokens.mean(1, dtype=torch.float64))
        finite = torch.isfinite(features).all(1)
        if not bool(finite.all()):
            features, labels = features[finite], labels.to(features.device)[finite]
        if len(features):
            keys = torch.rand(len(features), dtype=torch.float64, generator=self.generator)
            self._add(seen.layer, features, labels.to(features.device), keys.to(features.device))

    def _scaled(self, features: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        """The features as they are read."""
        return features

    def _add(self, layer: int, *new: Tensor) -> None:
        """New features, labels and keys."""
        self._keep(layer, self._with_kept(layer, new))

    def _with_kept(self, layer: int, new: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(torch.cat([mine, each.to(mine)]) for mine, each in zip(self.kept[layer], new)) if layer in self.kept else new

    def _keep(self, layer: int, samples: tuple[Tensor, ...]) -> None:
        """Of all samples so far, those with the smallest keys."""
        features, labels, keys = samples
        if len(keys) > KEPT * features.shape[1]:
            chosen = keys.argsort()[: KEPT * features.shape[1]]
            features, labels, keys = features[chosen], labels[chosen], keys[chosen]
        self.kept[layer] = features, labels, keys

    def merge(self, other: "ClassFeatures") -> None:
        """Adds another reducer's state.

        Raises:
            ValueError: one read a class token and the other the mean of the tokens.
        """
        if None not in (self.class_token, other.class_token) and self.class_token != other.class_token:
            raise ValueError("merge needs two readings of the same token, got a class token and a mean of tokens; probe one network only")
        self.class_token = other.class_token if self.class_token is None else self.class_token
        self._merge(other)

    def _merge(self, other: "ClassFeatures") -> None:
        for layer, theirs in other.kept.items():
            self._add(layer, *theirs)

    @property
    def note(self) -> str:
        """Which token was read."""
        return "read at the class token" if self.class_token else "read at the mean of the tokens"


class FeatureRates(ClassFeatures):
    """R, R^c and ΔR of the features, scaled to norm 1, after each block, in nats; null: ΔR with shuffled labels, mean of four shuffles.

    Any number of samples is streamed exactly: beyond those that are kept as second moments by class. The null then deals those kept,
    repeated up to the number of all, to classes of the true sizes (it is some 5 % too low: a draw fits its own spread).

    Args:
        eps: distortion for features of norm 1; squared inside.
        seed: of the keys and the shuffles.
    Source: :cite:t:`yu2020learning`.
    """

    def __init__(self, *, eps: float = EPS, seed: int = 0):
        self.eps = eps
        super().__init__(seed=seed)

    def reset(self) -> None:
        """Forgets what was seen."""
        super().reset()
        self.states: dict[int, SecondMoments] = {}  # layer -> moments by class, once there are more samples than are kept

    def compute(self) -> Sequence[Row]:
        """Three rows a layer: "rate reduction", "coding rate" and "class coding rate"; none if no labelled features were seen."""
        rows: list[Row] = []
        for layer in sorted(self.kept):
            rate, within, sizes, _ = self._rates(layer)
            null = self._null(layer, sizes)
            found = (("rate reduction", rate - within, null), ("coding rate", rate, None), ("class coding rate", within, rate - null))
            for quantity, value, nothing in found:
                row = Row(theory="network", quantity=quantity, value=value, layer=layer, note=self.note)
                rows.append(row if nothing is None else Row(**{**row, "null": nothing}))
        return rows

    def _scaled(self, features: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        return unit_norm(features)

    def _add(self, layer: int, *new: Tensor) -> None:
        """New features, labels and keys: all are kept while their classes' Gram matrices are smaller than moments would be."""
        together = self._with_kept(layer, new)
        if layer in self.states:
            self.states[layer].update(*new[:2])
        elif len(together[0]) > KEPT * together[0].shape[1]:
            self.states[layer] = SecondMoments()
            self.states[layer].update(*together[:2])
        self._keep(layer, together)

    def _merge(self, other: "FeatureRates") -> None:
        for layer, theirs in other.kept.items():
            if layer not in other.states:
                self._add(layer, *theirs)
                continue
            if layer not in self.states:
                self.states[layer] = SecondMoments()
                if layer in self.kept:
                    self.states[layer].update(*self.kept[layer][:2])
            self.states[layer].merge(other.states[layer])
            self._keep(layer, self._with_kept(layer, theirs))

    def _rates(self, layer: int) -> tuple[float, float, list[int], int]:
        """R, R^c, class sizes, dimension."""
        features, labels, _ = self.kept[layer]
        if layer in self.states:
            state = self.states[layer]
            rate, within = state.coding_rate(eps=self.eps), state.class_coding_rate(eps=self.eps)
            return float(rate), float(within), state.counts.long().tolist(), features.shape[1]
        rate, within = coding_rate(features, eps=self.eps), class_coding_rate(features, labels, eps=self.eps)
        return float(rate), float(within), torch.bincount(labels).tolist(), features.shape[1]

    def _null(self, layer: int, sizes: list[int]) -> float:
        """ΔR with shuffled labels, mean of a few shuffles."""
        features = self.kept[layer][0]
        generator, (m, d), n = torch.Generator().manual_seed(self.seed), features.shape, sum(sizes)
        samples = torch.arange(n) % m  # those kept, as often as it takes
        repeats = torch.bincount(samples, minlength=m).to(features)
        rate = 0.5 * float(logdet_identity_plus(repeats.sqrt()[:, None] * features, d / (n * self.eps**2)))
        within = 0.0
        for _ in range(SHUFFLES):
            for own in samples[torch.randperm(n, generator=generator)].split(sizes):
                if len(own):
                    chosen, times = own.unique(return_counts=True)
                    rows = times.to(features).sqrt()[:, None] * features[chosen.to(features.device)]
                    within += 0.5 * len(own) / n * float(logdet_identity_plus(rows, d / (len(own) * self.eps**2)))
        return rate - within / SHUFFLES


class NeuralCollapse(ClassFeatures):
    """How far the features of each block are from neural collapse, see :func:`~transformer_theory.metrics.neural_collapse`.

    Three rows a layer, without unit, 0 at collapse: NC1 and the two parts of NC2, each beside the same with shuffled labels (one shuffle).
    NC3 needs the classifier, which no block knows. Beyond 16 d samples a uniform draw of so many is read. The value is None where it is
    undefined: fewer than two classes, or class means that coincide. Source: :cite:t:`papyan2020prevalence`.
    """

    def compute(self) -> Sequence[Row]:
        """Three rows a layer; none if no labelled features were seen."""
        rows: list[Row] = []
        for layer, (features, labels, _) in sorted(self.kept.items()):
            order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(self.seed)).to(labels.device)
            values, nulls = _collapse(features, labels), _collapse(features, labels[order])
            note = self.note + (f", {len(labels):,} drawn" if len(labels) == KEPT * features.shape[1] else "")
            for quantity, value, null in zip((NC1, NC2_NORMS, NC2_ANGLES), values, nulls):
                row = Row(theory="network", quantity=quantity, value=value, layer=layer, note=note)
                rows.append(row if null is None else Row(**{**row, "null": null}))
        return rows


def _collapse(features: Tensor, labels: Tensor) -> tuple[float | None, float | None, float | None]:
    try:
        found = neural_collapse(features, labels)
    except ValueError:  # one class, or means that coincide
        return None, None, None
    return found.nc1, found.nc2_norms, found.nc2_angles


def has_class_token(tokens: Float[Tensor, "batch seq dim"]) -> bool:
    """Whether the first token, and no other, is the same in every sequence of what the first block reads."""
    same = (tokens == tokens[:1]).all(2).all(0)
    return len(tokens) > 1 and len(same) > 1 and bool(same[0]) and not bool(same[1:].any())

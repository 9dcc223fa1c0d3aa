"""Class separation of each block's features: coding rates and neural collapse, with permuted labels as the
null distribution.

The feature of a sequence is the mean, after the block, of the tokens from which the network computes its
outputs, such as a class token or the last token. If they are not known, or the network has an output at every
token, it is the mean of all tokens with contents (:mod:`.token_layout`).

With few samples per class these metrics are far from zero even for random labels, so the null distribution
has to be computed. If samples arrive sorted by class, a batch has one class, and permuting its labels changes
nothing. Therefore samples of all batches are stored, and their labels are permuted in ``compute``. At most
:func:`stored_samples` are stored: each sample gets a random key, and the samples with the smallest keys are
kept, which is a uniform draw from all samples, independent of their order. Source: :cite:t:`yu2020learning`
(rates), :cite:t:`papyan2020prevalence` (neural collapse).
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..core.measurement import Measurement, Null, present
from ..core.metric import ActivationKind, Activations, Metric
from ..core.statistics import permutations
from ..maths.linalg import logdet_identity_plus
from .coding import SecondMoments, class_coding_rate, coding_rate
from .coding.memberships import blocks
from .coding.rates import normalised
from .geometry import neural_collapse
from .token_layout import MEAN, mean_feature, where

EPS = 0.5**0.5  # eps^2 = 1/2 for features of norm 1, as in the MCR^2 experiments
# largest number of stored samples: 16 per dimension of the features, but at least 4096
SAMPLES_PER_DIMENSION, SAMPLES = 16, 4096
RATE_REDUCTION, CODING_RATE, CLASS_CODING_RATE = "rate reduction", "coding rate", "class coding rate"
NC1, NC2_NORMS, NC2_ANGLES = (
    "variability within classes (NC1)",
    "spread of the class means' norms (NC2)",
    "class means' angles (NC2)",
)
NULL_KIND = "permuted labels"
BATCH_ENTRIES = 2**22  # entries of the features in one batch of permuted groups; 32 MB in float64


class ClassFeatures(Metric):
    """Base class of the metrics that need labels. It stores the features of each block with their labels.

    Sequences without labels are ignored, and so are features that are not finite. The permutations
    depend on the order of the samples, so the null values after a merge may differ slightly from the null
    values of one pass over the same samples.

    Args:
        seed: seed of the keys.

    Attributes:
        samples: features [n, d], labels [n] and keys [n] by layer: all samples, or :func:`stored_samples` of
            them drawn uniformly.
        where: which tokens the feature is the mean of, in words; empty before the first update.
    """

    kinds: ClassVar[tuple[ActivationKind, ...]] = ("features",)
    takes_padding = True

    def __init__(self, *, seed: int = 0):
        self.seed = seed
        super().__init__()

    def reset(self) -> None:
        super().reset()
        self.samples: dict[int, tuple[Tensor, Tensor, Tensor]] = {}
        self.where = ""
        self.generator = torch.Generator().manual_seed(self.seed)

    def update(self, activations: Activations) -> None:
        """Adds the features of one block whose sequences have labels; does nothing without labels."""
        labels = activations.labels
        if activations.kind != "features" or labels is None or not len(labels):
            return
        self.where = self.where or where(activations)
        features = self.scaled(activations.shared(mean_feature))
        known = torch.isfinite(features).all(1) & (labels.to(features.device) >= 0)
        if not bool(known.all()):
            features, labels = features[known], labels.to(features.device)[known]
        if len(features):
            keys = torch.rand(len(features), dtype=torch.float64, generator=self.generator)
            self.add_samples(
                activations.layer, features, labels.to(features.device), keys.to(features.device)
            )

    def scaled(self, features: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        """Returns the features, scaled as the metric requires."""
        return features

    def add_samples(self, layer: int, *samples: Tensor) -> None:
        """Adds samples of a layer: features, labels and keys."""
        self._store(layer, self._joined(layer, samples))

    def _joined(self, layer: int, samples: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Returns the stored samples of a layer followed by new ones, without storing them."""
        if layer not in self.samples:
            return samples
        return tuple(torch.cat([stored, new.to(stored)]) for stored, new in zip(self.samples[layer], samples))

    def _store(self, layer: int, samples: tuple[Tensor, ...]) -> None:
        """Replaces the stored samples of a layer. Of more than 16 d samples, those with the smallest keys are
        stored.
        """
        features, labels, keys = samples
        limit = stored_samples(features.shape[1])
        if len(keys) > limit:
            smallest = keys.argsort()[:limit]
            features, labels, keys = features[smallest], labels[smallest], keys[smallest]
        self.samples[layer] = features, labels, keys

    def merge(self, other: Any) -> None:
        """Adds the state of another metric."""
        self.where = self.where or other.where
        super().merge(other)
        self.merge_samples(other)

    def merge_samples(self, other: Any) -> None:
        """Adds the samples of another metric."""
        for layer, samples in other.samples.items():
            self.add_samples(layer, *samples)

    def state_dict(self) -> dict[str, Tensor]:
        state = {
            f"{layer}.{name}": x
            for layer, stored in self.samples.items()
            for name, x in zip(("features", "labels", "keys"), stored)
        }
        state["generator"] = self.generator.get_state()
        state["where"] = torch.tensor(list(self.where.encode()), dtype=torch.uint8)
        return super().state_dict() | state

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.reset()
        layers = sorted({int(name.partition(".")[0]) for name in state if name.partition(".")[2] == "keys"})
        self.samples = {
            layer: (state[f"{layer}.features"], state[f"{layer}.labels"], state[f"{layer}.keys"])
            for layer in layers
        }
        self.generator.set_state(state["generator"])
        self.where = bytes(state["where"].tolist()).decode()

    @property
    def note(self) -> str:
        """Which tokens were measured."""
        return f"at {self.where or MEAN}"


class FeatureRates(ClassFeatures):
    """R, R^c and ΔR = R - R^c in nats, of the features after each block, scaled to norm 1. The null
    distribution has permuted labels.

    The rates are exact for any number of samples: beyond :func:`stored_samples` they are computed from second
    moments per class, which are accumulated over the batches. There is then no null: rates depend on the
    number of samples, so the stored ones alone would give another chance level.

    Args:
        eps: distortion for features of norm 1; the formulas contain its square.
        seed: seed of the keys.
    """

    def __init__(self, *, eps: float = EPS, seed: int = 0):
        self.eps = eps
        super().__init__(seed=seed)

    def reset(self) -> None:
        super().reset()
        self.moments: dict[int, SecondMoments] = {}  # only for layers with more samples than are stored

    def compute(self, *, draws: int = 0, generator: torch.Generator | None = None) -> Sequence[Measurement]:
        """Returns three rows per layer: :data:`RATE_REDUCTION`, :data:`CODING_RATE` and
        :data:`CLASS_CODING_RATE`; none without labels.
        """
        rows: list[Measurement] = []
        for layer in sorted(self.samples):
            rate, within, sizes, _ = self.rates(layer)
            null = self.null_draws(layer, sizes, draws=draws, generator=generator)
            columns: dict[str, Any] = {"unit": "nats", "layer": layer, "n": sum(sizes), "note": self.note}
            # R does not depend on the labels, so the null of R^c = R - ΔR follows from that of ΔR.
            labelled: dict[str, Any] = {"scope": "these data", **columns}
            null_within = permuted_labels([rate - reduction for reduction in null])
            rows += [
                Measurement(
                    "network",
                    "network",
                    RATE_REDUCTION,
                    rate - within,
                    nulls=present(permuted_labels(null)),
                    side=">=",
                    **labelled,
                ),
                Measurement("network", "network", CODING_RATE, rate, scope="training", **columns),
                Measurement(
                    "network",
                    "network",
                    CLASS_CODING_RATE,
                    within,
                    nulls=present(null_within),
                    side="<=",
                    **labelled,
                ),
            ]
        return rows

    def scaled(self, features: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        return normalised(features)

    def add_samples(self, layer: int, *samples: Tensor) -> None:
        """Adds samples to the stored ones and, beyond :func:`stored_samples`, to the second moments."""
        all_samples = self._joined(layer, samples)
        if layer in self.moments:
            self.moments[layer].update(*samples[:2])
        elif len(all_samples[0]) > stored_samples(all_samples[0].shape[1]):
            self.moments[layer] = SecondMoments()
            self.moments[layer].update(*all_samples[:2])
        self._store(layer, all_samples)

    def merge_samples(self, other: Any) -> None:
        for layer, samples in other.samples.items():
            # Without moments, the other metric has stored all of its samples.
            if layer not in other.moments:
                self.add_samples(layer, *samples)
                continue
            # The moments already contain the stored samples of the other metric, which must not be counted
            # twice.
            if layer not in self.moments:
                self.moments[layer] = SecondMoments()
                if layer in self.samples:
                    self.moments[layer].update(*self.samples[layer][:2])
            self.moments[layer].merge(other.moments[layer])
            self._store(layer, self._joined(layer, samples))

    def state_dict(self) -> dict[str, Tensor]:
        state = super().state_dict()
        for layer, moments in self.moments.items():
            state |= {f"{layer}.counts": moments.counts, f"{layer}.moments": moments.moments}
        return state

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        super().load_state_dict(state)
        for layer in self.samples:
            if f"{layer}.counts" in state:
                self.moments[layer] = SecondMoments()
                self.moments[layer].counts, self.moments[layer].moments = (
                    state[f"{layer}.counts"],
                    state[f"{layer}.moments"],
                )

    def rates(self, layer: int) -> tuple[float, float, list[int], int]:
        """Returns R and R^c of a layer in nats, the number of samples per class, and the dimension of the
        features.
        """
        features, labels, _ = self.samples[layer]
        if layer in self.moments:
            state = self.moments[layer]
            rate, within = state.coding_rate(eps=self.eps), state.class_coding_rate(eps=self.eps)
            return float(rate), float(within), state.counts.long().tolist(), features.shape[1]
        rate, within = coding_rate(features, eps=self.eps), class_coding_rate(features, labels, eps=self.eps)
        return float(rate), float(within), torch.bincount(labels).tolist(), features.shape[1]

    def null_draws(
        self, layer: int, sizes: Sequence[int], *, draws: int = 0, generator: torch.Generator | None = None
    ) -> tuple[float, ...]:
        """Computes ΔR of a layer in nats with permuted labels, one value per permutation; none if some
        samples are not stored.

        Args:
            layer: index of the layer.
            sizes: number of samples per class, as :meth:`rates` returns it.
            draws: number of permutations.
            generator: source of the permutations. None: :func:`~.statistics.permutations`, which layers and
                seeds share.
        """
        if not draws or layer in self.moments:
            return ()
        n = sum(sizes)
        return tuple(
            permuted_reductions(
                self.samples[layer][0], permutations(n, draws, generator), sizes, eps=self.eps
            )
        )


def stored_samples(dim: int) -> int:
    """Returns the largest number of samples that are stored: 16 per dimension of the features, but at least
    4096.
    """
    return max(SAMPLES, SAMPLES_PER_DIMENSION * dim)


def permuted_labels(draws: Sequence[float]) -> Null | None:
    """Returns the null :data:`NULL_KIND`; None if there are no draws."""
    return Null(NULL_KIND, tuple(draws)) if len(draws) else None


def permuted_reductions(
    features: Float[Tensor, "m d"], shuffled: Int[Tensor, "draws n"], sizes: Sequence[int], *, eps: float
) -> list[float]:
    """Computes ΔR in nats of features whose labels are permuted, one value per row of ``shuffled``.

    Args:
        features: float64, ``[m, d]``.
        shuffled: indices of features, possibly with repetition. Each row is cut into groups of the sizes,
            which are the classes; all rows contain the same indices in different orders.
        sizes: number of samples per class, with the sum n.
        eps: distortion (squared inside).
    """
    (m, d), (draws, n) = features.shape, shuffled.shape
    if not draws:
        return []
    # A row x that occurs r times contributes r x x^T to the second moments, as much as the single row sqrt(r)
    # x, so rows are scaled instead of repeated.
    repeats = torch.bincount(shuffled[0], minlength=m).to(features)
    rate = 0.5 * float(logdet_identity_plus(repeats.sqrt()[:, None] * features, d / (n * eps**2)))
    together = max(1, BATCH_ENTRIES // (n * d))
    class_sizes = torch.tensor([size for size in sizes if size])
    return [
        float(rate - within)
        for part in shuffled.split(together)
        for within in _rates_of_groups(features, part, class_sizes, eps)
    ]


def _rates_of_groups(
    features: Float[Tensor, "m d"], shuffled: Int[Tensor, "draws n"], sizes: Int[Tensor, " k"], eps: float
) -> Float[Tensor, " draws"]:
    """Computes R^c of the groups into which each row of ``shuffled``, indices of samples, is cut; float64, on
    the CPU.
    """
    (m, d), (draws, n) = features.shape, shuffled.shape
    sizes = sizes.repeat(draws)
    groups = torch.arange(len(sizes)).repeat_interleave(sizes)
    pairs, repeats = torch.unique(groups * m + shuffled.flatten(), return_counts=True)
    counts = torch.bincount(pairs // m, minlength=len(sizes))
    # The last row pads the groups of a batch to one size. It has the weight zero, which does not change the
    # log-determinant.
    indices = torch.cat([pairs % m, torch.zeros(1, dtype=torch.long)]).to(features.device)
    weights = torch.cat([repeats, torch.zeros(1, dtype=torch.long)]).to(features).sqrt()[:, None]
    logdets = torch.zeros(len(sizes), dtype=torch.float64)
    for similar, rows in blocks(pairs // m, counts):
        length = max(1, BATCH_ENTRIES // (rows.shape[1] * d))
        for chosen, places in zip(similar.split(length), rows.to(features.device).split(length)):
            scales = d / (sizes[chosen].to(features) * eps**2)
            logdets[chosen] = logdet_identity_plus(weights[places] * features[indices[places]], scales).cpu()
    return 0.5 * (sizes * logdets).view(draws, -1).sum(1) / n


class NeuralCollapse(ClassFeatures):
    """Distance of the features of each block from neural collapse, see
    :func:`~transformer_theory.metrics.neural_collapse`.

    There are three rows per layer, without unit, 0 at collapse: NC1 and the two parts of NC2. The null has
    permuted labels. NC3 is not measured, because it compares features with a classifier and a block has none.
    Of more than 16 d samples, a uniform draw of 16 d is measured. A value is None if it is undefined, that
    is, with fewer than two classes or coinciding class means.
    """

    def compute(self, *, draws: int = 0, generator: torch.Generator | None = None) -> Sequence[Measurement]:
        """Returns three rows per layer; none without labels."""
        rows: list[Measurement] = []
        for layer, (features, labels, _) in sorted(self.samples.items(), key=lambda item: item[0]):
            n = len(labels)
            orders = (
                permutations(n, draws)
                if generator is None
                else [torch.randperm(n, generator=generator) for _ in range(draws)]
            )
            nulls = [_collapse(features, labels[order.to(labels.device)]) for order in orders]
            for number, (quantity, value) in enumerate(
                zip((NC1, NC2_NORMS, NC2_ANGLES), _collapse(features, labels))
            ):
                permuted = tuple(x for null in nulls if (x := null[number]) is not None)
                row = Measurement(
                    theory="network",
                    kind="network",
                    quantity=quantity,
                    value=value,
                    nulls=present(permuted_labels(permuted)),
                    side="<=",
                    scope="these data",
                    reason="fewer than two classes, or class means that coincide" if value is None else "",
                    n=n,
                    note=self.note,
                    layer=layer,
                )
                rows.append(row)
        return rows


def _collapse(features: Tensor, labels: Tensor) -> tuple[float | None, float | None, float | None]:
    """Computes NC1 and the two parts of NC2; None if undefined."""
    try:
        collapse = neural_collapse(features, labels)
    except ValueError:  # fewer than two classes, or equal class means
        return None, None, None
    return collapse.nc1, collapse.nc2_norms, collapse.nc2_angles

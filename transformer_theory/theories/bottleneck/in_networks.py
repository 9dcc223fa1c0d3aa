r"""Information of each block's features about the input and the label, after discretisation, beside the
curve.

A block's features are a deterministic continuous map of the input, so :math:`I(X;Z)` is infinite or, on n
different inputs, log n. The metric divides them into at most 32 words by k-means without labels. Then
:math:`I(X;Z) = H(Z)` of the words. On a sample of different inputs the label is a function of the input, so
the information curve of (X, Y) is :math:`I(Z;Y) = I(X;Z)` up to :math:`H(Y)`, and the achievable information
is :math:`\min(H(Z), H(Y))`. All numbers are about these words; another number of words gives other numbers.

All entropies are corrected for their bias (Miller and Madow). With few samples per pair of word and label
much bias remains, so the null, which permutes the labels, is not at 0.
Source: :cite:t:`tishby2015deep` (the question), :cite:t:`kolchinsky2019caveats` (the curve of deterministic
labels).
"""

from collections.abc import Sequence

import torch
from torch import Generator

from ...core.measurement import Measurement, Null, present
from ...core.sources import Source
from ...core.statistics import permutations
from ...core.theory import InNetworks
from ...metrics.class_features import ClassFeatures
from .information import corrected_information, entropy, plug_in_bias, table, words

NAME, SOURCE = "bottleneck", Source("tishby2015deep", status="own")
SHARE = "share of the achievable information"
COMPRESSION, RELEVANCE = (
    "information of the words about the input",
    "information of the words about the label",
)
NULL_KIND = "permuted labels"
WORDS, PER_WORD = 32, 8  # most words of a block; samples per word
CHUNK = 2**22


class WordInformation(ClassFeatures):
    """Corrected I(X;Z) and I(Z;Y) of the words of each block, and I(Z;Y) as a share of min(H(Z), H(Y))."""

    def compute(self, *, draws: int = 0, generator: Generator | None = None) -> Sequence[Measurement]:
        """Returns three rows per layer, or one with a reason; none without labels."""
        rows: list[Measurement] = []
        for layer, (features, labels, keys) in sorted(self.samples.items(), key=lambda item: item[0]):
            # The stored order changes when samples are dropped. The keys restore one order for batches of any
            # size.
            order = keys.argsort()
            rows += self._rows(layer, features[order].cpu(), labels[order].cpu(), draws, generator)
        return rows

    def _rows(
        self,
        layer: int,
        features: torch.Tensor,
        labels: torch.Tensor,
        draws: int,
        generator: Generator | None,
    ) -> list[Measurement]:
        n, labels = len(features), torch.unique(labels, return_inverse=True)[1]
        classes, k = int(labels.max()) + 1, min(WORDS, len(features) // PER_WORD)
        columns = {"layer": layer, "n": n, "source": SOURCE}
        if classes < 2 or k < 2 or n < 2 * classes:
            reason = f"needs {2 * PER_WORD} samples, got {n}: the bias would exceed the information"
            reason = (
                "needs two classes"
                if classes < 2
                else reason
                if k < 2
                else "needs two samples per class on average"
            )
            return [
                Measurement(
                    NAME, "in network", SHARE, None, unit="share", side=">=", reason=reason, **columns
                )
            ]
        codes = words(features, k)
        used = int(codes.max()) + 1
        if used < 2:
            return [
                Measurement(
                    NAME,
                    "in network",
                    SHARE,
                    None,
                    unit="share",
                    side=">=",
                    reason="all features are equal",
                    **columns,
                )
            ]
        compression = float(entropy(torch.bincount(codes).double() / n)) + (used - 1) / (2 * n)
        achievable = min(
            compression, float(entropy(torch.bincount(labels).double() / n)) + (classes - 1) / (2 * n)
        )
        relevance = float(corrected_information(table(codes, labels, (used, classes))))
        shuffled = labels[permutations(n, draws, generator)]
        values = torch.cat(
            [
                corrected_information(table(codes, part, (used, classes)))
                for part in shuffled.split(max(1, CHUNK // n))
            ]
        )
        nulls = [
            Null(NULL_KIND, tuple((values / scale).tolist())) if draws else None
            for scale in (1.0, achievable)
        ]
        note = (
            f"{used} words of k-means, bias of independent labels {plug_in_bias(used, classes, n):.3f} nats, "
            f"{self.note}"
        )
        return [
            Measurement(
                NAME,
                "in network",
                SHARE,
                relevance / achievable,
                unit="share",
                side=">=",
                scope="these data",
                nulls=present(nulls[1]),
                note=f"{note}; {achievable - relevance:.2f} nats below the curve",
                **columns,
            ),
            Measurement(
                NAME,
                "in network",
                RELEVANCE,
                relevance,
                unit="nats",
                side=">=",
                scope="these data",
                nulls=present(nulls[0]),
                note=note,
                **columns,
            ),
            Measurement(NAME, "in network", COMPRESSION, compression, unit="nats", note=note, **columns),
        ]


def metrics() -> tuple[WordInformation, ...]:
    """Returns the metrics of this theory."""
    return (WordInformation(),)


IN_NETWORKS = InNetworks(
    metrics=metrics,
    headline=SHARE,
    side=">=",
    of_labels=True,
    meaning="information of the features, cut into words, about the class, over the most that these words "
    "could have",
)

"""Does attention's choice itself carry the label? Information between the heaviest key of each head and the
class of the sequence.

The choice of a head is the position of the heaviest key of the token that the network reads, or of the mean
over the queries that it reads; if these are not known, over all queries with contents. Its information about
the label is corrected for bias (:mod:`.information`); the null permutes the labels, with permutations that
depend on the number of samples only. Information above the null means that where the head looks differs
between classes: it does not say that the head looks at the token that decides the class, for which the needle
would have to be known.

Source: :cite:t:`jethani2021learned`; the quantity is our own.
"""

from collections.abc import Iterator
from typing import ClassVar

import torch
from jaxtyping import Int
from torch import Generator, Tensor

from ...core.measurement import Measurement
from ...core.metric import ALL, ActivationKind, Activations, PerModule, Place
from ...core.sources import Source
from ...core.statistics import RANGE_DRAWS, fixed_generator
from ...core.theory import InNetworks
from ...metrics.token_layout import mean_query
from .information import choice_information, information_bias, information_null

NAME, SOURCE = "router", Source("jethani2021learned", status="own")
HEAVIEST = "information of the heaviest key about the label"
MAX_SAMPLES = 8192  # for the information and its null
PERMUTED = "permuted labels"
POORLY = "no label per sequence, sequences in windows, or weights that are not finite"


class HeaviestKey(PerModule):
    """Information between the heaviest key of each head and the label, nats; see the module's docstring.

    Attributes:
        sums: by layer and first head: label and choice of each head, one row per sequence, ``[n, 1 +
            heads]``; no rows if they are unknown.
    """

    kinds: ClassVar[tuple[ActivationKind, ...]] = ("attention",)
    keeps = ALL
    theory, quantity, unit, side, source, null_kind = NAME, HEAVIEST, "nats", ">=", SOURCE, PERMUTED

    def statistics(self, activations: Activations) -> Int[Tensor, "n one_and_heads"] | None:
        """Returns the choices of one module; None if it has no known weights."""
        weights, labels = activations.weights, activations.labels
        if weights is None or (query := activations.shared(mean_query)) is None:
            return None
        rows = torch.zeros(0, 1 + weights.shape[1], dtype=torch.int64, device=weights.device)
        if labels is not None and labels.shape == weights.shape[:1]:
            largest, choice = query.max(-1)
            rows = torch.cat([labels.to(weights.device)[:, None], choice], 1).long()
            # The largest weight is NaN if any weight is; a negative label means that there is none.
            if not bool((known := largest.isfinite().all(-1) & (rows[:, 0] >= 0)).all()):
                rows = rows[known]
        return rows

    def rows(
        self, place: Place, sums: Int[Tensor, "n one_and_heads"], *, draws: int, generator: Generator | None
    ) -> Iterator[Measurement]:
        """Yields one row per head."""
        table, n = sums.cpu().long(), len(sums)
        if n > MAX_SAMPLES:
            table = table[torch.randperm(n, generator=fixed_generator())[:MAX_SAMPLES]]
        labels = table[:, 0]
        classes = len(labels.unique())
        for head, choice in enumerate(table[:, 1:].unbind(1)):
            found, columns = len(choice.unique()), {"head": head, "n": len(table)}
            if not n:
                yield self.row(None, reason=POORLY, **columns)
            elif classes < 2:
                yield self.row(None, reason="all sequences have one label", **columns)
            elif len(table) < found * classes:
                reason = (
                    f"expected a sample for each of {found * classes} pairs of key and label, got {n}; the "
                    f"bias would be {information_bias(found, classes, n):.2f} nats; measure more sequences"
                )
                yield self.row(None, reason=reason, **columns)
            else:
                chance = information_null(choice, labels, min(draws, RANGE_DRAWS)) if draws else ()
                note = (
                    f"{found} keys are chosen; {information_bias(found, classes, len(table)):.3f} nats of "
                    "bias were subtracted"
                )
                yield self.row(choice_information(choice, labels), draws=chance, note=note, **columns)


IN_NETWORKS = InNetworks(
    metrics=lambda: (HeaviestKey(),),
    headline=HEAVIEST,
    side=">=",
    of_labels=True,
    meaning="information in nats of the position of a head's largest weight about the class",
)

"""Does attention's choice itself carry the label? Information between the heaviest key of each head and the
class of the sequence.

The choice of a head is the position of the heaviest key of the class token, if there is one, otherwise of the
mean over queries. Its information about the label is corrected for bias (:mod:`.information`); the null
permutes the labels, with permutations that depend on the number of samples only. Information above the null
means that where the head looks differs between classes: it does not say that the head looks at the token that
decides the class, for which the needle would have to be known.

Source: :cite:t:`jethani2021learned`; the quantity is our own.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Generator, Tensor

from ...core.measurement import Measurement, Null, present
from ...core.metric import ActivationKind, Activations, Place
from ...core.sources import Source
from ...core.statistics import RANGE_DRAWS, fixed_generator
from ...core.theory import InNetworks
from ...metrics.class_token import ClassTokenMetric
from .information import choice_information, information_bias, information_null

NAME, SOURCE = "router", Source("jethani2021learned", status="own")
HEAVIEST = "information of the heaviest key about the label"
MAX_SAMPLES = 8192  # for the information and its null
PERMUTED = "permuted labels"
POORLY = "no integer label per sequence, sequences in windows, or weights that are not finite"


class HeaviestKey(ClassTokenMetric):
    """Information between the heaviest key of each head and the label, nats; see the module's docstring.

    The class token is recognised in the first module after a reset: the token that is the same in every
    sequence.

    Attributes:
        sums: by layer and first head: label and choice of each head, one row per sequence, ``[n, 1 +
            heads]``; no rows if they are unknown.
        class_token: whether the choice is that of the class token; None before the first update.
    """

    kinds: ClassVar[tuple[ActivationKind, ...]] = ("attention",)

    def add(self, place: Place, sums: Tensor) -> None:
        """Appends the rows of further sequences."""
        self.sums[place] = (
            torch.cat([self.sums[place], sums.to(self.sums[place].device)]) if place in self.sums else sums
        )

    def update(self, activations: Activations) -> None:
        """Adds the choices of one module; modules without known weights are skipped."""
        weights, labels = activations.weights, activations.labels
        if weights is None:
            return
        self.recognise(activations.tokens)
        rows = torch.zeros(0, 1 + weights.shape[1], dtype=torch.int64, device=weights.device)
        if labels is not None and labels.shape == weights.shape[:1] and not labels.is_floating_point():
            query = weights[:, :, 0] if self.class_token else weights.mean(2)
            largest, choice = query.max(-1)
            rows = torch.cat([labels.to(weights.device)[:, None], choice], 1).long()
            # The largest weight is NaN if any weight is.
            if not bool((known := largest.isfinite().all(-1)).all()):
                rows = rows[known]
        self.add((activations.layer, activations.first_head), rows)

    def compute(self, *, draws: int = 0, generator: Generator | None = None) -> Sequence[Measurement]:
        """Returns one row per layer and head."""
        rows = []
        for (layer, first), sums in sorted(self.sums.items(), key=lambda item: item[0]):
            n = len(sums)
            table = sums.cpu().long()
            if n > MAX_SAMPLES:
                table = table[torch.randperm(n, generator=fixed_generator())[:MAX_SAMPLES]]
            labels, choices = table[:, 0], table[:, 1:]
            classes = len(labels.unique())
            for head, choice in enumerate(choices.unbind(1), start=first):
                columns: dict[str, Any] = {
                    "layer": layer,
                    "head": head,
                    "n": len(table),
                    "source": SOURCE,
                    "unit": "nats",
                    "side": ">=",
                }
                found = len(choice.unique())
                cells = found * classes
                if not n or classes < 2 or len(table) < cells:
                    bias = (
                        f"; the bias would be {information_bias(found, classes, n):.2f} nats"
                        if n and classes > 1
                        else ""
                    )
                    few = (
                        f"expected a sample for each of {cells} pairs of key and label, got {n}{bias}; "
                        "measure more sequences"
                    )
                    reason = POORLY if not n else "all sequences have one label" if classes < 2 else few
                    rows.append(Measurement(NAME, "in network", HEAVIEST, None, reason=reason, **columns))
                    continue
                null = (
                    Null(PERMUTED, information_null(choice, labels, min(draws, RANGE_DRAWS)))
                    if draws
                    else None
                )
                note = (
                    f"{found} keys are chosen; {information_bias(found, classes, len(table)):.3f} nats of "
                    "bias were subtracted"
                )
                rows.append(
                    Measurement(
                        NAME,
                        "in network",
                        HEAVIEST,
                        choice_information(choice, labels),
                        nulls=present(null),
                        note=note,
                        **columns,
                    )
                )
        return rows


IN_NETWORKS = InNetworks(
    metrics=lambda: (HeaviestKey(),),
    headline=HEAVIEST,
    side=">=",
    meaning="information in nats of the position of a head's largest weight about the class",
)

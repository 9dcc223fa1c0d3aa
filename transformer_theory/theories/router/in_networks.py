"""Does attention's choice itself carry the label? Information between the heaviest key of each head and the class of the sequence.

The choice of a head is the position of the heaviest key of the class token, if there is one, otherwise of the mean over queries. Its
information about the label is corrected for bias (:mod:`.information`); the null permutes the labels, with permutations that depend on the
number of samples only. Information above the null means that where the head looks differs between classes: it does not say that the head
looks at the token that decides the class, for which the needle would have to be known.

Source: :cite:t:`jethani2021learned`; the quantity is our own.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Generator, Tensor

from ...core.measurement import Measurement, Null
from ...core.metric import ActivationKind, Activations, Metric, Place
from ...core.sources import Source
from ...core.statistics import RANGE_DRAWS, fixed_generator
from ...core.theory import InNetworks
from ...metrics.class_features import has_class_token
from .information import choice_information, information_bias, information_null

NAME, SOURCE = "router", Source("jethani2021learned", status="own")
HEAVIEST = "information of the heaviest key about the label"
MAX_SAMPLES = 8192  # for the information and its null
PERMUTED = "permuted labels"
POORLY = "no labels, sequences in windows, or weights that are not finite"


class HeaviestKey(Metric):
    """Information between the heaviest key of each head and the label, nats; see the module's docstring.

    The class token is recognised in the first module after a reset: the token that is the same in every sequence.

    Attributes:
        sums: by layer and first head: label and choice of each head, one row per sequence, ``[n, 1 + heads]``; no rows if they are unknown.
        class_token: whether the choice is that of the class token; None before the first update.
    """

    kinds: ClassVar[tuple[ActivationKind, ...]] = ("attention",)

    def reset(self) -> None:
        """Starts a new measurement."""
        super().reset()
        self.class_token: bool | None = None

    def add(self, place: Place, sums: Tensor) -> None:
        """Appends the rows of further sequences."""
        self.sums[place] = torch.cat([self.sums[place], sums.to(self.sums[place].device)]) if place in self.sums else sums

    def update(self, activations: Activations) -> None:
        """Adds the choices of one module; modules without known weights are skipped."""
        weights, labels = activations.weights, activations.labels
        if weights is None:
            return
        if self.class_token is None:
            self.class_token = has_class_token(activations.tokens)
        rows = torch.zeros(0, 1 + weights.shape[1], dtype=torch.int32, device=weights.device)
        if labels is not None and len(labels) == len(weights):
            query = weights[:, :, 0] if self.class_token else weights.mean(2)
            largest, choice = query.max(-1)
            rows = torch.cat([labels.to(weights.device)[:, None], choice], 1).int()
            # The largest weight is NaN if any weight is.
            if not bool((known := largest.isfinite().all(-1)).all()):
                rows = rows[known]
        self.add((activations.layer, activations.first_head), rows)

    def merge(self, other: Any) -> None:
        """Adds the state of another metric.

        Raises:
            ValueError: one metric has measured a class token and the other the mean over queries.
        """
        if None not in (self.class_token, other.class_token) and self.class_token != other.class_token:
            raise ValueError("merge needs two states of one network, got one with a class token and one without; measure them apart")
        self.class_token = other.class_token if self.class_token is None else self.class_token
        super().merge(other)

    def state_dict(self) -> dict[str, Tensor]:
        """Returns the rows by place, and whether there is a class token."""
        return super().state_dict() | ({} if self.class_token is None else {"class_token": torch.tensor(self.class_token)})

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restores the state of :meth:`state_dict`."""
        super().load_state_dict({name: rows for name, rows in state.items() if name != "class_token"})
        self.class_token = bool(state["class_token"]) if "class_token" in state else None

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
                columns = {"layer": layer, "head": head, "n": len(table), "source": SOURCE, "unit": "nats", "side": ">="}
                found = len(choice.unique())
                cells = found * classes
                if not n or classes < 2 or len(table) < cells:
                    bias = f"; the bias would be {information_bias(found, classes, n):.2f} nats" if n and classes > 1 else ""
                    few = f"expected a sample for each of {cells} pairs of key and label, got {n}{bias}; measure more sequences"
                    reason = POORLY if not n else "all sequences have one label" if classes < 2 else few
                    rows.append(Measurement(NAME, "in network", HEAVIEST, None, reason=reason, **columns))
                    continue
                null = Null(PERMUTED, information_null(choice, labels, min(draws, RANGE_DRAWS))) if draws else None
                rows.append(Measurement(NAME, "in network", HEAVIEST, choice_information(choice, labels), null=null, **columns))
        return rows


IN_NETWORKS = InNetworks(metrics=lambda: (HeaviestKey(),), headline=HEAVIEST, side=">=")

"""Second moments per class as a streaming state. They determine the coding rates of any number of samples,
and add over processes.

Source: :cite:t:`yu2020learning` (the rates).
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ...core.validation import as_float64, finite
from .memberships import as_classes, check_eps, class_sizes, is_soft, with_labels
from .resolvents import rate_and_inverse


class SecondMoments:
    r"""Second moments :math:`X^\top\Pi_jX` and counts :math:`\mathrm{tr}\,\Pi_j` of each class.

    The rates equal those that the functions of :mod:`.rates` compute from all samples at once, but memory is
    O(k d^2) for any n. Sums are in float64. If the moments have less than full rank and
    :math:`d\|x\|^2/\epsilon^2` exceeds 1e10, rounding errors would be visible next to the identity, and the
    methods raise ValueError. (The functions, which know the samples, use the smaller Gram matrix, which may
    have full rank where the moments have not.) The data determine the number of classes and the dimension.
    States with different numbers of classes can be merged.

    Attributes:
        counts: number of samples per class, or sum of soft memberships, ``[classes]`` float64.
        moments: sums of outer products, ``[classes, d, d]`` float64.
    """

    counts: Float[Tensor, " classes"]
    moments: Float[Tensor, "classes d d"]

    def __init__(self):
        self.reset()

    def reset(self) -> None:
        """Removes all samples."""
        self.counts = torch.zeros(0, dtype=torch.float64)
        self.moments = torch.zeros(0, 0, 0, dtype=torch.float64)

    def update(self, features: Any, labels: Any) -> None:
        """Adds samples, detached from their graph. The first samples determine the device of the state.

        Args:
            features: tensor or array with one row per sample, ``[n, d]``.
            labels: class of each sample, integers >= 0, ``[n]``, or memberships ``[n, k]``.
        Raises:
            ValueError: labels do not fit the features, a feature is not finite, or the dimension differs from
                earlier samples.
            TypeError: features are not real numbers.
        """
        rows, labels = with_labels(as_float64("features", features).detach(), as_classes(labels))
        finite(features=rows)
        counts = class_sizes(rows, labels).detach().to(rows.device, torch.float64)
        moments = rows.new_zeros(len(counts), rows.shape[1], rows.shape[1])
        for j in counts.nonzero()[:, 0].tolist():
            if is_soft(labels):
                moments[j] = rows.mT @ (labels[:, j, None].detach().double() * rows)
            else:
                members = rows[labels == j]
                moments[j] = members.mT @ members
        self._add(counts, moments)

    def merge(self, other: "SecondMoments") -> None:
        """Adds another state. The result is the state of the union of the samples.

        Raises:
            ValueError: the dimensions differ.
        """
        if len(other.counts):
            self._add(other.counts, other.moments)

    def all_reduce(self, group: "torch.distributed.ProcessGroup | None" = None) -> "SecondMoments":
        """Returns, on every rank, the state of the union of the samples of all ranks. The state of this rank
        does not change.

        The ranks exchange k (d^2 + 1) numbers, whatever the number of samples. Ranks may have different
        classes or no samples.

        Args:
            group: process group of ``torch.distributed``. Defaults to all ranks. Every rank of the group must
                call this method.
        Raises:
            ValueError: ranks have features of different dimensions (raised on every rank).
        """
        classes, d = len(self.counts), self.moments.shape[-1]
        device = (
            torch.device("cuda") if torch.distributed.get_backend(group) == "nccl" else self.counts.device
        )
        # One maximum yields the number of classes, the largest dimension and, negated, the smallest dimension
        # of ranks with samples. An empty rank contributes the most negative number, which never is the
        # maximum. All ranks get the same numbers, so all raise or none.
        bounds = torch.tensor([classes, d, -d if classes else -torch.iinfo(torch.int64).max], device=device)
        torch.distributed.all_reduce(bounds, op=torch.distributed.ReduceOp.MAX, group=group)
        all_classes, largest, negated = bounds.tolist()
        union = SecondMoments()
        if not all_classes:
            return union
        if largest != -negated:
            raise ValueError(
                f"all ranks must hold features of one dimension, got {-negated} to {largest}; use one state "
                "for each feature"
            )
        # Pad to common shapes; classes without samples on this rank have zero moments.
        counts = _padded(self.counts.to(device), all_classes).contiguous()
        moments = torch.zeros(all_classes, largest, largest, dtype=torch.float64, device=device)
        moments[:classes, :d, :d] = self.moments
        for sums in (counts, moments):
            torch.distributed.all_reduce(sums, group=group)
        union._add(counts, moments)
        return union

    def _add(self, counts: Tensor, moments: Tensor) -> None:
        if not len(self.counts):
            self.counts, self.moments = counts.clone(), moments.clone()
            return
        if moments.shape[-1] != self.moments.shape[-1]:
            raise ValueError(
                f"features must keep their dimension {self.moments.shape[-1]}, got {moments.shape[-1]}; use "
                "another state"
            )
        classes, device = max(len(counts), len(self.counts)), self.counts.device
        self.counts = _padded(self.counts, classes) + _padded(counts.to(device), classes)
        self.moments = _padded(self.moments, classes) + _padded(moments.to(device), classes)

    def coding_rate(self, *, eps: float) -> Float[Tensor, ""]:
        """Computes R of all samples in nats, see :func:`.coding_rate`.

        Raises:
            ValueError: there is no sample, or eps is not positive or too small for second moments.
        """
        self._check(eps)
        return self._rates(self.moments.sum(0), self.counts.sum(), eps)

    def class_coding_rates(self, *, eps: float) -> Float[Tensor, " classes"]:
        """Computes R_j per class in nats (0 if empty), see :func:`.class_coding_rates`. Raises ValueError as
        :meth:`coding_rate` does.
        """
        self._check(eps)
        return self._rates(self.moments, torch.where(self.counts > 0, self.counts, 1), eps)

    def class_coding_rate(self, *, eps: float) -> Float[Tensor, ""]:
        """Computes R^c in nats, see :func:`.class_coding_rate`. Raises ValueError as :meth:`coding_rate`
        does.
        """
        rates = self.class_coding_rates(eps=eps)
        shares = self.counts / self.counts.sum()
        return shares @ rates

    def rate_reduction(self, *, eps: float) -> Float[Tensor, ""]:
        """Computes ΔR in nats, see :func:`.rate_reduction`. Raises ValueError as :meth:`coding_rate` does."""
        return self.coding_rate(eps=eps) - self.class_coding_rate(eps=eps)

    def _check(self, eps: float) -> None:
        check_eps(eps)
        if not float(self.counts.sum()):
            raise ValueError("a coding rate needs at least one sample, got an empty state; call update first")

    @staticmethod
    def _rates(moments: Tensor, counts: Tensor, eps: float) -> Tensor:
        return rate_and_inverse(
            moments / counts[..., None, None],
            moments.new_tensor(moments.shape[-1] / eps**2).expand(counts.shape),
        )[0]


def _padded(sums: Tensor, classes: int) -> Tensor:
    """Appends zeros to sums per class, for classes without samples."""
    return torch.cat([sums, sums.new_zeros(classes - len(sums), *sums.shape[1:])])

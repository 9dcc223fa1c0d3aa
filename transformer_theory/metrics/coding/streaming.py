r"""Streaming states: second moments by class, from which coding rates of any number of samples follow, and which add up over ranks.

Source: :cite:t:`yu2020learning` (the rates).
"""

import torch
from jaxtyping import Float
from torch import Tensor

from .checks import check_eps, check_finite, check_tensor
from .memberships import Memberships, class_sizes, is_soft
from .resolvents import rate_and_inverse


class SecondMoments:
    r"""Per-class second moments :math:`X^\top\Pi_jX` and counts :math:`\mathrm{tr}\,\Pi_j`: streamed, and added up.

    Exact: the rates equal those of the functions on all samples at once, at a memory of O(k d^2) whatever n is. Sums are kept in float64.
    Moments hold squares: where samples have less than full rank and :math:`d\|x\|^2/\epsilon^2` exceeds 1e10 their rounding would show next
    to the identity, and rates are refused (the functions, which see the samples, go on to 1e20).
    Classes and dimension are learned from the data; merging states of different numbers of classes pads with empty ones.

    Attributes:
        counts: samples of each class, ``[classes]`` float64 (a sum of weights for soft memberships).
        moments: sums of outer products, ``[classes, d, d]`` float64.
    Source: :cite:t:`yu2020learning` (the rates).
    """

    counts: Float[Tensor, " classes"]
    moments: Float[Tensor, "classes d d"]

    def __init__(self):
        self.reset()

    def reset(self) -> None:
        """Forgets everything."""
        self.counts = torch.zeros(0, dtype=torch.float64)
        self.moments = torch.zeros(0, 0, 0, dtype=torch.float64)

    def update(self, features: Float[Tensor, "n d"], labels: Memberships) -> None:
        """Adds samples (detached; the state lives on the device of the first ones; float16 and bfloat16 are exact in float64).

        Args:
            features: rows are samples, ``[n, d]``.
            labels: class of each, integers >= 0, ``[n]``, or memberships ``[n, k]``.
        Raises:
            ValueError: labels do not fit the features, a feature is not finite, or the dimension differs from before.
        """
        check_tensor("features", features)
        check_finite(features)
        counts = class_sizes(features, labels).detach().to(features.device, torch.float64)
        rows = features.detach().double()
        moments = rows.new_zeros(len(counts), rows.shape[1], rows.shape[1])
        for j in counts.nonzero()[:, 0].tolist():
            if is_soft(labels):
                moments[j] = rows.mT @ (labels[:, j, None].detach().double() * rows)
            else:
                own = rows[labels == j]
                moments[j] = own.mT @ own
        self._add(counts, moments)

    def merge(self, other: "SecondMoments") -> None:
        """Adds another state: the result is the state of the union of the samples.

        Raises:
            ValueError: the dimensions differ.
        """
        if len(other.counts):
            self._add(other.counts, other.moments)

    def all_reduce(self, group: "torch.distributed.ProcessGroup | None" = None) -> "SecondMoments":
        """The state of the union of all ranks' samples, on every rank; this rank's own state stays as it is.

        Two sums over k (d^2 + 1) numbers, however many samples there are. Ranks may have seen different classes, or nothing.

        Args:
            group: of ``torch.distributed``; all ranks if not given. Every rank of the group must call.
        Raises:
            ValueError: ranks saw features of different dimensions (raised on every rank).
        """
        classes, d = len(self.counts), self.moments.shape[-1]
        device = torch.device("cuda") if torch.distributed.get_backend(group) == "nccl" else self.counts.device
        bounds = torch.tensor([classes, d, -d if classes else -torch.iinfo(torch.int64).max], device=device)
        torch.distributed.all_reduce(bounds, op=torch.distributed.ReduceOp.MAX, group=group)
        most, largest, smallest = bounds.tolist()
        union = SecondMoments()
        if not most:
            return union
        if largest != -smallest:
            raise ValueError(f"all ranks must hold features of one dimension, got {-smallest} to {largest}; use one state a feature")
        counts = _grown(self.counts.to(device), most).contiguous()
        moments = torch.zeros(most, largest, largest, dtype=torch.float64, device=device)
        moments[:classes, :d, :d] = self.moments
        for each in (counts, moments):
            torch.distributed.all_reduce(each, group=group)
        union._add(counts, moments)
        return union

    def _add(self, counts: Tensor, moments: Tensor) -> None:
        if not len(self.counts):
            self.counts, self.moments = counts.clone(), moments.clone()
            return
        if moments.shape[-1] != self.moments.shape[-1]:
            raise ValueError(f"features must keep their dimension {self.moments.shape[-1]}, got {moments.shape[-1]}; use another state")
        classes, device = max(len(counts), len(self.counts)), self.counts.device
        self.counts = _grown(self.counts, classes) + _grown(counts.to(device), classes)
        self.moments = _grown(self.moments, classes) + _grown(moments.to(device), classes)

    def coding_rate(self, *, eps: float) -> Float[Tensor, ""]:
        """R of all samples seen, nats; see :func:`coding_rate`. Raises ValueError if nothing was seen, or eps is not positive or too
        small for moments."""
        self._check(eps)
        return self._rates(self.moments.sum(0), self.counts.sum(), eps)

    def class_coding_rates(self, *, eps: float) -> Float[Tensor, " classes"]:
        """R_j of each class, nats, 0 for empty ones; see :func:`class_coding_rates`. Raises ValueError as :meth:`coding_rate`."""
        self._check(eps)
        return self._rates(self.moments, torch.where(self.counts > 0, self.counts, 1), eps)

    def class_coding_rate(self, *, eps: float) -> Float[Tensor, ""]:
        """R^c, nats; see :func:`class_coding_rate`. Raises ValueError as :meth:`coding_rate`."""
        rates = self.class_coding_rates(eps=eps)
        shares = self.counts / self.counts.sum()
        return shares @ rates

    def rate_reduction(self, *, eps: float) -> Float[Tensor, ""]:
        """ΔR, nats; see :func:`rate_reduction`. Raises ValueError as :meth:`coding_rate`."""
        return self.coding_rate(eps=eps) - self.class_coding_rate(eps=eps)

    def _check(self, eps: float) -> None:
        check_eps(eps)
        if not float(self.counts.sum()):
            raise ValueError("a coding rate needs at least one sample, the state is empty; call update first")

    @staticmethod
    def _rates(moments: Tensor, counts: Tensor, eps: float) -> Tensor:
        return rate_and_inverse(moments / counts[..., None, None], moments.new_tensor(moments.shape[-1] / eps**2).expand(counts.shape))[0]


def _grown(tensor: Tensor, classes: int) -> Tensor:
    return torch.cat([tensor, tensor.new_zeros(classes - len(tensor), *tensor.shape[1:])])

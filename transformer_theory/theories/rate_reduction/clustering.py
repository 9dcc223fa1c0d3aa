r"""Clustering by compression: groups are merged as long as coding the samples group by group takes fewer bits.

Each sample starts as a group of its own. The pair whose union shortens

.. math::
    L^s = \sum_j \Big[\frac{n_j + d}{2} \log_2\det\big(I + \frac{d}{n_j \epsilon^2} S_j\big) - n_j \log_2\frac{n_j}{n}\Big],
    \quad S_j = X_j^\top X_j,

most is merged, until no union shortens it. The number of groups is found, not given; it falls with the distortion ε, whose square is about
d times the variance of the noise around the groups' subspaces. Steepest descent by pairs may end in a local minimum.

Cost. A group is known by a factor :math:`T_j` of :math:`\min(n_j, r)` rows, :math:`T_j^\top T_j = S_j`, r the rank of all samples. With the
singular vectors V and values s of the group merged last, its union with another costs one determinant of the other's rows,

.. math::
    \det(I + \beta(S + S_j)) = \prod_i (1 + \beta s_i^2) \cdot \det\big(I + \beta F_j F_j^\top\big), \quad
    F_j = T_j V (I + \beta \,\mathrm{diag}(s^2))^{-1/2} V^\top + T_j (I - V V^\top),

so that a merge takes :math:`O(n r \min(n_j, r))` and everything :math:`O(n^2 r \min(n, r))` at most, with n² numbers kept.

Subspace clustering by the elastic net, the other method that the features of MCR² were clustered by, is left out: no library for it is
maintained.

Source: :cite:t:`ma2007segmentation`.
"""

import math

import numpy as np
from jaxtyping import Float, Int
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.utils.validation import validate_data

from ...core.validation import positive

EXPECTED_FAILED_CHECKS = {"check_clustering": "its groups lie around means, not around subspaces through the origin"}

LARGEST = 1e11  # distortions in a sample: up to here singular values are rounded by less than a thousandth of one
NEGLIGIBLE = 1e-3  # distortions: a direction that holds less does not count


class CodingLengthClustering(ClusterMixin, BaseEstimator):
    r"""Agglomerative lossy compression: merges groups while the coding length of all samples falls.

    Args:
        eps: distortion, in the unit of the samples, > 0; squared inside. 1 by default, which means nothing for your data: choose it.

    **Choosing eps.** Samples are taken as they are (not scaled to norm 1), and ε is a distance between a sample and its code. If the noise
    around the subspaces has standard deviation s in each of d coordinates, :math:`\epsilon = s\sqrt d`. If s is not known, fit for several
    ε, from a hundredth of the typical norm of a sample up in steps of two: much below the noise every sample is a group of its own, much
    above it all are one, and a number of groups that stays over several ε is a finding.

    There is no ``predict``: the criterion is the length of one code for all samples, and a new sample would change it. To put new samples
    into the groups found, take :func:`~.redunet.nearest_subspace` or ``NearestSubspaceClassifier().fit(X, found.labels_)``.

    Attributes:
        labels_: group of each sample, numbered by first appearance, ``[n]``.
        n_clusters_: number of groups found.
        lengths_: coding length L^s in bits before each merge and at the end, ``[merges + 1]``, falling.

    Subspaces go through the origin: subtract a mean that does not matter, append a constant 1 to samples around affine subspaces.
    ``fit`` raises ValueError if eps is no positive number, or samples are not finite or too large for it.
    Source: :cite:t:`ma2007segmentation`.
    """

    def __init__(self, eps: float = 1.0):
        self.eps = eps

    def fit(self, X, y=None) -> "CodingLengthClustering":
        """Groups samples ``[n, d]``; y is ignored.

        Raises:
            ValueError: eps is no positive number, samples are not finite, or they are too large for eps.
        """
        X = np.asarray(validate_data(self, X, dtype=np.float64))
        positive(eps=self.eps)
        largest = float(np.abs(X).max())
        if largest > LARGEST * self.eps:
            raise ValueError(
                f"samples must be at most {LARGEST:g} eps, got {largest:g} with eps {self.eps:g}; take a larger eps, or rescale"
            )
        groups = _Groups(X / self.eps)
        lengths = [groups.length]
        while groups.merge_best():
            lengths.append(groups.length)
        self.lengths_ = np.array(lengths) / math.log(2)
        first = {label: place for place, label in reversed([*enumerate(groups.labels.tolist())])}
        number = {label: place for place, label in enumerate(sorted(first, key=first.__getitem__))}
        self.labels_ = np.array([number[label] for label in groups.labels.tolist()])
        self.n_clusters_ = len(number)
        return self


class _Groups:
    """The groups, and by how much each pair's union changes the coding length, in nats."""

    def __init__(self, X: Float[np.ndarray, "n d"]):
        """Samples come in units of the distortion."""
        self.n, self.d = X.shape
        if self.n < self.d:  # only inner products matter: the samples in coordinates of their span
            left, sizes, _ = np.linalg.svd(X, full_matrices=False)
            X = left * sizes
        self.labels = np.arange(self.n)
        self.counts = np.ones(self.n)
        self.factors = {1: (np.arange(self.n), X[:, None])}  # power of two -> groups with at most so many rows, their rows
        squares = (X * X).sum(1)
        self.lengths = self._length(self.counts, np.log1p(self._scale(self.counts) * squares))
        self.length = float(self.lengths.sum())
        pair = np.full(1, 2.0)
        scale = self._scale(pair)
        areas = np.maximum(squares[:, None] * squares - (X @ X.T) ** 2, 0)  # rounding may take a little below zero
        logdets = np.log1p(scale * (squares[:, None] + squares + scale * areas))
        self.gains = self._length(pair, logdets) - self.lengths[:, None] - self.lengths
        np.fill_diagonal(self.gains, np.inf)
        self.nearest = self.gains.argmin(1)

    def merge_best(self) -> bool:
        """Merges the pair that shortens the code most; False if none does."""
        rows = np.arange(self.n)
        i = int(self.gains[rows, self.nearest].argmin())
        j = int(self.nearest[i])
        gain = float(self.gains[i, j])
        if not gain < 0:
            return False
        self.length += gain
        self.lengths[i] += self.lengths[j] + gain
        self.lengths[j] = 0
        self.counts[i] += self.counts[j]
        self.labels[self.labels == j] = i
        sizes, directions = self._unite(i, j)
        self.gains[j] = self.gains[:, j] = np.inf
        self._measure(i, sizes, directions)
        return True

    def _unite(self, i: int, j: int) -> tuple[Float[np.ndarray, " rank"], Float[np.ndarray, "rank r"]]:
        """Puts the factor of the union in the place of those of i and j; its singular values and vectors."""
        taken = []
        for rows, (groups, factors) in [*self.factors.items()]:
            own = (groups == i) | (groups == j)
            if own.any():
                taken += [*factors[own]]
                self.factors[rows] = groups[~own], factors[~own]
        _, sizes, directions = np.linalg.svd(np.concatenate(taken), full_matrices=False)
        kept = max(1, int((sizes > min(1e-12 * sizes[0], NEGLIGIBLE)).sum()))
        sizes, directions = sizes[:kept], directions[:kept]
        rows = 1 << (kept - 1).bit_length()
        factor = np.zeros((1, rows, directions.shape[1]))
        factor[0, :kept] = sizes[:, None] * directions
        groups, factors = self.factors.get(rows, (np.empty(0, dtype=int), factor[:0]))
        self.factors[rows] = np.append(groups, i), np.concatenate([factors, factor])
        return sizes, directions

    def _measure(self, i: int, sizes: Float[np.ndarray, " rank"], directions: Float[np.ndarray, "rank r"]) -> None:
        """What the unions with group i would gain, and each group's best partner."""
        gains = np.full(self.n, np.inf)
        for groups, factors in self.factors.values():
            counts = self.counts[groups] + self.counts[i]
            scales = self._scale(counts)
            inside = factors @ directions.T
            outside = factors - inside @ directions
            grown = 1 + scales[:, None] * sizes**2
            inside /= np.sqrt(grown)[:, None]
            gram = scales[:, None, None] * (inside @ inside.swapaxes(1, 2) + outside @ outside.swapaxes(1, 2))
            united = self._length(counts, np.log(grown).sum(1) + _logdet_above_identity(gram))
            gains[groups] = united - self.lengths[groups] - self.lengths[i]
        gains[i] = np.inf
        self.gains[i] = self.gains[:, i] = gains
        closer = gains < self.gains[np.arange(self.n), self.nearest]
        lost = ~np.isfinite(self.gains[np.arange(self.n), self.nearest]) | (self.nearest == i)
        self.nearest[closer] = i
        again = np.flatnonzero((lost & ~closer) | (np.arange(self.n) == i))
        self.nearest[again] = self.gains[again].argmin(1)

    def _scale(self, counts: np.ndarray) -> np.ndarray:
        return self.d / counts

    def _length(self, counts: np.ndarray, logdets: np.ndarray) -> np.ndarray:
        """Nats for groups of these sizes, with the naming of their members."""
        return (counts + self.d) / 2 * logdets - counts * np.log(counts / self.n)


def _logdet_above_identity(gram: Float[np.ndarray, "groups q q"]) -> Float[np.ndarray, " groups"]:
    """``log det(I + gram)`` of each."""
    if gram.shape[1] == 1:
        return np.log1p(gram[:, 0, 0])
    factors = np.linalg.cholesky(np.eye(gram.shape[1]) + gram)
    return 2 * np.log(factors.diagonal(axis1=1, axis2=2)).sum(1)


def clustering_accuracy(truth: Int[np.ndarray, " n"], found: Int[np.ndarray, " n"]) -> float:
    """Share of samples in the right group under the best one-to-one naming of the groups found.

    Args:
        truth, found: group of each sample, ``[n]``; their numbers of groups may differ.
    Returns:
        in (0, 1].
    Raises:
        ValueError: lengths differ, or there is no sample.
    Source: :cite:t:`yu2020learning` (evaluation).
    """
    from scipy.optimize import linear_sum_assignment
    from sklearn.metrics.cluster import contingency_matrix

    if len(truth) != len(found) or not len(truth):
        raise ValueError(f"truth and found must name the group of each sample, got {len(truth)} and {len(found)} of them")
    table = contingency_matrix(truth, found)
    return float(table[linear_sum_assignment(table, maximize=True)].sum() / len(truth))

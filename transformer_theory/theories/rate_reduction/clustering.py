r"""Clustering by compression. Groups are merged as long as this reduces the number of bits that code the
samples group by group.

Initially each sample is a group. In each step, the pair of groups that shortens the code most is merged,
until no pair shortens it. The code length in bits is

.. math::
    L^s = \sum_j \Big[\frac{n_j + d}{2} \log_2\det\big(I + \frac{d}{n_j \epsilon^2} S_j\big) - n_j
    \log_2\frac{n_j}{n}\Big], \quad S_j = X_j^\top X_j .

The number of groups is an output and falls as the distortion ε grows. A suitable ε² is d times the variance
of the noise around the subspaces of the groups. Steepest descent by pairs may end in a local minimum.

**Cost.** A group is represented by a factor :math:`T_j` of :math:`\min(n_j, r)` rows with :math:`T_j^\top T_j
= S_j`; r is the rank of all samples. Let V and s be the singular vectors and values of the group merged last.
Its union with group j needs one determinant of the size of :math:`T_j`,

.. math::
    \det(I + \beta(S + S_j)) = \prod_i (1 + \beta s_i^2) \cdot \det\big(I + \beta F_j F_j^\top\big), \quad
    F_j = T_j V (I + \beta \,\mathrm{diag}(s^2))^{-1/2} V^\top + T_j (I - V V^\top).

So a merge takes :math:`O(n r \min(n_j, r))` operations, and all merges take at most :math:`O(n^2 r \min(n,
r))`, with n² stored numbers.

Source: :cite:t:`ma2007segmentation`.
"""

import math

import numpy as np
from jaxtyping import Float
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.utils.validation import validate_data

from ...core.validation import positive

EXPECTED_FAILED_CHECKS = {
    "check_clustering": "its groups lie around means, not around subspaces through the origin"
}

# Largest ratio of an entry of a sample to the distortion: up to it, rounding changes singular values by less
# than a thousandth of ε.
MAX_RATIO = 1e11
# A factor contains the singular values above the smaller of two limits; smaller values do not change the
# coding length.
RANK_RTOL = 1e-12  # limit relative to the largest singular value
RANK_ATOL = 1e-3  # limit relative to the distortion


class CodingLengthClustering(ClusterMixin, BaseEstimator):
    r"""Agglomerative lossy compression: merges groups while the coding length of all samples falls.

    Args:
        eps: distortion, in the unit of the samples, > 0; squared inside. The default 1 is a placeholder:
            choose it for the data.

    **Choosing eps.** Samples are not scaled to norm 1, and ε is a distance between a sample and its code. If
    the noise around the subspaces has standard deviation s in each of d coordinates, :math:`\epsilon = s\sqrt
    d`. If s is not known, fit for several ε, from a hundredth of the typical norm of a sample upwards in
    factors of two. Far below the noise every sample is a separate group; far above it all samples are one
    group. A number of groups that persists over several ε is meaningful.

    There is no ``predict``, because the criterion is the length of one code for all samples, which a new
    sample would change. To assign new samples to the groups, use :func:`~.evaluation.nearest_subspace` or
    ``NearestSubspaceClassifier().fit(X, clustering.labels_)``.

    Attributes:
        labels_: group of each sample, numbered by first appearance, ``[n]``.
        n_clusters_: number of groups.
        lengths_: coding length L^s in bits before each merge and at the end, ``[merges + 1]``, decreasing.

    Subspaces contain the origin. Subtract a mean that does not matter; append a constant 1 to samples around
    affine subspaces.
    """

    def __init__(self, eps: float = 1.0):
        self.eps = eps

    def fit(self, X, y=None) -> "CodingLengthClustering":
        """Groups samples ``[n, d]``; y is ignored.

        Raises:
            ValueError: eps is not a positive number, samples are not finite, or they are too large for eps.
        """
        X = np.asarray(validate_data(self, X, dtype=np.float64))
        positive(eps=self.eps)
        largest = float(np.abs(X).max())
        if largest > MAX_RATIO * self.eps:
            raise ValueError(
                f"samples must be at most {MAX_RATIO:g} eps, got {largest:g} with eps {self.eps:g}; take a "
                "larger eps, or rescale"
            )
        groups = _Groups(X / self.eps)
        lengths = [groups.length]
        while groups.merge_best():
            lengths.append(groups.length)
        self.lengths_ = np.array(lengths) / math.log(2)
        # Number the groups by the position of their first sample. In reverse order the first position
        # overwrites the later ones.
        first = {label: place for place, label in reversed([*enumerate(groups.labels.tolist())])}
        number = {label: place for place, label in enumerate(sorted(first, key=first.__getitem__))}
        self.labels_ = np.array([number[label] for label in groups.labels.tolist()])
        self.n_clusters_ = len(number)
        return self


class _Groups:
    """The groups, and the change of the coding length, in nats, by the union of each pair."""

    def __init__(self, X: Float[np.ndarray, "n d"]):
        """Starts with one group per sample; X is in units of the distortion."""
        self.n, self.d = X.shape
        # Only inner products matter. With fewer samples than dimensions, coordinates in the span of the
        # samples are cheaper.
        if self.n < self.d:
            left, sizes, _ = np.linalg.svd(X, full_matrices=False)
            X = left * sizes
        self.labels = np.arange(self.n)
        self.counts = np.ones(self.n)
        # number of rows (a power of two) -> groups, factors [groups, rows, r]
        self.factors = {1: (np.arange(self.n), X[:, None])}
        squares = (X * X).sum(1)
        self.lengths = self._length(self.counts, np.log1p(self._scale(self.counts) * squares))
        self.length = float(self.lengths.sum())
        # For two samples det(I + s (x x^T + y y^T)) = 1 + s (|x|^2 + |y|^2) + s^2 (|x|^2 |y|^2 - <x, y>^2):
        # all pairs without a loop.
        pair = np.full(1, 2.0)
        scale = self._scale(pair)
        # rounding may give slightly negative areas
        areas = np.maximum(squares[:, None] * squares - (X @ X.T) ** 2, 0)
        logdets = np.log1p(scale * (squares[:, None] + squares + scale * areas))
        self.gains = self._length(pair, logdets) - self.lengths[:, None] - self.lengths
        np.fill_diagonal(self.gains, np.inf)
        self.nearest = self.gains.argmin(1)

    def merge_best(self) -> bool:
        """Merges the pair that shortens the code most; returns False if no pair shortens it."""
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
        # Group i is now the union. Infinite gains exclude group j from later merges.
        self.gains[j] = self.gains[:, j] = np.inf
        self._measure(i, sizes, directions)
        return True

    def _unite(self, i: int, j: int) -> tuple[Float[np.ndarray, " rank"], Float[np.ndarray, "rank r"]]:
        """Replaces the factors of i and j by the factor of their union; returns its singular values and
        vectors.
        """
        parts = []
        for rows, (groups, factors) in [*self.factors.items()]:
            merged = (groups == i) | (groups == j)
            if merged.any():
                parts += [*factors[merged]]
                self.factors[rows] = groups[~merged], factors[~merged]
        _, sizes, directions = np.linalg.svd(np.concatenate(parts), full_matrices=False)
        rank = max(1, int((sizes > min(RANK_RTOL * sizes[0], RANK_ATOL)).sum()))
        sizes, directions = sizes[:rank], directions[:rank]
        # Pad with rows of zeros to a power of two, so that the factors of all groups have few different
        # shapes and can be batched.
        rows = 1 << (rank - 1).bit_length()
        factor = np.zeros((1, rows, directions.shape[1]))
        factor[0, :rank] = sizes[:, None] * directions
        groups, factors = self.factors.get(rows, (np.empty(0, dtype=int), factor[:0]))
        self.factors[rows] = np.append(groups, i), np.concatenate([factors, factor])
        return sizes, directions

    def _measure(
        self, i: int, sizes: Float[np.ndarray, " rank"], directions: Float[np.ndarray, "rank r"]
    ) -> None:
        """Updates the gains of the unions with group i and the best partner of each group."""
        gains = np.full(self.n, np.inf)
        for groups, factors in self.factors.values():
            counts = self.counts[groups] + self.counts[i]
            scales = self._scale(counts)
            # F_j of the module docstring has two orthogonal parts. Inside the span of the merged group, I + β
            # S is diagonal in V; outside it is the identity.
            inside = factors @ directions.T
            outside = factors - inside @ directions
            one_plus = 1 + scales[:, None] * sizes**2
            inside /= np.sqrt(one_plus)[:, None]
            gram = scales[:, None, None] * (inside @ inside.swapaxes(1, 2) + outside @ outside.swapaxes(1, 2))
            union_lengths = self._length(counts, np.log(one_plus).sum(1) + _logdet_above_identity(gram))
            gains[groups] = union_lengths - self.lengths[groups] - self.lengths[i]
        gains[i] = np.inf
        self.gains[i] = self.gains[:, i] = gains
        # The best partner of a group changes if i is better, or if the partner was i or j. Only the rows of
        # the second case are searched again, so most merges cost O(n).
        closer = gains < self.gains[np.arange(self.n), self.nearest]
        lost_partner = ~np.isfinite(self.gains[np.arange(self.n), self.nearest]) | (self.nearest == i)
        self.nearest[closer] = i
        rows = np.flatnonzero((lost_partner & ~closer) | (np.arange(self.n) == i))
        self.nearest[rows] = self.gains[rows].argmin(1)

    def _scale(self, counts: np.ndarray) -> np.ndarray:
        return self.d / counts

    def _length(self, counts: np.ndarray, logdets: np.ndarray) -> np.ndarray:
        """Returns the code lengths, in nats, of groups with these sizes, including the code of their
        membership.
        """
        return (counts + self.d) / 2 * logdets - counts * np.log(counts / self.n)


def _logdet_above_identity(gram: Float[np.ndarray, "groups q q"]) -> Float[np.ndarray, " groups"]:
    """Returns ``log det(I + gram)`` of each matrix."""
    if gram.shape[1] == 1:
        return np.log1p(gram[:, 0, 0])
    factors = np.linalg.cholesky(np.eye(gram.shape[1]) + gram)
    return 2 * np.log(factors.diagonal(axis1=1, axis2=2)).sum(1)

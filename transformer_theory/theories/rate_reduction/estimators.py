r"""Classifiers based on the rate reduction as scikit-learn estimators. Samples are directions: each is
divided by its norm first.

* :class:`NearestSubspaceClassifier` predicts the class j with the largest :math:`\|xU_j\|`, where :math:`U_j`
  spans the principal subspace of the class.
* :class:`RateReductionClassifier` predicts the class j with the smallest :math:`\|xC_j\|`, where
  :math:`C_j = \alpha_j (I + \alpha_j X_j^\top X_j)^{-1}` compresses the class. It uses all directions of a
  class, weighted by their energy.
* :class:`ReduNetClassifier` applies the same rule after the layers of ReduNet, which are built from the
  training samples.

The defaults are ε² = 0.1, λ = 500 and 100 layers, as in the published networks, and subspaces of 6 dimensions
(fewer if samples have at most 6 dimensions). With λ = 500 ``predict_proba`` is 0 or 1 to 15 digits for most
samples and does not reflect confidence. For probabilities take a smaller ``sharpness``, about the inverse of
a typical difference of :math:`\|xC_j\|` between two classes.

The last two classifiers are unsuitable for classes of very different sizes: a class with more samples spans
more directions and attracts almost all new samples. The nearest subspace is not affected. All three treat a
direction and its opposite alike; if classes differ only in their means, append a constant 1 to the samples.

The classifiers pass ``sklearn.utils.estimator_checks.check_estimator(...,
expected_failed_checks=EXPECTED_FAILED_CHECKS)``.

Source: :cite:t:`yu2020learning` (the first), :cite:t:`chan2022redunet` (the others).
"""

import warnings
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassifierMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from ...metrics.coding import unit_norm
from .evaluation import principal_subspaces
from .redunet import construct, guaranteed_step, layer
from .redunet.construction import check_samples, check_settings

EPS = 0.1**0.5
SHARPNESS = 500.0  # λ of the published networks
EXPECTED_FAILED_CHECKS = {
    "check_estimators_dtypes": "its samples contain zero vectors, which have no direction and are rejected"
}
DEFAULT_RANK = 6  # dimension of the nearest subspaces
DECIMALS = 12  # norms are rounded before the comparison, so that two subspaces that both contain a sample tie
PUBLISHED_STEP = 0.5  # η of the published networks
# the estimation of memberships may lower the training accuracy by this much without a warning
MAX_LOSS = 0.05


class _Directions(ClassifierMixin, BaseEstimator):
    """Base of the classifiers: converts samples and labels to tensors, and classes back."""

    classes_: np.ndarray

    def _begin(self, X, y) -> tuple[Float[Tensor, "n d"], Tensor]:
        """Validates the samples; returns directions ``[n, d]`` and the indices of their classes in
        ``classes_``, ``[n]``.
        """
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        self.classes_, indices = np.unique(y, return_inverse=True)
        return self._unit(X), torch.from_numpy(indices)

    def _directions(self, X) -> Float[Tensor, "n d"]:
        check_is_fitted(self)
        return self._unit(validate_data(self, X, dtype=np.float64, reset=False))

    def _unit(self, X: ArrayLike) -> Float[Tensor, "n d"]:
        samples = torch.from_numpy(np.array(X))  # a copy: the caller's array may be read-only
        check_samples(samples)
        return unit_norm(samples)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True  # scikit-learn measures on classes that differ in their means
        return tags


class NearestSubspaceClassifier(_Directions):
    r"""Classifier by the largest projection :math:`\|xU_j\|` onto the principal subspace of a class.

    Args:
        rank: dimension of the subspace of each class, below d, or its number of samples if that is smaller.
            None: 6, but at most d - 1, because a subspace of all d dimensions contains every sample.

    Attributes:
        classes_: sorted classes, ``[k]``.
        subspaces_: orthonormal rows ``[r, d]`` that span the subspace of each class.
    """

    def __init__(self, rank: int | None = None):
        self.rank = rank

    def fit(self, X, y) -> "NearestSubspaceClassifier":
        """Computes the subspaces of samples ``[n, d]`` with labels ``[n]``.

        Raises:
            ValueError: a sample is zero or not finite, labels are not classes, rank is below 1, or the
                subspace of a class is the whole space.
            TypeError: rank is not an integer.
        """
        directions, indices = self._begin(X, y)
        rank = max(1, min(DEFAULT_RANK, directions.shape[1] - 1)) if self.rank is None else self.rank
        subspaces = principal_subspaces(directions, indices, rank=rank)
        self.subspaces_ = [subspaces[j].numpy() for j in range(len(self.classes_))]
        return self

    def predict(self, X) -> np.ndarray:
        """Predicts the classes of samples ``[n, d]``; ties go to the first class.

        Raises:
            ValueError: the width differs from that of training, or a sample is zero or not finite.
        """
        directions = self._directions(X).numpy()
        inside = [np.linalg.norm(directions @ basis.T, axis=1) for basis in self.subspaces_]
        return self.classes_[np.argmax(np.round(inside, DECIMALS), axis=0)]


class _Soft(_Directions):
    """Base of the classifiers that predict the smallest ``||x C_j||``; probabilities are the softmax of ``-λ
    ||x C_j||``.
    """

    sharpness: float

    def predict(self, X) -> np.ndarray:
        """Predicts the classes of samples ``[n, d]``.

        Raises:
            ValueError: the width differs from that of training, or a sample is zero or not finite.
        """
        indices = self._distances(X).argmin(1)
        return self.classes_[indices.numpy()]

    def predict_proba(self, X) -> Float[np.ndarray, "n k"]:
        r"""Returns memberships :math:`\mathrm{softmax}_j(-\lambda\|xC_j\|)` ``[n, k]`` of samples ``[n, d]``.

        Columns are in the order of ``classes_``.

        Raises:
            ValueError: the width differs from that of training, or a sample is zero or not finite.
        """
        return torch.softmax(-self.sharpness * self._distances(X), dim=-1).numpy()

    def _distances(self, X) -> Float[Tensor, "n k"]:
        raise NotImplementedError(f"{type(self).__name__} must define _distances()")


class RateReductionClassifier(_Soft):
    r"""Classifier by the smallest :math:`\|xC_j\|`: a layer of ReduNet without the step.

    Args:
        eps: distortion ε of directions, > 0; squared inside. The default is ε² = 0.1.
        sharpness: λ of the probabilities, > 0.

    Attributes:
        classes_: sorted classes, ``[k]``.
        layer_: E and the C_j (:class:`~.redunet.Layer`).
    """

    def __init__(self, eps: float = EPS, sharpness: float = SHARPNESS):
        self.eps, self.sharpness = eps, sharpness

    def fit(self, X, y) -> "RateReductionClassifier":
        """Computes the operators of samples ``[n, d]`` with labels ``[n]``.

        Raises:
            ValueError: a sample is zero or not finite, labels are not classes, or eps or sharpness is not
                positive.
        """
        directions, indices = self._begin(X, y)
        check_settings(layers=1, eps=self.eps, step=1.0, sharpness=self.sharpness)
        self.layer_ = layer(directions, indices, eps=self.eps)
        return self

    def _distances(self, X) -> Float[Tensor, "n k"]:
        directions = self._directions(X)
        return self.layer_.distances(directions)


class ReduNetClassifier(ClassNamePrefixFeaturesOutMixin, TransformerMixin, _Soft):
    r"""ReduNet, built layer by layer from the training samples. The last layer predicts the class with the
    smallest :math:`\|xC_j\|`.

    Args:
        layers: number L of gradient steps.
        step: step size η. None: the smaller of the published 0.5 and :func:`~.redunet.guaranteed_step`, up to
            which no layer lowers ΔR. With few samples in many dimensions longer steps scatter samples with
            estimated memberships, although ΔR rises at almost every layer.
        eps: distortion ε, > 0; squared inside. The default is ε² = 0.1.
        sharpness: λ of the memberships, > 0.

    Attributes:
        classes_: sorted classes, ``[k]``.
        network_: constructed :class:`~.redunet.ReduNet`, with ΔR of the training samples by layer, and the
            step size.

    ``fit`` warns (scikit-learn's ``ConvergenceWarning``) if the step is longer than the guaranteed step and
    training accuracy is much lower with estimated memberships than with the labels. This library adds the
    rule for the default step.
    """

    def __init__(
        self, layers: int = 100, step: float | None = None, eps: float = EPS, sharpness: float = SHARPNESS
    ):
        self.layers, self.step, self.eps, self.sharpness = layers, step, eps, sharpness

    def fit(self, X, y) -> "ReduNetClassifier":
        """Builds the network from samples ``[n, d]`` with labels ``[n]``.

        Raises:
            ValueError: a sample is zero or not finite, labels are not classes, or a setting is not positive.
        """
        directions, indices = self._begin(X, y)
        check_settings(layers=self.layers, eps=self.eps, step=1.0, sharpness=self.sharpness)
        guaranteed = guaranteed_step(*directions.shape, eps=self.eps)
        step = min(PUBLISHED_STEP, guaranteed) if self.step is None else self.step
        self.network_ = construct(
            directions, indices, layers=self.layers, eps=self.eps, step=step, sharpness=self.sharpness
        )
        self._n_features_out = directions.shape[1]
        if step > guaranteed:
            self._warn_if_worse(directions, indices, step, guaranteed)
        return self

    def _warn_if_worse(
        self, directions: Float[Tensor, "n d"], indices: Tensor, step: float, guaranteed: float
    ) -> None:
        """Warns if estimated memberships, instead of labels, lower the training accuracy by more than
        MAX_LOSS.
        """
        net = self.network_
        # training features by labels, and by estimated memberships
        candidates = (net.features, net.transform(directions))
        labelled, estimated = (
            float((net.predict(features) == indices).double().mean()) for features in candidates
        )
        if estimated < labelled - MAX_LOSS:
            warnings.warn(
                f"step {step:g} is too long for {len(indices)} samples: training accuracy is {labelled:.3f} "
                f"as built, {estimated:.3f} with estimated memberships; pass step=None, or a step of at "
                f"most {guaranteed:.3g}",
                ConvergenceWarning,
                stacklevel=3,
            )

    def transform(self, X) -> Float[np.ndarray, "n d"]:
        """Returns features of samples ``[n, d]`` after all layers, norm 1, with estimated memberships even
        for training samples.

        Raises:
            ValueError: the width differs from that of training, or a sample is zero or not finite.
        """
        directions = self._directions(X)
        return self.network_.transform(directions).numpy()

    def _distances(self, X) -> Float[Tensor, "n k"]:
        directions = self._directions(X)
        return self.network_.distances(self.network_.transform(directions))

r"""ReduNet: a network of gradient steps on the rate reduction, built layer by layer from data without
back-propagation.

With rows :math:`x`, :math:`S = X^\top X`, :math:`S_j = X_j^\top X_j`, :math:`\gamma_j = n_j/n`, the gradient
of ΔR is

.. math::
    \nabla \Delta R = X E - \sum_j \gamma_j \Pi_j X C_j, \quad E = \alpha (I + \alpha S)^{-1}, \quad C_j =
    \alpha_j (I + \alpha_j S_j)^{-1},

and a layer moves along it on the sphere: :math:`x^+ = (x + \eta(xE - \sum_j \gamma_j \pi_j\, xC_j)) /
\|\cdot\|`. E expands all features and :math:`C_j` compresses class j. :math:`C_j` is near zero on the span of
class j, so a small :math:`\|xC_j\|` indicates class j. Training samples use their labels; for other samples
the memberships are estimated, :math:`\hat\pi_j(x) = \mathrm{softmax}_j(-\lambda \|xC_j\|)`. ΔR rises at every
layer if η is small enough (:func:`.guaranteed_step`), but not for every η.

:class:`TrainableReduNet` is the same network with its operators as parameters for back-propagation,
initialised by the construction. After training, E and the :math:`C_j` need not be symmetric, and in general
they are not the operators of any features.

Source: :cite:t:`chan2022redunet`.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ....core.validation import converted, finite, positive, same_dtype
from ....metrics.coding import unit_norm
from ....metrics.coding.memberships import check_eps
from .construction import Constructed, Growth, check_samples, check_settings, class_sizes, grow


@dataclass(frozen=True)
class Layer:
    """Parameters of one layer.

    Attributes:
        expansion: E, ``[d, d]`` symmetric.
        compressions: C_j, ``[k, d, d]`` symmetric.
        shares: γ_j = n_j / n, ``[k]``.
    """

    expansion: Float[Tensor, "d d"]
    compressions: Float[Tensor, "k d d"]
    shares: Float[Tensor, " k"]

    def distances(self, features: Float[Tensor, "n d"]) -> Float[Tensor, "n k"]:
        """Returns ``||x C_j||`` of each sample and class, which is small for the class of x."""
        return torch.linalg.vector_norm(features @ self.compressions, dim=-1).mT

    def memberships(self, features: Float[Tensor, "n d"], *, sharpness: float) -> Float[Tensor, "n k"]:
        """Returns estimated class probabilities ``softmax_j(-sharpness ||x C_j||)``."""
        return torch.softmax(-sharpness * self.distances(features), dim=-1)

    def gradient(
        self, features: Float[Tensor, "n d"], memberships: Float[Tensor, "n k"]
    ) -> Float[Tensor, "n d"]:
        """Returns ``x E - sum_j γ_j π_j x C_j``: the gradient of ΔR for the training features and their
        one-hot labels.
        """
        return self._moves(features, features @ self.compressions, memberships)

    def _moves(self, features: Tensor, compressed: Tensor, memberships: Tensor) -> Tensor:
        return features @ self.expansion - torch.einsum("nj,jnd->nd", memberships * self.shares, compressed)

    def advance(
        self, features: Float[Tensor, "n d"], *, step: float, sharpness: float
    ) -> Float[Tensor, "n d"]:
        """Passes samples without labels through this layer, with estimated memberships; returns ``[n, d]`` of
        norm 1.
        """
        compressed = features @ self.compressions
        estimated = torch.softmax(-sharpness * torch.linalg.vector_norm(compressed, dim=-1).mT, dim=-1)
        return unit_norm(features + step * self._moves(features, compressed, estimated))


@converted(floats=("features",), labels=("labels",))
def layer(features: Float[Tensor, "n d"], labels: Int[Tensor, " n"], *, eps: float) -> Layer:
    """Computes the layer of these features: their operators E and C_j.

    Args:
        features: features of the training samples, ``[n, d]``.
        labels: classes, ``[n]``, each of 0..k-1 at least once.
        eps: distortion; squared inside.
    Raises:
        ValueError: labels omit a class, eps is not positive, or eps is so small that the identity is lost to
            rounding.
        TypeError: labels are not integers.
    """
    positive(eps=eps)
    check_eps(eps)
    sizes = class_sizes(labels, len(features))
    rows = features[torch.argsort(labels, stable=True)]
    return _layers(_grow(rows, sizes, steps=0, eps=eps, step=0.0))[0]


def _grow(rows: Tensor, sizes: Tensor, *, steps: int, eps: float, step: float) -> Growth:
    return grow(rows, sizes, steps=steps, eps=eps, step=step, unit_norm=unit_norm, total=lambda rates: rates)


def _layers(growth: Growth) -> tuple[Layer, ...]:
    return tuple(Layer(operators[0], operators[1:], growth.shares) for operators in growth.operators)


@dataclass(frozen=True)
class ReduNet(Constructed):
    """A constructed network of :class:`Layer`; ``features`` are ``[n, d]``."""

    @converted(floats=("features",))
    def transform(self, features: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        """Passes new samples through all layers, with estimated memberships.

        Args:
            features: new samples, ``[n, d]``; normalised first.
        Returns:
            Transformed samples of norm 1, ``[n, d]``.
        Raises:
            ValueError: width or dtype differ from the network's, or a sample is zero or not finite.
        """
        self._check(features)
        check_samples(features)
        rows = unit_norm(features)
        for layer in self.layers[:-1]:
            rows = layer.advance(rows, step=self.step, sharpness=self.sharpness)
        return rows

    @converted(floats=("transformed",))
    def distances(self, transformed: Float[Tensor, "n d"]) -> Float[Tensor, "n k"]:
        """Returns ``||x C_j||`` in the last layer, for samples that :meth:`transform` returned.

        Raises:
            ValueError: width or dtype differ from the network's, or a sample is not finite.
        """
        self._check(transformed)
        finite(transformed=transformed)
        return self.layers[-1].distances(transformed)

    def _check(self, features: Float[Tensor, "n d"]) -> None:
        if features.ndim != 2 or features.shape[1] != self.features.shape[1]:
            hint = "; a single sample is x[None]" if features.ndim == 1 else ""
            raise ValueError(
                f"features must have shape [n, {self.features.shape[1]}] as in training, got "
                f"{list(features.shape)}{hint}"
            )
        same_dtype(samples=features, network=self.features)


class TrainableReduNet(nn.Module):
    """A constructed ReduNet with expansions ``[L, d, d]`` and compressions ``[L + 1, k, d, d]`` as
    parameters.

    Args:
        net: the constructed network.
    """

    shares: Float[Tensor, " k"]

    def __init__(self, net: ReduNet):
        super().__init__()
        self.expansions = nn.Parameter(torch.stack([layer.expansion for layer in net.layers[:-1]]))
        self.compressions = nn.Parameter(torch.stack([layer.compressions for layer in net.layers]))
        self.register_buffer("shares", net.layers[0].shares.clone())
        self.step, self.sharpness = net.step, net.sharpness

    def transform(self, features: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        """Passes samples ``[n, d]`` through all layers; returns features of norm 1.

        Raises:
            ValueError: width or dtype differ from the network's.
        """
        if features.ndim != 2 or features.shape[1] != self.expansions.shape[1]:
            raise ValueError(
                f"features must have shape [n, {self.expansions.shape[1]}] as in training, got "
                f"{list(features.shape)}"
            )
        same_dtype(samples=features, network=self.expansions)
        rows = unit_norm(features)
        for expansion, compressions in zip(self.expansions, self.compressions):
            rows = Layer(expansion, compressions, self.shares).advance(
                rows, step=self.step, sharpness=self.sharpness
            )
        return rows

    def forward(self, features: Float[Tensor, "n d"]) -> Float[Tensor, "n k"]:
        r"""Returns logits :math:`-\lambda\|xC_j\|` of samples ``[n, d]``; their softmax is the network's soft
        prediction.

        Raises:
            ValueError: width or dtype differ from the network's.
        """
        return (
            -self.sharpness
            * torch.linalg.vector_norm(self.transform(features) @ self.compressions[-1], dim=-1).mT
        )


@converted(floats=("features",), labels=("labels",))
def construct(
    features: Float[Tensor, "n d"],
    labels: Int[Tensor, " n"],
    *,
    layers: int,
    eps: float,
    step: float,
    sharpness: float = 500.0,
) -> ReduNet:
    """Builds the network layer by layer from training samples; nothing is trained by back-propagation.

    Args:
        features: training samples, ``[n, d]``, float64 or float32; normalised to the sphere first.
        labels: classes, ``[n]``, each of 0..k-1 at least once.
        layers: L, number of gradient steps.
        eps: distortion ε; squared inside.
        step: step size η. Up to :func:`.guaranteed_step` no layer lowers ΔR. A longer step may raise ΔR of
            the training samples, which have labels, but scatter new samples, which have only estimated
            memberships.
        sharpness: λ of the softmax for new samples.
    Raises:
        ValueError: a feature is zero or not finite, labels omit a class or differ in number from the
            features, layers is below 1, eps, step or sharpness is not positive, or eps is so small that the
            identity is lost to rounding.
        TypeError: features are not real numbers, or labels or layers are not integers.
    """
    if features.ndim != 2 or 0 in features.shape:
        raise ValueError(
            f"features must have shape [n, d] with n, d >= 1, got {list(features.shape)}; flatten images"
        )
    check_settings(layers=layers, eps=eps, step=step, sharpness=sharpness)
    sizes = class_sizes(labels, len(features))
    check_samples(features)
    order = torch.argsort(labels, stable=True)
    growth = _grow(unit_norm(features[order]), sizes, steps=layers, eps=eps, step=step)
    result = torch.empty_like(growth.rows)
    result[order] = growth.rows
    return ReduNet(_layers(growth), eps, step, sharpness, result, growth.rates)

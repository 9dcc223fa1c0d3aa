r"""ReduNet: a network whose layers are gradient steps on the rate reduction, built forward from data without back-propagation.

With rows :math:`x`, :math:`S = X^\top X`, :math:`S_j = X_j^\top X_j`, :math:`\gamma_j = n_j/n`, the gradient of ΔR is

.. math::
    \nabla \Delta R = X E - \sum_j \gamma_j \Pi_j X C_j, \quad E = \alpha (I + \alpha S)^{-1}, \quad C_j = \alpha_j (I + \alpha_j S_j)^{-1},

and a layer moves along it on the sphere: :math:`x^+ = (x + \eta(xE - \sum_j \gamma_j \pi_j\, xC_j)) / \|\cdot\|`. E expands all features,
:math:`C_j` compresses class j: it is near zero on the span of class j, so a small :math:`\|xC_j\|` says "class j". Training samples know
their class; a new sample takes :math:`\hat\pi_j(x) = \mathrm{softmax}_j(-\lambda \|xC_j\|)`.

Source: :cite:t:`chan2022redunet`. That ΔR rises at every layer is a property of small steps (measured here for η <= 0.5), not a
theorem for any η.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...metrics.coding import unit_norm


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
        """``||x C_j||`` of each sample and class: small for the class that x belongs to."""
        return torch.linalg.vector_norm(features @ self.compressions, dim=-1).mT

    def memberships(self, features: Float[Tensor, "n d"], *, sharpness: float) -> Float[Tensor, "n k"]:
        """Estimated class probabilities ``softmax_j(-sharpness ||x C_j||)``."""
        return torch.softmax(-sharpness * self.distances(features), dim=-1)

    def gradient(self, features: Float[Tensor, "n d"], memberships: Float[Tensor, "n k"]) -> Float[Tensor, "n d"]:
        """``x E - sum_j γ_j π_j x C_j``: with the training features and their one-hot labels, the gradient of ΔR."""
        compressed = torch.einsum("nj,jnd->nd", memberships * self.shares, features @ self.compressions)
        return features @ self.expansion - compressed


def layer(features: Float[Tensor, "n d"], labels: Int[Tensor, " n"], *, eps: float) -> Layer:
    """The layer that belongs to these features: E and C_j of the module's head.

    Args:
        features: ``[n, d]``.
        labels: ``[n]``, each of 0..k-1 at least once.
        eps: distortion; squared inside.
    Raises:
        ValueError: a class has no sample, or eps is not positive.
    Source: :cite:t:`chan2022redunet`.
    """
    sizes = _sizes(labels, eps)
    return _layer(features[torch.argsort(labels, stable=True)], sizes, eps)[0]


def _sizes(labels: Tensor, eps: float) -> list[int]:
    if not 0 < eps < float("inf"):
        raise ValueError(f"eps must be a positive distortion (it is squared inside), got {eps}")
    sizes = torch.bincount(labels).tolist()
    if not sizes or 0 in sizes:
        raise ValueError(
            f"labels must name each class 0..{max(len(sizes) - 1, 0)} at least once; relabel with labels.unique(return_inverse=True)[1]"
        )
    return sizes


def _layer(rows: Tensor, sizes: list[int], eps: float) -> tuple[Layer, Tensor]:
    """Layer, and (R, R^c) of the features it was built from, which come for free; rows are sorted by class."""
    n, d = rows.shape
    counts = torch.tensor([n, *sizes], dtype=rows.dtype, device=rows.device)
    moments = torch.stack([own.mT @ own for own in (rows, *rows.split(sizes))])
    scales = (d / (counts * eps**2))[:, None, None]
    factors = torch.linalg.cholesky(torch.eye(d, dtype=rows.dtype, device=rows.device) + scales * moments)
    rates = factors.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    operators = scales * torch.cholesky_inverse(factors)
    shares = counts[1:] / n
    return Layer(operators[0], operators[1:], shares), torch.stack([rates[0], shares @ rates[1:]])


@dataclass(frozen=True)
class ReduNet:
    """A constructed network.

    Attributes:
        layers: L + 1 of them; the last one belongs to the final features and serves :meth:`predict` only.
        eps, step, sharpness: ε, η, λ.
        features: the training features after the last step, in the order they came, ``[n, d]`` of norm 1.
        rates: R and R^c of the training features before each layer and at the end, ``[L + 1, 2]`` nats; ΔR is their difference.
    """

    layers: tuple[Layer, ...]
    eps: float
    step: float
    sharpness: float
    features: Float[Tensor, "n d"]
    rates: Float[Tensor, "depth 2"]

    @property
    def reductions(self) -> Float[Tensor, " depth"]:
        """ΔR before each layer and at the end, nats per sample."""
        return self.rates[:, 0] - self.rates[:, 1]

    def transform(self, features: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        """New samples through all layers, with estimated memberships.

        Args:
            features: ``[n, d]``; normalised first.
        Returns:
            ``[n, d]``, norms 1.
        """
        rows = unit_norm(features)
        for each in self.layers[:-1]:
            rows = unit_norm(rows + self.step * each.gradient(rows, each.memberships(rows, sharpness=self.sharpness)))
        return rows

    def predict(self, transformed: Float[Tensor, "n d"]) -> Int[Tensor, " n"]:
        """Class of samples that went through :meth:`transform`: the smallest ``||x C_j||`` of the last layer."""
        return self.layers[-1].distances(transformed).argmin(-1)


def construct(
    features: Float[Tensor, "n d"], labels: Int[Tensor, " n"], *, layers: int, eps: float, step: float, sharpness: float = 500.0
) -> ReduNet:
    """Builds the network layer by layer from training samples; nothing is trained by back-propagation.

    Args:
        features: ``[n, d]``, float64; normalised to the sphere first.
        labels: ``[n]``, each of 0..k-1 at least once.
        layers: L, number of gradient steps.
        eps: distortion ε; squared inside.
        step: η.
        sharpness: λ of the softmax for new samples.
    Returns:
        :class:`ReduNet`.
    Raises:
        ValueError: a class has no sample, eps or layers is not positive, or features and labels differ in length.
    Source: :cite:t:`chan2022redunet`. Training samples use their labels.
    """
    if features.ndim != 2 or labels.ndim != 1 or len(features) != len(labels):
        raise ValueError(f"features [n, d] need one label each, labels [n]; got {list(features.shape)} and {list(labels.shape)}")
    if layers < 1:
        raise ValueError(f"layers must be at least 1, got {layers}")
    sizes = _sizes(labels, eps)
    order = torch.argsort(labels, stable=True)
    rows = unit_norm(features[order])
    built, rates = [], []
    for _ in range(layers):
        now, rate = _layer(rows, sizes, eps)
        built.append(now)
        rates.append(rate)
        own = torch.cat([x @ (s * C) for x, s, C in zip(rows.split(sizes), now.shares, now.compressions)])
        rows = unit_norm(rows + step * (rows @ now.expansion - own))
    last, rate = _layer(rows, sizes, eps)
    result = torch.empty_like(rows)
    result[order] = rows
    return ReduNet((*built, last), eps, step, sharpness, result, torch.stack([*rates, rate]))


def nearest_subspace(train: Float[Tensor, "n d"], labels: Int[Tensor, " n"], test: Float[Tensor, "m d"], *, rank: int) -> Int[Tensor, " m"]:
    """Class whose principal subspace (through the origin) holds most of a sample: the largest ``||x U_j||``.

    Args:
        train: ``[n, d]``.
        labels: ``[n]``; classes without samples are never chosen.
        test: ``[m, d]``.
        rank: dimensions of each subspace, cut to what a class can span.
    Returns:
        ``[m]`` classes.
    Raises:
        ValueError: rank < 1.
    Source: :cite:t:`yu2020learning` (evaluation).
    """
    if rank < 1:
        raise ValueError(f"rank must be at least 1, got {rank}")
    inside = test.new_full((int(labels.max()) + 1, len(test)), -1.0)
    for j in labels.unique().tolist():
        basis = torch.linalg.svd(train[labels == j], full_matrices=False).Vh[:rank]
        inside[j] = torch.linalg.vector_norm(test @ basis.mT, dim=-1)
    return inside.argmax(0)

r"""ReduNet for signals and images with classes that do not depend on position. All cyclic shifts of a sample
count as samples.

A sample has c channels on a cyclic grid of :math:`T` places (a ring, a torus). This network *is* the ReduNet
of :mod:`.vector` built from all :math:`nT` shifted samples as vectors in :math:`R^{cT}`. Their second moment
is block circulant, so the Fourier transform over the grid splits it into T Hermitian blocks of c x c, and no
matrix of size :math:`cT` is formed. With :math:`V(\omega) \in C^{n\times c}` the (unnormalised) transform of
the samples at frequency ω

.. math::
    E(\omega) &= \alpha\,(I + \alpha V(\omega)^* V(\omega))^{-1}, \quad \alpha = \frac{c}{n\epsilon^2}, \\
    C_j(\omega) &= \alpha_j\,(I + \alpha_j V_j(\omega)^* V_j(\omega))^{-1}, \quad \alpha_j =
    \frac{c}{n_j\epsilon^2}, \\ R &= \frac12 \sum_\omega \log\det(I + \alpha V(\omega)^* V(\omega)), \\
    v^+(\omega) &\propto v(\omega) + \eta\,(v(\omega)E(\omega) - \sum_j \gamma_j \pi_j\,
    v(\omega)C_j(\omega)),

with one norm for the whole sample (Parseval: :math:`\|x\|^2 = \frac1T\sum_\omega\|v(\omega)\|^2`). Every
layer commutes with shifts: the features of a shifted sample are the shifted features, and its distances
:math:`\|xC_j\|` and predicted class do not change. E and the C_j are convolutions. Rates refer to the shifted
samples as vectors, in nats; some texts divide them by T. The grid may have any number of axes. Real samples
need only half the frequencies.

**Released code.** It takes the unitary transform (``norm="ortho"``), :math:`v' = v / \sqrt T`, in the same
formulas. Then :math:`E' = TE` and :math:`C_j' = TC_j` at :math:`\epsilon'^2 = \epsilon^2 / T`, so its network
with :math:`(\epsilon'^2, \eta', \lambda')` is the network here with :math:`\epsilon^2 = T\epsilon'^2`,
:math:`\eta = T\eta'`,
:math:`\lambda = T\lambda'`. With equal settings the two differ: the unitary form is not the ReduNet of the
shifted samples as vectors, unless T = 1.

Two liftings give an image many channels on a cyclic grid:

* :func:`lift`: rectified cyclic convolutions :math:`\max(0, w_k \circledast x)` with random filters. The
  rectifier is necessary. Without it, for one input channel, the channels of all samples at frequency ω would
  be multiples of one vector, :math:`v(\omega) = \hat x(\omega)\, \hat w(\omega)`, and no operator between
  channels could separate the classes.
* :func:`polar`: samples on rings around the centre of the image. The rings are the channels, and a rotation
  is a cyclic shift over angles.

``lift`` commutes with cyclic shifts, and ``polar`` maps a quarter turn of the image to a shift by a quarter;
both hold to rounding.

Source: :cite:t:`chan2022redunet`.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Complex, Float, Int
from torch import Tensor

from ....core.validation import converted, finite, in_range, same_dtype
from .construction import Constructed, check_samples, check_settings, class_sizes, grow


@dataclass(frozen=True)
class Spectrum:
    """The frequencies of a cyclic grid that real samples need.

    Attributes:
        grid: places along each axis.
        weights: number of frequencies that each stored frequency represents, ``[f]``: 1, or 2 if its mirror
            image is not stored.
    """

    grid: tuple[int, ...]
    weights: Float[Tensor, " f"]

    @classmethod
    def of(cls, samples: Float[Tensor, "n c *grid"]) -> "Spectrum":
        """Returns the spectrum for the grid, dtype and device of the samples."""
        # rfftn stores frequencies 0 to floor(t / 2) of the last axis. All but 0 and, for even t, t / 2 have a
        # mirror image that it omits.
        grid = tuple(samples.shape[2:])
        last = torch.full((grid[-1] // 2 + 1,), 2.0, dtype=samples.dtype, device=samples.device)
        last[0] = 1
        if grid[-1] % 2 == 0:
            last[-1] = 1
        return cls(grid, last.repeat(math.prod(grid[:-1])))

    def forward(self, samples: Float[Tensor, "n c *grid"]) -> Complex[Tensor, "f n c"]:
        """Transforms real samples to a matrix ``[n, c]`` for each stored frequency."""
        axes = tuple(range(2, samples.ndim))
        return torch.fft.rfftn(samples, dim=axes).flatten(2).permute(2, 0, 1).contiguous()

    def backward(self, rows: Complex[Tensor, "f n c"]) -> Float[Tensor, "n c *grid"]:
        """Inverts :meth:`forward`."""
        half_grid = (*self.grid[:-1], self.grid[-1] // 2 + 1)
        values = rows.permute(1, 2, 0).unflatten(2, half_grid)
        return torch.fft.irfftn(values, s=self.grid, dim=tuple(range(2, values.ndim)))

    def norms(self, rows: Complex[Tensor, "*batch f n c"]) -> Float[Tensor, "*batch n"]:
        """Returns the norm of each whole sample, by Parseval's identity."""
        squares = torch.view_as_real(rows).square().sum((-2, -1))
        return torch.einsum("...fn,f->...n", squares, self.weights / math.prod(self.grid)).sqrt()

    def total(self, rates: Float[Tensor, "*batch f"]) -> Float[Tensor, "*batch"]:
        """Sums rates over all T frequencies."""
        return rates @ self.weights

    def unit_norm(self, rows: Complex[Tensor, "f n c"]) -> Complex[Tensor, "f n c"]:
        """Divides each whole sample by its norm."""
        return rows / self.norms(rows)[:, None]


@dataclass(frozen=True)
class SpectralLayer:
    """Parameters of one layer: convolutions, stored as matrices between channels at each frequency.

    Attributes:
        expansion: E(ω), ``[f, c, c]`` Hermitian.
        compressions: C_j(ω), ``[k, f, c, c]`` Hermitian.
        shares: γ_j = n_j / n, ``[k]``.
    """

    expansion: Complex[Tensor, "f c c"]
    compressions: Complex[Tensor, "k f c c"]
    shares: Float[Tensor, " k"]

    def distances(self, rows: Complex[Tensor, "f n c"], spectrum: Spectrum) -> Float[Tensor, "n k"]:
        """Returns ``||x C_j||`` of each sample and class."""
        return spectrum.norms(rows @ self.compressions).mT

    def advance(
        self, rows: Complex[Tensor, "f n c"], spectrum: Spectrum, *, step: float, sharpness: float
    ) -> Complex[Tensor, "f n c"]:
        """Passes samples without labels through this layer, with estimated memberships; returns samples of
        norm 1.
        """
        compressed = rows @ self.compressions
        # The memberships depend on norms of whole samples, which shifts preserve, so the layer commutes with
        # shifts.
        estimated = self.shares * torch.softmax(-sharpness * spectrum.norms(compressed).mT, dim=-1)
        compression = torch.einsum("nj,jfnc->fnc", estimated.to(rows.dtype), compressed)
        return spectrum.unit_norm(rows + step * (rows @ self.expansion - compression))


@dataclass(frozen=True)
class ShiftInvariantReduNet(Constructed):
    """A constructed network of :class:`SpectralLayer`; ``features`` are ``[n, c, *grid]``, and the rates
    refer to all their shifts.

    Attributes:
        spectrum: frequencies of the grid.
    """

    spectrum: Spectrum

    @converted(floats=("samples",))
    def transform(self, samples: Float[Tensor, "n c *grid"]) -> Float[Tensor, "n c *grid"]:
        """Passes new samples through all layers, with estimated memberships; commutes with cyclic shifts.

        Args:
            samples: new samples, ``[n, c, *grid]``; normalised first.
        Returns:
            Transformed samples of norm 1, ``[n, c, *grid]``.
        Raises:
            ValueError: channels, grid or dtype differ from the network's, or a sample is zero or not finite.
        """
        self._check(samples)
        check_samples(samples)
        rows = self.spectrum.unit_norm(self.spectrum.forward(samples))
        for layer in self.layers[:-1]:
            rows = layer.advance(rows, self.spectrum, step=self.step, sharpness=self.sharpness)
        return self.spectrum.backward(rows)

    @converted(floats=("transformed",))
    def distances(self, transformed: Float[Tensor, "n c *grid"]) -> Float[Tensor, "n k"]:
        """Returns ``||x C_j||`` in the last layer, for samples that :meth:`transform` returned.

        Raises:
            ValueError: channels, grid or dtype differ from the network's, or a sample is not finite.
        """
        self._check(transformed)
        finite(transformed=transformed)
        return self.layers[-1].distances(self.spectrum.forward(transformed), self.spectrum)

    def _check(self, samples: Float[Tensor, "n c *grid"]) -> None:
        if samples.ndim != self.features.ndim or samples.shape[1:] != self.features.shape[1:]:
            expected = ", ".join(map(str, self.features.shape[1:]))
            hint = "; a single sample is x[None]" if samples.shape == self.features.shape[1:] else ""
            raise ValueError(
                f"samples must have shape [n, {expected}] as in training, got {list(samples.shape)}{hint}"
            )
        same_dtype(samples=samples, network=self.features)


@converted(floats=("samples",), labels=("labels",))
def construct_shift_invariant(
    samples: Float[Tensor, "n c *grid"],
    labels: Int[Tensor, " n"],
    *,
    layers: int,
    eps: float,
    step: float,
    sharpness: float = 500.0,
) -> ShiftInvariantReduNet:
    """Builds the shift-invariant network layer by layer, all frequencies at once.

    Args:
        samples: training samples, ``[n, c, T]`` on a ring or ``[n, c, h, w]`` on a torus; normalised as whole
            samples first.
        labels: classes, ``[n]``, each of 0..k-1 at least once.
        layers: L, number of gradient steps.
        eps: distortion ε; squared inside.
        step: step size η.
        sharpness: λ of the softmax for new samples.
    Returns:
        The network. Its features and rates equal the result of :func:`.vector.construct` on all shifts.
    Raises:
        ValueError: samples are not ``[n, c, *grid]``, zero or not finite; labels omit a class or differ in
            number from the samples; layers is below 1; eps, step or sharpness is not positive; or eps is so
            small that the identity is lost to rounding.
        TypeError: samples are not real numbers, or labels or layers are not integers.
    """
    if samples.ndim < 3 or 0 in samples.shape:
        raise ValueError(
            f"samples must have shape [n, c, T] or [n, c, h, w], no side empty, got {list(samples.shape)}; "
            "add a channel axis"
        )
    check_settings(layers=layers, eps=eps, step=step, sharpness=sharpness)
    sizes = class_sizes(labels, len(samples))
    check_samples(samples)
    order = torch.argsort(labels, stable=True)
    spectrum = Spectrum.of(samples)
    rows = spectrum.unit_norm(spectrum.forward(samples[order]))
    growth = grow(
        rows, sizes, steps=layers, eps=eps, step=step, unit_norm=spectrum.unit_norm, total=spectrum.total
    )
    layers_built = tuple(SpectralLayer(layer[0], layer[1:], growth.shares) for layer in growth.operators)
    result = torch.empty_like(samples)
    result[order] = spectrum.backward(growth.rows)
    return ShiftInvariantReduNet(layers_built, eps, step, sharpness, result, growth.rates, spectrum)


def random_filters(
    channels: int, inputs: int, size: tuple[int, ...], *, generator: torch.Generator
) -> Float[Tensor, "channels inputs *size"]:
    """Draws Gaussian filters of norm 1, ``[channels, inputs, *size]`` float64.

    Args:
        channels: number of filters.
        inputs: channels of the samples to which they are applied.
        size: number of places along each axis.
        generator: random generator of the filters.
    Raises:
        ValueError: a number is below 1, or there is no axis.
    """
    if not size or min(channels, inputs, *size) < 1:
        raise ValueError(
            f"filters need at least one channel, input and place along each axis, got {channels}, {inputs}, "
            f"{list(size)}"
        )
    filters = torch.randn(channels, inputs, *size, dtype=torch.float64, generator=generator)
    return filters / torch.linalg.vector_norm(filters.flatten(1), dim=1).view(-1, *[1] * (1 + len(size)))


@in_range
@converted(floats=("samples", "filters"))
def lift(
    samples: Float[Tensor, "n c *grid"], filters: Float[Tensor, "channels c *size"]
) -> Float[Tensor, "n channels *grid"]:
    r"""Computes rectified cyclic convolutions, :math:`\max(0, \sum_c w_{kc} \circledast x_c)`.

    Args:
        samples: samples with the dtype of the filters, ``[n, c, *grid]``.
        filters: filters that are no larger than the grid, ``[channels, c, *size]``.
    Returns:
        Samples with more channels, ``[n, channels, *grid]``, >= 0.
    Raises:
        ValueError: channels, axes or dtypes differ, or a filter is larger than the grid.
    """
    grid, size = tuple(samples.shape[2:]), tuple(filters.shape[2:])
    if (
        not grid
        or len(grid) != len(size)
        or samples.shape[1] != filters.shape[1]
        or any(s > g for s, g in zip(size, grid))
    ):
        raise ValueError(
            "filters must have shape [channels, c, *size] for samples [n, c, *grid], no larger than the "
            f"grid; got {list(filters.shape)} for {list(samples.shape)}"
        )
    same_dtype(samples=samples, filters=filters)
    axes = tuple(range(2, samples.ndim))
    product = torch.einsum(
        "nc...,kc...->nk...", torch.fft.rfftn(samples, dim=axes), torch.fft.rfftn(filters, s=grid, dim=axes)
    )
    return torch.fft.irfftn(product, s=grid, dim=axes).clamp(min=0)


@in_range
@converted(floats=("images",))
def polar(images: Float[Tensor, "n c h w"], *, rings: int, angles: int) -> Float[Tensor, "n rows angles"]:
    r"""Samples images on rings around their centre, by bilinear interpolation with zeros outside the image.

    Args:
        images: images, ``[n, c, h, w]``.
        rings: number of radii, evenly spaced up to the nearest edge.
        angles: number of places on each ring. A rotation by :math:`2\pi s/` ``angles`` is approximately a
            shift by s, and exactly a shift by s for quarter turns of square images if 4 divides ``angles``.
    Returns:
        Samples ``[n, rings * c, angles]``, ring by ring within each channel.
    Raises:
        ValueError: images are not ``[n, c, h, w]`` or not finite, or rings or angles is below 1.
    """
    if images.ndim != 4 or 0 in images.shape:
        raise ValueError(
            f"images must have shape [n, c, h, w], no side empty, got {list(images.shape)}; add a channel "
            "axis"
        )
    finite(images=images)
    if min(rings, angles) < 1:
        raise ValueError(f"rings and angles must be at least 1, got {rings} and {angles}")
    height, width = images.shape[2:]
    # radii in pixels
    radius = min(height, width) / 2 * (torch.arange(rings, dtype=images.dtype) + 0.5) / rings
    turn = 2 * math.pi * torch.arange(angles, dtype=images.dtype) / angles
    across, down = radius[:, None] * turn.cos(), radius[:, None] * turn.sin()
    # grid_sample expects coordinates (x, y) in [-1, 1] from edge to edge.
    places = torch.stack([2 * across / width, 2 * down / height], -1).to(images.device)
    values = torch.nn.functional.grid_sample(
        images, places.expand(len(images), -1, -1, -1), align_corners=False
    )
    return values.flatten(1, 2)

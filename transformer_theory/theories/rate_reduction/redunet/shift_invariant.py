r"""ReduNet for signals and images whose class does not depend on where things stand: all cyclic shifts of a sample count as samples.

A sample is c channels on a cyclic grid of :math:`T` places (a ring, a torus), and this network *is* the ReduNet of :mod:`.vector` built
from all :math:`nT` shifted samples as vectors in :math:`R^{cT}`. Their second moment is block circulant, so the Fourier transform over the
grid splits it into T Hermitian blocks of c x c, and nothing of size :math:`cT` is ever made. With :math:`V(\omega) \in C^{n\times c}` the
(unnormalised) transform of the samples at frequency ω

.. math::
    E(\omega) &= \alpha\,(I + \alpha V(\omega)^* V(\omega))^{-1}, \quad \alpha = \frac{c}{n\epsilon^2}, \\
    C_j(\omega) &= \alpha_j\,(I + \alpha_j V_j(\omega)^* V_j(\omega))^{-1}, \quad \alpha_j = \frac{c}{n_j\epsilon^2}, \\
    R &= \frac12 \sum_\omega \log\det(I + \alpha V(\omega)^* V(\omega)), \\
    v^+(\omega) &\propto v(\omega) + \eta\,(v(\omega)E(\omega) - \sum_j \gamma_j \pi_j\, v(\omega)C_j(\omega)),

with one norm for the whole sample (Parseval: :math:`\|x\|^2 = \frac1T\sum_\omega\|v(\omega)\|^2`). Every layer commutes with shifts:
features of a shifted sample are the shifted features, its distances :math:`\|xC_j\|` and its predicted class are the same. E and the C_j
are convolutions, though no one asked for a convolutional network. Rates are those of the shifted samples as vectors, in nats; some
texts divide them by T. The grid may have any number of axes; of real samples half the frequencies suffice.

A linear lifting of one channel to many cannot help: at each frequency all samples then lie on one line of :math:`C^c`
(see :mod:`.lifting`).

Source: :cite:t:`chan2022redunet`.
"""

from dataclasses import dataclass
from math import prod

import torch
from jaxtyping import Complex, Float, Int
from torch import Tensor

from .constructed import Constructed, grow
from .operators import check_samples, check_settings, class_sizes


@dataclass(frozen=True)
class Spectrum:
    """The frequencies of a cyclic grid that real samples need.

    Attributes:
        grid: places along each axis.
        weights: how many of all T frequencies each kept one stands for (itself, and its mirror image if that is not kept), ``[f]``.
    """

    grid: tuple[int, ...]
    weights: Float[Tensor, " f"]

    @classmethod
    def of(cls, samples: Float[Tensor, "n c *grid"]) -> "Spectrum":
        grid = tuple(samples.shape[2:])
        last = torch.full((grid[-1] // 2 + 1,), 2.0, dtype=samples.dtype, device=samples.device)
        last[0] = 1
        if grid[-1] % 2 == 0:
            last[-1] = 1
        return cls(grid, last.repeat(prod(grid[:-1])))

    def forward(self, samples: Float[Tensor, "n c *grid"]) -> Complex[Tensor, "f n c"]:
        """The transform of real samples, a matrix ``[n, c]`` for each kept frequency."""
        axes = tuple(range(2, samples.ndim))
        return torch.fft.rfftn(samples, dim=axes).flatten(2).permute(2, 0, 1).contiguous()

    def backward(self, rows: Complex[Tensor, "f n c"]) -> Float[Tensor, "n c *grid"]:
        """The samples of :meth:`forward`."""
        kept = (*self.grid[:-1], self.grid[-1] // 2 + 1)
        values = rows.permute(1, 2, 0).unflatten(2, kept)
        return torch.fft.irfftn(values, s=self.grid, dim=tuple(range(2, values.ndim)))

    def norms(self, rows: Complex[Tensor, "*many f n c"]) -> Float[Tensor, "*many n"]:
        """Norm of each whole sample, by Parseval's identity."""
        squares = torch.view_as_real(rows).square().sum((-2, -1))
        return torch.einsum("...fn,f->...n", squares, self.weights / prod(self.grid)).sqrt()

    def total(self, rates: Float[Tensor, "*many f"]) -> Float[Tensor, "*many"]:
        """Sum over all T frequencies."""
        return rates @ self.weights

    def unit_norm(self, rows: Complex[Tensor, "f n c"]) -> Complex[Tensor, "f n c"]:
        """Each whole sample divided by its norm."""
        return rows / self.norms(rows)[:, None]


@dataclass(frozen=True)
class SpectralLayer:
    """Parameters of one layer: convolutions, kept as matrices between channels at each frequency.

    Attributes:
        expansion: E(ω), ``[f, c, c]`` Hermitian.
        compressions: C_j(ω), ``[k, f, c, c]`` Hermitian.
        shares: γ_j = n_j / n, ``[k]``.
    """

    expansion: Complex[Tensor, "f c c"]
    compressions: Complex[Tensor, "k f c c"]
    shares: Float[Tensor, " k"]

    def distances(self, rows: Complex[Tensor, "f n c"], spectrum: Spectrum) -> Float[Tensor, "n k"]:
        """``||x C_j||`` of each sample and class."""
        return spectrum.norms(rows @ self.compressions).mT

    def advance(self, rows: Complex[Tensor, "f n c"], spectrum: Spectrum, *, step: float, sharpness: float) -> Complex[Tensor, "f n c"]:
        """New samples of norm 1 after this layer, with estimated memberships."""
        compressed = rows @ self.compressions
        guessed = self.shares * torch.softmax(-sharpness * spectrum.norms(compressed).mT, dim=-1)
        together = torch.einsum("nj,jfnc->fnc", guessed.to(rows.dtype), compressed)
        return spectrum.unit_norm(rows + step * (rows @ self.expansion - together))


@dataclass(frozen=True)
class ShiftInvariantReduNet(Constructed):
    """A constructed network of :class:`SpectralLayer`; ``features`` are ``[n, c, *grid]``, rates those of all their shifts.

    Attributes:
        spectrum: frequencies of the grid.
    """

    spectrum: Spectrum

    def transform(self, samples: Float[Tensor, "n c *grid"]) -> Float[Tensor, "n c *grid"]:
        """New samples through all layers, with estimated memberships; commutes with cyclic shifts.

        Args:
            samples: ``[n, c, *grid]``; normalised first.
        Returns:
            ``[n, c, *grid]``, norms 1.
        Raises:
            ValueError: channels or grid are not the network's, or a sample is zero or not finite.
        """
        if samples.shape[1:] != self.features.shape[1:]:
            expected = ", ".join(map(str, self.features.shape[1:]))
            raise ValueError(f"samples must have shape [n, {expected}] as in training, got {list(samples.shape)}")
        check_samples(samples)
        rows = self.spectrum.unit_norm(self.spectrum.forward(samples))
        for each in self.layers[:-1]:
            rows = each.advance(rows, self.spectrum, step=self.step, sharpness=self.sharpness)
        return self.spectrum.backward(rows)

    def distances(self, transformed: Float[Tensor, "n c *grid"]) -> Float[Tensor, "n k"]:
        """``||x C_j||`` of samples that went through :meth:`transform`, by the last layer."""
        return self.layers[-1].distances(self.spectrum.forward(transformed), self.spectrum)


def construct_shift_invariant(
    samples: Float[Tensor, "n c *grid"], labels: Int[Tensor, " n"], *, layers: int, eps: float, step: float, sharpness: float = 500.0
) -> ShiftInvariantReduNet:
    """Builds the network of the module's head layer by layer, all frequencies at once.

    Args:
        samples: ``[n, c, T]`` on a ring, ``[n, c, h, w]`` on a torus; normalised as whole samples first.
        labels: ``[n]``, each of 0..k-1 at least once.
        layers: L, number of gradient steps.
        eps: distortion ε; squared inside.
        step: η.
        sharpness: λ of the softmax for new samples.
    Returns:
        :class:`ShiftInvariantReduNet`; its features and rates equal those of :func:`.vector.construct` on all shifts.
    Raises:
        ValueError: samples are not ``[n, c, *grid]``, zero or not finite; labels are no integers, leave out a class or differ in number
            from the samples; layers is below 1; or eps, step or sharpness is not positive, or eps so small that adding the identity is
            lost.
    Source: :cite:t:`chan2022redunet`.
    """
    if samples.ndim < 3 or 0 in samples.shape:
        raise ValueError(f"samples must have shape [n, c, T] or [n, c, h, w], no side empty, got {list(samples.shape)}; add a channel axis")
    check_settings(layers=layers, eps=eps, step=step, sharpness=sharpness)
    sizes = class_sizes(labels, len(samples))
    check_samples(samples)
    order = torch.argsort(labels, stable=True)
    spectrum = Spectrum.of(samples)
    rows = spectrum.unit_norm(spectrum.forward(samples[order]))
    growth = grow(rows, sizes, steps=layers, eps=eps, step=step, unit_norm=spectrum.unit_norm, total=spectrum.total)
    built = tuple(SpectralLayer(made[0], made[1:], growth.shares) for made in growth.operators)
    result = torch.empty_like(samples)
    result[order] = spectrum.backward(growth.rows)
    return ShiftInvariantReduNet(built, eps, step, sharpness, result, growth.rates, spectrum)

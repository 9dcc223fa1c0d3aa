r"""The approximation of a sequence-to-sequence function: quantise, map every token in context to a code, look
up the value.

For :math:`f: [0, 1)^{n \times d} \to \mathbb{R}^{n \times d}` the network is constant on each cube, with the
value of f at its centre:

1. *Quantise.* Feed-forward layers round every entry down to a multiple of :math:`\delta`.
2. *Contextual mapping.* The attention layers of :class:`.ContextualMapping`.
3. *Values.* One feed-forward layer for each code q moves the tokens with :math:`|u^\top z - q| \le 1/4` to
   their value, and none beyond 1/2.

A grid without positions that repeats a token is not covered, and its tokens may share codes. The layer of a
shared code has the mean of the values. The paper allows ramps of the ReLUs of any small width;
:meth:`Approximation.__call__` is the limit of width 0. Source: :cite:t:`yun2020transformers`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from ...core.errors import abbreviated_list
from ...core.statistics import fixed_generator
from ...core.validation import as_float64, integers, number
from .grids import column_codes, has_distinct_tokens, powers, resolution
from .layers import Attention, FeedForward, Layer, quantiser, value_step
from .mapping import ContextualMapping

Function = Callable[[Float[Tensor, "points n d"]], Float[Tensor, "points n d"]]
AttentionLayers = Literal["all", "none"]

SAMPLES = 20_000  # points of a Monte Carlo error
SAME = 1e-5  # values of one covered code are equal up to the rounding of float32
RAMP = 2.0**-20  # default width of the quantiser's ramps, in units of delta


@dataclass(frozen=True)
class UniversalApproximator:
    r"""The construction for one function and one :math:`\delta`; :meth:`fit` tabulates the values.

    >>> import torch
    >>> shift = UniversalApproximator(lambda x: x.roll(1, dims=1), n=3, d=1, delta=1 / 8).fit()
    >>> round(shift.error(1, samples=2000), 3), shift.layer_counts()["attention"]
    (0.094, 25)

    Attributes:
        f: function ``[points, n, d] -> [points, n, d]`` of float64 tensors with entries in [0, 1).
        n: number of tokens.
        d: dimension of the tokens.
        delta: width of a cube, 1/k.
        equivariant: True for the network without positions, which is permutation-equivariant (Theorem 2); f
            must be so too. False for positions (Theorem 3).
        attention: "all", or "none" for the network without its attention layers, which maps each token and
            position to its mean value.

    Raises:
        ValueError: a size is below 1, ``delta`` is not 1/k, or ``attention`` is unknown.
        TypeError: a size is not an integer, ``equivariant`` is not a boolean, or f is not callable.
    """

    f: Function
    n: int
    d: int
    delta: Any
    equivariant: bool = False
    attention: AttentionLayers = "all"

    def __post_init__(self):
        integers(n=self.n, d=self.d)
        resolution(self.delta)
        if not callable(self.f):
            raise TypeError(f"f must be a function of tensors [points, n, d], got {type(self.f).__name__}")
        if not isinstance(self.equivariant, bool):
            raise TypeError(f"equivariant must be True or False, got {self.equivariant!r}")
        if self.attention not in get_args(AttentionLayers):
            raise ValueError(
                f"attention must be one of {abbreviated_list(map(repr, get_args(AttentionLayers)))}, got "
                f"{self.attention!r}"
            )

    @property
    def mapping(self) -> ContextualMapping:
        """The contextual mapping."""
        return ContextualMapping(self.d, self.n, self.delta, "none" if self.equivariant else "integers")

    def fit(self) -> "Approximation":
        """Evaluates f at the centre of every cube and tabulates the values by code.

        Raises:
            ValueError: there are too many grids, f fails on float64 tensors, returns another shape or values
                that are not finite, is not equivariant although ``equivariant`` is set, or its values are so
                large that a later layer would take one for a code.
        """
        return self.fit_values(self.target(torch.from_numpy((self.mapping.grids() + 0.5) / self.mapping.k)))

    def target(self, points: Float[Tensor, "points n d"]) -> Float[Tensor, "points n d"]:
        """Evaluates f, without gradients, and checks its values.

        Raises:
            ValueError: f fails, or returns another shape or values that are not finite.
        """
        try:
            with torch.no_grad():
                values = self.f(points)
        except RuntimeError as error:
            first = str(error).partition("\n")[0]
            raise ValueError(
                f"f must take float64 tensors [points, n, d], got the error {first!r}; convert its input or "
                "weights"
            ) from error
        return self._checked("values of f", values, list(points.shape))

    def _checked(self, name: str, values: Any, shape: list[int]) -> Float[Tensor, "points n d"]:
        found = as_float64(name, values)
        if list(found.shape) != shape or not bool(torch.isfinite(found).all()):
            got = list(found.shape) if list(found.shape) != shape else "values that are not finite"
            raise ValueError(f"{name} must be finite and have shape {shape}, got {got}")
        return found

    def fit_values(self, values: Any) -> "Approximation":
        """Tabulates given values, one per grid in the order of :meth:`.ContextualMapping.grids`, in place of
        those of f.

        Raises:
            ValueError: as for :meth:`fit`.
        """
        grids, k = self.mapping.grids(), self.mapping.k
        values = self._checked("values", values, list(grids.shape)).numpy(force=True)
        tokens = self.contextual(grids)
        codes = column_codes(tokens, k)
        table, first, index = np.unique(codes.ravel(), return_index=True, return_inverse=True)
        sums, index = np.zeros((len(table), self.d)), index.ravel()
        np.add.at(sums, index, values.reshape(-1, self.d))
        means = sums / np.bincount(index)[:, None]
        # A mean of equal values may differ from them by rounding; a value that belongs to one token alone is
        # kept as it is.
        alone = np.bincount(index) == 1
        means[alone] = values.reshape(-1, self.d)[first[alone]]
        covers = np.repeat(has_distinct_tokens(self.mapping.embed(grids), k * self.n + k), self.n)
        gap = np.abs(values.reshape(-1, self.d) - means[index])[covers]
        if (
            self.equivariant
            and self.attention == "all"
            and gap.size
            and gap.max() > SAME * max(1.0, np.abs(values).max())
        ):
            raise ValueError(
                "f must be permutation-equivariant if equivariant=True, got values that differ from their "
                f"mean by up to {gap.max():.3g} between permutations of a grid; pass equivariant=False"
            )
        covered = np.zeros(len(table), dtype=bool)
        covered[index[covers]] = True
        approximation = Approximation(self, table, tokens.reshape(-1, self.d)[first], means, covered)
        approximation.check_values()
        return approximation

    def contextual(
        self, grids: Any, *, dtype: Any = None, inverse_temperature: float | None = None
    ) -> Shaped[np.ndarray, "*grids n d"]:
        """Returns the tokens before the value layers, ``[*grids, n, d]``, in units of delta; arguments of
        :meth:`.ContextualMapping.run`.

        Without attention layers a constant takes their place, so that tokens cannot be taken for values.
        """
        if self.attention == "all":
            return self.mapping.run(grids, dtype=dtype, inverse_temperature=inverse_temperature)
        tokens = self.mapping.embed(grids, dtype=dtype)
        return tokens + np.array([self.mapping.range] + [0] * (self.d - 1)).astype(tokens.dtype)


@dataclass(frozen=True, eq=False)
class Approximation:
    """A constructed network: its table of codes and values. Calling it evaluates the network on points
    ``[*points, n, d]``.

    Attributes:
        settings: the :class:`UniversalApproximator`.
        codes: all codes in increasing order, ``[codes]``.
        tokens: the token before the value layers that has this code, ``[codes, d]``, in units of delta.
        values: the value of this code, ``[codes, d]``.
        covered: whether a grid that the theorem covers has this code, ``[codes]``.
    """

    settings: UniversalApproximator
    codes: np.ndarray
    tokens: np.ndarray
    values: np.ndarray
    covered: np.ndarray

    @cached_property
    def k(self) -> int:
        """Number of values of an entry, 1/delta."""
        return resolution(self.settings.delta)

    def check_values(self) -> None:
        """Checks that no later value layer takes a value for a code.

        Raises:
            ValueError: the projection of a value on u lies within 1/2 of a larger code.
        """
        projections = (self.values * self.k) @ powers(self.k, self.settings.d, float)
        codes = self.codes.astype(float)
        nearest = np.clip(np.searchsorted(codes, projections - 0.5), 0, len(codes) - 1)
        bad = (np.abs(codes[nearest] - projections) < 0.5) & (nearest > np.arange(len(codes)))
        if bad.any():
            worst = float(np.abs(self.values[bad]).max())
            raise ValueError(
                f"values of f must stay below the codes, got a value of {worst:.3g}, which a later layer "
                "takes for a code; scale f"
            )

    def __call__(self, points: Any) -> Float[Tensor, "*points n d"]:
        """Evaluates the network, with ramps of width 0, on points with entries in [0, 1), ``[*points, n,
        d]``.

        Raises:
            ValueError: the shape does not fit, or an entry lies outside [0, 1).
        """
        x = as_float64("points", points)
        n, d = self.settings.n, self.settings.d
        if list(x.shape[-2:]) != [n, d] or x.ndim < 2:
            raise ValueError(f"points must have shape [*points, {n}, {d}], got {list(x.shape)}; reshape them")
        if x.numel() and not bool(((x >= 0) & (x < 1)).all()):
            raise ValueError(
                f"points must lie in [0, 1), got {float(x.min()):.4g} to {float(x.max()):.4g}; rescale them"
            )
        grids = np.minimum(np.floor(x.numpy() * self.k).astype(np.int64), self.k - 1)
        return torch.from_numpy(self.on_grids(grids))

    def on_grids(
        self, grids: Any, *, dtype: Any = None, inverse_temperature: float | None = None
    ) -> Shaped[np.ndarray, "*grids n d"]:
        """Evaluates attention and value layers on grids; arguments of :meth:`.ContextualMapping.run`.

        The value layers are a table here. A token whose code is not within 1/2 of an entry keeps its
        contextual code, which is far outside the range of f; the layers with ReLUs are exact within 1/4.

        Returns:
            Outputs ``[*grids, n, d]``, float64; the codes are computed in ``dtype``.
        """
        tokens = self.settings.contextual(grids, dtype=dtype, inverse_temperature=inverse_temperature)
        codes = column_codes(tokens, self.k)
        table = self.codes.astype(tokens.dtype)
        above = np.clip(np.searchsorted(table, codes.ravel()), 1, max(len(table) - 1, 1)).reshape(codes.shape)
        above = np.minimum(above, len(table) - 1)
        below = np.maximum(above - 1, 0)
        index = np.where(np.abs(codes - table[below]) <= np.abs(codes - table[above]), below, above)
        hit = (2 * np.abs(codes - table[index]) < 1)[..., None]
        # The codes are subtracted first, so that values are not rounded to the spacing of large floats.
        outside = (tokens - self.tokens[index].astype(tokens.dtype)).astype(float)
        return np.where(hit, self.values[index] + outside / self.k, tokens.astype(float) / self.k)

    def error(
        self, p: float = 1, *, samples: int = SAMPLES, generator: torch.Generator | None = None
    ) -> float:
        r"""Estimates :math:`\big(\int \|f - g\|_p^p\big)^{1/p}` over the unit cube from uniform points; p =
        inf: the largest difference.

        Args:
            p: order of the norm, at least 1.
            samples: number of points.
            generator: draws the points; None: the same points in every call.
        Raises:
            ValueError: p is below 1, or ``samples`` is below 1.
            TypeError: p is not a number, or ``generator`` is none.
        """
        if not number("p", p) >= 1:
            raise ValueError(f"p must be at least 1 (math.inf is allowed), got {p}")
        integers(samples=samples)
        if not isinstance(generator, torch.Generator | None):
            raise TypeError(f"generator must be a torch.Generator or None, got {type(generator).__name__}")
        generator = fixed_generator() if generator is None else generator
        points = torch.rand(
            samples, self.settings.n, self.settings.d, generator=generator, dtype=torch.float64
        )
        gaps = (self.settings.target(points) - self(points)).abs()
        largest = float(gaps.max())
        # Relative to the largest, since high powers of small differences are 0 in float64.
        return (
            largest
            if math.isinf(p) or largest == 0
            else largest * float((gaps / largest).pow(p).sum((1, 2)).mean() ** (1 / p))
        )

    def layers(self, *, ramp: float = RAMP) -> tuple[Layer, ...]:
        """Returns all layers in order, for tokens (x + position) / delta: quantisers, attention, value
        layers.

        Args:
            ramp: width of the quantiser's ramps, in units of delta, in (0, 1).
        Raises:
            ValueError: ``ramp`` is out of range, or the network has no attention layers.
        """
        if not 0 < ramp < 1:
            raise ValueError(f"ramp must lie in (0, 1), got {ramp}")
        settings, u = self.settings, powers(self.k, self.settings.d)
        if settings.attention == "none":
            raise ValueError(
                "layers are those of the construction, got attention='none'; pass attention='all'"
            )
        # With positions the entries of the j-th token lie in [j - 1, j), so the quantisers cover [0, n).
        stops = self.k if settings.equivariant else self.k * settings.n
        quantise = [quantiser(i, t, settings.d, ramp=ramp) for i in range(settings.d) for t in range(stops)]
        moves = self.values * self.k - self.tokens.astype(float)
        # In increasing order of the codes: a value is smaller than the code that it replaces.
        values = [value_step(u, code, move) for code, move in zip(self.codes.tolist(), moves)]
        return (*quantise, *settings.mapping.layers(), *values)

    def layer_counts(self) -> dict[str, int]:
        """Counts the layers: "quantise", "attention", "value" (codes of covered grids) and "repeated" (other
        codes).
        """
        layers = self.layers()
        attention = sum(isinstance(layer, Attention) for layer in layers)
        covered = int(self.covered.sum())
        feed_forward = sum(isinstance(layer, FeedForward) for layer in layers)
        return {
            "quantise": feed_forward - len(self.codes),
            "attention": attention,
            "value": covered,
            "repeated": len(self.codes) - covered,
        }

    def parameters(self) -> int:
        """Counts the weights and biases of all layers."""
        return sum(layer.parameters for layer in self.layers())


def expected_layers(k: int, d: int, n: int, *, equivariant: bool) -> dict[str, int]:
    r"""Returns the numbers of layers by formula.

    Without positions: d k quantisers, k^d + 1 attention layers and :math:`n \binom{k^d}{n}` value layers for
    the covered grids. With positions: n d k, n k^d + 1, and n k^(dn).

    Raises:
        ValueError: a size is below 1.
    """
    integers(k=k, d=d, n=n)
    states = k**d
    if equivariant:
        return {"quantise": d * k, "attention": states + 1, "value": n * math.comb(states, n)}
    return {"quantise": n * d * k, "attention": n * states + 1, "value": n * states**n}

r"""The quantities of JoMA in a trained network: the stable rank of the MLP's lower layer, and the rebound of
attention's entropy.

The lower layer learns salient components first and the others later, so its *stable rank* :math:`\|W\|_F^2 /
\|W\|_2^2` falls and then rises again. Its null consists of Gaussian matrices of the same shape,
:func:`gaussian_draws`; their typical rank is :func:`gaussian_rank`.

The *rebound* of a head is its mean entropy minus the smallest mean entropy of any measurement so far: 0 while
attention becomes sparser, positive once it spreads again. It has no null, because it is 0 in any network that
is measured once. It is never negative, and the entropy varies from batch to batch, so even an unchanged
network has a positive rebound. The rebound should therefore be compared with the spread of repeated
measurements.

The lower layer is the first weight matrix after the attention of a block; in a CRATE it is the dictionary.
Source: :cite:t:`tian2024joma`, :cite:t:`johnstone2001distribution`.
"""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ...core.measurement import Measurement, Null
from ...core.metric import ActivationKind, Activations, Place
from ...core.sources import Source
from ...core.statistics import RANGE_DRAWS
from ...core.theory import InNetworks
from ...metrics.networks import AttentionStatistics, matrix_after, rank_of

LOWER_RANK = "stable rank of the MLP's lower layer"
REBOUND = "rebound of attention's entropy"
SOURCE = Source("tian2024joma")
RANK_NOTE = (
    "The theory predicts a fall below the null. A property of the weights; it does not depend on the inputs."
)
REBOUND_NOTE = "It has no null and is never negative; compare it with the spread of repeated measurements."
NO_MATRIX = "the block has no weight matrix that is registered after the module of its attention"
NULL_KIND = "Gaussian matrices of the same shape"
TRACY_WIDOM_MEAN = -1.2065335745820  # mean of the Tracy-Widom law of order 1 (real matrices)


def gaussian_rank(rows: int, columns: int) -> float:
    r"""Returns the typical stable rank of an m x n Gaussian matrix, :math:`mn / E[\sigma_1^2]` for m >= n, by
    the Tracy-Widom law.

    .. math:: E[\sigma_1^2] \approx \mu - 1.2065\, s, \quad \mu = (\sqrt{m-1} + \sqrt n)^2, \quad
        s = (\sqrt{m-1} + \sqrt n) (1/\sqrt{m-1} + 1/\sqrt n)^{1/3} .

    The error is at most 2.5 % for 16 x 4 and larger matrices, and 7 % for 4 x 4. Source:
    :cite:t:`johnstone2001distribution`.
    """
    m, n = max(rows, columns), min(rows, columns)
    if n == 1:
        return 1.0  # a vector has one singular value
    roots = math.sqrt(m - 1), math.sqrt(n)
    scale = sum(roots) * (1 / roots[0] + 1 / roots[1]) ** (1 / 3)
    return m * n / (sum(roots) ** 2 + TRACY_WIDOM_MEAN * scale)


@lru_cache(maxsize=256)
def gaussian_draws(rows: int, columns: int) -> tuple[float, ...]:
    r"""Draws the stable ranks of 19 Gaussian matrices of one shape, the same in every call.

    Householder reflections turn a Gaussian m x n matrix with m >= n into a bidiagonal B with the same
    singular values. Its entries are independent, with the diagonal :math:`\chi_m, \dots, \chi_{m-n+1}` and
    the superdiagonal :math:`\chi_{n-1}, \dots, \chi_1`. The draws are the stable ranks of such B, at a cost
    of O(n) each.
    """
    from scipy.linalg import eigh_tridiagonal

    m, n = max(rows, columns), min(rows, columns)
    generator, draws = np.random.default_rng(0), []
    for _ in range(RANGE_DRAWS):
        # squares
        diagonal, above = (
            generator.chisquare(np.arange(m, m - n, -1)),
            generator.chisquare(np.arange(n - 1, 0, -1)),
        )
        # B^T B is tridiagonal, with b_i^2 + c_{i-1}^2 on its diagonal and b_i c_i beside it.
        squares = diagonal + np.concatenate([[0.0], above])
        largest = eigh_tridiagonal(
            squares,
            np.sqrt(diagonal[:-1] * above),
            eigvals_only=True,
            select="i",
            select_range=(n - 1, n - 1),
        )[0]
        draws.append(float(squares.sum() / largest))
    return tuple(draws)


class JointDynamics(AttentionStatistics):
    """Stable rank of the lower layer of every block, and rebound of the entropy of every head, in nats.

    :class:`.AttentionStatistics` accumulates the entropies. :meth:`reset` keeps the smallest mean of each
    head (see :meth:`persistent_state`).

    Attributes:
        ranks: the stable rank of the lower layer and the shape of this matrix, by layer.
        least: smallest mean entropies of earlier measurements, ``[heads]``, by layer and first head; NaN if
            no row of weights was valid.
    """

    kinds: ClassVar[tuple[ActivationKind, ...]] = ("attention", "features")
    null_source = "own"

    def __init__(self):
        self.least: dict[Place, Float[Tensor, " heads"]] = {}
        self.sums = {}  # read by reset(), which the base class calls
        super().__init__()

    def update(self, activations: Activations) -> None:
        """Adds attention weights, or computes the rank of the lower layer of a block once."""
        super().update(activations)
        layer = activations.layer
        if activations.kind == "attention":
            self.attention[layer] = activations.name
        elif (
            layer not in self.ranks
            and (matrix := matrix_after(activations, self.attention.get(layer))) is not None
        ):
            height, width = matrix.shape
            self.ranks[layer] = rank_of(matrix), height, width

    def compute(self, *, draws: int = 0, generator: torch.Generator | None = None) -> Sequence[Measurement]:
        """Returns one rank per layer, or the reason if it has no matrix after its attention, and one rebound
        per layer and head.
        """
        rows = [self._rank_row(layer, *ranks, draws=draws) for layer, ranks in sorted(self.ranks.items())]
        columns = {"side": "<=", "scope": "training", "source": SOURCE, "reason": NO_MATRIX}
        without = sorted(self.attention.keys() - self.ranks.keys())
        rows += [
            Measurement("joma", "in network", LOWER_RANK, None, layer=layer, **columns) for layer in without
        ]
        for (layer, first), entropies in sorted(self._entropies().items(), key=lambda item: item[0]):
            # fmin ignores NaN, the mean entropy of a head without valid rows.
            least = torch.fmin(self.least.get((layer, first), entropies), entropies)
            for head, rebound in enumerate((entropies - least).tolist(), start=first):
                value, reason = (
                    (rebound, "") if math.isfinite(rebound) else (None, "no row of weights is finite")
                )
                columns = {
                    "layer": layer,
                    "head": head,
                    "source": SOURCE,
                    "scope": "training",
                    "note": REBOUND_NOTE,
                }
                rows.append(
                    Measurement("joma", "in network", REBOUND, value, unit="nats", reason=reason, **columns)
                )
        return rows

    def _rank_row(self, layer: int, rank: float, height: int, width: int, *, draws: int) -> Measurement:
        value, reason = (rank, "") if math.isfinite(rank) else (None, "the matrix is zero or not finite")
        null = Null(NULL_KIND, gaussian_draws(height, width)[:draws]) if draws else None
        bounds = (1.0, float(min(height, width)))
        columns = {"nulls": (null,), "side": "<=", "bounds": bounds, "scope": "training", "source": SOURCE}
        return Measurement(
            "joma", "in network", LOWER_RANK, value, reason=reason, layer=layer, note=RANK_NOTE, **columns
        )

    def reset(self) -> None:
        """Starts a new measurement and retains the smallest mean entropies so far."""
        self.least = self.persistent_state()
        super().reset()
        self.ranks: dict[int, tuple[float, int, int]] = {}
        self.attention: dict[int, str] = {}  # layer -> name of its attention module

    def merge(self, other: Any) -> None:
        """Adds the state of another metric of this class that belongs to the same measurement."""
        super().merge(other)
        self.attention = {**other.attention, **self.attention}
        self.ranks = {**other.ranks, **self.ranks}

    def state_dict(self) -> dict[str, Tensor]:
        """Returns the sums, and the stable rank with the shape of its matrix as
        ``"rank.<layer>"``, ``[3]``.
        """
        ranks = {
            f"rank.{layer}": torch.tensor(parts, dtype=torch.float64) for layer, parts in self.ranks.items()
        }
        return super().state_dict() | ranks

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restores a :meth:`state_dict`."""
        parts = {name: name.split(".") for name in state}  # "rank.<layer>", or the names of the base class
        super().load_state_dict({name: state[name] for name, part in parts.items() if part[0] != "rank"})
        ranks = {int(part[1]): state[name].tolist() for name, part in parts.items() if part[0] == "rank"}
        self.ranks = {
            layer: (rank, int(height), int(width)) for layer, (rank, height, width) in ranks.items()
        }

    def persistent_state(self) -> dict[Any, Tensor]:
        """Returns the smallest mean entropies so far, ``[heads]`` by layer and first head."""
        now = self._entropies()
        return self.least | {
            place: torch.fmin(self.least.get(place, entropies), entropies) for place, entropies in now.items()
        }

    def load_persistent_state(self, state: dict[Any, Tensor]) -> None:
        """Restores the result of :meth:`persistent_state`."""
        self.least = dict(state)

    def _entropies(self) -> dict[Place, Float[Tensor, " heads"]]:
        """Returns the mean entropy of each head, by layer and first head."""
        # Row 0 of the sums is the number of rows of attention weights, row 1 their total entropy.
        return {place: (sums[1] / sums[0]).cpu() for place, sums in self.sums.items()}


def metrics() -> tuple[JointDynamics, ...]:
    """Returns the metrics of this theory."""
    return (JointDynamics(),)


# A salient component is learnt first, so the rank falls. It rises again, but not above the rank of a random
# matrix.
IN_NETWORKS = InNetworks(
    metrics=metrics,
    headline=LOWER_RANK,
    side="<=",
    meaning="sum of the squared singular values of the weight over the largest of them; 1: one component",
)

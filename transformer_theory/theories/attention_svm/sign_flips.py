r"""Random reflections of a head along the principal axes of its tokens: the null of its alignment with the
max-margin direction.

A flip replaces W by :math:`Q W Q^\top` with :math:`Q = V \operatorname{diag}(\pm 1) V^\top`, where V holds
the eigenvectors of the tokens' second moment. :mod:`.in_networks` says why. Queries that are not among the
tokens have axes and signs of their own. This null is the library's own; the alignment that it is a null of
comes from :cite:t:`tarzanagh2023transformers`.
"""

import dataclasses
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

# traces of second moments that are far from underflow and overflow in float32
SMALLEST_MOMENT, LARGEST_MOMENT = 1e-20, 1e20


@dataclass(frozen=True)
class SignFlips:
    """Random reflections along the principal axes of the tokens and of the queries.

    Attributes:
        left, right: principal axes of the tokens ``[d, d]`` and of the queries ``[d_z, d_z]``, as columns.
        signs, query_signs: signs of the axes, ``[draws, d]`` and ``[draws, d_z]``.
    """

    left: Float[Tensor, "d d"]
    right: Float[Tensor, "d_z d_z"]
    signs: Float[Tensor, "draws d"]
    query_signs: Float[Tensor, "draws d_z"]

    @classmethod
    def draw(
        cls, tokens: Tensor, queries: Tensor | None, draws: int, generator: torch.Generator
    ) -> "SignFlips":
        """Draws the signs; ``queries`` None: the queries are tokens and have their axes and signs."""
        # Without draws the axes are not used; the identity saves their computation.
        axes = _principal_axes if draws else lambda vectors: torch.eye(vectors.shape[-1], dtype=torch.float64)
        left = axes(tokens)
        right = left if queries is None else axes(queries)
        d, width = len(left), len(left) + (0 if queries is None else len(right))
        signs = torch.randint(2, (draws, width), generator=generator).double() * 2 - 1
        return cls(left, right, signs[:, :d], signs if queries is None else signs[:, d:])

    def different(self) -> tuple["SignFlips", list[int]]:
        """Returns the flips without repetitions, and the number of the flip of each draw. All signs reversed
        is the same flip.

        In d dimensions there are 2^(d-1) flips, so for small d most draws repeat an earlier one.
        """
        signs = torch.cat([self.signs, self.query_signs], dim=-1)
        signs = signs * signs[:, :1]
        numbers: dict[tuple[float, ...], int] = {}
        draw_of = [numbers.setdefault(tuple(row), len(numbers)) for row in signs.tolist()]
        if len(numbers) == len(draw_of):
            return self, draw_of
        kept = [draw_of.index(number) for number in range(len(numbers))]
        return dataclasses.replace(self, signs=self.signs[kept], query_signs=self.query_signs[kept]), draw_of

    def before(self, queries: Float[Tensor, "m d_z"]) -> Float[Tensor, "draws m d_z"]:
        """Reflects the queries, once per draw."""
        return ((queries @ self.right) * self.query_signs[:, None]) @ self.right.mT


def _principal_axes(vectors: Tensor) -> Tensor:
    """Returns the eigenvectors of the second moment of the vectors [..., d], as columns [d, d], computed in
    their dtype; float64.
    """
    rows = vectors.reshape(-1, vectors.shape[-1])
    moment = rows.mT @ rows
    if not SMALLEST_MOMENT < float(moment.trace()) < LARGEST_MOMENT:  # squares may overflow or underflow
        rows = rows / rows.abs().amax().clamp(min=torch.finfo(rows.dtype).tiny)
        moment = rows.mT @ rows
    return torch.linalg.eigh(moment)[1].double()

r"""Updates in random directions: the second null of the ladder.

Tokens are centred and scaled to norm one, so a step is seen only as a turn of every token. Write the token
after the step as

    z+ = cos(a) z + sin(a) t,      t a unit vector, orthogonal to z and to the vector of ones.

A rotated update turns every token by its own angle a, towards a rotation of t: one rotation O for all tokens,
of the space orthogonal to the vector of ones. To rotate the difference z+ - z itself would be unfair. An
exact step mostly shortens the tokens, which centring and scaling hide; rotated, this part would turn the
tokens by large angles.
"""

from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor

from ....maths.linalg import orthonormalise
from ....metrics.coding import unit_norm
from ....models.crate.compression import Bases
from ..in_networks import NULL_SEED, head_rate, random_rotations

Tokens = Float[Tensor, "*batch n d"]
CHUNK = 50  # rotations at a time: about 50 MB for 16 sequences of 17 tokens in 64 dimensions


def rates_after_rotated_updates(
    before: Tokens, after: Tokens, bases: Bases, *, draws: int, eps: float
) -> Float[Tensor, "2 draws batch"]:
    """Computes R^c after the rotated updates: draw j of the first row in the subspaces U_k, of the second row
    in the rotation j of U_k.

    Args:
        before, after: Z and Z+, [batch, n, d].
        bases: orthonormal U_k, [K, d, p].
        draws: number of rotations of the update, and of the subspaces (those of
            :func:`~.in_networks.random_rotations`).
        eps: distortion (squared inside).
    """
    d = before.shape[-1]
    bases = bases.to(before)
    pairs = zip(
        *(rotations(d, draws).to(before).split(CHUNK) for rotations in (update_rotations, random_rotations)),
        strict=True,
    )
    rates = [before.new_empty(2, 0, len(before))]
    for of_update, of_bases in pairs:
        tokens = turned(before, after, of_update[:, None])[:, :, None]  # [draws, batch, 1, n, d]
        frames = (of_bases[:, None] @ bases)[:, None]  # [draws, 1, K, d, p]
        rates.append(torch.stack([head_rate(tokens @ bases, eps=eps), head_rate(tokens @ frames, eps=eps)]))
    return torch.cat(rates, dim=1)


def turned(
    before: Tokens, after: Tokens, rotation: Float[Tensor, "*rotations d d"]
) -> Float[Tensor, "*turned n d"]:
    """Returns the tokens of ``before``, centred, of norm one, turned by the angles to ``after`` in the
    rotated directions.

    Args:
        before, after: Z and Z+, broadcastable to the rotations.
        rotation: O, orthogonal.
    """
    z, target = (unit_norm(tokens - tokens.mean(-1, keepdim=True)) for tokens in (before, after))
    cosine = (z * target).sum(-1, keepdim=True)
    turn = target - cosine * z
    direction = turn @ rotation
    # The rotated direction is no longer orthogonal to its token: project it, and restore the length sin(a).
    direction = unit_norm(direction - (direction * z).sum(-1, keepdim=True) * z)
    return cosine * z + torch.linalg.vector_norm(turn, dim=-1, keepdim=True) * direction


@lru_cache(maxsize=4)
def update_rotations(d: int, draws: int) -> Float[Tensor, "draws d d"]:
    """Returns uniformly distributed orthogonal matrices that fix the vector of ones, float64; the same in
    every call with this d.

    They are independent of :func:`~.in_networks.random_rotations`.
    """
    generator = torch.Generator().manual_seed(NULL_SEED)
    # The reflection H exchanges the first unit vector and the unit vector of ones. Rotate the other d - 1
    # dimensions between two of them.
    first = torch.zeros(d, dtype=torch.float64)
    first[0] = 1
    normal = torch.nn.functional.normalize(first - d**-0.5, dim=0)
    H = torch.eye(d, dtype=torch.float64) - 2 * normal[:, None] * normal
    rotations = torch.eye(d, dtype=torch.float64).repeat(draws, 1, 1)
    for rotation in rotations:
        rotation[1:, 1:] = orthonormalise(torch.randn(d - 1, d - 1, generator=generator, dtype=torch.float64))
    return H @ rotations @ H

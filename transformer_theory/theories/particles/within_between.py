r"""Do the tokens of a sequence cluster? The cosine within a sequence less that between sequences.

Let :math:`u_{si}` be the direction of the token at position i of sequence s. The mean of :math:`\langle
u_{si}, u_{sj} \rangle` over pairs :math:`i \ne j` is large if all tokens of a network share a direction
(anisotropy), or if positions alone give them their directions. Both are in the mean over *other sequences at
other positions* too, :math:`\langle u_{si}, u_{rj} \rangle` with :math:`r \ne s, i \ne j`. For each pair of
positions the difference of the two means is the trace of a covariance,

.. math:: D_{ij} = \operatorname{tr} \operatorname{Cov}(u_{si}, u_{sj}),
    \qquad D = \operatorname{mean}_{i \ne j} D_{ij}, \qquad
    \text{share} = \frac{D}{\operatorname{mean}_i \operatorname{tr} \operatorname{Cov}(u_{si}, u_{si})} ,

so D is 0 in expectation if the tokens at different positions are independent, whatever their means. The pairs
must be of *different* positions on both sides: at the same position, tokens of different sequences share a
mean, which those within a sequence do not. D also shrinks if positions or a common direction take up more of
a token. The *share* does not, if all positions have one length: it is D divided by its largest value, since
the denominator is one minus the cosine of other sequences at the *same* position. It is 1 if the tokens of a
sequence deviate from the means of their positions in one common direction and by one length, and 0 at chance.
If the variances :math:`v_i` at the positions differ, D is at most the mean of :math:`\sqrt{v_i v_j}`, which
is smaller than that of :math:`v_i`.

**Null.** At each position the sequences are permuted, independently of the other positions. This keeps all
tokens and their positions, and breaks sequences up.

Some tokens may be missing (padding, patches without direction). Which are missing may depend on the sequence,
so means are those of each position, and the sum over pairs of present tokens is divided by its expectation
for D = 1: with counts :math:`c_i` and :math:`C_{ij}` of present tokens and pairs it is :math:`\sum_{i \ne j}
C_{ij} (1 - 1/c_i - 1/c_j + C_{ij}/(c_i c_j))`. Own derivation; a correction of cosines for anisotropy alone,
without positions, is in :cite:t:`ethayarajh2019contextual`.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ...core.statistics import fixed_generator
from ...core.validation import converted, in_range

PERMUTED = "permuted sequences at each position"
CHUNK = 2**20  # numbers that one chunk of draws gathers
NORMAL = (1e-15, 1e15)  # norms of tokens whose squares are in range


@lru_cache(maxsize=8)
def position_permutations(
    sequences: int, positions: int, draws: int
) -> Int[Tensor, "draws sequences positions"]:
    """Returns permutations of the sequences, one for each position and draw; draw i is the same in every
    call.
    """
    generator = fixed_generator()
    rows = [torch.rand(positions, sequences, generator=generator).argsort(1).T for _ in range(draws)]
    return torch.stack(rows) if rows else torch.empty(0, sequences, positions, dtype=torch.long)


@dataclass(frozen=True)
class Sums:
    """Sums over the pairs of tokens in a batch; sums of batches add up.

    Attributes:
        pairs: sum of the products of deviations, and its expectation for D = 1, ``[2]``.
        variance: sum of squared deviations and its degrees of freedom, ``[2]``.
        within: sum of the cosines within sequences, and number of pairs, ``[2]``.
        draws: ``pairs`` of each draw of the null, ``[draws, 2]``.
    """

    pairs: Float[Tensor, "2"]
    variance: Float[Tensor, "2"]
    within: Float[Tensor, "2"]
    draws: Float[Tensor, "draws 2"]

    @property
    def difference(self) -> float:
        """D, the within-less-between cosine."""
        return float(self.pairs[0] / self.pairs[1])

    @property
    def share(self) -> float:
        """D as a share of its largest value."""
        return self.difference / float(self.variance[0] / self.variance[1])

    @property
    def chance(self) -> tuple[float, ...]:
        """D of each draw of the null."""
        return tuple((self.draws[:, 0] / self.draws[:, 1]).tolist())


@in_range
@converted(floats=("u",))
def pair_sums(u: Float[Tensor, "n T d"], valid: Bool[Tensor, "n T"], *, draws: int = 0) -> Sums:
    """Computes the sums of one batch of sequences.

    Args:
        u: directions of the tokens, ``[n, T, d]``.
        valid: tokens that are present, ``[n, T]``. Positions with fewer than two of them do not count.
        draws: number of draws of the null.
    """
    return unchecked_sums(u, valid, draws=draws)


def unchecked_sums(u: Float[Tensor, "n T d"], valid: Bool[Tensor, "n T"], *, draws: int = 0) -> Sums:
    """Computes :func:`pair_sums` without checks, each of which lets an accelerator wait."""
    n, T, d = u.shape
    valid = valid & (valid.sum(0) > 1)
    complete = n > 0 and bool(valid.all())
    v = valid.to(u.dtype)
    counts = v.sum(0).clamp(min=1)
    u = u if complete else u * v[..., None]
    sums, means = u.sum(1), u.sum(0) / counts[:, None]
    size, present = v.sum(), v.sum(1)
    within = torch.stack([sums.square().sum() - size, present.square().sum() - size])
    # Deviations from the means of their positions enter through sums alone: of a sequence, and of their
    # squares.
    squares = size - (counts * means.square().sum(1)).sum()
    if complete:
        expected = u.new_tensor(T * (T - 1.0) * (n - 1))
        first = torch.stack([(sums - means.sum(0)).square().sum() - squares, expected]).double()
    else:
        first = _pair(sums - v @ means, squares, v, counts)
    freedom = (v.sum(0) - 1).clamp(min=0).sum()
    chance = torch.zeros(0, 2, dtype=torch.float64, device=u.device)
    if draws:
        # embedding_bag adds the tokens of a permuted sequence without storing them.
        flat, rows = ((u - means) * v[..., None]).reshape(n * T, d), []
        places = (position_permutations(n, T, draws) * T + torch.arange(T)).to(u.device)
        for part in places.split(max(1, CHUNK // (n * T * d))):
            added = torch.nn.functional.embedding_bag(part.flatten(0, 1), flat, mode="sum").unflatten(
                0, (len(part), n)
            )
            if complete:
                values = added.square().sum((1, 2), dtype=torch.float64) - squares
                rows.append(torch.stack([values, first[1].to(values).expand(len(part))], 1))
            else:
                rows += [
                    _pair(one, squares, mask, counts)[None] for one, mask in zip(added, v.flatten()[part])
                ]
        chance = torch.cat(rows)
    return Sums(first, torch.stack([squares, freedom]).double(), within.double(), chance)


def _pair(sums: Tensor, squares: Tensor, v: Tensor, counts: Tensor) -> Float[Tensor, "2"]:
    """Returns the sum of the products of deviations over pairs of positions, and its expectation for D
    = 1.
    """
    C = v.mT @ v
    weights = C * (1 - 1 / counts - 1 / counts[:, None] + C / (counts * counts[:, None]))
    return torch.stack([sums.square().sum() - squares, weights.sum() - weights.diagonal().sum()]).double()


@converted(floats=("tokens",))
def directions(tokens: Float[Tensor, "n T d"]) -> tuple[Float[Tensor, "n T d"], Bool[Tensor, "n T"]]:
    """Returns the directions of the tokens, zero where there is none, and which tokens have one: not zero,
    and finite.

    Raises:
        ValueError: the tokens have no entries.
    """
    if not tokens.shape[-1]:
        raise ValueError(f"tokens must be [n, T, d] with d >= 1, got {list(tokens.shape)}")
    size = tokens.norm(dim=-1, keepdim=True)
    # Squares of ordinary tokens are in range; only others need the largest entry first.
    if bool(((size > NORMAL[0]) & (size < NORMAL[1])).all()):
        return tokens / size, torch.ones(tokens.shape[:-1], dtype=torch.bool, device=tokens.device)
    largest = tokens.abs().amax(-1, keepdim=True)
    valid = (largest > 0) & largest.isfinite()
    safe = torch.where(valid, tokens / torch.where(valid, largest, 1.0), 0.0)
    return safe / safe.norm(dim=-1, keepdim=True).clamp(min=1e-30), valid.squeeze(-1)


def shuffled(tokens: Tensor, order: Int[Tensor, "n T"]) -> Tensor:
    """Exchanges tokens ``[n, T, ...]`` between sequences at each position: sequence s gets token t of
    sequence ``order[s, t]``.
    """
    return tokens[order, torch.arange(tokens.shape[1])]

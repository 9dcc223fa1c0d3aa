r"""The cosine between the weights of an attention head and the max-margin direction of the tokens that they
select.

A head with bilinear form W scores token x for query z by :math:`x^\top W z`. After long descent W should have
the direction of the max-margin solution of its selection :cite:p:`tarzanagh2023transformers`. The cosine
between the two is positive for every W: W separates the tokens that it selects, so it correlates with their
max-margin direction.

The null distribution is the same cosine for :math:`Q W Q^\top`, where :math:`Q = V \operatorname{diag}(\pm 1)
V^\top` flips signs at random along the principal axes V of the tokens (eigenvectors of their second moment).
This preserves properties of W that do not depend on a selection: its spectrum, the angles between its left
and right singular vectors, and its size along each axis. Independent rotations on the two sides would mistake
tied projections for alignment, and rotations in arbitrary directions would mistake learnt covariance for
selection. Queries that are not among the tokens have separate axes and signs.
"""

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ...core.errors import Infeasible, NotConverged
from ...core.measurement import CORRELATION, Measurement, Null
from ...core.metric import ActivationKind, Activations, PerModule, Place
from ...core.sources import Source
from ...core.statistics import RANGE_DRAWS, fixed_generator
from ...core.theory import InNetworks
from ...core.threads import one_thread, single_threaded
from ...core.validation import converted, finite, integers
from ...metrics.own_tokens import attends_elsewhere
from .constraint_set import Constraints
from .sign_flips import SignFlips
from .solvers import BATCHED_SIZE, DIRECT_SIZE, dual_multipliers, frobenius_max_margin, many_dual_multipliers

COSINE = "cosine to the max-margin direction"
MARGIN = "smallest margin, share of the largest possible"
NULL_KIND = "sign flips along the tokens' axes"
ZERO = "W is zero, so it selects nothing"
SINGLE_TOKEN = "inputs have a single token, so there is nothing to select"
FOREIGN_TOKENS = "attention to tokens other than the module's own, which the probe does not see"
SOURCE = Source("tarzanagh2023transformers")
# parts of what the metric stores of a module
TOKENS, BILINEAR, FOREIGN, KEY_MAP = 0, 1, 2, 3
# largest accepted KKT residual of a max-margin solution; it suffices for cosines of three digits
QUERIES = 16  # smallest number of queries of a head, if there are as many
PER_QUERY = 4  # smallest number of constraints of a query
STORED = 4096  # tokens of a module that are stored
SOLVER_TOL = 1e-9
SMALLEST_SHARE = 1e-8  # of |K|^2 |Q|^2, down to which |K^T Q|^2 has eight digits without W


@dataclass(frozen=True)
class Alignment:
    r"""A head compared with its max-margin direction.

    Attributes:
        cosine: cosine of W to the max-margin solution of the tokens that W selects; None if there is no
            solution.
        null: null distribution of the cosine, from W with signs flipped along the tokens' axes; None if no
            draw has a solution.
        margin: smallest margin of W, relative to the largest possible smallest margin of a matrix of the same
            norm, in (0, 1].
        constraints: number of constraints.
        queries: number of (input, query) pairs that set the constraints; 0 without a cosine.
        reason: the reason why there is no cosine; empty if there is one.
    """

    cosine: float | None
    null: Null | None
    margin: float | None
    constraints: int
    reason: str = ""
    queries: int = 0


def _missing(reason: str, constraints: int = 0) -> Alignment:
    """Returns an alignment without values."""
    return Alignment(None, None, None, constraints, reason)


@converted(float64=("W", "tokens", "query"))
@single_threaded
def alignment(
    W: Float[Tensor, "d d_z"],
    tokens: Float[Tensor, "n T d"],
    query: Float[Tensor, "n d_z"] | Float[Tensor, "n q d_z"],
    *,
    generator: torch.Generator,
    constraints: int = 256,
    draws: int = 3,
) -> Alignment:
    """Computes the cosine of W to the max-margin direction of the tokens that W selects, with its null
    distribution.

    Args:
        W: bilinear form of a head, ``[d, d_z]``; the score of token x for query z is ``x @ W @ z``.
        tokens: input of the head, ``[n, T, d]``.
        query: one query per input ``[n, d_z]``, or several ``[n, q, d_z]`` (self-attention: the tokens
            themselves).
        generator: random generator for the subset of (input, query) pairs and for the null draws.
        constraints: largest number of constraints (the cost grows like its third power); at least one pair is
            used.
        draws: number of null draws.
    Returns:
        The cosine, or the reason why there is none: a single token, W = 0, tied scores, margins too small for
        float64.
    Raises:
        TypeError: an argument is not numeric.
        ValueError: shapes do not fit, or a value is not finite.
    """
    integers(constraints=constraints)
    for name, value, shape, ranks in (
        ("W", W, "[d, d_z]", (2,)),
        ("tokens", tokens, "[n, T, d]", (3,)),
        ("query", query, "[n, d_z] or [n, q, d_z]", (2, 3)),
    ):
        if value.ndim not in ranks:
            raise ValueError(f"{name} must have shape {shape}, got {list(value.shape)}")
    W, tokens, query = W.detach(), tokens.detach(), query.detach()
    queries = query[:, None] if query.ndim == 2 else query
    n, T, d = tokens.shape
    if queries.shape[0] != n or W.shape != (d, queries.shape[-1]):
        raise ValueError(
            f"W must be [{d}, {queries.shape[-1]}] and query [{n}, ...], got {list(W.shape)} and "
            f"{list(query.shape)}"
        )
    finite(W=W, tokens=tokens, query=query)
    if T < 2:
        return _missing(SINGLE_TOKEN)
    if not bool(W.any()):
        return _missing(ZERO)
    # Each (input, query) pair sets T - 1 constraints, so a random subset of the pairs meets the budget.
    pairs = torch.randperm(n * queries.shape[1], generator=generator)[: max(1, constraints // (T - 1))]
    x, z = tokens[pairs // queries.shape[1]], queries.reshape(-1, queries.shape[-1])[pairs]
    queries_are_tokens = d == z.shape[-1] and bool((x == z[:, None]).all(-1).any(-1).all())
    flips = SignFlips.draw(tokens, None if queries_are_tokens else queries, draws, generator)
    return _with_null(_Forms((W / W.abs().amax())[None]), x, z, flips)[0]


@dataclass(frozen=True)
class _Forms:
    r"""Bilinear forms of h heads, :math:`W = K^\top Q` in float64, whose squares neither overflow nor
    underflow.

    Attributes:
        right: Q of each head, or W itself.
        left: K of each head; None: the identity.
    """

    right: Float[Tensor, "h p d_z"]
    left: Float[Tensor, "h p d"] | None = None

    def norms(self) -> Float[Tensor, "h 1 1"]:
        """Returns the Frobenius norms of W."""
        if self.left is None:
            return torch.linalg.vector_norm(self.right, dim=(-2, -1), keepdim=True)
        # |K^T Q|^2 is the sum of the products of the entries of K K^T and Q Q^T, [p, p] each. If they cancel,
        # W is formed.
        squared = ((self.left @ self.left.mT) * (self.right @ self.right.mT)).sum((-2, -1), keepdim=True)
        sizes = [each.square().sum((-2, -1), keepdim=True) for each in (self.left, self.right)]
        if bool((squared > SMALLEST_SHARE * sizes[0] * sizes[1]).all()):
            return squared.sqrt()
        return torch.linalg.vector_norm(self.left.mT @ self.right, dim=(-2, -1), keepdim=True)

    def turned(self, axes: Float[Tensor, "d d"]) -> "_Forms":
        """Returns the forms whose keys have coordinates along axes."""
        left = axes.expand(len(self.right), -1, -1) if self.left is None else self.left @ axes
        return _Forms(self.right, left)

    def keys(self, z: Float[Tensor, "*m d_z"]) -> Float[Tensor, "h m d"]:
        """Returns W z of every query."""
        found = z @ self.right.mT
        return found if self.left is None else found @ self.left


def _with_null(
    W: _Forms, x: Float[Tensor, "m T d"], z: Float[Tensor, "m d_z"], flips: SignFlips
) -> list[Alignment]:
    """Computes the alignment of h heads for m inputs of T > 1 tokens with one query each: finite values in
    float64.
    """
    norms = W.norms().clamp(min=torch.finfo(torch.float64).tiny)  # if K^T Q is zero, all scores are tied
    # Keys W z of the head itself and, in the null, of the flipped head: the flips act on the queries, before
    # and after W. There are few queries, so this costs less than forming the flipped W, and one product for
    # all draws less than one for each, which would copy W.
    flips, draw_of = flips.different()
    keys = (W.keys(z) / norms)[None]  # [1, h, m, d]
    scores = _products(x, keys)
    if len(flips.signs):
        turned = W.turned(flips.left).keys(flips.before(z).flatten(0, 1)) / norms
        flipped = turned.unflatten(1, (-1, len(z))).transpose(0, 1) * flips.signs[:, None, None]
        scores = torch.cat([scores, _products(x @ flips.left, flipped)])
    alignments = []
    for value, *others in zip(*_selection_cosines(scores, x, z)):
        if value.cosine is None:
            alignments.append(_missing(value.reason, value.constraints))
            continue
        cosines = [others[draw].cosine for draw in draw_of]
        null = Null(NULL_KIND, tuple(cosine for cosine in cosines if cosine is not None))
        alignments.append(dataclasses.replace(value, null=null if null.draws else None, queries=len(x)))
    return alignments


def _products(x: Float[Tensor, "m T d"], keys: Float[Tensor, "k h m d"]) -> Float[Tensor, "k h m T"]:
    """Returns the products of the tokens of each input with its keys."""
    # [m, T, d] @ [m, d, k h]
    return (x @ keys.permute(2, 3, 0, 1).flatten(2)).unflatten(2, keys.shape[:2]).permute(2, 3, 0, 1)


def _selection_cosines(
    scores: Float[Tensor, "k h m T"], x: Float[Tensor, "m T d"], z: Float[Tensor, "m d_z"]
) -> list[list[Alignment]]:
    """Returns, for each of k draws, the alignments without null of h heads whose W, of norm one, gives these
    scores.

    W itself is not needed: <W, W_mm> is the sum of margins times multipliers of the solution, over the
    constraints.
    """
    m, T, d = x.shape
    best = scores.argmax(-1, keepdim=True)
    others = torch.arange(T - 1).expand(*best.shape[:-1], -1)
    others = others + (others >= best)  # all tokens but the selected one, [k, h, m, T - 1]
    # [k, h, c] for c = m (T - 1) constraints
    margins = (scores.gather(-1, best) - scores.gather(-1, others)).flatten(-2)
    queries = z.repeat_interleave(T - 1, dim=0)
    # Pivoting rarely terminates if constraints are linearly dependent, as they are with more than d tokens or
    # more than d_z queries.
    batched = margins.shape[-1] <= BATCHED_SIZE and d >= T - 1 and m <= z.shape[-1]
    products = queries @ queries.mT if batched else None
    distinct, found = torch.empty(margins.shape, dtype=torch.bool), []
    gram = margins.new_empty(*margins.shape, margins.shape[-1] if batched else 0)
    for draw in range(len(scores)):  # the differences of all draws may not fit into memory
        difference = _differences(x, best[draw], others[draw])
        distinct[draw] = difference.any(-1)  # tokens equal to the selected one add no constraint
        if products is not None:
            torch.matmul(difference, difference.mT, out=gram[draw]).mul_(products)
    solved = torch.zeros(margins.shape[:-1], dtype=torch.bool)
    cosines = smallest = torch.zeros(margins.shape[:-1], dtype=torch.float64)
    if products is not None:
        multipliers, verified = many_dual_multipliers(
            gram.flatten(0, 1), distinct.flatten(0, 1), tol=SOLVER_TOL
        )
        multipliers = multipliers.view_as(margins)
        norm = multipliers.sum(-1).sqrt()  # at the optimum |W_mm|^2 is the sum of the multipliers
        cosines = ((margins * multipliers).sum(-1) / norm).clamp(max=1.0)
        smallest = torch.where(distinct, margins, torch.inf).amin(-1)
        solved = verified.view_as(solved) & distinct.any(-1) & (smallest > 0)
        smallest = smallest * norm
    counts = distinct.sum(-1).tolist()
    for draw, (done, *values) in enumerate(zip(solved.tolist(), cosines.tolist(), smallest.tolist(), counts)):
        row = [Alignment(cosine, None, margin, count) for cosine, margin, count in zip(*values)]
        for head in (head for head, known in enumerate(done) if not known):
            difference = _differences(x, best[draw, head], others[draw, head])
            row[head] = _one_alignment(difference, queries, margins[draw, head], distinct[draw, head])
        found.append(row)
    return found


def _differences(
    x: Float[Tensor, "m T d"], best: Int[Tensor, "*h m 1"], others: Int[Tensor, "*h m rest"]
) -> Float[Tensor, "*h c d"]:
    """Returns the selected token minus each other token of its input, for c = m (T - 1) constraints."""
    tokens, first = x.flatten(0, 1), torch.arange(len(x))[:, None] * x.shape[1]
    return (tokens[first + best] - tokens[first + others]).flatten(-3, -2)


def _one_alignment(
    difference: Float[Tensor, "c d"],
    query: Float[Tensor, "c d_z"],
    margins: Float[Tensor, " c"],
    distinct: Bool[Tensor, " c"],
) -> Alignment:
    """Returns the alignment without null of one W of norm one with these margins on its selection."""
    count = int(distinct.sum())
    if not count:
        return _missing("all tokens of each input are equal, so there is nothing to select")
    difference, query, margins = difference[distinct], query[distinct], margins[distinct]
    try:
        # For few constraints the Gram matrix alone gives the multipliers. At the optimum |W_mm|^2 is their
        # sum.
        multipliers = (
            dual_multipliers((difference @ difference.mT) * (query @ query.mT))
            if count <= DIRECT_SIZE
            else None
        )
        if multipliers is None:
            names = torch.arange(count)
            solution = frobenius_max_margin(
                Constraints(difference, query, input=names, token=names), tol=SOLVER_TOL
            )
            multipliers, norm = solution.dual, solution.norm
        else:
            norm = float(multipliers.sum()) ** 0.5
    except Infeasible:
        return _missing("infeasible: W scores two different tokens the same", count)
    except NotConverged:
        return _missing("nearly tied scores: the max-margin direction cannot be resolved in float64", count)
    smallest = float(margins.min())
    if smallest <= 0:
        return _missing("tied: W scores two different tokens the same", count)
    return Alignment(min(1.0, float(margins @ multipliers) / norm), None, smallest * norm, count)


class AlignmentMetric(PerModule):
    """The :func:`alignment` of every layer and head whose bilinear form is known.

    The metric stores the first ``max_samples`` sequences of each length and attention module, fewer of long
    ones, and the latest W; the length with the most tokens is measured. The queries are the tokens at a
    random subset of positions, which all heads share. One query names noise heads, so there are at least
    :data:`QUERIES`; if the constraints do not suffice for that, each query selects among fewer tokens, a
    random subset of its sequence. W alone determines the selections; biases and masks of the network are
    ignored. A head without a value (attention to tokens other than the module's own, values that are not
    finite) gets a measurement with the reason. A value of 1 is predicted only if the constraints are those of
    all positions of the stored sequences.

    Args:
        constraints: largest number of constraints per module, divided equally among its heads; a head has at
            least :data:`PER_QUERY` per query.
        max_samples: largest number of sequences stored per module; of long sequences as many as have
            :data:`STORED` tokens, but at least one for each query.
        seed: seed of the subset.

    Attributes:
        sums: by layer, first head, :data:`TOKENS` and T: sequences ``[n, T, d]``. By layer, first head and
            :data:`BILINEAR`: W of each head ``[heads, d, d]``, or the projection of the queries ``[heads, p,
            d]`` if that of the keys is at :data:`KEY_MAP`. With :data:`FOREIGN`: whether attention is to
            other tokens.
    """

    kinds: ClassVar[tuple[ActivationKind, ...]] = ("attention",)
    theory, quantity, side, bounds, source = "attention_svm", COSINE, ">=", CORRELATION, SOURCE

    def __init__(self, *, constraints: int = 256, max_samples: int = 128, seed: int = 0):
        self.constraints, self.max_samples, self.seed = constraints, max_samples, seed
        super().__init__()

    def update(self, activations: Activations) -> None:
        """Stores tokens and W of an attention module whose bilinear form is known."""
        if not activations.has_bilinear:
            return
        tokens = activations.tokens[: self.samples(activations.tokens.shape[1])].detach()
        # cheaper than a test of every entry
        finite_rows = torch.isfinite(tokens.sum((1, 2), dtype=torch.float64))
        tokens = (tokens if bool(finite_rows.all()) else tokens[finite_rows]).to(
            "cpu", torch.promote_types(tokens.dtype, torch.float32)
        )
        place = (activations.layer, activations.first_head)
        self.add((*place, TOKENS, tokens.shape[1]), tokens)
        self.add((*place, FOREIGN), torch.tensor(activations.shared(attends_elsewhere)))
        maps = {BILINEAR: activations.query_map, KEY_MAP: activations.key_map}
        if activations.query_map is None:
            maps = {BILINEAR: activations.bilinear}
        for part, matrices in maps.items():
            assert matrices is not None
            # a module may return its own parameters, which training changes in place
            self.add((*place, part), matrices.detach().clone().cpu())

    def add(self, place: Place, sums: Tensor) -> None:
        """Appends sequences of a module up to ``max_samples``, and replaces its W and flag."""
        stored = self.sums.get(place)
        if place[2] == TOKENS and stored is not None and stored.shape[1:] == sums.shape[1:]:
            sums = torch.cat([stored, sums])[: self.samples(sums.shape[1])]
        self.sums[place] = sums

    def samples(self, T: int) -> int:
        """Returns the number of sequences of T tokens that are stored."""
        return min(self.max_samples, max(QUERIES, STORED // max(T, 1)))

    def tokens(self, place: Place) -> Float[Tensor, "n T d"]:
        """Returns the sequences of the length of which most tokens are stored."""
        stored = [x for key, x in self.sums.items() if key[:3] == (*place, TOKENS)]
        return max(stored, key=lambda x: x.shape[:2].numel())

    def rows(
        self,
        place: Place,
        *sums: Tensor,
        draws: int,
        generator: torch.Generator | None,
    ) -> Iterator[Measurement]:
        """Yields, for each head, the cosine with its null distribution, and the smallest margin relative to
        the largest possible.

        Args:
            place: layer and first head.
            sums: what was stored of the module.
            draws: number of sign flips, which all heads of a module share; at most 19 are drawn. 0: no null.
            generator: its seed is the seed of the sign flips. None:
                :func:`~transformer_theory.core.statistics.fixed_generator`.
        """
        n, T, _ = self.tokens(place).shape
        alignments = self._alignments(place, min(draws, RANGE_DRAWS), generator)
        for head, found in enumerate(alignments):
            if found.cosine is None:
                yield self.row(None, reason=found.reason, side=None, head=head)
                continue
            # The limit of W is the solution of all constraints. Its cosine to the solution of some of them is
            # below 1.
            complete = found.queries == n * T and self._keys(n, T, len(alignments)) == T
            limit = {"predicted": 1.0, "basis": "limit"} if complete else {}
            note = f"{found.constraints} constraints of {found.queries} queries"
            columns = {"head": head, "n": n, "note": note, **limit}
            yield self.row(found.cosine, nulls=(found.null,), **columns)
            yield self.other_row(MARGIN, found.margin, unit="share", side=">=", **columns)

    def _alignments(self, place: Place, draws: int, generator: torch.Generator | None) -> list[Alignment]:
        """Computes the alignment of every head of one module."""
        tokens, foreign = self.tokens(place), self.sums[*place, FOREIGN]
        right, left = self.sums[*place, BILINEAR], self.sums.get((*place, KEY_MAP))
        n, T, d = tokens.shape
        shape = [(right if left is None else left.mT).shape[1], right.shape[2]]
        reason = (
            (f"W is {shape}, tokens have width {d}" if shape != [d, d] else "")
            or (FOREIGN_TOKENS if bool(foreign) else "")
            or ("" if n else "no sequence of tokens is finite")
            or ("" if T > 1 else SINGLE_TOKEN)
        )
        if reason:
            return [_missing(reason)] * len(right)
        # Every module gets a new generator with the same seed. Layers of one width then share their signs,
        # and draws of other metrics do not change them.
        signs = (
            fixed_generator()
            if generator is None
            else torch.Generator().manual_seed(generator.initial_seed())
        )
        flips = SignFlips.draw(tokens, None, draws, signs)
        keys = self._keys(n, T, len(right))
        count = max(1, self._budget(len(right)) // (keys - 1))
        maps = [each for each in (right, left) if each is not None]
        scales = [torch.linalg.vector_norm(each, torch.inf, (-2, -1)).double() for each in maps]
        largest = torch.stack(scales).prod(0).tolist()
        usable = [head for head, size in enumerate(largest) if math.isfinite(size) and size > 0]
        alignments = [_missing(ZERO if size == 0 else "W is not finite") for size in largest]
        if usable:
            subset = torch.Generator().manual_seed(self.seed)
            pairs = torch.randperm(n * T, generator=subset)[:count]
            x, z = tokens[pairs // T], tokens[pairs // T, pairs % T]
            if keys < T:
                chosen = torch.rand(len(pairs), T, generator=subset).argsort(1)[:, :keys].sort(1).values
                x = x[torch.arange(len(pairs))[:, None], chosen]
            forms = _Forms(
                *(each[usable].double() / scale[usable, None, None] for each, scale in zip(maps, scales))
            )
            with one_thread():
                found = _with_null(forms, x.double(), z.double(), flips)
            for head, alignment in zip(usable, found):
                alignments[head] = alignment
        return alignments

    def _budget(self, heads: int) -> int:
        """Returns the largest number of constraints of each head."""
        return max(self.constraints // heads, PER_QUERY * QUERIES)

    def _keys(self, n: int, T: int, heads: int) -> int:
        """Returns the number of tokens among which each query selects: all, or as many as leave constraints
        for :data:`QUERIES` queries, or for all of them if they are fewer.
        """
        return min(T, 1 + max(PER_QUERY, self._budget(heads) // min(QUERIES, n * T)))


IN_NETWORKS = InNetworks(
    metrics=lambda: (AlignmentMetric(),),
    headline=COSINE,
    side=">=",
    meaning="cosine of a head's bilinear form to the max-margin separator of the tokens that it selects; 1: "
    "the same direction",
)

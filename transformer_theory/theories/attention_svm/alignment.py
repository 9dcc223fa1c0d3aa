r"""The order parameter: how close the weights of any attention head are to the max-margin direction of the tokens they themselves select.

If a head with bilinear form W (score of token x for query z: :math:`x^\top W z`) was trained by descent for long enough, the theory says
that its direction is that of the max-margin solution of its own selection. The cosine between the two has a null that is not zero: the
selection of *any* W is feasible (W itself separates it), and the max-margin direction of tokens that W selects is positively correlated
with W. So the cosine is reported beside the same number for :math:`Q W Q^\top`, where :math:`Q = V \operatorname{diag}(\pm 1) V^\top`
flips signs at random along the principal axes V of the tokens (eigenvectors of their second moment C).

This null keeps what a head has without any selection. *Its spectrum, and the angles between left and right singular vectors*: a head with
tied projections (:math:`W = UU^\top`, as in CRATE) selects each token for itself, and reads twice as much at random weights as a head
without that symmetry (.136 against .068 for random W of rank 24, 16 sequences of 17 Gaussian tokens, d = 96); independent turns of the two
sides would take that for alignment. *How much of it lies along which axes*: :math:`W = C^{1/2} G C^{1/2}` with Gaussian G favours the
directions in which tokens vary, as the max-margin solution does. Measured means, cosine and null (d = 48, 17 tokens, 16 queries,
eigenvalues of C from 1 to .01):

==============================================  =======  ===============  ============  ==============================
W                                               cosine   null: any turn   null: flips   both in whitened coordinates
==============================================  =======  ===============  ============  ==============================
Gaussian G                                      .139     .131             .134          .147, .143
:math:`C^{1/2} G C^{1/2}`                       .258     .134             .262          .141, .140
tied, :math:`U = C^{1/2} G'`, rank 12           .321     .164             .326          .171, .167
2,000 steps of descent on 16 inputs             .997     .128             .237          .442, .138
K, Q trained by Adam on a retrieval task        .266     .131             .226          .148, .134
==============================================  =======  ===============  ============  ==============================

A turn of any direction takes learnt covariance for selection; whitening the tokens first hides selection, since descent has its bias in the
coordinates in which it runs (and reads .06 to .12 above its null in untrained networks on images, whose tokens are not Gaussian). In a
vision transformer trained on digits (2 layers of 4 heads, 400 steps, 2 seeds) heads read .026 before training, as every null does, and .216
and .170 after it: .184 and .137 above any turn, .041 and .016 above flips. Most of what such heads gain is covariance.

If the queries are not among the tokens, their side has axes and signs of its own.

Source: the direction is that of :cite:t:`tarzanagh2023transformers`; reading it in trained heads, and the null, are this library's.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...core.errors import Infeasible, NotConverged
from ...core.measurement import Row
from ...core.sources import Source
from ...probes import Observation
from .constraint_set import Constraints, came, check_tensor
from .solvers import FEW, frobenius_max_margin, multipliers_of

QUANTITY = "cosine to the max-margin direction"
MARGIN = "smallest margin, share of the largest possible"
SINGLE = "inputs have a single token, so there is nothing to select"
Flip = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Alignment:
    r"""A head beside its max-margin direction.

    Attributes:
        cosine: of W with the max-margin solution of the tokens W selects; None if there is none.
        null: the same for W with signs flipped along the tokens' axes, mean over the draws that have one; None if none has.
        null_spread: standard deviation over these draws.
        margin: smallest margin of W as a share of the largest possible for a matrix of its norm, in (0, 1].
        constraints: how many were used.
        queries: of how many pairs of an input and a query they are; 0 without a reading.
        reason: why there is no cosine; empty if there is one.
    """

    cosine: float | None
    null: float | None
    null_spread: float
    margin: float | None
    constraints: int
    reason: str = ""
    queries: int = 0


def alignment(
    W: Float[Tensor, "d d_z"],
    tokens: Float[Tensor, "n T d"],
    query: Float[Tensor, "n d_z"] | Float[Tensor, "n q d_z"],
    *,
    generator: torch.Generator,
    constraints: int = 256,
    draws: int = 3,
) -> Alignment:
    """Cosine of W with the max-margin direction of the tokens that W selects, beside its null.

    Args:
        W: bilinear form of a head; score of token x for query z is ``x @ W @ z``.
        tokens: what the head reads, ``[n, T, d]``, float64.
        query: one query an input ``[n, d_z]``, or several ``[n, q, d_z]`` (self-attention: the tokens themselves).
        generator: draws the subset of (input, query) pairs and the null.
        constraints: how many to use at most (the cost grows like their third power); at least one pair is used.
        draws: of signs, for the null.
    Returns:
        The cosine, or the reason why there is none: a single token, W = 0, tied scores, margins too small for float64. Never raises for
        these.
    Raises:
        TypeError: not a tensor.
        ValueError: shapes that do not fit, or values that are not finite.
    """
    for name, value, wanted, ranks in (
        ("W", W, "[d, d_z]", {2}),
        ("tokens", tokens, "[n, T, d]", {3}),
        ("query", query, "[n, d_z]", {2, 3}),
    ):
        check_tensor(value, name, wanted)
        if value.ndim not in ranks:
            raise ValueError(f"{name} must be a tensor {wanted}, got {came(value)}")
    W, tokens, query = W.detach(), tokens.detach(), query.detach()
    queries = query[:, None] if query.ndim == 2 else query
    n, T, d = tokens.shape
    if queries.shape[0] != n or W.shape != (d, queries.shape[-1]):
        raise ValueError(f"W must be [{d}, {queries.shape[-1]}] and query [{n}, ...], got {list(W.shape)} and {list(query.shape)}")
    if not all(bool(torch.isfinite(v).all()) for v in (W, tokens, query)):
        raise ValueError("W, tokens and query must be finite, got NaN or infinite values")
    W, tokens, queries = W.double(), tokens.double(), queries.double()
    if T < 2:
        return Alignment(None, None, 0.0, None, 0, SINGLE)
    pairs = torch.randperm(n * queries.shape[1], generator=generator)[: max(1, constraints // (T - 1))]
    x, z = tokens[pairs // queries.shape[1]], queries.reshape(-1, queries.shape[-1])[pairs]
    left = _axes(tokens)
    among = d == z.shape[-1] and bool((x == z[:, None]).all(-1).any(-1).all())
    right = left if among else _axes(queries)
    flips = [_flips(left, None if among else right, generator) for _ in range(draws)]
    return _beside_null(W, x, z, flips)


def _beside_null(W: Tensor, x: Tensor, z: Tensor, flips: Sequence[tuple[Flip, Flip]]) -> Alignment:
    """The reading of finite float64 tokens [m, T, d], T > 1, with a query each."""
    if not bool(W.any()):
        return Alignment(None, None, 0.0, None, 0, "W is zero, so it selects nothing")
    W = W / W.abs().amax()
    W = W / W.norm()
    value, margin, count, reason = _to_own_selection(_scores(x, z @ W.mT), x, z)
    if value is None:
        return Alignment(None, None, 0.0, None, count, reason)
    nulls = [_to_own_selection(_scores(x, left(right(z) @ W.mT)), x, z)[0] for left, right in flips]
    known = torch.tensor([v for v in nulls if v is not None], dtype=torch.float64)
    if not len(known):
        return Alignment(value, None, 0.0, margin, count, queries=len(x))
    return Alignment(value, float(known.mean()), float(known.std(correction=0)), margin, count, queries=len(x))


def _scores(x: Tensor, asked: Tensor) -> Tensor:
    """x^T (W z) of every token, [m, T]. For Q W Q it is enough to turn the few queries, before and after W."""
    return (x @ asked[..., None]).squeeze(-1)


def _axes(vectors: Tensor) -> Tensor:
    """Eigenvectors of the second moment, as columns."""
    rows = vectors.reshape(-1, vectors.shape[-1])
    rows = rows / rows.abs().amax().clamp(min=1e-300)
    return torch.linalg.eigh(rows.mT @ rows)[1]


def _flips(left: Tensor, right: Tensor | None, generator: torch.Generator) -> tuple[Flip, Flip]:
    """Reflections that give each axis of tokens and of queries a random sign; the same one for both sides if there is no right."""

    def drawn(axes: Tensor) -> Flip:
        signs = torch.randint(2, axes.shape[1:], generator=generator).double() * 2 - 1
        return lambda rows: ((rows @ axes) * signs) @ axes.mT

    flip = drawn(left)
    return flip, flip if right is None else drawn(right)


def _to_own_selection(scores: Tensor, x: Tensor, z: Tensor) -> tuple[float | None, float | None, int, str]:
    """(cosine, share of the largest margin, number of constraints, reason) of the W of norm one with these scores.

    W itself is not needed: its inner product with the solution is that of its margins with the multipliers.
    """
    difference = x[torch.arange(len(x)), scores.argmax(-1)][:, None] - x
    i, t = (difference != 0).any(-1).nonzero(as_tuple=True)  # tokens equal to the selected one count as one with it
    if not len(i):
        return None, None, 0, "all tokens of an input are equal, so there is nothing to select"
    d = difference[i, t]
    try:
        multipliers = multipliers_of((d @ d.T) * (z @ z.T)[i[:, None], i]) if len(i) <= FEW else None
        if multipliers is None:
            solution = frobenius_max_margin(Constraints(d, z[i], input=i, token=t), tol=1e-9)
            multipliers, norm = solution.dual, solution.norm
        else:
            norm = float(multipliers.sum()) ** 0.5
    except Infeasible:
        return None, None, len(i), "infeasible: W scores two different tokens the same"
    except NotConverged:
        return None, None, len(i), "nearly tied scores: the max-margin direction cannot be resolved in float64"
    margins = scores.amax(-1)[i] - scores[i, t]
    smallest = float(margins.min())
    if smallest <= 0:
        return None, None, len(i), "tied: W scores two different tokens the same"
    return min(1.0, float(margins @ multipliers) / norm), smallest * norm, len(i), ""


@dataclass
class AlignmentReducer:
    """:func:`alignment` of every layer and head that offers its bilinear form, as rows of the timeline.

    Keeps up to ``inputs`` sequences of each attention module, of several batches or processes the first, and its latest W (weights do not
    change during a reading). Queries are the tokens themselves, from a random subset of positions; selections are those of W, without the
    biases and masks that the network may add. Heads without a reading (attention to other tokens than the module's own, values that are
    not finite) get a row that says why.

    Attributes:
        constraints: of a module, divided equally among its heads; at least one query a head. The null uses as many.
        draws: of signs for the null, the same for all heads of a module.
        inputs: sequences kept of a module.
        seed: of the subset and of the null.
    """

    constraints: int = 256
    draws: int = 2
    inputs: int = 128
    seed: int = 0
    _kept: dict[tuple[int, int], tuple[Tensor, Tensor, str]] = field(default_factory=dict, repr=False)

    def update(self, seen: Observation, labels: Int[Tensor, " batch"] | None) -> None:
        """Keeps tokens and W of an attention module that has a bilinear form; ignores everything else."""
        if seen.kind == "attention" and seen.bilinear is not None:
            new = seen.tokens[: self.inputs].detach()
            finite = torch.isfinite(new).flatten(1).all(1)
            new = (new if bool(finite.all()) else new[finite]).to("cpu", torch.float64)
            self._add((seen.layer, seen.first_head), new, seen.bilinear.detach().to("cpu", torch.float64), _obstacle(seen))

    def compute(self) -> list[Row]:
        """Two rows a layer and head: the cosine beside its null, and the smallest margin as a share of the largest possible."""
        rows = []
        for (layer, first), (tokens, heads, obstacle) in sorted(self._kept.items(), key=lambda item: item[0]):
            for head, read in enumerate(self._read(layer, first, tokens, heads, obstacle), start=first):
                where = {"layer": layer, "head": head, "source": str(Source("tarzanagh2023transformers"))}
                if read.cosine is None:
                    rows.append(
                        Row(theory="attention_svm", quantity=QUANTITY, value=None, verdict=f"not applicable: {read.reason}", **where)
                    )
                    continue
                null = {} if read.null is None else {"null": read.null}
                of = f"{read.constraints} constraints; {read.queries} queries in {len(tokens)} sequences"
                note = f"{of}; null: signs flipped along the tokens' axes; {self.draws} draws, spread {read.null_spread:.3f}"
                rows.append(Row(theory="attention_svm", quantity=QUANTITY, value=read.cosine, predicted=1.0, note=note, **null, **where))
                rows.append(Row(theory="attention_svm", quantity=MARGIN, value=read.margin, predicted=1.0, note=of, **where))
        return rows

    def _read(self, layer: int, first: int, tokens: Tensor, heads: Tensor, obstacle: str) -> list[Alignment]:
        """The readings of the heads of a module."""
        n, T = tokens.shape[:2]
        reason = obstacle or ("" if n else "no sequence of tokens is finite") or ("" if T > 1 else SINGLE)
        if reason:
            return [Alignment(None, None, 0.0, None, 0, reason)] * len(heads)
        axes, generator = _axes(tokens), torch.Generator().manual_seed(self.seed)
        flips = [_flips(axes, None, generator) for _ in range(self.draws)]
        asked, readings = max(1, self.constraints // len(heads) // (T - 1)), []
        for head, W in enumerate(heads, start=first):
            if not bool(torch.isfinite(W).all()):
                readings.append(Alignment(None, None, 0.0, None, 0, "W is not finite"))
                continue
            pairs = torch.randperm(n * T, generator=torch.Generator().manual_seed(self.seed + 1000 * layer + head))[:asked]
            readings.append(_beside_null(W, tokens[pairs // T], tokens[pairs // T, pairs % T], flips))
        return readings

    def reset(self) -> None:
        """Forgets what was seen."""
        self._kept.clear()

    def merge(self, other: "AlignmentReducer") -> None:
        """Adds the sequences another reducer has kept, up to ``inputs`` a module."""
        for place, (tokens, W, obstacle) in other._kept.items():
            self._add(place, tokens, W, obstacle)

    def _add(self, place: tuple[int, int], tokens: Tensor, W: Tensor, obstacle: str) -> None:
        before = self._kept[place][0] if place in self._kept else None
        if before is not None and before.shape[1:] == tokens.shape[1:]:
            tokens = torch.cat([before, tokens])[: self.inputs]
        elif before is not None and len(before):
            tokens = before  # sequences of another length: those that came first stay
        self._kept[place] = (tokens, W, obstacle)


def _obstacle(seen: Observation) -> str:
    """Why W does not act between the module's own tokens, empty if it does.

    Biases of the projections, and what is the same for all keys, drop out of scores that are centred over queries and over keys.
    """
    assert seen.bilinear is not None
    W, (T, d) = seen.bilinear.double(), seen.tokens.shape[1:]
    if W.shape[1:] != (d, d):
        return f"W is {list(W.shape[1:])}, tokens have width {d}"
    if seen.query is None or seen.key is None or len(seen.key) != len(seen.tokens):
        return ""
    foreign = "attention to other tokens than the module's own, which the probe does not see"
    if seen.query.shape[2] != T or seen.key.shape[2] < T:
        return foreign
    some = torch.isfinite(seen.tokens[:8]).flatten(1).all(1).nonzero()[:3, 0]
    x = seen.tokens[some, None].double()
    found, predicted = seen.query[some].double() @ seen.key[some, :, :T].double().mT, (x @ W.mT) @ x.mT
    found, predicted = (
        s - s.mean(-1, keepdim=True) - s.mean(-2, keepdim=True) + s.mean((-1, -2), keepdim=True) for s in (found, predicted)
    )
    return foreign if float((found * predicted).sum()) < 0.9 * float(found.norm() * predicted.norm()) else ""

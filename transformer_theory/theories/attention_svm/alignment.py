r"""The order parameter: how close the weights of any attention head are to the max-margin direction of the tokens they themselves select.

If a head with bilinear form W (score of token x for query z: :math:`x^\top W z`) was trained by descent for long enough, the theory says
that its direction is that of the max-margin solution of its own selection. The cosine between the two has a null that is not zero: the
selection of *any* W is feasible (W itself separates it), and the max-margin direction of tokens that W selects is positively correlated
with W. So the cosine is reported beside the same number for W turned at random, :math:`Q W Q^\top` with a random orthogonal Q. This keeps
the spectrum and the angles between left and right singular vectors: a head with tied projections (:math:`W = UU^\top`, as in CRATE) selects
each token for itself, and reads twice as much at random weights as a head without that symmetry (.136 against .068 for random W of rank 24,
16 sequences of 17 Gaussian tokens, d = 96), which independent rotations of the two sides would take for alignment.

What this null does not know is the tokens' covariance C: an untrained :math:`W = C^{1/2} G C^{1/2}` with Gaussian G reads about twice its
null (.26 against .13 for eigenvalues of C from 1 to .01, d = 48, 17 tokens), since both it and the max-margin solution favour directions in
which tokens vary. An excess of that size may be learnt covariance rather than selection; the reading before training tells them apart.

Source: the direction is that of :cite:t:`tarzanagh2023transformers`; reading it in trained heads, and the null, are this library's.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...citations import Source
from ...errors import Infeasible, NotConverged
from ...linalg import orthonormalise
from ...probes import Observation
from ...rows import Row
from .constraint_set import Constraints
from .solvers import FEW, frobenius_max_margin, multipliers_of

QUANTITY = "cosine to the max-margin direction"
MARGIN = "smallest margin, share of the largest possible"
SINGLE = "inputs have a single token, so there is nothing to select"


@dataclass(frozen=True)
class Alignment:
    r"""A head beside its max-margin direction.

    Attributes:
        cosine: of W with the max-margin solution of the tokens W selects; None if there is none.
        null: the same for W turned at random, mean over the draws that have one; None if none has.
        null_spread: standard deviation over these draws.
        margin: smallest margin of W as a share of the largest possible for a matrix of its norm, in (0, 1].
        constraints: how many were used.
        reason: why there is no cosine; empty if there is one.
    """

    cosine: float | None
    null: float | None
    null_spread: float
    margin: float | None
    constraints: int
    reason: str = ""


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
        draws: random rotations for the null.
    Returns:
        The cosine, or the reason why there is none: a single token, W = 0, tied scores, margins too small for float64. Never raises for
        these.
    Raises:
        ValueError: shapes that do not fit, or values that are not finite.
    """
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
    return _beside_null(W, x, z, [_turn(W.shape[0], W.shape[1], generator) for _ in range(draws)])


def _beside_null(W: Tensor, x: Tensor, z: Tensor, turns: Sequence[tuple[Tensor, Tensor]]) -> Alignment:
    """The reading of finite float64 tokens [m, T, d], T > 1, with a query each."""
    if not bool(W.any()):
        return Alignment(None, None, 0.0, None, 0, "W is zero, so it selects nothing")
    W = W / W.abs().amax()
    W = W / W.norm()
    value, margin, count, reason = _to_own_selection(_scores(W, x, z), x, z)
    if value is None:
        return Alignment(None, None, 0.0, None, count, reason)
    nulls = [_to_own_selection(_scores(W, x @ left, z @ right), x, z)[0] for left, right in turns]
    known = torch.tensor([v for v in nulls if v is not None], dtype=torch.float64)
    if not len(known):
        return Alignment(value, None, 0.0, margin, count)
    return Alignment(value, float(known.mean()), float(known.std(correction=0)), margin, count)


def _scores(W: Tensor, x: Tensor, z: Tensor) -> Tensor:
    """x^T W z of every token, [m, T]. Turning W as Q W Q^T is turning the tokens by Q^T, which costs less."""
    return (x @ (z @ W.mT)[..., None]).squeeze(-1)


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


def _turn(d: int, d_z: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """A random orthogonal Q (uniform: the QR factor of a Gaussian matrix) for both sides; if they have different widths, one for each."""
    left = orthonormalise(torch.randn(d, d, generator=generator, dtype=torch.float64))
    return left, left if d == d_z else orthonormalise(torch.randn(d_z, d_z, generator=generator, dtype=torch.float64))


@dataclass
class AlignmentReducer:
    """:func:`alignment` of every layer and head that offers its bilinear form, as rows of the timeline.

    Keeps up to ``inputs`` sequences of each attention module and its latest W (weights do not change during a reading). Queries are the
    tokens themselves, from a random subset of positions; selections are those of W, without the biases and masks that the network may add.
    Heads without a reading (attention to other tokens than the module's own, values that are not finite) get a row that says why.

    Attributes:
        constraints: of a module, divided equally among its heads; at least one query a head. The null uses as many.
        draws: random rotations for the null, the same for all heads.
        inputs: sequences kept of a module.
        seed: of the subset and of the null.
    """

    constraints: int = 256
    draws: int = 2
    inputs: int = 128
    seed: int = 0
    _kept: dict[tuple[int, int], tuple[Tensor, Tensor, str]] = field(default_factory=dict, repr=False)
    _turns: dict[int, list[tuple[Tensor, Tensor]]] = field(default_factory=dict, repr=False)

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
            for head, W in enumerate(heads, start=first):
                read = self._read(W, tokens, 1000 * layer + head, self.constraints // len(heads), obstacle)
                where = {"layer": layer, "head": head, "source": str(Source("tarzanagh2023transformers"))}
                if read.cosine is None:
                    rows.append(
                        Row(theory="attention_svm", quantity=QUANTITY, value=None, verdict=f"not applicable: {read.reason}", **where)
                    )
                    continue
                note = f"{read.constraints} constraints; null: W turned at random, {self.draws} draws, spread {read.null_spread:.3f}"
                null = {} if read.null is None else {"null": read.null}
                rows.append(Row(theory="attention_svm", quantity=QUANTITY, value=read.cosine, predicted=1.0, note=note, **null, **where))
                rows.append(Row(theory="attention_svm", quantity=MARGIN, value=read.margin, predicted=1.0, **where))
        return rows

    def _read(self, W: Tensor, tokens: Tensor, place: int, constraints: int, obstacle: str) -> Alignment:
        n, T, d = tokens.shape
        reason = obstacle or ("" if n and bool(torch.isfinite(W).all()) else "W is not finite, or no sequence of tokens is")
        reason = reason or ("" if T > 1 else SINGLE)
        if reason:
            return Alignment(None, None, 0.0, None, 0, reason)
        pairs = torch.randperm(n * T, generator=torch.Generator().manual_seed(self.seed + place))[: max(1, constraints // (T - 1))]
        if d not in self._turns:
            generator = torch.Generator().manual_seed(self.seed)
            self._turns[d] = [_turn(d, d, generator) for _ in range(self.draws)]
        return _beside_null(W, tokens[pairs // T], tokens[pairs // T, pairs % T], self._turns[d])

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

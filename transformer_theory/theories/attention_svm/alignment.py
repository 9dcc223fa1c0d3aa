r"""The order parameter: how close the weights of any attention head are to the max-margin direction of the tokens they themselves select.

If a head with bilinear form W (score of token x for query z: :math:`x^\top W z`) was trained by descent for long enough, the theory says
that its direction is that of the max-margin solution of its own selection. The cosine between the two has a null that is not zero: the
selection of *any* W is feasible (W itself separates it), and the max-margin direction of tokens that W selects is positively correlated
with W. So the cosine is reported beside the same number for W turned at random, :math:`Q W Q^\top` with a random orthogonal Q. This keeps
the spectrum and the angles between left and right singular vectors: a head with tied projections (:math:`W = UU^\top`, as in CRATE) selects
each token for itself, and reads twice as much at random weights as a head without that symmetry (.136 against .068 for random W of rank 24,
16 sequences of 17 Gaussian tokens, d = 96), which independent rotations of the two sides would take for alignment.

Source: the direction is that of :cite:t:`tarzanagh2023transformers`; reading it in trained heads, and the null, are this library's.
"""

from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...citations import Source
from ...errors import Infeasible, NotConverged
from ...linalg import cosine
from ...probes import Observation
from ...rows import Row
from .problem import distinct_constraints
from .solvers import frobenius_max_margin

QUANTITY = "cosine to the max-margin direction"
MARGIN = "smallest margin, share of the largest possible"


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
        return Alignment(None, None, 0.0, None, 0, "inputs have a single token, so there is nothing to select")
    pairs = torch.randperm(n * queries.shape[1], generator=generator)[: max(1, constraints // (T - 1))]
    x, z = tokens[pairs // queries.shape[1]], queries.reshape(-1, queries.shape[-1])[pairs]
    value, margin, count, reason = _to_own_selection(W, x, z)
    if value is None:
        return Alignment(None, None, 0.0, None, count, reason)
    nulls = [_to_own_selection(_turned(W, generator), x, z)[0] for _ in range(draws)]
    known = torch.tensor([v for v in nulls if v is not None], dtype=torch.float64)
    if not len(known):
        return Alignment(value, None, 0.0, margin, count)
    return Alignment(value, float(known.mean()), float(known.std(correction=0)), margin, count)


def _to_own_selection(W: Tensor, x: Tensor, z: Tensor) -> tuple[float | None, float | None, int, str]:
    """(cosine, share of the largest margin, number of constraints, reason)."""
    if not bool(W.any()):
        return None, None, 0, "W is zero, so it selects nothing"
    select = (x @ (z @ W.mT)[..., None]).squeeze(-1).argmax(-1)
    pairs = distinct_constraints(x, z, select)
    if not len(pairs):
        return None, None, 0, "all tokens of an input are equal, so there is nothing to select"
    try:
        solution = frobenius_max_margin(pairs, tol=1e-9)
    except Infeasible:
        return None, None, len(pairs), "infeasible: W scores two different tokens the same"
    except NotConverged:
        return None, None, len(pairs), "nearly tied scores: the max-margin direction cannot be resolved in float64"
    margin = float(pairs.margins(W).min() / W.norm()) * solution.norm
    if margin <= 0:
        return None, None, len(pairs), "tied: W scores two different tokens the same"
    return float(cosine(W, solution.W)), margin, len(pairs), ""


def _turned(W: Tensor, generator: torch.Generator) -> Tensor:
    """Q W Q^T with a random orthogonal Q; if the two sides have different widths, each is turned by its own."""
    left, right = (_orthogonal(size, generator) for size in W.shape)
    return left @ W @ (left if W.shape[0] == W.shape[1] else right).mT


def _orthogonal(size: int, generator: torch.Generator) -> Tensor:
    """Uniform on the orthogonal group: the signs of R's diagonal are taken out of the QR factorisation of a Gaussian matrix."""
    Q, R = torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=torch.float64))
    return Q * R.diagonal().sign()


@dataclass
class AlignmentReducer:
    """:func:`alignment` of every layer and head that offers its bilinear form, as rows of the timeline.

    Keeps up to ``inputs`` sequences a layer and the latest W (weights do not change during a reading). Queries are the tokens themselves,
    from a random subset of positions; selections are those of W, without the biases and masks that the network may add.

    Attributes:
        constraints: see :func:`alignment`.
        draws: random rotations for the null.
        inputs: sequences kept a layer.
        seed: of the subset and of the null.
    """

    constraints: int = 256
    draws: int = 2
    inputs: int = 128
    seed: int = 0
    _kept: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict, repr=False)

    def update(self, seen: Observation, labels: Int[Tensor, " batch"] | None) -> None:
        """Keeps tokens and W of an attention module that has a bilinear form; ignores everything else."""
        if seen.kind != "attention" or seen.bilinear is None:
            return
        before = self._kept[seen.layer][0] if seen.layer in self._kept else None
        room = self.inputs - (0 if before is None else len(before))
        new = seen.tokens[: max(room, 0)].detach().to("cpu", torch.float64)
        tokens = new if before is None else torch.cat([before, new])
        self._kept[seen.layer] = (tokens, seen.bilinear.detach().to("cpu", torch.float64))

    def compute(self) -> list[Row]:
        """Two rows a layer and head: the cosine beside its null, and the smallest margin as a share of the largest possible."""
        rows = []
        for layer, (tokens, heads) in sorted(self._kept.items()):
            for head, W in enumerate(heads):
                generator = torch.Generator().manual_seed(self.seed + 1000 * layer + head)
                read = alignment(W, tokens, tokens, generator=generator, constraints=self.constraints, draws=self.draws)
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

    def reset(self) -> None:
        """Forgets what was seen."""
        self._kept.clear()

    def merge(self, other: "AlignmentReducer") -> None:
        """Adds the sequences another reducer has kept, up to ``inputs`` a layer."""
        for layer, (tokens, W) in other._kept.items():
            if layer in self._kept:
                self._kept[layer] = (torch.cat([self._kept[layer][0], tokens])[: self.inputs], W)
            else:
                self._kept[layer] = (tokens, W)

r"""The cosine between the weights of an attention head and the max-margin direction of the tokens that they select.

A head with bilinear form W scores token x for query z by :math:`x^\top W z`. After long descent W should have the direction of the
max-margin solution of its selection :cite:p:`tarzanagh2023transformers`. The cosine between the two is positive for every W: W separates
the tokens that it selects, so it correlates with their max-margin direction.

The null distribution is the same cosine for :math:`Q W Q^\top`, where :math:`Q = V \operatorname{diag}(\pm 1) V^\top` flips signs at random
along the principal axes V of the tokens (eigenvectors of their second moment). This preserves properties of W that do not depend on a
selection: its spectrum, the angles between its left and right singular vectors, and its size along each axis. Independent rotations on the
two sides would mistake tied projections for alignment, and rotations in arbitrary directions would mistake learnt covariance for selection.
Queries that are not among the tokens have separate axes and signs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ...core.errors import Infeasible, NotConverged
from ...core.measurement import Measurement, Null
from ...core.metric import ActivationKind, Activations, Metric, Place
from ...core.parallel import one_thread, single_threaded
from ...core.sources import Source
from ...core.theory import InNetworks
from ...core.validation import converted, finite, integers
from ...metrics.coding.rates import coordinates
from .constraint_set import Constraints
from .solvers import DIRECT_SIZE, dual_multipliers, frobenius_max_margin

COSINE = "cosine to the max-margin direction"
MARGIN = "smallest margin, share of the largest possible"
NULL_KIND = "sign flips along the tokens' axes"
SINGLE_TOKEN = "inputs have a single token, so there is nothing to select"
FOREIGN_TOKENS = "attention to tokens other than the module's own, which the probe does not see"
SOURCE = Source("tarzanagh2023transformers")
SOLVER_TOL = 1e-9  # largest accepted KKT residual of a max-margin solution; it suffices for cosines of three digits
SMALLEST_MOMENT, LARGEST_MOMENT = 1e-20, 1e20  # traces of second moments that are far from underflow and overflow in float32
OWN_TOKENS_SAMPLE = 16  # number of tokens per sequence whose scores are compared
OWN_TOKENS_COSINE = 0.9  # smallest cosine between stored and recomputed scores of a head that attends to its own tokens
Flip = Callable[[Tensor], Tensor]  # rows [k, d] -> reflected rows [k, d]


@dataclass(frozen=True)
class Alignment:
    r"""A head compared with its max-margin direction.

    Attributes:
        cosine: cosine of W to the max-margin solution of the tokens that W selects; None if there is no solution.
        null: null distribution of the cosine, from W with signs flipped along the tokens' axes; None if no draw has a solution.
        margin: smallest margin of W, relative to the largest possible smallest margin of a matrix of the same norm, in (0, 1].
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
    """Computes the cosine of W to the max-margin direction of the tokens that W selects, with its null distribution.

    Args:
        W: bilinear form of a head, ``[d, d_z]``; the score of token x for query z is ``x @ W @ z``.
        tokens: input of the head, ``[n, T, d]``.
        query: one query per input ``[n, d_z]``, or several ``[n, q, d_z]`` (self-attention: the tokens themselves).
        generator: random generator for the subset of (input, query) pairs and for the null draws.
        constraints: largest number of constraints (the cost grows like its third power); at least one pair is used.
        draws: number of null draws.
    Returns:
        The cosine, or the reason why there is none: a single token, W = 0, tied scores, margins too small for float64.
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
        raise ValueError(f"W must be [{d}, {queries.shape[-1]}] and query [{n}, ...], got {list(W.shape)} and {list(query.shape)}")
    finite(W=W, tokens=tokens, query=query)
    if T < 2:
        return _missing(SINGLE_TOKEN)
    # Each (input, query) pair sets T - 1 constraints, so a random subset of the pairs meets the budget.
    pairs = torch.randperm(n * queries.shape[1], generator=generator)[: max(1, constraints // (T - 1))]
    x, z = tokens[pairs // queries.shape[1]], queries.reshape(-1, queries.shape[-1])[pairs]
    left = _principal_axes(tokens)
    queries_are_tokens = d == z.shape[-1] and bool((x == z[:, None]).all(-1).any(-1).all())
    right = left if queries_are_tokens else _principal_axes(queries)
    flips = [_random_flips(left, None if queries_are_tokens else right, generator) for _ in range(draws)]
    return _with_null(W, x, z, flips)


def _with_null(W: Tensor, x: Tensor, z: Tensor, flips: Sequence[tuple[Flip, Flip]]) -> Alignment:
    """Computes the alignment for m inputs of T > 1 tokens [m, T, d] with one query each [m, d_z]: finite values, float64."""
    if not bool(W.any()):
        return _missing("W is zero, so it selects nothing")
    W = W / W.abs().amax()  # the squares in the norm then neither overflow nor underflow
    W = W / W.norm()
    selection = partial(_selection_cosine, x=x.numpy(), z=z.numpy())
    value, margin, count, reason = selection(_scores(x, z @ W.mT))
    if value is None:
        return _missing(reason, count)
    # The flips act on the queries, before and after W. There are few queries, so this costs less than forming the flipped W.
    draws = [selection(_scores(x, left(right(z) @ W.mT)))[0] for left, right in flips]
    null = Null(NULL_KIND, tuple(draw for draw in draws if draw is not None))
    return Alignment(value, null if null.draws else None, margin, count, queries=len(x))


def _scores(x: Tensor, keys: Tensor) -> np.ndarray:
    """Returns the score x^T (W z) of every token, [m, T], from ``keys = W z`` [m, d]."""
    return (x @ keys[..., None]).squeeze(-1).numpy()


def _principal_axes(vectors: Tensor) -> Tensor:
    """Returns the eigenvectors of the second moment of the vectors [..., d], as columns [d, d], computed in their dtype; float64."""
    rows = vectors.reshape(-1, vectors.shape[-1])
    moment = rows.mT @ rows
    if not SMALLEST_MOMENT < float(moment.trace()) < LARGEST_MOMENT:  # squares may overflow or underflow
        rows = rows / rows.abs().amax().clamp(min=torch.finfo(rows.dtype).tiny)
        moment = rows.mT @ rows
    return torch.linalg.eigh(moment)[1].double()


def _random_flips(left: Tensor, right: Tensor | None, generator: torch.Generator) -> tuple[Flip, Flip]:
    """Draws reflections that give each axis of the tokens and of the queries a random sign; a single reflection if ``right`` is None."""

    def draw(axes: Tensor) -> Flip:
        signs = torch.randint(2, axes.shape[1:], generator=generator).double() * 2 - 1
        return lambda rows: ((rows @ axes) * signs) @ axes.mT

    flip = draw(left)
    return flip, flip if right is None else draw(right)


def _selection_cosine(scores: np.ndarray, x: np.ndarray, z: np.ndarray) -> tuple[float | None, float | None, int, str]:
    """Returns cosine, relative margin, number of constraints and reason for the W of norm one that gives these scores.

    W itself is not needed: <W, W_mm> is the sum of margins times multipliers of the solution, over the constraints.
    """
    # The matrices are small, and calls of numpy cost less than calls of torch.
    difference = x[np.arange(len(x)), scores.argmax(-1)][:, None] - x
    i, t = np.nonzero(np.any(difference, -1))  # drops the tokens equal to the selected one
    if not len(i):
        return None, None, 0, "all tokens of each input are equal, so there is nothing to select"
    d = difference[i, t]
    try:
        # For few constraints the Gram matrix alone gives the multipliers. At the optimum |W_mm|^2 is their sum.
        gram = torch.from_numpy((d @ d.T) * (z @ z.T)[i[:, None], i]) if len(i) <= DIRECT_SIZE else None
        multipliers = None if gram is None else dual_multipliers(gram)
        if multipliers is None:
            difference, query, inputs, tokens = map(torch.from_numpy, (d, z[i], i, t))
            solution = frobenius_max_margin(Constraints(difference, query, input=inputs, token=tokens), tol=SOLVER_TOL)
            multipliers, norm = solution.dual, solution.norm
        else:
            norm = float(multipliers.sum()) ** 0.5
    except Infeasible:
        return None, None, len(i), "infeasible: W scores two different tokens the same"
    except NotConverged:
        return None, None, len(i), "nearly tied scores: the max-margin direction cannot be resolved in float64"
    margins = scores.max(-1)[i] - scores[i, t]
    smallest = float(margins.min())
    if smallest <= 0:
        return None, None, len(i), "tied: W scores two different tokens the same"
    return min(1.0, float(margins @ multipliers.numpy()) / norm), smallest * norm, len(i), ""


class AlignmentMetric(Metric):
    """The :func:`alignment` of every layer and head whose bilinear form is known.

    The metric stores the first ``max_samples`` sequences of each attention module, and the latest W. The queries are the tokens at a random
    subset of positions. W alone determines the selections; biases and masks of the network are ignored. A head without a value (attention
    to tokens other than the module's own, values that are not finite) gets a measurement with the reason.

    Args:
        constraints: largest number of constraints per module, divided equally among its heads; at least one query per head is used.
        draws: default number of null draws in :meth:`compute`; all heads of a module share their sign flips.
        max_samples: largest number of sequences stored per module.
        seed: seed of the subset, and of the null draws if :meth:`compute` gets no generator.
    """

    kinds: ClassVar[tuple[ActivationKind, ...]] = ("attention",)

    def __init__(self, *, constraints: int = 256, draws: int = 2, max_samples: int = 128, seed: int = 0):
        self.constraints, self.draws, self.max_samples, self.seed = constraints, draws, max_samples, seed
        self.tokens: dict[Place, Float[Tensor, "n T d"]] = {}
        self.bilinear: dict[Place, Float[Tensor, "heads d d"]] = {}
        self.foreign: dict[Place, Bool[Tensor, ""]] = {}
        super().__init__()

    def update(self, activations: Activations) -> None:
        """Stores tokens and W of an attention module whose bilinear form is known; ignores all other activations."""
        if activations.kind != "attention" or activations.bilinear is None:
            return
        tokens = activations.tokens[: self.max_samples].detach()
        finite_rows = torch.isfinite(tokens.sum((1, 2), dtype=torch.float64))  # cheaper than a test of every entry
        tokens = (tokens if bool(finite_rows.all()) else tokens[finite_rows]).to("cpu", torch.promote_types(tokens.dtype, torch.float32))
        place = (activations.layer, activations.first_head)
        W = activations.bilinear.detach().clone()  # a module may return its own parameters, which training changes in place
        self._store(place, tokens, W.cpu(), torch.tensor(_attends_elsewhere(activations, W)))

    def compute(self, *, draws: int = 0, generator: torch.Generator | None = None) -> list[Measurement]:
        """Returns, per layer and head, the cosine with its null distribution, and the smallest margin relative to the largest possible."""
        measurements = []
        for layer, first in sorted(self.tokens):
            where = {"theory": "attention_svm", "kind": "in network", "source": SOURCE, "layer": layer, "scope": "training"}
            for head, result in enumerate(self._alignments((layer, first), draws or self.draws, generator), start=first):
                if result.cosine is None:
                    measurements.append(Measurement(quantity=COSINE, value=None, reason=result.reason, head=head, **where))
                    continue
                note = f"{result.constraints} constraints of {result.queries} queries"
                columns = {**where, "head": head, "n": len(self.tokens[layer, first]), "predicted": 1.0, "basis": "limit", "side": ">="}
                measurements.append(Measurement(quantity=COSINE, value=result.cosine, null=result.null, note=note, **columns))
                measurements.append(Measurement(quantity=MARGIN, value=result.margin, unit="share", note=note, **columns))
        return measurements

    def _alignments(self, place: Place, draws: int, generator: torch.Generator | None) -> list[Alignment]:
        """Computes the alignment of every head of one module."""
        tokens, heads, (layer, first) = self.tokens[place], self.bilinear[place], place
        n, T, d = tokens.shape
        reason = (
            (f"W is {list(heads.shape[1:])}, tokens have width {d}" if heads.shape[1:] != (d, d) else "")
            or (FOREIGN_TOKENS if bool(self.foreign[place]) else "")
            or ("" if n else "no sequence of tokens is finite")
            or ("" if T > 1 else SINGLE_TOKEN)
        )
        if reason:
            return [_missing(reason)] * len(heads)
        # Every module gets a new generator with the same seed. Layers of one width then share their signs, and draws of other metrics do
        # not change them.
        signs = torch.Generator().manual_seed(self.seed if generator is None else generator.initial_seed())
        axes = _principal_axes(tokens)
        flips = [_random_flips(axes, None, signs) for _ in range(draws)]
        count, alignments = max(1, self.constraints // len(heads) // (T - 1)), []
        with one_thread():
            for head, W in enumerate(heads, start=first):
                if not bool(torch.isfinite(W).all()):
                    alignments.append(_missing("W is not finite"))
                    continue
                pairs = torch.randperm(n * T, generator=torch.Generator().manual_seed(self.seed + 1000 * layer + head))[:count]
                x, z = tokens[pairs // T].double(), tokens[pairs // T, pairs % T].double()
                alignments.append(_with_null(W.double(), x, z, flips))
        return alignments

    def reset(self) -> None:
        """Discards all stored sequences and weights."""
        super().reset()
        self.tokens, self.bilinear, self.foreign = {}, {}, {}

    def merge(self, other: "AlignmentMetric") -> None:
        """Adds the sequences of another metric, up to ``max_samples`` per module."""
        for place, tokens in other.tokens.items():
            self._store(place, tokens, other.bilinear[place], other.foreign[place])

    def state_dict(self) -> dict[str, Tensor]:
        """Returns tokens, W and the flag of foreign tokens under names such as ``"3.0.tokens"`` (layer 3, first head 0)."""
        parts = {"tokens": self.tokens, "bilinear": self.bilinear, "foreign": self.foreign}
        return {".".join((*map(str, place), name)): part for name, stored in parts.items() for place, part in stored.items()}

    def load_state_dict(self, state) -> None:
        """Restores the state that :meth:`state_dict` returned."""
        self.reset()
        for key, part in state.items():
            *place, name = key.split(".")
            {"tokens": self.tokens, "bilinear": self.bilinear, "foreign": self.foreign}[name][tuple(map(int, place))] = part

    def _store(self, place: Place, tokens: Tensor, W: Tensor, foreign: Tensor) -> None:
        """Adds sequences of a module up to ``max_samples``, and replaces its W and flag."""
        stored = self.tokens.get(place)
        if stored is not None and stored.shape[1:] == tokens.shape[1:]:
            tokens = torch.cat([stored, tokens])[: self.max_samples]
        elif stored is not None and len(stored):
            tokens = stored  # sequences of different lengths cannot form one tensor; the earlier ones stay
        self.tokens[place], self.bilinear[place], self.foreign[place] = tokens, W, foreign


def _attends_elsewhere(activations: Activations, W: Float[Tensor, "heads d d"]) -> bool:
    r"""Returns whether the module attends to tokens other than its own, judged by its queries and keys; False if these are not known.

    The stored scores of queries and keys are compared with :math:`x^\top W x`. Both are centred over queries and over keys, so that
    biases of the projections and terms common to all keys cancel.
    """
    T, d = activations.tokens.shape[1:]
    query, key = activations.query, activations.key
    if W.shape[1:] != (d, d) or query is None or key is None or len(key) != len(activations.tokens):
        return False
    if query.shape[2] != T or key.shape[2] < T:
        return True
    # A few tokens of three finite sequences suffice to distinguish the two cases.
    sample = torch.isfinite(activations.tokens[:8]).flatten(1).all(1).nonzero()[:3]
    positions = torch.linspace(0, T - 1, min(T, OWN_TOKENS_SAMPLE), device=sample.device).long()
    x = activations.tokens[sample, positions].double()
    queries, keys = (vectors.movedim(1, 2)[sample, positions].movedim(2, 1).double() for vectors in (query, key))
    actual, expected = queries @ keys.mT, coordinates(x, W.double().mT) @ x[:, None].mT
    actual, expected = (
        s - s.mean(-1, keepdim=True) - s.mean(-2, keepdim=True) + s.mean((-1, -2), keepdim=True) for s in (actual, expected)
    )
    return float((actual * expected).sum()) < OWN_TOKENS_COSINE * float(actual.norm() * expected.norm())


IN_NETWORKS = InNetworks(metrics=lambda: (AlignmentMetric(),), headline=COSINE, side=">=")

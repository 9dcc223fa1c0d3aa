r"""Token selection: which token each input should attend to, and the linear constraints that say so.

Input i has T tokens :math:`x_{i,1}, \dots, x_{i,T}` and a query :math:`z_i`. One attention head scores token t by
:math:`x_{i,t}^\top W z_i`, takes the softmax over t and averages the tokens; a linear head v turns the average into a prediction

.. math:: f_i(W) = v^\top X_i^\top \operatorname{softmax}(X_i W z_i), \qquad L(W) = \tfrac1n \sum_i \log(1 + e^{-Y_i f_i(W)}).

The *token score* :math:`\gamma_{i,t} = Y_i v^\top x_{i,t}` says how much token t helps; the *optimal* token of an input has the largest.
A selection :math:`a = (a_1, \dots, a_n)` is *feasible* if some W scores every selected token above the others of its input,

.. math:: (x_{i,a_i} - x_{i,t})^\top W z_i \ge 1 \qquad \text{for all } i \text{ and } t \ne a_i,

which is linear in W: a list of pairs (difference, query), :class:`Constraints`.

Source: :cite:t:`tarzanagh2023transformers`, :cite:t:`tarzanagh2023maxmargin`. The papers write tokens as rows of X, as here.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True)
class Constraints:
    r"""m linear constraints :math:`d_c^\top W z_c \ge 1` on a matrix W ``[d_x, d_z]``.

    Attributes:
        difference: :math:`d_c = x_{i,a_i} - x_{i,t}`, selected minus other token, ``[m, d_x]``, float64.
        query: :math:`z_c = z_i`, ``[m, d_z]``, float64.
        input: i of each constraint, for messages, ``[m]``; 0, 1, ... if not given.
        token: t of each constraint, for messages, ``[m]``; 0 if not given.

    Raises:
        ValueError: wrong rank, length or type, or a value that is not finite.
    """

    difference: Float[Tensor, "m d_x"]
    query: Float[Tensor, "m d_z"]
    input: Int[Tensor, " m"] | None = None
    token: Int[Tensor, " m"] | None = None

    def __post_init__(self):
        _real(self.difference, "difference", "[m, d_x]", 2)
        _real(self.query, "query", "[m, d_z]", 2)
        m = len(self.difference)
        if len(self.query) != m:
            raise ValueError(f"query must have one row a constraint, {m}, got {len(self.query)}")
        for name, default in (("input", torch.arange(m)), ("token", torch.zeros(m, dtype=torch.long))):
            if getattr(self, name) is None:
                object.__setattr__(self, name, default)
            _whole(getattr(self, name), name, m)

    def __len__(self) -> int:
        return len(self.difference)

    def __getitem__(self, index: Tensor | slice) -> "Constraints":
        """The constraints at ``index``."""
        assert self.input is not None
        assert self.token is not None
        return Constraints(self.difference[index], self.query[index], self.input[index], self.token[index])

    def gram(self) -> Float[Tensor, "m m"]:
        r"""Inner products :math:`\langle d_c z_c^\top, d_e z_e^\top\rangle = (d_c^\top d_e)(z_c^\top z_e)`: all that a rotation leaves
        alone."""
        return (self.difference @ self.difference.T) * (self.query @ self.query.T)

    def margins(self, W: Float[Tensor, "d_x d_z"]) -> Float[Tensor, " m"]:
        r""":math:`d_c^\top W z_c`; the constraints hold where it is at least one."""
        return ((self.difference @ W) * self.query).sum(-1)

    def combine(self, weights: Float[Tensor, " m"]) -> Float[Tensor, "d_x d_z"]:
        r""":math:`\sum_c \lambda_c d_c z_c^\top`."""
        return (self.difference * weights[:, None]).T @ self.query

    def names(self, index: int) -> tuple[int, int]:
        """(input, token) of one constraint."""
        assert self.input is not None
        assert self.token is not None
        return int(self.input[index]), int(self.token[index])


def constraints(tokens: Float[Tensor, "n T d"], query: Float[Tensor, "n d_z"], select: Int[Tensor, " n"]) -> Constraints:
    r"""The constraints :math:`(x_{i,a_i} - x_{i,t})^\top W z_i \ge 1` of a selection, n (T-1) of them.

    A token that equals the selected one gives the contradiction 0 >= 1, so the selection is infeasible: see :func:`distinct_constraints`.

    Args:
        tokens: x, ``[n, T, d]``, float64.
        query: z, ``[n, d_z]``.
        select: position a_i of the selected token of each input, ``[n]``.
    Returns:
        One constraint for each input and each token that is not selected; none at all for T = 1.
    Raises:
        ValueError: no input, a wrong shape or type, a value that is not finite, a position outside 0..T-1.

    Source: problem (Att-SVM) of :cite:t:`tarzanagh2023transformers`.
    """
    _check(tokens, query)
    n, T, _ = tokens.shape
    _positions(select, n, T)
    others = torch.arange(T) != select[:, None]
    picked = tokens[torch.arange(n), select]
    i, t = others.nonzero(as_tuple=True)
    return Constraints(picked[i] - tokens[i, t], query[i], i, t)


def distinct_constraints(tokens: Float[Tensor, "n T d"], query: Float[Tensor, "n d_z"], select: Int[Tensor, " n"]) -> Constraints:
    """:func:`constraints` without those of tokens that equal the selected one.

    Equal tokens get equal attention whatever W is, and averaging them changes nothing, so they count as one token. Real data need this:
    the blank corners of an image are equal.

    Raises:
        ValueError: as :func:`constraints`.
    """
    all_pairs = constraints(tokens, query, select)
    return all_pairs[(all_pairs.difference != 0).any(-1).nonzero().squeeze(-1)]


@dataclass(frozen=True)
class Instance:
    r"""A training problem for one attention head with a fixed linear head, batched over independent trials.

    Attributes:
        tokens: x, ``[*trials, n, T, d]``, float64.
        query: z, ``[*trials, n, d_z]``.
        scores: :math:`\gamma_{i,t} = Y_i v^\top x_{i,t}` (label included), ``[*trials, n, T]``.

    Raises:
        ValueError: shapes that do not fit, or values that are not finite.
    """

    tokens: Float[Tensor, "*trials n T d"]
    query: Float[Tensor, "*trials n d_z"]
    scores: Float[Tensor, "*trials n T"]

    def __post_init__(self):
        _check(self.tokens, self.query)
        _real(self.scores, "scores", "[..., n, T]", self.tokens.ndim - 1)
        if self.scores.shape != self.tokens.shape[:-1]:
            raise ValueError(f"scores must be [..., n, T] = {list(self.tokens.shape[:-1])}, got {list(self.scores.shape)}")

    @property
    def trials(self) -> tuple[int, ...]:
        """Shape of the batch of trials; () for a single one."""
        return tuple(self.tokens.shape[:-3])

    def optimal(self) -> Int[Tensor, "*trials n"]:
        """The token with the largest score of each input; the first of several."""
        return self.scores.argmax(-1)

    def selected(self, W: Float[Tensor, "*trials d d_z"]) -> Int[Tensor, "*trials n"]:
        """The token to which W gives the most attention."""
        return token_logits(self.tokens, self.query, W).argmax(-1)

    def attention(self, W: Float[Tensor, "*trials d d_z"]) -> Float[Tensor, "*trials n T"]:
        """Attention weights, rows sum to one."""
        return token_logits(self.tokens, self.query, W).softmax(-1)

    def __getitem__(self, trial) -> "Instance":
        """One trial (or several) of a batch."""
        return Instance(self.tokens[trial], self.query[trial], self.scores[trial])


def token_logits(
    tokens: Float[Tensor, "*trials n T d"], query: Float[Tensor, "*trials n d_z"], W: Float[Tensor, "*trials d d_z"]
) -> Float[Tensor, "*trials n T"]:
    r""":math:`x_{i,t}^\top W z_i`."""
    return (tokens @ (query @ W.mT)[..., None]).squeeze(-1)


def token_scores(
    tokens: Float[Tensor, "*trials n T d"], head: Float[Tensor, "*trials d"], sign: Float[Tensor, "*trials n"]
) -> Float[Tensor, "*trials n T"]:
    r""":math:`\gamma_{i,t} = Y_i v^\top x_{i,t}` for a linear head v and labels Y in {-1, 1}."""
    return sign[..., None] * (tokens @ head[..., None, :, None]).squeeze(-1)


def cross_attention(*, inputs: int, tokens: int, dim: int, generator: torch.Generator, trials: int | None = None) -> Instance:
    """Random problems as in the experiments of the paper: unit tokens and queries in random directions, a unit head, random labels.

    Args:
        inputs, tokens, dim: n, T and d.
        trials: number of independent problems; a single one, without a batch dimension, if None.
    """
    _sizes(inputs=inputs, tokens=tokens, dim=dim, trials=1 if trials is None else trials)
    shape = () if trials is None else (trials,)

    def unit(*size: int) -> Tensor:
        return torch.nn.functional.normalize(torch.randn(*shape, *size, generator=generator, dtype=torch.float64), dim=-1)

    head = unit(dim)
    sign = torch.randint(2, (*shape, inputs), generator=generator).double() * 2 - 1
    x, z = unit(inputs, tokens, dim), unit(inputs, dim)
    return Instance(x, z, token_scores(x, head, sign))


def equal_distractors(
    *, inputs: int, tokens: int, dim: int, generator: torch.Generator, trials: int | None = None, gap: float = 1.0
) -> Instance:
    """Problems that meet the assumption of the global theorems: all tokens but the optimal one have the same score.

    Tokens and queries are unit vectors in random directions as in :func:`cross_attention`; the scores are given rather than made by a
    linear head: ``gap`` for one random token of each input, 0 for the others.
    """
    drawn = cross_attention(inputs=inputs, tokens=tokens, dim=dim, generator=generator, trials=trials)
    best = torch.randint(tokens, drawn.scores.shape[:-1], generator=generator)
    return Instance(drawn.tokens, drawn.query, gap * torch.nn.functional.one_hot(best, tokens).double())


def random_selection(instance: Instance, *, generator: torch.Generator) -> Int[Tensor, "*trials n"]:
    """A token of each input, uniformly at random."""
    *lead, T = instance.scores.shape
    return torch.randint(T, tuple(lead), generator=generator)


def _check(tokens: Tensor, query: Tensor) -> None:
    if not isinstance(tokens, Tensor) or tokens.ndim < 3:
        raise ValueError(f"tokens must be a tensor [..., n, T, d], got {_came(tokens)}")
    _real(tokens, "tokens", "[..., n, T, d]", tokens.ndim)
    _real(query, "query", "[..., n, d_z]", tokens.ndim - 1)
    if min(tokens.shape) == 0:
        raise ValueError(f"tokens must hold at least one input, token and dimension, got shape {list(tokens.shape)}")
    if query.shape[:-1] != tokens.shape[:-2]:
        raise ValueError(f"query must have one row an input, {list(tokens.shape[:-2])}, got shape {list(query.shape)}")


def _positions(select: Tensor, n: int, T: int) -> None:
    _whole(select, "select", n)
    if int(select.min()) < 0 or int(select.max()) >= T:
        wrong = int(select.min()) if int(select.min()) < 0 else int(select.max())
        raise ValueError(f"select must lie in [0, {T}), got {wrong}; it holds the position of one token of each input")


def _real(value, name: str, shape: str, rank: int) -> None:
    if not isinstance(value, Tensor) or value.ndim != rank:
        raise ValueError(f"{name} must be a tensor {shape}, got {_came(value)}")
    if value.dtype != torch.float64:
        raise ValueError(f"{name} must be float64 (margins are compared to 1e-12), got {value.dtype}; convert with .double()")
    if not bool(torch.isfinite(value).all()):
        raise ValueError(f"{name} must be finite, got {int((~torch.isfinite(value)).sum())} NaN or infinite values of {value.numel()}")


def _whole(value, name: str, length: int) -> None:
    if not isinstance(value, Tensor) or value.ndim != 1 or value.is_floating_point() or value.dtype == torch.bool:
        raise ValueError(f"{name} must be a tensor [{length}] of integers, got {_came(value)}")
    if len(value) != length:
        raise ValueError(f"{name} must have length {length}, got {len(value)}")


def _came(value) -> str:
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


def _sizes(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} must be at least 1, got {size}")


def published_instance(seed: int, *, inputs: int, tokens: int, dim: int) -> Instance:
    """The data of the paper's random experiments for one seed: head, labels, tokens and queries drawn in single precision, in this
    order."""
    _sizes(inputs=inputs, tokens=tokens, dim=dim)
    generator = torch.Generator().manual_seed(seed)
    normalise = torch.nn.functional.normalize
    head = normalise(torch.randn(dim, generator=generator), dim=0)
    sign = 2.0 * (torch.randn(inputs, generator=generator) > 0) - 1
    x = normalise(torch.randn(inputs, tokens, dim, generator=generator), dim=-1).double()
    z = normalise(torch.randn(inputs, dim, generator=generator), dim=-1).double()
    return Instance(x, z, token_scores(x, head.double(), sign.double()))

r"""Token selection: which token each input should attend to, and the linear constraints that say so.

Input i has T tokens :math:`x_{i,1}, \dots, x_{i,T}` and a query :math:`z_i`. One attention head scores token t by
:math:`x_{i,t}^\top W z_i`, takes the softmax over t and averages the tokens; a linear head v turns the average into a prediction

.. math:: f_i(W) = v^\top X_i^\top \operatorname{softmax}(X_i W z_i), \qquad L(W) = \tfrac1n \sum_i \log(1 + e^{-Y_i f_i(W)}).

The *token score* :math:`\gamma_{i,t} = Y_i v^\top x_{i,t}` says how much token t helps; the *optimal* token of an input has the largest.
A selection :math:`a = (a_1, \dots, a_n)` is *feasible* if some W scores every selected token above the others of its input,

.. math:: (x_{i,a_i} - x_{i,t})^\top W z_i \ge 1 \qquad \text{for all } i \text{ and } t \ne a_i,

which is linear in W: see :mod:`.constraint_set`.

Source: :cite:t:`tarzanagh2023transformers`, :cite:t:`tarzanagh2023maxmargin`. The papers write tokens as rows of X, as here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .constraint_set import came, check_real, check_tensor


@dataclass(frozen=True)
class Instance:
    r"""A training problem for one attention head with a fixed linear head, batched over independent trials.

    Attributes:
        tokens: x, ``[*trials, n, T, d]``, float64.
        query: z, ``[*trials, n, d_z]``.
        scores: :math:`\gamma_{i,t} = Y_i v^\top x_{i,t}` (label included), ``[*trials, n, T]``.
        allowed: the tokens that an input may attend to, ``[*trials, n, T]``; all if not given. The others get no attention whatever W is.

    Raises:
        ValueError: shapes that do not fit, values that are not finite, or an input that may attend to nothing.

    Data that require a gradient are detached: solvers and descent have gradients of their own.
    """

    tokens: Float[Tensor, "*trials n T d"]
    query: Float[Tensor, "*trials n d_z"]
    scores: Float[Tensor, "*trials n T"]
    allowed: Bool[Tensor, "*trials n T"] | None = None

    def __post_init__(self):
        check_tokens(self.tokens, self.query)
        check_real(self.scores, "scores", "[..., n, T]", self.tokens.ndim - 1)
        if self.scores.shape != self.tokens.shape[:-1]:
            raise ValueError(f"scores must be [..., n, T] = {list(self.tokens.shape[:-1])}, got {list(self.scores.shape)}")
        if self.allowed is not None:
            if not isinstance(self.allowed, Tensor) or self.allowed.dtype != torch.bool or self.allowed.shape != self.scores.shape:
                raise ValueError(f"allowed must be a tensor {list(self.scores.shape)} of booleans, got {came(self.allowed)}")
            if not bool(self.allowed.any(-1).all()):
                raise ValueError("allowed must leave each input a token to attend to, got an input with none")
        detach(self, "tokens", "query", "scores")

    @property
    def trials(self) -> tuple[int, ...]:
        """Shape of the batch of trials; () for a single one."""
        return tuple(self.tokens.shape[:-3])

    def optimal(self) -> Int[Tensor, "*trials n"]:
        """The token with the largest score of each input; the first of several."""
        return self._hidden(self.scores).argmax(-1)

    def selected(self, W: Float[Tensor, "*trials d d_z"]) -> Int[Tensor, "*trials n"]:
        """The token to which W gives the most attention."""
        return self._hidden(token_logits(self.tokens, self.query, W)).argmax(-1)

    def attention(self, W: Float[Tensor, "*trials d d_z"]) -> Float[Tensor, "*trials n T"]:
        """Attention weights, rows sum to one."""
        return self._hidden(token_logits(self.tokens, self.query, W)).softmax(-1)

    def __getitem__(self, trial) -> "Instance":
        """One trial (or several) of a batch."""
        return Instance(self.tokens[trial], self.query[trial], self.scores[trial], None if self.allowed is None else self.allowed[trial])

    def _hidden(self, values: Tensor) -> Tensor:
        return values if self.allowed is None else values.masked_fill(~self.allowed, -torch.inf)


def token_logits(
    tokens: Float[Tensor, "*trials n T d"], query: Float[Tensor, "*trials n d_z"], W: Float[Tensor, "*trials d d_z"]
) -> Float[Tensor, "*trials n T"]:
    r""":math:`x_{i,t}^\top W z_i`.

    Args:
        tokens: x, ``[*trials, n, T, d]``.
        query: z, ``[*trials, n, d_z]``.
        W: ``[*trials, d, d_z]``.
    Returns:
        ``[*trials, n, T]``.

    Source: :cite:t:`tarzanagh2023transformers`.
    """
    return (tokens @ (query @ W.mT)[..., None]).squeeze(-1)


def token_scores(
    tokens: Float[Tensor, "*trials n T d"], head: Float[Tensor, "*trials d"], sign: Float[Tensor, "*trials n"]
) -> Float[Tensor, "*trials n T"]:
    r""":math:`\gamma_{i,t} = Y_i v^\top x_{i,t}` for a linear head.

    >>> from transformer_theory import attention_svm
    >>> tokens = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]] * 2, dtype=torch.float64)  # two inputs with the same two tokens
    >>> head, sign = torch.tensor([1.0, -1.0], dtype=torch.float64), torch.tensor([1.0, -1.0], dtype=torch.float64)
    >>> attention_svm.token_scores(tokens, head, sign).argmax(-1)  # the best token depends on the label
    tensor([0, 1])

    Args:
        tokens: x, ``[*trials, n, T, d]``.
        head: v, ``[*trials, d]``.
        sign: labels Y, -1 or 1, ``[*trials, n]``.
    Returns:
        ``[*trials, n, T]``.
    Raises:
        TypeError: not a tensor.
        ValueError: not float64, a shape that does not fit, values that are not finite, or signs other than -1 and 1.

    Source: :cite:t:`tarzanagh2023transformers`.
    """
    check_tensor(tokens, "tokens", "[..., n, T, d]")
    check_signs(sign, "sign", tokens.shape[:-2])
    check_tokens(tokens, sign[..., None])
    shape = [*tokens.shape[:-3], tokens.shape[-1]]
    check_real(head, "head", f"{shape}, a weight for each entry of a token", len(shape))
    if list(head.shape) != shape:
        raise ValueError(f"head must be a tensor {shape}, a weight for each entry of a token, got {came(head)}")
    return sign[..., None] * (tokens @ head[..., None, :, None]).squeeze(-1)


def cross_attention(*, inputs: int, tokens: int, dim: int, generator: torch.Generator, trials: int | None = None) -> Instance:
    """Random problems as in the experiments of the paper: unit tokens and queries in random directions, a unit head, random labels.

    Args:
        inputs, tokens, dim: n, T and d.
        generator: draws head, labels, tokens and queries, in this order.
        trials: number of independent problems; a single one, without a batch dimension, if None.
    Returns:
        The problems, ``d_z = d``.
    Raises:
        ValueError: a size below one.

    Source: :cite:t:`tarzanagh2023transformers`.
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

    Args:
        inputs, tokens, dim: n, T and d.
        generator: draws what :func:`cross_attention` draws, then the optimal tokens.
        trials: number of independent problems; a single one, without a batch dimension, if None.
        gap: score of the optimal tokens.
    Returns:
        The problems, ``d_z = d``.
    Raises:
        ValueError: a size below one.

    Source: the assumption of :cite:t:`tarzanagh2023transformers`.
    """
    drawn = cross_attention(inputs=inputs, tokens=tokens, dim=dim, generator=generator, trials=trials)
    best = torch.randint(tokens, drawn.scores.shape[:-1], generator=generator)
    return Instance(drawn.tokens, drawn.query, gap * torch.nn.functional.one_hot(best, tokens).double())


def random_selection(instance: Instance, *, generator: torch.Generator) -> Int[Tensor, "*trials n"]:
    """A token of each input, uniformly at random.

    Args:
        instance: one or more problems.
        generator: draws the tokens.
    Returns:
        Their positions, ``[*trials, n]``.

    Source: textbook.
    """
    *lead, T = instance.scores.shape
    return torch.randint(T, tuple(lead), generator=generator)


def check_tokens(tokens: Tensor, query: Tensor) -> None:
    """Refuses tokens and queries that are not finite float64 tensors ``[..., n, T, d]`` and ``[..., n, d_z]``.

    Raises:
        TypeError: not a tensor.
        ValueError: says what was expected and what came.
    """
    check_tensor(tokens, "tokens", "[..., n, T, d]")
    if tokens.ndim < 3:
        raise ValueError(f"tokens must be a tensor [..., n, T, d], got {came(tokens)}")
    check_real(tokens, "tokens", "[..., n, T, d]", tokens.ndim)
    check_real(query, "query", "[..., n, d_z]", tokens.ndim - 1)
    if min(tokens.shape) == 0:
        raise ValueError(f"tokens must hold at least one input, token and dimension, got shape {list(tokens.shape)}")
    if query.shape[:-1] != tokens.shape[:-2]:
        raise ValueError(f"query must have one row an input, {list(tokens.shape[:-2])}, got shape {list(query.shape)}")


def check_signs(signs: Tensor, name: str, shape: Sequence[int]) -> None:
    """Refuses what is not a float64 tensor of this shape ``[..., n]`` with entries -1 and 1.

    Raises:
        TypeError: not a tensor.
        ValueError: says what was expected and what came.
    """
    shape = list(shape)
    check_real(signs, name, f"{shape} of -1 and 1, one an input", len(shape))
    if list(signs.shape) != shape:
        raise ValueError(f"{name} must be a tensor {shape} of -1 and 1, one an input, got {came(signs)}")
    if not bool((signs.abs() == 1).all()):
        raise ValueError(
            f"{name} must be -1 or 1, got {sorted(set(signs.flatten().tolist()))[:4]}; write one class against the rest as such"
        )


def detach(instance: object, *names: str) -> None:
    """Takes the tensors ``[...]`` of a frozen instance that require a gradient out of their graphs."""
    for name in names:
        if getattr(instance, name).requires_grad:
            object.__setattr__(instance, name, getattr(instance, name).detach())


def _sizes(**sizes: int) -> None:
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, Integral):
            raise TypeError(f"{name} must be a whole number, got {type(size).__name__}")
        if size < 1:
            raise ValueError(f"{name} must be at least 1, got {size}")


def published_instance(seed: int, *, inputs: int, tokens: int, dim: int) -> Instance:
    """The data of the paper's random experiments for one seed: head, labels, tokens and queries drawn in single precision, in this
    order.

    Args:
        seed: of a generator of its own.
        inputs, tokens, dim: n, T and d.
    Returns:
        A single problem, ``d_z = d``, in float64.
    Raises:
        ValueError: a size below one.

    Source: the notebooks released with :cite:t:`tarzanagh2023transformers`.
    """
    _sizes(inputs=inputs, tokens=tokens, dim=dim)
    generator = torch.Generator().manual_seed(seed)
    normalise = torch.nn.functional.normalize
    head = normalise(torch.randn(dim, generator=generator), dim=0)
    sign = 2.0 * (torch.randn(inputs, generator=generator) > 0) - 1
    x = normalise(torch.randn(inputs, tokens, dim, generator=generator), dim=-1).double()
    z = normalise(torch.randn(inputs, dim, generator=generator), dim=-1).double()
    return Instance(x, z, token_scores(x, head.double(), sign.double()))

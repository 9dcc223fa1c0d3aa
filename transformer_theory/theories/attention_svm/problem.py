r"""Training problems for one attention head: data types, attention, and random instances.

Input i has T tokens :math:`x_{i,1}, \dots, x_{i,T}` and a query :math:`z_i`. One attention head scores token
t by :math:`x_{i,t}^\top W z_i`, takes the softmax over t and averages the tokens; a linear head v turns the
average into a prediction

.. math:: f_i(W) = v^\top X_i^\top \operatorname{softmax}(X_i W z_i), \qquad L(W) = \tfrac1n \sum_i \log(1 +
    e^{-Y_i f_i(W)}).

The *token score* :math:`\gamma_{i,t} = Y_i v^\top x_{i,t}` measures how much token t helps the prediction.
The *optimal* token of an input has the largest score.
A selection :math:`a = (a_1, \dots, a_n)` is *feasible* if some W scores every selected token above the others
of its input,

.. math:: (x_{i,a_i} - x_{i,t})^\top W z_i \ge 1 \qquad \text{for all } i \text{ and } t \ne a_i,

which is linear in W (:mod:`.constraint_set`). Setting and notation, with tokens as rows of X, follow
:cite:t:`tarzanagh2023transformers` and :cite:t:`tarzanagh2023maxmargin`.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ...core.validation import as_float64, converted, integers
from .validation import as_bool, check_real, check_shape, check_signs, check_tokens


@dataclass(frozen=True)
class Instance:
    r"""A training problem for one attention head with a fixed linear head, batched over independent trials.

    Numpy arrays, float32 and integers are converted. Tensors that require a gradient are detached: descent
    computes its own gradient.

    Attributes:
        tokens: x, ``[*trials, n, T, d]``, float64.
        query: z, ``[*trials, n, d_z]``.
        scores: :math:`\gamma_{i,t} = Y_i v^\top x_{i,t}` (label included), ``[*trials, n, T]``.
        allowed: mask of the tokens that an input may attend to, ``[*trials, n, T]``; other tokens get no
            attention. None: all tokens.

    Raises:
        TypeError: an argument is not a tensor or array.
        ValueError: shapes do not fit, a value is not finite, or an input may attend to no token.
    """

    tokens: Float[Tensor, "*trials n T d"]
    query: Float[Tensor, "*trials n d_z"]
    scores: Float[Tensor, "*trials n T"]
    allowed: Bool[Tensor, "*trials n T"] | None = None

    def __post_init__(self):
        convert_fields(self, "tokens", "query", "scores")
        check_tokens(self.tokens, self.query)
        check_real("scores", self.scores, "[..., n, T]", self.tokens.ndim - 1)
        check_shape("scores", self.scores, self.tokens.shape[:-1], "[..., n, T]")
        if self.allowed is not None:
            object.__setattr__(self, "allowed", as_bool("allowed", self.allowed, self.scores.shape))
            if not bool(self.allowed.any(-1).all()):
                raise ValueError(
                    "allowed must leave each input a token to attend to, got an input without one"
                )

    @property
    def trials(self) -> tuple[int, ...]:
        """Shape of the batch of trials; () for a single one."""
        return tuple(self.tokens.shape[:-3])

    def optimal(self) -> Int[Tensor, "*trials n"]:
        """Returns, per input, the position of the token with the largest score; the first position if several
        tie.
        """
        return self._masked(self.scores).argmax(-1)

    def selected(self, W: Float[Tensor, "*trials d d_z"]) -> Int[Tensor, "*trials n"]:
        """Returns, per input, the position of the token with the largest attention under W."""
        return self._masked(token_logits(self.tokens, self.query, W)).argmax(-1)

    def attention(self, W: Float[Tensor, "*trials d d_z"]) -> Float[Tensor, "*trials n T"]:
        """Returns the attention weights; rows sum to one."""
        return self._masked(token_logits(self.tokens, self.query, W)).softmax(-1)

    def __getitem__(self, trial) -> "Instance":
        """Returns one trial (or several) of a batch."""
        return Instance(
            self.tokens[trial],
            self.query[trial],
            self.scores[trial],
            None if self.allowed is None else self.allowed[trial],
        )

    def _masked(self, values: Tensor) -> Tensor:
        return values if self.allowed is None else values.masked_fill(~self.allowed, -torch.inf)


@converted(float64=("tokens", "query", "W"))
def token_logits(
    tokens: Float[Tensor, "*trials n T d"],
    query: Float[Tensor, "*trials n d_z"],
    W: Float[Tensor, "*trials d d_z"],
) -> Float[Tensor, "*trials n T"]:
    r"""Returns the attention logits :math:`x_{i,t}^\top W z_i`.

    Args:
        tokens: x, ``[*trials, n, T, d]``.
        query: z, ``[*trials, n, d_z]``.
        W: attention weights, ``[*trials, d, d_z]``.
    Returns:
        The logits, ``[*trials, n, T]``.
    """
    return (tokens @ (query @ W.mT)[..., None]).squeeze(-1)


@converted(float64=("tokens", "head", "sign"))
def token_scores(
    tokens: Float[Tensor, "*trials n T d"], head: Float[Tensor, "*trials d"], sign: Float[Tensor, "*trials n"]
) -> Float[Tensor, "*trials n T"]:
    r"""Returns the token scores :math:`\gamma_{i,t} = Y_i v^\top x_{i,t}` of a linear head.

    >>> from transformer_theory.theories.attention_svm.problem import token_scores
    >>> tokens = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]] * 2, dtype=torch.float64)  # two inputs with the same two tokens
    >>> head, sign = torch.tensor([1.0, -1.0], dtype=torch.float64), torch.tensor([1.0, -1.0], dtype=torch.float64)
    >>> token_scores(tokens, head, sign).argmax(-1)  # the best token depends on the label
    tensor([0, 1])

    Args:
        tokens: x, ``[*trials, n, T, d]``.
        head: v, ``[*trials, d]``.
        sign: labels Y, -1 or 1, ``[*trials, n]``.
    Returns:
        The scores, ``[*trials, n, T]``.
    Raises:
        TypeError: an argument is not a tensor or array.
        ValueError: shapes do not fit, a value is not finite, or a sign is not -1 or 1.
    """  # noqa: E501
    check_real("tokens", tokens, "[..., n, T, d]", max(3, tokens.ndim))
    check_signs("sign", sign, tokens.shape[:-2])
    check_tokens(tokens, sign[..., None])
    shape = [*tokens.shape[:-3], tokens.shape[-1]]
    check_real("head", head, f"{shape}", len(shape))
    check_shape("head", head, shape, "one weight per entry of a token")
    return sign[..., None] * (tokens @ head[..., None, :, None]).squeeze(-1)


def cross_attention(
    *, inputs: int, tokens: int, dim: int, generator: torch.Generator, trials: int | None = None
) -> Instance:
    """Draws problems as in the experiments of :cite:t:`tarzanagh2023transformers`.

    Tokens, queries and head are unit vectors in random directions; labels are random.

    Args:
        inputs, tokens, dim: n, T and d.
        generator: random generator of head, labels, tokens and queries, in this order.
        trials: number of independent problems. None: a single problem without a batch dimension.
    Returns:
        The problems, with ``d_z = d``.
    Raises:
        TypeError: a size is not an integer.
        ValueError: a size is below one.
    """
    integers(inputs=inputs, tokens=tokens, dim=dim, trials=1 if trials is None else trials)
    shape = () if trials is None else (trials,)

    def unit(*size: int) -> Tensor:
        return torch.nn.functional.normalize(
            torch.randn(*shape, *size, generator=generator, dtype=torch.float64), dim=-1
        )

    head = unit(dim)
    sign = torch.randint(2, (*shape, inputs), generator=generator).double() * 2 - 1
    x, z = unit(inputs, tokens, dim), unit(inputs, dim)
    return Instance(x, z, token_scores(x, head, sign))


def equal_distractors(
    *,
    inputs: int,
    tokens: int,
    dim: int,
    generator: torch.Generator,
    trials: int | None = None,
    gap: float = 1.0,
) -> Instance:
    """Draws problems that meet the assumption of the global theorems: all tokens of an input but the optimal
    one have the same score.

    Tokens and queries are drawn as in :func:`cross_attention`. The scores do not come from a linear head:
    they are ``gap`` for one random token of each input and 0 for the others.

    Args:
        inputs, tokens, dim: n, T and d.
        generator: random generator; it first draws the same numbers as :func:`cross_attention`, then the
            optimal tokens.
        trials: number of independent problems. None: a single problem without a batch dimension.
        gap: score of the optimal tokens.
    Returns:
        The problems, with ``d_z = d``.
    Raises:
        TypeError, ValueError: as for :func:`cross_attention`.
    """
    instance = cross_attention(inputs=inputs, tokens=tokens, dim=dim, generator=generator, trials=trials)
    best = torch.randint(tokens, instance.scores.shape[:-1], generator=generator)
    return Instance(instance.tokens, instance.query, gap * torch.nn.functional.one_hot(best, tokens).double())


def random_selection(instance: Instance, *, generator: torch.Generator) -> Int[Tensor, "*trials n"]:
    """Draws one token per input uniformly at random; returns the positions ``[*trials, n]``."""
    *lead, T = instance.scores.shape
    return torch.randint(T, tuple(lead), generator=generator)


def published_instance(seed: int, *, inputs: int, tokens: int, dim: int) -> Instance:
    """Returns the data of the random experiments of :cite:t:`tarzanagh2023transformers` for one seed.

    As in the released notebooks, head, labels, tokens and queries are drawn in this order, in single
    precision.

    Args:
        seed: seed of a new random generator.
        inputs, tokens, dim: n, T and d.
    Returns:
        A single problem in float64, with ``d_z = d``.
    Raises:
        TypeError, ValueError: as for :func:`cross_attention`.
    """
    integers(inputs=inputs, tokens=tokens, dim=dim)
    generator = torch.Generator().manual_seed(seed)
    normalise = torch.nn.functional.normalize
    head = normalise(torch.randn(dim, generator=generator), dim=0)
    sign = 2.0 * (torch.randn(inputs, generator=generator) > 0) - 1
    x = normalise(torch.randn(inputs, tokens, dim, generator=generator), dim=-1).double()
    z = normalise(torch.randn(inputs, dim, generator=generator), dim=-1).double()
    return Instance(x, z, token_scores(x, head.double(), sign.double()))


def convert_fields(record: object, *names: str) -> None:
    """Converts fields of a frozen dataclass to detached float64 tensors.

    Raises:
        TypeError: a field is not a tensor or array of real numbers.
    """
    for name in names:
        value = as_float64(name, getattr(record, name))
        object.__setattr__(record, name, value.detach() if value.requires_grad else value)

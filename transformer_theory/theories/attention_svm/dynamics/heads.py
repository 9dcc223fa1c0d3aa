r"""Heads: functions that predict from the attention-weighted mixture of tokens, :math:`f_i = Y_i\, h(X_i^\top
s_i)`.

A head maps mixtures ``[..., n, d]`` to (values :math:`h(o)` ``[..., n]``, gradients :math:`\nabla h(o)`
``[..., n, d]``), row by row. The *gain* of a token is :math:`\gamma_{i,t} = Y_i \nabla h(o_i)^\top x_{i,t}`.
For the linear head :math:`h(o) = v^\top o` the gain is the score of the token and constant during training
(:class:`~..problem.Instance`). For other heads the gains change as attention moves (:class:`HeadInstance`).
:cite:t:`tarzanagh2023transformers` use a one-layer network as head.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..problem import convert_fields, token_logits
from ..validation import check_nonnegative, check_signs, check_tokens, describe

# mixtures [..., n, d] -> values [..., n], gradients [..., n, d]
Head = Callable[[Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class HeadInstance:
    r"""A training problem for one attention head with any fixed head on its output, batched over independent
    trials.

    Attributes:
        tokens: x, ``[*trials, n, T, d]``, float64. For this and all other tensors, numpy arrays, float32 and
            integers are converted.
        query: z, ``[*trials, n, d_z]``.
        labels: Y, -1 or 1, ``[*trials, n]``.
        head: function from mixtures ``[*trials, n, d]`` to (h ``[*trials, n]``, its gradient ``[*trials, n,
            d]``).

    Raises:
        TypeError: an argument is not a tensor or array, or the head is not a function.
        ValueError: shapes do not fit, a value is not finite, a label is not -1 or 1, or the head returns
            wrong shapes.
    """

    tokens: Float[Tensor, "*trials n T d"]
    query: Float[Tensor, "*trials n d_z"]
    labels: Float[Tensor, "*trials n"]
    head: Head

    def __post_init__(self):
        convert_fields(self, "tokens", "query", "labels")
        check_tokens(self.tokens, self.query)
        check_signs("labels", self.labels, self.tokens.shape[:-2])
        if not callable(self.head):
            raise TypeError(
                f"head must be a function of mixtures, got {describe(self.head)}; relu_head(V) and "
                "differentiable(f) make one"
            )
        # One call of the head, for uniform attention, detects wrong shapes here instead of during a run.
        mixture = self.tokens.mean(-2)
        for name, output, expected in zip(("value", "gradient"), self.head(mixture), (self.labels, mixture)):
            if (
                not isinstance(output, Tensor)
                or output.shape != expected.shape
                or output.dtype != torch.float64
            ):
                expected_output = f"a float64 {name} {list(expected.shape)} of mixtures {list(mixture.shape)}"
                raise ValueError(f"head must return {expected_output}, got {describe(output)}")

    @property
    def trials(self) -> tuple[int, ...]:
        """Shape of the batch of trials; () for a single one."""
        return tuple(self.tokens.shape[:-3])

    def selected(self, W: Float[Tensor, "*trials d d_z"]) -> Int[Tensor, "*trials n"]:
        """Returns, per input, the position of the token with the largest attention under W."""
        return token_logits(self.tokens, self.query, W).argmax(-1)

    def attention(self, W: Float[Tensor, "*trials d d_z"]) -> Float[Tensor, "*trials n T"]:
        """Returns the attention weights; rows sum to one."""
        return token_logits(self.tokens, self.query, W).softmax(-1)

    def predictions(self, W: Float[Tensor, "*trials d d_z"]) -> Float[Tensor, "*trials n"]:
        """Returns the predictions Y h, label included."""
        mixture = (self.attention(W)[..., None, :] @ self.tokens).squeeze(-2)
        return self.labels * self.head(mixture)[0]


def relu_head(V: Float[Tensor, "*trials d hidden"]) -> Head:
    r"""Returns a network with one hidden layer, :math:`h(o) = \mathbf 1^\top \max(V^\top o, 0)`. At kinks the
    derivative is 0.

    Args:
        V: first-layer weights, ``[*trials, d, hidden]``, or ``[d, hidden]`` for all trials.
    """

    def head(mixture: Tensor) -> tuple[Tensor, Tensor]:
        hidden = mixture @ V
        return hidden.clamp(min=0).sum(-1), (hidden > 0).to(V.dtype) @ V.mT

    return head


def concave_head(v: Float[Tensor, "*trials d"], penalty: float) -> Head:
    r"""Returns the head :math:`h(o) = v^\top o - \lambda \|o\|^2`, which is largest at :math:`o = v /
    (2\lambda)`.

    The released code of :cite:t:`tarzanagh2023transformers` has this head as ``mode='lambda'``.

    Args:
        v: weights, ``[*trials, d]``, or ``[d]`` for all trials.
        penalty: :math:`\lambda`; at 0 the head is linear.
    Raises:
        TypeError: ``penalty`` is not a number.
        ValueError: ``penalty`` is negative or not finite.
    """
    check_nonnegative(penalty=penalty)
    row = v[..., None, :]

    def head(mixture: Tensor) -> tuple[Tensor, Tensor]:
        return (row * mixture).sum(-1) - penalty * mixture.square().sum(-1), row - 2 * penalty * mixture

    return head


def differentiable(f: Callable[[Tensor], Tensor]) -> Head:
    """Returns a head from any function of torch tensors, with gradients by automatic differentiation.

    Args:
        f: function from mixtures ``[..., n, d]`` to values ``[..., n]``, row by row; a ``torch.nn.Module``
            followed by ``squeeze(-1)``.
    """

    def head(mixture: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            leaf = mixture.detach().requires_grad_()
            value = f(leaf)
            (gradient,) = torch.autograd.grad(value.sum(), leaf)
        return value.detach(), gradient

    return head

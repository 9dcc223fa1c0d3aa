r"""Heads: functions that predict from the attention-weighted mixture of tokens, :math:`f_i = Y_i\, h(X_i^\top s_i)`.

A head maps mixtures ``[..., n, d]`` to (values :math:`h(o)` ``[..., n]``, gradients :math:`\nabla h(o)` ``[..., n, d]``), row by row. For
the linear head :math:`h(o) = v^\top o` the *gain* :math:`\gamma_{i,t} = Y_i \nabla h(o_i)^\top x_{i,t}` of a token is its score, a constant
of training: that is :class:`~..problem.Instance`. Other heads change the gains as attention moves: :class:`HeadInstance`. The one-layer
network as a head is that of :cite:t:`tarzanagh2023transformers`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..problem import convert_fields, token_logits
from ..validation import check_signs, check_tokens, describe

Head = Callable[[Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class HeadInstance:
    r"""A training problem for one attention head with any fixed head on its output, batched over independent trials.

    Attributes:
        tokens: x, ``[*trials, n, T, d]``, float64; numpy arrays, float32 and integers are converted, here and below.
        query: z, ``[*trials, n, d_z]``.
        labels: Y, -1 or 1, ``[*trials, n]``.
        head: mixtures ``[*trials, n, d]`` -> (h ``[*trials, n]``, its gradient ``[*trials, n, d]``).

    Raises:
        TypeError: an argument that is no tensor or array, or a head that is no function.
        ValueError: shapes that do not fit, values that are not finite, other labels, or a head that returns other shapes.
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
            raise TypeError(f"head must be a function of mixtures, got {describe(self.head)}; relu_head(V) and differentiable(f) make one")
        # One call of the head, on uniform attention, shows wrong shapes here instead of in the middle of a run.
        mixture = self.tokens.mean(-2)
        for name, output, expected in zip(("value", "gradient"), self.head(mixture), (self.labels, mixture)):
            if not isinstance(output, Tensor) or output.shape != expected.shape or output.dtype != torch.float64:
                wanted = f"a float64 {name} {list(expected.shape)} of mixtures {list(mixture.shape)}"
                raise ValueError(f"head must return {wanted}, got {describe(output)}")

    @property
    def trials(self) -> tuple[int, ...]:
        """Shape of the batch of trials; () for a single one."""
        return tuple(self.tokens.shape[:-3])

    def selected(self, W: Float[Tensor, "*trials d d_z"]) -> Int[Tensor, "*trials n"]:
        """The token to which W gives the most attention."""
        return token_logits(self.tokens, self.query, W).argmax(-1)

    def attention(self, W: Float[Tensor, "*trials d d_z"]) -> Float[Tensor, "*trials n T"]:
        """Attention weights; rows sum to one."""
        return token_logits(self.tokens, self.query, W).softmax(-1)

    def predictions(self, W: Float[Tensor, "*trials d d_z"]) -> Float[Tensor, "*trials n"]:
        """Y h, label included."""
        mixture = (self.attention(W)[..., None, :] @ self.tokens).squeeze(-2)
        return self.labels * self.head(mixture)[0]


def relu_head(V: Float[Tensor, "*trials d hidden"]) -> Head:
    r"""A network with one hidden layer, :math:`h(o) = \mathbf 1^\top \max(V^\top o, 0)`. At a kink its gradient is taken as 0.

    Args:
        V: ``[*trials, d, hidden]``, one for each trial, or ``[d, hidden]`` for all.
    """

    def head(mixture: Tensor) -> tuple[Tensor, Tensor]:
        hidden = mixture @ V
        return hidden.clamp(min=0).sum(-1), (hidden > 0).to(V.dtype) @ V.mT

    return head


def differentiable(f: Callable[[Tensor], Tensor]) -> Head:
    """A head from any function of torch tensors, with its gradient by automatic differentiation.

    Args:
        f: mixtures ``[..., n, d]`` -> values ``[..., n]``, row by row, such as a ``torch.nn.Module`` followed by ``squeeze(-1)``.
    """

    def head(mixture: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            leaf = mixture.detach().requires_grad_()
            value = f(leaf)
            (gradient,) = torch.autograd.grad(value.sum(), leaf)
        return value.detach(), gradient

    return head

r"""Sparsification: ISTA and FISTA steps on the non-negative LASSO, and blocks that consist of such steps.

For tokens Y (rows), a dictionary D (d x m, atoms are columns) and a code Z (n x m), a step is

    Z+ = relu(Z + eta (Y - Z D^T) D - eta lambda),

a proximal gradient step on 1/2 ||Y - Z D^T||_F^2 + lambda sum(Z), Z >= 0. A CRATE layer takes one step from Z
= Y with a square D (:func:`from_tokens`); CRATE-alpha takes two from zero with more atoms than dimensions
(:func:`overcomplete_code`).

A block maps tokens [batch, n, d] to the new tokens or, if its ``skip`` is true, to a change that the layer
adds to the tokens. Training does not constrain the dictionary, so a fixed eta may become too large to
decrease the objective. ``relative_step()`` is eta L, with L of :func:`curvature`: a step with eta <= 1/L
never increases the objective.

Sources: :cite:t:`beck2009fast`; :cite:t:`yu2023white`, :cite:t:`yang2024scaling` (the layers). Notation:
docs/notation.md.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from ...core.validation import finite, integers, positive, same_dtype
from .attention import Batch

ONE_PRODUCT_TOKENS = 4  # smallest n / d for which one product with A is faster than two products with D

Code = Float[Tensor, "*batch n m"]
Tokens = Float[Tensor, "*batch n d"]
Dictionary = Float[Tensor, "d m"]


def ista_step(code: Code, tokens: Tokens, dictionary: Dictionary, *, eta: float, lam: float) -> Code:
    r"""Takes one proximal gradient step, :math:`\mathrm{relu}(Z + \eta (Y - Z D^\top) D - \eta\lambda)`.

    >>> token = torch.tensor([[1.0, 0.05, -1.0]])
    >>> ista_step(torch.zeros(1, 3), token, torch.eye(3), eta=1.0, lam=0.1)
    tensor([[0.9000, 0.0000, 0.0000]])

    Args:
        code: Z before the step, ``[*batch, n, m]``.
        tokens: Y, ``[*batch, n, d]``.
        dictionary: D, [d, m].
        eta: step size; the objective does not increase if eta <= 1/L, L = ||D||_2^2.
        lam: weight of the l1 norm.
    Raises:
        ValueError: the shapes or dtypes do not fit.
    """
    check_dictionary(tokens, dictionary)
    return functional.relu(code + eta * (tokens - code @ dictionary.mT) @ dictionary - eta * lam)


def from_tokens(tokens: Tokens, dictionary: Float[Tensor, "d d"], *, eta: float, lam: float) -> Tokens:
    r"""Takes one step from Z = Y with a square D, as in a CRATE layer: :math:`\mathrm{relu}(Y + \eta (Y - Y
    D^\top) D - \eta\lambda)`.

    The argument of the rectifier is :math:`Y A^\top - \eta\lambda` with :math:`A = I + \eta D^\top (I - D)`.
    For many tokens A is formed once and one product with it is enough; for few tokens two products with D are
    cheaper than forming A.

    Raises:
        ValueError: the shapes or dtypes do not fit.
    """
    d = len(dictionary)
    # numel < 4 d^2 means fewer than 4 d tokens over all batches. A compiled graph must not branch on the
    # number of tokens.
    if not torch.compiler.is_compiling() and tokens.numel() < ONE_PRODUCT_TOKENS * d * d:
        return ista_step(tokens, tokens, dictionary, eta=eta, lam=lam)
    check_dictionary(tokens, dictionary)
    # Form A in the precision of D: under autocast the difference I - D would be rounded to bfloat16 before it
    # is scaled by eta.
    with torch.autocast(tokens.device.type, enabled=False):
        eye = torch.eye(d, dtype=dictionary.dtype, device=dictionary.device)
        A = torch.addmm(eye, dictionary.mT, eye - dictionary, alpha=eta)
    return functional.linear(tokens, A, A.new_full((d,), -eta * lam)).relu_()


def fista_steps(
    start: Code, tokens: Tokens, dictionary: Dictionary, *, eta: float, lam: float, steps: int
) -> Code:
    r"""Takes a fixed number of FISTA steps: ISTA steps from a point extrapolated by Nesterov's momentum,
    without restarts.

    After k steps with eta = 1/L, :math:`F - F^* \le 2 L \|Z_0 - Z^*\|^2 / (k+1)^2`. ``steps`` is k; the other
    arguments are as in :func:`ista_step`.

    Raises:
        ValueError: the shapes or dtypes do not fit.
    """
    code, point, momentum = start, start, 1.0
    for _ in range(steps):
        next_code = ista_step(point, tokens, dictionary, eta=eta, lam=lam)
        # With t for ``momentum``, t+ solves t+^2 - t+ = t^2; the rate 1/k^2 follows from this recursion. At
        # the first step t = 1, so nothing is extrapolated.
        next_momentum = (1 + (1 + 4 * momentum**2) ** 0.5) / 2
        point = next_code + (momentum - 1) / next_momentum * (next_code - code)
        code, momentum = next_code, next_momentum
    return code


def overcomplete_code(tokens: Tokens, dictionary: Dictionary, *, eta: float, lam: float) -> Code:
    r"""Takes two ISTA steps from zero; the first needs no product with the code.

    :math:`Z_1 = \mathrm{relu}(\eta Y D - \eta\lambda)`, :math:`Z_2 = \mathrm{relu}(Z_1 + \eta (Y - Z_1
    D^\top) D - \eta\lambda)`.

    Raises:
        ValueError: the shapes or dtypes do not fit.
    """
    check_dictionary(tokens, dictionary)
    first = functional.relu(eta * (tokens @ dictionary) - eta * lam)
    return ista_step(first, tokens, dictionary, eta=eta, lam=lam)


def curvature(dictionary: Dictionary) -> float:
    r"""Computes :math:`L = \|D\|_2^2`, the Lipschitz constant of the gradient; ISTA descends for :math:`\eta
    \le 1/L`.

    Raises:
        ValueError: the dictionary is zero or not finite.
    """
    finite(dictionary=dictionary)
    # Power iteration would approach the norm from below and allow steps that are too long, so singular values
    # are computed.
    L = float(torch.linalg.matrix_norm(dictionary, 2)) ** 2
    if not L > 0:
        raise ValueError(f"dictionary must not be zero, got the norm {L**0.5:g}")
    return L


def check_dictionary(tokens: Tokens, dictionary: Dictionary) -> None:
    """Checks that tokens ``[*batch, n, d]`` and a dictionary [d, m] fit.

    Raises:
        ValueError: tokens and dictionary differ in d or in dtype, or are float16 on a CPU.
    """
    same_dtype(tokens=tokens, dictionary=dictionary)
    if tokens.shape[-1] != dictionary.shape[0]:
        raise ValueError(
            f"tokens [..., n, d] and dictionary [d, m] must share d, got {list(tokens.shape)} and "
            f"{list(dictionary.shape)}"
        )


class _DictionaryBlock(nn.Module):
    """Base class of the blocks: holds the dictionary D = ``weight``, [d, m], the step size eta and the weight
    lambda of the l1 norm.
    """

    skip = False

    def __init__(self, dim: int, atoms: int, *, eta: float, lam: float):
        super().__init__()
        positive(eta=eta, lam=lam)
        self.eta, self.lam = eta, lam
        self.weight = nn.Parameter(torch.empty(dim, atoms))
        nn.init.kaiming_uniform_(self.weight, a=0.0)

    def relative_step(self) -> float:
        """Returns eta ||D||_2^2.

        Up to 2 no ISTA step increases the objective (1 is the standard choice); above 2 a step may increase
        it.
        """
        return self.eta * curvature(self.weight.detach())


class Ista(_DictionaryBlock):
    r"""ISTA steps from Z = Y; the result replaces the tokens: :math:`Z \leftarrow \mathrm{relu}(Z + \eta (Y -
    Z D^\top) D - \eta\lambda)`.

    Args:
        dim: d; the dictionary ``weight`` is d x d.
        eta: step size.
        lam: weight of the l1 norm.
        steps: number of steps; 1 in the papers.
    Raises:
        ValueError: ``eta`` or ``lam`` is not positive and finite, or ``steps`` is below 1.
    """

    def __init__(self, dim: int, *, eta: float = 0.1, lam: float = 0.1, steps: int = 1):
        super().__init__(dim, dim, eta=eta, lam=lam)
        integers(steps=steps)
        self.steps = steps

    def forward(self, tokens: Batch) -> Batch:
        code = from_tokens(tokens, self.weight, eta=self.eta, lam=self.lam)
        for _ in range(self.steps - 1):
            code = ista_step(code, tokens, self.weight, eta=self.eta, lam=self.lam)
        return code


class Fista(_DictionaryBlock):
    r"""FISTA, i.e. ISTA steps with Nesterov's momentum, from Z = Y; the result replaces the tokens.

    Args:
        dim, eta, lam: as in :class:`Ista`.
        steps: number of steps; the first equals a step of :class:`Ista`.
    Raises:
        ValueError: ``eta`` or ``lam`` is not positive and finite, or ``steps`` is below 1.
    """

    def __init__(self, dim: int, *, eta: float = 0.1, lam: float = 0.1, steps: int = 4):
        super().__init__(dim, dim, eta=eta, lam=lam)
        integers(steps=steps)
        self.steps = steps

    def forward(self, tokens: Batch) -> Batch:
        return fista_steps(tokens, tokens, self.weight, eta=self.eta, lam=self.lam, steps=self.steps)


class OvercompleteIsta(_DictionaryBlock):
    r"""Two ISTA steps from zero with an overcomplete dictionary.

    A second dictionary :math:`\hat D`, the decoder, maps the code back to tokens; the layer adds :math:`Z_2
    \hat D^\top`.

    Args:
        dim: d, width of the tokens.
        ratio: m / d, at least 1; D = ``weight`` and the decoder are d x m.
        eta: step size.
        lam: weight of the l1 norm.
    Raises:
        ValueError: ``eta`` or ``lam`` is not positive and finite, or the ratio is below 1.
    """

    skip = True

    def __init__(self, dim: int, *, ratio: int = 4, eta: float = 0.1, lam: float = 0.1):
        integers(ratio=ratio)
        super().__init__(dim, ratio * dim, eta=eta, lam=lam)
        self.decoder = nn.Parameter(torch.empty(dim, ratio * dim))
        nn.init.kaiming_uniform_(self.decoder, a=0.0)

    def code(self, tokens: Batch) -> Tensor:
        """Computes Z_2, [batch, n, m], sparse and non-negative."""
        return overcomplete_code(tokens, self.weight, eta=self.eta, lam=self.lam)

    def forward(self, tokens: Batch) -> Batch:
        return functional.linear(self.code(tokens), self.decoder)

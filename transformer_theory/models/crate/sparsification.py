r"""Sparsification blocks: ISTA from the tokens themselves in one step or more, FISTA, and an overcomplete dictionary with a decoder.

All read tokens Y [batch, n, d] and return as many; with ``skip`` a block returns what a layer adds to the tokens, without it what takes
their place. Steps: :mod:`~..sparse_coding`. Every block tells ``relative_step()``, its step over the longest that is sure to descend,
for training moves the dictionary and nothing holds it back.
Source: :cite:t:`yu2023white`, :cite:t:`beck2009fast`, :cite:t:`yang2024scaling`.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from .checks import positive
from .compression import Batch
from .sparse_coding import curvature, fista_steps, from_tokens, ista_step, overcomplete_code


class _Dictionary(nn.Module):
    """What the blocks share: a dictionary D = ``weight``, [d, m], the step size eta and the weight lambda of the l1 norm."""

    skip = False

    def __init__(self, dim: int, atoms: int, *, eta: float, lam: float):
        super().__init__()
        positive(eta=eta, lam=lam)
        self.eta, self.lam = eta, lam
        self.weight = nn.Parameter(torch.empty(dim, atoms))
        nn.init.kaiming_uniform_(self.weight, a=0.0)

    def relative_step(self) -> float:
        """eta ||D||_2^2: a step is sure to descend up to 1 and may climb beyond 2."""
        return self.eta * curvature(self.weight.detach())


class Ista(_Dictionary):
    r"""ISTA from Z = Y: :math:`Z \leftarrow \mathrm{relu}(Z + \eta (Y - Z D^\top) D - \eta\lambda)`, which overwrites the tokens (no skip).

    Args:
        dim: d; the dictionary ``weight`` is d x d.
        eta: step size.
        lam: weight of the l1 norm.
        steps: how many; 1 in the papers.
    Raises:
        ValueError: ``eta`` or ``lam`` is not positive and finite, or there is no step. Source: :cite:t:`yu2023white`.
    """

    def __init__(self, dim: int, *, eta: float = 0.1, lam: float = 0.1, steps: int = 1):
        super().__init__(dim, dim, eta=eta, lam=lam)
        _check_steps(steps)
        self.steps = steps

    def forward(self, tokens: Batch) -> Batch:
        code = from_tokens(tokens, self.weight, eta=self.eta, lam=self.lam)
        for _ in range(self.steps - 1):
            code = ista_step(code, tokens, self.weight, eta=self.eta, lam=self.lam)
        return code


class Fista(_Dictionary):
    r"""FISTA from Z = Y: ISTA steps with Nesterov's momentum, which overwrite the tokens (no skip).

    Args:
        dim: d; the dictionary ``weight`` is d x d.
        eta: step size.
        lam: weight of the l1 norm.
        steps: how many; the first is that of :class:`Ista`.
    Raises:
        ValueError: ``eta`` or ``lam`` is not positive and finite, or there is no step. Source: :cite:t:`beck2009fast`.
    """

    def __init__(self, dim: int, *, eta: float = 0.1, lam: float = 0.1, steps: int = 4):
        super().__init__(dim, dim, eta=eta, lam=lam)
        _check_steps(steps)
        self.steps = steps

    def forward(self, tokens: Batch) -> Batch:
        return fista_steps(tokens, tokens, self.weight, eta=self.eta, lam=self.lam, steps=self.steps)


class OvercompleteIsta(_Dictionary):
    r"""Two non-negative ISTA steps from zero in an overcomplete dictionary, decoded by another: a layer adds :math:`Z_2 \hat D^\top`.

    .. math::
        Z_1 = \mathrm{relu}(\eta Y D - \eta\lambda), \qquad Z_2 = \mathrm{relu}(Z_1 + \eta (Y - Z_1 D^\top) D - \eta\lambda).

    Args:
        dim: d.
        ratio: m / d; D = ``weight`` and the decoder are d x m.
        eta: step size.
        lam: weight of the l1 norm.
    Raises:
        ValueError: ``eta`` or ``lam`` is not positive and finite, or the ratio is below 1. Source: :cite:t:`yang2024scaling`.
    """

    skip = True

    def __init__(self, dim: int, *, ratio: int = 4, eta: float = 0.1, lam: float = 0.1):
        if ratio < 1:
            raise ValueError(f"ratio must be at least 1, the atoms a dimension, got {ratio}")
        super().__init__(dim, ratio * dim, eta=eta, lam=lam)
        self.decoder = nn.Parameter(torch.empty(dim, ratio * dim))
        nn.init.kaiming_uniform_(self.decoder, a=0.0)

    def code(self, tokens: Batch) -> Tensor:
        """Z_2, [batch, n, m], sparse and non-negative."""
        return overcomplete_code(tokens, self.weight, eta=self.eta, lam=self.lam)

    def forward(self, tokens: Batch) -> Batch:
        return functional.linear(self.code(tokens), self.decoder)


def _check_steps(steps: int) -> None:
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")

r"""A CRATE layer: a compression block and a sparsification block, each behind a layer norm. Tokens are [batch, n, d].

Source: :cite:t:`yu2023white`.
"""

from torch import nn

from .compression import Batch


class PreNorm(nn.Module):
    """``fn(LayerNorm(tokens))``, with the names of the released networks. Source: :cite:t:`yu2023white`, released code."""

    def __init__(self, dim: int, fn: nn.Module):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.fn = fn

    def forward(self, tokens: Batch) -> Batch:
        return self.fn(self.norm(tokens))


class Layer(nn.Sequential):
    r"""A CRATE layer: compress, :math:`Z^{1/2} = Z + \mathrm{attention}(\mathrm{LN}\,Z)`, then sparsify,
    :math:`Z^+ = \mathrm{sparsify}(\mathrm{LN}\,Z^{1/2})`, added to :math:`Z^{1/2}` if the block has ``skip``.

    Its halves are children 0 and 1, so parameters are named ``0.norm.weight``, ``1.fn.weight``, ... as in the released networks.
    Source: :cite:t:`yu2023white`.
    """

    def __init__(self, dim: int, *, attention: nn.Module, sparsify: nn.Module):
        super().__init__(PreNorm(dim, attention), PreNorm(dim, sparsify))
        self.skip = bool(getattr(sparsify, "skip", False))

    def forward(self, input: Batch) -> Batch:
        half = input + self[0](input)
        return half + self[1](half) if self.skip else self[1](half)

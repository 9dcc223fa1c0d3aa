r"""What the weights of a trained network tell about the assumptions of the theory.

Source: :cite:t:`yu2023white` (the assumptions), :cite:t:`hu2024indepth` (the output matrix).
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity

from ....metrics.coding import subspace_coding_rate
from ....models.crate import Fista, Ista, OvercompleteIsta, ReleasedAttention, ReleasedTokenStatisticsAttention
from ....models.crate.compression import Subspaces
from ....models.crate.subspace_attention import coordinates, expansion, mssa, rate_gradient
from ..layer_curves import compressions
from ..problem import incoherence

EPS = 1.5  # as the paper's form is trained here: beta < 1 needs it at these numbers of tokens


def trained_incoherence(model: nn.Module) -> float:
    """Largest cosine between directions of two subspaces of a layer, mean of the layers. Source: :cite:t:`yu2023white`."""
    return _mean([incoherence(torch.linalg.qr(block.subspaces().detach().double())[0]) for _, _, block in compressions(model)])


def longest_step(model: nn.Module) -> float:
    r"""Largest :math:`\eta \|D\|_2^2` of the layers: ISTA is sure to descend up to 1. Source: :cite:t:`beck2009fast`."""
    return max(block.relative_step() for block in model.modules() if isinstance(block, Ista | Fista | OvercompleteIsta))


def output_alignment(model: nn.Module) -> float:
    r"""Cosine between V_k and U_k^T as vectors of d p numbers, mean over heads and layers: 1 if the output is tied, 0 if unrelated.

    Source: :cite:t:`hu2024indepth`.
    """
    found = []
    for _, _, block in compressions(model):
        assert isinstance(block, ReleasedAttention | ReleasedTokenStatisticsAttention)
        linear = block.to_out[0]
        assert isinstance(linear, nn.Linear)
        output = linear.weight.detach().T.unflatten(0, (block.heads, block.head_dim))  # V_k, [K, p, d]
        found.append(float(cosine_similarity(output.flatten(1), block.subspaces().detach().mT.flatten(1), dim=1).mean()))
    return _mean(found)


def radius(model: nn.Module, inputs: Float[Tensor, "n seq dim"]) -> dict[str, float]:
    r"""Largest eigenvalue that the Neumann series expands in, :math:`\beta\,\|Z U_k\|_2^2`, with the norm and without; median.

    Source: :cite:t:`yu2023white`.
    """
    found: dict[str, list[float]] = {"with the norm": [], "on the stream itself": []}
    for tokens, normed, bases in _streams(model, inputs):
        for name, Z in (("with the norm", normed), ("on the stream itself", tokens)):
            beta = expansion(bases, n=Z.shape[-2], eps=EPS)
            largest = beta * torch.linalg.matrix_norm(coordinates(Z, bases), 2).amax(-1) ** 2
            found[name].append(float(largest.median()))
    return {name: _mean(values) for name, values in found.items()}


def direction(model: nn.Module, inputs: Float[Tensor, "n seq dim"]) -> dict[str, float]:
    r"""Cosine of the descent :math:`-\nabla R^c` with the step of each form on the network's own tokens, orthonormal U_k.

    *paper*: MSSA(Z) - Z; *released*: the change that the trained block makes. Source: :cite:t:`yu2023white`.
    """
    found: dict[str, list[float]] = {"cosine of the paper's step": [], "cosine of the released step": []}
    for (_, _, block), (_, normed, bases) in zip(compressions(model), _streams(model, inputs)):
        downhill = -rate_gradient(normed, bases, eps=EPS).flatten(1)
        with torch.no_grad():
            change = block(normed.float()).double()
        for name, step in zip(found, (mssa(normed, bases, eps=EPS) - normed, change)):
            found[name].append(float(cosine_similarity(step.flatten(1), downhill, dim=1).mean()))
    return {name: _mean(values) for name, values in found.items()}


def growth(model: nn.Module, inputs: Float[Tensor, "n seq dim"]) -> float:
    r"""R^c of the stream after attention over before, lengths kept (in orthonormal bases), mean of the layers.

    Source: :cite:t:`hu2024indepth`.
    """
    found = []
    for (_, _, block), (tokens, normed, bases) in zip(compressions(model), _streams(model, inputs)):
        with torch.no_grad():
            after = tokens + block(normed.float()).double()
        before = subspace_coding_rate(tokens, bases, eps=EPS).mean()
        found.append(float(subspace_coding_rate(after, bases, eps=EPS).mean() / before))
    return _mean(found)


def _streams(model: nn.Module, inputs: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Of every layer: its tokens, these behind its norm, and orthonormal bases of its subspaces, float64."""
    found: list[tuple[Tensor, Tensor, Tensor]] = []

    def hook(norm: nn.Module, block: Subspaces) -> Callable:
        def see(layer: nn.Module, arguments: tuple, output: Tensor) -> None:
            (tokens,) = arguments
            found.append((tokens.double(), norm(tokens).double(), torch.linalg.qr(block.subspaces().double())[0]))

        return see

    handles = [layer.register_forward_hook(hook(norm, block)) for layer, norm, block in compressions(model)]
    try:
        with torch.no_grad():
            model(inputs.to(next(model.parameters()).dtype))
    finally:
        for handle in handles:
            handle.remove()
    return found


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)

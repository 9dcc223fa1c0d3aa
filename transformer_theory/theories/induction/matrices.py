"""The matrices of a network's heads, embedding and unembedding, whatever the layout of its parameters.

W_V and W_O are found by comparing values and outputs with the projections of the attention module on a few
tokens.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ...core.metric import Activations

# largest relative distance of a value from a column of a projection; four roundings in half precision
MATCH_RTOL = 1e-3
SAMPLE = 32  # tokens on which values and projections are compared


def projections(
    module: nn.Module,
) -> list[tuple[Float[Tensor, "d_in d_out"], Float[Tensor, " d_out"] | float]]:
    """Returns matrix ``[d_in, d_out]`` and bias of each linear submodule; GPT-2's ``Conv1D`` stores the
    transpose of ``nn.Linear``.
    """
    found = []
    for each in module.modules():
        weight, bias = getattr(each, "weight", None), getattr(each, "bias", None)
        if isinstance(weight, Tensor) and weight.ndim == 2 and not isinstance(each, nn.Embedding):
            matrix = weight if type(each).__name__ == "Conv1D" else weight.mT
            found.append(
                (
                    matrix.detach().double().cpu(),
                    bias.detach().double().cpu() if isinstance(bias, Tensor) else 0.0,
                )
            )
    return found


def value_and_output(activations: Activations) -> Float[Tensor, "heads 2 dim p"]:
    """Finds W_V and W_O of each head of one module, ``[heads, 2, dim, p]`` with W_O transposed; empty if they
    are not among its projections.

    Columns of a projection belong to the values that they reproduce on a few tokens; the output projection
    reproduces the module's output.
    """
    value, weights, missing = activations.value, activations.weights, torch.empty(0, 2, 0, 0)
    if (
        value is None
        or weights is None
        or len(value) != len(activations.tokens)
        or value.shape[2] != activations.tokens.shape[1]
    ):
        return missing
    heads, p = value.shape[1], value.shape[-1]
    rtol = max(MATCH_RTOL, 4 * torch.finfo(value.dtype).eps)
    tokens = activations.tokens[:4].double().cpu().flatten(0, 1)
    chosen = torch.linspace(0, len(tokens) - 1, min(SAMPLE, len(tokens))).long()
    wanted = value[:4].double().cpu().transpose(1, 2).flatten(0, 1)[chosen].flatten(1)  # [sample, heads * p]
    mixed = (
        (weights[:4].double().cpu() @ value[:4].double().cpu())
        .transpose(1, 2)
        .flatten(0, 1)[chosen]
        .flatten(1)
    )
    output = activations.output[:4].double().cpu().flatten(0, 1)[chosen]
    W_V = W_O = None
    for matrix, bias in projections(activations.module):  # pyright: ignore[reportArgumentType]
        if matrix.shape[0] == tokens.shape[1] and W_V is None:
            columns = tokens[chosen] @ matrix + bias
            distance, nearest = torch.cdist(wanted.mT, columns.mT).min(1)
            if bool((distance <= rtol * wanted.norm(dim=0).clamp_min(1e-6)).all()):
                W_V = matrix[:, nearest]
        if matrix.shape == (heads * p, output.shape[1]):
            error = (mixed @ matrix + bias - output).norm()
            if float(error) <= rtol * float(output.norm()):
                W_O = matrix
    if W_V is None or W_O is None or W_V.shape[0] != W_O.shape[1]:
        return missing
    return torch.stack([W_V.mT.unflatten(0, (heads, p)).mT, W_O.unflatten(0, (heads, p)).mT], 1)


def embedding_product(model: nn.Module) -> Float[Tensor, "dim dim"]:
    """Returns W_U W_E, ``[dim, dim]``; empty if embedding and unembedding do not have the same vocabulary and
    width.
    """
    embedding, unembedding = embedding_of(model), unembedding_of(model)
    if embedding is None or unembedding is None:
        return torch.empty(0, 0)
    return (unembedding.double().mT @ embedding.weight.detach().double()).cpu()


def unembedding_of(model: nn.Module) -> Float[Tensor, "vocabulary dim"] | None:
    """Returns the matrix of the output: what the model names, or else the last ``nn.Linear`` of the
    embedding's shape; None without one.
    """
    embedding = embedding_of(model)
    if embedding is None:
        return None
    named = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None  # pyright: ignore[reportCallIssue]
    layers = [each for each in model.modules() if isinstance(each, nn.Linear)] if named is None else [named]
    found = [
        each.weight.detach() for each in layers if tuple(each.weight.shape) == tuple(embedding.weight.shape)
    ]
    return found[-1] if found else None


def embedding_of(model: nn.Module) -> nn.Embedding | None:
    """Returns the embedding of the ids: what the model names, or else its first ``nn.Embedding``; None if it
    has none.
    """
    try:
        named = model.get_input_embeddings()  # pyright: ignore[reportCallIssue]
    except (AttributeError, NotImplementedError):  # no such method, or a model of images
        named = None
    if isinstance(named, nn.Embedding):
        return named
    return next((each for each in model.modules() if isinstance(each, nn.Embedding)), None)

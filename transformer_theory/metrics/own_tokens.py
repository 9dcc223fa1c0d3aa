"""Whether an attention module attends to the tokens that the probe has seen, or to others, such as the
outputs of an encoder.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from ..core.metric import Activations
from .coding.rates import coordinates

OWN_TOKENS_SAMPLE = 16  # number of tokens per sequence whose scores are compared
# smallest cosine between stored and recomputed scores of a head that attends to its own tokens
OWN_TOKENS_COSINE = 0.9


def attends_elsewhere(activations: Activations) -> bool:
    r"""Returns whether the module attends to tokens other than its own, judged by its queries and keys; False
    if these or the bilinear form W are not known.

    The stored scores of queries and keys are compared with :math:`x^\top W x`. Both are centred over queries
    and over keys, so that biases of the projections and terms common to all keys cancel.
    """
    T, d = activations.tokens.shape[1:]
    query, key = activations.query, activations.key
    if query is None or key is None or len(key) != len(activations.tokens) or not activations.has_bilinear:
        return False
    if activations.query_map is not None and activations.key_map is not None:
        maps = activations.query_map.detach(), activations.key_map.detach()
    else:
        assert activations.bilinear is not None
        maps = activations.bilinear.detach(), torch.eye(d).expand(1, -1, -1).to(activations.bilinear)
    if any(each.shape[-1] != d for each in maps) or maps[0].shape[-2] != maps[1].shape[-2]:
        return False
    if query.shape[2] != T or key.shape[2] < T:
        return True
    # A few tokens of three finite sequences suffice to distinguish the two cases.
    sample = torch.isfinite(activations.tokens[:8]).flatten(1).all(1).nonzero()[:3]
    positions = torch.linspace(0, T - 1, min(T, OWN_TOKENS_SAMPLE), device=sample.device).long()
    # Scores are bilinear, so centred vectors have centred scores. After this step single precision suffices.
    precision = torch.promote_types(maps[0].dtype, torch.float32)
    x = _centred(activations.tokens[sample, positions]).to(precision)
    queries, keys = (
        _centred(vectors.movedim(1, 2)[sample, positions].movedim(2, 1)).to(precision)
        for vectors in (query, key)
    )
    z, y = (coordinates(x, each.to(precision).mT) for each in maps)
    actual, expected = queries @ keys.mT, z @ y.mT
    return float((actual * expected).sum()) < OWN_TOKENS_COSINE * float(actual.norm() * expected.norm())


def _centred(vectors: Float[Tensor, "*batch tokens d"]) -> Float[Tensor, "*batch tokens d"]:
    """Subtracts the mean over the tokens, in float64."""
    vectors = vectors.detach().double()
    return vectors - vectors.mean(-2, keepdim=True)

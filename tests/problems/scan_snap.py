"""Scan-and-snap with known answers: the explicit model with one-hot tokens, the paper's data, and instances
of the theory.
"""

import torch
from torch import Tensor

from transformer_theory.data import TokenData, one_hot
from transformer_theory.theories.scan_snap import SequenceClasses, single_common

# Syn-Small: loss before training is ln 34, and the plateau of the loss after 100 steps with momentum lies
# around 2e-5
SYN_SMALL_PLATEAU = (1e-5, 4e-5)


def one_common(classes: int, vocab_size: int, common_share: float) -> SequenceClasses:
    """One common token and ten distinct ones of weights 0.1 .. 1 per class, one query."""
    weights = torch.linspace(0.1, 1, 10, dtype=torch.float64).expand(classes, -1)
    return single_common(weights, common_share, vocab_size=vocab_size)


def counterexample() -> SequenceClasses:
    """Two common tokens (0 and 1); token 1 is rare in the second class, and its logit grows."""
    P = torch.tensor([[0.3, 0.3, 0.4, 0.0], [0.3, 0.001, 0.0, 0.699]], dtype=torch.float64)
    return SequenceClasses(P, torch.zeros(2, dtype=torch.long), 1000)


def ideal_sequences(
    *,
    classes: int = 2,
    common_share: float = 0.3,
    context: int = 400,
    n: int = 300,
    generator: torch.Generator,
) -> TokenData:
    """Sequences that meet every measurable assumption: one query, one common token, long, weakly overlapping,
    a large vocabulary.
    """
    drawn_from = single_common(
        torch.linspace(0.3, 1, 5, dtype=torch.float64).expand(classes, -1), common_share, vocab_size=1000
    )
    target = torch.arange(n) % classes
    ids = torch.multinomial(drawn_from.conditional[target], context, replacement=True, generator=generator)
    ids = torch.cat([ids, torch.full((n, 1), 500)], dim=1)
    return TokenData(
        torch.zeros(n, context + 1, 1, dtype=torch.float64), ids=ids, next_id=600 + target, vocab_size=1000
    )


def explicit_loss(Y: Tensor, Z: Tensor, ids: Tensor, query: Tensor, target: Tensor) -> Tensor:
    """The model as the paper writes it: one-hot tokens, softmax over positions, norm, decoder, cross-entropy.
    ids [b, t].
    """
    X = one_hot(ids, Z.shape[1]).to(Y)
    weights = torch.softmax(torch.einsum("btl,bl->bt", X, Z[query]), dim=1)
    attended = torch.einsum("bt,btl->bl", weights, X)
    return torch.nn.functional.cross_entropy(attended / attended.norm(dim=1, keepdim=True) @ Y, target)

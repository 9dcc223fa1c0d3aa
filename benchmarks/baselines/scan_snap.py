"""The one-layer model in its plain form: one-hot sequences or, faster, counts of their tokens; two linear
layers, autograd, optim.SGD.
"""

import numpy as np
import torch
from torch import Tensor, nn


class OneLayer(nn.Module):
    """Two M x M matrices without bias; ``attention.weight`` is Z. Ids count contextual tokens first, then
    queries, then next tokens.
    """

    def __init__(self, vocab_size: int):
        super().__init__()
        self.decoder = nn.Linear(vocab_size, vocab_size, bias=False)
        self.attention = nn.Linear(vocab_size, vocab_size, bias=False)

    def of_sequences(self, X: Tensor) -> Tensor:
        """Returns logits ``[batch, M]`` of one-hot sequences ``[batch, T, M]`` that end in the query;
        computes a key per token.
        """
        context, query = X[:, :-1], X[:, -1]
        return self._decode(context, self.attention(context) @ query[:, :, None])

    def _decode(self, context: Tensor, scores: Tensor) -> Tensor:
        weights = torch.softmax(scores[..., 0], dim=1)
        attended = (weights[:, None] @ context)[:, 0]
        return self.decoder(attended / attended.norm(dim=1, keepdim=True))

    def of_counts(self, counts: Tensor, query: Tensor) -> Tensor:
        """Returns the same logits from counts ``[batch, M]`` and one-hot queries ``[batch, M]``."""
        attended = torch.softmax(query @ self.attention.weight + counts.log(), dim=1)
        return self.decoder(attended / attended.norm(dim=1, keepdim=True))


def sequences(
    conditional: Tensor, query: Tensor, vocab_size: int, batch: int, length: int, generator: torch.Generator
):
    """Draws classes ``[batch]`` and ids of tokens ``[batch, T]``, the query last."""
    K, S = conditional.shape
    n = torch.randint(K, (batch,), generator=generator)
    context = torch.multinomial(conditional[n], length - 1, replacement=True, generator=generator)
    return n, torch.cat([context, S + query[n, None]], dim=1)


def counted(
    conditional: np.ndarray,
    query: Tensor,
    vocab_size: int,
    batch: int,
    length: int,
    generator: np.random.Generator,
):
    """Draws classes ``[batch]``, counts and one-hot queries ``[batch, M]``."""
    K, S = conditional.shape
    n = generator.integers(K, size=batch)
    counts = torch.zeros(batch, vocab_size, dtype=torch.float64)
    counts[:, :S] = torch.from_numpy(generator.multinomial(length - 1, conditional[n]))
    classes = torch.from_numpy(n)
    return classes, counts, nn.functional.one_hot(S + query[classes], vocab_size).double()


def optimiser(model: OneLayer, eta_y: float, eta_z: float, momentum: float) -> torch.optim.SGD:
    """Returns SGD with a separate learning rate for each matrix."""
    rates = ((model.decoder, eta_y), (model.attention, eta_z))
    return torch.optim.SGD(
        [{"params": layer.parameters(), "lr": rate} for layer, rate in rates], lr=eta_y, momentum=momentum
    )


def step(model: OneLayer, descent: torch.optim.Optimizer, logits: Tensor, target: Tensor) -> float:
    """Makes one training step and returns its cross-entropy."""
    loss = nn.functional.cross_entropy(logits, target)
    descent.zero_grad()
    loss.backward()
    descent.step()
    return loss.item()

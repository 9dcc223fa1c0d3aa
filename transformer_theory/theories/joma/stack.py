r"""The network of the hierarchy experiments: layers of attention and a ReLU MLP, normalised after each sum, read at the last position.

.. math:: Z' = \mathrm{LN}(Z + \mathrm{softmax}_{\text{causal}}(Z W_Q W_K^\top Z^\top / \sqrt d)\, Z W_V), \qquad
    h = \mathrm{relu}(Z' W_1 + b_1), \qquad Z^{l+1} = \mathrm{LN}(Z' + h W_2 + b_2) .

One head, no matrix after it, no positions. So a run of padding at the head of a sequence is one token many times over: each of its copies
sees only copies of itself. :class:`Stack` keeps one copy and adds the logarithm of their number to its scores, which is exact and makes a
sequence of 30 one of at most 9. Source: :cite:t:`tian2024joma`, Table 1 (and its released code, for the sizes).
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

Stream = Float[Tensor, "n t d"]


@dataclass(frozen=True, eq=False)
class Inside:
    """What a layer computed on the way.

    Attributes:
        hidden: h after the ReLU, ``[n, t, width]``.
        entropy: of the attention of the last position, over all copies, nats, ``[n]``.
    """

    hidden: Float[Tensor, "n t width"]
    entropy: Float[Tensor, " n"]


class Layer(nn.Module):
    """Attention and MLP, see the module's docstring.

    Args:
        dim, width: of the stream and of the MLP.
    Source: :cite:t:`tian2024joma`.
    """

    def __init__(self, dim: int, width: int):
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.lower, self.upper = nn.Linear(dim, width), nn.Linear(width, dim)
        self.attention_norm, self.mlp_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)

    def forward(self, tokens: Stream, copies: Float[Tensor, " t"]) -> tuple[Stream, Inside]:
        query, key, value = self.qkv(tokens).chunk(3, dim=-1)
        later = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool, device=tokens.device).triu(1)
        scores = (query @ key.mT / math.sqrt(tokens.shape[-1]) + copies.log()).masked_fill(later, -math.inf)
        weights = torch.softmax(scores, dim=-1)
        tokens = self.attention_norm(tokens + weights @ value)
        hidden = torch.relu(self.lower(tokens))
        last = weights[:, -1].detach()
        entropy = (torch.special.entr(last) + last * copies.log()).sum(-1)
        return self.mlp_norm(tokens + self.upper(hidden)), Inside(hidden, entropy)


class Stack(nn.Module):
    """Words in, logits of the class at the last position out.

    Args:
        vocabulary, classes: words and classes.
        dim, width, depth: of the stream, of the MLPs, number of layers.
    Source: :cite:t:`tian2024joma`.
    """

    def __init__(self, *, vocabulary: int, classes: int, dim: int = 1024, width: int = 400, depth: int = 3):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, dim)
        self.layers = nn.ModuleList(Layer(dim, width) for _ in range(depth))
        self.head = nn.Linear(dim, classes)

    def forward(self, ids: Int[Tensor, "n L"]) -> Float[Tensor, "n classes"]:
        return self.look_inside(ids)[0]

    def look_inside(self, ids: Int[Tensor, "n L"]) -> tuple[Float[Tensor, "n classes"], tuple[Inside, ...]]:
        """Logits, and what each layer computed on the way (t positions: the copies of the padding stand first, as one).

        Args:
            ids: ``[n, L]``; what all sequences have in common at their heads, copies of one word, is read once.
        """
        alike = (ids == ids[:1, :1]).all(0).long().cumprod(0)
        run = max(1, int(alike.sum()))
        copies = torch.ones(ids.shape[1] - run + 1, device=ids.device)
        copies[0] = run
        tokens, inside = self.embedding(ids[:, run - 1 :]), []
        for layer in self.layers:
            tokens, found = layer(tokens, copies)
            inside.append(found)
        return self.head(tokens[:, -1]), tuple(inside)

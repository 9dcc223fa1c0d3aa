r"""Networks of the ladder, from softmax attention on words to several layers, and the attention logits of
words in them.

The *logit of a word* l for the query is the mean, over the occurrences of l in the context, of the score of
the query's attention in the first layer, averaged over heads. There the query is the same vector in all
sequences, so scores of different sequences are comparable.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ....models.vit import Attention, Block


class SoftmaxAttention(nn.Module):
    """Softmax attention over words with free logits, without normalisation; counts ``[batch, S]`` to logits
    ``[batch, classes]``.

    The attended tokens of a sequence are softmax(z + ln counts), and a linear decoder reads them. Weights
    start at zero.

    Args:
        words, classes: S, and number of outputs.
    """

    def __init__(self, words: int, classes: int):
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(words))
        self.decoder = nn.Parameter(torch.zeros(words, classes))

    def forward(self, counts: Float[Tensor, "batch S"]) -> Float[Tensor, "batch classes"]:
        return torch.softmax(self.logits + counts.log(), -1) @ self.decoder


class WordNetwork(nn.Module):
    """A network on one-hot words whose last token is the query, ``[batch, seq, words]`` to logits ``[batch,
    classes]``.

    Args:
        words, seq, classes: number of words, tokens per sequence, number of outputs.
        dim: width.
        positions: whether learnt positions are added to the tokens.
        blocks: number of full layers (residual stream, LayerNorm, MLP). 0: a single attention layer without
            them.
    """

    def __init__(
        self, words: int, seq: int, classes: int, *, dim: int = 32, positions: bool = False, blocks: int = 0
    ):
        super().__init__()
        self.embed = nn.Linear(words, dim, bias=False)
        # as in nn.Embedding; the default bound 1 / sqrt(words) suits dense inputs
        nn.init.normal_(self.embed.weight)
        self.positions = nn.Parameter(0.02 * torch.randn(seq, dim)) if positions else None
        self.blocks = (
            nn.ModuleList(Block(dim, heads=1) for _ in range(blocks))
            if blocks
            else nn.ModuleList([Attention(dim, heads=1)])
        )
        self.norm = nn.LayerNorm(dim) if blocks else nn.Identity()
        self.head = nn.Linear(dim, classes)

    def forward(self, words: Float[Tensor, "batch seq words"]) -> Float[Tensor, "batch classes"]:
        tokens = self.embed(words) if self.positions is None else self.embed(words) + self.positions
        for block in self.blocks:
            tokens = block(tokens)
        return self.head(self.norm(tokens[:, -1]))


@torch.no_grad()
def word_logits(
    model: nn.Module, inputs: Tensor, words: Int[Tensor, "n context"], *, count: int, query: int = -1
) -> Float[Tensor, " words"]:
    """Returns the mean logit of each word in the first attention layer, float64, ``[words]``; 0 for words
    that do not occur.

    Args:
        model: network whose first attention is an :class:`~transformer_theory.models.vit.Attention`, in
            evaluation mode.
        inputs: inputs of the network for n sequences.
        words: words of the context, ``[n, context]``: all tokens but the query.
        count: number of words.
        query: position of the query: 0 (the context follows) or -1 (the context precedes it).
    """
    attention = next(module for module in model.modules() if isinstance(module, Attention))
    caught: list[Tensor] = []
    handle = attention.register_forward_pre_hook(lambda _, inputs: caught.append(inputs[0]))
    try:
        model(inputs)
    finally:
        handle.remove()
    tokens = caught[0].double()
    context = tokens[:, :-1] if query == -1 else tokens[:, 1:]
    # score(key token x, query token z) = x^T W z, and W is averaged over the heads.
    # [n, context]
    scores = (context @ attention.bilinear().double().mean(0) @ tokens[:, query, :, None])[..., 0]
    total = torch.zeros(count, dtype=torch.float64).index_add_(0, words.flatten(), scores.flatten())
    return total / torch.bincount(words.flatten(), minlength=count).clamp(min=1)

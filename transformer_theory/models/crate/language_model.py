r"""Causal CRATE: a language model whose layers compress each token given the tokens before it, then sparsify
it.

    Z^0 = embedding[ids] + positions,      layers with causal attention,      logits = head(LN(Z^L))

Position i predicts token i + 1 from tokens 1 ... i: attention is causal, and sparsification acts on each
token separately. The released language model (:meth:`CRATELanguageModel.from_released`) has no norm before
its head, and its head is the embedding. Shapes: ids [batch, n] with n <= context, logits [batch, n,
vocabulary].
Source: :cite:t:`yu2023white` (layers), released code. The causal rate is derived in :mod:`.compression`.
"""

import inspect
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrize

from ...core.validation import integers, positive
from ..embedding import check_ids
from ..weights import empty_model, fill, renamed, unwrap
from .attention import CausalReleasedAttention, Past
from .layers import Layer, Stack
from .released import LANGUAGE, language_model_sizes
from .sparsification import Ista

INITIAL_STD = 0.02  # standard deviation of the initial embedding: the logits of a tied head start near zero
# Names of released weights, as regular expressions, and their names in this library.
RENAMES = (
    (r"^transformer\.wte\.weight$", "embedding.weight"),
    (r"^transformer\.wpe\.weight$", "pos_embedding"),
    (r"^lm_head\.", "head."),
    (r"^transformer\.h\.(\d+)\.prenorm_1\.", r"transformer.layers.\1.0.norm."),
    (r"^transformer\.h\.(\d+)\.attn\.c_attn\.", r"transformer.layers.\1.0.fn.qkv."),
    (r"^transformer\.h\.(\d+)\.attn\.c_proj\.", r"transformer.layers.\1.0.fn.to_out.0."),
    (r"^transformer\.h\.(\d+)\.prenorm_2\.", r"transformer.layers.\1.1.norm."),
    (r"^transformer\.h\.(\d+)\.ista\.", r"transformer.layers.\1.1.fn."),
)
# the released files store a constant causal mask, which is not a weight
MASK = re.compile(r"transformer\.h\.\d+\.attn\.bias")
EMBEDDING, HEAD = "transformer.wte.weight", "lm_head.weight"


def _with_context(context: int, attention: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    """Returns the constructor of a block, with ``context`` bound if the block requires it."""
    if not callable(attention):
        return attention  # Stack raises the error
    parameter = inspect.signature(attention).parameters.get("context")
    required = parameter is not None and parameter.default is inspect.Parameter.empty
    return partial(attention, context=context) if required else attention


class CRATELanguageModel(nn.Module):
    """A causal language model. Its head is a separate matrix unless :func:`tie_head` replaces it with the
    embedding.

    Args:
        vocabulary: number of different tokens.
        context: length of the longest sequence.
        dim, depth, heads, head_dim: width, number of layers, number of heads and their width. head_dim
            defaults to dim / heads.
        attention: constructor of the causal blocks, called as ``attention(dim, heads=..., head_dim=...)`` for
            each layer. A block that requires ``context=``, such as ``CausalExactAttention``, receives the
            context of the model unless ``context`` is already bound, as in ``partial(CausalExactAttention,
            context=64)``.
        sparsify: constructor of the sparsification blocks, called as ``sparsify(dim)`` for each layer.
        norm: constructor of the module before the head, called as ``norm(dim)``; ``nn.Identity`` in the
            released network.
    Raises:
        ValueError: the sizes do not fit, or the attention is not causal.
    """

    def __init__(
        self,
        *,
        vocabulary: int,
        context: int,
        dim: int,
        depth: int,
        heads: int,
        head_dim: int | None = None,
        attention: Callable[..., nn.Module] = CausalReleasedAttention,
        sparsify: Callable[[int], nn.Module] = Ista,
        norm: Callable[[int], nn.Module] = nn.LayerNorm,
    ):
        super().__init__()
        integers(vocabulary=vocabulary, context=context)
        self.context = context
        self.embedding = nn.Embedding(vocabulary, dim)
        self.pos_embedding = nn.Parameter(INITIAL_STD * torch.randn(context, dim))
        attention = _with_context(context, attention)
        self.transformer = Stack(
            dim, depth=depth, heads=heads, head_dim=head_dim, attention=attention, sparsify=sparsify
        )
        self.norm = norm(dim)
        self.head = nn.Linear(dim, vocabulary, bias=False)
        for matrix in (self.embedding.weight, self.head.weight):
            nn.init.normal_(matrix, std=INITIAL_STD)
        for layer in self.transformer.layers:
            assert isinstance(layer, Layer)
            block = getattr(layer[0], "fn", None)
            if not getattr(block, "is_causal", False):
                raise ValueError(
                    f"attention must be causal, got {type(block).__name__}, which sees the tokens it has to "
                    "predict"
                )

    @classmethod
    def from_released(
        cls, state_dict: Mapping[str, Any], *, heads: int | None = None
    ) -> "CRATELanguageModel":
        """Builds a causal CRATE with released weights and a tied head, in evaluation mode. The weights
        determine the sizes.

        Args:
            state_dict: the weights of the released language model, as :func:`.load_weights` returns them, or
                a checkpoint that :func:`.unwrap` accepts. Attention masks are ignored. Either the embedding
                or ``lm_head.weight`` may be absent.
            heads: number of heads, which the weights do not determine. None: heads of width 64, as in all
                released sizes.
        Returns:
            A network on the CPU with copies of the weights, in the dtype of the embedding; ``model(ids
            [batch, n])`` returns logits.
        Raises:
            ValueError: weights are missing, unknown or of another shape (the message lists them by their
                names in this library), the head differs from the embedding, or the heads do not fit.
        """
        released = unwrap(state_dict, expected=LANGUAGE)
        weights = {name: value for name, value in released.items() if not MASK.fullmatch(name)}
        # The head is the embedding, so either weight determines the other.
        for name, other in ((EMBEDDING, HEAD), (HEAD, EMBEDDING)):
            if other in weights:
                weights.setdefault(name, weights[other])
        if EMBEDDING in weights and not torch.equal(weights[EMBEDDING], weights[HEAD]):
            raise ValueError(
                f"{HEAD} must be {EMBEDDING}, as in the released network, got two different matrices; leave "
                "one out"
            )
        sizes = language_model_sizes(weights, heads=heads)
        # Tie after allocation: moving a module from the meta device replaces its parameters and would untie
        # them.
        model = tie_head(empty_model(lambda: cls(**sizes, norm=nn.Identity), dtype=weights[EMBEDDING].dtype))
        fill(model, renamed(weights, RENAMES))
        return model.eval()

    def forward(self, ids: Int[Tensor, "batch n"]) -> Float[Tensor, "batch n vocabulary"]:
        check_ids(ids, vocabulary=self.embedding.num_embeddings, context=self.context)
        tokens = self.embedding(ids) + self.pos_embedding[: ids.shape[1]]
        return self.head(self.norm(self.transformer(tokens)))

    def loss(self, ids: Int[Tensor, "batch n"]) -> Float[Tensor, ""]:
        """Computes the mean cross-entropy of the next token in nats, over n - 1 positions of each sequence.

        Args:
            ids: sequences, [batch, n] with 2 <= n <= context + 1.
        Raises:
            ValueError: the shape or a value does not fit.
        """
        if ids.ndim != 2 or ids.shape[1] < 2:
            raise ValueError(
                "ids must have shape [batch, n] with n >= 2, so that there is a token to predict, got "
                f"{list(ids.shape)}"
            )
        return functional.cross_entropy(self(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())

    @torch.no_grad()
    def generate(
        self, ids: Int[Tensor, "batch n"], count: int, *, generator: torch.Generator, temperature: float = 1.0
    ) -> Int[Tensor, "batch longer"]:
        """Appends ``count`` sampled tokens to each sequence, [batch, n + count]. Each sample depends on the
        last ``context`` tokens.

        As long as a sequence fits into the context, the layers store what they need of its tokens, and each
        new token costs one pass over a single token. Longer sequences, blocks without ``extend`` and networks
        with forward hooks are passed as a whole for every token.

        Args:
            ids: prompts, [batch, n] with n >= 1.
            count: number of tokens to add, >= 0.
            generator: source of the samples.
            temperature: divisor of the logits, > 0.
        Raises:
            ValueError: ``ids`` do not fit, or a number is out of range.
        """
        integers(minimum=0, count=count)
        positive(temperature=temperature)
        if not count:
            return ids
        check_ids(ids[:, -self.context :], vocabulary=self.embedding.num_embeddings, context=self.context)
        extensible = self.transformer.extensible()
        with parametrize.cached():  # a constrained matrix is computed once, not once per token
            past = None
            for _ in range(count):
                if extensible and ids.shape[1] <= self.context:
                    logits, past = self._extend(ids, past)
                else:  # beyond the context the positions of all tokens change with every new one
                    logits = self(ids[:, -self.context :])[:, -1]
                chosen = torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator)
                ids = torch.cat([ids, chosen.to(ids.dtype)], dim=1)
        return ids

    def _extend(
        self, ids: Int[Tensor, "batch n"], past: list[Past] | None
    ) -> tuple[Float[Tensor, "batch vocabulary"], list[Past]]:
        """Computes the logits after the last token from what each layer stored of the tokens before, and what
        it stores of all tokens.
        """
        start = past[0][0] if past else 0  # number of tokens that the layers have seen
        tokens = self.embedding(ids[:, start:]) + self.pos_embedding[start : ids.shape[1]]
        tokens, past = self.transformer.extend(tokens, past or [None] * len(self.transformer.layers))
        return self.head(self.norm(tokens[:, -1])), past


def tie_head(model: CRATELanguageModel) -> CRATELanguageModel:
    """Uses the embedding as the head, so that each token has one vector for input and output. Changes the
    model in place and returns it.
    """
    model.head.weight = model.embedding.weight
    return model

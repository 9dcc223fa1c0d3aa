r"""Causal CRATE: a language model whose layers compress every token given those before it, then sparsify it.

    Z^0 = embedding[ids] + positions,      layers with causal attention,      logits = head(LN(Z^L))

Position i predicts token i + 1 from tokens 1 ... i: attention is causal, and sparsification acts token by token. The released language
model (:meth:`CRATELanguageModel.from_released`) has no norm before its head, and its head is the embedding.
Shapes: ids [batch, n] with n <= context, logits [batch, n, vocabulary].
Source: :cite:t:`yu2023white` (the layers), released code; the causal rate is derived in :mod:`.compression`.
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

from ...core.validation import integers
from ..weights import fill, unwrap
from .attention import CausalReleasedAttention
from .layers import Layer, Stack
from .released import language_model_sizes
from .sparsification import Ista

INITIAL_STD = 0.02  # of the embedding: logits of a tied head start near zero
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
MASK = re.compile(r"transformer\.h\.\d+\.attn\.bias")  # ones on and below the diagonal, no weight
EMBEDDING, HEAD = "transformer.wte.weight", "lm_head.weight"


def _with_context(context: int, attention: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    """The constructor of a block, with the context bound if the block requires one."""
    if not callable(attention):
        return attention  # the stack raises the error
    parameter = inspect.signature(attention).parameters.get("context")
    required = parameter is not None and parameter.default is inspect.Parameter.empty
    return partial(attention, context=context) if required else attention


class CRATELanguageModel(nn.Module):
    """A decoder of tokens; its head is a matrix of its own unless :func:`tie_head` makes it the embedding.

    Args:
        vocabulary: number of different tokens.
        context: the longest sequence.
        dim, depth, heads, head_dim: sizes; head_dim is dim / heads if None.
        attention: called as ``attention(dim, heads=..., head_dim=...)`` for each layer: a causal block. A block that requires ``context=``,
            such as ``CausalExactAttention``, gets that of the model; ``partial(CausalExactAttention, context=64)`` keeps its own.
        sparsify: called as ``sparsify(dim)`` for each layer.
        norm: called as ``norm(dim)``: the module before the head, ``nn.Identity`` in the released network.
    Raises:
        ValueError: sizes do not fit, or the attention is not causal.
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
        self.transformer = Stack(dim, depth=depth, heads=heads, head_dim=head_dim, attention=attention, sparsify=sparsify)
        self.norm = norm(dim)
        self.head = nn.Linear(dim, vocabulary, bias=False)
        for matrix in (self.embedding.weight, self.head.weight):
            nn.init.normal_(matrix, std=INITIAL_STD)
        for layer in self.transformer.layers:
            assert isinstance(layer, Layer)
            block = getattr(layer[0], "fn", None)
            if not getattr(block, "is_causal", False):
                raise ValueError(f"attention must be causal, got {type(block).__name__}, which sees the tokens it has to predict")

    @classmethod
    def from_released(cls, state_dict: Mapping[str, Any], *, heads: int | None = None) -> "CRATELanguageModel":
        """A network with the weights of a released causal CRATE, in evaluation mode, its head tied; sizes are taken from the weights.

        Args:
            state_dict: names and shapes of the released language model, or a checkpoint that :func:`.unwrap` takes; of a file, what
                :func:`.load_weights` returns. Attention masks are ignored; one of the embedding and ``lm_head.weight`` is enough.
            heads: number of heads, which the weights do not show; if None, heads of width 64 as in all released sizes.
        Returns:
            a network in the dtype of the embedding, on the CPU, with copies of the weights; ``model(ids [batch, n])`` gives logits.
        Raises:
            ValueError: weights are missing, unknown or of another shape (all are listed, by the names they have here), the head is not
                the embedding, or heads do not fit.
        """
        weights = {name: value for name, value in unwrap(state_dict).items() if not MASK.fullmatch(name)}
        for name, other in ((EMBEDDING, HEAD), (HEAD, EMBEDDING)):
            if other in weights:
                weights.setdefault(name, weights[other])
        if EMBEDDING in weights and not torch.equal(weights[EMBEDDING], weights[HEAD]):
            raise ValueError(f"{HEAD} must be {EMBEDDING}, as in the released network, got two different matrices; leave one out")
        with torch.device("meta"):  # no random numbers for weights that are about to be replaced
            model = cls(**language_model_sizes(weights, heads=heads), norm=nn.Identity)
        model = tie_head(model.to(weights[EMBEDDING].dtype).to_empty(device="cpu"))
        fill(model, {_renamed(name): value for name, value in weights.items()})
        return model.eval()

    def forward(self, ids: Int[Tensor, "batch n"]) -> Float[Tensor, "batch n vocabulary"]:
        self._check(ids)
        tokens = self.embedding(ids) + self.pos_embedding[: ids.shape[1]]
        return self.head(self.norm(self.transformer(tokens)))

    def loss(self, ids: Int[Tensor, "batch n"]) -> Float[Tensor, ""]:
        """Mean cross-entropy of the next token in nats, over n - 1 positions of each sequence.

        Args:
            ids: [batch, n] with 2 <= n <= context + 1.
        Raises:
            ValueError: shape or values do not fit.
        """
        if ids.ndim != 2 or ids.shape[1] < 2:
            raise ValueError(f"ids must have shape [batch, n] with n of at least 2, one to predict, got {list(ids.shape)}")
        return functional.cross_entropy(self(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())

    @torch.no_grad()
    def generate(
        self, ids: Int[Tensor, "batch n"], count: int, *, generator: torch.Generator, temperature: float = 1.0
    ) -> Int[Tensor, "batch longer"]:
        """The sequences continued by ``count`` sampled tokens, [batch, n + count]; only the last ``context`` tokens are read.

        Args:
            ids: the prompts, n >= 1.
            count: number of tokens to add, >= 0.
            generator: of the samples.
            temperature: divides the logits.
        Raises:
            ValueError: ``ids`` do not fit, or a number is out of range.
        """
        if count < 0 or not 0 < temperature < float("inf"):
            raise ValueError(f"count must be >= 0 and temperature positive and finite, got {count} and {temperature}")
        for _ in range(count):
            logits = self(ids[:, -self.context :])[:, -1] / temperature
            ids = torch.cat([ids, torch.multinomial(logits.softmax(-1), 1, generator=generator).to(ids.dtype)], dim=1)
        return ids

    def _check(self, ids: Tensor) -> None:
        if ids.ndim != 2 or not 1 <= ids.shape[1] <= self.context:
            raise ValueError(f"ids must have shape [batch, n] with n from 1 to {self.context}, got {list(ids.shape)}; cut the sequences")
        if ids.dtype not in (torch.int32, torch.int64):
            raise ValueError(f"ids must be torch.int32 or torch.int64, got {ids.dtype}; convert them")
        if ids.device.type == "cpu" and ids.numel():  # on an accelerator the check would wait for the device
            low, high = (int(value) for value in torch.aminmax(ids))
            if low < 0 or high >= self.embedding.num_embeddings:
                raise ValueError(f"ids must lie in [0, {self.embedding.num_embeddings}), got {low} to {high}; pass vocabulary={high + 1}")


def tie_head(model: CRATELanguageModel) -> CRATELanguageModel:
    """Makes the embedding the head: a token has one vector for input and output. The model is changed, and returned."""
    model.head.weight = model.embedding.weight
    return model


def _renamed(name: str) -> str:
    for pattern, replacement in RENAMES:
        name = re.sub(pattern, replacement, name)
    return name

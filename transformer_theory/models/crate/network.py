r"""CRATE, a classifier in which each layer is one compression step and one sparsification step.

    Z^0 = [class token; embedded tokens] + positions
    Z^{l+1/2} = Z^l + attention(LN(Z^l)),      Z^{l+1} = ISTA(LN(Z^{l+1/2}))  (no skip),
                                               logits = head(LN(Z^L)[class token])

With ``pooling="mean"`` the head reads the mean of all tokens instead of the class token.

The compression block is an argument: :class:`.ReleasedAttention` (free output matrix, as in the released
networks), :class:`.PaperAttention` (tied, with the paper's shrinkage), :class:`.ExactAttention` (gradient
step) or another block. Parameters have the names of the released networks. Shapes: tokens [batch, 1 + seq,
dim], heads [batch, heads, 1 + seq, head_dim].

Source: :cite:t:`yu2023white`, released code.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ...core.validation import integers
from ..embedding import Patches, Tokens, check_inputs
from ..weights import empty_model, fill, renamed, unwrap
from .attention import ReleasedAttention
from .layers import Stack, layers_of
from .released import CLASSIFIER, classifier_sizes
from .sparsification import Ista

Pooling = Literal["cls", "mean"]
RENAMES = ((r"^head\.", "mlp_head.2."),)  # the second map of the fine-tuned layout


class CRATE(nn.Module):
    """A CRATE with a class token; build it with :meth:`for_images`, :meth:`for_tokens` or
    :meth:`from_released`.

    Args:
        embedding: module that maps the input to [batch, seq, dim].
        seq: number of tokens without the class token.
        num_classes, dim, depth, heads, head_dim: number of classes, width, number of layers, number of heads
            and their width. head_dim defaults to dim / heads.
        attention: constructor of the compression blocks, called as ``attention(dim, heads=...,
            head_dim=...)`` for each layer. It may be a class of :mod:`transformer_theory.models.crate` or any
            other block with the same interface.
        sparsify: constructor of the sparsification blocks, called as ``sparsify(dim)`` for each layer.
        spread: standard deviation of the initial positions and class token. Embedded tokens have standard
            deviation 1.
        pooling: input of the head: "cls", the class token, or "mean", the mean of all tokens including the
            class token.
    Raises:
        ValueError: the sizes do not fit, ``pooling`` is unknown, or the attention is causal: the class token
            comes first and would see only itself.
    """

    def __init__(
        self,
        embedding: nn.Module,
        *,
        seq: int,
        num_classes: int,
        dim: int,
        depth: int,
        heads: int,
        head_dim: int | None = None,
        attention: Callable[..., nn.Module] = ReleasedAttention,
        sparsify: Callable[[int], nn.Module] = Ista,
        spread: float = 1.0,
        pooling: Pooling = "cls",
    ):
        super().__init__()
        integers(num_classes=num_classes, dim=dim)
        self.pooling = checked_pooling(pooling)
        self.to_patch_embedding = embedding
        self.pos_embedding = nn.Parameter(spread * torch.randn(1, 1 + seq, dim))
        self.cls_token = nn.Parameter(spread * torch.randn(1, 1, dim))
        self.transformer = Stack(
            dim, depth=depth, heads=heads, head_dim=head_dim, attention=attention, sparsify=sparsify
        )
        for _, half in layers_of(self.transformer):
            if getattr(half.fn, "is_causal", False):
                raise ValueError(
                    f"attention must see all tokens, got {type(half.fn).__name__}, in which the class "
                    "token, the first, sees only itself; pass a block that is not causal, or build a "
                    "CRATELanguageModel"
                )
        self.mlp_head = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, num_classes))

    @classmethod
    def for_images(
        cls, *, image_size: int, patch_size: int, num_classes: int, dim: int, channels: int = 3, **sizes
    ) -> "CRATE":
        """Builds a network that maps images [batch, channels, image_size, image_size] to logits [batch,
        num_classes].

        Patches are layer-normalised before and after their embedding.

        Args:
            sizes: depth, heads and other arguments of the class.
        Raises:
            ValueError: the sizes do not fit.
        """
        integers(dim=dim)
        patches = Patches(image_size=image_size, patch_size=patch_size, channels=channels)
        embedding = nn.Sequential(
            patches, nn.LayerNorm(patches.dim), nn.Linear(patches.dim, dim), nn.LayerNorm(dim)
        )
        return cls(embedding, seq=patches.seq, num_classes=num_classes, dim=dim, **sizes)

    @classmethod
    def for_tokens(
        cls,
        seq: int,
        token_dim: int,
        num_classes: int,
        *,
        dim: int = 96,
        depth: int = 2,
        heads: int = 4,
        **sizes,
    ) -> "CRATE":
        """Builds a network that maps tokens [batch, seq, token_dim] (``TokenData.tokens``) to logits [batch,
        num_classes].

        Tokens are not normalised before their embedding: a norm over a few pixels would erase the brightness
        of a patch.

        Args:
            sizes: other arguments of the class, e.g. ``attention=PaperAttention``.
        Raises:
            ValueError: the sizes do not fit.
        """
        integers(dim=dim)
        embedding = nn.Sequential(
            Tokens(seq=seq, dim=token_dim), nn.Linear(token_dim, dim), nn.LayerNorm(dim)
        )
        return cls(embedding, seq=seq, num_classes=num_classes, dim=dim, depth=depth, heads=heads, **sizes)

    @classmethod
    def from_released(
        cls,
        state_dict: Mapping[str, Any],
        image_size: int = 32,
        patch_size: int = 4,
        *,
        heads: int | None = None,
        eta: float = 0.1,
        lam: float = 0.1,
        pooling: Pooling = "cls",
    ) -> "CRATE":
        """Builds a CRATE with released weights, in evaluation mode.

        Args:
            state_dict: the weights of the released image classifier, as :func:`.load_weights` returns them,
                or a checkpoint that :func:`.unwrap` accepts. In the fine-tuned layout a second linear map
                ``head`` follows ``mlp_head``.
            image_size, patch_size: sides in pixels with which the network was trained. The weights determine
                all other sizes but heads.
            heads: number of heads, which the weights do not determine. None: heads of width 64 (48 for width
                576), as released. Required for width 768, with which networks of 12 and of 6 heads were
                released.
            eta, lam: step size and threshold of ISTA, and ``pooling``, the input of the head. The weights do
                not determine them. The defaults are those of the released networks; a network that was
                trained with other values needs these.
            pooling: "cls" or "mean", see :class:`CRATE`.
        Returns:
            A network on the CPU with copies of the weights, in the dtype of ``pos_embedding``; ``model(images
            [batch, c, h, w])`` returns logits. Half precision needs an accelerator; call ``.float()`` to run
            it on a CPU.
        Raises:
            ValueError: weights are missing, unknown, of another shape or not finite (the message lists them),
                the heads are missing or do not fit, or ``eta``, ``lam`` or ``pooling`` is out of range.
        """
        weights = renamed(unwrap(state_dict, expected=CLASSIFIER), RENAMES)
        sizes = classifier_sizes(weights, image_size=image_size, patch_size=patch_size, heads=heads)
        ista = partial(Ista, eta=eta, lam=lam)

        def constructor() -> CRATE:
            model = cls.for_images(**sizes, sparsify=ista, pooling=pooling)
            if (second := weights.get("mlp_head.2.weight")) is not None and second.ndim == 2:
                model.mlp_head.append(nn.Linear(second.shape[1], second.shape[0]))
            return model

        model = empty_model(constructor, dtype=weights["pos_embedding"].dtype)
        fill(model, weights)
        return model.eval()

    def forward(self, inputs: Tensor) -> Float[Tensor, "batch classes"]:
        check_inputs(inputs, self.pos_embedding)
        embedded = self.to_patch_embedding(inputs)
        tokens = (
            torch.cat([self.cls_token.expand(embedded.shape[0], -1, -1), embedded], dim=1)
            + self.pos_embedding
        )
        features = self.transformer(tokens)
        return self.mlp_head(features.mean(1) if self.pooling == "mean" else features[:, 0])


def checked_pooling(pooling: Pooling) -> Pooling:
    """Returns the pooling.

    Raises:
        ValueError: the pooling is unknown.
    """
    if pooling not in get_args(Pooling):
        raise ValueError(f"pooling must be one of {', '.join(map(repr, get_args(Pooling)))}, got {pooling!r}")
    return pooling


def crate_tiny(num_classes: int = 1000) -> CRATE:
    """Builds CRATE-T: 6.09 M parameters with 1000 classes; images [batch, 3, 224, 224], patches of
    16 pixels.
    """
    return _imagenet_crate(num_classes, dim=384, heads=6, depth=12)


def crate_small(num_classes: int = 1000) -> CRATE:
    """Builds CRATE-S: 13.12 M parameters with 1000 classes; images [batch, 3, 224, 224], patches of 16
    pixels.
    """
    return _imagenet_crate(num_classes, dim=576, heads=12, depth=12)


def crate_base(num_classes: int = 1000) -> CRATE:
    """Builds CRATE-B: 22.80 M parameters with 1000 classes; images [batch, 3, 224, 224], patches of 16
    pixels.
    """
    return _imagenet_crate(num_classes, dim=768, heads=12, depth=12)


def crate_large(num_classes: int = 1000) -> CRATE:
    """Builds CRATE-L: 77.64 M parameters with 1000 classes; images [batch, 3, 224, 224], patches of 16
    pixels.
    """
    return _imagenet_crate(num_classes, dim=1024, heads=16, depth=24)


def _imagenet_crate(num_classes: int, **sizes) -> CRATE:
    return CRATE.for_images(image_size=224, patch_size=16, num_classes=num_classes, **sizes)

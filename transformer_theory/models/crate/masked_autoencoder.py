r"""CRATE-MAE: an autoencoder that reconstructs the masked patches of images; each decoder layer inverts an
encoder layer.

    Z^0 = [class token; embedded patches, with the mask token in place of masked patches] + positions
    encoder layer   Z^{l+1/2} = Z^l + attention(LN(Z^l)),      Z^{l+1} = ISTA(LN(Z^{l+1/2})), lambda = 0.5
    between         Y^0 = LN(Z^L)
    decoder layer   Y^{l+1/2} = LN(Y^l) D^T (a rotation in the theory, free here),
                    Y^{l+1} = Y^{l+1/2} - attention(LN(Y^{l+1/2}))
    loss            mean squared error over the masked patches, whose pixels are a linear map of LN(Y^L)

Unlike in other masked autoencoders, the encoder processes the mask tokens too, and it has the same width as
the decoder. Positions are fixed sines and cosines. The weights have the names of the released network
(:meth:`CRATEMAE.from_released`). The published sizes count three weights that the forward pass does not use:
``pos_embed``, a second table of positions (the forward pass adds ``decoder_pos_embed``), and the weight and
bias of ``decoder_embed``, a linear map between encoder and decoder. Shapes: images [batch, c, h, w], masks
[batch, seq], tokens [batch, 1 + seq, dim], patches [batch, seq, patch_dim]. Source: :cite:t:`pai2024masked`,
released code; :cite:t:`he2022masked` (masks, positions, loss).
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional

from ...core.validation import integers
from ..embedding import Patches, check_inputs, head_width, patch_matrix
from ..weights import empty_model, fill, unwrap
from .attention import ReleasedAttention
from .layers import PreNorm, Stack
from .released import AUTOENCODER, autoencoder_sizes
from .sparsification import Ista

ENCODER_ISTA = partial(Ista, lam=0.5)  # five times the lambda of the CRATE classifier

Tokens = Float[Tensor, "batch n dim"]
Images = Float[Tensor, "batch c h w"]
Mask = Bool[Tensor, "batch seq"]


class PatchProjection(nn.Module):
    """A linear map of patches [batch, seq, patch_dim]. Its weights belong to a convolution ``proj``, as in
    the released network.
    """

    def __init__(self, patches: Patches, dim: int):
        super().__init__()
        self.proj = nn.Conv2d(patches.channels, dim, patches.patch_size, stride=patches.patch_size)
        # flattened, for the fan-in and fan-out of the linear map
        nn.init.xavier_uniform_(self.proj.weight.detach().flatten(1))

    def forward(self, patches: Float[Tensor, "batch n patch_dim"]) -> Tokens:
        return functional.linear(patches, patch_matrix(self.proj.weight), self.proj.bias)


class Rotation(nn.Module):
    r""":math:`Y D^\top` with D = ``weight`` [dim, dim], a rotation in the theory; here D is
    not constrained.
    """

    def __init__(self, dim: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(dim, dim))
        nn.init.kaiming_uniform_(self.weight, a=0.0)

    def forward(self, tokens: Tokens) -> Tokens:
        return functional.linear(tokens, self.weight)


class DecoderLayer(nn.Sequential):
    r"""The inverse of an encoder layer. Child 0 rotates, :math:`Y^{1/2} = \mathrm{LN}(Y) D^\top`; child 1
    undoes a compression, :math:`Y^+ = Y^{1/2} - \mathrm{attention}(\mathrm{LN}\,Y^{1/2})`.
    """

    def __init__(self, dim: int, *, attention: nn.Module):
        super().__init__(PreNorm(dim, Rotation(dim)), PreNorm(dim, attention))

    def forward(self, input: Tokens) -> Tokens:
        half = self[0](input)
        return half - self[1](half)


class CRATEMAE(nn.Module):
    """A masked autoencoder for images. :meth:`encode` runs its encoder.

    Args:
        image_size, patch_size, channels: side of an image in pixels, side of a patch in pixels, number of
            channels.
        dim: width of encoder and decoder, a multiple of 4.
        depth: number of layers of the encoder, and of the decoder.
        heads: number of heads, each of width dim / heads.
        attention: constructor of the compression blocks, called as ``attention(dim, heads=...,
            head_dim=...)`` for each layer.
        sparsify: constructor of the sparsification blocks, called as ``sparsify(dim)`` for each layer of the
            encoder.
    Raises:
        ValueError: the sizes do not fit.
    """

    def __init__(
        self,
        *,
        image_size: int,
        patch_size: int,
        dim: int,
        depth: int,
        heads: int,
        channels: int = 3,
        attention: Callable[..., nn.Module] = ReleasedAttention,
        sparsify: Callable[[int], nn.Module] = ENCODER_ISTA,
    ):
        super().__init__()
        integers(depth=depth)
        self.patches = Patches(image_size=image_size, patch_size=patch_size, channels=channels)
        positions = sines_and_cosines(image_size // patch_size, dim)
        width = head_width(dim, heads)
        self.patch_embed = PatchProjection(self.patches, dim)
        self.cls_token = nn.Parameter(0.02 * torch.randn(1, 1, dim))
        self.mask_token = nn.Parameter(0.02 * torch.randn(1, 1, dim))
        self.pos_embed = nn.Parameter(positions.clone(), requires_grad=False)
        self.decoder_pos_embed = nn.Parameter(positions, requires_grad=False)
        # pos_embed and decoder_embed are unused; they hold weights of the released network.
        self.decoder_embed = nn.Linear(dim, dim)
        # In the released network each block is a stack of one layer; its index is part of the names of the
        # weights.
        self.blocks = nn.Sequential(
            *(
                Stack(dim, depth=1, heads=heads, head_dim=None, attention=attention, sparsify=sparsify)
                for _ in range(depth)
            )
        )
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.decoder_blocks = nn.Sequential(
            *(_decoder_block(dim, attention(dim, heads=heads, head_dim=width)) for _ in range(depth))
        )
        self.decoder_norm = nn.LayerNorm(dim, eps=1e-6)
        self.decoder_pred = nn.Linear(dim, self.patches.dim)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    @classmethod
    def from_released(
        cls,
        state_dict: Mapping[str, Any],
        *,
        heads: int | None = None,
        sparsify: Callable[[int], nn.Module] = ENCODER_ISTA,
    ) -> "CRATEMAE":
        """Builds a CRATE-MAE with released weights, in evaluation mode. The weights determine the sizes.

        Args:
            state_dict: the weights of the released autoencoder, as :func:`.load_weights` returns them, or a
                checkpoint that :func:`.unwrap` accepts.
            heads: number of heads, which the weights do not determine. None: heads of width 64 (48 for width
                576), as released.
            sparsify: constructor of the sparsification blocks of the encoder. The weights do not determine
                lambda: the released code has 0.5, another version of it 5 (``partial(Ista, lam=5.0)``).
        Returns:
            A network on the CPU with copies of the weights, in the dtype of ``pos_embed``; ``model(images
            [batch, c, h, w], masked)`` returns patches.
        Raises:
            ValueError: weights are missing, unknown or of the wrong shape (the message lists them), or the
                heads do not fit.
        """
        weights = unwrap(state_dict, expected=AUTOENCODER)
        sizes = autoencoder_sizes(weights, heads=heads)
        model = empty_model(lambda: cls(**sizes, sparsify=sparsify), dtype=weights["pos_embed"].dtype)
        fill(model, weights)
        return model.eval()

    def encode(self, images: Images, masked: Mask | None = None) -> Tokens:
        """Computes features [batch, 1 + seq, dim], the class token first.

        Args:
            images: images, [batch, c, h, w].
            masked: True for hidden patches, [batch, seq]. None: no patch is hidden.
        Raises:
            ValueError: images or masks do not fit.
        """
        check_inputs(images, self.mask_token)
        tokens = self.patch_embed(self.patches(images))
        if masked is not None:
            self._check(masked, images.shape[0])
            tokens = torch.where(masked[..., None], self.mask_token.to(tokens.dtype), tokens)
        tokens = (
            torch.cat([self.cls_token.expand(images.shape[0], -1, -1), tokens], dim=1)
            + self.decoder_pos_embed
        )
        return self.norm(self.blocks(tokens))

    def forward(self, images: Images, masked: Mask) -> Float[Tensor, "batch seq patch_dim"]:
        # Drop the class token, which has no patch.
        return self.decoder_pred(self.decoder_norm(self.decoder_blocks(self.encode(images, masked))))[:, 1:]

    def loss(self, images: Images, masked: Mask) -> Float[Tensor, ""]:
        """Computes the mean squared error over the masked patches.

        Args:
            images: images, [batch, c, h, w].
            masked: True for hidden patches, [batch, seq]; at least one patch is hidden.
        Raises:
            ValueError: images or masks do not fit, or no patch is hidden.
        """
        if not bool(masked.any()):
            raise ValueError("masked must hide at least one patch, got none; draw it with random_mask")
        errors = (self(images, masked) - self.patches(images)).square().mean(-1)
        return errors[masked].mean()

    def _check(self, masked: Tensor, batch: int) -> None:
        if masked.dtype != torch.bool or tuple(masked.shape) != (batch, self.patches.seq):
            expected = f"torch.bool [{batch}, {self.patches.seq}]"
            raise ValueError(
                f"masked must be {expected}, one for each patch, got {masked.dtype} {list(masked.shape)}; "
                "see random_mask"
            )


def _decoder_block(dim: int, attention: nn.Module) -> nn.Module:
    """Builds a decoder block of one layer whose weights have the names of the released network."""
    return nn.Sequential(OrderedDict(layers=nn.Sequential(DecoderLayer(dim, attention=attention))))


def random_mask(batch: int, seq: int, *, generator: torch.Generator, share: float = 0.75) -> Mask:
    """Draws a mask [batch, seq] that hides ``seq - floor(seq (1 - share))`` uniformly random patches of each
    image.

    Args:
        batch, seq: number of images, and number of patches per image.
        generator: source of the random numbers; the mask is created on its device.
        share: share of hidden patches, in (0, 1).
    Raises:
        ValueError: the share lies outside (0, 1).
    """
    if not 0 < share < 1:
        raise ValueError(f"share must lie in (0, 1), got {share}")
    # The 1e-9 absorbs rounding: in floating point 10 (1 - 0.9) is slightly below 1, so its floor would hide
    # all patches.
    hidden = seq - int(seq * (1 - share) + 1e-9)
    # a random permutation per image
    order = torch.rand(batch, seq, generator=generator, device=generator.device).argsort(dim=1)
    return torch.zeros_like(order, dtype=torch.bool).scatter_(1, order[:, :hidden], True)


def sines_and_cosines(side: int, dim: int) -> Float[Tensor, "1 n dim"]:
    r"""Computes positions of a class token (zeros) and of side x side patches, row by row, [1, 1 + side^2,
    dim].

    With d = dim, the first d / 2 channels encode the column index and the others the row index. An index r
    becomes
    :math:`\sin(r\omega_i)`, then :math:`\cos(r\omega_i)`, for :math:`\omega_i = 10000^{-4i/d}`, i < d / 4.

    Raises:
        ValueError: 4 does not divide dim.
    """
    if dim < 4 or dim % 4:
        raise ValueError(f"dim must be a multiple of 4, for sines and cosines of rows and columns, got {dim}")
    # Angles [side, d / 4], waves [side, d / 2], grid [side^2, d].
    angles = torch.outer(
        torch.arange(side, dtype=torch.float64),
        10_000.0 ** (-torch.arange(dim // 4, dtype=torch.float64) / (dim // 4)),
    )
    waves = torch.cat([angles.sin(), angles.cos()], dim=1)
    grid = torch.cat([waves.repeat(side, 1), waves.repeat_interleave(side, dim=0)], dim=1)
    return torch.cat([torch.zeros_like(grid[:1]), grid]).float()[None]


def crate_mae_tiny() -> CRATEMAE:
    """Builds CRATE-MAE tiny: 11.56 M parameters, of which 11.40 M are trained; images [batch, 3,
    224, 224].
    """
    return CRATEMAE(image_size=224, patch_size=16, dim=384, depth=12, heads=6)


def crate_mae_small() -> CRATEMAE:
    """Builds CRATE-MAE small: 25.41 M parameters, of which 25.18 M are trained; images [batch, 3,
    224, 224].
    """
    return CRATEMAE(image_size=224, patch_size=16, dim=576, depth=12, heads=12)


def crate_mae_base() -> CRATEMAE:
    """Builds CRATE-MAE base: 44.64 M parameters, of which 44.34 M are trained; images [batch, 3,
    224, 224].
    """
    return CRATEMAE(image_size=224, patch_size=16, dim=768, depth=12, heads=12)

r"""CRATE-MAE: an autoencoder that completes masked images, its decoder the encoder's layers turned around.

    Z^0 = [class token; patches, a mask token for each masked one] + positions
    encoder layer   Z^{l+1/2} = Z^l + attention(LN(Z^l)),      Z^{l+1} = ISTA(LN(Z^{l+1/2})), lambda = .5
    decoder layer   Y^{l+1/2} = LN(Y^l) D^T (a rotation in the theory, free here),      Y^{l+1} = Y^{l+1/2} - attention(LN(Y^{l+1/2}))
    loss            mean squared error of the masked patches

Mask tokens go through the encoder, so it is as wide as the decoder and sees all tokens, unlike a usual masked autoencoder. Positions are
fixed sines and cosines, in a table for each half, and a linear map leads from one half to the other. The released code has these weights
too, and its sizes count them, but its forward pass leaves out the map and one of the tables: here they are used.
Shapes: images [batch, c, h, w], masks [batch, seq], tokens [batch, 1 + seq, dim], patches [batch, seq, patch_dim].
Source: :cite:t:`pai2024masked`, :cite:t:`he2022masked` (masks, positions, loss).
"""

from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ..networks.embedding import Patches, check_inputs, divide
from ..theories.crate.block import Ista, PreNorm, ReleasedAttention, Stack

ENCODER_ISTA = partial(Ista, lam=0.5)  # five times the classifier's weight of the l1 norm

Tokens = Float[Tensor, "batch n dim"]
Images = Float[Tensor, "batch c h w"]
Mask = Bool[Tensor, "batch seq"]


class DecoderLayer(nn.Sequential):
    r"""A layer turned around: rotate, :math:`Y^{1/2} = \mathrm{LN}(Y) D^\top`, then undo a compression,
    :math:`Y^+ = Y^{1/2} - \mathrm{attention}(\mathrm{LN}\,Y^{1/2})`. Its halves are children 0 and 1.

    Source: :cite:t:`pai2024masked`.
    """

    def __init__(self, dim: int, *, attention: nn.Module):
        super().__init__(PreNorm(dim, nn.Linear(dim, dim, bias=False)), PreNorm(dim, attention))

    def forward(self, input: Tokens) -> Tokens:
        half = self[0](input)
        return half - self[1](half)


class CRATEMAE(nn.Module):
    """A masked autoencoder for images; the encoder, :meth:`encode`, is what one keeps.

    Args:
        image_size, patch_size, channels: of the images.
        dim: width of encoder and decoder, a multiple of 4.
        depth: layers of the encoder, and of the decoder.
        heads: number of heads, of width dim / heads.
        attention: called as ``attention(dim, heads=..., head_dim=...)`` for each layer of both halves.
        sparsify: called as ``sparsify(dim)`` for each layer of the encoder.
    Raises:
        ValueError: sizes do not fit. Source: :cite:t:`pai2024masked`.
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
        self.patches = Patches(image_size=image_size, patch_size=patch_size, channels=channels)
        positions = sines_and_cosines(image_size // patch_size, dim)
        self.embed = nn.Linear(self.patches.dim, dim)
        self.cls_token = nn.Parameter(0.02 * torch.randn(1, 1, dim))
        self.mask_token = nn.Parameter(0.02 * torch.randn(1, 1, dim))
        self.encoder_positions = nn.Parameter(positions, requires_grad=False)
        self.encoder = Stack(dim, depth=depth, heads=heads, head_dim=None, attention=attention, sparsify=sparsify)
        self.encoder_norm = nn.LayerNorm(dim, eps=1e-6)
        self.decoder_embed = nn.Linear(dim, dim)
        self.decoder_positions = nn.Parameter(positions.clone(), requires_grad=False)
        width = divide(dim, heads)
        self.decoder = nn.Sequential(*(DecoderLayer(dim, attention=attention(dim, heads=heads, head_dim=width)) for _ in range(depth)))
        self.decoder_norm = nn.LayerNorm(dim, eps=1e-6)
        self.to_pixels = nn.Linear(dim, self.patches.dim)

    def encode(self, images: Images, masked: Mask | None = None) -> Tokens:
        """Features [batch, 1 + seq, dim], the class token first.

        Args:
            images: [batch, c, h, w].
            masked: patches that are not looked at, [batch, seq]; None for none.
        Raises:
            ValueError: images or masks do not fit. Source: :cite:t:`pai2024masked`.
        """
        check_inputs(images, self.mask_token)
        tokens = self.embed(self.patches(images))
        if masked is not None:
            self._check(masked, len(images))
            tokens = torch.where(masked[..., None], self.mask_token.to(tokens.dtype), tokens)
        tokens = torch.cat([self.cls_token.expand(len(images), -1, -1), tokens], dim=1) + self.encoder_positions
        return self.encoder_norm(self.encoder(tokens))

    def forward(self, images: Images, masked: Mask) -> Float[Tensor, "batch seq patch_dim"]:
        tokens = self.decoder_embed(self.encode(images, masked)) + self.decoder_positions
        return self.to_pixels(self.decoder_norm(self.decoder(tokens)))[:, 1:]

    def loss(self, images: Images, masked: Mask) -> Float[Tensor, ""]:
        """Mean squared error of the completed patches, over the masked ones alone.

        Args:
            images: [batch, c, h, w].
            masked: [batch, seq], at least one patch.
        Raises:
            ValueError: images or masks do not fit, or nothing is masked. Source: :cite:t:`he2022masked`.
        """
        if not bool(masked.any()):
            raise ValueError("masked must hide at least one patch, got none; draw it with random_mask")
        errors = (self(images, masked) - self.patches(images)).square().mean(-1)
        return errors[masked].mean()

    def _check(self, masked: Tensor, batch: int) -> None:
        if masked.dtype != torch.bool or tuple(masked.shape) != (batch, self.patches.seq):
            expected = f"torch.bool [{batch}, {self.patches.seq}]"
            raise ValueError(f"masked must be {expected}, one for each patch, got {masked.dtype} {list(masked.shape)}; see random_mask")


def random_mask(batch: int, seq: int, *, generator: torch.Generator, share: float = 0.75) -> Mask:
    """Which patches are masked, [batch, seq]: in each image as many, ``seq - floor(seq (1 - share))``, anywhere alike.

    Args:
        batch, seq: numbers of images and of patches.
        generator: of the draw; the mask lies on its device.
        share: to be masked, in (0, 1).
    Raises:
        ValueError: the share is not inside (0, 1). Source: :cite:t:`he2022masked`.
    """
    if not 0 < share < 1:
        raise ValueError(f"share must lie in (0, 1), got {share}")
    count = seq - int(seq * (1 - share))
    order = torch.rand(batch, seq, generator=generator, device=generator.device).argsort(dim=1)
    return torch.zeros_like(order, dtype=torch.bool).scatter_(1, order[:, :count], True)


def sines_and_cosines(side: int, dim: int) -> Float[Tensor, "1 n dim"]:
    r"""Positions of a class token (zeros) and of side x side patches, [1, 1 + side^2, dim], row by row.

    The first half of the numbers tells the row r, the other the column, each as :math:`\sin(r\omega_i), \cos(r\omega_i)` with
    :math:`\omega_i = 10000^{-4i/d}`, i < d / 4.

    Raises:
        ValueError: 4 does not divide dim. Source: :cite:t:`he2022masked`.
    """
    if dim < 4 or dim % 4:
        raise ValueError(f"dim must be a multiple of 4, for sines and cosines of rows and columns, got {dim}")
    angles = torch.outer(torch.arange(side, dtype=torch.float64), 10_000.0 ** (-torch.arange(dim // 4, dtype=torch.float64) / (dim // 4)))
    waves = torch.cat([angles.sin(), angles.cos()], dim=1)
    grid = torch.cat([waves.repeat_interleave(side, dim=0), waves.repeat(side, 1)], dim=1)
    return torch.cat([torch.zeros_like(grid[:1]), grid]).float()[None]


def crate_mae_tiny() -> CRATEMAE:
    """CRATE-MAE tiny, 11.56 M parameters, 11.40 M of them trained; images [batch, 3, 224, 224]. Source: :cite:t:`pai2024masked`."""
    return CRATEMAE(image_size=224, patch_size=16, dim=384, depth=12, heads=6)


def crate_mae_small() -> CRATEMAE:
    """CRATE-MAE small, 25.41 M parameters, 25.18 M of them trained; images [batch, 3, 224, 224]. Source: :cite:t:`pai2024masked`."""
    return CRATEMAE(image_size=224, patch_size=16, dim=576, depth=12, heads=12)


def crate_mae_base() -> CRATEMAE:
    """CRATE-MAE base, 44.64 M parameters, 44.34 M of them trained; images [batch, 3, 224, 224]. Source: :cite:t:`pai2024masked`."""
    return CRATEMAE(image_size=224, patch_size=16, dim=768, depth=12, heads=12)

"""A vision transformer with the module names and the order of operations of timm's ``VisionTransformer``,
written for the tests.

timm itself imports torchvision, which is not installed here. Its weights fit these names.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional


class Attention(nn.Module):
    """Queries, keys and values from one fused projection ``qkv``; by the fused kernel, or written out."""

    def __init__(self, dim: int, heads: int, *, fused: bool, normalised: bool):
        super().__init__()
        self.num_heads, self.fused_attn = heads, fused
        self.qkv = nn.Linear(dim, 3 * dim)
        self.q_norm, self.k_norm = (
            nn.LayerNorm(dim // heads, eps=1e-6) if normalised else nn.Identity() for _ in range(2)
        )
        self.attn_drop, self.norm, self.proj, self.proj_drop = (
            nn.Dropout(0.0),
            nn.Identity(),
            nn.Linear(dim, dim),
            nn.Dropout(0.0),
        )

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        query, key = self.q_norm(query), self.k_norm(key)
        if self.fused_attn:
            mixed = functional.scaled_dot_product_attention(query, key, value)
        else:
            scores = (query * query.shape[-1] ** -0.5) @ key.mT
            mixed = self.attn_drop(scores.softmax(-1)) @ value
        return self.proj_drop(self.proj(self.norm(mixed.transpose(1, 2).flatten(2))))


class LayerScale(nn.Module):
    def __init__(self, dim: int, value: float):
        super().__init__()
        self.gamma = nn.Parameter(torch.full((dim,), value))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class Mlp(nn.Module):
    def __init__(self, dim: int, hidden: int):
        super().__init__()
        self.fc1, self.act, self.drop1, self.norm = (
            nn.Linear(dim, hidden),
            nn.GELU(),
            nn.Dropout(0.0),
            nn.Identity(),
        )
        self.fc2, self.drop2 = nn.Linear(hidden, dim), nn.Dropout(0.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop2(self.fc2(self.norm(self.drop1(self.act(self.fc1(x))))))


class Block(nn.Module):
    def __init__(self, dim: int, heads: int, *, scale: float | None, **options: bool):
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(dim, eps=1e-6), Attention(dim, heads, **options)
        self.norm2, self.mlp = nn.LayerNorm(dim, eps=1e-6), Mlp(dim, 4 * dim)
        self.ls1, self.ls2 = (LayerScale(dim, scale) if scale else nn.Identity() for _ in range(2))
        self.drop_path1, self.drop_path2 = nn.Identity(), nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop_path1(self.ls1(self.attn(self.norm1(x))))
        return x + self.drop_path2(self.ls2(self.mlp(self.norm2(x))))


class PatchEmbed(nn.Module):
    def __init__(self, channels: int, patch: int, dim: int):
        super().__init__()
        self.proj, self.norm = nn.Conv2d(channels, dim, patch, patch), nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.proj(x).flatten(2).mT)


class VisionTransformer(nn.Module):
    """``[b, c, h, w] -> [b, classes]``; with a class token, register tokens, or pooling over the patches
    (``global_pool="avg"``).
    """

    def __init__(
        self,
        img_size: int = 224,
        patch_size: int = 16,
        num_classes: int = 1000,
        embed_dim: int = 192,
        depth: int = 12,
        num_heads: int = 3,
        *,
        global_pool: str = "token",
        class_token: bool = True,
        reg_tokens: int = 0,
        qk_norm: bool = False,
        init_values: float | None = None,
        fused: bool = True,
    ):
        super().__init__()
        self.global_pool, self.num_prefix_tokens = global_pool, int(class_token) + reg_tokens
        self.patch_embed = PatchEmbed(3, patch_size, embed_dim)
        self.cls_token = nn.Parameter(torch.randn(1, 1, embed_dim) * 1e-6) if class_token else None
        self.reg_token = nn.Parameter(torch.randn(1, reg_tokens, embed_dim) * 1e-6) if reg_tokens else None
        self.pos_embed = nn.Parameter(
            torch.randn(1, self.num_prefix_tokens + (img_size // patch_size) ** 2, embed_dim) * 0.02
        )
        self.pos_drop, self.patch_drop, self.norm_pre = nn.Dropout(0.0), nn.Identity(), nn.Identity()
        options = {"fused": fused, "normalised": qk_norm}
        self.blocks = nn.Sequential(
            *(Block(embed_dim, num_heads, scale=init_values, **options) for _ in range(depth))
        )
        pooled = global_pool == "avg"
        self.norm = nn.Identity() if pooled else nn.LayerNorm(embed_dim, eps=1e-6)
        self.fc_norm = nn.LayerNorm(embed_dim, eps=1e-6) if pooled else nn.Identity()
        self.head_drop, self.head = nn.Dropout(0.0), nn.Linear(embed_dim, num_classes)

    def forward_features(self, x: Tensor) -> Tensor:
        x = self.patch_embed(x)
        before = [
            token.expand(len(x), -1, -1) for token in (self.cls_token, self.reg_token) if token is not None
        ]
        return self.norm(
            self.blocks(
                self.norm_pre(self.patch_drop(self.pos_drop(torch.cat([*before, x], 1) + self.pos_embed)))
            )
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.forward_features(x)
        x = x[:, self.num_prefix_tokens :].mean(1) if self.global_pool == "avg" else x[:, 0]
        return self.head(self.head_drop(self.fc_norm(x)))


def create_model(name: str, *, pretrained: bool = False, **sizes) -> VisionTransformer:
    """Stands in for ``timm.create_model``."""
    assert name.startswith("vit_")
    assert not pretrained
    return VisionTransformer(**sizes)

"""Problems of sparse rate reduction whose answers are known, and the textbook way to compute each step."""

import math

import torch
from torch import Tensor
from torch.nn import functional

from transformer_theory.theories.crate import random_subspaces


def axis_subspaces(K: int, p: int) -> Tensor:
    """K subspaces of dimension p spanned by coordinate axes: orthonormal, orthogonal and complete, [K, K p,
    p].
    """
    return torch.eye(K * p, dtype=torch.float64).unflatten(1, (K, p)).transpose(0, 1).contiguous()


def flat_tokens(K: int, p: int, sigma: float) -> Tensor:
    """Tokens whose coordinates in every axis subspace have p equal singular values sigma, [p, K p]."""
    return sigma * torch.eye(p, dtype=torch.float64).repeat(1, K)


def flat_subspace_rate(K: int, p: int, sigma: float, eps: float) -> float:
    """R^c of :func:`flat_tokens` in :func:`axis_subspaces`: K p / 2 log(1 + sigma^2 / eps^2), since beta = p
    / (p eps^2).
    """
    return K * p / 2 * math.log(1 + sigma**2 / eps**2)


def flat_step(sigma: float, eps: float, kappa: float) -> float:
    """Singular value of :func:`flat_tokens` after an exact gradient step: the slope is sigma / (eps^2 +
    sigma^2).
    """
    return sigma - kappa * sigma / (eps**2 + sigma**2)


def mssa_by_loops(tokens: Tensor, bases: Tensor, *, eps: float, scale: float) -> Tensor:
    """MSSA token by token and head by head, with explicit softmax sums; tokens [n, d]."""
    n = len(tokens)
    p = bases.shape[-1]
    out = torch.zeros_like(tokens)
    for U in bases:
        coords = [U.T @ z for z in tokens]
        for i in range(n):
            scores = [math.exp(scale * float(coords[j] @ coords[i])) for j in range(n)]
            mixed = sum(score / sum(scores) * coord for score, coord in zip(scores, coords))
            out[i] += U @ mixed
    return p / (n * eps**2) * out


def soft_threshold(tokens: Tensor, lam: float) -> Tensor:
    """Minimiser of the non-negative LASSO for an orthonormal dictionary with both signs, D = [I, -I]:
    relu(+-y - lambda), side by side.
    """
    return torch.cat([(tokens - lam).clamp(min=0), (-tokens - lam).clamp(min=0)], dim=-1)


def gaussian(*shape, seed=0) -> Tensor:
    """Standard normal numbers, float64."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def subspaces(K=3, d=12, p=4, seed=0) -> Tensor:
    """Random subspaces, orthogonal as far as d allows, [K, d, p]."""
    return random_subspaces(K, d, p, generator=torch.Generator().manual_seed(seed))


def memberships_by_loops(tokens: Tensor, bases: Tensor, *, temperature: float) -> Tensor:
    """Softmax over subspaces of a token's share of the energy of every channel, token by token; tokens [n,
    d].
    """
    rows = []
    for z in tokens:
        scores = [sum(float(u @ z) ** 2 / float((tokens @ u).square().sum()) for u in U.T) for U in bases]
        weights = [math.exp(temperature * score) for score in scores]
        rows.append([weight / sum(weights) for weight in weights])
    return torch.tensor(rows, dtype=tokens.dtype).T


def tssa_gradient_by_loops(tokens: Tensor, bases: Tensor, pi: Tensor, *, eps: float) -> Tensor:
    """beta sum_k sum_c pi_ik (z_i . u_kc) u_kc / (1 + p/eps^2 m_kc), channel by channel; tokens [n, d],
    memberships [K, n].
    """
    n, p = len(tokens), bases.shape[-1]
    out = torch.zeros_like(tokens)
    for U, share in zip(bases, pi):
        for u in U.T:
            along = tokens @ u
            moment = float((share * along**2).sum() / share.sum())
            out += torch.outer(share * along, u) / (1 + p / eps**2 * moment)
    return p / (n * eps**2) * out


def statistics_by_loops(
    tokens: Tensor, bases: Tensor, temperature: Tensor, *, step: float, eps: float, causal: bool
) -> Tensor:
    """Tokens after a step of derived token statistics, token by token: what each loses along every channel of
    every subspace; tokens [n, d]. In the causal form token i knows the sums over tokens 1 ... i alone.
    """
    n, p = len(tokens), bases.shape[-1]
    visible = [range(i + 1) if causal else range(n) for i in range(n)]
    coords = [[[float(u @ z) for u in U.T] for z in tokens] for U in bases]
    pi = []
    for i in range(n):
        shares = [sum(W[i][c] ** 2 / sum(W[j][c] ** 2 for j in visible[i]) for c in range(p)) for W in coords]
        weights = [math.exp(float(tau) * share) for tau, share in zip(temperature, shares)]
        pi.append([weight / sum(weights) for weight in weights])
    out = tokens.clone()
    for i in range(n):
        for k, (U, W) in enumerate(zip(bases, coords)):
            for c in range(p):
                moment = sum(pi[j][k] * W[j][c] ** 2 for j in visible[i]) / sum(pi[j][k] for j in visible[i])
                out[i] -= step * pi[i][k] * W[i][c] / (1 + p / eps**2 * moment) * U[:, c]
    return out


def released_statistics_by_loops(w: dict[str, Tensor], tokens: Tensor, *, heads: int) -> Tensor:
    """Attention of the released token statistics, head by head and token by token; tokens [n, d]. With
    ``denom_bias`` [K, N, 1] it is the causal one, in which token i knows the sums over tokens 1 ... i alone.
    """
    causal, n = "denom_bias" in w, len(tokens)
    coords = (tokens @ w["qkv.weight"].T + w["qkv.bias"]).chunk(heads, dim=-1)
    visible = [range(i + 1) if causal else range(n) for i in range(n)]
    scores = torch.zeros(heads, n, dtype=tokens.dtype)
    for k, W in enumerate(coords):
        for i in range(n):
            for c in range(W.shape[1]):
                share = W[i, c] ** 2 / sum(W[j, c] ** 2 for j in visible[i])
                scores[k, i] += w["temp"][k, 0] * (share + (w["denom_bias"][k, i, 0] if causal else 0.0))
    pi = scores.exp() / scores.exp().sum(0)
    heads_out = [torch.zeros_like(W) for W in coords]
    for k, W in enumerate(coords):
        for i in range(n):
            moment = sum(pi[k, j] * W[j] ** 2 for j in visible[i]) / sum(pi[k, j] for j in visible[i])
            heads_out[k][i] = -pi[k, i] * W[i] / (1 + moment)
    return torch.cat(heads_out, 1) @ w["to_out.0.weight"].T + w["to_out.0.bias"]


def _layer_norm(x: Tensor, weights: dict[str, Tensor], name: str, eps: float = 1e-5) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return (
        centred / (centred.square().mean(-1, keepdim=True) + eps).sqrt() * weights[f"{name}.weight"]
        + weights[f"{name}.bias"]
    )


def released_logits(w: dict[str, Tensor], images: Tensor, *, patch: int, heads: int, depth: int) -> Tensor:
    """The released forward pass in float64, patch by patch and head by head; images [batch, c, h, w]."""
    w = {name: value.double() for name, value in w.items()}
    batch, _, height, width = images.shape
    cut = []
    for i in range(0, height, patch):
        for j in range(0, width, patch):  # inside a patch: row, column, channel
            cut.append(
                images[:, :, i : i + patch, j : j + patch].permute(0, 2, 3, 1).reshape(batch, -1).double()
            )
    x = _layer_norm(torch.stack(cut, 1), w, "to_patch_embedding.1")
    x = _layer_norm(
        x @ w["to_patch_embedding.2.weight"].T + w["to_patch_embedding.2.bias"], w, "to_patch_embedding.3"
    )
    x = torch.cat([w["cls_token"].expand(batch, 1, -1), x], 1) + w["pos_embedding"]
    for i in range(depth):
        layer = f"transformer.layers.{i}"
        x = x + released_attention(x, w, f"{layer}.0", heads=heads)
        y, D = _layer_norm(x, w, f"{layer}.1.norm"), w[f"{layer}.1.fn.weight"]
        x = (y + 0.1 * (y @ D - y @ D.T @ D) - 0.1 * 0.1).clamp(min=0)
    return _layer_norm(x[:, 0], w, "mlp_head.0") @ w["mlp_head.1.weight"].T + w["mlp_head.1.bias"]


def released_attention(
    x: Tensor, w: dict[str, Tensor], name: str, *, heads: int, eps: float = 1e-5
) -> Tensor:
    """Attention of the released networks with its norm, head by head; x [batch, n, d]."""
    z = _layer_norm(x, w, f"{name}.norm", eps) @ w[f"{name}.fn.qkv.weight"].T
    mixed = [(u @ u.transpose(1, 2) / math.sqrt(u.shape[-1])).softmax(-1) @ u for u in z.chunk(heads, dim=-1)]
    return torch.cat(mixed, -1) @ w[f"{name}.fn.to_out.0.weight"].T + w.get(f"{name}.fn.to_out.0.bias", 0.0)


def alpha_logits(w: dict[str, Tensor], images: Tensor, *, heads: int, depth: int) -> Tensor:
    """The forward pass of a published CRATE-alpha: a convolution cuts patches, then attention and two
    non-negative ISTA steps of size .1 from zero, decoded and added; images [batch, c, h, w].
    """
    patches = (
        functional.conv2d(images, w["conv1.weight"], w["conv1.bias"], stride=w["conv1.weight"].shape[-1])
        .flatten(2)
        .mT
    )
    x = torch.cat([w["cls_token"].expand(len(images), -1, -1), patches], 1) + w["pos_embedding"]
    for i in range(depth):
        name = f"transformer.layers.{i}"
        x = x + released_attention(x, w, f"{name}.0", heads=heads, eps=1e-6)
        y, D = _layer_norm(x, w, f"{name}.1.norm", 1e-6), w[f"{name}.1.fn.D"]
        first = (0.1 * (y @ D - 0.1)).clamp(min=0)
        second = (first - 0.1 * (first @ D.T - y) @ D - 0.1 * 0.1).clamp(min=0)
        x = x + second @ w[f"{name}.1.fn.D1"].T
    return _layer_norm(x[:, 0], w, "mlp_head.0", 1e-6) @ w["mlp_head.1.weight"].T + w["mlp_head.1.bias"]


def completed_patches(
    w: dict[str, Tensor], images: Tensor, masked: Tensor, *, heads: int, depth: int, lam: float = 0.5
) -> Tensor:
    """The released masked autoencoder in float64, from images [batch, c, h, w] to patches: a convolution,
    masks, positions, the encoder with lambda .5, then the layers turned around. Neither ``pos_embed`` nor
    ``decoder_embed`` has a part in it.
    """
    w = {name: value.double() for name, value in w.items()}
    kernel = w["patch_embed.proj.weight"]
    x = (
        functional.conv2d(images.double(), kernel, w["patch_embed.proj.bias"], stride=kernel.shape[-1])
        .flatten(2)
        .mT
    )
    x = x * ~masked[..., None] + w["mask_token"] * masked[..., None]
    x = torch.cat([w["cls_token"].expand(len(x), -1, -1), x], 1) + w["decoder_pos_embed"]
    for i in range(depth):
        name = f"blocks.{i}.layers.0"
        x = x + released_attention(x, w, f"{name}.0", heads=heads)
        y, D = _layer_norm(x, w, f"{name}.1.norm"), w[f"{name}.1.fn.weight"]
        x = (y + 0.1 * (y - y @ D.T) @ D - 0.1 * lam).clamp(min=0)
    x = _layer_norm(x, w, "norm", 1e-6)
    for i in range(depth):
        name = f"decoder_blocks.{i}.layers.0"
        x = _layer_norm(x, w, f"{name}.0.norm") @ w[f"{name}.0.fn.weight"].T
        x = x - released_attention(x, w, f"{name}.1", heads=heads)
    return (_layer_norm(x, w, "decoder_norm", 1e-6) @ w["decoder_pred.weight"].T + w["decoder_pred.bias"])[
        :, 1:
    ]


def next_token_logits(w: dict[str, Tensor], ids: Tensor, *, heads: int, depth: int) -> Tensor:
    """The released causal CRATE in float64, ids [batch, n]: a mask in every softmax, no norm before the head,
    which is the embedding.
    """
    w = {name: value.double() for name, value in w.items()}
    n = ids.shape[1]
    x = w["transformer.wte.weight"][ids] + w["transformer.wpe.weight"][:n]
    future = torch.ones(n, n, dtype=torch.bool).triu(1)
    for i in range(depth):
        name = f"transformer.h.{i}"
        z = _layer_norm(x, w, f"{name}.prenorm_1") @ w[f"{name}.attn.c_attn.weight"].T
        scores = [
            (u @ u.mT / math.sqrt(u.shape[-1])).masked_fill(future, -math.inf) for u in z.chunk(heads, dim=-1)
        ]
        mixed = torch.cat([s.softmax(-1) @ u for s, u in zip(scores, z.chunk(heads, dim=-1))], -1)
        x = x + mixed @ w[f"{name}.attn.c_proj.weight"].T + w[f"{name}.attn.c_proj.bias"]
        y, D = _layer_norm(x, w, f"{name}.prenorm_2"), w[f"{name}.ista.weight"]
        x = (y + 0.1 * (y - y @ D.T) @ D - 0.1 * 0.1).clamp(min=0)
    return x @ w["lm_head.weight"].T


def published_alpha() -> dict[str, torch.Tensor]:
    """Random weights with the names and shapes of a published CRATE-alpha: dim 128, two heads, two layers, 12
    px, patches of 4.
    """
    generator = torch.Generator().manual_seed(0)
    shapes = {
        "conv1.weight": (128, 3, 4, 4),
        "conv1.bias": (128,),
        "pos_embedding": (1, 10, 128),
        "cls_token": (1, 1, 128),
    }
    for i in range(2):
        names = {
            "0.norm.weight": (128,),
            "0.norm.bias": (128,),
            "0.fn.qkv.weight": (128, 128),
            "0.fn.to_out.0.weight": (128, 128),
        }
        names |= {"1.norm.weight": (128,), "1.norm.bias": (128,), "1.fn.D": (128, 512), "1.fn.D1": (128, 512)}
        shapes |= {f"transformer.layers.{i}.{name}": shape for name, shape in names.items()}
    shapes |= {
        "mlp_head.0.weight": (128,),
        "mlp_head.0.bias": (128,),
        "mlp_head.1.weight": (5, 128),
        "mlp_head.1.bias": (5,),
    }
    return {
        name: 0.2 * torch.randn(shape, generator=generator, dtype=torch.float64)
        for name, shape in shapes.items()
    }

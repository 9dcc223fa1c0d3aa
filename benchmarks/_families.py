"""Tiny random models of many families, and where their residual stream is; for
:mod:`benchmarks.probe_families`.
"""

import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from transformer_theory.models import CRATE, ViT

N, T, D, HEADS, DEPTH, VOCAB = 4, 7, 32, 4, 2, 40
TEXT = {
    "hidden_size": D,
    "num_hidden_layers": DEPTH,
    "num_attention_heads": HEADS,
    "intermediate_size": 64,
    "initializer_range": 0.3,
}
TEXT |= {
    "vocab_size": VOCAB,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 1,
}
GROUPED = TEXT | {"num_key_value_heads": 2, "head_dim": 8}
SHORT = {"n_layer": DEPTH, "n_head": HEADS, "vocab_size": VOCAB, "initializer_range": 0.3}
FALCON = {name: value for name, value in TEXT.items() if name != "intermediate_size"} | {
    "new_decoder_architecture": False
}
BART = {"d_model": D, "vocab_size": VOCAB, "max_position_embeddings": 32, "init_std": 0.3}
BART |= {
    f"{side}_{name}": n
    for side in ("encoder", "decoder")
    for name, n in (("layers", DEPTH), ("attention_heads", HEADS), ("ffn_dim", 64))
}
IMAGES = {
    name: TEXT[name]
    for name in ("hidden_size", "num_hidden_layers", "num_attention_heads", "initializer_range")
}
IMAGES |= {"image_size": 8, "patch_size": 4}
DEBERTA = TEXT | {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "max_relative_positions": 8}


@dataclass(frozen=True)
class Family:
    """A family of models.

    Attributes:
        model, config: names of the classes in ``transformers``.
        sizes: settings of a tiny model.
        layer: for each stack of layers, the module name of a layer, with ``{}`` for its number. A layer
            returns the stream after it.
        inside: for each stack, where the stream after the first attention of a layer is found: a module
            inside the layer, with "in" for its input, "out" for its output, or "sum" for the sum of the
            layer's input and the module's output.
        bilinear: number of attentions whose scores are bilinear in their tokens.
        attentions: number of calls of attention in one pass.
        inputs: names of the model's inputs.
        implementations: names of the implementations of attention; empty for the model's default.
        make: builds the model, for families outside ``transformers``; ``model`` is then the name of its
            package.
        following: if no module returns the stream, "layer" names the modules that take it, and this one takes
            it after the last layer.
    """

    model: str
    config: str
    sizes: dict[str, Any]
    layer: tuple[str, ...]
    inside: tuple[tuple[str, str], ...]
    bilinear: int = 0
    attentions: int = DEPTH
    inputs: tuple[str, ...] = ("input_ids",)
    implementations: tuple[str, ...] = ("sdpa", "eager")
    make: Callable[[], nn.Module] | None = None
    following: str = ""


def _bert(name: str, **more: Any) -> Family:
    layer = ("encoder.layer.{}",), (("attention.output.LayerNorm", "in"),)
    return Family(
        f"{name}Model",
        f"{name}Config",
        TEXT | more,
        *layer,
        bilinear=DEPTH,
        inputs=("input_ids", "attention_mask"),
    )


def _llama(name: str, after: str = "post_attention_layernorm", **more: Any) -> Family:
    return Family(f"{name}Model", f"{name}Config", GROUPED | more, ("layers.{}",), ((after, "in"),))


NEXT_WORDS = ("input_ids", "decoder_input_ids")
FAMILIES = {
    "GPT-2": Family(
        "GPT2Model",
        "GPT2Config",
        SHORT | {"n_embd": D, "n_positions": 32},
        ("h.{}",),
        (("ln_2", "in"),),
        DEPTH,
    ),
    "BERT": _bert("Bert"),
    "RoBERTa": _bert("Roberta"),
    "ELECTRA": _bert("Electra", embedding_size=D),
    "DistilBERT": Family(
        "DistilBertModel",
        "DistilBertConfig",
        {
            "dim": D,
            "n_layers": DEPTH,
            "n_heads": HEADS,
            "hidden_dim": 64,
            "vocab_size": VOCAB,
            "initializer_range": 0.3,
        },
        ("transformer.layer.{}",),
        (("sa_layer_norm", "in"),),
        DEPTH,
    ),
    "ALBERT, one layer shared": Family(
        "AlbertModel",
        "AlbertConfig",
        TEXT | {"embedding_size": 16},
        ("encoder.albert_layer_groups.0",),
        (("albert_layers.0.attention.LayerNorm", "in"),),
        DEPTH,
    ),
    "Llama, grouped keys": _llama("Llama"),
    "Mistral, windows": _llama("Mistral", sliding_window=4),
    "Qwen3": _llama("Qwen3"),
    "Gemma-2, bounded scores": Family(
        "Gemma2Model",
        "Gemma2Config",
        GROUPED,
        ("layers.{}",),
        (("pre_feedforward_layernorm", "in"),),
        implementations=("eager",),
    ),
    "GPT-OSS, sinks": Family(
        "GptOssModel",
        "GptOssConfig",
        GROUPED | {"num_local_experts": 2, "num_experts_per_tok": 1},
        ("layers.{}",),
        (("post_attention_layernorm", "in"),),
        implementations=("eager",),
    ),
    "Phi, parallel": Family("PhiModel", "PhiConfig", TEXT, ("layers.{}",), (("self_attn", "sum"),)),
    "GPT-NeoX, parallel": Family(
        "GPTNeoXModel", "GPTNeoXConfig", TEXT, ("layers.{}",), (("attention", "sum"),)
    ),
    "Falcon, parallel, alibi": Family(
        "FalconModel",
        "FalconConfig",
        FALCON | {"alibi": True, "multi_query": True, "parallel_attn": True},
        ("h.{}",),
        (("self_attention", "sum"),),
    ),
    "BLOOM, alibi": Family(
        "BloomModel",
        "BloomConfig",
        SHORT | {"hidden_size": D},
        ("h.{}",),
        (("post_attention_layernorm", "in"),),
        implementations=("eager",),
    ),
    "OPT": Family(
        "OPTModel",
        "OPTConfig",
        {
            "hidden_size": D,
            "num_hidden_layers": DEPTH,
            "num_attention_heads": HEADS,
            "ffn_dim": 64,
            "vocab_size": VOCAB,
            "init_std": 0.3,
        }
        | {"word_embed_proj_dim": D, "max_position_embeddings": 32},
        ("decoder.layers.{}",),
        (("final_layer_norm", "in"),),
        DEPTH,
    ),
    "T5": Family(
        "T5Model",
        "T5Config",
        {
            "d_model": D,
            "d_kv": 8,
            "d_ff": 64,
            "num_layers": DEPTH,
            "num_heads": HEADS,
            "vocab_size": VOCAB,
            "initializer_factor": 5.0,
        },
        ("encoder.block.{}", "decoder.block.{}"),
        (("layer.0", "out"), ("layer.0", "out")),
        attentions=3 * DEPTH,
        inputs=NEXT_WORDS,
    ),
    "BART": Family(
        "BartModel",
        "BartConfig",
        BART,
        ("encoder.layers.{}", "decoder.layers.{}"),
        (("self_attn_layer_norm", "in"), ("self_attn_layer_norm", "in")),
        2 * DEPTH,
        attentions=3 * DEPTH,
        inputs=NEXT_WORDS,
    ),
    "ViT": Family(
        "ViTModel",
        "ViTConfig",
        IMAGES,
        ("layers.{}",),
        (("layernorm_after", "in"),),
        DEPTH,
        inputs=("pixel_values",),
    ),
    "DINOv2": Family(
        "Dinov2Model",
        "Dinov2Config",
        IMAGES,
        ("encoder.layer.{}",),
        (("norm2", "in"),),
        DEPTH,
        inputs=("pixel_values",),
    ),
    "XLNet, time first": Family(
        "XLNetModel",
        "XLNetConfig",
        SHORT | {"d_model": D, "d_inner": 64},
        ("layer.{}",),
        (("rel_attn.layer_norm", "in"),),
        implementations=("",),
    ),
    "DeBERTa": Family(
        "DebertaModel",
        "DebertaConfig",
        DEBERTA,
        ("encoder.layer.{}",),
        (("attention.output.LayerNorm", "in"),),
        implementations=("",),
    ),
    "Mamba, features only": Family(
        "MambaModel",
        "MambaConfig",
        {
            "hidden_size": D,
            "num_hidden_layers": DEPTH,
            "state_size": 4,
            "vocab_size": VOCAB,
            "time_step_rank": 4,
        },
        ("layers.{}",),
        (),
        attentions=0,
        implementations=("",),
    ),
}


def _encoder(norm_first: bool) -> nn.Module:
    layer = nn.TransformerEncoderLayer(D, HEADS, 64, dropout=0.0, batch_first=True, norm_first=norm_first)
    return nn.TransformerEncoder(layer, DEPTH, enable_nested_tensor=False)


def _vit_pytorch(name: str) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        module, _, kind = name.partition(".")
        model = getattr(importlib.import_module(f"vit_pytorch.{module}"), kind)
        return model(
            image_size=8, patch_size=4, num_classes=3, dim=D, depth=DEPTH, heads=HEADS, mlp_dim=64, dim_head=8
        )

    return make


def _bridge() -> nn.Module:
    from unittest import mock

    from transformer_lens.model_bridge import TransformerBridge

    model = model_of(replace(FAMILIES["GPT-2"], model="GPT2LMHeadModel"), "eager")
    with mock.patch("transformers.AutoConfig.from_pretrained", return_value=model.config):
        return TransformerBridge.boot_transformers("gpt2", hf_model=model, load_weights=False)


SMALL = {"image_size": 8, "patch_size": 4, "num_classes": 3, "dim": D, "depth": DEPTH, "heads": HEADS}
# layers as lists [attention, MLP], which never run
PAIRS = ("transformer.layers.{}.0",), (("transformer.layers.{}.1", "in"),)
OTHERS = {"bilinear": DEPTH, "implementations": ("",)}
FAMILIES |= {
    "nn.TransformerEncoder, norm first": Family(
        "torch",
        "",
        {},
        ("layers.{}",),
        (("norm2", "in"),),
        inputs=("src",),
        make=lambda: _encoder(True),
        **OTHERS,
    ),
    "nn.TransformerEncoder, norm last": Family(
        "torch",
        "",
        {},
        ("layers.{}",),
        (("norm1", "in"),),
        inputs=("src",),
        make=lambda: _encoder(False),
        **OTHERS,
    ),
    "ViT of this library": Family(
        "",
        "",
        {},
        ("blocks.{}",),
        (("mlp_norm", "in"),),
        inputs=("inputs",),
        make=lambda: ViT.for_images(**SMALL),
        **OTHERS,
    ),
    "CRATE of this library": Family(
        "",
        "",
        {},
        ("transformer.layers.{}",),
        (("1", "in"),),
        inputs=("inputs",),
        make=lambda: CRATE.for_images(**SMALL),
        **OTHERS,
    ),
    "ViT of vit-pytorch": Family(
        "vit_pytorch",
        "",
        {},
        *PAIRS,
        inputs=("img",),
        make=_vit_pytorch("vit.ViT"),
        following="transformer.norm",
        **OTHERS,
    ),
    "SimpleViT of vit-pytorch": Family(
        "vit_pytorch",
        "",
        {},
        *PAIRS,
        inputs=("img",),
        make=_vit_pytorch("simple_vit.SimpleViT"),
        following="transformer.norm",
        **OTHERS,
    ),
    "GPT-2, bridged by TransformerLens": Family(
        "transformer_lens",
        "",
        {},
        ("blocks.{}",),
        (("_original_component.ln_2", "in"),),
        inputs=("input",),
        make=_bridge,
        **OTHERS,
    ),
}


def model_of(family: Family, implementation: str) -> nn.Module:
    """Returns a tiny model with random weights, the same at every call.

    Raises:
        ImportError: the package is missing.
        AttributeError: its version lacks the family.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if family.make is not None:
            return family.make().eval()
        import transformers

        config = getattr(transformers, family.config)(**family.sizes)
        kind = getattr(transformers, family.model)
        model = (
            kind._from_config(config, attn_implementation=implementation) if implementation else kind(config)
        )
    return model.eval()


def inputs_of(family: Family) -> dict[str, Tensor]:
    """Returns random inputs of a family by name, the same at every call."""
    generator = torch.Generator().manual_seed(1)
    words = torch.randint(2, VOCAB, (N, T), generator=generator)
    lengths = torch.tensor([T] * (N - 1) + [T - 2])
    choices = {
        "input_ids": words,
        "attention_mask": (torch.arange(T) < lengths[:, None]).long(),
        "decoder_input_ids": words[:, :6],
    }
    choices["pixel_values"] = choices["img"] = choices["inputs"] = torch.randn(
        N, 3, 8, 8, generator=generator
    )
    choices["src"] = torch.randn(N, T, D, generator=generator)
    choices["input"] = words
    return {name: choices[name] for name in family.inputs}

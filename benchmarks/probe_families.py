"""Which model families a probe measures: tiny models of ``transformers``, each against its own hidden states.

For each family and implementation of attention: layers whose stream is exact before the attention, after it and at the end; attentions
seen; attentions with a bilinear form; whether outputs and gradients are bit-identical; whether bfloat16 and a compiled host work; and the
time of an observed training step, with all metrics, relative to one without a probe. The models are so small that this ratio is that of the
metrics' fixed costs: it compares families, and says nothing of a training. Families whose package is missing are left out.
"""

import os
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from transformer_theory.core.metric import Activations, Metric
from transformer_theory.metrics import AttentionStatistics, Geometry
from transformer_theory.probes import probe
from transformer_theory.theories import list_theories
from transformer_theory.training.faults import tensors_in

N, T, D, HEADS, DEPTH, VOCAB = 4, 7, 32, 4, 2, 40
TEXT = {"hidden_size": D, "num_hidden_layers": DEPTH, "num_attention_heads": HEADS, "intermediate_size": 64, "initializer_range": 0.3}
TEXT |= {"vocab_size": VOCAB, "max_position_embeddings": 32, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}
GROUPED = TEXT | {"num_key_value_heads": 2, "head_dim": 8}
SHORT = {"n_layer": DEPTH, "n_head": HEADS, "vocab_size": VOCAB, "initializer_range": 0.3}
FALCON = {name: value for name, value in TEXT.items() if name != "intermediate_size"} | {"new_decoder_architecture": False}
BART = {"d_model": D, "vocab_size": VOCAB, "max_position_embeddings": 32, "init_std": 0.3}
BART |= {
    f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in (("layers", DEPTH), ("attention_heads", HEADS), ("ffn_dim", 64))
}
IMAGES = {name: TEXT[name] for name in ("hidden_size", "num_hidden_layers", "num_attention_heads", "initializer_range")}
IMAGES |= {"image_size": 8, "patch_size": 4}
DEBERTA = TEXT | {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "max_relative_positions": 8}


@dataclass(frozen=True)
class Family:
    """A family of models.

    Attributes:
        model, config: names of the classes in ``transformers``.
        sizes: of a tiny model.
        layer: name of a layer, with its number as ``{}``; what it returns is the stream after it. Of several stacks, one for each.
        inside: place of the stream after the first attention of a layer: a module inside it, and "in" or "out", or "sum" if it is the sum
            of the layer's input and that module's output.
        attentions: calls of attention in one pass.
        bilinear: how many of them have scores that are bilinear in their tokens.
        inputs: names of what the model takes.
        implementations: of attention.
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


def _bert(name: str, **more: Any) -> Family:
    layer = ("encoder.layer.{}",), (("attention.output.LayerNorm", "in"),)
    return Family(f"{name}Model", f"{name}Config", TEXT | more, *layer, bilinear=DEPTH, inputs=("input_ids", "attention_mask"))


def _llama(name: str, after: str = "post_attention_layernorm", **more: Any) -> Family:
    return Family(f"{name}Model", f"{name}Config", GROUPED | more, ("layers.{}",), ((after, "in"),))


NEXT_WORDS = ("input_ids", "decoder_input_ids")
FAMILIES = {
    "GPT-2": Family("GPT2Model", "GPT2Config", SHORT | {"n_embd": D, "n_positions": 32}, ("h.{}",), (("ln_2", "in"),), DEPTH),
    "BERT": _bert("Bert"),
    "RoBERTa": _bert("Roberta"),
    "ELECTRA": _bert("Electra", embedding_size=D),
    "DistilBERT": Family(
        "DistilBertModel",
        "DistilBertConfig",
        {"dim": D, "n_layers": DEPTH, "n_heads": HEADS, "hidden_dim": 64, "vocab_size": VOCAB, "initializer_range": 0.3},
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
        "Gemma2Model", "Gemma2Config", GROUPED, ("layers.{}",), (("pre_feedforward_layernorm", "in"),), implementations=("eager",)
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
    "GPT-NeoX, parallel": Family("GPTNeoXModel", "GPTNeoXConfig", TEXT, ("layers.{}",), (("attention", "sum"),)),
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
        {"hidden_size": D, "num_hidden_layers": DEPTH, "num_attention_heads": HEADS, "ffn_dim": 64, "vocab_size": VOCAB, "init_std": 0.3}
        | {"word_embed_proj_dim": D, "max_position_embeddings": 32},
        ("decoder.layers.{}",),
        (("final_layer_norm", "in"),),
        DEPTH,
    ),
    "T5": Family(
        "T5Model",
        "T5Config",
        {"d_model": D, "d_kv": 8, "d_ff": 64, "num_layers": DEPTH, "num_heads": HEADS, "vocab_size": VOCAB, "initializer_factor": 5.0},
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
    "ViT": Family("ViTModel", "ViTConfig", IMAGES, ("layers.{}",), (("layernorm_after", "in"),), DEPTH, inputs=("pixel_values",)),
    "DINOv2": Family("Dinov2Model", "Dinov2Config", IMAGES, ("encoder.layer.{}",), (("norm2", "in"),), DEPTH, inputs=("pixel_values",)),
    "XLNet, time first": Family(
        "XLNetModel",
        "XLNetConfig",
        SHORT | {"d_model": D, "d_inner": 64},
        ("layer.{}",),
        (("rel_attn.layer_norm", "in"),),
        implementations=("",),
    ),
    "DeBERTa": Family(
        "DebertaModel", "DebertaConfig", DEBERTA, ("encoder.layer.{}",), (("attention.output.LayerNorm", "in"),), implementations=("",)
    ),
    "Mamba, features only": Family(
        "MambaModel",
        "MambaConfig",
        {"hidden_size": D, "num_hidden_layers": DEPTH, "state_size": 4, "vocab_size": VOCAB, "time_step_rank": 4},
        ("layers.{}",),
        (),
        attentions=0,
        implementations=("",),
    ),
}


class Keep(Metric):
    """Keeps all activations."""

    def __init__(self, *kinds: str):
        self.kinds = kinds  # type: ignore[misc]
        super().__init__()

    def update(self, activations: Activations) -> None:
        """Keeps one."""
        self.seen.append(activations)

    def compute(self, *, draws: int = 0, generator: torch.Generator | None = None) -> list:
        """No rows."""
        return []

    def reset(self) -> None:
        """Forgets all."""
        super().reset()
        self.seen: list[Activations] = []

    def of(self, kind: str) -> list[Activations]:
        """Those of one kind, in order."""
        return [activations for activations in self.seen if activations.kind == kind]


def metrics_for(family: Family) -> list[Metric]:
    """Metrics of all theories and of none, or of features alone."""
    everything = [metric for theory in list_theories() if theory.in_networks for metric in theory.in_networks.metrics()]
    everything += [AttentionStatistics(), Geometry()]
    return [metric for metric in everything if family.attentions or "attention" not in metric.kinds]


def model_of(family: Family, implementation: str) -> nn.Module:
    """A tiny model with random weights, the same at every call.

    Raises:
        ImportError: ``transformers`` is missing.
        AttributeError: its version lacks the family.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import transformers

    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = getattr(transformers, family.config)(**family.sizes)
        kind = getattr(transformers, family.model)
        model = kind._from_config(config, attn_implementation=implementation) if implementation else kind(config)
    return model.eval()


def inputs_of(family: Family) -> dict[str, Tensor]:
    """Random inputs."""
    generator = torch.Generator().manual_seed(1)
    words = torch.randint(2, VOCAB, (N, T), generator=generator)
    lengths = torch.tensor([T] * (N - 1) + [T - 2])
    choices = {"input_ids": words, "attention_mask": (torch.arange(T) < lengths[:, None]).long(), "decoder_input_ids": words[:, :6]}
    choices["pixel_values"] = torch.randn(N, 3, 8, 8, generator=generator)
    return {name: choices[name] for name in family.inputs}


def streams_of(family: Family, model: nn.Module) -> list[tuple[Tensor, Tensor | None, Tensor]]:
    """The stream before each layer, after its first attention and after the layer, by hooks on the modules that hold it."""
    seen: dict[str, list[tuple[Tensor, Tensor]]] = {}
    modules = dict(model.named_modules())
    places = [(layer.format(i), inside) for layer, inside in _stacks(family) for i in range(DEPTH)]
    handles = []

    def watch(name: str) -> None:
        def hook(module, args, kwargs, output):
            entry = next(tensors_in([args, kwargs])).detach().clone()
            seen.setdefault(name, []).append((entry, next(tensors_in(output)).detach().clone()))

        handles.append(modules[name].register_forward_hook(hook, with_kwargs=True))

    for name in dict.fromkeys(name for layer, inside in places for name in (layer, inside and f"{layer}.{inside[0]}") if name):
        watch(name)
    with torch.no_grad():
        model(**inputs_of(family))
    for handle in handles:
        handle.remove()
    streams = []
    for layer, inside in places:
        before, after = seen[layer].pop(0)
        middle = None
        if inside:
            entry, output = seen[f"{layer}.{inside[0]}"].pop(0)
            middle = before + output if inside[1] == "sum" else entry if inside[1] == "in" else output
            middle = middle.reshape_as(before)  # OPT flattens sequences inside its layers
        streams.append((before, middle, after))
    return streams


def _stacks(family: Family) -> list[tuple[str, tuple[str, str] | None]]:
    return [(layer, family.inside[i] if family.inside else None) for i, layer in enumerate(family.layer)]


def observed(family: Family, model: nn.Module, **options: Any) -> Keep:
    """All activations of one pass."""
    keep = Keep("attention", "features") if family.attentions else Keep("features")
    with torch.no_grad(), probe(model, [keep], **options):
        model(**inputs_of(family))
    return keep


def exact_layers(family: Family, streams: list[tuple[Tensor, Tensor | None, Tensor]], features: list[Activations]) -> int:
    """Number of layers whose stream is exact at all places; time may come first in the model's own."""

    def same(seen: Tensor | None, true: Tensor | None) -> bool:
        if seen is None or true is None:
            return seen is true or true is None
        return torch.equal(seen, true) or (true.ndim == 3 and torch.equal(seen, true.transpose(0, 1)))

    pairs = zip(streams, features) if len(streams) == len(features) else ()
    return sum(same(x.tokens, z) and same(x.after_attention, middle) and same(x.output, out) for (z, middle, out), x in pairs)


def trained(family: Family, model: nn.Module, metrics: list[Metric]) -> tuple[list[Tensor], list[str], float]:
    """One training step, observed if there are metrics: outputs, gradients and random state; errors; processor time."""
    model.train().zero_grad()
    with torch.random.fork_rng():
        torch.manual_seed(3)
        started = time.process_time()
        errors = []
        if metrics:
            with probe(model, metrics) as p:
                p.labels = torch.arange(N) % 2
                outputs = list(tensors_in(model(**inputs_of(family))))
            errors = [row.reason for row in p.rows if "Error" in row.reason]
        else:
            outputs = list(tensors_in(model(**inputs_of(family))))
        sum((x.float().square().mean() for x in outputs if x.requires_grad), torch.zeros(())).backward()
        seconds = time.process_time() - started
        return [*outputs, *(x.grad for x in model.parameters() if x.grad is not None), torch.get_rng_state()], errors, seconds


def _works(action: Callable[[], list[str]]) -> str:
    try:
        return "yes" if not action() else "no"
    except Exception as error:
        return type(error).__name__


def row(family: Family, implementation: str) -> list[str]:
    """What the table says of a family."""
    model = model_of(family, implementation)
    keep = observed(family, model)
    streams = streams_of(family, model)
    attentions = keep.of("attention")
    plain, probed = trained(family, model, []), trained(family, model, metrics_for(family))
    identical = len(plain[0]) == len(probed[0]) and all(torch.equal(x, y) for x, y in zip(plain[0], probed[0]))

    def half() -> list[str]:
        short = {name: x.bfloat16() if x.is_floating_point() else x for name, x in inputs_of(family).items()}
        with torch.no_grad(), probe(model_of(family, implementation).bfloat16(), metrics_for(family)) as p:
            p.labels = torch.arange(N) % 2
            p.model(**short)
        return [row.reason for row in p.rows if "Error" in row.reason]

    def compiled() -> list[str]:
        torch._dynamo.reset()
        host = torch.compile(lambda **inputs: model(**inputs), backend="eager")
        with torch.no_grad(), probe(model.eval(), metrics_for(family)) as p:
            host(**inputs_of(family))
        return [row.reason for row in p.rows if "Error" in row.reason]

    times = [(trained(family, model, [])[2], trained(family, model, metrics_for(family))[2]) for _ in range(3)]
    ratio = min(b for _, b in times) / min(a for a, _ in times)
    bilinear = sum(x.bilinear is not None for x in attentions)
    return [
        f"{exact_layers(family, streams, keep.of('features'))} of {len(streams)}",
        f"{len(attentions)} of {family.attentions}",
        f"{bilinear} of {family.bilinear}",
        "yes" if identical and not probed[1] else "no",
        _works(half),
        _works(compiled),
        f"{ratio:.1f}",
    ]


def main() -> None:
    """Prints the table in Markdown."""
    warnings.filterwarnings("ignore")
    print("| family | layers exact | attentions | with W | bit-identical | bfloat16 | compiled host | observed step / step |")
    print("|---|---|---|---|---|---|---|---|")
    for name, family in FAMILIES.items():
        for implementation in family.implementations:
            label = f"{name} ({implementation})" if implementation else name
            try:
                cells = row(family, implementation)
            except (ImportError, AttributeError) as error:
                print(f"| {label} | left out: {error} |", flush=True)
                continue
            print(f"| {label} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()

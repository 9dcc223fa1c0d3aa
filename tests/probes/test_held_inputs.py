"""Blocks of a randomised copy that receive the inputs of the network itself."""

import copy

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from tests.cases import each_case
from tests.problems.networks import Keep, tokens
from transformer_theory import models
from transformer_theory.core.statistics import EQUAL_SCALE
from transformer_theory.models.copies import Copies
from transformer_theory.probes.held_inputs import held_inputs
from transformer_theory.probes.passes import Batch, measure_metrics, run

IDS = torch.arange(28).reshape(4, 7) * 11 % 30
PADDED = {"input_ids": IDS, "attention_mask": (torch.arange(7) < torch.tensor([7, 7, 5, 3])[:, None]).long()}


def vit() -> nn.Module:
    network = models.ViT.for_tokens(6, 4, 3, dim=12, depth=3, heads=3)
    return network


def encoder(**options) -> nn.Module:
    layer = nn.TransformerEncoderLayer(12, 2, 24, **options)
    return nn.TransformerEncoder(layer, 3)


def bert() -> nn.Module:
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 32}
    return BertModel(BertConfig(**sizes, vocab_size=30, initializer_range=0.5))


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_embd": 16, "n_layer": 3, "n_head": 4, "vocab_size": 30, "n_positions": 12}
    return GPT2LMHeadModel(GPT2Config(**sizes, initializer_range=0.5, bos_token_id=0, eos_token_id=0))


FIRST = {
    "src": tokens(7, 4, 12),
    "src_key_padding_mask": torch.arange(7) >= torch.tensor([[7], [7], [5], [3]]),
}
BATCH_FIRST = {"src": tokens(4, 7, 12), "src_key_padding_mask": FIRST["src_key_padding_mask"]}
CAUSAL = {"src": tokens(4, 7, 12), "mask": nn.Transformer.generate_square_subsequent_mask(7)}
NETWORKS = {
    "vit": (vit, tokens(5, 6, 4), "blocks"),
    "encoder, time first": (encoder, FIRST, "layers"),
    "encoder, padded": (lambda: encoder(batch_first=True), BATCH_FIRST, "layers"),
    "encoder, causal": (lambda: encoder(batch_first=True, norm_first=True), CAUSAL, "layers"),
    "bert": (bert, PADDED, "encoder.layer"),
    "gpt2": (gpt2, {"input_ids": IDS}, "transformer.h"),
}


REAL = torch.arange(7) < torch.tensor([[7], [7], [5], [3]])
WITH_PADDING = {"bert", "encoder, time first", "encoder, padded"}


def made(name: str) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = NETWORKS[name][0]().eval()
        for parameter in network.parameters():  # layers that were initialised as copies of each other
            if parameter.ndim > 1:
                parameter.data += 0.2 * torch.randn_like(parameter)
    return network


def kept(network: nn.Module, inputs) -> Keep:
    keep = Keep()
    measure_metrics(network, [Batch(inputs)], [keep], name="network", draws=0, n=1)
    return keep


def with_one_layer_of(network: nn.Module, other: nn.Module, blocks: str, layer: int) -> nn.Module:
    """The network with one block of another one."""
    mixed = copy.deepcopy(network)
    source = other.get_submodule(blocks)[layer].state_dict()
    mixed.get_submodule(blocks)[layer].load_state_dict(source)
    return mixed


def outputs_of_blocks(network: nn.Module, inputs, blocks: str) -> list[torch.Tensor]:
    seen = []

    def store(module, args, output):
        seen.append((output[0] if isinstance(output, tuple) else output).clone())

    handles = [block.register_forward_hook(store) for block in network.get_submodule(blocks)]
    torch.backends.mha.set_fastpath_enabled(False)  # else the layers receive nested tensors
    with torch.no_grad():
        run(network, inputs)
    torch.backends.mha.set_fastpath_enabled(True)
    for handle in handles:
        handle.remove()
    return seen


@each_case("name", NETWORKS)
def test_every_layer_is_that_of_a_network_with_this_layer_randomised(name):
    _, inputs, blocks = NETWORKS[name]
    network = made(name)
    drawn = Copies(network).draw(EQUAL_SCALE, 3)
    free = kept(drawn, inputs)
    with held_inputs(network, drawn):
        held = kept(drawn, inputs)
    assert [one.layer for one in held.of("features")] == [0, 1, 2]
    for layer in range(3):
        mixed = with_one_layer_of(network, drawn, blocks, layer)
        expected = kept(mixed, inputs)
        for kind in ("attention", "features"):
            (one,), (other,) = (
                [each for each in keep.of(kind) if each.layer == layer] for keep in (held, expected)
            )
            assert one.name == other.name
            for part in ("tokens", "output", "weights", "value", "bilinear", "mask", "padding", "content"):
                values = getattr(one, part, None), getattr(other, part, None)
                assert (values[0] is None) == (values[1] is None), part
                if isinstance(values[0], torch.Tensor):
                    assert_close(*values, rtol=1e-5, atol=1e-6, equal_nan=True)
        alone = outputs_of_blocks(mixed, inputs, blocks)[layer]
        features = held.of("features")[layer].output
        alone = alone.transpose(0, 1) if name == "encoder, time first" else alone
        some = REAL.expand(4, 7) if name in WITH_PADDING else torch.ones(alone.shape[:2], dtype=torch.bool)
        assert_close(features[some], alone[some], rtol=1e-4, atol=1e-5)
        if layer:
            assert not torch.allclose(features, free.of("features")[layer].output, atol=1e-2)


def test_hooks_are_gone_afterwards_and_the_network_is_as_before():
    network, inputs = made("bert"), NETWORKS["bert"][1]
    network.train()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    drawn = Copies(network).draw(EQUAL_SCALE, 3)
    with torch.no_grad():
        plain = drawn(**inputs).last_hidden_state
        with held_inputs(network, drawn):
            first = drawn(**inputs).last_hidden_state
            second = drawn(**inputs).last_hidden_state
        assert torch.equal(first, second)
        assert not torch.allclose(first, plain)
        assert torch.equal(drawn(**inputs).last_hidden_state, plain)
    for module in (*network.modules(), *drawn.modules()):
        assert not module._forward_pre_hooks
        assert not module._forward_hooks
    assert network.training
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_the_output_is_that_of_the_last_block_alone():
    network, inputs = made("vit"), NETWORKS["vit"][1]
    drawn = Copies(network).draw(EQUAL_SCALE, 3)
    mixed = with_one_layer_of(network, drawn, "blocks", 2)
    mixed.head.load_state_dict(drawn.head.state_dict())
    with torch.no_grad(), held_inputs(network, drawn):
        assert_close(drawn(inputs), mixed(inputs))


class Latents(nn.Module):
    """Blocks that receive a parameter as their stream: it must not be overwritten."""

    def __init__(self):
        super().__init__()
        self.latents = nn.Parameter(torch.randn(2, 12, generator=torch.Generator().manual_seed(1)))
        block = nn.TransformerDecoderLayer
        self.blocks = nn.ModuleList(block(12, 3, 24, batch_first=True) for _ in range(2))

    def forward(self, x):
        for block in self.blocks:
            x = block(x, memory=self.latents[None].expand(len(x), -1, -1) * 1.0)
        return x + self.blocks[0](self.latents[None], memory=x[:1] * 1.0)[:, :1]


def test_tensors_that_are_weights_are_exchanged_and_not_overwritten():
    torch.manual_seed(0)
    network, x = Latents().eval(), tokens(4, 5, 12)
    drawn = Copies(network).draw(EQUAL_SCALE, 3)
    drawn.latents.data += 1.0
    before = drawn.latents.clone()
    with torch.no_grad(), held_inputs(network, drawn):
        output = drawn(x)
    assert torch.equal(drawn.latents, before)
    with torch.no_grad():
        first = network.blocks[0](x, memory=network.latents[None].expand(4, -1, -1))
        second = network.blocks[1](first, memory=network.latents[None].expand(4, -1, -1))
        last = drawn.blocks[1](first, memory=network.latents[None].expand(4, -1, -1))
        expected = last + drawn.blocks[0](network.latents[None], memory=second[:1])[:, :1]
    assert_close(output, expected)


class Lists(nn.Module):
    """A network whose blocks are plain lists, whose members it calls itself."""

    def __init__(self):
        super().__init__()
        parts = lambda: nn.ModuleList([nn.MultiheadAttention(12, 3, batch_first=True), nn.Linear(12, 12)])  # noqa: E731
        self.layers = nn.ModuleList(parts() for _ in range(2))

    def forward(self, x):
        for attention, mlp in self.layers:
            x = x + attention(x, x, x)[0]
            x = x + mlp(x).relu()
        return x


def test_blocks_that_do_not_run_are_refused():
    network = Lists().eval()
    drawn = Copies(network).draw(EQUAL_SCALE, 0)
    with held_inputs(network, drawn), pytest.raises(ValueError, match=r"layers\.0 of Lists is a list"):
        drawn(tokens(2, 5, 12))


def test_nested_tensors_are_refused():
    """Without a probe, the fused kernel of torch packs the sequences."""
    network = made("encoder, padded")
    drawn = Copies(network).draw(EQUAL_SCALE, 0)
    with torch.no_grad(), held_inputs(network, drawn), pytest.raises(ValueError, match="nested tensors"):
        drawn(**BATCH_FIRST)


def test_a_network_of_other_modules_is_refused():
    network, other = made("vit"), made("bert")
    with (
        held_inputs(network, other),
        pytest.raises(ValueError, match=r"modules of ViT, got none named blocks\.0"),
    ):
        other(tokens(5, 6, 4))

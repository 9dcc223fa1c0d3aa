"""Randomised copies of a network: what is kept, what is drawn, and that a network is not changed."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations
from torch.testing import assert_close

from tests.cases import each_case
from transformer_theory import models
from transformer_theory.core.statistics import EQUAL_NORM, EQUAL_SCALE, EQUAL_SPECTRUM, HELD_INPUTS, UNTRAINED
from transformer_theory.models.copies import Copies
from transformer_theory.models.user_model import untrained_network

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32}


def seeded(build, seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return build().eval()


def vit() -> nn.Module:
    return models.ViT.for_images(image_size=8, patch_size=4, num_classes=3, dim=12, depth=2, heads=3)


def crate() -> nn.Module:
    return models.CRATE.for_images(image_size=8, patch_size=4, num_classes=3, dim=12, depth=2, heads=3)


def encoder() -> nn.Module:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(12, 3, 24, batch_first=True), 2)


def bert() -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(BertConfig(**SIZES, vocab_size=30))


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 4, "vocab_size": 30, "n_positions": 12}
    return GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))


def neox() -> nn.Module:
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    return GPTNeoXForCausalLM(GPTNeoXConfig(**SIZES, vocab_size=30))


def dino() -> nn.Module:
    from transformers import Dinov2Config, Dinov2Model

    return Dinov2Model(Dinov2Config(**SIZES, image_size=8, patch_size=4))


def convolutions() -> nn.Module:
    layers = nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 8, 3, groups=2), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(8 * 4 * 4, 5))


NETWORKS = {
    "vit": (vit, ("cls_token", "pos_embedding", "embed.weight")),
    "crate": (crate, ("cls_token", "pos_embedding", "to_patch_embedding.2.weight")),
    "encoder": (encoder, ()),
    "bert": (
        bert,
        tuple(f"bert.embeddings.{one}_embeddings.weight" for one in ("word", "position", "token_type")),
    ),
    "gpt2": (gpt2, ("transformer.wte.weight", "transformer.wpe.weight")),
    "neox": (neox, ("gpt_neox.embed_in.weight",)),
    "dino": (
        dino,
        (
            "embeddings.cls_token",
            "embeddings.mask_token",
            "embeddings.position_embeddings",
            "embeddings.patch_embeddings.projection.weight",
        ),
    ),
    "convolutions": (convolutions, ("0.weight",)),
}


def stored(network: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in network.state_dict().items()}


def thirds(name: str, value: torch.Tensor, network: nn.Module) -> list[torch.Tensor]:
    """The matrices [out, in] of a parameter, by the layout that each network's own code states."""
    if name.endswith(("qkv.weight", "in_proj_weight")) and isinstance(
        network, models.ViT | nn.TransformerEncoder
    ):
        return [value[:12], value[12:24], value[24:]]
    if name.endswith("c_attn.weight"):
        return [value[:, :16].T, value[:, 16:32].T, value[:, 32:].T]
    if name.endswith("query_key_value.weight"):  # head 0: query, key, value; head 1: ...
        rows = torch.arange(48)
        return [value[rows % 12 // 4 == part] for part in range(3)]
    return [value.flatten(1)]


@each_case("name", NETWORKS)
@each_case("kind", [EQUAL_SCALE, EQUAL_SPECTRUM])
def test_entries_or_spectra_of_all_matrices_are_kept_and_everything_else_as_it_is(name, kind):
    build, kept = NETWORKS[name]
    network = seeded(build)
    copies = Copies(network)
    drawn = copies.draw(kind, 5)
    assert type(drawn) is type(network)
    assert not drawn.training
    assert not any(parameter.requires_grad for parameter in drawn.parameters())
    own, matrices, entries = dict(network.named_parameters()), 0, 0
    for key, value in drawn.named_parameters():
        if value.ndim < 2 or key in kept:
            assert torch.equal(value, own[key]), key
            continue
        for new, old in zip(
            thirds(key, value, network), thirds(key, own[key].detach(), network), strict=True
        ):
            matrices, entries = matrices + 1, entries + new.numel()
            assert not torch.equal(new, old), key
            # a permutation or rotation of a matrix leaves no more than chance of its order
            assert abs(float(torch.corrcoef(torch.stack([new.flatten(), old.flatten()]))[0, 1])) < 0.5, key
            if kind == EQUAL_SCALE:
                assert torch.equal(new.flatten().sort().values, old.flatten().sort().values), key
            else:
                assert_close(torch.linalg.svdvals(new), torch.linalg.svdvals(old), rtol=1e-5, atol=1e-5)
    assert copies.matrices == matrices
    assert copies.share == pytest.approx(entries / sum(value.numel() for value in own.values()), rel=1e-12)
    buffers = dict(network.named_buffers())
    assert all(torch.equal(value, buffers[key]) for key, value in drawn.named_buffers())


@each_case("name", NETWORKS)
def test_fresh_copies(name):
    network = seeded(NETWORKS[name][0])
    for parameter in network.parameters():
        parameter.data.mul_(1.5).add_(0.1)
    copies, fresh = Copies(network), untrained_network(network, 4)
    drawn = stored(copies.draw(UNTRAINED, 4))
    assert all(torch.equal(drawn[key], value) for key, value in fresh.state_dict().items())
    drawn = dict(copies.draw(EQUAL_NORM, 4).named_parameters())
    trained = dict(network.named_parameters())
    for key, value in fresh.named_parameters():
        if value.ndim < 2:
            assert torch.equal(drawn[key], value), key
            continue
        kept = key in NETWORKS[name][1]
        parts = ([each] if kept else thirds(key, each, network) for each in (drawn[key], trained[key], value))
        for new, old, initial in zip(*parts, strict=True):
            assert_close(new.norm(), old.norm())
            if initial.any():
                assert_close(new / new.norm(), initial / initial.norm())
            else:
                assert new.std() > 0


@each_case("name", NETWORKS)
def test_draws_follow_from_the_seed_and_leave_network_and_generator_as_they_are(name):
    network = seeded(NETWORKS[name][0]).train()
    before, state, grads = (
        stored(network),
        torch.get_rng_state(),
        [p.requires_grad for p in network.parameters()],
    )
    copies = Copies(network)
    for kind in (EQUAL_SCALE, EQUAL_SPECTRUM, EQUAL_NORM, UNTRAINED):
        first = stored(copies.draw(kind, 1))
        other = stored(copies.draw(kind, 2))
        copies.draw(UNTRAINED, 3)
        again = stored(Copies(network).draw(kind, 1))
        assert all(torch.equal(first[key], again[key]) for key in first)
        assert all(torch.equal(first[key], value) for key, value in copies.draw(kind, 1).state_dict().items())
        assert any(not torch.equal(first[key], other[key]) for key in first)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[key], value) for key, value in network.state_dict().items())
    assert network.training
    assert [p.requires_grad for p in network.parameters()] == grads


def test_tied_weights_stay_tied():
    network = seeded(bert)
    drawn = Copies(network).draw(EQUAL_SCALE, 0)
    assert drawn.cls.predictions.decoder.weight is drawn.bert.embeddings.word_embeddings.weight
    assert drawn.cls.predictions.decoder.weight is not network.cls.predictions.decoder.weight
    shared = seeded(lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)))
    shared[2].weight = shared[0].weight
    copies = Copies(shared)
    drawn = copies.draw(EQUAL_SCALE, 0)
    assert drawn[2].weight is drawn[0].weight
    assert copies.matrices == 1
    assert copies.share == 16 / 24


def test_which_linear_maps_read_the_inputs():
    """A map of the inputs is kept, a head that is not tied to the embedding is not."""
    reading = ("embed", "patch_embed", "to_patch_embedding", "input_embedder")
    matrices = ("embed_out", "unembed", "decoder_embed", "patch_merging", "lm_head")
    network = seeded(lambda: nn.ModuleDict({name: nn.Linear(4, 4) for name in reading + matrices}))
    drawn = Copies(network).draw(EQUAL_SCALE, 0)
    kept = {name for name in network if torch.equal(network[name].weight, drawn[name].weight)}
    assert kept == set(reading)


def test_the_single_matrix_of_a_crate_is_one_matrix():
    network = seeded(crate)
    drawn = Copies(network).draw(EQUAL_SCALE, 0)
    old, new = (each.transformer.layers[0][0].fn.qkv.weight for each in (network, drawn))
    assert old.shape == (12, 12)
    assert torch.equal(old.flatten().sort().values, new.flatten().sort().values)
    assert not torch.equal(old[:4].flatten().sort().values, new[:4].flatten().sort().values)


class Grouped(nn.Module):
    """Attention of 4 heads with 2 keys and values, in one matrix."""

    num_heads, num_key_value_heads, head_dim = 4, 2, 3

    def __init__(self):
        super().__init__()
        self.qkv_proj = nn.Linear(12, (4 + 2 + 2) * 3)
        self.experts = nn.Parameter(torch.randn(2, 5, 12))
        self.register_tokens = nn.Parameter(torch.randn(3, 12))
        self.relative_position_bias_table = nn.Parameter(torch.randn(9, 4))


def test_grouped_heads_and_stacks_of_matrices():
    network = seeded(Grouped)
    copies = Copies(network)
    drawn = copies.draw(EQUAL_SCALE, 0)
    pairs = [
        (each.qkv_proj.weight[a:b], None)
        for each in (network, drawn)
        for a, b in ((0, 12), (12, 18), (18, 24))
    ]
    for old, new in zip(pairs[:3], pairs[3:]):
        assert torch.equal(old[0].flatten().sort().values, new[0].flatten().sort().values)
        assert not torch.equal(old[0], new[0])
    for old, new in zip(network.experts, drawn.experts):
        assert torch.equal(old.flatten().sort().values, new.flatten().sort().values)
        assert not torch.equal(old, new)
    assert torch.equal(network.register_tokens, drawn.register_tokens)
    assert torch.equal(network.relative_position_bias_table, drawn.relative_position_bias_table)
    assert copies.matrices == 5


@each_case("parametrise", [parametrizations.weight_norm, parametrizations.spectral_norm])
@each_case("trainable", [True, False])
def test_parametrised_matrices(parametrise, trainable):
    network = seeded(lambda: nn.Sequential(parametrise(nn.Linear(6, 5)), nn.ReLU(), nn.Linear(5, 4)))
    network.train().requires_grad_(trainable)
    before = stored(network)
    effective = copy.deepcopy(network).eval()[0].weight.detach().clone()
    copies = Copies(network)
    drawn = copies.draw(EQUAL_SCALE, 0)
    assert copies.matrices == 2
    assert torch.equal(drawn[0].weight.flatten().sort().values, effective.flatten().sort().values)
    assert_close(copies.draw(EQUAL_NORM, 0)[0].weight.norm(), effective.norm())
    assert_close(copy.deepcopy(network).eval()[0].weight, effective)  # still parametrised, in its own way
    assert type(network[0].parametrizations.weight).__name__ == "ParametrizationList"
    assert all(torch.equal(before[key], value) for key, value in network.state_dict().items())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_precision_is_kept(dtype):
    network = seeded(vit).to(dtype)
    copies = Copies(network)
    for kind in (EQUAL_SCALE, EQUAL_SPECTRUM, EQUAL_NORM, UNTRAINED):
        drawn = copies.draw(kind, 0)
        assert {parameter.dtype for parameter in drawn.parameters()} == {dtype}
        assert all(parameter.isfinite().all() for parameter in drawn.parameters())
        new, old = (each.blocks[0].attention.out.weight.double().norm() for each in (drawn, network))
        assert kind == UNTRAINED or abs(float(new / old) - 1) < 1e-2


def test_eight_bit_floats():
    network = seeded(lambda: nn.Linear(6, 5))
    network.weight.data = network.weight.data.to(torch.float8_e4m3fn)
    drawn = Copies(network).draw(EQUAL_SCALE, 0)
    assert drawn.weight.dtype == torch.float8_e4m3fn
    new, old = (each.weight.float().flatten() for each in (drawn, network))
    assert torch.equal(new.sort().values, old.sort().values)
    assert not torch.equal(new, old)


class Unpickled(nn.Linear):
    def __deepcopy__(self, memo):
        raise TypeError("holds an open file")


def lazy() -> nn.Module:
    return nn.Sequential(nn.LazyLinear(3))


def integers() -> nn.Module:
    network = nn.Linear(4, 3)
    network.weight = nn.Parameter(torch.zeros(3, 4, dtype=torch.uint8), requires_grad=False)
    return network


def dynamic() -> nn.Module:
    return torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(4, 3)), {nn.Linear})


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: nn.Linear(4, 3, device="meta"), "no values for weight"),
        (lazy, "no values for 0.weight"),
        (integers, "quantised: weight holds integers"),
        (dynamic, "quantised: 0 holds integers"),
        (lambda: Unpickled(4, 3), "Unpickled cannot be copied .TypeError: holds an open file"),
        (lambda: nn.Sequential(nn.Embedding(5, 4), nn.LayerNorm(4)), "Sequential has no matrix"),
    ],
)
def test_networks_of_which_no_copy_can_be_drawn(build, message):
    with pytest.raises(ValueError, match=message):
        Copies(build())


def test_other_kinds_are_refused():
    with pytest.raises(ValueError, match="kind must be one of 'equal scale'"):
        Copies(seeded(vit)).draw(HELD_INPUTS, 0)


def test_networks_that_cannot_be_drawn_anew_still_have_copies_of_equal_scale():
    class Once(nn.Linear):
        def reset_parameters(self):
            if hasattr(self, "built"):
                raise RuntimeError("only once")
            self.built = True
            super().reset_parameters()

    network = seeded(lambda: Once(4, 3))
    copies = Copies(network)
    assert not torch.equal(copies.draw(EQUAL_SCALE, 0).weight, network.weight)
    with pytest.raises(ValueError, match=r"cannot be drawn again \(RuntimeError: only once"):
        copies.draw(UNTRAINED, 0)


def test_every_order_is_equally_likely():
    """Of the 24 orders of four entries each occurs in 1/24 of the draws: chi^2 with 23 degrees of freedom."""
    network = nn.Linear(2, 2)
    network.weight.data = torch.tensor([[0.0, 1.0], [2.0, 3.0]])
    copies, draws = Copies(network), 2400
    orders = [tuple(copies.draw(EQUAL_SCALE, seed).weight.flatten().tolist()) for seed in range(draws)]
    counts = [orders.count(order) for order in set(orders)]
    assert len(counts) == math.factorial(4)
    assert sum((count - 100) ** 2 / 100 for count in counts) < 49.7  # the quantile of .999


def test_the_rank_of_a_statistic_is_uniform_for_independent_entries():
    """Networks with independent entries are exchangeable with their copies: the rank among 4 copies is
    uniform on 0..4, chi^2 with 4 degrees of freedom.
    """
    generator, counts, networks = torch.Generator().manual_seed(0), [0] * 5, 300
    x = torch.randn(8, 6, generator=generator)
    network = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6))

    def statistic(each: nn.Module) -> float:
        with torch.no_grad():
            return float(each(x).var(0).max())

    copies = Copies(network)
    for number in range(networks):
        for layer in (network[0], network[2]):
            layer.weight.data = torch.randn(6, 6, generator=generator)
        own = statistic(network)
        counts[sum(statistic(copies.draw(EQUAL_SCALE, 4 * number + draw)) < own for draw in range(4))] += 1
    assert sum((count - 60) ** 2 / 60 for count in counts) < 18.5  # the quantile of .999

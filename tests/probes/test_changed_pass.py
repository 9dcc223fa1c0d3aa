"""Changed attention: every implementation, by an independent route; nothing else changes."""

import copy
from importlib.util import find_spec

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from benchmarks._families import FAMILIES, inputs_of, model_of
from transformer_theory.core.intervention import NotChanged, normalised
from transformer_theory.models import CRATE, ViT
from transformer_theory.probes import NoAttention
from transformer_theory.probes.changed_pass import changed_attention, check_changed

INSTALLED = {
    name: family
    for name, family in FAMILIES.items()
    if (not family.make or not family.model or find_spec(family.model)) and family.attentions
}
CASES = [(name, how) for name, family in INSTALLED.items() for how in family.implementations]
FUSED = ("nn.TransformerEncoder, norm first", "nn.TransformerEncoder, norm last")


def unchanged(attended):
    return attended


def slightly(attended):
    """Weights that differ in their last bits, so that the product of weights and values is computed anew."""
    return attended.with_weights(attended.weights * (1 + 3e-7))


def uniform(attended):
    return attended.with_weights(normalised(attended.mask.to(attended.weights)))


def tensors(output):
    values = (
        output.values() if isinstance(output, dict) else output if isinstance(output, tuple) else [output]
    )
    return [x for x in values if isinstance(x, torch.Tensor) and x.is_floating_point()]


@pytest.mark.parametrize(("name", "implementation"), CASES)
def test_every_family_is_changed_in_the_right_layout(name, implementation):
    pytest.importorskip("transformers")
    family = FAMILIES[name]
    model, inputs = model_of(family, implementation).eval(), inputs_of(family)
    with torch.no_grad():
        plain = [x.clone() for x in tensors(model(**inputs))]
    with changed_attention(model, unchanged) as changed:
        same = tensors(model(**inputs))
    assert changed.found == family.attentions
    assert not changed.changed
    if name in FUSED:  # outside the block they run as one kernel, which agrees up to rounding
        assert all(torch.allclose(x, y, atol=1e-5) for x, y in zip(plain, same, strict=True))
    else:
        assert all(torch.equal(x, y) for x, y in zip(plain, same, strict=True))
    with changed_attention(model, slightly) as changed:
        close = tensors(model(**inputs))
    assert changed.changed == changed.found
    for x, y in zip(plain, close, strict=True):
        assert_close(y, x, rtol=2e-3, atol=2e-4 * float(x.abs().max()))
    with changed_attention(model, uniform):
        other = tensors(model(**inputs))
    assert not all(torch.equal(x, y) for x, y in zip(plain, other, strict=True))


def vit(**sizes) -> ViT:
    torch.manual_seed(0)
    model = ViT.for_tokens(5, 6, 3, dim=8, depth=2, heads=2, **sizes)
    for weight in model.parameters():
        nn.init.normal_(weight, std=0.5)
    return model.eval()


def hand_written(model: ViT, inputs: torch.Tensor) -> torch.Tensor:
    """The same network with uniform attention in its second half of heads, in plain products."""
    p = {name: x.detach().double() for name, x in model.named_parameters()}
    x = torch.einsum("btd,ed->bte", inputs.double(), p["embed.weight"]) + p["embed.bias"]
    x = torch.cat([p["cls_token"].expand(len(x), -1, -1), x], 1) + p["pos_embedding"]

    def norm(x, name):
        centred = x - x.mean(-1, keepdim=True)
        scaled = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        return scaled * p[f"{name}.weight"] + p[f"{name}.bias"]

    for layer in ("blocks.0", "blocks.1"):
        normed = norm(x, f"{layer}.attention_norm")
        # rows of the matrix: queries, keys and values, each of two heads of four dimensions
        W = p[f"{layer}.attention.qkv.weight"].reshape(3, 2, 4, 8)
        q, k, v = torch.einsum("btd,shed->sbhte", normed, W)
        A = torch.exp(torch.einsum("bhqe,bhke->bhqk", q, k) / 2)
        A = A / A.sum(-1, keepdim=True)
        A[:, 1] = 1 / A.shape[-1]
        heads = torch.einsum("bhqk,bhke->bqhe", A, v).reshape(*x.shape)
        x = x + heads @ p[f"{layer}.attention.out.weight"].T + p[f"{layer}.attention.out.bias"]
        normed = norm(x, f"{layer}.mlp_norm")
        hidden = normed @ p[f"{layer}.mlp.0.weight"].T + p[f"{layer}.mlp.0.bias"]
        hidden = 0.5 * hidden * (1 + torch.erf(hidden / 2**0.5))
        x = x + hidden @ p[f"{layer}.mlp.2.weight"].T + p[f"{layer}.mlp.2.bias"]
    return norm(x, "norm")[:, 0] @ p["head.weight"].T + p["head.bias"]


def second_uniform(attended):
    weights = attended.weights.clone()
    weights[:, 1] = 1 / weights.shape[-1]
    return attended.with_weights(weights)


def test_a_changed_pass_is_that_of_plain_products():
    model, inputs = vit(), torch.randn(7, 5, 6, generator=torch.Generator().manual_seed(1))
    with changed_attention(model, second_uniform):
        found = model(inputs)
    assert_close(found.double(), hand_written(model, inputs), rtol=1e-4, atol=1e-4)


def test_values_of_another_sequence_are_those_of_its_own_pass():
    """If every query reads values and weights of the next sequence in the first layer, its heads do so."""
    model, inputs = vit(), torch.randn(3, 5, 6)
    seen = {}

    def keep(attended):
        seen[attended.layer] = attended
        return attended

    with changed_attention(model, keep):
        model(inputs)
    first = seen[0]
    assert (first.sequences, first.first_head, first.weights.shape) == (3, 0, (3, 2, 6, 6))
    assert first.scale == pytest.approx(0.5)
    assert bool(first.mask.all())
    expected = (first.query.double() @ first.key.double().mT / 2).softmax(-1)
    assert_close(first.weights.double(), expected, rtol=1e-5, atol=1e-6)
    assert_close(first.scores.exp(), first.weights)


def test_the_model_is_as_before():
    model = vit().train()
    model.blocks[1].eval()
    modes = [module.training for module in model.modules()]
    before = copy.deepcopy(model.state_dict())
    inputs = torch.randn(2, 5, 6)
    model(inputs).sum().backward()
    gradients = [x.grad.clone() for x in model.parameters()]

    def fails(attended):
        assert not model.training
        assert not torch.is_grad_enabled()
        if attended.layer:
            raise RuntimeError("planned")
        return uniform(attended)

    with pytest.raises(RuntimeError, match="planned"), changed_attention(model, fails):
        model(inputs)
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    assert all(torch.equal(x.grad, y) for x, y in zip(model.parameters(), gradients))
    assert "forward" not in vars(model)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_a_change_of_nothing_is_an_error():
    model = vit()
    with changed_attention(model, unchanged) as changed:
        model(torch.randn(2, 5, 6))
    with pytest.raises(NotChanged, match="nothing changed no weight and no value in 2 attentions of ViT"):
        check_changed(changed, "nothing")


def test_a_network_without_attention():
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU())
    with pytest.raises(NoAttention, match="Sequential"), changed_attention(model, uniform):
        model(torch.randn(2, 6))


def test_weights_that_are_not_finite_are_refused():
    model = vit()
    with (
        pytest.raises(ValueError, match=r"finite.*blocks\.0\.attention, layer 0"),
        changed_attention(model, lambda attended: attended.with_weights(attended.weights / 0)),
    ):
        model(torch.randn(2, 5, 6))


class Written(nn.Module):
    """Attention by einsum, with axes in an unusual order."""

    def __init__(self, values: str, heads: int = 2):
        super().__init__()
        self.heads, self.values = heads, values
        self.qkv = nn.Linear(8, 24)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).unbind(2)
        A = (torch.einsum("bqhd,bkhd->bhqk", q, k) / 2).softmax(-1)
        out = torch.einsum(self.values, A, v)
        return out.flatten(2) if self.values.endswith("bqhd") else out


@pytest.mark.parametrize("values", ["bhqk,bkhd->bqhd", "bhqk,bkhd->bhqd", "bhqk,bkhd->dbqh"])
def test_any_einsum_is_changed(values):
    torch.manual_seed(0)
    model, x = Written(values), torch.randn(3, 5, 8)
    plain = model(x).detach()
    with changed_attention(model, slightly):
        assert_close(model(x), plain, rtol=1e-4, atol=1e-5)
    with changed_attention(model, uniform):
        found = model(x)
    v = model.qkv(x).unflatten(-1, (3, 2, -1))[:, :, 2].mean(1)  # [batch, heads, dim]
    expected = torch.einsum(values.replace("k", ""), torch.ones(3, 2, 5), v)
    assert_close(found, expected.reshape(found.shape).detach(), rtol=1e-4, atol=1e-5)


def test_heads_that_are_folded_into_the_batch():
    class Folded(nn.Module):
        def forward(self, x):  # [batch, seq, dim] -> three tensors [batch * heads, seq, dim]
            x = x.unflatten(-1, (2, -1)).transpose(1, 2).flatten(0, 1)
            y = nn.functional.scaled_dot_product_attention(x, x, x)
            return y.unflatten(0, (-1, 2)).transpose(1, 2).flatten(2)

    seen = []
    with changed_attention(Folded(), lambda attended: seen.append(attended) or attended) as changed:
        changed.model(torch.randn(3, 5, 8))
    assert seen[0].weights.shape == (3, 2, 5, 5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("make", [vit, lambda: CRATE.for_tokens(5, 6, 3, dim=8, depth=2, heads=2).eval()])
def test_half_precision(make, dtype):
    if dtype == torch.float16 and isinstance(make(), CRATE):
        pytest.skip("a CRATE refuses float16 on a CPU")
    full, model = make(), make().to(dtype)
    model.load_state_dict({name: x.to(dtype) for name, x in full.state_dict().items()})
    inputs = torch.randn(4, 5, 6)
    with changed_attention(full, uniform):
        expected = full(inputs)
    with changed_attention(model, uniform):
        found = model(inputs.to(dtype))
    assert found.dtype == dtype
    assert_close(found.float(), expected, rtol=0.1, atol=0.1 * float(expected.abs().max()))


def test_a_compiled_model_runs_eagerly_inside_the_block():
    model, inputs = vit(), torch.randn(2, 5, 6)
    compiled = torch.compile(model, backend="eager")
    with changed_attention(model, second_uniform):
        expected = model(inputs)
    plain = compiled(inputs).detach()
    with changed_attention(compiled, second_uniform):
        assert_close(compiled(inputs), expected)
    assert torch.equal(compiled(inputs), plain)


def test_multi_head_attention_of_torch():
    torch.manual_seed(0)
    model = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1, enable_nested_tensor=False
    ).eval()
    x = torch.randn(3, 5, 8)
    with changed_attention(model, uniform):
        found = model(x)
    layer = model.layers[0]
    v = x @ layer.self_attn.in_proj_weight[16:].T + layer.self_attn.in_proj_bias[16:]
    y = layer.norm1(x + layer.self_attn.out_proj(v.mean(1, keepdim=True).expand(-1, 5, -1)))
    expected = layer.norm2(y + layer.linear2(layer.linear1(y).relu()))
    assert_close(found, expected.detach(), rtol=1e-4, atol=1e-5)


def test_draws_differ_by_their_seed_alone():
    model, x = vit(), torch.randn(3, 5, 6)

    def noisy(attended):
        noise = torch.rand(attended.weights.shape, generator=attended.generator)
        return attended.with_weights(normalised(attended.weights * noise))

    state = torch.get_rng_state()
    outputs = []
    for seed in (1, 1, 2):
        with changed_attention(model, noisy, seed=seed):
            outputs.append(model(x))
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])
    assert torch.equal(torch.get_rng_state(), state)


def test_a_model_wrapped_for_parallel_training():
    model, x = vit(), torch.randn(2, 5, 6)
    with changed_attention(model, uniform):
        expected = model(x)
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        wrapped = nn.parallel.DistributedDataParallel(model)
        with changed_attention(wrapped, uniform) as changed:
            assert torch.equal(wrapped(x), expected)
        assert changed.name == "ViT"
    finally:
        torch.distributed.destroy_process_group()


def test_attention_without_the_sequences_of_the_batch_is_refused():
    class Across(nn.Module):
        def forward(self, x):  # [batch, seq, dim]: tokens attend across the batch
            x = x.transpose(0, 1)
            return nn.functional.scaled_dot_product_attention(x, x, x).transpose(0, 1)

    with (
        pytest.raises(ValueError, match=r"leading axes \[5\], in which the 3 sequences"),
        changed_attention(Across(), uniform) as changed,
    ):
        changed.model(torch.randn(3, 5, 8))


def test_layers_and_heads_are_counted_like_those_of_the_probe():
    from transformer_theory.core.metric import Metric
    from transformer_theory.probes import probe

    class Seen(Metric):
        kinds = ("attention",)

        def reset(self):
            super().reset()
            self.found = []

        def update(self, activations):
            self.found.append((activations.layer, activations.first_head, activations.key.shape[1]))

        def compute(self, *, draws=0, generator=None):
            return ()

    pytest.importorskip("transformers")
    for name, how in CASES:
        family = FAMILIES[name]
        model, inputs, metric, own = model_of(family, how).eval(), inputs_of(family), Seen(), []
        with torch.no_grad(), probe(model, [metric]):
            model(**inputs)

        def keep(attended, own=own):
            own.append((attended.layer, attended.first_head, attended.weights.shape[1]))
            return attended

        with changed_attention(model, keep):
            model(**inputs)
        # padded sequences reach the metric in groups
        assert sorted(own) == sorted(set(metric.found)), name


# --- blocks


def reading(block):
    return block


def doubled(block):
    return block.with_output(2 * block.output)


@pytest.mark.parametrize("name", sorted(INSTALLED))
def test_blocks_of_every_family_are_changed(name):
    pytest.importorskip("transformers")
    model, inputs = (
        model_of(INSTALLED[name], INSTALLED[name].implementations[0]).eval(),
        inputs_of(INSTALLED[name]),
    )
    with torch.no_grad():
        plain = [x.clone() for x in tensors(model(**inputs))]
    with changed_attention(model, reading, site="block") as changed:
        same = tensors(model(**inputs))
    assert changed.found > 0
    assert not changed.changed
    exact = torch.equal if name not in FUSED else lambda x, y: torch.allclose(x, y, atol=1e-5)
    assert all(exact(x, y) for x, y in zip(plain, same, strict=True))
    # the block itself, on its own tokens: the output is that of the first run
    found = []

    def again(block):
        found.append((block.again(block.tokens), block.output))
        return block

    with changed_attention(model, again, site="block"):
        same = tensors(model(**inputs))
    assert all(exact(x, y) for x, y in zip(plain, same, strict=True))
    for repeated, output in found:
        assert_close(repeated, output, rtol=1e-4, atol=1e-5)
    with changed_attention(model, doubled, site="block") as changed:
        other = tensors(model(**inputs))
    assert changed.changed == changed.found == len(found)
    assert not all(torch.equal(x, y) for x, y in zip(plain, other, strict=True))


def test_a_changed_block_is_that_of_the_modules_in_a_row():
    model, inputs = vit(), torch.randn(7, 5, 6, generator=torch.Generator().manual_seed(1))
    layers = []

    def halved(block):
        layers.append(block.layer)
        return block.with_output(block.output - block.tokens / 2)

    with changed_attention(model, halved, site="block"):
        found = model(inputs)
    assert layers == [0, 1]
    with torch.no_grad():
        x = torch.cat([model.cls_token.expand(7, -1, -1), model.embed(inputs)], 1) + model.pos_embedding
        for block in model.blocks:
            x = block(x) - x / 2
        assert_close(found, model.head(model.norm(x)[:, 0]))


def test_outputs_of_blocks_must_be_finite():
    inputs = torch.randn(7, 5, 6)
    with (
        pytest.raises(ValueError, match=r"outputs must be finite, got NaN or infinity in blocks\.0, layer 0"),
        changed_attention(vit(), lambda block: block.with_output(block.output / 0), site="block") as changed,
    ):
        changed.model(inputs)


class InAList(nn.Module):
    """A block is a plain list, which never runs as a module."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.ModuleList([nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 8)]) for _ in range(2)
        )

    def forward(self, x):
        for attention, linear in self.layers:
            x = x + attention(x, x, x)[0]
            x = x + linear(x)
        return x


def test_blocks_that_are_no_modules():
    model, x = InAList(), torch.randn(3, 5, 8)
    with (
        pytest.raises(NoAttention, match="no block of InAList is a module that receives tokens"),
        changed_attention(model, doubled, site="block"),
    ):
        model(x)


def test_labels_are_those_of_the_pass():
    model, seen = vit(), []

    def keep(passed):
        seen.append(passed.labels)
        return passed

    for site in ("attention", "block"):
        with changed_attention(model, keep, site=site) as changed:
            model(torch.randn(3, 5, 6))
            changed.labels = torch.tensor([2, 0, 1])
            model(torch.randn(3, 5, 6))
    assert [None if x is None else x.tolist() for x in seen] == [None, None, [2, 0, 1], [2, 0, 1]] * 2


# --- inputs


def test_changed_inputs_are_those_of_another_pass():
    model, x = vit(), torch.randn(3, 5, 6)
    seen = []

    def other(passed):
        seen.append(passed.numbers.tolist())
        return passed.with_inputs(passed.inputs + passed.structure[passed.numbers, None, None])

    added = torch.arange(8.0)
    with changed_attention(model, other, site="inputs", structure=added) as changed:
        first = model(x)
        changed.numbers = torch.tensor([7, 2, 5])
        second = model(x)
    assert (changed.found, changed.changed) == (2, 2)
    assert seen == [[0, 1, 2], [7, 2, 5]]
    with torch.no_grad():
        assert torch.equal(first, model(x + added[:3, None, None]))
        assert torch.equal(second, model(x + added[[7, 2, 5], None, None]))
    assert "forward" not in vars(model)


def test_inputs_by_name_are_changed_and_other_arguments_stay():
    class Named(nn.Module):
        def forward(self, ids, mask=None):
            return ids * mask

    with changed_attention(
        Named(), lambda passed: passed.with_inputs(passed.inputs + 1), site="inputs"
    ) as changed:
        found = changed.model(ids=torch.tensor([[1, 2]]), mask=torch.tensor([[0, 1]]))
    assert found.tolist() == [[0, 3]]


def test_inputs_that_stay_are_an_error():
    with changed_attention(vit(), reading, site="inputs") as changed:
        changed.model(torch.randn(2, 5, 6))
    with pytest.raises(NotChanged, match="nothing changed no input in 1 forward passes of ViT"):
        check_changed(changed, "nothing")


def test_inputs_in_a_list_are_refused():
    class Listed(nn.Module):
        def forward(self, parts):
            return parts[0]

    with (
        pytest.raises(ValueError, match="no argument of Listed is a tensor, so that its inputs cannot"),
        changed_attention(Listed(), reading, site="inputs") as changed,
    ):
        changed.model([torch.randn(2, 3)])

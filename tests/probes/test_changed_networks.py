"""Changed passes of networks that are wrapped, compiled, padded, of low precision, hooked or observed: each
network is changed as the plain one is, or refused with one line.
"""

import contextlib
import copy
from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import transformer_theory as tt
from tests.cases import each_case
from tests.probes.test_changed_pass import uniform, vit
from transformer_theory.core.intervention import BlockPass, NotChanged
from transformer_theory.models import ViT
from transformer_theory.probes import probe
from transformer_theory.probes.changed_pass import changed_attention, check_changed
from transformer_theory.probes.intervene import EXCHANGES
from transformer_theory.theories.bottleneck import interventions as bottleneck
from transformer_theory.theories.joma import interventions as joma
from transformer_theory.theories.rate_reduction import interventions as rate_reduction


def half_skip(block):
    return block.with_output(block.output - block.tokens / 2)


def twice(block):
    return block.with_output(block.again(block.output))


def silent_mlp(block):
    name = "mlp.2.weight"
    zero = torch.zeros_like(block.module.get_parameter(name))
    return block.with_output(block.again(block.tokens, {name: zero}))


SITES = {uniform: "attention", half_skip: "block", twice: "block", silent_mlp: "block"}
X = torch.randn(4, 5, 6, generator=torch.Generator().manual_seed(1))


def changed(model, change, x=X):
    with changed_attention(model, change, site=SITES[change]) as found:
        outputs = model(x)
    check_changed(found, "the change")
    return outputs


def in_place(model: nn.Module) -> nn.Module:
    model.compile(backend="eager")
    return model


def compiled_blocks(model: nn.Module) -> nn.Module:
    for number, block in enumerate(model.blocks):
        model.blocks[number] = torch.compile(block, backend="eager")
    return model


WRAPPERS = {
    "compiled": lambda model: torch.compile(model, backend="eager"),
    "compiled in place": in_place,
    "compiled blocks": compiled_blocks,
    "DataParallel": nn.DataParallel,
}


# the compiler does not follow the checks of shapes reliably
@pytest.mark.usefixtures("unchecked")
@each_case("change", SITES)
@each_case("wrapper", WRAPPERS)
def test_wrapped_networks_are_changed_like_plain_ones(wrapper, change):
    expected = changed(vit(), change)
    model = WRAPPERS[wrapper](vit())
    before, plain = copy.deepcopy(model.state_dict()), model(X).detach()
    assert torch.equal(changed(model, change), expected)
    assert torch.equal(model(X), plain)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@contextlib.contextmanager
def one_process() -> Iterator[None]:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


def sharded(model: nn.Module) -> nn.Module:
    """The network in FSDP, block by block, on the CPU."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (1,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def test_networks_of_parallel_training():
    expected = {change: changed(vit(), change) for change in SITES}
    with one_process():
        for change in SITES:
            assert torch.equal(changed(nn.parallel.DistributedDataParallel(vit()), change), expected[change])
        for change in (uniform, half_skip, twice):
            assert torch.equal(changed(sharded(vit()), change), expected[change])


def test_weights_that_lie_in_parts_are_not_replaced():
    with one_process():
        model = sharded(vit())
        with pytest.raises(ValueError, match="must have its weights in one piece to be changed, got FSDP"):
            changed(model, silent_mlp)

        def read(function):
            with changed_attention(model, lambda block: function(block) or block, site="block"):
                model(X)

        with pytest.raises(ValueError, match=r"blocks\.0 must have its weights in one piece"):
            joma.leading_directions(read)


@each_case(("dtype", "rtol"), [(torch.bfloat16, 0.03), (torch.float16, 0.003)])
@each_case("change", SITES)
def test_changes_in_half_precision(change, dtype, rtol):
    expected, model = changed(vit(), change), vit().to(dtype)
    found = changed(model, change, X.to(dtype))
    assert found.dtype == dtype
    assert_close(found.float(), expected, rtol=0, atol=rtol * float(expected.abs().max()))


def test_autocast_and_inference_mode():
    expected = {change: changed(vit(), change) for change in SITES}
    for change in SITES:
        with torch.inference_mode():
            assert torch.equal(changed(vit(), change), expected[change])
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = changed(vit(), change)
        limit = 0.03 * float(expected[change].abs().max())
        assert_close(found.float(), expected[change], rtol=0, atol=limit)


def encoder(**options) -> nn.TransformerEncoder:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, **options)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def test_no_dropout_in_training_mode():
    training, evaluated = encoder(dropout=0.5).train(), encoder(dropout=0.5).eval()
    training.layers[1].eval()
    modes = [module.training for module in training.modules()]
    x, state = torch.randn(3, 5, 8, requires_grad=True), torch.get_rng_state()
    for change in (uniform, twice):
        found = changed(training, change, x)
        assert torch.equal(found, changed(evaluated, change, x))
        assert not found.requires_grad
    assert [module.training for module in training.modules()] == modes
    assert torch.equal(torch.get_rng_state(), state)


def test_hooks_of_the_user_are_a_part_of_the_network():
    model, called = vit(), []
    model.blocks[0].register_forward_hook(lambda module, args, output: called.append("after") or 2 * output)
    model.blocks[1].register_forward_pre_hook(lambda module, args: called.append("before") or (args[0] + 1,))
    model.blocks[1].attention.register_forward_hook(lambda *args: called.append("attention"))
    plain = model(X).detach()
    assert called == ["after", "before", "attention"]
    seen: list[BlockPass] = []
    with changed_attention(model, lambda block: seen.append(block) or block, site="block"):
        assert torch.equal(model(X), plain)
    assert called == ["after", "before", "attention"] * 2
    assert torch.equal(seen[1].tokens, seen[0].output)  # the hook before a block is a part of it
    with changed_attention(model, twice, site="block"):
        found = model(X)
    with torch.no_grad():
        x = torch.cat([model.cls_token.expand(4, -1, -1), model.embed(X)], 1) + model.pos_embedding
        for block in model.blocks:
            x = block(block(x))
        assert_close(found, model.head(model.norm(x)[:, 0]))
    hooks = [*model.blocks[0]._forward_hooks, *model.blocks[1]._forward_pre_hooks]
    assert len(hooks) == 2
    assert sum(len(each._forward_hooks) + len(each._forward_pre_hooks) for each in model.modules()) == 3


REFUSED = "ViT is probed or changed by another block, which would observe the change"


@pytest.mark.parametrize("change", [uniform, twice])
def test_a_probe_beside_a_change_is_refused(change):
    model = vit()
    metrics = tt.theory("scan_snap").in_networks.metrics
    for first, second in (
        (lambda: probe(model, metrics()), lambda: changed_attention(model, change, site=SITES[change])),
        (lambda: changed_attention(model, change, site=SITES[change]), lambda: probe(model, metrics())),
        (lambda: changed_attention(model, uniform), lambda: changed_attention(model, uniform)),
        (lambda: changed_attention(model, uniform), lambda: probe(model.blocks[0], metrics())),
    ):
        with pytest.raises(ValueError, match=REFUSED), first(), second():
            model(X)
    assert torch.equal(changed(model, change), changed(vit(), change))


def test_an_intervention_inside_a_probe_has_rows_with_the_reason():
    model = vit()
    with probe(model, tt.theory("scan_snap").in_networks.metrics()):
        result = tt.intervene(model, X, "scan_snap", labels=[0, 1, 2, 0], draws=1)
    assert all(row.value is None and row.reason.startswith(REFUSED) for row in result.table)


def test_vmap_is_refused():
    model = vit()
    with (
        pytest.raises(ValueError, match=r"ViT runs inside torch\.vmap, where values cannot be read"),
        changed_attention(model, uniform),
    ):
        torch.vmap(lambda x: model(x[None])[0])(X)


def rows_of(model: nn.Module) -> dict[tuple, tuple]:
    """Values, nulls and reasons of three interventions: of attention, of blocks, and of weights."""
    x = torch.randn(24, 5, 6, generator=torch.Generator().manual_seed(3))
    labels = vit()(x).argmax(1)  # the network is right, so that there is something to lose
    table = tt.intervene(model, x, ["scan_snap", "collapse", "joma"], labels=labels, draws=2).table
    return {
        (row.theory, row.quantity, tuple(row.at.items())): (
            row.value,
            tuple(null.draws for null in row.nulls),
            row.reason,
        )
        for row in table
    }


@pytest.mark.usefixtures("unchecked")
def test_interventions_in_wrapped_networks_have_the_rows_of_the_plain_one():
    expected = rows_of(vit())
    effects = {key: row for key, row in expected.items() if ("measure", "accuracy") in key[2]}
    assert {len(draws) for _, nulls, _ in effects.values() for draws in nulls} == {EXCHANGES}
    assert any(value < 0 for value, *_ in effects.values())
    for wrap in (WRAPPERS["compiled"], nn.Module.train):
        assert rows_of(wrap(vit())) == expected
    with one_process():
        assert rows_of(nn.parallel.DistributedDataParallel(vit())) == expected
        found = rows_of(sharded(vit()))
    (missing,) = {key for key in found if key not in expected}
    assert missing[0] == "joma"
    assert found[missing][2].startswith("blocks.0 must have its weights in one piece")
    assert {key: row for key, row in expected.items() if key[:2] != missing[:2]} == {
        key: row for key, row in found.items() if key != missing
    }


# --- padding


class Padded(nn.Module):
    """A transformer encoder whose padding is what lies beyond 3 tokens, in every second sequence."""

    def __init__(self, argument: bool):
        super().__init__()
        self.encoder, self.argument = encoder(dropout=0.0).eval(), argument

    def forward(self, x, padding_mask):
        return self.encoder(x, src_key_padding_mask=padding_mask if self.argument else None)


def padded(fill: float) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(6, 5, 8, generator=torch.Generator().manual_seed(2))
    mask = torch.zeros(6, 5, dtype=torch.bool)
    mask[1::2, 3:] = True
    return x.masked_fill(mask[..., None], fill), mask


@pytest.mark.parametrize("argument", [True, False])
def test_padding_is_known_to_changes_of_blocks(argument):
    """From the mask of the attention, or from that of the network alone."""
    x, mask = padded(7.0)
    model, seen = Padded(argument), []
    with changed_attention(model, lambda block: seen.append(block.real) or block, site="block"):
        model(x, padding_mask=mask)
        model(x, padding_mask=torch.zeros_like(mask))
    first, second, *whole = seen
    assert torch.equal(first, ~mask)
    assert torch.equal(second, ~mask)
    assert whole == [None, None]


def test_a_mask_of_attention_alone_tells_the_padding():
    x, mask = padded(7.0)
    model, seen = encoder(dropout=0.0).eval(), []
    with changed_attention(model, lambda block: seen.append(block.real) or block, site="block"):
        model(x, mask=mask[:, None, None].expand(-1, 2, 5, -1).flatten(0, 1))
        model(x, mask=torch.ones(5, 5, dtype=torch.bool).triu(1))
    assert torch.equal(seen[0], ~mask)
    assert seen[2] is None  # of a causal mask every key is seen by its own query


def read_padded(fill: float):
    x, mask = padded(fill)

    def read(function):
        with changed_attention(Padded(True), lambda block: function(block) or block, site="block") as found:
            found.labels = torch.arange(6) % 3
            found.model(x, padding_mask=mask)

    return read


def test_padding_enters_no_class_subspace():
    chosen = [rate_reduction.choose_subspaces(read_padded(fill)) for fill in (0.0, 1e3)]
    assert_close(*[each.moments for each in chosen])
    x, mask = padded(0.0)
    with torch.no_grad():
        outputs = Padded(True)(x, padding_mask=mask).double()
    for sequence, tokens in enumerate(outputs):
        real = tokens[: 3 if sequence % 2 else 5]
        moments = sum(torch.outer(token, token) for token in real) / len(real)
        assert_close(chosen[0].moments[sequence], moments, rtol=1e-4, atol=1e-5)


def test_padding_is_no_word():
    with pytest.raises(ValueError, match="need sequences of one length, got padding"):
        bottleneck.choose_codes(read_padded(0.0))


# --- networks that are not measured


def lazy() -> nn.Module:
    return nn.Sequential(nn.LazyLinear(6), vit())


def without_values() -> nn.Module:
    return ViT.for_tokens(5, 6, 3, dim=8, depth=2, heads=2).to("meta")


def not_finite() -> nn.Module:
    model = vit()
    with torch.no_grad():
        model.head.weight[0, 0] = float("nan")
    return model


@each_case(
    ("make", "inputs", "labels", "line"),
    [
        (without_values, X, None, "ViT must have weights, got parameters on the meta device"),
        (lazy, X, None, "Sequential must have weights, got lazy parameters, which have no shape yet"),
        (not_finite, X, None, r"ViT must have finite weights, got NaN or infinity in head\.weight"),
        (vit, None, None, "ViT must have inputs to be measured on, got none"),
        (vit, X[:0], None, r"inputs must be a tensor \[n, \.\.\.\] of ids, images or tokens"),
        (vit, X * float("nan"), None, "inputs must be finite, got 120 NaN or infinite values"),
        (vit, torch.randn(4, 5, 7), None, r"ViT must run on inputs \[1, 5, 7\], but raised ValueError"),
        (vit, X, [0, 1], "labels must be one integer for each of the 4 sequences"),
        (lambda: "a name", X, None, r"model must be a torch\.nn\.Module, got str"),
    ],
)
def test_what_is_not_measured_is_not_changed_with_the_same_line(make, inputs, labels, line):
    lines = []
    for measured in (tt.measure, tt.intervene):
        with pytest.raises(ValueError, match=line) as error:
            measured(make(), inputs, labels=labels)
        lines.append(str(error.value))
    assert lines[0] == lines[1]
    assert "\n" not in lines[0]


def test_what_changes_nothing_in_a_wrapper_is_an_error():
    model = torch.compile(vit(), backend="eager")
    with changed_attention(model, lambda attended: attended) as found:
        model(X)
    with pytest.raises(NotChanged, match="in 2 attentions of ViT"):
        check_changed(found, "nothing")

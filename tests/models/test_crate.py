"""CRATE: sizes and names of the released networks, and their forward pass written out in plain operations."""

from functools import partial

import pytest
import torch
from torch.testing import assert_close

from tests.cases import each_case
from tests.problems.crate import released_logits
from transformer_theory import models
from transformer_theory.models.crate import (
    CausalExactAttention,
    CausalReleasedAttention,
    ExactAttention,
    Ista,
    PaperAttention,
)

SIZES = {
    "crate_tiny": (6_090_856, 384, 6, 12),
    "crate_small": (13_116_328, 576, 12, 12),
    "crate_base": (22_796_008, 768, 12, 12),
    "crate_large": (77_641_192, 1024, 16, 24),
}


@pytest.fixture(scope="module")
def weights():
    """Random weights with the names and shapes of a released network: dim 128, two heads of width 64, two
    layers, 32 px, patches of 4.
    """
    generator = torch.Generator().manual_seed(0)
    dim, patch, classes, depth = 128, 48, 10, 2

    def randn(*shape, scale=1.0):
        return scale * torch.randn(*shape, generator=generator)

    def norm(name, width):
        return {f"{name}.weight": 1 + randn(width, scale=0.1), f"{name}.bias": randn(width, scale=0.1)}

    weights = {"pos_embedding": randn(1, 65, dim), "cls_token": randn(1, 1, dim)}
    weights |= (
        norm("to_patch_embedding.1", patch) | norm("to_patch_embedding.3", dim) | norm("mlp_head.0", dim)
    )
    weights |= {
        "to_patch_embedding.2.weight": randn(dim, patch, scale=0.1),
        "to_patch_embedding.2.bias": randn(dim, scale=0.1),
    }
    for i in range(depth):
        layer = f"transformer.layers.{i}"
        weights |= norm(f"{layer}.0.norm", dim) | norm(f"{layer}.1.norm", dim)
        weights[f"{layer}.0.fn.qkv.weight"] = randn(128, dim, scale=0.1)
        weights |= {
            f"{layer}.0.fn.to_out.0.weight": randn(dim, 128, scale=0.1),
            f"{layer}.0.fn.to_out.0.bias": randn(dim, scale=0.1),
        }
        weights[f"{layer}.1.fn.weight"] = randn(dim, dim, scale=0.1)
    weights |= {
        "mlp_head.1.weight": randn(classes, dim, scale=0.1),
        "mlp_head.1.bias": randn(classes, scale=0.1),
    }
    return weights


@each_case("name", SIZES)
def test_sizes_are_those_of_the_released_networks(name):
    parameters, dim, heads, depth = SIZES[name]
    with torch.device("meta"):
        model = getattr(models, name)()
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert len(model.transformer.layers) == depth
    assert model.transformer.layers[0][0].fn.subspaces().shape == (heads, dim, dim // heads)


def test_released_weights_give_the_released_logits(weights):
    images = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    model = models.CRATE.from_released(weights)
    assert not model.training
    assert set(model.state_dict()) == set(weights)
    with torch.no_grad():
        logits = model(images)
    assert logits.shape == (3, 10)
    assert_close(
        logits.double(), released_logits(weights, images, patch=4, heads=2, depth=2), atol=1e-5, rtol=0
    )


def test_round_trip_and_other_sizes(weights):
    own = models.CRATE.for_images(
        image_size=8, patch_size=2, channels=1, num_classes=3, dim=24, depth=1, heads=2, head_dim=5
    )
    back = models.CRATE.from_released(own.state_dict(), image_size=8, patch_size=2, heads=2)
    images = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    assert_close(back(images), own.eval()(images), atol=0, rtol=0)
    parallel = {f"module.{name}": value.double() for name, value in weights.items()}
    assert (
        models.CRATE.from_released(parallel)(torch.zeros(1, 3, 32, 32, dtype=torch.float64)).dtype
        == torch.float64
    )
    small = {name: torch.zeros(value.shape) for name, value in _meta(dim=576, heads=12).items()}
    # the released "small": width 48
    assert models.CRATE.from_released(small).transformer.layers[0][0].fn.heads == 12


def _meta(**sizes):
    with torch.device("meta"):
        return models.CRATE.for_images(
            image_size=32, patch_size=4, num_classes=2, depth=1, **sizes
        ).state_dict()


def test_reading_weights_leaves_the_global_generator_alone(weights):
    torch.manual_seed(0)
    state = torch.get_rng_state()
    models.CRATE.from_released(weights)
    assert torch.equal(state, torch.get_rng_state())


def without(weights, name):
    return {other: value for other, value in weights.items() if other != name}


def test_weights_are_copied_in_their_own_precision(weights):
    exact = {name: value.double() + 1e-12 for name, value in weights.items()}
    model = models.CRATE.from_released({"epoch": 3, "model": exact})
    assert all(torch.equal(value, exact[name]) for name, value in model.state_dict().items())
    with torch.no_grad():
        model.cls_token.zero_()
    assert exact["cls_token"].abs().max() > 0


def test_bad_weights_are_named(weights, unchecked):
    released = models.CRATE.from_released
    with pytest.raises(ValueError, match=r"with to_patch_embedding\.2\.weight, pos_embedding, .*, got none"):
        released({})
    with pytest.raises(
        ValueError, match=r"must hold the 28 weights of CRATE, got 1 missing: mlp_head\.1\.bias$"
    ):
        released(without(weights, "mlp_head.1.bias"))
    with pytest.raises(
        ValueError, match=r"released, with pos_embedding, got 27 weights without them, such as cls_token$"
    ):
        released(without(weights, "pos_embedding"))
    with pytest.raises(
        ValueError, match=r"1 missing: cls_token; 2 unknown: cls_tokens, more; did you mean 'cls_token'\?"
    ):
        released(without(weights, "cls_token") | {"cls_tokens": torch.zeros(1), "more": torch.zeros(1)})
    gap = {name.replace("layers.1.", "layers.3."): value for name, value in weights.items()}
    with pytest.raises(
        ValueError,
        match=r"16 missing: transformer\.layers\.\{1-2\}\.0\.norm\.weight, "
        r".*transformer\.layers\.\{1-2\}\.1\.fn\.weight",
    ):
        released(gap)
    with pytest.raises(
        ValueError,
        match=r"2 of another shape: mlp_head\.0\.weight \[7\] for \[128\], mlp_head\.1\.bias \[\] for "
        r"\[10\]$",
    ):
        released(weights | {"mlp_head.0.weight": torch.zeros(7), "mlp_head.1.bias": torch.zeros(())})
    with pytest.raises(ValueError, match=r"CRATE, got 1 with NaN or infinity: mlp_head\.1\.bias$"):
        released(weights | {"mlp_head.1.bias": torch.tensor([0.0] * 9 + [torch.nan])})
    with pytest.raises(ValueError, match=r"1 unknown: transformer\.layers\.1000000000\.0\.norm\.weight"):
        released(weights | {"transformer.layers.1000000000.0.norm.weight": torch.zeros(128)})
    with pytest.raises(ValueError, match=r"floating-point weights, got torch\.int64 in pos_embedding"):
        released(weights | {"pos_embedding": torch.zeros(1, 65, 128, dtype=torch.long)})
    with pytest.raises(ValueError, match=r"got str; read a file with load_weights\(path\)"):
        released("crate.pth")
    with pytest.raises(ValueError, match="patch_size must divide image_size, got 4 and 33"):
        released(weights, image_size=33)
    with pytest.raises(
        ValueError, match="image_size must fit 64 patches, got 224 with patch_size=4; pass image_size=32"
    ):
        released(weights, image_size=224)
    with pytest.raises(ValueError, match="patch_size must fit patches of 48 numbers, got 5"):
        released(weights, patch_size=5)
    with pytest.raises(ValueError, match="heads must divide the 128 rows of qkv, got 3"):
        released(weights, heads=3)
    with pytest.raises(
        ValueError, match=r"images must have shape \[batch, 3, 32, 32\], got \[1, 3, 28, 28\]"
    ):
        released(weights)(torch.zeros(1, 3, 28, 28))
    with pytest.raises(
        ValueError, match="heads must divide dim, got heads=5 and dim=96; choose heads among 1, 2, 3"
    ):
        models.CRATE.for_tokens(16, 4, 10, heads=5)
    with pytest.raises(ValueError, match="patch_size must divide image_size, got 5 and 32; resize images"):
        models.CRATE.for_images(image_size=32, patch_size=5, num_classes=2, dim=8, depth=1, heads=2)
    with pytest.raises(ValueError, match="depth must be at least 1, got 0"):
        models.CRATE.for_tokens(16, 4, 10, depth=0)
    with pytest.raises(ValueError, match="num_classes must be at least 1, got 0"):
        models.CRATE.for_tokens(16, 4, 0)


@pytest.mark.parametrize("kind", [models.CRATE, models.ViT])
def test_inputs_of_another_dtype_are_refused_unless_autocast_converts_them(kind, unchecked):
    model = models.build(
        lambda: kind.for_images(image_size=4, patch_size=2, num_classes=3, dim=8, depth=1, heads=2),
        torch.Generator(),
    )
    images = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    for dtype in (torch.float16, torch.float64, torch.uint8):
        with pytest.raises(
            ValueError, match=rf"inputs must be torch\.float32 as the weights are, got {dtype}; convert them"
        ):
            model(images.to(dtype))
    with pytest.raises(ValueError, match="inputs must be a tensor, got ndarray"):
        model(images.numpy())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model(images.bfloat16()).shape == (2, 3)
    assert model.double()(images.double()).dtype == torch.float64


WRONG = [
    ({"dim": -64}, "dim .*-64$"),
    ({"dim": 64.0}, r"dim .*64\.0$"),
    ({"heads": -2}, "heads .*-2$"),
    ({"depth": True}, "depth .*True$"),
    ({"head_dim": 2.5}, r"head_dim .*2\.5$"),
    ({"attention": "paper"}, "attention .*'paper'.*ReleasedAttention$"),
    ({"sparsify": Ista(96)}, "sparsify .* a single Ista"),
    ({"sparsify": 0.1}, r"sparsify\(dim\), got 0\.1.*Ista$"),
]


@each_case(("arguments", "message"), WRONG)
def test_invalid_arguments_are_named(arguments, message, unchecked):
    with pytest.raises((ValueError, TypeError), match=message):
        models.CRATE.for_tokens(16, 4, 10, **arguments)
    sizes = {"image_size": 8, "patch_size": 4, "num_classes": 10, "dim": 96, "depth": 2, "heads": 4}
    with pytest.raises((ValueError, TypeError), match=message):
        models.CRATE.for_images(**{**sizes, **arguments})


def test_a_causal_block_is_refused_since_the_class_token_is_first(unchecked):
    for attention in (CausalReleasedAttention, partial(CausalExactAttention, context=17)):
        with pytest.raises(ValueError, match=r"got Causal\w+Attention.*CRATELanguageModel"):
            models.CRATE.for_tokens(16, 4, 10, attention=attention)


@pytest.mark.parametrize("attention", [PaperAttention, ExactAttention])
def test_the_attention_block_is_an_argument(attention):
    model = models.build(
        lambda: models.CRATE.for_tokens(6, 4, 3, dim=12, depth=2, heads=3, attention=attention),
        torch.Generator(),
    )
    logits = model(torch.randn(5, 6, 4, generator=torch.Generator().manual_seed(0)))
    assert logits.shape == (5, 3)
    logits.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert "transformer.layers.0.0.fn.to_out.0.weight" not in model.state_dict()  # tied


def test_order_of_tokens_matters_only_through_positions():
    model = models.build(
        lambda: models.CRATE.for_tokens(6, 4, 3, dim=12, heads=3), torch.Generator().manual_seed(0)
    )
    tokens = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(0))
    order = torch.tensor([3, 1, 0, 5, 4, 2])
    with torch.no_grad():
        assert (model(tokens[:, order]) - model(tokens)).abs().max() > 1e-4
        model.pos_embedding[:, 1:] = model.pos_embedding[:, 1:2].clone()
        assert_close(model(tokens[:, order]), model(tokens))

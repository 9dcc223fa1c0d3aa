"""Released weights whose heads, step size, threshold or pooling are not the default, and the change to other
images and classes.
"""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from transformer_theory import models
from transformer_theory.models.crate import Ista

SIZES = {"image_size": 8, "patch_size": 2, "num_classes": 3, "dim": 24, "depth": 2, "heads": 4}


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def built(**other):
    return models.build(lambda: models.CRATE.for_images(**{**SIZES, **other}), generator()).eval()


def images(size=8, count=3):
    return torch.randn(count, 3, size, size, generator=generator(1))


def released(model, **settings):
    return models.CRATE.from_released(model.state_dict(), 8, 2, heads=4, **settings)


def test_the_number_of_heads_is_required_where_networks_with_different_numbers_were_released():
    model = built(dim=768, depth=1, heads=6)  # as the network of the segmentation demo; CRATE-B has 12 heads
    weights = model.state_dict()
    with pytest.raises(
        ValueError, match=r"heads must be given for width 768, .*, got None; pass heads=12 or heads=6$"
    ):
        models.CRATE.from_released(weights, 8, 2)
    with torch.no_grad():
        assert_close(
            models.CRATE.from_released(weights, 8, 2, heads=6)(images()), model(images()), atol=0, rtol=0
        )
        assert (
            models.CRATE.from_released(weights, 8, 2, heads=12)(images()) - model(images())
        ).abs().max() > 1e-3


def test_the_fine_tuned_layout_has_a_second_map():
    model = built(num_classes=24)
    top = models.build(lambda: nn.Linear(24, 5), generator(3))
    weights = model.state_dict() | {f"head.{name}": value for name, value in top.state_dict().items()}
    fine_tuned = models.CRATE.from_released({"model": weights}, 8, 2, heads=4)
    with torch.no_grad():
        assert_close(fine_tuned(images()), top(model(images())), atol=1e-6, rtol=0)
        # under the names of this library
        again = models.CRATE.from_released(fine_tuned.state_dict(), 8, 2, heads=4)
        assert_close(again(images()), fine_tuned(images()), atol=0, rtol=0)
    with pytest.raises(ValueError, match=r"1 of another shape: mlp_head\.2\.bias \[7\] for \[5\]$"):
        models.CRATE.from_released(weights | {"head.bias": torch.zeros(7)}, 8, 2, heads=4)


def test_step_threshold_and_pooling_are_arguments_with_the_released_defaults():
    def sparsify(dim):
        return Ista(dim, eta=0.3, lam=0.5)

    model = built(sparsify=sparsify, pooling="mean")
    with torch.no_grad():
        expected = model(images())
        assert_close(released(model, eta=0.3, lam=0.5, pooling="mean")(images()), expected, atol=0, rtol=0)
        for settings in (
            {},
            {"eta": 0.3, "lam": 0.5},
            {"eta": 0.3, "pooling": "mean"},
            {"lam": 0.5, "pooling": "mean"},
        ):
            assert (released(model, **settings)(images()) - expected).abs().max() > 1e-3, (
                f"{settings} change nothing"
            )
        plain = built()
        assert_close(released(plain)(images()), plain(images()), atol=0, rtol=0)
        mean = model.mlp_head(_features(model, images()).mean(1))  # all tokens, the class token too
    assert_close(expected, mean)


def _features(model, inputs):
    embedded = model.to_patch_embedding(inputs)
    return model.transformer(
        torch.cat([model.cls_token.expand(len(inputs), -1, -1), embedded], 1) + model.pos_embedding
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pooling": "max"}, "pooling must be one of 'cls', 'mean', got 'max'"),
        ({"eta": -1.0}, "eta must be positive and finite, got -1.0"),
        ({"lam": float("nan")}, "lam must be positive and finite, got nan"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message, unchecked):
    with pytest.raises(ValueError, match=message):
        released(built(), **settings)


def test_positions_keep_their_place_in_images_of_another_size():
    model = built(image_size=16)
    rows, columns = torch.meshgrid(torch.arange(8) + 0.5, torch.arange(8) + 0.5, indexing="ij")
    field = 1.0 + 2.0 * rows / 8 - 3.0 * columns / 8  # an affine function of the place in the image
    with torch.no_grad():
        model.pos_embedding[0, 1:] = field.flatten()[:, None]
    # with fewer patches the averages are affine only approximately
    for size, atol in ((32, 1e-5), (12, 0.02)):
        larger, side = models.at_resolution(model, size), size // 2
        rows, columns = torch.meshgrid(torch.arange(side) + 0.5, torch.arange(side) + 0.5, indexing="ij")
        expected = 1.0 + 2.0 * rows / side - 3.0 * columns / side
        new = larger.pos_embedding[0, 1:].unflatten(0, (side, side)).detach()
        inner = slice(side // 4, -side // 4)  # cubic interpolation repeats the border beyond it
        assert_close(new[inner, inner], expected[inner, inner, None].expand(-1, -1, 24), atol=atol, rtol=0)
        assert torch.equal(larger.pos_embedding[:, 0], model.pos_embedding[:, 0])
        assert larger(images(size)).shape == (3, 3)
    with torch.no_grad():
        assert torch.equal(models.at_resolution(model, 16)(images(16)), model(images(16)))


def test_a_new_head_keeps_the_rest_and_comes_from_the_generator():
    model = built()
    adapted = models.with_head(model, 7, generator=generator(5))
    assert adapted(images()).shape == (3, 7)
    assert model(images()).shape == (3, 3)  # unchanged
    same = [
        name for name, value in model.state_dict().items() if torch.equal(value, adapted.state_dict()[name])
    ]
    assert set(model.state_dict()) - set(same) == {"mlp_head.1.weight", "mlp_head.1.bias"}
    again, other = (models.with_head(model, 7, generator=generator(seed)) for seed in (5, 6))
    assert torch.equal(again.mlp_head[-1].weight, adapted.mlp_head[-1].weight)
    assert not torch.equal(other.mlp_head[-1].weight, adapted.mlp_head[-1].weight)


def test_pooling_can_be_changed():
    model = built()
    with torch.no_grad():
        mean = models.with_pooling(model, "mean")
        assert (mean(images()) - model(images())).abs().max() > 1e-3
        assert torch.equal(models.with_pooling(mean, "cls")(images()), model(images()))


def test_only_networks_for_images_have_a_resolution(unchecked):
    with pytest.raises(ValueError, match="model must read images, got a network for tokens"):
        models.at_resolution(models.CRATE.for_tokens(16, 4, 10), 32)
    with pytest.raises(ValueError, match="patch_size must divide image_size, got 2 and 9"):
        models.at_resolution(built(), 9)
    with pytest.raises(ValueError, match="num_classes must be at least 1, got 0"):
        models.with_head(built(), 0, generator=generator())

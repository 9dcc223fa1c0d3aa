"""Norm of W and largest attention weight of a vision transformer during training."""

import pytest
import torch

from transformer_theory.models import ViT, build
from transformer_theory.theories.attention_svm.figures.trained_vit import (
    ACCURACY,
    AT_START,
    NORM,
    SHARE,
    WEIGHT,
    bilinear,
    largest_weight,
    trained_vit,
)


@pytest.fixture
def model():
    network = build(
        lambda: ViT.for_tokens(5, 3, 2, dim=8, depth=2, heads=4), torch.Generator().manual_seed(0)
    ).eval()
    with torch.no_grad():
        for block in network.blocks:  # pyright: ignore[reportGeneralTypeIssues]
            block.attention_norm.weight.copy_(torch.linspace(0.5, 2, 8))
    return network


def test_w_gives_the_scores_of_the_normalised_tokens(model):
    """The bias of the normalisation is zero, so that the gains are all that W has to absorb."""
    tokens = torch.randn(3, 6, 8, generator=torch.Generator().manual_seed(1))
    block = model.blocks[1]
    plain = torch.nn.functional.layer_norm(tokens, (8,))
    query, key, _ = (
        block.attention.qkv(block.attention_norm(tokens)).unflatten(-1, (3, 4, 2)).permute(2, 0, 3, 1, 4)
    )
    expected = query @ key.mT / 2**0.5
    scores = torch.einsum("bke,hef,bqf->bhqk", plain, bilinear(model)[1], plain)
    torch.testing.assert_close(scores, expected, atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_the_largest_weight_is_that_of_the_network(model):
    tokens, seen = torch.randn(3, 5, 3, generator=torch.Generator().manual_seed(1)), []
    hooks = [
        b.attention.register_forward_pre_hook(lambda module, inputs: seen.append((module, inputs[0])))
        for b in model.blocks
    ]
    model(tokens)
    for hook in hooks:
        hook.remove()
    expected = []
    for attention, x in seen:
        query, key, _ = attention.qkv(x).unflatten(-1, (3, 4, 2)).permute(2, 0, 3, 1, 4)
        expected.append((query @ key.mT / 2**0.5).softmax(-1).amax(-1).mean())
    one = torch.ones(2, 4)
    assert largest_weight(model, tokens, one) == pytest.approx(float(torch.stack(expected).mean()), abs=1e-6)
    assert largest_weight(model, tokens, 0 * one) == pytest.approx(1 / 6)  # five tokens and the class token
    assert largest_weight(model, tokens, 1000 * one) > 0.9
    assert not any(block.attention._forward_hooks for block in model.blocks)


def test_the_norm_grows_with_true_labels_more_than_with_permuted_ones(run):
    experiment = trained_vit(seeds=1, steps=60, every=60, dim=32, depth=1, rate=1e-2)
    result = run(experiment)
    value = {(row.quantity, row.setting, row.step): row.value for row in result.table}
    assert value[NORM, "true labels", 0] == value[NORM, "permuted labels", 0] == 1
    assert value[WEIGHT, "true labels", 0] == value[AT_START, "true labels", 0]
    assert value[NORM, "true labels", 60] > value[NORM, "permuted labels", 60]
    assert value[ACCURACY, "true labels", 60] > 0.3 > value[ACCURACY, "permuted labels", 60]
    start, end, held = (
        value[key, "true labels", step] for key, step in ((WEIGHT, 0), (WEIGHT, 60), (AT_START, 60))
    )
    assert value[SHARE, "true labels", 60] == pytest.approx((end - held) / (end - start))
    assert len(experiment.plot(result).axes) == 2


def test_the_last_step_must_be_measured():
    with pytest.raises(ValueError, match="every must divide steps = 100, got 30"):
        trained_vit(steps=100, every=30)

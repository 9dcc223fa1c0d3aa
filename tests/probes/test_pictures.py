"""Attention rollout in closed form, and pictures of kept maps."""

import pytest
import torch
from matplotlib.figure import Figure
from torch.testing import assert_close

from tests.problems.networks import WIDE, built, tokens
from transformer_theory.metrics import AttentionMaps, AttentionStatistics, rollout
from transformer_theory.models import ViT
from transformer_theory.probes import pictures, probe


def test_rollout_of_identical_and_of_uniform_attention():
    """Identity stays identity; with uniform attention a token keeps 2^-L of itself and spreads the rest
    evenly.
    """
    layers, T = 5, 4
    assert_close(rollout(torch.eye(T).expand(layers, 2, T, T)), torch.eye(T))
    kept = 0.5**layers
    assert_close(rollout(torch.full((layers, 3, T, T), 1 / T)), kept * torch.eye(T) + (1 - kept) / T)


def test_rollout_follows_the_order_of_the_layers():
    maps = torch.randn(3, 2, 4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64).softmax(
        -1
    )
    A, B, C = (0.5 * (each.mean(0) + torch.eye(4).double()) for each in maps)
    assert_close(rollout(maps), C @ B @ A)
    assert_close(rollout(maps).sum(-1), torch.ones(4).double())
    assert float((rollout(maps) - rollout(maps.flip(0))).abs().max()) > 0.01


@pytest.mark.usefixtures("unchecked")
def test_rollout_refuses_what_it_cannot_multiply():
    for wrong in (torch.eye(3), torch.ones(1, 1, 2, 3) / 3, torch.ones(0, 1, 2, 2)):
        with pytest.raises(ValueError, match=r"maps must have shape \[layers, heads, tokens, tokens\]"):
            rollout(wrong)
    with pytest.raises(ValueError, match="weights must be distributions"):
        rollout(torch.ones(1, 1, 2, 2))


@pytest.fixture(scope="module")
def result():
    """Two measurements of a ViT with a class token and 3 x 3 patches."""
    model = built(lambda: ViT.for_tokens(9, 4, 3, **WIDE)).eval()
    with probe(model, [AttentionMaps(keep=3)]) as p, torch.no_grad():
        for seed in range(2):
            model(tokens(5, 9, 4) + seed)
    return p.result()


def test_ink_is_dark_in_photographs_and_bright_in_drawings():
    image = torch.tensor([[2.0, 3.0], [4.0, 6.0]])
    assert_close(torch.as_tensor(pictures._ink(image[None])), (image.double() - 2) / 4)
    assert_close(torch.as_tensor(pictures._ink(image.expand(3, 2, 2))), (6 - image.double()) / 4)
    assert not pictures._ink(torch.ones(1, 2, 2)).any()


@pytest.mark.parametrize("channels", [1, 3])
def test_heads_show_the_row_of_the_class_token(result, channels):
    images = torch.rand(5, channels, 6, 6, generator=torch.Generator().manual_seed(0))
    for figure in (pictures.heads(result, sequence=2, images=images), pictures.heads(result, step=0)):
        assert isinstance(figure, Figure)
        assert len(figure.axes) == 2 * 4
    heat = pictures._heat(result.arrays["attention/01@1"][2, 3], 6, 6)
    assert_close(
        torch.from_numpy(heat.flatten()), torch.from_numpy(result.arrays["attention/01@1"][2, 3][0, 1:])
    )
    figure = pictures.rollout(result, images)
    assert len(figure.axes) == 2 * 3
    first, drawn = figure.axes[0].images[0].get_array(), images[0].mean(0)
    # ink of a digit, dark places of a photograph
    assert (first.argmax() == drawn.argmax()) == (channels == 1)


@pytest.mark.usefixtures("unchecked")
def test_errors_of_pictures(result):
    images = torch.rand(5, 1, 6, 6)
    with probe(built(lambda: ViT.for_tokens(9, 4, 3, **WIDE)), [AttentionStatistics()]) as p:
        p.model(tokens(2, 9, 4))
    with pytest.raises(ValueError, match=r"must hold attention maps, got none; add AttentionMaps\(\)"):
        pictures.heads(p.result())
    with pytest.raises(ValueError, match=r"step must be one of the measured steps, \[0, 1\], got 7"):
        pictures.heads(result, step=7)
    with pytest.raises(ValueError, match="sequence must be one of the 3 that were kept, got 3"):
        pictures.heads(result, sequence=3, images=images)
    with pytest.raises(ValueError, match="square patches of images of 7 x 7 pixels"):
        pictures.rollout(result, torch.rand(5, 1, 7, 7))
    with probe(built(lambda: ViT.for_tokens(6, 4, 3, **WIDE)), [AttentionMaps()]) as p:
        p.model(tokens(2, 6, 4))
    with pytest.raises(
        ValueError, match="square patches of images of 6 x 6 pixels, with or without a class token, got 7"
    ):
        pictures.rollout(p.result(), images)

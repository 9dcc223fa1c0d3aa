"""Generated images of two objects: masks are the objects, classes are their colours, and nothing else depends
on the class.
"""

import pytest
import torch
from torch.testing import assert_close

from transformer_theory.data import patches
from transformer_theory.data.two_objects import COLOURS, PAIRS, _masks, two_objects


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_masks_hold_the_objects_and_classes_their_colours():
    drawn = two_objects(200, generator=generator(), noise=0.0)
    images, labels = drawn.data.images, drawn.data.labels
    assert images.shape == (200, 3, 24, 24)
    assert drawn.masks.shape == (200, 2, 24, 24)
    assert not drawn.masks.all(1).any(), "objects lie apart"
    known, shifts = torch.tensor(list(COLOURS.values()), dtype=torch.float64), []
    for image, masks, label in zip(images, drawn.masks, labels):
        means = torch.stack([image[:, mask].mean(1) for mask in masks])
        kinds = torch.cdist(means, known).argmin(1)
        assert tuple(kinds.sort().values.tolist()) == PAIRS[int(label)]
        shifts.append(means - known[kinds])
        outside = image[:, ~masks.any(0)]
        assert_close(outside, outside[:1].expand(3, -1)), "the background is grey"
        assert all(float(image[:, mask].std(1).max()) < 1e-12 for mask in masks), "an object has one colour"
    found = torch.stack(shifts)
    assert -0.1 - 1e-12 <= found.min() < -0.09
    assert 0.09 < found.max() <= 0.1 + 1e-12


def test_objects_lie_inside_and_have_the_stated_size():
    drawn = two_objects(300, generator=generator())
    areas = drawn.masks.double().mean((-2, -1))
    assert areas.min() > 0.06
    assert areas.max() < 0.19
    means = torch.stack([areas[drawn.data.labels == label].mean() for label in range(6)])
    assert means.max() / means.min() < 1.1  # classes differ by colour alone


def test_shares_and_tokens_are_in_the_same_order():
    drawn = two_objects(8, generator=generator(), size=16, patch=4)
    assert_close(drawn.data.tokens, patches(drawn.data.images, 4))
    assert_close(drawn.shares.mean(-1), drawn.masks.double().mean((-2, -1)))
    block = drawn.masks[3, 1, 4:8, 8:12].double().mean()
    assert_close(drawn.shares[3, 1, 4 + 2], block)
    assert len(drawn[2:5].data) == len(drawn[2:5].masks) == 3


def test_the_generator_determines_the_images():
    first, again, other = (two_objects(5, generator=generator(seed)).data.tokens for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="n must be at least 1, got 0"):
        two_objects(0, generator=generator())
    with pytest.raises(ValueError, match="multiple of patch, got size=24 and patch=5"):
        two_objects(3, generator=generator(), patch=5)


def test_an_object_in_the_middle_is_symmetric():
    """Pixels are taken at their centres."""
    middle, radius = torch.full((1, 2, 2), 4.0, dtype=torch.float64), torch.tensor([[2.0, 3.3]]).double()
    for square in (torch.tensor([[True, False]]), torch.tensor([[False, True]])):
        masks = _masks(middle, radius, square, 8)
        assert torch.equal(masks, masks.flip(-1))
        assert torch.equal(masks, masks.flip(-2))
        assert masks.any(-1).any(-1).all()

"""Crops, flips, cutout, RandAugment and mixtures against slow versions, Pillow and the law of the draws."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from torch.nn import functional

from tests.cases import each_case
from transformer_theory.training.augment import Augmentation, crop, cutmix, cutout, flip, jitter, mixup
from transformer_theory.training.rand_augment import OPERATIONS, rand_augment


@pytest.fixture(autouse=True)
def seeded():
    """Seeds the global state for each test, as the loop does for each step, and restores it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def bytes_of(n, channels=3, height=12, width=12, seed=0):
    return torch.randint(
        256, (n, channels, height, width), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8
    )


def evenly(counts):
    """Whether counts are as even as those of a uniform law: chi-squared within five standard deviations."""
    counts = torch.as_tensor(counts, dtype=torch.float64)
    expected, free = counts.mean(), len(counts) - 1
    return float(((counts - expected) ** 2 / expected).sum()) < free + 5 * (2 * free) ** 0.5


@each_case("dtype", [torch.uint8, torch.float32, torch.float64])
@each_case("mode", ["constant", "reflect"])
@each_case("shape", [(7, 3, 12, 12), (5, 1, 9, 14), (1, 2, 5, 4)])
def test_a_crop_is_a_window_of_the_framed_image(dtype, mode, shape):
    images = bytes_of(*shape).to(dtype)
    torch.manual_seed(0)
    cropped = crop(images, padding=3, mode=mode)
    torch.manual_seed(0)
    framed = functional.pad(images.double(), [3] * 4, mode=mode)
    down, right = torch.randint(7, (2, shape[0])).tolist()
    for i in range(shape[0]):
        window = framed[i, :, down[i] : down[i] + shape[2], right[i] : right[i] + shape[3]]
        assert torch.equal(cropped[i].double(), window)
    assert cropped.dtype == dtype


def test_all_windows_are_equally_likely():
    places = torch.arange(64.0).view(1, 1, 8, 8).expand(5000, 1, 8, 8)
    middle = crop(places, padding=2)[:, 0, 4, 4].long()  # tells the window
    assert evenly(torch.bincount(middle, minlength=64)[torch.arange(64).view(8, 8)[2:7, 2:7].flatten()])
    # control: other windows
    assert not evenly(torch.bincount(crop(places, padding=1)[:, 0, 4, 4].long(), minlength=64)[18:47])


@each_case("share", [0.0, 0.25, 0.5, 1.0])
def test_the_given_share_of_images_is_mirrored(share):
    images = bytes_of(1000, 1, 4, 4)
    flipped = flip(images, share=share)
    same, mirrored = ((flipped == other).flatten(1).all(1) for other in (images, images.flip(-1)))
    assert bool((same | mirrored).all())
    assert abs(int(mirrored.sum()) - 1000 * share) <= 4 * (1000 * share * (1 - share)) ** 0.5


def test_cutout_blackens_a_square_and_nothing_else():
    images = bytes_of(400) | 1  # none is black before
    changed = cutout(images, size=5)
    black = changed == 0
    assert torch.equal(changed[~black], images[~black])
    assert torch.equal(black.all(1), black.any(1))
    tall, wide = black[:, 0].any(2).sum(1), black[:, 0].any(1).sum(1)
    assert torch.equal(black[:, 0].sum((1, 2)), tall * wide)  # a rectangle
    assert int(tall.max()) == int(wide.max()) == 5
    assert int(tall.min()) >= 3  # half of it lies beyond the border at most


def test_cutout_is_centred_anywhere():
    ones = torch.ones(4000, 1, 6, 6)
    assert evenly((cutout(ones, size=1) == 0).sum((0, 1)).flatten())
    # control: the border is hit less often
    assert not evenly((cutout(ones, size=3) == 0).sum((0, 1)).flatten())


@pytest.mark.parametrize("alpha", [0.2, 1.0])
def test_mixup_adds_images_and_targets_alike(alpha):
    targets = torch.eye(64)
    images = targets.view(64, 1, 8, 8).clone()  # an image that is its own target
    mixed, shares = mixup(images, targets, alpha=alpha)
    assert torch.equal(mixed.flatten(1), shares)
    assert (shares.sum(1) - 1).abs().max() < 1e-6
    # its own and that of the one before
    assert torch.equal(shares > 0, (torch.eye(64) + torch.eye(64).roll(1, 0)) * shares > 0)


def test_shares_follow_the_beta_law():
    images, targets = torch.zeros(4000, 1, 1, 1), functional.one_hot(torch.arange(4000) % 2, 2).float()
    kept = mixup(images, targets, alpha=0.5)[1][torch.arange(4000), torch.arange(4000) % 2]
    assert abs(float(kept.mean()) - 0.5) < 4 * (0.125 / 4000) ** 0.5  # variance of Beta(a, a): 1 / (8 a + 4)
    assert abs(float(kept.var()) - 0.125) < 0.01


def test_the_area_of_cutmix_is_its_share():
    n = 200
    images = (torch.arange(n).float()[:, None, None, None] + 1).expand(n, 2, 8, 10).clone()
    targets = torch.eye(n)
    mixed, shares = cutmix(images, targets, alpha=1.0)
    own = (mixed == images).all(1)
    assert torch.equal(own | (mixed == images.roll(1, 0)).all(1), torch.ones(n, 8, 10, dtype=torch.bool))
    assert (shares.diagonal() - own.float().mean((1, 2))).abs().max() < 1e-6
    assert (shares.sum(1) - 1).abs().max() < 1e-6
    box = ~own
    assert torch.equal(box.sum((1, 2)), box.any(1).sum(1) * box.any(2).sum(1))  # a box
    assert 0.2 < float(box.float().mean()) < 0.5  # 1/2 without the border, which cuts some of it


def pillow(name, image, strength):
    """One image [3, h, w] by Pillow's version of the operation."""
    picture = Image.fromarray(image.permute(1, 2, 0).numpy())
    enhance = {
        "brightness": ImageEnhance.Brightness,
        "colour": ImageEnhance.Color,
        "contrast": ImageEnhance.Contrast,
    }
    if name in enhance:
        changed = enhance[name](picture).enhance(1 + 0.9 * strength)
    elif name == "sharpness":
        changed = Image.blend(picture.filter(ImageFilter.SMOOTH), picture, 1 + 0.9 * strength)
    elif name == "posterize":
        changed = ImageOps.posterize(picture, 8 - round(4 * abs(strength)))
    elif name == "solarize":
        changed = ImageOps.solarize(picture, 256 * (1 - abs(strength)))
    else:
        changed = {"autocontrast": ImageOps.autocontrast, "equalize": ImageOps.equalize}[name](picture)
    return torch.from_numpy(np.array(changed)).permute(2, 0, 1)


@each_case("strength", [-0.9, -0.3, 0.5])
@each_case(
    ("name", "error"),  # Pillow rounds down
    [
        ("brightness", 1),
        ("colour", 2),
        ("contrast", 2),
        ("sharpness", 2),
        ("posterize", 0),
        ("solarize", 0),
        ("autocontrast", 1),
        ("equalize", 0),
    ],
)
def test_colours_change_as_with_pillow(name, error, strength):
    images = bytes_of(3, 3, 20, 30) // 4 * 3 + 20
    images[0, 1] = 7  # a channel of one value
    changed = OPERATIONS[name](images, torch.full((3,), strength)).int()
    expected = torch.stack([pillow(name, image, strength) for image in images]).int()
    assert (changed - expected).abs().max() <= error
    assert (changed - images.int()).abs().max() > error  # control: it does something


def test_channels_that_are_no_colours_have_their_mean_as_grey():
    images = bytes_of(3, 1, 8, 8).expand(3, 5, 8, 8)
    strengths = torch.tensor([-0.9, 0.3, 0.5])
    assert torch.equal(OPERATIONS["colour"](images, strengths), images)
    one, five = (OPERATIONS["contrast"](each, strengths) for each in (images[:, :1], images))
    assert torch.equal(five, one.expand(3, 5, 8, 8))


def turned(images, axis, pixels):
    return functional.pad(images, [pixels, -pixels, 0, 0] if axis == "x" else [0, 0, pixels, -pixels])


def test_shifts_turns_and_shears_move_pixels_where_they_should():
    images = bytes_of(2, 3, 20, 20)
    strengths = torch.tensor([1.0, -1.0])
    for axis in "xy":  # 0.45 of 20 pixels
        moved = OPERATIONS[f"translate_{axis}"](images, strengths)
        assert torch.equal(moved, torch.cat([turned(images[:1], axis, -9), turned(images[1:], axis, 9)]))
    quarter = OPERATIONS["rotate"](images, 3 * strengths)  # three times 30 degrees
    assert torch.equal(quarter, torch.stack([images[0].rot90(1, (1, 2)), images[1].rot90(-1, (1, 2))]))
    wide = bytes_of(1, 1, 6, 18)
    half = OPERATIONS["rotate"](wide, torch.tensor([6.0]))
    assert torch.equal(half, wide.rot90(2, (2, 3)))
    column = torch.zeros(1, 1, 21, 21, dtype=torch.uint8)
    column[..., 10] = 255
    leaning = OPERATIONS["shear_x"](column, torch.tensor([1.0])).float()
    middles = (leaning[0, 0] * torch.arange(21)).sum(1) / leaning[0, 0].sum(1)
    assert torch.allclose(middles, 10 - 0.3 * (torch.arange(21.0) - 10), atol=0.02)
    upright = OPERATIONS["shear_y"](column.mT, torch.tensor([1.0])).mT.float()
    assert torch.allclose(upright, leaning, atol=1)  # a half is rounded up or down as the processor adds


@each_case("channels", [1, 3, 4])
@each_case("name", OPERATIONS)
def test_operations_change_each_image_by_itself_and_nothing_at_strength_0(name, channels):
    images, strengths = bytes_of(4, channels, 18, 21) // 2 + 30, torch.tensor([0.9, -0.9, 0.4, 0.0])
    together = OPERATIONS[name](images, strengths)
    alone = torch.cat([OPERATIONS[name](images[i : i + 1], strengths[i : i + 1]) for i in range(4)])
    assert together.dtype == torch.uint8
    assert (together.int() - alone.int()).abs().max() <= 1  # convolutions of many images may round otherwise
    if name not in ("autocontrast", "equalize"):
        assert torch.equal(together[3], images[3])
    assert torch.equal(together[0], images[0]) == (name == "identity" or (name == "colour" and channels == 1))


def test_rand_augment_draws_each_operation_as_often():
    flat = torch.full((2800, 1, 8, 8), 100, dtype=torch.uint8)
    flat[:, 0, 0, 0], flat[:, 0, 0, 7], flat[:, 0, 7, 0], flat[:, 0, 7, 7] = 10, 250, 60, 130
    flat[:, 0, 3:5, 2] = 200
    seen = rand_augment(flat, operations=1, magnitude=10.0)
    known = {}
    for name, operation in OPERATIONS.items():
        for sign in (1.0, -1.0):
            known.setdefault(bytes(operation(flat[:1], torch.tensor([sign])).numpy()), []).append(name)
    counts = dict.fromkeys(OPERATIONS, 0.0)
    for image in seen:
        # a control in itself: an image of no operation, or of two, is not known
        names = known[bytes(image.numpy())]
        for name in names:
            counts[name] += 1 / len(names)
    assert evenly(list(counts.values()))


def test_more_operations_and_more_magnitude_change_more():
    images = bytes_of(256, 3, 16, 16, seed=1)

    def change(operations, magnitude):
        torch.manual_seed(0)
        return float(
            (rand_augment(images, operations=operations, magnitude=magnitude).float() - images).abs().mean()
        )

    assert torch.equal(rand_augment(images, operations=0, magnitude=9.0), images)
    assert change(1, 0.0) < change(1, 5.0) < change(2, 5.0)


EVERYTHING = Augmentation(crop=2, flip=0.5, operations=2, magnitude=7, cutout=4, mixup=0.8, cutmix=1.0)


def test_nothing_is_the_default():
    pixels, labels, before = bytes_of(6), torch.arange(6) % 3, torch.get_rng_state()
    images, targets = Augmentation()(pixels, labels, 5)
    assert torch.equal(images, pixels.float() / 255)
    assert torch.equal(targets, functional.one_hot(labels, 5).float())
    assert torch.equal(torch.get_rng_state(), before)


def test_the_seed_decides_and_the_images_given_are_left_alone():
    pixels, labels = bytes_of(40), torch.arange(40) % 4
    kept = pixels.clone()
    runs = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        runs.append(EVERYTHING(pixels, labels, 4))
    assert all(torch.equal(a, b) for a, b in zip(runs[0], runs[1]))
    assert not torch.equal(runs[0][0], runs[2][0])
    assert torch.equal(pixels, kept)
    for images, targets in runs:
        assert images.dtype == targets.dtype == torch.float32
        assert 0 <= float(images.min()) <= float(images.max()) <= 1
        assert (targets.sum(1) - 1).abs().max() < 1e-6


def test_of_mixup_and_cutmix_each_has_half_of_the_batches():
    pixels, labels = torch.full((2, 1, 4, 4), 255, dtype=torch.uint8), torch.arange(2)
    pixels[0] = 0
    both = Augmentation(mixup=1.0, cutmix=1.0)
    sums = sum(
        bool(((images := both(pixels, labels, 2)[0]) > 0).logical_and(images < 1).any()) for _ in range(200)
    )
    assert abs(sums - 100) < 4 * 50**0.5


@pytest.mark.usefixtures("unchecked")
@each_case(
    ("wrong", "message"),
    [
        (lambda x: crop(x, padding=0), "padding must be at least 1"),
        (lambda x: crop(x, padding=2, mode="white"), "mode must be 'constant' or 'reflect', got 'white'"),
        (lambda x: crop(x, padding=12, mode="reflect"), "padding must be below the sides"),
        (
            lambda x: cutout(x, size=13),
            "size must be from 1 to the sides of the images, 12 x 12 pixels, got 13",
        ),
        (lambda x: cutout(x, size=0), "size must be from 1"),
        (lambda x: cutout(x[:, :, :5], size=6), "the sides of the images, 5 x 12 pixels, got 6"),
        (lambda x: rand_augment(x, operations=1, magnitude=11), "magnitude in"),
        (lambda x: rand_augment(x, operations=-1, magnitude=1), "operations must be at least 0"),
        (lambda x: mixup(x, x, alpha=0), "alpha must be positive"),
        (lambda x: cutmix(x, x, alpha=float("nan")), "alpha must be positive"),
        (lambda x: Augmentation(flip=1.5), "flip must be a finite number at least 0 and at most 1, got 1.5"),
        (lambda x: Augmentation(crop=-1), "crop must be an integer at least 0, got -1"),
        (lambda x: Augmentation(mixup=float("nan")), "mixup must be a finite number"),
    ],
)
def test_bad_input_is_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        wrong(bytes_of(2))


def test_colours_turn_around_the_grey_axis_and_brightness_stays_in_its_range():
    torch.manual_seed(0)
    grey = torch.rand(20, 1, 6, 5).expand(20, 3, 6, 5)
    assert torch.allclose(jitter(grey, strength=0.0, hue=0.5, share=1.0), grey, atol=1e-6)
    colour = 0.3 + 0.4 * torch.rand(20, 3, 6, 5)
    turned = jitter(colour, strength=0.0, hue=0.1, share=1.0)
    assert torch.allclose(turned.mean(1), colour.mean(1), atol=1e-6)
    assert torch.allclose(turned.norm(dim=1), colour.norm(dim=1), atol=1e-6)  # a rotation
    assert not torch.allclose(turned, colour, atol=0.05)
    flat = torch.full((200, 3, 4, 4), 0.5)
    changed = jitter(flat, strength=0.4, hue=0.0, share=1.0)
    assert torch.allclose(changed, changed[:, :1, :1, :1].expand_as(changed), atol=1e-6)  # flat again
    assert 0.3 <= changed.min() < 0.33
    assert 0.67 < changed.max() <= 0.7

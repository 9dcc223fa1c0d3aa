"""Images: what they hold, how they are split and cut into tokens; digits and generated shapes by name."""

import importlib

import pytest
import torch

from tests.cases import each_case
from transformer_theory import data
from transformer_theory.data import Images, TokenData, shapes
from transformer_theory.data.image_sets import image_tokens


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TRANSFORMER_THEORY_DATA", str(tmp_path / "home"))


def some_images(n=30, channels=3, size=8, classes=3):
    pixels = torch.randint(
        256, (n, channels, size, size), generator=torch.Generator().manual_seed(1), dtype=torch.uint8
    )
    return Images(pixels, torch.arange(n) % classes, tuple("abcdefghij"[:classes]), "some")


def test_sizes_and_repr():
    images = some_images()
    assert (len(images), images.classes, images.channels, images.size) == (30, 3, 3, 8)
    assert repr(images) == "Images('some', 30 of 3 x 8 x 8, 3 classes)"


def test_indexing_keeps_the_names():
    images = some_images()
    assert images[[2, 5]].labels.tolist() == images[torch.tensor([2, 5])].labels.tolist() == [2, 2]
    assert len(images[3:9]) == 6
    assert len(images[-1]) == 1
    assert images[:1].classes == 3
    assert images[:1].name == "some"


def test_split_is_stratified_and_whole(generator):
    images = some_images(60)
    first, second = images.split(0.7, generator)
    assert first.labels.bincount().tolist() == [14, 14, 14]
    assert second.labels.bincount().tolist() == [6, 6, 6]
    assert sorted(torch.cat([first.pixels, second.pixels]).flatten(1).tolist()) == sorted(
        images.pixels.flatten(1).tolist()
    )
    again, _ = images.split(0.7, torch.Generator().manual_seed(0))
    assert torch.equal(again.pixels, first.pixels)
    with pytest.raises(ValueError, match=r"share must leave images on both sides, got 1.0 of 60"):
        images.split(1.0, generator)


@each_case(
    ("changed", "message"),
    [
        ({"pixels": torch.zeros(2, 3, 4, 4)}, r"pixels must be uint8 .* got torch.float32 \[2, 3, 4, 4\]"),
        (
            {"pixels": torch.zeros(2, 4, 4, dtype=torch.uint8)},
            r"pixels must be uint8 \[n, channels, height, width\]",
        ),
        (
            {"pixels": torch.zeros(2, 3, 4, 5, dtype=torch.uint8)},
            r"at least one square image, got \[2, 3, 4, 5\]",
        ),
        (
            {"pixels": torch.zeros(0, 3, 4, 4, dtype=torch.uint8)},
            r"at least one square image, got \[0, 3, 4, 4\]",
        ),
        (
            {"labels": torch.zeros(3, dtype=torch.int64)},
            r"labels must be int64 \[2\], one per image, got torch.int64 \[3\]",
        ),
        ({"labels": torch.tensor([0, 2])}, r"labels must lie in \[0, 2\), one name per class, got 2"),
        ({"labels": torch.tensor([0, -1])}, r"labels must lie in \[0, 2\), one name per class, got -1"),
    ],
)
def test_fields_that_do_not_fit(unchecked, changed, message):
    fields = {
        "pixels": torch.zeros(2, 3, 4, 4, dtype=torch.uint8),
        "labels": torch.tensor([0, 1]),
        "names": ("a", "b"),
    }
    with pytest.raises(ValueError, match=message):
        Images(**fields | changed)


def test_tokens_are_patches_words_and_classes(generator):
    images = some_images(60)
    tokens = images.tokens(4, words=5, generator=generator)
    assert isinstance(tokens, TokenData)
    assert tokens.tokens.shape == (60, 4, 48)
    assert tokens.tokens[7, 1, :3].tolist() == pytest.approx(
        (images.pixels[7, :, 0, 4].double() / 255).tolist(), abs=1e-15
    )
    assert torch.equal(tokens.images, images.pixels.double() / 255)
    assert tokens.vocab_size == 8
    assert torch.equal(tokens.next_id, 5 + images.labels)
    assert tokens.name == "some"
    assert tokens.classes == 3


def test_tokens_of_many_images_are_a_stratified_sample(generator):
    tokens = some_images(90).tokens(4, max_samples=30, words=2, generator=generator)
    assert tokens.labels.bincount().tolist() == [10, 10, 10]


def test_a_sample_of_limited_size_may_lack_rare_classes(generator):
    labels = torch.tensor([0] * 50 + list(range(1, 41)))
    images = Images(torch.zeros(90, 1, 4, 4, dtype=torch.uint8), labels, tuple(map(str, range(41))))
    assert len(images.tokens(4, max_samples=9, words=1, generator=generator)) == 9


def test_tokens_need_no_more_words_than_there_are_patches(generator):
    images = some_images(4)[[0, 0]]
    assert images.tokens(4, generator=generator).vocab_size == 4 + 3
    with pytest.raises(ValueError, match="max_samples must be at least 1, got 0"):
        images.tokens(4, max_samples=0, generator=generator)


def test_digits_by_name():
    train, test = data.images("digits")
    assert (len(train), len(test), train.channels, train.size, train.classes) == (1257, 540, 1, 8, 10)
    assert int(train.pixels.max()) == 255
    assert {str(source) for source in train.sources} == {"alpaydin1998optical"}
    whole = data.load("digits")
    inks = {tuple(image) for image in (whole.images * 255).round().flatten(1).tolist()}
    assert all(tuple(image) in inks for image in test.pixels.double().flatten(1).tolist())


def test_shapes_of_all_classes_have_the_same_colours(generator):
    images = shapes(400, generator=generator)
    assert images.pixels.shape == (400, 3, 32, 32)
    assert images.labels.bincount().tolist() == [40] * 10
    again = shapes(400, generator=torch.Generator().manual_seed(0))
    assert torch.equal(again.pixels, images.pixels)
    assert torch.equal(again.labels, images.labels)
    means = images.pixels.double().mean((2, 3)) / 255
    by_class = torch.stack([means[images.labels == j].mean(0) for j in range(10)])
    assert float((by_class - means.mean(0)).abs().max()) < 4 * float(means.std(0).max()) / 40**0.5
    with pytest.raises(ValueError, match="n must be at least 1, got 0"):
        shapes(0, generator=generator)


def test_each_class_has_its_outline_filled_or_hollow(generator, monkeypatch):
    """A disc fills pi / 4 of the box around it, a square all, a diamond and a triangle half, and the cross of
    bars as wide as .7 and as long as 1.9 radii 1 - (1.2 / 1.9)^2.
    """
    monkeypatch.setattr(importlib.import_module("transformer_theory.data.shapes"), "NOISE", 0.0)
    images = shapes(600, generator=generator)
    pixels = images.pixels.double() / 255
    border = torch.cat([pixels[:, :, 0], pixels[:, :, -1], pixels[:, :, :, 0], pixels[:, :, :, -1]], 2)
    inside = (pixels - border.median(2).values[:, :, None, None]).norm(dim=1) > 0.25
    tall, wide = inside.any(2).sum(1), inside.any(1).sum(1)
    filled = inside.sum((1, 2)) / (tall * wide)
    shares = torch.stack([filled[images.labels == label].median() for label in range(10)])
    expected = [torch.pi / 4, 1, 0.5, 0.5, 1 - (1.2 / 1.9) ** 2]
    assert shares[::2].tolist() == pytest.approx(expected, abs=0.08)
    assert bool((shares[1::2] < 0.8 * shares[::2]).all())
    sizes = torch.maximum(tall, wide).double()
    assert sizes.min() > 10
    assert sizes.max() < 26


def test_images_load_as_tokens(monkeypatch):
    monkeypatch.setattr(importlib.import_module("transformer_theory.data.shapes"), "SPLIT", (40, 10))
    tokens = data.load("shapes")
    assert tokens.tokens.shape == (40, 16, 192)
    assert tokens.vocab_size == 64 + 10
    assert tokens.name == "shapes"


@each_case(("size", "patch"), [(32, 8), (28, 7), (30, 6), (31, 1), (3, 1), (4, 1)])
def test_patches_that_divide_the_image(monkeypatch, size, patch):
    from transformer_theory.data import image_sets

    images = some_images(6, channels=1, size=size)
    monkeypatch.setattr(image_sets, "images", lambda *_, **__: (images, images))
    assert image_tokens("any").tokens.shape[2] == patch**2
    monkeypatch.setattr(image_sets, "MAX_VALUES", 3 * size**2)
    assert len(image_tokens("any")) == 3
    monkeypatch.setattr(image_sets, "MAX_VALUES", 1)  # one image is more than that
    assert len(image_tokens("any")) == 1


@each_case(
    ("name", "message"),
    [
        ("shape", "unknown images 'shape', neither a name nor a path; did you mean 'shapes'"),
        ("cifar1O", "did you mean 'cifar10'"),
        ("", "unknown images ''"),
        ("no/such", "no such file or folder: no/such"),
        ("no.tar.gz", "no such file or folder: no.tar.gz"),
    ],
)
def test_unknown_names_are_refused(name, message):
    with pytest.raises(ValueError, match=message):
        data.images(name)


def test_bad_sizes_and_files_are_refused(tmp_path):
    with pytest.raises(ValueError, match="size must be at least 1, got 0"):
        data.images("digits", size=0)
    assert data.images("digits", size=8)[0].size == 8
    with pytest.raises(ValueError, match=r"size must be the side of the images .* got 16 for digits"):
        data.images("digits", size=16)
    (tmp_path / "a.txt").write_text("hello")
    with pytest.raises(
        ValueError,
        match=r"a.txt must be a folder of images, a .tar.gz of CIFAR or an .npz of images, got '.txt'",
    ):
        data.images(tmp_path / "a.txt")

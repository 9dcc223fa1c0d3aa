"""Decoded images are kept and noticed to be old; an ``.npz`` of images is read or refused in one line."""

import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.cases import each_case
from transformer_theory import data
from transformer_theory.data import image_cache, image_sets

GOOD = {
    "train_pixels": np.arange(96, dtype=np.uint8).reshape(6, 1, 4, 4),
    "train_labels": np.array([0, 1, 2, 0, 1, 2]),
    "test_pixels": np.zeros((2, 1, 4, 4), np.uint8),
    "test_labels": np.array([2, 1]),
}


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("TRANSFORMER_THEORY_DATA", str(tmp_path / "home"))
    monkeypatch.setattr(image_cache, "MIN_CACHED", 1)
    return tmp_path / "home"


@pytest.fixture
def pets(tmp_path) -> Path:
    for j, name in enumerate(("cat", "dog")):
        for split in ("train", "test"):
            (tmp_path / "pets" / split / name).mkdir(parents=True)
            for k in range(2):
                Image.new("L", (8, 8), 20 * j + k).save(tmp_path / "pets" / split / name / f"{k}.jpg")
    return tmp_path / "pets"


@pytest.fixture
def decoded(monkeypatch) -> list:
    """Grows by one whenever a folder is decoded."""
    seen, read = [], image_sets.read_folder
    monkeypatch.setattr(
        image_sets, "read_folder", lambda *given, **settings: (seen.append(1), read(*given, **settings))[1]
    )
    return seen


def test_a_folder_is_decoded_once(pets, decoded, home):
    first, again = data.images(pets), data.images(str(pets))
    assert len(decoded) == 1
    for a, b in zip(first, again):
        assert (a.pixels == b.pixels).all()
        assert (a.labels == b.labels).all()
        assert (a.names, a.name) == (b.names, b.name)
    assert [file.name[:5] for file in (home / "decoded").iterdir()] == ["pets-"]


def test_few_images_are_not_kept(pets, decoded, home, monkeypatch):
    monkeypatch.setattr(image_cache, "MIN_CACHED", 9)
    data.images(pets)
    assert not home.exists()


@pytest.mark.parametrize("change", ["content", "more", "fewer", "time", "class", "size"])
def test_a_changed_source_is_noticed(pets, decoded, home, change):
    data.images(pets)
    file = pets / "train" / "dog" / "1.jpg"
    if change == "content":
        Image.new("L", (8, 8), 99).save(file)
    elif change == "more":
        Image.new("L", (8, 8), 99).save(file.with_name("2.jpg"))
    elif change == "fewer":
        file.unlink()
    elif change == "time":
        os.utime(file, ns=(1, 1))
    elif change == "class":
        for split in ("train", "test"):
            (pets / split / "dog").rename(pets / split / "mouse")
    train, _ = data.images(pets, size=4 if change == "size" else None)
    assert len(decoded) == 2
    assert len(list((home / "decoded").iterdir())) == 1
    assert len(train) == {"more": 5, "fewer": 3}.get(change, 4)
    assert train.size == (4 if change == "size" else 8)


@pytest.mark.parametrize("content", [b"", b"hello"])
def test_a_damaged_cache_is_made_anew(pets, decoded, home, content):
    data.images(pets)
    kept = next((home / "decoded").iterdir())
    kept.write_bytes(content)
    data.images(pets)
    data.images(pets)
    assert len(decoded) == 2
    assert zipfile.is_zipfile(kept)


def test_a_cache_that_cannot_be_written_is_done_without(pets, decoded, home):
    home.write_text("a file where the folder should be")
    assert len(data.images(pets)[0]) == 4


def test_a_cache_half_written_is_never_seen(pets, decoded, home, monkeypatch):
    def full(stream, **_):
        stream.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    assert len(data.images(pets)[0]) == 4
    assert not list((home / "decoded").iterdir())


def refused(path, match):
    with pytest.raises(ValueError, match=match) as error:
        data.images(path)
    assert "\n" not in str(error.value)
    assert str(path) in str(error.value)


def test_an_npz_of_ones_own(tmp_path):
    np.savez(tmp_path / "mine.npz", **GOOD)
    train, test = data.images(tmp_path / "mine.npz")
    assert (train.name, train.names, len(train), len(test)) == ("mine.npz", ("0", "1", "2"), 6, 2)
    np.savez(tmp_path / "mine.npz", **GOOD, names=np.array(["a", "b", "c"]))
    assert data.images(tmp_path / "mine.npz")[1].names == ("a", "b", "c")


@each_case(
    ("changed", "message"),
    [
        (
            {"train_pixels": np.zeros((6, 1, 4, 4))},
            r"train_pixels must be uint8 .* got float64 \[6, 1, 4, 4\]; scale, round",
        ),
        (
            {"test_pixels": np.full((2, 1, 4, 4), np.nan)},
            r"test_pixels must be uint8 .* with NaN or infinite values",
        ),
        ({"train_pixels": np.zeros((6, 4, 4), np.uint8)}, r"got uint8 \[6, 4, 4\]"),
        (
            {"train_pixels": np.zeros((6, 1, 4, 5), np.uint8)},
            r"at least one square image, got \[6, 1, 4, 5\]",
        ),
        (
            {"test_pixels": np.zeros((2, 1, 5, 5), np.uint8)},
            r"must have one shape, got \[6, 1, 4, 4\] and \[2, 1, 5, 5\]",
        ),
        (
            {"train_labels": np.zeros(6)},
            r"train_labels must be integers \[6\], one per image, got float64 \[6\]",
        ),
        ({"train_labels": np.zeros(5, int)}, r"train_labels must be integers \[6\]"),
        (
            {"train_labels": np.array([0, 1, 2, 0, 1, -1])},
            r"labels must lie in \[0, 3\), one name per class, got -1",
        ),
        (
            {"test_pixels": np.zeros((0, 1, 4, 4), np.uint8), "test_labels": np.zeros(0, int)},
            "test_labels must be integers",
        ),
        ({"names": np.array(["a"])}, r"labels must lie in \[0, 1\), one name per class, got 2"),
        (
            {"names": np.array([Path("x")], dtype=object)},
            "must be an .npz of images, got names as an array of Python objects",
        ),
    ],
)
def test_arrays_that_do_not_fit(unchecked, tmp_path, changed, message):
    np.savez(tmp_path / "a.npz", **GOOD | changed)
    refused(tmp_path / "a.npz", message)


def test_files_that_are_no_npz_of_images(tmp_path):
    np.savez(tmp_path / "a.npz", train_pixels=GOOD["train_pixels"])
    refused(tmp_path / "a.npz", "images need the arrays .*, got no train_labels")
    whole = (tmp_path / "a.npz").read_bytes()
    for blob in (b"hello", whole[: len(whole) // 2], whole[:60] + b"\xff" * 40 + whole[100:]):
        (tmp_path / "b.npz").write_bytes(blob)
        refused(
            tmp_path / "b.npz", "must be an .npz of images, got .*; write arrays of numbers with numpy.savez"
        )

"""A sample of a folder of images: which files are read, and what they hold."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from transformer_theory.data.image_folder import find_images, read_folder, sample_folder


def _folder(path: Path, splits: tuple[str, ...]) -> Path:
    """Writes grey images of 4 x 4; every image has a value of its own."""
    value = 0
    for split in splits:
        for name in ("a", "b"):
            (path / split / name).mkdir(parents=True)
            for index in range(10):
                Image.fromarray(np.full((4, 4), value, np.uint8)).save(path / split / name / f"{index}.png")
                value += 1
    return path


@pytest.mark.parametrize("splits", [("train", "test"), ("",)])
def test_a_sample_holds_the_first_of_all_test_images_in_random_order(tmp_path, splits):
    path = _folder(tmp_path / "set", splits)
    every = read_folder(find_images(path))[1].mixed(torch.Generator().manual_seed(3))
    sample = sample_folder(path, 3, torch.Generator().manual_seed(3))
    assert torch.equal(sample.pixels, every.pixels[:3])
    assert torch.equal(sample.labels, every.labels[:3])
    assert (sample.name, sample.names) == (every.name, every.names)


def test_only_the_sampled_files_are_decoded(tmp_path):
    path = _folder(tmp_path / "set", ("train", "test"))
    drawn = {
        int(value) for value in sample_folder(path, 4, torch.Generator().manual_seed(0)).pixels[:, 0, 0, 0]
    }
    test = [path / "test" / name / f"{index}.png" for name in ("a", "b") for index in range(10)]
    others = [file for value, file in enumerate(test, start=20) if value not in drawn]
    assert len(others) == 16
    for file in (*others, path / "train" / "a" / "0.png"):
        file.write_bytes(b"no image")
    again = sample_folder(path, 4, torch.Generator().manual_seed(0))
    assert {int(value) for value in again.pixels[:, 0, 0, 0]} == drawn
    with pytest.raises(ValueError, match="not a readable image"):
        sample_folder(path, 20, torch.Generator().manual_seed(0))


def test_memory_is_checked_for_the_sample_alone(tmp_path, monkeypatch):
    path = _folder(tmp_path / "set", ("train", "test"))
    monkeypatch.setattr("transformer_theory.data.image_folder.machine_memory", lambda: 3 * 2 * 8**2)
    assert sample_folder(path, 2, torch.Generator().manual_seed(0), size=8).size == 8
    with pytest.raises(ValueError, match="size must let 3 images fit"):
        sample_folder(path, 3, torch.Generator().manual_seed(0), size=8)

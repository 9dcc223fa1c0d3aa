"""The step slider: its numbers are those that were stored, on one scale and in one plane."""

import base64

import numpy as np
import pytest

from tests.report.synthetic import IMAGES, STEPS, THEORIES, small
from transformer_theory.report import page, pictures
from transformer_theory.report.pictures import slider as slider_of


def numbers(text: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), dtype=np.uint8) / 255


def test_maps_are_the_stored_ones_on_one_scale(compared):
    made = slider_of(compared, "ViT")
    data = made.data["attention"]
    # of the class token, over heads
    stored = compared.arrays["network/ViT/attention"].mean(axis=2)[..., 0, 1:]
    assert (data["grid"], data["shape"], data["layers"], data["images"]) == ([4, 4], [8, 8], [0, 1], IMAGES)
    np.testing.assert_allclose(
        numbers(data["heat"]).reshape(stored.shape), stored / stored.max(), atol=0.5 / 255 + 1e-9
    )
    ink = numbers(data["ink"]).reshape(IMAGES, 8, 8)
    np.testing.assert_array_equal(ink, compared.arrays["network/images"][:, 0])
    np.testing.assert_array_equal(numbers(data["inputs"]).reshape(IMAGES, 8, 8, 3)[..., 1], 1 - ink)
    assert made.captions[0].startswith("step 0 of 600, validation accuracy ")
    assert len(made.captions) == len(STEPS)


def test_points_move_in_one_box_and_end_where_the_figure_shows_them(compared):
    data = slider_of(compared, "ViT").data["features"]
    points = compared.arrays["network/ViT/features over training"]
    placed = numbers(data["points"]).reshape(len(STEPS), 300 + 10, 2)
    span = np.ptp(points, axis=(0, 1)).max()
    # two roundings
    np.testing.assert_allclose(
        np.diff(placed[:, :300], axis=1), np.diff(points, axis=1) / span, atol=1.01 / 255
    )
    assert placed.min() >= 0
    assert placed.max() <= 1
    middle = np.median(placed[-1, :300][compared.arrays["network/labels"] == 3], axis=0)
    np.testing.assert_allclose(placed[-1, 303], middle, atol=1.01 / 255)


def test_one_step_has_no_slider_and_maps_alone_have_one(compared):
    once = {
        name: array[:1] if name.startswith("network/ViT/") else array
        for name, array in compared.arrays.items()
    }
    assert slider_of(small(compared.table, once), "ViT") is None
    assert slider_of(small(), "ViT") is None
    maps = {
        name: array
        for name, array in compared.arrays.items()
        if name.startswith(("network/ViT", "network/labels", "network/images"))
    }
    del maps["network/ViT/features over training"]
    assert list(slider_of(small(compared.table, maps), "ViT").data) == ["captions", "attention"]
    made = page(small(compared.table.select(quantity="accuracy", model="ViT"), maps), theories=THEORIES)
    assert made.count('<figure class="still">') == 1  # the figure of the features stays
    assert made.count("data-slider") > 0
    wrong = {**maps, "network/ViT/steps": np.arange(3)}
    assert slider_of(small(compared.table, wrong), "ViT") is None


@pytest.mark.parametrize(("budget", "rows"), [(14 * 2 * 16 * 2, 2), (100, None)])
def test_long_sequences_get_fewer_rows_or_none(compared, monkeypatch, budget, rows):

    monkeypatch.setattr(pictures, "BUDGET", budget)
    data = slider_of(compared, "ViT").data
    assert data.get("attention", {}).get("images") == rows
    assert "features" in data


def test_maps_of_words_are_shown_as_they_are():
    draws = np.random.default_rng(0).random((3, 1, 2, 2, 7, 7))
    data = slider_of(
        small((), {"network/ViT/attention": draws, "network/ViT/steps": np.arange(3)}), "ViT"
    ).data["attention"]
    assert (data["grid"], data["shape"], data["images"], "ink" in data) == ([7, 7], [7, 7], 2, False)
    assert len(numbers(data["heat"])) == 3 * 2 * 49

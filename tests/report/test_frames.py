"""Frames of the step slider: what the script is told is what was stored, on one scale and in one plane."""

import base64

import numpy as np
import pytest

from tests.report.synthetic import IMAGES, STEPS, THEORIES, small
from transformer_theory.report import frames, html
from transformer_theory.report.frames import film


def numbers(text: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), dtype=np.uint8) / 255


def test_maps_are_the_stored_ones_on_one_scale(compared):
    made = film(compared, "ViT")
    told = made.told["attention"]
    stored = compared.arrays["network/ViT/attention"].mean(axis=2)[..., 0, 1:]  # of the class token, over heads
    assert (told["grid"], told["shape"], told["layers"], told["images"]) == ([4, 4], [8, 8], [0, 1], IMAGES)
    np.testing.assert_allclose(numbers(told["heat"]).reshape(stored.shape), stored / stored.max(), atol=0.5 / 255 + 1e-9)
    ink = numbers(told["ink"]).reshape(IMAGES, 8, 8)
    np.testing.assert_array_equal(ink, compared.arrays["network/images"][:, 0])
    np.testing.assert_array_equal(numbers(told["inputs"]).reshape(IMAGES, 8, 8, 3)[..., 1], 1 - ink)
    assert made.captions[0].startswith("step 0 of 600, validation accuracy ")
    assert len(made.captions) == len(STEPS)


def test_points_move_in_one_box_and_end_where_the_figure_shows_them(compared):
    told = film(compared, "ViT").told["features"]
    points = compared.arrays["network/ViT/features over training"]
    placed = numbers(told["points"]).reshape(len(STEPS), 300 + 10, 2)
    span = np.ptp(points, axis=(0, 1)).max()
    np.testing.assert_allclose(np.diff(placed[:, :300], axis=1), np.diff(points, axis=1) / span, atol=1.01 / 255)  # two roundings
    assert placed.min() >= 0
    assert placed.max() <= 1
    middle = np.median(placed[-1, :300][compared.arrays["network/labels"] == 3], axis=0)
    np.testing.assert_allclose(placed[-1, 303], middle, atol=1.01 / 255)


def test_one_reading_is_no_film_and_older_results_have_maps_only(compared):
    once = {name: array[:1] if name.startswith("network/ViT/") else array for name, array in compared.arrays.items()}
    assert film(small(compared.table, once), "ViT") is None
    assert film(small(), "ViT") is None
    older = {name: array for name, array in compared.arrays.items() if name.startswith(("network/ViT", "network/labels", "network/images"))}
    del older["network/ViT/features over training"]
    assert list(film(small(compared.table, older), "ViT").told) == ["captions", "attention"]
    curves = [row for row in compared.table if row["quantity"] == "validation accuracy" and row["model"] == "ViT"]
    page = html(small(curves, older), theories=THEORIES)
    assert page.count('<figure class="still">') == 1  # the features of the end stay
    assert page.count("data-film") > 0
    wrong = {**older, "network/ViT/steps": np.arange(3)}
    assert film(small(compared.table, wrong), "ViT") is None


@pytest.mark.parametrize(("room", "rows"), [(14 * 2 * 16 * 2, 2), (100, None)])
def test_long_sequences_get_fewer_rows_or_none(compared, monkeypatch, room, rows):
    monkeypatch.setattr(frames, "BUDGET", room)
    told = film(compared, "ViT").told
    assert told.get("attention", {}).get("images") == rows
    assert "features" in told


def test_maps_of_words_are_shown_as_they_are(compared):
    draws = np.random.default_rng(0).random((3, 1, 2, 2, 7, 7))
    told = film(small((), {"network/ViT/attention": draws, "network/ViT/steps": np.arange(3)}), "ViT").told["attention"]
    assert (told["grid"], told["shape"], told["images"], "ink" in told) == ([7, 7], [7, 7], 2, False)
    assert len(numbers(told["heat"])) == 3 * 2 * 49

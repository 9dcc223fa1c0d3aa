"""Labels from a file: integers, words, the network's own numbers of words, and files that are no labels."""

import numpy as np
import pytest

from tests.cases import each_case
from transformer_theory.data.labels import read_labels


@each_case(
    ("text", "labels"),
    [
        ("2\n0\n1\n", [2, 0, 1]),
        ("\ufeff3\r\n-100\r\n0", [3, -1, 0]),
        ("dog\nant \n cat\nant\n\n\n", [2, 0, 1, 0]),
        ("True\nFalse\nTrue\n", [1, 0, 1]),
        ("new york\nrome\nnew york", [0, 1, 0]),
    ],
)
def test_one_label_per_line(tmp_path, text, labels):
    (tmp_path / "labels").write_bytes(text.encode())
    assert read_labels(tmp_path / "labels").tolist() == labels


def test_words_that_the_network_names_have_its_numbers(tmp_path):
    path = tmp_path / "labels"
    path.write_text("neutral\npositive\n", encoding="utf-8")
    numbers = {"positive": 0, "neutral": 1, "negative": 2}
    assert read_labels(path, numbers=numbers).tolist() == [1, 0]
    path.write_text("neutral\npositive\nmixed\n", encoding="utf-8")
    assert read_labels(path, numbers=numbers).tolist() == [1, 2, 0]


def test_integers_of_an_array(tmp_path):
    np.save(tmp_path / "labels.npy", np.array([1, 0, -100]))
    assert read_labels(tmp_path / "labels.npy").tolist() == [1, 0, -1]
    np.save(tmp_path / "labels.npy", np.zeros((2, 3)))
    with pytest.raises(ValueError, match="of integers, got dtype float64"):
        read_labels(tmp_path / "labels.npy")


@each_case(
    ("text", "message"),
    [
        ("", "got an empty line 1"),
        ("1\n\n0\n", "got an empty line 2"),
        ("label\n1\n0\n", "got 'label' in line 1; remove the heading"),
        ("1\ntwo\n", "got 'two' in line 2"),
        ("0.5\n0.25\n", r"got '0\.5' in line 1$"),
        (b"\xe9\xff", "must be a text in UTF-8"),
    ],
)
def test_what_is_no_label_is_named(tmp_path, text, message):
    (tmp_path / "labels.txt").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=message):
        read_labels(tmp_path / "labels.txt")
    with pytest.raises(FileNotFoundError, match="expected one label per line"):
        read_labels(tmp_path / "nothing.txt")

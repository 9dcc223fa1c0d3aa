"""A file is there whole or not at all."""

import pytest

from transformer_theory.files import replacing


def test_a_file_is_replaced_only_when_its_draft_is_whole(tmp_path):
    path = tmp_path / "numbers.txt"
    path.write_text("old")
    with replacing(path) as draft:
        draft.write_text("new")
        assert path.read_text() == "old"
        assert draft.parent == path.parent
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_block_that_fails_leaves_the_old_file_and_no_draft(tmp_path):
    path = tmp_path / "numbers.txt"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError), replacing(path) as draft:
        draft.write_text("half \ud800", encoding="utf-8")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_went_wrong_is_not_hidden_by_the_draft_that_never_came_to_be(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError), replacing(tmp_path / "file" / "numbers.txt") as draft:
        draft.write_text("new")

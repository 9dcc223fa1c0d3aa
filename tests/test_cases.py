"""Cases in one test: all of them run, and those that fail are named with their errors."""

import inspect
import sys

import pytest
import torch

from tests.cases import each_case


def test_all_cases_run_and_those_that_fail_are_named():
    seen = []

    @each_case(("x", "y"), [(1, 1), (2, 3), (4, 4), (5, 6)])
    @each_case("z", ["a"])
    def equal(x, y, z, fixture):
        seen.append((x, y, z, fixture))
        assert x == y, "they differ"

    assert list(inspect.signature(equal).parameters) == ["fixture"]
    with pytest.raises(ExceptionGroup, match=r"2 of 4 cases fail: 2, 3; 5, 6") as caught:
        equal(fixture=0)
    assert seen == [(1, 1, "a", 0), (2, 3, "a", 0), (4, 4, "a", 0), (5, 6, "a", 0)]
    assert [error.__notes__ for error in caught.value.exceptions] == [["case: 2, 3"], ["case: 5, 6"]]
    assert "they differ" in str(caught.value.exceptions[0].exceptions[0])


def test_a_missing_error_and_a_skip():
    @each_case("kind", [ValueError, KeyError], ids=["value", "key"])
    def raises(kind):
        with pytest.raises(kind):
            raise_value_error()

    with pytest.raises(ExceptionGroup, match="1 of 2 cases fail: key"):
        raises()

    @each_case("kind", [ValueError])
    def does_not_raise(kind):
        with pytest.raises(kind):
            pass

    with pytest.raises(ExceptionGroup, match="1 of 1 cases fail: ValueError") as caught:
        does_not_raise()
    assert "DID NOT RAISE" in str(caught.value.exceptions[0])


def test_a_case_that_is_skipped_hides_no_other():
    seen = []

    @each_case("x", [1, 2, 3])
    def second_needs_more(x):
        seen.append(x)
        if x == 2:
            pytest.skip("no device")

    with pytest.raises(pytest.skip.Exception, match="1 of 3 cases: 2: no device"):
        second_needs_more()
    assert seen == [1, 2, 3]


def test_each_case_has_folders_changes_and_output_of_its_own(tmp_path, monkeypatch, capsys, generator):
    seen = []

    @each_case("x", [1, 2])
    def changes(x, tmp_path, monkeypatch, capsys, generator):
        seen.append((tmp_path, torch.rand(1, generator=generator).item(), sys.maxsize))
        assert list(tmp_path.iterdir()) == []
        assert capsys.readouterr().out == ""
        print(x)
        (tmp_path / "file").touch()
        monkeypatch.setattr(sys, "maxsize", x)

    before = sys.maxsize
    changes(tmp_path=tmp_path, monkeypatch=monkeypatch, capsys=capsys, generator=generator)
    (one, *first), (other, *second) = seen
    assert one != other
    assert first == second
    assert sys.maxsize == before


def raise_value_error():
    raise ValueError

"""The page on reliability: its tables are those of the stored numbers."""

import json

from benchmarks.random_mutants import frame_page


def test_the_tables_are_those_of_the_stored_numbers():
    stored = json.loads(frame_page.STORED.read_text(encoding="utf-8"))
    assert frame_page.PAGE.read_text(encoding="utf-8") == frame_page.page(stored)
    page = (frame_page.DOCS / "reliability.md").read_text(encoding="utf-8")
    assert f"```{{include}} {frame_page.PAGE.name}\n```" in page


def test_four_of_five_mutants_of_the_frame_are_detected():
    mutants = json.loads(frame_page.STORED.read_text(encoding="utf-8"))["mutants"]
    assert len(mutants) == 150
    different = [one for one in mutants if one["outcome"] != "equivalent"]
    assert sum(one["outcome"] in ("tests", "claims") for one in different) >= 0.8 * len(different)

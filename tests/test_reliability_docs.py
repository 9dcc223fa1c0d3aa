"""The page on reliability: its tables are those of the stored numbers."""

import json

from benchmarks.random_mutants import frame_page


def test_the_tables_are_those_of_the_stored_numbers():
    for module in (frame_page,):
        stored = json.loads(module.STORED.read_text(encoding="utf-8"))
        assert module.PAGE.read_text(encoding="utf-8") == module.page(stored)
        page = (module.DOCS / "reliability.md").read_text(encoding="utf-8")
        assert f"```{{include}} {module.PAGE.name}\n```" in page


def test_four_of_five_mutants_of_the_frame_are_detected():
    mutants = json.loads(frame_page.STORED.read_text(encoding="utf-8"))["mutants"]
    assert len(mutants) == 150
    different = [one for one in mutants if one["outcome"] != "equivalent"]
    assert sum(one["outcome"] in ("tests", "claims") for one in different) >= 0.8 * len(different)

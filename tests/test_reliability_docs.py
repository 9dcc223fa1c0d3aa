"""The page on reliability: its tables are those of the stored numbers."""

import json

from benchmarks.attack import page
from benchmarks.random_mutants import frame_page


def test_the_tables_are_those_of_the_stored_numbers():
    assert frame_page.PAGE.read_text(encoding="utf-8") == frame_page.page(*frame_page.stored())
    rows = json.loads(page.STORED.read_text(encoding="utf-8"))
    assert page.PAGE.read_text(encoding="utf-8") == page.page(rows)
    text = (frame_page.DOCS / "reliability.md").read_text(encoding="utf-8")
    for table in (frame_page.PAGE, page.PAGE):
        assert f"```{{include}} {table.name}\n```" in text


def test_every_kind_of_attack_was_run():
    rows = json.loads(page.STORED.read_text(encoding="utf-8"))
    assert {row["kind"] for row in rows} == set(page.KINDS)
    for row in rows:
        assert row["failed"] == len(row["failures"])


def test_four_of_five_mutants_of_the_frame_are_detected():
    """Those of the first sample now, and those of the fresh one at once."""
    sample, fresh = (one["mutants"] for one in frame_page.stored())
    assert len(sample) == 150
    fresh = [{**one, "outcome": "undetected"} if one.get("missed") else one for one in fresh]
    for mutants in (sample, fresh):
        different = [one for one in mutants if one["outcome"] != "equivalent"]
        assert sum(one["outcome"] in ("tests", "claims") for one in different) >= 0.8 * len(different)

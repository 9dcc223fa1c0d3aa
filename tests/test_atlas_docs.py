"""The page about trained networks comes from stored results, and says of each cell what was found or why
nothing was.
"""

import json
import sys
from pathlib import Path

import pytest

from transformer_theory.comparison.judged import findings
from transformer_theory.comparison.pooling import aggregate
from transformer_theory.theories import list_theories

DOCS = Path(__file__).parents[1] / "docs"
sys.path.insert(0, str(DOCS))

from atlas_pages import main, pages, stored  # noqa: E402


def test_the_pages_are_those_of_the_stored_results():
    for name, text in pages(stored(DOCS)).items():
        assert (DOCS / name).read_text(encoding="utf-8") == text, (
            f"{name}: run python docs/atlas_pages.py docs"
        )


def test_every_theory_has_a_cell_for_every_network():
    results = stored(DOCS)
    cells = [json.loads(line) for line in (DOCS / "atlas" / "table.jsonl").read_text().splitlines()]
    inside = [theory.name for theory in list_theories() if theory.in_networks is not None]
    networks = [str(result.settings["model"]) for result in results]
    assert sorted((cell["theory"], cell["network"]) for cell in cells) == sorted(
        (theory, network) for theory in inside for network in networks
    )
    for cell in cells:
        assert (cell["value"] is None) == (cell["outcome"] == "not measured")
        assert cell["reason"] or cell["value"] is not None
        assert cell["command"].startswith("transformer-theory measure ")
        assert cell["value"] is None or cell["nulls"] or cell["outcome"] == "not tested"


def test_no_network_is_called_what_it_is_not():
    """The ViT is a fine-tune for saliency, not the published backbone."""
    for page in ("atlas_table.md", "atlas_networks.md", "interventions.md", "intervention_tables.md"):
        assert "DINOv2 on" not in (DOCS / page).read_text(encoding="utf-8")


def test_outcomes_are_those_of_the_stored_rows():
    results = stored(DOCS)
    found = {(each.theory.name, each.model): each.judged for each in findings(aggregate(results)).all}
    for line in (DOCS / "atlas" / "table.jsonl").read_text().splitlines():
        cell = json.loads(line)
        judged = found[cell["theory"], cell["network"]]
        assert (cell["outcome"], cell["q"]) == (judged.outcome, judged.q)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "expected the folder of the documentation and NAME=RESULT"),
        (["docs", "folder"], "expected NAME=RESULT, got 'folder'"),
    ],
)
def test_other_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        main(arguments)

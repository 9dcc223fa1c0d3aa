"""A measurement of one network that was interrupted goes on: nothing is measured twice, and the result is
that of one that was not.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import transformer_theory as tt
from tests.problems.copies import few_copies
from transformer_theory.comparison.user_models import measure
from transformer_theory.core.journal import Pieces
from transformer_theory.core.measurement import Measurement
from transformer_theory.models import ViT, build

THEORIES = ["scan_snap", "collapse"]


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch, unchecked):
    few_copies(monkeypatch, 3)
    sizes = {"image_size": 8, "patch_size": 4, "num_classes": 3, "dim": 8, "depth": 1, "heads": 2}
    return build(lambda: ViT.for_images(**sizes), torch.Generator().manual_seed(0))


def stop_at(text: str) -> Callable[[str], None]:
    def progress(line: str) -> None:
        if line.startswith(text):
            raise KeyboardInterrupt

    return progress


def test_an_interrupted_measurement_goes_on(network, tmp_path: Path):
    images = torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    whole = measure(network, images, theories=THEORIES)
    journal = tmp_path / "kept.jsonl"
    with pytest.raises(KeyboardInterrupt):
        measure(network, images, theories=THEORIES, journal=journal, progress=stop_at("equal scale, copy 3"))
    assert journal.exists()
    lines: list[str] = []
    again = measure(network, images, theories=THEORIES, journal=journal, progress=lines.append)
    assert again.table == whole.table
    assert again.settings == whole.settings
    assert journal.exists()  # until the result is stored, which is the caller's part
    # neither the plan nor the network itself is measured again
    assert not any(line.startswith(("memory and time", "metrics of")) for line in lines)


def test_parts_of_another_measurement_are_refused(network, tmp_path: Path):
    images, journal = torch.randn(6, 3, 8, 8), tmp_path / "kept.jsonl"
    with pytest.raises(KeyboardInterrupt):
        measure(network, images, theories=THEORIES, journal=journal, progress=stop_at("equal scale, copy 2"))
    with pytest.raises(ValueError, match="unfinished measurement with other inputs; remove it"):
        measure(network, images + 1, theories=THEORIES, journal=journal)
    with torch.no_grad():
        next(network.parameters()).add_(1.0)
    with pytest.raises(ValueError, match="unfinished measurement with other network"):
        measure(network, images, theories=THEORIES, journal=journal)


def test_stored_rows_are_those_that_were_measured(tmp_path: Path):
    rows = [Measurement("collapse", "in network", "q", 1 / 3, layer=0, head=1, at={"n": 5})]
    first = Pieces(tmp_path / "kept.jsonl", {"seed": 0})
    assert first(("copy", "1"), lambda: rows) == rows
    second = Pieces(tmp_path / "kept.jsonl", {"seed": 0})
    assert second(("copy", "1"), lambda: pytest.fail("measured again")) == rows
    assert second(("copy", "2"), lambda: []) == []
    with pytest.raises(ValueError, match="other seed"):
        Pieces(tmp_path / "kept.jsonl", {"seed": 1})


def test_interventions_are_rows_of_the_measurement(network, tmp_path: Path):
    images = torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    options = {"theories": ["scan_snap"], "name": "ViT"}
    whole = measure(network, images, interventions="scan_snap", **options)
    alone = tt.intervene(network, images, "scan_snap", name="ViT")
    assert list(whole.select(kind="intervention")) == list(alone.table)
    assert whole.settings["interventions"] == alone.settings["interventions"]
    assert not measure(network, images, **options).select(kind="intervention")
    # the other rows do not depend on them
    assert [row for row in whole.table if row.kind != "intervention"] == list(
        measure(network, images, **options).table
    )
    journal, again = tmp_path / "kept.jsonl", {**options, "interventions": "scan_snap"}
    with pytest.raises(KeyboardInterrupt):
        measure(network, images, journal=journal, progress=stop_at("scan_snap: keys"), **again)
    lines: list[str] = []
    assert measure(network, images, journal=journal, progress=lines.append, **again).table == whole.table
    assert not any("copy" in line for line in lines)
    # what changes nothing is a row with its reason: the measurement is not lost
    idle = "turing/two largest scores exchanged at close calls"
    kept = measure(network, images, interventions=idle, **options).select(kind="intervention")
    assert "was not applied" in kept[0].reason or kept[0].value is not None
    own = measure(network, images, interventions=None, **options).select(kind="intervention")
    assert {row.theory for row in own} == {"scan_snap"}
    with pytest.raises(ValueError, match="unknown intervention 'scan_snap/none'"):
        measure(network, images, interventions="scan_snap/none", **options)

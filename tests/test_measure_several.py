"""Several networks measured by one command: one by a function, one by its folder, one by its name in the
cache of the hub; one page of all, and what fails or was interrupted loses nothing of the others.
"""

from dataclasses import replace
from pathlib import Path

import huggingface_hub
import pytest

from tests.problems.copies import few_copies
from tests.problems.hub_cache import put, tiny_bert, tiny_vit
from transformer_theory import report
from transformer_theory.cli import main
from transformer_theory.comparison.judged import findings, headlines, quantities
from transformer_theory.comparison.pooling import aggregate
from transformer_theory.core.result import Result
from transformer_theory.data.image_sets import images
from transformer_theory.theories import list_theories
from transformer_theory.training.image import train
from transformer_theory.training.image.recipes import image_recipe

FUNCTION = """
import torch
from tests.problems.hub_cache import tiny_vit
def own():
    torch.manual_seed(0)
    return tiny_vit(3, side=8, classes=3), torch.randn(40, 3, 8, 8), torch.arange(40) % 3
def with_settings():
    network, inputs, labels = own()
    network.settings = ["a list of the user"]
    return network, inputs, labels
def broken():
    raise KeyError("weights")
"""
NAME = "someone/bert"
OPTIONS = ["--theories", "joma,scan_snap,chain_of_thought", "--networks", "20", "--minutes", "1"]


@pytest.fixture
def no_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws no page where a test reads the results alone."""
    for name in ("write", "write_networks"):
        monkeypatch.setattr(report, name, lambda results, folder, **options: folder)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unchecked) -> Path:
    """A folder of a ViT, a file of functions, and a cache of the hub with a BERT."""
    few_copies(monkeypatch, 3)
    tiny_bert().save_pretrained(tmp_path / "bert")
    put(tmp_path / "hub", NAME, tmp_path / "bert")
    tiny_vit(side=8, classes=10).save_pretrained(tmp_path / "vit")
    (tmp_path / "nets.py").write_text(FUNCTION)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path


def run(root: Path, *models: str, more: tuple[str, ...] = ()) -> int:
    given = ["--data", "digits", "--out", str(root / "out"), *OPTIONS, *more]
    return main(["measure", *models, *given])


def test_networks_of_images_of_ids_and_with_inputs_of_their_own_on_one_page(root, capsys, monkeypatch):
    few_copies(monkeypatch, 20)  # for p-values
    models = (str(root / "vit"), NAME, f"{root}/nets.py:own")
    assert run(root, *models) == 0
    folders = {path.name for path in (root / "out").iterdir() if path.is_dir()}
    assert folders == {"vit", "someone-bert", "own"}
    results = [Result.load(root / "out" / name) for name in ("vit", "someone-bert", "own")]
    found = findings(aggregate(results))
    # what was not measured stands in the column of its network
    assert [model for *_, model in found.columns] == [result.settings["model"] for result in results]
    assert {finding.theory.name for finding in found.all} == {"joma", "scan_snap", "chain_of_thought"}
    missing = [each for each in found.all if each.theory.name == "chain_of_thought"]
    assert [each.judged.outcome for each in missing] == ["not measured"] * 3
    # the headlines of each network are a family of their own
    for result in results:
        alone = headlines(quantities(result, list_theories()), list_theories())
        beside = [each for each in found.all if each.model == result.settings["model"]]
        assert [each.judged.q for each in beside] == [each.judged.q for each in alone]
    page = (root / "out" / "report.html").read_text(encoding="utf-8")
    assert "Theories of transformers in 3 networks" in page
    assert "report of 3 networks" in capsys.readouterr().out
    for result in results:
        assert f"trained {result.settings['model']}" in page
    # one table of theories by networks, and the figure for a page and for a column of a paper
    tex = (root / "out" / "table.tex").read_text(encoding="utf-8")
    heads = next(line for line in tex.splitlines() if line.startswith("theory & "))
    assert len(heads.split(" & ")) == 4
    assert tex.count(r"\begin{table*}") == 1
    drawn = {path.name for path in (root / "out").iterdir() if path.is_file()}
    assert {"findings.pdf", "findings.svg", "findings-column.pdf", "findings-column.svg"} <= drawn
    assert "tian2024joma" in (root / "out" / "references.bib").read_text(encoding="utf-8")


def test_what_is_complete_is_kept_and_what_fails_is_said(root, no_pages, capsys):
    assert run(root, str(root / "vit"), f"{root}/nets.py:broken", f"{root}/nets.py:own") == 2
    error = capsys.readouterr().err
    assert "nets.py:broken raised KeyError" in error
    assert len([line for line in error.splitlines() if line.startswith("transformer-theory")]) == 1
    before = {name: (root / "out" / name / "table.jsonl").stat().st_mtime_ns for name in ("vit", "own")}
    assert run(root, str(root / "vit"), f"{root}/nets.py:own") == 0
    after = {name: (root / "out" / name / "table.jsonl").stat().st_mtime_ns for name in ("vit", "own")}
    assert before == after
    assert run(root, f"{root}/nets.py:own", more=("--overwrite",)) == 0
    assert (root / "out" / "own" / "table.jsonl").stat().st_mtime_ns > before["own"]


def test_a_name_that_the_cache_lacks_costs_one_line_with_advice(root, no_pages, capsys):
    assert run(root, "someone/unknown", str(root / "vit")) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("transformer-theory")]
    assert len(lines) == 1
    assert "hf download someone/unknown" in lines[0]
    assert (root / "out" / "vit" / "result.json").is_file()


def test_settings_of_a_network_of_the_user_are_its_own(root, no_pages):
    assert run(root, f"{root}/nets.py:with_settings", f"{root}/nets.py:own") == 0


def test_an_interruption_keeps_the_networks_that_are_complete(root, no_pages, monkeypatch):
    from transformer_theory.cli import commands

    measured = commands._measured

    def interrupted(options, name, *rest):
        if name.endswith("own"):
            raise KeyboardInterrupt
        return measured(options, name, *rest)

    monkeypatch.setattr(commands, "_measured", interrupted)
    assert run(root, str(root / "vit"), f"{root}/nets.py:own") == 130
    assert Result.load(root / "out" / "vit").table
    assert not (root / "out" / "own").exists()


def test_a_single_network_joins_those_of_a_folder(root, capsys, monkeypatch):
    monkeypatch.setattr(report, "write", lambda result, folder: folder)  # its own page
    (root / "out").mkdir()
    assert run(root, f"{root}/nets.py:own") == 0
    assert "report of 1 network" in capsys.readouterr().out
    assert run(root, str(root / "vit")) == 0
    assert {path.parent.name for path in (root / "out").glob("*/result.json")} == {"own", "vit"}
    assert "Theories of transformers in 2 networks" in (root / "out" / "report.html").read_text("utf-8")


def test_two_revisions_of_one_network_have_names_of_their_own(root, no_pages):
    for step, seed in ((1, 1), (2, 2)):
        tiny_bert(seed).save_pretrained(root / f"step{step}")
        put(root / "hub", NAME, root / f"step{step}", commit=f"{step}" * 40, revision=f"step{step}")
    assert run(root, f"{NAME}@step1", f"{NAME}@step2") == 0
    results = [Result.load(root / "out" / f"someone-bert-step{step}") for step in (1, 2)]
    assert [result.settings["model"] for result in results] == ["bert@step1", "bert@step2"]
    values = [[row.value for row in result.select(kind="network")] for result in results]
    assert values[0] != values[1]


def test_a_network_that_train_has_stored_is_measured_on_the_images(root, no_pages):
    settings = replace(image_recipe("vit", image_size=8), epochs=1, dim=8, depth=1, heads=1, batch_size=256)
    train(images("digits"), settings, root / "runs" / "seed-0")
    # the side for the others does not concern it: its images have that of its training
    assert run(root, str(root / "runs" / "seed-0"), f"{root}/nets.py:own", more=("--size", "8")) == 0
    result = Result.load(root / "out" / "seed-0")
    assert result.settings["model"] == "runs, seed-0"
    assert result.settings["shape"] == "1 × 8 × 8"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--labels", "l.txt"), "--labels applies to one model, got 2; name one"),
        (("--against", "other"), "--against applies to one model, got 2; name one"),
    ],
)
def test_options_of_one_network_are_refused_for_several(root, capsys, more, message):
    assert run(root, "a", "b", more=more) == 2
    assert message in capsys.readouterr().err


def test_several_networks_need_a_folder_and_different_names(root, capsys):
    assert main(["measure", "a", "b"]) == 2
    assert "2 models need a folder for their results; name it with --out" in capsys.readouterr().err
    assert run(root, "a.py:own", "b.py:own") == 2
    assert "models must have different names" in capsys.readouterr().err

"""The command ``intervene``."""

import pytest
import torch

from transformer_theory.cli import main
from transformer_theory.core.result import Result

NETWORK = """
import torch
from transformer_theory.models import ViT

def vit():
    torch.manual_seed(0)
    return ViT.for_tokens(5, 6, 3, dim=8, depth=2, heads=2), torch.randn(40, 5, 6), torch.arange(40) % 3

def bare():
    return vit()[0]
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "network.py"
    path.write_text(NETWORK)
    return path


def fails(capsys, *argv) -> str:
    assert main(["intervene", *map(str, argv)]) == 2
    return capsys.readouterr().err.strip().splitlines()[-1]


def test_the_outcomes_are_printed_and_stored(capsys, tmp_path, file):
    out = tmp_path / "out"
    only = "scan_snap,induction"
    argv = [
        "intervene",
        f"{file}:vit",
        "--only",
        only,
        "--draws",
        "3",
        "--sequences",
        "30",
        "--out",
        str(out),
    ]
    assert main(argv) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "vit: interventions" in printed
    assert "keys that hold 90 %" in printed
    assert "not tested" in printed
    assert "needs a causal language model" in printed
    result = Result.load(out)
    assert result.name == "intervene"
    assert {row.n for row in result.table.select(theory="scan_snap")} == {30}
    assert result.settings["draws"] == 3
    assert (out / "report.html").exists()


def test_a_language_model_reads_a_text(capsys, tmp_path):
    transformers = pytest.importorskip("transformers")
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 4, "vocab_size": 40, "n_positions": 32}
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
    model.save_pretrained(tmp_path / "small")
    import numpy as np

    ids = np.random.default_rng(0).integers(1, 40, (6, 16))
    np.save(tmp_path / "ids.npy", ids)
    argv = [str(tmp_path / "small"), "--text", str(tmp_path / "ids.npy"), "--draws", "2"]
    assert main(["intervene", *argv]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "next-token loss" in printed
    assert "induction heads removed" in printed


def test_bad_input(capsys, file):
    assert "unknown intervention" in fails(capsys, f"{file}:vit", "--only", "scan_snap/nothing")
    assert "graph_tokens has no interventions" in fails(capsys, f"{file}:vit", "--only", "graph_tokens")
    assert "must have inputs; name images with --data" in fails(capsys, f"{file}:bare")
    assert "its own inputs" in fails(capsys, f"{file}:vit", "--data", "digits")

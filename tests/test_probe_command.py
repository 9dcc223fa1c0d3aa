"""Language models from a folder: the command ``probe``, its summary, and inputs that do not fit."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from transformer_theory.cli import main
from transformer_theory.compare import language_models
from transformer_theory.compare.language_models import probe_language_model
from transformer_theory.core.result import Result
from transformer_theory.core.statistics import UNTRAINED
from transformer_theory.models.transformers_folder import LanguageModel, language_model, read_language_model

VOCABULARY, LONGEST = 40, 32


def gpt2(seed: int = 0) -> torch.nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": VOCABULARY, "n_positions": LONGEST, "bos_token_id": 0}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return GPT2LMHeadModel(GPT2Config(**sizes, eos_token_id=0, initializer_range=0.3)).eval()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A small GPT-2 as ``save_pretrained`` writes it."""
    path = tmp_path_factory.mktemp("models") / "small"
    gpt2().save_pretrained(path)
    return path


@pytest.fixture(autouse=True)
def one_untrained(monkeypatch, unchecked):
    monkeypatch.setattr(language_models, "UNTRAINED_NETWORKS", 1)


def fails(capsys, *argv: str | Path) -> str:
    assert main(["probe", *map(str, argv)]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()[-1:]
    return line


def test_the_command_prints_a_summary_and_stores_the_rows(folder, tmp_path, capsys):
    np.save(tmp_path / "ids.npy", np.random.default_rng(0).integers(VOCABULARY, size=200))
    argv = ["probe", "--hf", str(folder), "--text", str(tmp_path / "ids.npy"), "--length", "12", "--sequences", "5"]
    assert main([*argv, "--theories", "turing,universal", "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert "small: 5 sequences of 12 ids of the user" in printed
    assert "close calls of attention in bfloat16" in printed
    result = Result.load(tmp_path / "out")
    assert result.settings["vocabulary"] == VOCABULARY
    calls = result.select(theory="turing", layer=1)
    assert {row.head for row in calls} == {0, 1}
    assert all(row.null is not None and len(row.null.draws) == 19 for row in calls)
    contexts = [row for row in result.select(theory="universal") if row.value is not None]
    assert {row.null.kind for row in contexts} == {UNTRAINED}


def test_the_network_of_the_folder_is_the_one_that_was_stored(folder):
    model = read_language_model(folder)
    assert (model.vocabulary, model.length, model.name) == (VOCABULARY, LONGEST, "small")
    ids = torch.arange(10)[None]
    with torch.no_grad():
        assert torch.equal(model.network(ids).logits, gpt2()(ids).logits)
        assert not torch.equal(model.untrained(1)(ids).logits, model.untrained(2)(ids).logits)
        assert torch.equal(model.untrained(1)(ids).logits, model.untrained(1)(ids).logits)


def test_the_seed_decides_and_random_numbers_are_untouched():
    state = torch.get_rng_state()
    first, again = (probe_language_model(gpt2(), theories=["turing"], length=8, sequences=3) for _ in range(2))
    assert first.table == again.table
    assert torch.equal(state, torch.get_rng_state())
    assert first.table != probe_language_model(gpt2(), theories=["turing"], length=8, sequences=3, seed=1).table


def test_own_networks_need_a_description():
    class Own(torch.nn.Module):
        """A network without configuration."""

    with pytest.raises(ValueError, match="must have a config with vocab_size"):
        language_model(Own())
    with pytest.raises(ValueError, match="must be a model of transformers to be drawn again"):
        LanguageModel(Own(), "own", 5).untrained(0)


def test_folders_that_hold_no_causal_model_are_named(folder, tmp_path, capsys):
    assert "must be a folder" in fails(capsys, "--hf", tmp_path / "missing")
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "must hold config.json" in fails(capsys, "--hf", empty)
    pickled = tmp_path / "pickled"
    pickled.mkdir()
    shutil.copy(folder / "config.json", pickled)
    (pickled / "pytest_model.bin").write_bytes(b"anything")
    assert "got pytest_model.bin; save_pretrained writes them" in fails(capsys, "--hf", pickled)
    shutil.copy(folder / "model.safetensors", pickled)
    (pickled / "config.json").write_text("{", encoding="utf-8")
    assert "must be JSON" in fails(capsys, "--hf", pickled)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    vision = {"model_type": "vit", "architectures": ["ViTModel"], "hidden_size": 16}
    (pickled / "config.json").write_text(json.dumps(vision), encoding="utf-8")
    assert "must hold a causal language model, got ViTModel" in fails(capsys, "--hf", pickled)
    (pickled / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (pickled / "model.safetensors").write_bytes(b"damaged")
    assert "must hold a causal language model, got GPT2LMHeadModel" in fails(capsys, "--hf", pickled)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (np.zeros((2, 40), dtype=int), f"sequences must have 2 to {LONGEST} ids"),
        (np.full((2, 8), VOCABULARY), rf"ids must lie in \[0, {VOCABULARY}\)"),
        (np.zeros((2, 8)), "must be an array"),
        (np.zeros((2, 1), dtype=int), "sequences must have 2 to"),
    ],
)
def test_ids_that_do_not_fit(ids, message):
    with pytest.raises(ValueError, match=message):
        probe_language_model(gpt2(), ids, theories=["turing"])


def test_texts_that_do_not_fit(folder, tmp_path, capsys):
    (tmp_path / "text.txt").write_text("some words", encoding="utf-8")
    assert "must hold a tokenizer" in fails(capsys, "--hf", folder, "--text", tmp_path / "text.txt")
    (tmp_path / "latin.txt").write_bytes(b"\xe9\xff")
    assert "must be a text in UTF-8" in fails(capsys, "--hf", folder, "--text", tmp_path / "latin.txt")
    assert "does not exist" in fails(capsys, "--hf", folder, "--text", tmp_path / "none.txt")
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    assert "must be an array of integers" in fails(capsys, "--hf", folder, "--text", tmp_path / "objects.npy")
    np.save(tmp_path / "few.npy", np.arange(5))
    assert "must have at least 64 tokens, got 5" in fails(capsys, "--hf", folder, "--text", tmp_path / "few.npy")
    assert f"at most {LONGEST}" in fails(capsys, "--hf", folder, "--length", "33")
    assert "unknown theory 'turin'" in fails(capsys, "--hf", folder, "--theories", "turin")

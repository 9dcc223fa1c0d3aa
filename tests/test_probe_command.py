"""Language models from a folder: the command ``measure``, its summary, and inputs that do not fit."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.cases import each_case
from tests.problems.copies import few_copies
from transformer_theory.cli import main
from transformer_theory.comparison import language_models
from transformer_theory.comparison.language_models import probe_language_model
from transformer_theory.core.result import Result
from transformer_theory.core.statistics import EQUAL_SCALE
from transformer_theory.models.transformers_folder import (
    LanguageModel,
    language_model,
    longest_sequence,
    read_language_model,
)

VOCABULARY, LONGEST = 40, 32


def gpt2(seed: int = 0, **changed: int) -> torch.nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {
        "n_embd": 16,
        "n_layer": 2,
        "n_head": 2,
        "vocab_size": VOCABULARY,
        "n_positions": LONGEST,
        "bos_token_id": 0,
    } | changed
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
    few_copies(monkeypatch)


def fails(capsys, *argv: str | Path) -> str:
    assert main(["measure", *map(str, argv)]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()[-1:]
    return line


def test_the_command_prints_a_summary_and_stores_the_rows(folder, tmp_path, capsys):
    np.save(tmp_path / "ids.npy", np.random.default_rng(0).integers(VOCABULARY, size=400))
    argv = [
        "measure",
        str(folder),
        "--text",
        str(tmp_path / "ids.npy"),
        "--length",
        "12",
        "--sequences",
        "16",
    ]
    assert main([*argv, "--theories", "turing,universal", "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert "small (2 layers of 2 heads) on 16 sequences of 12 ids of ids.npy" in printed
    assert "Universal approximation by contextual mappings" in printed
    assert "the rank of this network among randomised copies" in " ".join(printed.split())
    result = Result.load(tmp_path / "out")
    assert result.settings["vocabulary"] == VOCABULARY
    calls = result.select(theory="turing", layer=1)
    assert {row.head for row in calls} == {0, 1}
    kinds = {null.kind: len(null.draws) for row in calls for null in row.nulls}
    assert kinds[EQUAL_SCALE] == 1
    assert 19 in kinds.values()
    contexts = [row for row in result.select(theory="universal") if row.value is not None]
    assert {null.kind for row in contexts for null in row.nulls[:1]} == {EQUAL_SCALE}


def test_the_network_of_the_folder_is_the_one_that_was_stored(folder):
    model = read_language_model(folder)
    assert (model.vocabulary, model.length, model.name) == (VOCABULARY, LONGEST, "small")
    ids = torch.arange(10)[None]
    with torch.no_grad():
        assert torch.equal(model.network(ids).logits, gpt2()(ids).logits)
        assert not torch.equal(model.untrained(1)(ids).logits, model.untrained(2)(ids).logits)
        assert torch.equal(model.untrained(1)(ids).logits, model.untrained(1)(ids).logits)


def test_a_configuration_without_limit_states_no_longest_sequence():
    network = gpt2()
    assert longest_sequence(network) == LONGEST
    network.config.max_position_embeddings = -1  # as that of XLNet
    network.config.n_positions = -1
    assert longest_sequence(network) is None


def test_the_seed_decides_and_random_numbers_are_untouched():
    state = torch.get_rng_state()
    first, again = (
        probe_language_model(gpt2(), theories=["turing"], length=8, sequences=3) for _ in range(2)
    )
    assert first.table == again.table
    assert torch.equal(state, torch.get_rng_state())
    assert (
        first.table != probe_language_model(gpt2(), theories=["turing"], length=8, sequences=3, seed=1).table
    )


def test_own_networks_need_a_description():
    class Own(torch.nn.Module):
        """A network without configuration."""

    with pytest.raises(ValueError, match="must have a config with vocab_size"):
        language_model(Own())
    with pytest.raises(ValueError, match="must be a model of transformers to be drawn again"):
        LanguageModel(Own(), "own", 5).untrained(0)


def test_folders_that_hold_no_causal_model_are_named(folder, tmp_path, capsys):
    assert "must be a folder" in fails(capsys, tmp_path / "missing")
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "must hold config.json" in fails(capsys, empty)
    pickled = tmp_path / "pickled"
    pickled.mkdir()
    shutil.copy(folder / "config.json", pickled)
    (pickled / "pytest_model.bin").write_bytes(b"anything")
    assert "got pytest_model.bin; save_pretrained writes them" in fails(capsys, pickled)
    shutil.copy(folder / "model.safetensors", pickled)
    (pickled / "config.json").write_text("{", encoding="utf-8")
    assert "must be JSON" in fails(capsys, pickled)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    vision = {"model_type": "vit", "architectures": ["ViTModel"], "hidden_size": 16}
    (pickled / "config.json").write_text(json.dumps(vision), encoding="utf-8")
    assert "must hold all weights of ViTModel, embeddings.cls_token" in fails(capsys, pickled)
    (pickled / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (pickled / "model.safetensors").write_bytes(b"damaged")
    assert "must hold weights of GPT2LMHeadModel, got GPT2LMHeadModel" in fails(capsys, pickled)


@each_case(
    ("ids", "message"),
    [
        (
            np.zeros((2, 40), dtype=int),
            f"ids must be 2 to {LONGEST} per sequence, as GPT2LMHeadModel takes, got 40",
        ),
        (np.full((2, 8), VOCABULARY), rf"ids must lie in \[0, {VOCABULARY}\)"),
        (np.zeros((2, 8)), "must be an array"),
        (np.zeros((2, 1), dtype=int), "ids must be 2 to"),
    ],
)
def test_ids_that_do_not_fit(ids, message):
    with pytest.raises(ValueError, match=message):
        probe_language_model(gpt2(), ids, theories=["turing"])


def test_texts_that_do_not_fit(folder, tmp_path, capsys):
    (tmp_path / "text.txt").write_text("some words", encoding="utf-8")
    assert "must hold a tokenizer" in fails(capsys, folder, "--text", tmp_path / "text.txt")
    (tmp_path / "latin.txt").write_bytes(b"\xe9\xff")
    assert "must be a text in UTF-8" in fails(capsys, folder, "--text", tmp_path / "latin.txt")
    assert "does not exist" in fails(capsys, folder, "--text", tmp_path / "none.txt")
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    assert "must be an array of integers" in fails(capsys, folder, "--text", tmp_path / "objects.npy")
    np.save(tmp_path / "few.npy", np.arange(5))
    assert f"must have at least {LONGEST} tokens, got 5" in fails(
        capsys, folder, "--text", tmp_path / "few.npy"
    )
    assert f"at most {LONGEST}" in fails(capsys, folder, "--length", "33")
    assert "unknown theory 'turin'" in fails(capsys, folder, "--theories", "turin")


def test_weights_that_are_missing_are_named(folder, tmp_path, capsys):
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    del weights["transformer.h.1.attn.c_attn.weight"]
    shutil.copy(folder / "config.json", tmp_path)
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    line = fails(capsys, tmp_path)
    assert "must hold all weights of GPT2LMHeadModel, transformer.h.1.attn.c_attn.weight missing" in line


def test_networks_that_are_not_causal_or_not_finite_are_refused():
    from transformers import BertConfig, BertForMaskedLM

    sizes = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "vocab_size": VOCABULARY,
    }
    with torch.random.fork_rng():
        torch.manual_seed(0)
        both_ways = BertForMaskedLM(BertConfig(**sizes, initializer_range=0.3))
    with pytest.raises(ValueError, match="must be causal, but its last id changes earlier logits"):
        probe_language_model(both_ways, theories=["turing"])
    network = gpt2()
    with torch.no_grad():
        network.transformer.h[0].attn.c_proj.weight[0, 0] = float("nan")
    with pytest.raises(ValueError, match="got NaN or infinity in transformer"):
        probe_language_model(network, theories=["turing"])
    # half precision is no leak of later ids
    assert probe_language_model(gpt2().bfloat16(), theories=["turing"], sequences=2).table


def test_an_existing_folder_is_refused_before_the_measurement(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(language_models, "probe_language_model", lambda *_, **__: pytest.fail("measured"))
    (tmp_path / "notes.txt").touch()
    assert "exists" in fails(capsys, folder, "--out", tmp_path)


def test_a_test_that_does_not_fit_the_model_has_a_reason(capsys):
    from rich.console import Console

    from transformer_theory.report.terminal import heads

    result = probe_language_model(
        gpt2(vocab_size=6, n_positions=6), theories=["turing", "induction", "chain_of_thought"], sequences=2
    )
    assert result.settings["length"] == 6
    assert any(row.value is not None for row in result.select(theory="turing"))
    missing = [row for row in result.select(theory="chain_of_thought") if row.value is None]
    assert missing
    assert all(row.reason for row in missing)
    Console(width=140).print(heads(result))
    assert f"not measured: {missing[0].reason}"[:60] in capsys.readouterr().out


def test_the_former_name_of_the_command_still_works(folder, capsys):
    line = fails(capsys, folder, "--length", "33")
    assert main(["probe", str(folder), "--length", "33"]) == 2
    assert capsys.readouterr().err.strip().splitlines()[-1] == line

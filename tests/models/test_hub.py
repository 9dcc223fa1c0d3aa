"""Models by their name in the local cache of the hub."""

import json
import os
import subprocess
import sys
from pathlib import Path

import huggingface_hub
import pytest
import torch
from torch import nn

from tests.problems.copies import few_copies
from tests.problems.hub_cache import COMMIT, put, tiny_bert, tiny_vit
from transformer_theory.cli import main
from transformer_theory.core.result import Result
from transformer_theory.models.hub import is_name, origin
from transformer_theory.models.user_model import read_user_model
from transformer_theory.report.html_page import _glance

OTHER = "f" * 40


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    """A cache with a BERT, a ViT without organisation, and snapshots each of which lacks something."""
    root = tmp_path_factory.mktemp("hub")
    for name, network in (("bert", tiny_bert()), ("second", tiny_bert(1)), ("vit", tiny_vit())):
        network.save_pretrained(root / "files" / name)
    put(root, "some/tiny-bert", root / "files" / "bert")
    put(root, "some/tiny-bert", root / "files" / "second", commit=OTHER, revision="refs/pr/1")
    put(root, "tiny-vit", root / "files" / "vit")
    for name, kept in (("bare", ["config.json"]), ("empty", [])):
        folder = root / "files" / name
        folder.mkdir()
        for file in kept:
            (folder / file).write_bytes((root / "files" / "vit" / file).read_bytes())
        put(root, f"some/{name}", folder)
    (root / "files" / "bare" / "pytorch_model.bin").write_bytes(b"pickle")
    put(root, "some/pickled", root / "files" / "bare")
    index = {"weight_map": {"a": "model-1-of-2.safetensors", "b": "model-2-of-2.safetensors"}}
    (root / "files" / "bare" / "model.safetensors.index.json").write_text(json.dumps(index))
    (root / "files" / "bare" / "model-1-of-2.safetensors").write_bytes(b"")
    put(root, "some/half", root / "files" / "bare")
    return root


@pytest.fixture
def in_use(cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The cache as that of the environment, in an empty folder; no request can be sent."""

    def refused(*args, **kwargs):
        raise AssertionError("a request was sent")

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr("socket.socket.connect", refused)
    monkeypatch.chdir(tmp_path)
    return cache


def same(first: nn.Module, second: nn.Module) -> bool:
    pairs = zip(first.state_dict().items(), second.state_dict().items(), strict=True)
    return all(name == other and torch.equal(a, b) for (name, a), (other, b) in pairs)


def test_a_name_is_found_in_the_cache(in_use: Path):
    user = read_user_model("some/tiny-bert")
    assert user.name == "tiny-bert"
    assert same(user.network, tiny_bert())
    assert read_user_model("some/tiny-bert@main").name == "tiny-bert@main"
    assert user.folder == in_use / "models--some--tiny-bert" / "snapshots" / COMMIT
    vit = read_user_model("tiny-vit")
    assert vit.name == "tiny-vit"
    assert same(vit.network, tiny_vit())


@pytest.mark.parametrize("revision", ["refs/pr/1", OTHER])
def test_a_revision_is_a_branch_or_a_commit(in_use: Path, revision: str):
    user = read_user_model(f"some/tiny-bert@{revision}")
    assert same(user.network, tiny_bert(1))
    assert not same(user.network, tiny_bert())
    assert user.name == f"tiny-bert@{revision[:8] if len(revision) == 40 else revision}"


def test_a_path_that_exists_is_not_looked_up(in_use: Path):
    tiny_vit(seed=5).save_pretrained("tiny-vit")
    assert same(read_user_model("tiny-vit").network, tiny_vit(seed=5))


def test_the_environment_names_the_cache(cache: Path, tmp_path: Path):
    """In processes of their own, since the place is read at the import of huggingface_hub."""
    (tmp_path / "hub").symlink_to(cache)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    code = (
        "import os, sys\n"
        "from transformer_theory.models.user_model import cached\n"
        "assert 'huggingface_hub' not in sys.modules\n"
        f"for name, place in {{'HF_HOME': {str(tmp_path)!r}, 'HF_HUB_CACHE': {str(cache)!r}}}.items():\n"
        "    if not os.fork():\n"
        "        os.environ[name] = place\n"
        "        print(name, cached('some/tiny-bert@main', 'a name'))\n"
        "        sys.exit()\n"
        "    assert os.wait()[1] == 0\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=kept, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    folder = cache.resolve() / "models--some--tiny-bert" / "snapshots" / COMMIT
    assert done.stdout.splitlines() == [f"HF_HOME {folder}", f"HF_HUB_CACHE {folder}"]


WRONG = {
    "some/other": "got 'some/other', which does not exist and is not in the cache {cache}; hf download "
    "some/other, then again",
    "some/tiny-bert@v2": "is not in the cache {cache}; hf download some/tiny-bert --revision v2, then again",
    "some/bare": "some/bare must have weights in .safetensors files in the cache of the hub, got config.json"
    "; hf download some/bare, then again",
    "some/pickled": "got config.json, pytorch_model.bin; convert them with save_pretrained, or load them in "
    "FILE.py:FUNCTION",
    "some/half": "must have all parts of its weights in the cache of the hub, model-2-of-2.safetensors is "
    "missing; hf download some/half, then again",
    "some/empty": "some/empty must have config.json in the cache of the hub, got no file; hf download "
    "some/empty, then again",
    "some/..": "got 'some/..', which does not exist",
    "a..b": "got 'a..b', which does not exist and is not in the cache",
    "some/tiny/bert": "got 'some/tiny/bert', which does not exist",
}


@pytest.mark.parametrize(("name", "message"), WRONG.items(), ids=WRONG)
def test_what_the_cache_lacks_is_said_in_one_line(in_use: Path, capsys, name: str, message: str):
    assert main(["measure", name, "--out", "page"]) == 2
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert message.format(cache=in_use) in line
    assert not Path("page").exists()


def test_the_package_is_optional(in_use: Path, capsys, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert main(["measure", "some/tiny-bert", "--out", "page"]) == 2
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert "got 'some/tiny-bert', which does not exist; a name in the cache of the hub needs" in line
    assert line.endswith("huggingface_hub: pip install 'transformer-theory[hub]'")


def test_names_and_origins():
    names = ["gpt2", "google-bert/bert-base-uncased", "a/b@refs/pr/1", "a_b/c.d-e@0123"]
    assert [is_name(text) for text in names] == [True] * 4
    assert not any(map(is_name, ["", ".", "..", "a/", "/a", "./a", "../a", "a/b/c", "~/a", "a b", "a@"]))
    assert origin(Path("/cache/models--org--a.b-c/snapshots/123")) == ("org/a.b-c", "123")
    assert origin(Path("/cache/models--gpt2/snapshots/123")) == ("gpt2", "123")
    assert origin(Path("/cache/gpt2")) is None
    assert origin(Path("gpt2")) is None


def test_measure_makes_a_page_of_a_name(in_use: Path, monkeypatch: pytest.MonkeyPatch):
    few_copies(monkeypatch)
    words = ["--theories", "joma", "--length", "6", "--sequences", "2", "--out", "page"]
    assert main(["measure", "some/tiny-bert", *words]) == 0
    result = Result.load("page")
    assert result.settings["model"] == "tiny-bert"
    assert result.settings["hub"] == f"some/tiny-bert@{COMMIT}"
    assert ("name in the hub", f"some/tiny-bert@{COMMIT}") in _glance(result, [])
    page = Path("page/report.html").read_text(encoding="utf-8")
    assert f"some/tiny-bert@{COMMIT}" in page

"""Networks that others trained in a comparison, beside those that ``train`` has stored."""

from pathlib import Path

import huggingface_hub
import jaxtyping
import numpy as np
import pytest
import torch

import transformer_theory as tt
from tests.contract.instances import few_steps
from tests.problems.copies import few_copies, few_draws, few_stored_copies
from tests.problems.hub_cache import COMMIT, put, tiny_bert, tiny_vit
from transformer_theory.cli import main
from transformer_theory.comparison.judged import findings
from transformer_theory.comparison.pooling import aggregate
from transformer_theory.comparison.pretrained import divided
from transformer_theory.comparison.user_images import with_images
from transformer_theory.comparison.user_models import measure
from transformer_theory.core.result import Result
from transformer_theory.core.statistics import EQUAL_SCALE, UNTRAINED, fixed_generator
from transformer_theory.data import image_sets
from transformer_theory.models.user_model import UserModel
from transformer_theory.training.augment import Augmentation
from transformer_theory.training.image.loop import train
from transformer_theory.training.image.processes import Hardware
from transformer_theory.training.image.settings import Settings

THEORIES = ["joma", "rate_reduction", "attention_svm", "turing"]
HEADLINES = {
    name: tt.theories.theory(name).in_networks.headline
    for name in ("joma", "rate_reduction", "attention_svm")
}
COPIES = 5
FUNCTION = """
from tests.problems.hub_cache import tiny_bert, tiny_vit
def vit(): return tiny_vit(3, side=8, classes=10)
def with_inputs():
    import torch
    return vit(), torch.zeros(2, 3, 8, 8)
def layers():
    from torch import nn
    layer = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
    return nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """A cache of the hub, a folder of a ViT, a run of ``train`` on the digits, and a file of functions."""
    root = tmp_path_factory.mktemp("pretrained")
    tiny_vit(side=16, classes=10).save_pretrained(root / "vit")
    put(root / "hub", "some/tiny-vit", root / "vit")
    bert = root / "bert"
    tiny_bert().save_pretrained(bert)
    tokenizer().save_pretrained(bert)
    (root / "net.py").write_text(FUNCTION)
    settings = Settings(
        network="vit",
        patch_size=4,
        dim=8,
        depth=1,
        heads=2,
        epochs=1,
        batch_size=256,
        augmentation=Augmentation(),
    )
    train(image_sets.images("digits"), settings, root / "run", hardware=Hardware("cpu", "float32"))
    (root / "words.txt").write_text("the cat sat on a mat . a dog ran far . " * 40)
    return root


def tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["[PAD]", "[UNK]", "the", "cat", "sat", "on", "a", "mat", ".", "dog", "ran", "far"]
    made = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=made, unk_token="[UNK]", pad_token="[PAD]", model_max_length=16
    )


def use(root: Path, patch: pytest.MonkeyPatch) -> None:
    """The cache of the hub, few copies, and little work on the data themselves, which other tests measure."""
    few_copies(patch, COPIES)
    few_draws(patch)
    few_stored_copies(patch)
    patch.setattr(image_sets, "MAX_SAMPLES", 100)
    patch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(root / "hub"))
    patch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # other tests check shapes
    patch.chdir(root)


@pytest.fixture(autouse=True)
def in_use(root: Path, monkeypatch: pytest.MonkeyPatch):
    use(root, monkeypatch)
    with few_steps():
        yield


@pytest.fixture(scope="module")
def compared(root: Path) -> Result:
    """A network of ``train``, one of the hub and one of a function, by the command."""
    with pytest.MonkeyPatch.context() as patch, few_steps():
        use(root, patch)
        models = ["--model", "run", "some/tiny-vit", "net.py:vit"]
        words = ["--data", "digits", *models, "--theories", ",".join(THEORIES)]
        options = ["--seeds", "1", "--claim-seeds", "0", "--workers", "1", "--out", "page"]
        assert main(["compare", *words, *options]) == 0
        return Result.load("page")


def test_every_network_has_a_finding_of_each_theory(compared: Result):
    found = findings(aggregate(compared))
    networks = {(finding.theory.name, finding.model) for finding in found.all if finding.view == "network"}
    assert networks == {(theory, name) for theory in THEORIES for name in ("vit (run)", "tiny-vit", "vit")}
    assert compared.settings["models"]["tiny-vit"] == f"some/tiny-vit@{COMMIT}"
    assert compared.settings["models"]["vit"] == "net.py:vit"
    page = Path("page/report.html").read_text(encoding="utf-8")
    assert "tiny-vit" in page


def test_the_headlines_are_those_that_measure_gives(compared: Result):
    test = image_sets.images("digits")[1].mixed(fixed_generator())
    user, shown, _ = with_images(UserModel(tiny_vit(side=16, classes=10), "tiny-vit"), test, max_samples=128)
    assert shown.size == 16
    alone = measure(user, theories=THEORIES, networks=39, seed=0, images=shown)
    for theory, quantity in HEADLINES.items():
        row = compared.select(
            theory=theory, kind="in network", quantity=quantity, model="tiny-vit", layer=None
        ).one()
        rows = [
            row
            for row in alone.select(theory=theory, quantity=quantity)
            if row.value is not None and not row.at
        ]
        if theory == "rate_reduction":  # 10 classes in 8 dimensions
            assert (rows, row.value, row.layer) == ([], None, None)
            reasons = [each.reason for each in alone.select(theory=theory) if each.value is None]
            assert row.reason in reasons
            continue
        places = [row.value for row in rows if row.layer is not None]
        assert row.value == pytest.approx(np.mean(places), rel=1e-9)
        (whole,) = (row for row in rows if row.layer is None)
        assert [(null.kind, null.value, null.draws) for null in row.nulls] == [
            (null.kind, null.value, null.draws) for null in whole.nulls
        ]
        kinds = [null.kind for null in row.nulls]
        assert kinds[0] == EQUAL_SCALE
        assert kinds[-1] == UNTRAINED
        assert len(row.nulls[0].draws) == COPIES
        assert row.side == tt.theories.theory(theory).in_networks.side
        layers = compared.select(theory=theory, kind="in network", quantity=quantity, model="tiny-vit").where(
            lambda row: row.layer is not None
        )
        for layer in (0, 1):
            expected = np.mean([row.value for row in rows if row.layer == layer])
            assert layers.select(layer=layer).one().value == pytest.approx(expected, rel=1e-9)


def test_images_are_those_of_the_comparison_at_the_side_of_the_network(compared: Result):
    test = image_sets.images("digits")[1].mixed(fixed_generator())
    np.testing.assert_allclose(compared.arrays["network/images"], test.pixels[:6].numpy() / 255)
    user, _, _ = with_images(UserModel(tiny_vit(3, side=8, classes=10), ""), test, max_samples=4)
    plain = tiny_vit(3, side=8, classes=10)
    plain.set_attn_implementation("eager")
    with torch.no_grad():
        maps = plain(user.inputs, output_attentions=True).attentions
    shown = compared.arrays["network/vit/attention"][0]
    np.testing.assert_allclose(shown, torch.stack(list(maps)).transpose(1, 2), atol=1e-6)


def test_a_network_of_ids_reads_the_text_of_the_data(root: Path):
    words = ["--data", "words.txt", "--model", "bert", "--theories", "joma,induction", "--seeds", "1"]
    assert main(["compare", *words, "--claim-seeds", "0", "--workers", "1", "--out", "text"]) == 0
    result = Result.load("text")
    row = result.select(
        theory="joma", kind="in network", quantity=HEADLINES["joma"], model="bert", layer=None
    ).one()
    assert row.value is not None
    assert row.nulls[0].kind == EQUAL_SCALE
    assert result.settings["models"] == {"bert": "bert"}
    missing = result.select(theory="induction", kind="in network", model="bert", layer=None)
    assert missing
    assert any(row.value is None and row.reason for row in missing)
    assert not [row for row in result.table if row.reason == "no network was asked for"]


WRONG = {
    "--data digits --model net.py:with_inputs": "net.py:with_inputs returns its own inputs, and here a "
    "network is measured on the given data; return the network alone, or use the command measure",
    "--data digits --model bert": "bert takes ids of a text, got the data 'digits'; name a .txt file, or use "
    "the command measure",
    "--data words.txt --model vit": "words.txt",
    "--data text --model bert vit": "the models must all take images or all take a text, got vit and bert",
    "--data text --model bert --size 8": "--size applies to images, and bert takes ids; leave it out",
    "--data digits --model some/nothing": "got 'some/nothing', which does not exist and is not in the cache",
    "--data digits --model ./no/such/folder": "got 'no/such/folder', which does not exist",
    "--data digits --model net.py": "write net.py:FUNCTION",
    "--data digits --model hub": "hub must hold best.safetensors, a trained network, got none",
    "--data digits --minutes 3": "--minutes applies to networks of --model",
    "--data digits --model net.py:layers": "layers must run on inputs [1, 1, 8, 8], but raised",
}


@pytest.mark.parametrize(("words", "message"), WRONG.items(), ids=WRONG)
def test_what_cannot_be_compared_is_said_in_one_line(root: Path, capsys, words: str, message: str):
    options = ["--theories", "joma", "--seeds", "1", "--claim-seeds", "0", "--workers", "1", "--out", "none"]
    assert main(["compare", *words.split(), *options]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert message in lines[-1]
    assert not Path("none").exists()


def test_models_are_told_apart(root: Path):
    stored, others = divided(["run", root / "run" / "best.safetensors", "vit", "vit/model.safetensors"])
    assert stored == ["run", root / "run" / "best.safetensors"]
    assert [other.name for other in others] == ["vit", "vit, 2"]
    (own,) = divided([UserModel(tiny_vit(), "$net::a")])[1]
    assert (own.name, own.described) == ("_net__a", "in memory")

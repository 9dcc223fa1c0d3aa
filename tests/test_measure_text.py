"""The command ``measure`` on texts: windows of whole sentences between the special tokens of the tokenizer,
and labels of texts, images and functions.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.problems.copies import few_copies
from transformer_theory.cli import main
from transformer_theory.comparison import language_models, user_models
from transformer_theory.core.result import Result
from transformer_theory.models.text_windows import read_sequences, windows_of
from transformer_theory.models.transformers_folder import LanguageModel, language_model
from transformer_theory.models.user_model import read_user_model

WORDS = ["the", "cat", "dog", "sat", "ran", "on", "a", "mat", "far", "road", "sees", "bird", ".", "?"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "<s>"]
IDS = {word: number for number, word in enumerate(SPECIAL + WORDS)}
PAD, UNK, CLS, SEP, BOS = (IDS[word] for word in SPECIAL)
SENTENCES = [
    "The cat sat on the mat.",
    "A dog ran far?",
    "The bird sees a road.",
    "The dog sees the cat on a road.",
    "A cat ran.",
    "The mat sat on a bird.",
]


def ids_of(text: str) -> list[int]:
    return [IDS[word] for word in text.lower().replace(".", " .").replace("?", " ?").split()]


def tokenizer(template: str, *, inputs: tuple[str, ...] = ("input_ids", "attention_mask"), **special: str):
    """Words and full stops, lower case, with special tokens as in the template."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.WordLevel(IDS, unk_token="[UNK]"))
    made.normalizer = normalizers.Lowercase()
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    known = [(word, IDS[word]) for word in SPECIAL if word in template]
    made.post_processor = processors.TemplateProcessing(single=template, special_tokens=known)
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        unk_token="[UNK]",
        model_max_length=20,
        model_input_names=list(inputs),
        **special,
    )


def bert() -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    sizes: dict[str, Any] = {
        "hidden_size": 8,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 8,
    }
    names = {0: "good", 1: "bad", 2: "odd"}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = BertConfig(**sizes, vocab_size=len(IDS), max_position_embeddings=24, initializer_range=0.5)
        config.id2label, config.label2id = names, {word: number for number, word in names.items()}
        return BertForSequenceClassification(config).eval()


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> Path:
    """A BERT whose configuration names no special ids, a GPT-2 with a beginning of sequence, and texts."""
    from transformers import GPT2Config, GPT2LMHeadModel

    root = tmp_path_factory.mktemp("texts")
    bert().save_pretrained(root / "bert")
    special = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"}
    names = ("input_ids", "token_type_ids", "attention_mask")
    tokenizer("[CLS] $A [SEP]", inputs=names, **special).save_pretrained(root / "bert")
    sizes = {"n_embd": 8, "n_layer": 1, "n_head": 2, "vocab_size": len(IDS), "n_positions": 24}
    GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=None, eos_token_id=None)).save_pretrained(root / "gpt2")
    tokenizer("<s> $A", bos_token="<s>", eos_token="<s>").save_pretrained(root / "gpt2")
    (root / "text.txt").write_text(" ".join(SENTENCES[:3]) + "\n\n" + " ".join(SENTENCES[3:]) + "\n")
    (root / "lines.txt").write_text("\n".join([*SENTENCES[:3], "", *SENTENCES[3:]]) + "\n")
    (root / "words.txt").write_text("bad\ngood\ngood\nbad\nbad\ngood\n")
    return root


def model_of(folder: Path) -> LanguageModel:
    user = read_user_model(str(folder))
    return language_model(user.network, name=user.name, folder=user.folder)


def words_of(row: torch.Tensor, mask: torch.Tensor) -> list[int]:
    return row[mask.bool()].tolist()


def test_a_window_of_an_encoder_is_whole_sentences_between_its_special_tokens(folders):
    found = read_sequences(folders / "text.txt", model_of(folders / "bert"), length=13, sequences=8)
    # at most 11 ids beside [CLS] and [SEP]: 7, 5 + 6, 9 and 4 + 7 ids
    expected = [SENTENCES[:1], SENTENCES[1:3], SENTENCES[3:4], SENTENCES[4:]]
    ids, mask = found.inputs["input_ids"], found.inputs["attention_mask"]
    for row, real, sentences in zip(ids, mask, expected, strict=True):
        assert words_of(row, real) == [CLS, *ids_of(" ".join(sentences)), SEP]
        assert bool((row[~real.bool()] == PAD).all())
    assert mask[0].tolist() == [1] * 9 + [0] * 4
    assert torch.equal(found.inputs["token_type_ids"], torch.zeros_like(ids))
    assert found.special_ids == {PAD: "[PAD]", UNK: "[UNK]", CLS: "[CLS]", SEP: "[SEP]"}
    some = read_sequences(folders / "text.txt", model_of(folders / "bert"), length=13, sequences=2).inputs
    assert torch.equal(some["input_ids"], ids[[0, 3]])


def test_a_window_of_a_causal_model_begins_with_its_special_token(folders):
    found = read_sequences(folders / "text.txt", model_of(folders / "gpt2"), length=12, sequences=8)
    assert found.inputs.keys() == {"input_ids", "attention_mask"}
    first = found.inputs["input_ids"][0], found.inputs["attention_mask"][0]
    assert words_of(*first) == [BOS, *ids_of(SENTENCES[0])]
    # without a token for padding, the end of sequence stands there
    assert first[0].tolist()[8:] == [BOS] * 4


def test_sentences_that_do_not_fit_are_cut_between_words():
    class Letters:
        """One id per letter or line end."""

        def __call__(self, texts, **options):
            return {"input_ids": [[ord(letter) for letter in text if letter != " "] for text in texts]}

    def windows(text, size, sequences=9):
        return windows_of(text, Letters(), size=size, sequences=sequences)

    assert windows("aa bb cc dd ee ff gg hh", 8) == ["aa bb cc dd", "ee ff gg hh"]
    assert windows("a" * 16, 4) == ["aaaa"] * 4
    assert windows("One. Two! Is it? e.g. this. \u201cYes.\u201d No.\nEnd", 9) == [
        "One. Two!",
        "Is it?",
        "e.g. this.",
        "\u201cYes.\u201d",
        "No.\nEnd",
    ]
    assert windows("\u6211\u5728\u3002\u4f60\u597d\uff01\u5929\u6c14\u597d\u3002", 4) == [
        "\u6211\u5728\u3002",
        "\u4f60\u597d\uff01",
        "\u5929\u6c14\u597d\u3002",
    ]
    # a short end is left out if two windows are longer
    assert windows("abcd. efgh. i.", 5) == ["abcd.", "efgh."]
    assert windows("abcd. i.", 5) == ["abcd.", "i."]
    assert windows("ab.\nc." + "\n" * 40 + "de.", 4) == ["ab.", "c.", "de."]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What is measured, without the measurement."""
    found: dict[str, Any] = {}

    def recorded(user, data, labels, **options):
        found.update(options, user=user, data=data, labels=labels)
        raise ValueError("recorded")

    for module in (user_models, language_models):
        monkeypatch.setattr(module, "measure_user_model", recorded)
    return found


def measure(*words: str | Path) -> int:
    return main(["measure", *map(str, words)])


def answer(capsys) -> str:
    return capsys.readouterr().err.strip().splitlines()[-1]


def test_masks_and_special_ids_reach_the_measurement(folders, measured, capfd):
    assert measure(folders / "bert", "--text", folders / "text.txt", "--length", "13") == 2
    assert list(measured["special_ids"]) == [PAD, UNK, CLS, SEP]
    assert int(measured["data"]["attention_mask"].sum()) == 9 + 13 + 11 + 13
    assert measured["labels"] is None
    assert measured["settings"]["inputs"] == "4 sequences of 9 to 13 ids of text.txt"
    # a text that is longer than the tokenizer allows, which transformers would say
    assert measure(folders / "bert", "--text", folders / "text.txt", "--length", "19") == 2
    assert "longer than" not in capfd.readouterr().err


def test_the_entropy_of_padded_windows_is_that_of_each_window_alone(
    folders, tmp_path, unchecked, monkeypatch
):
    few_copies(monkeypatch)
    options = ("--length", "13", "--theories", "turing", "--out", tmp_path / "out")
    assert measure(folders / "bert", "--text", folders / "text.txt", *options) == 0
    result = Result.load(tmp_path / "out")
    network = bert()
    network.set_attn_implementation("eager")
    windows = [SENTENCES[:1], SENTENCES[1:3], SENTENCES[3:4], SENTENCES[4:]]
    entropies = []
    for sentences in windows:
        ids = torch.tensor([[CLS, *ids_of(" ".join(sentences)), SEP]])
        with torch.no_grad():
            weights = torch.stack(network(ids, output_attentions=True).attentions)[:, 0]
        entropies.append(torch.special.entr(weights).sum(-1))  # [layers, heads, queries]
    expected = torch.cat(entropies, -1).mean(-1)
    for layer in range(2):
        for head in range(2):
            row = result.select(quantity="attention entropy", layer=layer, head=head).one()
            assert row.value == pytest.approx(float(expected[layer, head]), rel=1e-5)
    # the tests on exchanged and permuted tokens run
    assert result.select(theory="turing", at={"test": "permuted tokens"}).one().value is not None


def test_labels_of_lines(folders, tmp_path, unchecked, monkeypatch):
    few_copies(monkeypatch)
    options = ("--labels", folders / "words.txt", "--theories", "turing", "--out", tmp_path / "out")
    assert measure(folders / "bert", "--text", folders / "lines.txt", *options) == 0
    result = Result.load(tmp_path / "out")
    network = bert()
    right = 0
    for sentence, label in zip(SENTENCES, [1, 0, 0, 1, 1, 0]):  # as the configuration numbers them
        with torch.no_grad():
            logits = network(torch.tensor([[CLS, *ids_of(sentence), SEP]])).logits
        right += int(logits.argmax()) == label
    assert 0 < right < 6
    assert result.settings["right"] == pytest.approx(right / 6)
    assert result.settings["labels"] == 2
    assert result.settings["inputs"] == "6 sequences of 6 to 11 ids of lines.txt, one line each"


def test_labels_before_a_tab(folders, tmp_path, measured):
    rows = zip([2, 0, -100, 1, 1, 2], SENTENCES)
    (tmp_path / "rows.tsv").write_text("".join(f"{label}\t{text}\n" for label, text in rows))
    assert measure(folders / "bert", "--text", tmp_path / "rows.tsv", "--length", "8") == 2
    assert measured["labels"].tolist() == [2, 0, -1, 1, 1, 2]
    assert measured["settings"]["inputs"].endswith("ids of rows.tsv, one line each, 3 of them cut")
    ids, mask = (measured["data"][name][3] for name in ("input_ids", "attention_mask"))
    assert words_of(ids, mask) == [CLS, *ids_of(SENTENCES[3])[:6], SEP]
    assert measure(folders / "bert", "--text", tmp_path / "rows.tsv", "--sequences", "3") == 2
    chosen = [
        SENTENCES.index(text)
        for text in SENTENCES
        for row, real in zip(measured["data"]["input_ids"], measured["data"]["attention_mask"])
        if words_of(row, real) == [CLS, *ids_of(text), SEP]
    ]
    assert measured["labels"].tolist() == [[2, 0, -1, 1, 1, 2][row] for row in chosen]
    assert len(chosen) == 3


def test_labels_of_ids_and_of_functions(folders, tmp_path, measured, monkeypatch):
    ids = np.arange(5 * 6).reshape(5, 6) % len(IDS)
    np.save(tmp_path / "ids.npy", ids)
    (tmp_path / "labels.txt").write_text("0\n1\n2\n1\n0\n")
    given = ("--labels", tmp_path / "labels.txt")
    assert measure(folders / "gpt2", "--text", tmp_path / "ids.npy", "--sequences", "4", *given) == 2
    rows = [ids.tolist().index(row.tolist()) for row in measured["data"]]
    assert len(rows) == 4
    assert measured["labels"].tolist() == [[0, 1, 2, 1, 0][row] for row in rows]
    (tmp_path / "net.py").write_text(
        "import torch\nfrom torch import nn\n\n"
        "def net():\n"
        "    layer = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)\n"
        "    return nn.TransformerEncoder(layer, 1, enable_nested_tensor=False), torch.randn(5, 4, 8)\n\n"
        "def labelled(): return (*net(), torch.arange(5))\n"
    )
    monkeypatch.chdir(tmp_path)
    assert measure("net.py:net", *given) == 2
    assert measured["labels"].tolist() == [0, 1, 2, 1, 0]


def test_labels_of_images_in_a_folder_without_classes(tmp_path, measured):
    from PIL import Image
    from transformers import ViTConfig, ViTForImageClassification

    sizes: dict[str, Any] = {
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 8,
    }
    ViTForImageClassification(ViTConfig(**sizes, image_size=16, patch_size=8)).save_pretrained(
        tmp_path / "vit"
    )
    (tmp_path / "images").mkdir()
    for number in range(5):  # names in another order than their grey values
        path = tmp_path / "images" / f"{(3 * number) % 5}.png"
        Image.fromarray(np.full((16, 16), 10 * number, dtype=np.uint8)).save(path)
    labels = tmp_path / "labels.txt"
    labels.write_text("owl\nbat\nowl\nbat\nfox\n")  # of 0.png, 1.png, ...
    options = ("--data", tmp_path / "images", "--labels", labels)
    assert measure(tmp_path / "vit", *options) == 2
    greys = (measured["data"][:, 0, 0, 0] * 255 / 10).round().int().tolist()
    assert sorted(greys) == list(range(5))
    classes = [[2, 0, 2, 0, 1][(3 * grey) % 5] for grey in greys]
    assert measured["labels"].tolist() == classes


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "bert --labels words.txt",
            "--labels applies to a text or to images; name them with --text or --data",
        ),
        ("bert --text text.txt --labels words.txt", "label for each of the 2 lines of text.txt, got 6"),
        ("bert --text lines.txt --labels none.txt", "none.txt does not exist; expected one label per line"),
        ("bert --text wrong.tsv", "a label, a tab and a text, got 'no tab' in line 2"),
        ("bert --text right.tsv --labels words.txt", "has labels in its lines, got words.txt as well"),
        ("bert --text empty.txt", "empty.txt must hold text, got none"),
        (
            "bert --text text.txt --length 2",
            "--length must be 3 to 20, special ids included, as bert takes, got 2",
        ),
        ("bert --text text.txt --length 21", "--length must be 3 to 20"),
        ("plain --text text.txt", "plain must hold a tokenizer to read a text, got none"),
        ("vit.py:vit --data digits --labels words.txt", "got digits, whose images have classes of their own"),
        ("vit.py:own --labels words.txt", "vit.py:own returns its own labels, got --labels as well"),
        (
            "vit.py:few --labels words.txt",
            "words.txt: labels must be one integer for each of the 3 sequences",
        ),
    ],
)
def test_a_mistake_is_answered_in_one_line(folders, words, message, capsys, monkeypatch):
    monkeypatch.chdir(folders)
    Path("wrong.tsv").write_text("0\ta cat\nno tab\n")
    Path("right.tsv").write_text("0\ta cat\n1\ta dog\n")
    Path("empty.txt").write_text(" \n\n")
    if not Path("plain").exists():
        bert().save_pretrained("plain")
    Path("vit.py").write_text(
        "import torch\nfrom torch import nn\n\n"
        "def vit(): return nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 8, batch_first=True), 1)\n"
        "def few(): return vit(), torch.randn(3, 4, 8)\n"
        "def own(): return vit(), torch.randn(3, 4, 8), torch.arange(3)\n"
    )
    assert measure(*words.split()) == 2
    assert message in answer(capsys)


def test_ids_of_another_tokenizer_are_refused(folders, capsys, tmp_path):
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_embd": 8, "n_layer": 1, "n_head": 2, "vocab_size": 8, "n_positions": 24}
    GPT2LMHeadModel(GPT2Config(**sizes)).save_pretrained(tmp_path / "small")
    tokenizer("<s> $A", bos_token="<s>", eos_token="<s>").save_pretrained(tmp_path / "small")
    assert measure(tmp_path / "small", "--text", folders / "text.txt") == 2
    assert "ids must lie in [0, 8), the vocabulary of small" in answer(capsys)


def test_tokens_at_one_place_of_all_sequences_have_names(folders):
    """Every window begins with [CLS] and ends with [SEP]; without the tokens their ids are named."""
    found = read_sequences(folders / "text.txt", model_of(folders / "bert"), length=13, sequences=8)
    network = model_of(folders / "bert").network
    run = {"theories": ["scan_snap"], "networks": 0, "minutes": 1}
    named = user_models.measure(network, found.inputs, special_ids=found.special_ids, **run)
    assert named.settings["same_tokens"] == {"0": "[CLS]", "-1": "[SEP]"}
    numbered = user_models.measure(network, found.inputs, special_ids=[CLS, SEP], **run)
    assert numbered.settings["same_tokens"] == {"0": f"id {CLS}", "-1": f"id {SEP}"}
    # the last token of a cut sequence is not the last one of the sequence unless it is special
    unknown = user_models.measure(network, found.inputs["input_ids"][:, 1:5], special_ids=[], **run)
    assert unknown.settings["same_tokens"] == {}

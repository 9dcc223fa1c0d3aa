"""Two networks of a user on the same inputs: the command on two checkpoints, what people read, networks that
do not fit together, and a measurement that was interrupted.
"""

import copy
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from tests.problems.copies import few_copies
from tests.test_probe_command import VOCABULARY, fails, gpt2
from transformer_theory import report
from transformer_theory.cli import main
from transformer_theory.comparison.changes import changes
from transformer_theory.comparison.pooling import aggregate
from transformer_theory.comparison.user_models import measure
from transformer_theory.core.judgement import DIFFERENCES
from transformer_theory.core.result import Result
from transformer_theory.models import ViT, build
from transformer_theory.models.user_model import UserModel
from transformer_theory.report.md import markdown
from transformer_theory.theories import choose

THEORIES = ["scan_snap", "collapse", "joma", "router"]
LENGTH, SEQUENCES = 12, 16


@pytest.fixture(autouse=True)
def one_copy(monkeypatch, unchecked):
    few_copies(monkeypatch)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory) -> Path:
    """A small GPT-2 before and after eight steps on repeated ids, and ids to measure both on."""
    path = tmp_path_factory.mktemp("checkpoints")
    model = gpt2()
    model.save_pretrained(path / "before")
    ids = torch.randint(1, VOCABULARY, (SEQUENCES, LENGTH // 2), generator=torch.Generator().manual_seed(0))
    ids = torch.cat([ids, ids], 1)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-2)
    for _ in range(8):
        logits = model(ids).logits[:, :-1]
        functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()).backward()
        optimiser.step()
        optimiser.zero_grad()
    model.eval().save_pretrained(path / "after")
    np.save(path / "ids.npy", ids.numpy())
    return path


def command(path: Path, *more: str | Path) -> list[str]:
    first = ["measure", path / "after", "--text", path / "ids.npy", "--sequences", SEQUENCES]
    return [*map(str, [*first, "--networks", 0, "--theories", ",".join(THEORIES), *more])]


def vit(seed: int = 0, **changed: int) -> ViT:
    sizes = {"image_size": 8, "patch_size": 4, "num_classes": 3, "dim": 8, "depth": 2, "heads": 2} | changed
    return build(lambda: ViT.for_images(**sizes), torch.Generator().manual_seed(seed)).eval()


def images(n: int = 16) -> torch.Tensor:
    return torch.randn(n, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def plain(text: str) -> str:
    return " ".join(text.replace("\u00a0", " ").split())


def test_two_checkpoints_from_the_command_line(checkpoints, tmp_path, capsys):
    out = tmp_path / "result"
    assert main(command(checkpoints, "--against", checkpoints / "before", "--out", out)) == 0
    printed = plain(capsys.readouterr().out)
    result = Result.load(out)
    assert result.settings["against"] == "before"
    found = changes(result, choose(THEORIES))
    assert found is not None
    assert [each.theory.name for each in found.all] == [
        theory.name for theory in choose(THEORIES) if theory.name in THEORIES
    ]
    sharp = next(each for each in found.all if each.theory.name == "scan_snap")
    assert sharp.judged.outcome == "differs"
    # both values are those of each network alone
    for name, value in (("after", sharp.value), ("before", sharp.other)):
        alone = main(
            [
                *command(checkpoints)[:1],
                str(checkpoints / name),
                *command(checkpoints)[2:],
                "--out",
                str(tmp_path / name),
            ]
        )
        assert alone == 0
        rows = Result.load(tmp_path / name).table.select(theory="scan_snap", quantity="sharpness")
        assert value == pytest.approx(np.mean([row.value for row in rows if row.head is not None]), rel=1e-5)
    page = (out / "report.html").read_text()
    for text in (printed, plain(page)):
        assert "Changed against before" in text
        assert "sharpness differs: " in text
        assert "training raised" not in text
    assert "beside before on the same inputs · seed 0" in plain(page)
    assert "training" not in plain(page).partition('<section id="changes">')[2].partition("</section>")[0]
    for text in (report.latex(result), markdown(aggregate(result))):
        assert "Changed against before" in text
        assert "differs" in text
    # the differences are in no other table, and the page without a second network has no section
    assert "against" not in {name for row in aggregate(result).entries for name in row.row.at}
    assert "Changed against" not in (tmp_path / "before" / "report.html").read_text()


def test_a_network_against_itself_finds_nothing(checkpoints, tmp_path, capsys):
    assert main(command(checkpoints, "--against", checkpoints / "after", "--out", tmp_path / "same")) == 0
    assert "No headline differs by an effect that is worth a sentence." in plain(capsys.readouterr().out)
    result = Result.load(tmp_path / "same")
    assert result.settings["against"] == "the other after"
    found = changes(result, choose(THEORIES))
    outcomes = {each.judged.outcome for each in found.all}
    assert outcomes == {"no difference", "not measured"}  # there are no labels for the router
    assert not any(each.differing for each in found.all)
    page = plain((tmp_path / "same" / "report.html").read_text())
    section = page.partition('<section id="changes">')[2].partition("</section>")[0]
    assert "No difference" in section
    assert DIFFERENCES["no difference"] in section
    assert "differs:" not in section


def test_small_differences_have_no_sentence():
    """A change of the queries by a tenth of a per cent is the same on all inputs, so it is significant; its
    effect is below that of a sentence.
    """
    first = vit()
    second = copy.deepcopy(first)
    with torch.no_grad():
        for name, weight in second.named_parameters():
            if "qkv" in name or "query" in name or "q." in name:
                weight.mul_(1.001)
    result = measure(first, images(), against=second, networks=0, theories=["scan_snap"])
    (sharp,) = changes(result, choose(["scan_snap"])).all
    assert sharp.judged.outcome == "differs"
    assert 0 < abs(sharp.effect) < 0.05
    assert not sharp.is_large
    text = plain(report.page(result))
    assert "Differs, by a small effect:" in text
    assert "sharpness differs:" not in text


def test_other_depths_are_said(capsys):
    result = measure(vit(), images(), against=vit(1, depth=3), networks=0, theories=["scan_snap", "joma"])
    text = plain(report.page(result))
    line = "ViT has 2 layers of 2 heads, the other ViT has 3 layers of 2 heads: layers and heads are left out"
    assert line in text
    found = changes(result, choose(["scan_snap", "joma"]))
    assert all(each.value is not None and not each.places for each in found.all)


def test_an_interrupted_comparison_goes_on(tmp_path):
    other, journal = UserModel(vit(1), "other"), tmp_path / "kept.jsonl"
    options = {"theories": ["scan_snap", "collapse"], "against": other}
    whole = measure(vit(), images(), **options)

    def stop(line: str) -> None:
        if line == "groups of inputs: other":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure(vit(), images(), journal=journal, progress=stop, **options)
    with pytest.raises(ValueError, match="unfinished measurement with other against; remove it"):
        measure(vit(), images(), journal=journal, theories=["scan_snap", "collapse"])
    pieces = [json.loads(line)["piece"] for line in journal.read_text().splitlines()[1:]]
    assert ["paired", "1"] in pieces
    lines: list[str] = []
    again = measure(vit(), images(), journal=journal, progress=lines.append, **options)
    assert again.table == whole.table
    assert any("against" in row.at and row.value for row in whole.table)


def test_the_plan_holds_the_second_network():
    """Both networks are planned with their groups, and the second one takes more time if it is larger."""
    from transformer_theory.probes.cost import Cost, Part, Work, plan

    seconds = Cost(
        *(Work(Part(0.0, 1.0)), Work(Part(0.5, 2.0)), Work(Part(0.25, 0.125))),
        *(Work(Part(0.5, 2.0)), Work(Part(0.25, 0.125))),
        kept=Part(0.0, 1000.0),
    )
    options = {"sequences": 16, "copies": 0, "memory": 2**30, "minutes": 60}
    alone, both = (plan(seconds, paired=paired, **options) for paired in (0.0, 3.0))
    # eight passes over two sequences; the rows of all 16, and eight times those of 14
    groups = 8 * (0.5 + 2 * 2.0) + (0.25 + 16 * 0.125) + 8 * (0.25 + 14 * 0.125)
    assert both.seconds - alone.seconds == pytest.approx((1 + 3) * groups)


def test_other_networks_that_do_not_fit_are_refused(checkpoints, tmp_path, capsys):
    gpt2(vocab_size=VOCABULARY + 3).save_pretrained(tmp_path / "wider")
    line = fails(capsys, *command(checkpoints, "--against", tmp_path / "wider")[1:])
    assert "wider must have the vocabulary of after, 40 ids, got 43; the same ids are other words" in line
    gpt2(n_positions=8).save_pretrained(tmp_path / "shorter")
    line = fails(capsys, *command(checkpoints, "--against", tmp_path / "shorter")[1:])
    assert "shorter must run on the inputs of after, [1, 12], but raised" in line
    line = fails(capsys, *command(checkpoints, "--against", tmp_path / "none")[1:])
    assert "--against must be a folder of transformers" in line
    assert "which does not exist" in line


def test_other_networks_of_python_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"against must be a torch\.nn\.Module, got str"):
        measure(vit(), images(), against="vit")
    other = UserModel(vit(1), "other", images(4))
    with pytest.raises(
        ValueError, match="other must be measured on the inputs of ViT, but returns other inputs"
    ):
        measure(vit(), images(), against=other)
    broken = vit(1)
    with torch.no_grad():
        next(broken.parameters()).fill_(torch.nan)
    with pytest.raises(ValueError, match="the other ViT must have finite weights, got NaN"):
        measure(vit(), images(), against=broken)
    with pytest.raises(ValueError, match=r"the other ViT must run on the inputs of ViT, \[1, 3, 8, 8\], but"):
        measure(vit(), images(), against=vit(1, image_size=12))


def test_equal_inputs_of_both_functions_are_used(tmp_path, capsys):
    (tmp_path / "nets.py").write_text(
        "import torch\n"
        "from tests.test_against import images, vit\n"
        "def first(): return vit(0), images(8)\n"
        "def second(): return vit(1), images(8)\n"
        "def third(): return vit(1), images(9)\n"
    )
    first, *others = (f"{tmp_path / 'nets.py'}:{name}" for name in ("first", "second", "third"))
    argv = [first, "--networks", "0", "--theories", "scan_snap", "--against"]
    assert main(["measure", *argv, others[0]]) == 0
    assert "Changed against second" in plain(capsys.readouterr().out)
    assert "third must be measured on the inputs of first" in fails(capsys, *argv, others[1])


def test_words_and_normalisation_of_the_folders_must_agree(tmp_path):
    from transformer_theory.comparison.checks import checked_other

    def folder(name: str, words: dict[str, int], mean: float) -> Path:
        path = tmp_path / name
        path.mkdir()
        (path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": words}}))
        (path / "preprocessor_config.json").write_text(json.dumps({"image_mean": [mean], "image_std": [1.0]}))
        return path

    ids, model = torch.ones(2, 5, dtype=torch.long), gpt2()
    user = UserModel(model, "one", folder=folder("one", {"a": 0, "b": 1}, 0.5))
    for name, words, mean, said in (
        ("two", {"a": 1, "b": 0}, 0.5, r"the words of their tokenizer\.json differ"),
        ("three", {"a": 0, "b": 1}, 0.4, r"three must have the image_mean of one, \[0\.5\], got \[0\.4\]"),
    ):
        with pytest.raises(ValueError, match=said):
            checked_other(user, UserModel(model, name, folder=folder(name, words, mean)), ids)
    same = UserModel(model, "one", folder=folder("run", {"a": 0, "b": 1}, 0.5))
    assert checked_other(user, same, ids).name == "the other one"
    inner = tmp_path / "later"
    inner.mkdir()
    nested = UserModel(model, "one", folder=inner / "one")
    assert checked_other(user, nested, ids).name == "later/one"

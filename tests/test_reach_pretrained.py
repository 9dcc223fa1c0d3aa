"""Networks that others trained as rungs of a reach."""

import json
from dataclasses import replace
from pathlib import Path

import huggingface_hub
import jaxtyping
import pytest

import transformer_theory as tt
from tests.problems.copies import few_copies
from tests.problems.hub_cache import put, tiny_bert, tiny_vit
from transformer_theory.cli import main
from transformer_theory.comparison import reach as module
from transformer_theory.comparison.cells import CELLS
from transformer_theory.comparison.judged import rung_results
from transformer_theory.comparison.pooling import aggregate
from transformer_theory.comparison.reach import reach
from transformer_theory.comparison.user_images import with_images
from transformer_theory.comparison.user_models import measure
from transformer_theory.core.ladder import COLUMNS, CONSTRUCTION_COLUMNS, PRETRAINED_COLUMN, Rung
from transformer_theory.core.result import Result
from transformer_theory.core.statistics import EQUAL_SCALE, fixed_generator
from transformer_theory.data import image_sets
from transformer_theory.models.copies import Copies
from transformer_theory.models.user_model import UserModel
from transformer_theory.report.judged_figures import reach_map
from transformer_theory.report.sentences import reach_statements
from transformer_theory.theories import theory

COPIES, IMAGES = 3, 32
RUNG = "pretrained tiny-vit"


def short(name: str, column: str = COLUMNS[0]):
    """A theory whose ladder has one cheap rung, with a value of 1."""
    record = theory(name)
    own = Rung("own", "", lambda generator: [record.ladder.row(1.0)], column, covered=True)
    return replace(record, ladder=replace(record.ladder, rungs=(own,)))


# the quantity of the ladder, another one, a construction, and a theory without quantities in networks
THEORIES = [
    short("bottleneck"),
    short("scan_snap"),
    short("turing", CONSTRUCTION_COLUMNS[0]),
    short("random_features"),
]


@pytest.fixture(autouse=True)
def in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    few_copies(monkeypatch, COPIES)
    monkeypatch.setattr(module, "MAX_IMAGES", IMAGES)
    tiny_vit(side=16, classes=10).save_pretrained(tmp_path / "files")
    put(tmp_path / "hub", "some/tiny-vit", tmp_path / "files")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # other tests check shapes
    monkeypatch.chdir(tmp_path)


def test_a_network_is_the_last_rung_of_every_theory_and_its_cells_are_stored(monkeypatch):
    run = {"seeds": 1, "images": "digits", "models": ["some/tiny-vit"], "folder": "reach"}
    result = reach(THEORIES, **run)
    test = image_sets.images("digits")[1].mixed(fixed_generator())[:IMAGES]
    user, shown, _ = with_images(UserModel(tiny_vit(side=16, classes=10), "tiny-vit"), test, max_samples=128)
    alone = measure(user, theories=["bottleneck", "scan_snap", "turing"], images=shown)
    for name in ("bottleneck", "scan_snap", "turing"):
        headline = theory(name).in_networks.headline
        row = result.select(theory=name, rung=RUNG).one()
        assert (row.kind, row.quantity, row.model, row.data) == ("rung", headline, "tiny-vit", "digits")
        (whole,) = (
            each
            for each in alone.select(theory=name, quantity=headline)
            if each.layer is None and not each.at
        )
        assert row.value == whole.value
        assert [(null.kind, null.draws) for null in row.nulls] == [
            (null.kind, null.draws) for null in whole.nulls
        ]
        assert (row.nulls[0].kind, len(row.nulls[0].draws)) == (EQUAL_SCALE, COPIES)
        assert row.side == theory(name).in_networks.side
    empty = result.select(theory="random_features", rung=RUNG).one()
    assert (empty.value, empty.reason) == (None, "the theory has no quantity in networks of others")
    # the ladder's own quantity is relative to the first rung
    assert result.select(theory="bottleneck", rung=RUNG).one().predicted == 1.0
    assert result.select(theory="scan_snap", rung=RUNG).one().predicted is None
    assert [path.name for path in Path("reach").iterdir()] == [CELLS]  # no unfinished parts
    lines = [json.loads(line) for line in Path("reach", CELLS).read_text().splitlines()][1:]
    stored = [line for line in lines if line["cell"][1] == RUNG]
    assert [line["cell"] for line in stored] == [[each.name, RUNG, 0] for each in THEORIES]
    number = sum(parameter.numel() for parameter in user.network.parameters())
    assert {line["data"][RUNG] for line in stored} == {f"{number:,} parameters"}

    def refused(*args, **kwargs):
        raise AssertionError("measured again")

    monkeypatch.setattr(module, "measured", refused)
    again = reach(THEORIES, **run)
    assert list(again.table) == list(result.table)
    # without the model its cells stay in the folder and are not shown
    assert not reach(THEORIES, **(run | {"models": []})).select(rung=RUNG)


def test_only_missing_theories_are_measured_and_other_weights_are_refused(monkeypatch):
    run = {"seeds": 1, "images": "digits", "models": ["some/tiny-vit"], "folder": "reach"}
    reach(THEORIES[:1], **run)
    asked: list[list[str]] = []
    measured = module.measured

    def recorded(network, theories, **options):
        asked.append([each.name for each in theories])
        return measured(network, theories, **options)

    monkeypatch.setattr(module, "measured", recorded)
    reach(THEORIES[:2], **run)
    assert asked == [["scan_snap"]]
    other = tiny_vit(5, side=16, classes=10)
    with pytest.raises(ValueError, match=r"holds cells of other pretrained tiny-vit .* choose another --out"):
        reach(THEORIES[:2], **(run | {"models": [UserModel(other, "tiny-vit")]}))


def test_an_interrupted_measurement_goes_on(monkeypatch):
    """The first run stops before its fourth copy; the second one draws only those that are missing."""
    planned = 8
    few_copies(monkeypatch, planned)
    drawn: list[int] = []
    draw = Copies.draw

    def counted(copies: Copies, kind: str, seed: int):
        drawn.append(seed) if kind == EQUAL_SCALE else None
        return draw(copies, kind, seed)

    monkeypatch.setattr(Copies, "draw", counted)
    run = {"seeds": 1, "images": "digits", "models": ["some/tiny-vit"], "folder": "reach"}

    def stop(line: str) -> None:
        if f"equal scale, copy 4 of {planned}" in line:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match=r"1 of 2 cells are stored in reach"):
        reach(THEORIES[:1], progress=stop, **run)
    assert list(Path("reach").glob("pretrained-tiny-vit-*.unfinished.jsonl"))
    first = len(drawn)
    reach(THEORIES[:1], **run)
    # the first run draws one more to see how long it takes, and three
    assert (first, len(drawn) - first) == (4, planned - 3)
    assert not list(Path("reach").glob("*.unfinished.jsonl"))


def test_the_map_and_the_sentences_name_the_rung(monkeypatch):
    few_copies(monkeypatch, 19)  # for p-values
    result = reach(THEORIES, seeds=1, images="digits", models=["some/tiny-vit"])
    found = {
        (rung.theory.name, rung.name): rung for rung in rung_results(aggregate(result, theories=THEORIES))
    }
    columns = {found[name, RUNG].column for name in ("bottleneck", "scan_snap", "turing")}
    assert columns == {PRETRAINED_COLUMN}
    assert found["scan_snap", RUNG].quantity == "sharpness"
    assert found["bottleneck", RUNG].quantity == ""
    assert found["random_features", RUNG].judged.outcome == "not measured"
    assert found["scan_snap", RUNG].number == tt.core.format.of_row(
        found["scan_snap", RUNG].judged.row.value, found["scan_snap", RUNG].judged.row
    )
    figure = reach_map(list(found.values()))
    drawn = {text.get_text() for text in figure.axes[0].texts}
    assert {"tiny-vit", found["scan_snap", RUNG].number} <= {text.lstrip("≈~≠✗? ") for text in drawn}
    assert RUNG not in drawn
    texts = dict(reach_statements(list(found.values())))
    assert (
        f"the sharpness is {found['scan_snap', RUNG].judged.words} at “{RUNG}”"
        in texts[theory("scan_snap").title]
    )


def test_the_command_writes_a_page(tmp_path: Path):
    words = ["universal", "--until", CONSTRUCTION_COLUMNS[0], "--seeds", "1", "--workers", "1"]
    assert main(["reach", *words, "--data", "digits", "--model", "some/tiny-vit", "--out", "out"]) == 0
    row = Result.load("out").select(rung=RUNG).one()
    assert row.quantity == theory("universal").in_networks.headline
    assert row.value is not None
    assert RUNG in Path("out/report.html").read_text(encoding="utf-8")
    assert RUNG in Path("out/table.tex").read_text(encoding="utf-8")
    assert len(Path("out/reach.svg").read_text(encoding="utf-8")) > 1000


WRONG = {
    "--model some/tiny-vit": "tiny-vit takes images, got none; name the images, e.g. --data cifar10",
    "--model bert --data digits": "bert takes ids of a text, got none; name a text, e.g. --data FILE.txt",
    "--model some/nothing --data digits": "got 'some/nothing', which does not exist and is not in the cache",
    "--model net.py:layers --data digits": "layers must run on inputs [1, 1, 8, 8], but raised",
    "--data digits --minutes 2": "--minutes applies to networks of --model",
}


@pytest.mark.parametrize(("words", "message"), WRONG.items(), ids=WRONG)
def test_what_cannot_be_measured_is_said_in_one_line(words: str, message: str, capsys):
    tiny_bert().save_pretrained("bert")
    Path("net.py").write_text("from torch import nn\ndef layers(): return nn.TransformerEncoderLayer(8, 2)\n")
    assert main(["reach", "universal", *words.split(), "--seeds", "1", "--out", "none"]) == 2
    assert message in capsys.readouterr().err.strip().splitlines()[-1]
    assert not Path("none").exists()

"""``report``: what it writes from stored results, and that it writes all or nothing."""

import json
import os
import re
import shutil

import pytest

from tests.stand_in import SOURCE, install
from transformer_theory import report
from transformer_theory.cli import main
from transformer_theory.core.measurement import Measurement
from transformer_theory.core.result import FILES, Result
from transformer_theory.core.table import Table
from transformer_theory.report import figures

EVIL = r"\input{/etc/passwd} <b>50% _&_ #1 $\write18{x}$ ^~ | `x` 数"
VALUES = (0.25, 0.75)  # of the two seeds


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Comparisons of two seeds, a verification and an experiment, below one folder."""
    folder = tmp_path_factory.mktemp("stored") / "runs"
    with pytest.MonkeyPatch.context() as patch:
        install(patch)
        for seed, value in enumerate(VALUES):
            row = Measurement(
                "stand_in",
                "on data",
                "largest token",
                value,
                verdict="consistent",
                source=SOURCE,
                data=EVIL,
                seed=seed,
            )
            settings = {"data": EVIL, "theories": ["stand_in"], "seeds": [seed]}
            Result("compare", settings, Table([row])).save(folder / f"seed{seed}")
        assert main(["verify", "stand_in/good", "--seeds", "2", "--out", str(folder / "checked")]) == 0
        assert main(["run", "stand_in.coin", "--quick", "--out", str(folder / "coin")]) == 0
    return folder


@pytest.fixture
def stored(results, tmp_path, monkeypatch):
    """A copy of the results, and the stand-in in place of the theories."""
    install(monkeypatch)
    return shutil.copytree(results, tmp_path / "runs")


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def written(*arguments):
    assert main(["report", *map(str, arguments)]) == 0


def refused(capsys, *arguments):
    """The error line of a report that is refused."""
    capsys.readouterr()
    assert main(["report", *map(str, arguments)]) == 2
    return capsys.readouterr().err.splitlines()[-1].removeprefix("transformer-theory: ")


def test_all_outputs_of_all_results(stored, tmp_path, capsys):
    out = tmp_path / "out"
    paths = {
        "html": out / "a.html",
        "latex": out / "tables",
        "markdown": out / "n.md",
        "bibtex": out / "r.bib",
    }
    written(stored, *(word for name, path in paths.items() for word in (f"--{name}", path)))
    tables = {
        *("table-column.tex", "table-page.tex", "sentences.tex", "example.tex"),
        *("macros.tex", "macros.html", "references.bib"),
    }
    # the stand-in has no null, and so no effect to draw
    assert {"a.html", "n.md", "r.bib", *(f"tables/{name}" for name in tables)} == set(files(out))
    assert capsys.readouterr().out.splitlines()[-4:] == [f"{name}: {path}" for name, path in paths.items()]
    macros = (out / "tables" / "macros.tex").read_text()
    assert "\\newcommand{\\TTstandinRawTokens}" in macros
    assert f"{{{sum(VALUES) / 2:.3f}}}" in macros
    assert "\\newcommand{\\TTstandinClaimsConsistent}{1}" in macros
    written(stored, "--latex", out / "whole", "--appendix")
    data = "input-etc-passwd-b-50-1-write18-x-x"
    more = ("stand-in-coin", f"{data}-findings", f"{data}-r3-stand-in-raw", f"{data}-r4-stand-in-raw")
    drawn = {f"figures/{name}.{ending}" for name in more for ending in ("pdf", "svg")}
    tables |= {"appendix.tex", "headlines.tex", "provenance.tex", "stand_in.tex"}
    assert set(files(out / "whole")) == tables | drawn
    texts = "".join((out / "whole" / name).read_text() for name in tables if name.endswith(".tex"))
    assert re.sub("%.*", "", texts).isascii()  # commands in comments keep their letters
    assert r"\textbackslash{}input\{/etc/passwd\} \textless{}b\textgreater{}50\% \_\&\_ \#1" in texts
    # commands and markup of the name, outside comments
    assert not re.search(r"\\(input\{/|write)|<b>", re.sub("%.*", "", texts))
    assert "<b>" not in paths["html"].read_text()
    assert "<b>" not in paths["markdown"].read_text()
    assert "@misc{transformertheory" in paths["bibtex"].read_text()
    assert f"@inproceedings{{{SOURCE.key}" in paths["bibtex"].read_text()


def test_an_appendix_needs_a_folder(stored, tmp_path, capsys):
    error = refused(capsys, stored, "--markdown", tmp_path / "n.md", "--appendix")
    assert error == "--appendix needs --latex DIR, got none; add it"


def test_one_result_gets_its_page_or_figure_again(stored, tmp_path, capsys, monkeypatch):
    before = (stored / "coin" / "figure.svg").read_bytes()
    (stored / "coin" / "figure.svg").unlink()
    written(stored / "coin")
    assert (stored / "coin" / "figure.svg").read_bytes() == before
    monkeypatch.setattr(report, "write", lambda result, folder: folder / "report.html")
    for name in ("seed0", "checked"):
        written(stored / name)
        assert capsys.readouterr().out.endswith(f"report: {stored / name / 'report.html'}\n")
    error = refused(capsys, stored)
    assert error.startswith("4 results")
    assert "--html, --latex, --markdown, --bibtex, --figures" in error
    assert refused(capsys, stored / "seed0", stored / "seed1").startswith("2 results")
    (tmp_path / "one").mkdir()
    shutil.move(stored / "coin", tmp_path / "one" / "coin")
    assert refused(capsys, tmp_path / "one").startswith(str(tmp_path / "one" / "coin"))


def test_a_folder_named_twice_counts_once(stored, tmp_path):
    for name, folders in (
        ("once", [stored]),
        ("twice", [stored / "coin" / ".." / "seed0", stored, stored / "seed0"]),
    ):
        written(*folders, "--bibtex", tmp_path / f"{name}.bib", "--markdown", tmp_path / f"{name}.md")
    assert (
        (tmp_path / "twice.md").read_text().count("**R")
        == (tmp_path / "once.md").read_text().count("**R")
        == 4
    )


def test_existing_files_are_not_overwritten(stored, tmp_path, capsys):
    (tmp_path / "n.md").write_text("mine")
    arguments = [stored / "coin", "--bibtex", tmp_path / "r.bib", "--markdown", tmp_path / "n.md"]
    error = refused(capsys, *arguments)
    assert error.startswith(f"{tmp_path / 'n.md'} exists")
    assert "--overwrite" in error
    assert files(tmp_path) == sorted(["n.md", *(f"runs/{name}" for name in files(stored))])
    written(*arguments, "--overwrite")
    assert (tmp_path / "n.md").read_text() != "mine"


@pytest.mark.parametrize("name", FILES)
def test_measured_numbers_are_never_replaced(stored, capsys, name):
    before = (stored / "coin" / name).read_bytes()
    assert str(stored / "coin" / name) in refused(
        capsys, stored, "--bibtex", stored / "coin" / name, "--overwrite"
    )
    assert (stored / "coin" / name).read_bytes() == before


def test_paths_of_the_wrong_kind(stored, tmp_path, capsys):
    (tmp_path / "n.md").write_text("mine")
    x, y = tmp_path / "x", tmp_path / "y" / ".." / "x"
    assert str(x) in refused(capsys, stored, "--bibtex", x, "--markdown", y)
    assert "--bibtex must name a file" in refused(capsys, stored, "--bibtex", stored)
    assert "--latex must name a folder" in refused(capsys, stored, "--latex", tmp_path / "n.md")
    assert not x.exists()


def test_nothing_is_written_if_one_file_cannot_be(stored, tmp_path, capsys):
    (tmp_path / "file").write_text("x")
    before = files(tmp_path)
    arguments = ["--markdown", tmp_path / "new" / "n.md", "--bibtex", tmp_path / "file" / "r.bib"]
    assert str(tmp_path / "file" / "r.bib") in refused(capsys, stored / "coin", *arguments)
    assert files(tmp_path) == before
    assert not (tmp_path / "new").exists()


def test_files_that_cannot_be_written_are_named_before_plotting(stored, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(figures, "_svg_and_pdf", lambda picture: pytest.fail("plotted"))
    x, folder = tmp_path / "x", tmp_path / "t"
    error = refused(capsys, stored, "--html", x, "--latex", x)
    assert f"{x} " in error
    assert f"{x}/table-column.tex" in error
    (folder / "macros.tex").mkdir(parents=True)
    assert f"{folder}/macros.tex" in refused(capsys, stored, "--html", x, "--latex", folder, "--overwrite")
    (folder / "macros.tex").rmdir()
    (folder / "figures").mkdir()
    (folder / "figures" / "page.pdf").write_text("mine")
    assert f"{folder}/figures/page.pdf exists" in refused(capsys, stored, "--html", x, "--latex", folder)
    assert not x.exists()
    assert files(folder) == ["figures/page.pdf"]
    before = files(stored)
    (stored / "seed0" / "report.html").mkdir()
    assert f"{stored}/seed0/report.html" in refused(capsys, stored / "seed0")
    assert files(stored) == before


def test_figures_are_plotted_once(stored, tmp_path, monkeypatch):
    pictures, plot = [], figures._svg_and_pdf
    monkeypatch.setattr(
        figures, "_svg_and_pdf", lambda picture: pictures.append(picture.name) or plot(picture)
    )
    written(stored / "coin", "--figures", tmp_path / "f", "--latex", tmp_path / "t")
    assert files(tmp_path / "f") == ["stand-in-coin.pdf", "stand-in-coin.svg"]
    assert files(tmp_path / "t" / "figures") == ["page.pdf", "page.svg"]
    same = [(tmp_path / name).read_bytes() for name in ("f/stand-in-coin.svg", "t/figures/page.svg")]
    assert same[0] == same[1]
    assert os.path.getsize(tmp_path / "f" / "stand-in-coin.pdf") > 1000
    assert pictures == ["page", "stand-in-coin"]


@pytest.mark.parametrize("missing", FILES)
def test_a_folder_that_lacks_a_file_is_named(stored, tmp_path, capsys, missing):
    (stored / "seed1" / missing).unlink()
    error = refused(capsys, stored, "--bibtex", tmp_path / "r.bib")
    assert error.startswith(str(stored / "seed1"))
    assert f"{missing} is missing" in error
    assert not (tmp_path / "r.bib").exists()


def test_edited_results_and_other_formats_are_refused(stored, tmp_path, capsys):
    table, out = stored / "seed1" / "table.jsonl", tmp_path / "r.bib"
    original = table.read_text()
    table.write_text(original.replace("0.75", "0.99"))
    error = refused(capsys, stored, "--bibtex", out)
    assert str(stored / "seed1") in error
    assert "table.jsonl" in error
    table.write_text(original)
    head = json.loads((stored / "seed1" / "result.json").read_text())
    (stored / "seed1" / "result.json").write_text(json.dumps(head | {"format": 2}))
    assert "format 3, got 2" in refused(capsys, stored, "--bibtex", out)
    assert not out.exists()
    (stored / "seed1" / "result.json").write_text(json.dumps(head))
    written(stored, "--bibtex", out)  # as it was


def test_folders_without_results_are_named(stored, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    assert refused(capsys, stored, tmp_path / "empty", "--bibtex", tmp_path / "r").startswith(
        str(tmp_path / "empty")
    )
    assert str(tmp_path / "nowhere") in refused(capsys, tmp_path / "nowhere", "--bibtex", tmp_path / "r")
    (stored / "notes").mkdir()  # holds no file of a result
    shutil.copytree(stored / "coin", stored / ".hidden")
    written(stored, "--markdown", tmp_path / "n.md")
    assert (tmp_path / "n.md").read_text().count("**R") == 4


def test_an_unfinished_training_is_noted(tmp_path, capsys, monkeypatch):
    install(monkeypatch)
    row = Measurement("network", "network", "loss", 2.0, split="validation", model="vit")
    settings = {"settings": {"network": "vit", "seed": 0}, "data": "tiny", "run_id": "0", "score": "accuracy"}
    Result("train", settings, Table([row]).replace(step=5)).save(tmp_path / "run")
    written(tmp_path / "run", "--markdown", tmp_path / "n.md")
    notes = [
        line.removeprefix("transformer-theory: ")
        for line in capsys.readouterr().err.splitlines()
        if "R1" in line
    ]
    assert notes
    assert all(note in (tmp_path / "n.md").read_text() for note in notes)

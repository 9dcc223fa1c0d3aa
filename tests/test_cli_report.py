"""``report``: what it writes from stored results, and that it writes all or nothing."""

import json
import os
import re
import shutil

import pytest

from tests.stand_in import SOURCE, install
from transformer_theory import report
from transformer_theory.cli import main
from transformer_theory.core.measurement import Row
from transformer_theory.core.result import Result

EVIL = r"\input{/etc/passwd} <b>50% _&_ #1 $\write18{x}$ ^~ | `x` 数"


@pytest.fixture(autouse=True)
def stand_in(monkeypatch):
    """One made-up theory instead of the rooms."""
    install(monkeypatch)


@pytest.fixture
def stored(tmp_path):
    """Comparisons of two seeds, a verification and an experiment, below one folder."""
    for seed, value in enumerate((0.25, 0.75)):
        rows = [Row(theory="stand_in", quantity="largest token", value=value, verdict="consistent", source=str(SOURCE), model="raw")]
        Result("compare", {"data": EVIL, "theories": ["stand_in"], "seed": seed}, rows).save(tmp_path / "runs" / f"seed{seed}")
    assert main(["verify", "stand_in/good", "--seeds", "2", "--out", str(tmp_path / "runs" / "checked")]) == 0
    assert main(["run", "stand_in.coin", "--quick", "--out", str(tmp_path / "runs" / "coin")]) == 0
    return tmp_path / "runs"


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def refused(capsys, *arguments):
    capsys.readouterr()
    assert main(["report", *map(str, arguments)]) == 2
    return capsys.readouterr().err.splitlines()[-1].removeprefix("transformer-theory: ")


def test_all_outputs_of_all_results(stored, tmp_path, capsys):
    out = tmp_path / "out"
    named = ["--latex", out / "tables", "--markdown", out / "n.md", "--bibtex", out / "r.bib", "--html", out / "a.html"]
    assert main(["report", str(stored), *map(str, named)]) == 0
    tables = {"all.tex", "appendix.tex", "example.tex", "macros.tex", "references.bib", "stand_in.tex"}
    assert {"a.html", "n.md", "r.bib", *(f"tables/{name}" for name in tables)} <= set(files(out))
    figures = {name.removeprefix("tables/figures/") for name in files(out) if name.startswith("tables/figures/")}
    data = "input-etc-passwd-b-50-1-write18-x-x"
    drawn = ("stand-in-coin", f"{data}-r3-stand-in-raw", f"{data}-r4-stand-in-raw")
    assert figures == {f"{name}.{ending}" for name in drawn for ending in ("pdf", "svg")}
    told = capsys.readouterr().out.splitlines()[-4:]
    assert told == [
        f"{name}: {out / file}" for name, file in zip(("html", "latex", "markdown", "bibtex"), ("a.html", "tables", "n.md", "r.bib"))
    ]
    macros = (out / "tables" / "macros.tex").read_text()
    assert "LargestToken" in macros
    assert "{0.500}" in macros  # the mean of both seeds
    assert "\\newcommand{\\TTstandinClaimsConsistent}{1}" in macros
    everything = "".join((out / "tables" / name).read_text() for name in tables)
    assert everything.isascii()
    assert r"\textbackslash{}input\{/etc/passwd\} \textless{}b\textgreater{}50\% \_\&\_ \#1" in everything
    assert not re.search(r"\\(input\{/|write)|<b>", re.sub("%.*", "", everything))  # commands and markup of the name, outside comments
    assert "<b>" not in (out / "a.html").read_text()
    assert "<b>" not in (out / "n.md").read_text()
    assert "@misc{transformertheory" in (out / "r.bib").read_text()
    assert "@inproceedings{tian2023scan" in (out / "r.bib").read_text()


def test_one_result_gets_its_page_or_figure_again(stored, tmp_path, capsys, monkeypatch):
    before = (stored / "coin" / "figure.svg").read_bytes()
    (stored / "coin" / "figure.svg").unlink()
    assert main(["report", str(stored / "coin")]) == 0
    assert (stored / "coin" / "figure.svg").read_bytes() == before
    monkeypatch.setattr(report, "write", lambda result, folder: folder / "report.html")
    for name in ("seed0", "checked"):
        assert main(["report", str(stored / name)]) == 0
        assert capsys.readouterr().out.endswith(f"report: {stored / name / 'report.html'}\n")
    assert "add some of --html, --latex, --markdown, --bibtex, --figures" in refused(capsys, stored)
    assert refused(capsys, stored / "seed0", stored / "seed1").startswith("2 results go together")
    (tmp_path / "one").mkdir()
    shutil.move(stored / "coin", tmp_path / "one" / "coin")
    assert "one/coin is the only result here; name it itself" in refused(capsys, tmp_path / "one")


def test_a_folder_named_twice_counts_once(stored, tmp_path):
    for name, folders in (("once", [stored]), ("twice", [stored / "coin" / ".." / "seed0", stored, stored / "seed0"])):
        assert (
            main(["report", *map(str, folders), "--bibtex", str(tmp_path / f"{name}.bib"), "--markdown", str(tmp_path / f"{name}.md")]) == 0
        )
    assert (tmp_path / "twice.md").read_text().count("**R") == (tmp_path / "once.md").read_text().count("**R") == 4


def test_what_exists_is_not_overwritten(stored, tmp_path, capsys):
    (tmp_path / "n.md").write_text("mine")
    arguments = [stored / "coin", "--bibtex", tmp_path / "r.bib", "--markdown", tmp_path / "n.md"]
    assert "n.md exists already; choose another name, or pass --overwrite" in refused(capsys, *arguments)
    assert files(tmp_path) == sorted(["n.md", *(f"runs/{name}" for name in files(stored))])
    assert main(["report", *map(str, arguments), "--overwrite"]) == 0
    assert (tmp_path / "n.md").read_text() != "mine"
    assert "which no report replaces" in refused(capsys, stored, "--bibtex", stored / "coin" / "table.jsonl", "--overwrite")
    assert "got" in refused(capsys, stored, "--bibtex", tmp_path / "x", "--markdown", tmp_path / "y" / ".." / "x")
    assert "must name a file" in refused(capsys, stored, "--bibtex", stored)
    assert "must name a folder" in refused(capsys, stored, "--latex", tmp_path / "n.md")


def test_nothing_is_written_where_one_file_cannot_be(stored, tmp_path, capsys):
    (tmp_path / "file").write_text("x")
    before = files(tmp_path)
    said = refused(capsys, stored / "coin", "--markdown", tmp_path / "new" / "n.md", "--bibtex", tmp_path / "file" / "r.bib")
    assert said.startswith("cannot write to")
    assert "file/r.bib" in said
    assert files(tmp_path) == before
    assert not (tmp_path / "new").exists()


def test_what_cannot_be_written_is_said_before_anything_is_drawn(stored, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("transformer_theory.report.pictures._both", lambda figure: pytest.fail("drawn"))
    x, t = tmp_path / "x", tmp_path / "t"
    assert f"{x} cannot be a file and the folder of {x}/all.tex" in refused(capsys, stored, "--html", x, "--latex", x)
    (t / "all.tex").mkdir(parents=True)
    assert f"{t}/all.tex is a folder where a file should be" in refused(capsys, stored, "--html", x, "--latex", t, "--overwrite")
    (t / "all.tex").rmdir()
    (t / "figures").mkdir()
    (t / "figures" / "stand-in-coin.pdf").write_text("mine")
    assert "stand-in-coin.pdf exists already" in refused(capsys, stored, "--html", x, "--latex", t)
    assert not x.exists()
    assert files(t) == ["figures/stand-in-coin.pdf"]
    kept = files(stored)
    (stored / "seed0" / "report.html").mkdir()
    assert "report.html is a folder where a file should be" in refused(capsys, stored / "seed0")
    assert files(stored) == kept


def test_figures_are_drawn_once(stored, tmp_path, monkeypatch):
    from transformer_theory.report import pictures

    drawn, both = [], pictures._both
    monkeypatch.setattr(pictures, "_both", lambda figure: drawn.append(figure) or both(figure))
    assert main(["report", str(stored / "coin"), "--figures", str(tmp_path / "f"), "--latex", str(tmp_path / "t")]) == 0
    assert files(tmp_path / "f") == files(tmp_path / "t" / "figures") == ["stand-in-coin.pdf", "stand-in-coin.svg"]
    assert len(drawn) == 1


@pytest.mark.parametrize("missing", ["result.json", "table.jsonl", "arrays.npz"])
def test_a_folder_that_lacks_a_file_is_named(stored, tmp_path, capsys, missing):
    (stored / "seed1" / missing).unlink()
    said = refused(capsys, stored, "--bibtex", tmp_path / "r.bib")
    assert said == f"{stored / 'seed1'} must hold result.json, table.jsonl and arrays.npz, {missing} is missing; run it again"
    assert not (tmp_path / "r.bib").exists()


def test_what_was_edited_is_refused_and_what_is_old_is_read(stored, tmp_path, capsys):
    table = stored / "seed1" / "table.jsonl"
    table.write_text(table.read_text().replace("0.75", "0.99"))
    assert "seed1 does not hold a readable result (table.jsonl is not as it was stored" in refused(
        capsys, stored, "--bibtex", tmp_path / "r"
    )
    head = json.loads((stored / "seed1" / "result.json").read_text())
    old = {name: value for name, value in head.items() if name != "sha256"} | {"format": 1}  # which had no checksums
    (stored / "seed1" / "result.json").write_text(json.dumps(old))
    assert main(["report", str(stored), "--markdown", str(tmp_path / "n.md")]) == 0
    assert "0.620" in (tmp_path / "n.md").read_text()


def test_folders_without_results_are_named(stored, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    assert refused(capsys, stored, tmp_path / "empty", "--bibtex", tmp_path / "r").startswith(
        f"{tmp_path / 'empty'} is no stored result and holds none"
    )
    (stored / "notes").mkdir()  # no result, and nothing of one, so it is left alone
    shutil.copytree(stored / "coin", stored / ".hidden")
    assert main(["report", str(stored), "--markdown", str(tmp_path / "n.md")]) == 0
    assert (tmp_path / "n.md").read_text().count("**R") == 4


def test_a_training_that_is_not_at_its_end_is_told(tmp_path, capsys):
    rows = [Row(theory="network", quantity="loss", value=2.0, step=step, model="vit") for step in (0, 5)]
    Result("train", {"settings": {"network": "vit", "seed": 0}, "data": "tiny"}, rows).save(tmp_path / "run")
    assert main(["report", str(tmp_path / "run"), "--markdown", str(tmp_path / "n.md")]) == 0
    assert "R1 has not come to its end" in capsys.readouterr().err
    assert "R1 has not come to its end" in (tmp_path / "n.md").read_text()


def test_figures_alone(stored, tmp_path):
    assert main(["report", str(stored / "coin"), "--figures", str(tmp_path / "drawn")]) == 0
    assert files(tmp_path / "drawn") == ["stand-in-coin.pdf", "stand-in-coin.svg"]
    assert os.path.getsize(tmp_path / "drawn" / "stand-in-coin.pdf") > 1000

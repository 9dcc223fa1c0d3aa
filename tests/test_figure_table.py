"""The page of stored results beside published numbers: every reference once, and missing results
are named.
"""

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest

from tests.stand_in import SOURCE, THEORY, Coin
from transformer_theory.core.experiment import Experiment
from transformer_theory.core.measurement import Measurement
from transformer_theory.core.table import Table

PATH = Path(__file__).parents[1] / "docs" / "figure_table.py"


class Unused(Experiment):
    """Never run."""

    name = "stand_in.unused"
    sources = (SOURCE,)


@pytest.fixture
def figure_table(monkeypatch):
    """The script as a module, with a made-up theory of two experiments."""
    spec = importlib.util.spec_from_file_location("figure_table", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    record = replace(THEORY, experiments=(Coin, Unused))
    monkeypatch.setattr(module, "theory", {"stand_in": record}.__getitem__)
    return module


def row(quantity, value, **columns):
    return Measurement(
        "stand_in", "figure", quantity, value, reason="" if value is not None else "lost", **columns
    )


ROWS = Table(
    [
        row("goes to one", 0.75, predicted=1.0, basis="limit", step=2000),
        row("|p_mm|^2 / 2", 0.3131894, predicted=0.31319, basis="printed", at={"setting": "paper form"}),
        row("norm of $W$", None, predicted=19.5, basis="figure"),
        row("the same", 2.5, predicted=2.5, basis="recomputed"),
        row("a formula", 2.5, predicted=2.5, basis="theory"),
        row("alone", 2.5),
    ]
)


def stored(folder: Path, chosen: Experiment) -> Path:
    ran = chosen.run()
    made = {"seconds": 12.34, "workers": 2, "commit": "0123456789", "dirty": True}
    replace(ran, table=ROWS, provenance=ran.provenance | made).save(folder / chosen.name)
    return folder


def test_every_reference_has_a_line_and_limits_come_last(figure_table, tmp_path):
    text = figure_table.page("stand_in", stored(tmp_path, Coin()))
    lines = text.splitlines()
    assert lines[lines.index("| quantity | reference | which is | ours | difference |") :] == [
        "| quantity | reference | which is | ours | difference |",
        "| --- | --- | --- | --- | --- |",
        r"| \|p\_mm\|^2 / 2, paper form | 0.31319 | printed | 0.3131894 | -6.0e-07 |",
        "| norm of $W$ | 19.5 | read off a figure | none |  |",
        "| the same | 2.5 | recomputed | 2.5 | 0 |",
        "| goes to one, step 2,000 | 1 | limit | 0.75 | -2.5e-01 |",
    ]
    assert "| `stand_in.coin` | 1 | 1 | 1 | 1 | 12 | 2 |" in lines
    assert "Without a stored result: `stand_in.unused`." in lines
    assert "## `stand_in.coin`" in lines
    assert "Throws a coin." in lines
    (made,) = (line for line in lines if " s in 2 processes on " in line)
    assert made.endswith("· commit 0123456, with changes")
    assert "cores ·" in made
    assert "Not the default settings" not in text


def test_other_settings_are_listed(figure_table, tmp_path):
    text = figure_table.page("stand_in", stored(tmp_path, Coin(throws=5, widths=(3, 4))))
    assert "Not the default settings: throws = 5 (default: 1000), widths = [3, 4] (default: [1, 2])." in text


def test_docstrings_become_markdown(figure_table):
    class Formula(Coin):
        r"""The head :math:`h(o) = 1^\top o` of :class:`~a.B`
        on ``x``.

        More.
        """

    assert figure_table.summary(Formula) == r"The head $h(o) = 1^\top o$ of `a.B` on `x`."


def test_the_command_writes_the_page_or_one_line_with_the_error(figure_table, tmp_path, capsys):
    out = tmp_path / "page.md"
    assert figure_table.main(["stand_in", "--results", str(tmp_path), "--out", str(out)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "make figures THEORY=stand_in" in line
    assert not out.exists()
    stored(tmp_path, Coin())
    assert figure_table.main(["stand_in", "--results", str(tmp_path), "--out", str(out)]) == 0
    assert out.read_text().startswith("# A stand-in: our numbers beside the published ones\n")
    (tmp_path / "stand_in.coin" / "table.jsonl").write_text("3")
    assert figure_table.main(["stand_in", "--results", str(tmp_path), "--out", str(out)]) == 2
    assert "does not hold a readable result" in capsys.readouterr().err


def test_an_unknown_theory_is_refused():
    spec = importlib.util.spec_from_file_location("figure_table", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with pytest.raises(ValueError, match="unknown theory 'atention_svm'; did you mean 'attention_svm'"):
        module.page("atention_svm", Path("nowhere"))

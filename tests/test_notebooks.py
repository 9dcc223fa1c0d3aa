"""The notebooks of the documentation equal their text sources, hold no outputs, and run; the documentation
executes them in full.
"""

import functools
import importlib.util
import json
from pathlib import Path

import pytest
import torch

import transformer_theory as tt
from tests.problems.copies import few_copies

DOCS = Path(__file__).parents[1] / "docs"
SOURCES = sorted((DOCS / "notebooks").glob("*.py"))
every_notebook = pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)


def cells(source: Path) -> list[dict]:
    return json.loads(source.with_suffix(".ipynb").read_text(encoding="utf-8"))["cells"]


def test_there_is_a_quickstart():
    assert "quickstart" in [path.stem for path in SOURCES]
    assert {path.stem for path in SOURCES} == {path.stem for path in (DOCS / "notebooks").glob("*.ipynb")}


@every_notebook
def test_a_notebook_is_that_of_its_source(source: Path):
    spec = importlib.util.spec_from_file_location("notebook", DOCS / "notebook.py")
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    assert source.with_suffix(".ipynb").read_text(encoding="utf-8") == module.notebook(source), (
        "run python docs/notebook.py"
    )


@every_notebook
def test_a_notebook_has_no_outputs_and_fits_the_page(source: Path):
    code = [cell for cell in cells(source) if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    assert max(len(line.rstrip()) for cell in code for line in cell["source"]) <= 82


@every_notebook
# arrays are converted by the library, after the shape checks of the tests
@pytest.mark.usefixtures("unchecked")
def test_a_notebook_runs(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """All cells one after another in an empty folder, with few training steps and rungs; the last expression
    of a cell shows itself.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tt, "compare", with_fixed(tt.compare, networks=[], seeds=1))
    monkeypatch.setattr(tt, "measure", with_fixed(tt.measure, theories=["scan_snap", "vision"]))
    few_copies(monkeypatch)
    monkeypatch.setattr(tt, "reach", with_fixed(tt.reach, seeds=1, until="own setting"))
    names: dict = {}
    with torch.random.fork_rng():
        for cell in cells(source):
            if cell["cell_type"] == "code":
                code = (
                    "".join(cell["source"])
                    .replace("range(201)", "range(26)")
                    .replace("torch.set_num_threads(1)", "")
                )
                exec(compile(code, source.name, "exec"), names)
    assert sorted(
        path.suffix for path in tmp_path.rglob("*") if path.is_file() and path.suffix in (".pdf", ".html")
    ) == [
        ".html",
        ".html",
        ".pdf",
    ]
    assert set(names["probed"].table.column("step")) == {0, 25}
    assert names["mine"].settings["inputs"] == "128 of 256 images of shape [1, 8, 8]"
    for name in ("result", "mine", "probed", "reached"):
        assert names[name].plot()._repr_svg_().startswith("<svg")


def with_fixed(function, **fixed):
    """The function with some arguments fixed, whatever it is called with."""

    @functools.wraps(function)
    def call(*arguments, **given):
        return function(*arguments, **{**given, **fixed})

    return call
